"""Where chunks end, and that canonical ones give the same bits whatever else happens.

The toy model rounds its state where a chunk ends and lets KV depend on the length of the chunk, as
real kernels do. Reference: the request alone, from scratch, in canonical chunks.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from toy_memory import WHOLE_PAGES, toy_memory
from toy_model import START, ModelState, Replay, Token, ToyEngine, ToyRequest, mix

from hsexp.memory import PrefixKeys, SequenceMemory
from hsexp.memory.chunking import Chunking, chunking

EXACT = chunking(block_size=8, checkpoint_grid=8, exact=True)
STOCK = chunking(block_size=8, checkpoint_grid=8, exact=False)


def chunk_ends(rule: Chunking, num_prompt_tokens: int, left: Sequence[int]) -> list[int]:
    """Where the chunks of a prompt end, given what each step has left for it."""
    ends, computed = [], 0
    for tokens in left:
        computed += rule.tokens(computed, num_prompt_tokens, num_prompt_tokens, tokens)
        ends.append(computed)
    return ends


# -- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "ends"),
    [
        ([30, 30], [16, 20]),  # to the last boundary, then the rest
        ([9, 30, 30], [8, 16, 20]),  # the budget reaches one boundary only
        ([7, 9, 8, 4], [0, 8, 16, 20]),  # 7 tokens reach no boundary
    ],
)
def test_stock_chunks_end_where_the_budget_lets_them(left: list[int], ends: list[int]) -> None:
    assert chunk_ends(STOCK, 20, left) == ends


@pytest.mark.parametrize(
    ("left", "ends"),
    [
        ([30, 30, 30], [8, 16, 20]),
        ([9, 9, 9], [8, 16, 20]),
        ([7, 8, 30, 3, 4], [0, 8, 16, 16, 20]),  # what does not fit whole waits
    ],
)
def test_canonical_chunks_end_at_every_boundary_and_with_the_prompt(
    left: list[int], ends: list[int]
) -> None:
    assert chunk_ends(EXACT, 20, left) == ends


def test_generated_tokens_are_computed_again_one_by_one() -> None:
    # 20 tokens of prompt and 13 of output so far.
    assert EXACT.tokens(20, 20, 33, 64) == 1
    assert EXACT.tokens(31, 20, 33, 64) == 1
    assert EXACT.tokens(20, 20, 33, 0) == 0
    assert STOCK.tokens(20, 20, 33, 64) == 4  # to the boundary at 24


def test_keys_beyond_the_prompts_last_boundary_name_its_length() -> None:
    rule = chunking(block_size=2, checkpoint_grid=8, exact=True)
    keys = rule.keys(PrefixKeys(attention=list("abcdefghij"), checkpoints=["A", "B"]), 13)
    # The last boundary is 8: four blocks of two, and the first checkpoint.
    assert list(keys.attention[:5]) == ["a", "b", "c", "d", ("e", 13)]
    assert list(keys.attention[5:7]) == [("f", 13), ("g", 13)]
    assert [keys.attention[3], keys.attention[4]] == ["d", ("e", 13)]
    assert list(keys.checkpoints[:]) == ["A", ("B", 13)]


def test_keys_follow_the_hashes_of_generated_tokens() -> None:
    hashes = ["a"]
    keys = EXACT.keys(PrefixKeys(attention=hashes, checkpoints=hashes), 12).attention
    assert len(keys) == 1
    hashes.append("b")
    assert list(keys[:]) == ["a", ("b", 12)]


def test_stock_keys_are_those_of_the_tokens() -> None:
    keys = PrefixKeys(attention=["a"], checkpoints=["a"])
    assert STOCK.keys(keys, 3) is keys


# -- the same bits ---------------------------------------------------------------------------------


def rounded(state: ModelState) -> ModelState:
    return ModelState(parts=tuple(mix((part, 7)) for part in state.parts), window=state.window)


def kv_of(state: ModelState, token: Token, position: int, chunk: int) -> int:
    return mix((state.kv(token, position), chunk))


def alone(rule: Chunking, prompt: Sequence[Token], num_output: int) -> Replay:
    """The request from scratch. States off the chunk ends are never kept and never compared."""
    tokens, states, kv = list(prompt), [START], list[int]()
    state, reach = START, len(prompt) + num_output - 1
    while len(kv) < reach:
        computed = len(kv)
        chunk = rule.tokens(computed, len(prompt), len(tokens), reach)
        for position in range(computed, computed + chunk):
            state = state.after(tokens[position])
            kv.append(kv_of(state, tokens[position], position, chunk))
            states.append(state)
        state = states[-1] = rounded(state)
        if len(kv) == len(tokens):
            tokens.append(state.next_token(kv))
    return Replay(tokens=tuple(tokens), states=tuple(states), kv=tuple(kv))


class RoundingEngine(ToyEngine):
    """A toy engine whose bits depend on where chunks end and how long they are."""

    def __init__(self, memory: Any, *, exact: bool) -> None:
        super().__init__(memory)
        sizes = {"block_size": memory.block_size, "checkpoint_grid": memory.checkpoint_grid}
        self.canonical = chunking(exact=True, **sizes)
        self.chunking = chunking(exact=exact, **sizes)

    def arrive(
        self, prompt: Sequence[Token], num_output: int, *, salt: str | None = None
    ) -> ToyRequest:
        self._num_arrived += 1
        truth = alone(self.canonical, prompt, num_output)
        keys = self._keys_alone(truth, len(prompt), salt)
        request = ToyRequest(
            request_id=self._num_arrived,
            prompt=tuple(prompt),
            num_output=num_output,
            truth=truth,
            sequence=SequenceMemory(
                request_id=self._num_arrived, keys=keys, num_prompt_tokens=len(prompt)
            ),
        )
        self.waiting.append(request)
        return request

    def _keys_alone(self, truth: Replay, num_prompt: int, salt: str | None) -> PrefixKeys:
        """Keys of a request. Under each must lie the bits of the request alone."""
        block, grid, reach = self.memory.block_size, self.memory.checkpoint_grid, len(truth.kv)
        plain = PrefixKeys(
            attention=[(salt, truth.tokens[:end]) for end in range(block, reach + 1, block)],
            checkpoints=[(salt, truth.tokens[:end]) for end in range(grid, reach + 1, grid)],
        )
        keys = self.chunking.keys(plain, num_prompt)
        for index, key in enumerate(keys.attention):
            self._true_blocks[key] = truth.kv_of_block((index + 1) * block, block)
        for index, key in enumerate(keys.checkpoints):
            self._true_states[key] = truth.states[(index + 1) * grid]
        return keys

    def _compute_state(self, request: ToyRequest) -> None:
        source, chunk = self.source_of(request), request.end - request.computed
        state = START if source is None else self.physical.read_state(source)
        for position in range(request.computed, request.end):
            token = request.tokens[position]
            state = state.after(token)
            value = kv_of(state, token, position, chunk)
            self.physical.write_kv(self.physical.blocks(request.sequence), position, value)
        assert request.sequence.state is not None
        self.physical.write_state(request.sequence.state, rounded(state))

    def _next_chunk(
        self, request: ToyRequest, computed: int, left: int, stops: Sequence[int]
    ) -> int:
        return self.chunking.tokens(computed, len(request.prompt), request.num_tokens, left, stops)


TIGHT = {"s0": 14, "s1": 30, "s2": 26, "s3": 24, "d0": 40}
POLICIES: list[dict[str, Any]] = [
    {},
    {"retention": 2},
    {"pinning": 1, "headroom": 0.1},
    {"placement": "junction"},
]


def crowd(organization: str, *, exact: bool, seed: int, **policies: Any) -> RoundingEngine:
    """Requests over two contexts in a pool that is too small for them; some continue the output
    of an earlier one, as the next turn of a conversation does."""
    memory = toy_memory(organization, TIGHT[organization], num_states=7, **policies)
    engine, rng = RoundingEngine(memory, exact=exact), random.Random(seed)
    contexts = [[rng.randrange(1000) for _ in range(24)] for _ in range(2)]
    turns: list[tuple[Token, ...]] = []
    for _ in range(24):
        prompt = contexts[rng.randrange(2)][: rng.choice([8, 9, 16, 24])]
        if turns and rng.random() < 0.4:
            prompt = list(rng.choice(turns)[:36])
        prompt = prompt + [rng.randrange(1000) for _ in range(rng.randrange(0, 12))]
        request = engine.arrive(prompt, rng.randrange(1, 14))
        turns.append(request.truth.tokens)
    return engine


@pytest.mark.parametrize("policies", POLICIES, ids=str)
def test_canonical_chunks_give_the_bits_of_the_request_alone(
    organization: str, policies: dict[str, Any]
) -> None:
    for seed in range(6):
        engine = crowd(organization, exact=True, seed=seed, **policies)
        engine.run(token_budget=17)  # checks every block and state against the request alone
        assert engine.num_preemptions or engine.memory.cache.counters.lost_checkpoints
        assert any(any(request.adopted) for request in engine.finished)
        assert len(engine.finished) == 24


def test_stock_chunks_do_not(organization: str) -> None:
    differing = 0
    for seed in range(6):
        engine = crowd(organization, exact=False, seed=seed)
        engine.run(token_budget=17, check=False)
        differing += sum(request.output != request.correct_output for request in engine.finished)
    assert differing > 20


def test_a_prompt_does_not_adopt_what_was_computed_token_by_token(organization: str) -> None:
    engine = RoundingEngine(toy_memory(organization, 60), exact=True)
    first = engine.arrive(range(6), 7)  # decodes over the boundary at 8, to 12 tokens
    engine.run(token_budget=64)
    again = engine.arrive(range(6), 7)
    turn = engine.arrive(first.truth.tokens, 2)
    engine.run(token_budget=64)
    # The same prompt is shorter than a boundary; the next turn has one, in the other form.
    assert (again.adopted, turn.adopted) == ([0], [0])
    later = engine.arrive((*first.truth.tokens, 1), 2)
    engine.run(token_budget=64)
    assert later.adopted == [8]  # of the turn before it, which computed it as a prompt


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_preempted_request_finds_the_checkpoint_that_it_decoded(organization: str) -> None:
    engine = RoundingEngine(toy_memory(organization, 60), exact=True)
    request = engine.arrive(range(6), 14)
    for _ in range(8):  # a chunk of 6, then tokens 7 to 13
        engine.schedule(64)
        engine.step()
    engine.preempt(request)
    engine.run(token_budget=64)
    assert request.adopted == [0, 8]
    assert request.output == request.correct_output
