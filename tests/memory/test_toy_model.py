"""No hit, eviction, preemption, slab reclaim, retention or pin returns a wrong state.

Each request's output and every cached word are compared with a replay from scratch.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from toy_memory import WHOLE_PAGES, all_free, reassign, state_of, toy_memory
from toy_model import START, ModelState, Replay, StaleRead, ToyEngine, ToyRequest

PROMPT = tuple(range(100, 120))
"""20 tokens: two boundaries at 8 and 16, and a rest."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """An organization, its grid and a pool that is too small for all that happens in it."""

    organization: str
    grid: int
    num_pages: int
    policies: dict[str, Any] = field(default_factory=dict)
    composites: int = 1

    def engine(self) -> ToyEngine:
        memory = toy_memory(
            self.organization,
            self.num_pages,
            num_states=7 * self.composites,
            grid=self.grid,
            composites=self.composites,
            **self.policies,
        )
        return ToyEngine(memory, composites=self.composites)

    def __str__(self) -> str:
        policies = "-".join(f"{name}{value}" for name, value in self.policies.items())
        composites = f"-composites{self.composites}" if self.composites > 1 else ""
        return f"{self.organization}-grid{self.grid}{composites}-{policies or 'plain'}"


TIGHT = {"s0": 14, "s1": 30, "s2": 26, "s3": 24, "d0": 40}
TIGHT_3 = {"s0": 26, "s1": 46, "s2": 26, "s3": 26, "d0": 40}
"""With three composites: those of S2 take as many pages as one of three members."""
POLICIES: list[dict[str, Any]] = [
    {},
    {"headroom": 0.1},
    {"retention": 2},
    {"pinning": 1},
    {"placement": "junction"},
    {"placement": "dense", "retention": 2},
    {"retention": 1, "pinning": 1, "headroom": 0.1, "protected": 0.5},
]
TIGHT_IN_PLACE = {"s0": 11, "s1": 16, "s2": 15, "d0": 36}
IN_PLACE: list[dict[str, Any]] = [
    {"states": "in_place"},
    {"states": "in_place", "pinning": 1, "placement": "dense"},
]
"""They preempt only in smaller pools."""
ARRANGEMENTS = (
    [
        Arrangement(organization=name, grid=grid, num_pages=num_pages, policies=policies)
        for name, num_pages in TIGHT.items()
        for grid in (8, 16)
        for policies in POLICIES
    ]
    + [
        Arrangement(organization=name, grid=8, num_pages=num_pages, policies=policies, composites=3)
        for name, num_pages in TIGHT_3.items()
        for policies in POLICIES[::4]
    ]
    + [
        Arrangement(organization=name, grid=grid, num_pages=num_pages, policies=policies)
        for name, num_pages in TIGHT_IN_PLACE.items()
        for grid in (8, 16)
        for policies in IN_PLACE
    ]
)


def engine_of(organization: str, num_pages: int = 60, **policies: Any) -> ToyEngine:
    return ToyEngine(toy_memory(organization, num_pages, **policies))


def finish(engine: ToyEngine, *requests: ToyRequest, token_budget: int = 64) -> None:
    engine.run(token_budget=token_budget)
    for request in requests:
        assert request.output == request.correct_output


def start(engine: ToyEngine, request: ToyRequest, num_tokens: int) -> int:
    """Admit the request with its first chunk. Returns what it adopted."""
    hit = engine.lookup(request)
    assert hit.ready and not engine.refuses(request, hit)
    engine.admit(request, hit, num_tokens)
    return hit.tokens


def prompts(seed: int, count: int, grid: int) -> list[tuple[list[int], int]]:
    """Prompts over two shared prefixes of one and two grid intervals, and output lengths."""
    rng = random.Random(seed)
    contexts = [[rng.randrange(1000) for _ in range(2 * grid)] for _ in range(2)]
    drawn = []
    for _ in range(count):
        prefix = contexts[rng.randrange(2)][: rng.choice([grid, 2 * grid])]
        suffix = [rng.randrange(1000) for _ in range(rng.randrange(1, grid + 2))]
        drawn.append((prefix + suffix, rng.randrange(1, 14)))
    return drawn


# -- the oracle itself -----------------------------------------------------------------------------


def test_the_order_of_tokens_changes_the_state() -> None:
    assert START.after(1).after(2) != START.after(2).after(1)


def test_every_part_of_the_state_changes_the_next_token() -> None:
    state, kv = START.after(1).after(2).after(3), (5, 6, 7)
    token = state.next_token(kv)
    for part in range(3):
        parts = (*state.parts[:part], state.parts[part] + 1, *state.parts[part + 1 :])
        assert ModelState(parts=parts, window=state.window).next_token(kv) != token
        window = (*state.window[:part], state.window[part] + 1, *state.window[part + 1 :])
        assert ModelState(parts=state.parts, window=window).next_token(kv) != token
    assert state.next_token((5, 7, 6)) != token


def test_a_replay_extends_the_prompt_by_its_own_tokens() -> None:
    replay = Replay.of((1, 2), 3)
    assert replay.tokens[:2] == (1, 2) and len(replay.tokens) == 5
    assert replay.tokens[2] == replay.states[2].next_token(replay.kv[:2])
    assert len(replay.kv) == len(replay.states) - 1 == 4  # the last token is never fed back


def swap_blocks(engine: ToyEngine, request: ToyRequest) -> None:
    blocks = request.sequence.blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


def take_older_state(engine: ToyEngine, request: ToyRequest) -> None:
    sequence = request.sequence
    assert sequence.superseded is not None
    sequence.state = sequence.superseded


def spoil(word: int) -> Callable[[ToyEngine, ToyRequest], None]:
    def change(engine: ToyEngine, request: ToyRequest) -> None:
        page, place = engine.physical._places(state_of(request.sequence))[word]
        page[place] = 12345

    return change


@pytest.mark.parametrize(
    "fault",
    [swap_blocks, take_older_state, *(spoil(word) for word in range(6))],
    ids=["blocks", "older state", *(f"word {word}" for word in range(6))],
)
def test_the_oracle_notices_a_fault(
    organization: str, fault: Callable[[ToyEngine, ToyRequest], None]
) -> None:
    engine = engine_of(organization)
    request = engine.arrive(PROMPT[:17], 8)
    start(engine, request, 16)
    engine.step()
    assert engine.grow(request, 1)
    engine.step()
    fault(engine, request)
    with pytest.raises((AssertionError, StaleRead)):
        engine.check()


def test_reading_a_page_that_its_owner_has_not_written_is_an_error(organization: str) -> None:
    engine = engine_of(organization)
    request = engine.arrive(PROMPT, 8)
    start(engine, request, 20)  # scheduled and not computed
    with pytest.raises(StaleRead):
        engine.physical.read_state(state_of(request.sequence))
    with pytest.raises(StaleRead):
        engine.physical.read_kv(engine.physical.blocks(request.sequence), 1)


# -- hits ------------------------------------------------------------------------------------------


def test_a_warm_request_yields_what_a_cold_one_does(organization: str) -> None:
    engine = engine_of(organization)
    cold = engine.arrive(PROMPT, 8)
    start(engine, cold, 16)
    engine.step()
    engine.grow(cold, 4)
    engine.step()
    warm = engine.arrive(PROMPT, 8)
    assert start(engine, warm, 4) == 16
    engine.step()
    finish(engine, cold, warm)
    assert cold.output == warm.output


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_hit_on_generated_tokens_yields_what_a_cold_request_does(organization: str) -> None:
    engine = engine_of(organization)
    first = engine.arrive(PROMPT, 13)
    start(engine, first, 20)
    engine.step()
    while len(first.output) < 12:
        engine.grow(first, 1)
        engine.step()
    # The next turn of a conversation: prompt and answer of the first one, and a question.
    second = engine.arrive((*PROMPT, *first.output, 7, 7), 5)
    assert start(engine, second, second.num_tokens - 24) == 24  # a decode crossing at 24
    engine.step()
    finish(engine, first, second)


def test_half_a_state_is_never_adopted(organization: str) -> None:
    for member in range(4 if organization == "s1" else 3):
        engine = engine_of(organization)
        memory = engine.memory
        first, keeper = engine.arrive(PROMPT, 1), engine.arrive((1, 2, 3), 9)
        start(engine, keeper, 3)  # keeps S2's slab active
        start(engine, first, 16)
        engine.step()
        pages = list(state_of(first.sequence).pages)
        engine.cancel(first)
        if member >= len(pages):
            continue
        reassign(memory.cache.states.pool, pages[member])
        second = engine.arrive(PROMPT, 4)
        assert start(engine, second, 16) == 0
        engine.check()
        engine.step()
        finish(engine, second, keeper)


def test_kv_without_a_state_is_no_hit(organization: str) -> None:
    engine = engine_of(organization)
    first = engine.arrive(PROMPT, 2)
    start(engine, first, 20)  # one chunk: no state at 8 or 16
    engine.step()
    second = engine.arrive(PROMPT, 4)
    assert start(engine, second, 20) == 0
    engine.step()
    finish(engine, first, second)


def test_a_state_is_stored_under_the_boundary_at_which_it_was_written(organization: str) -> None:
    # Prompt 12 in chunks of 7 and 5: no state of 8 tokens ever exists.
    engine = engine_of(organization)
    first = engine.arrive(PROMPT[:12], 6)
    start(engine, first, 7)
    engine.step()
    engine.grow(first, 5)
    engine.step()
    engine.check()
    second = engine.arrive(PROMPT[:12], 6)
    assert start(engine, second, 12) == 0
    engine.step()
    finish(engine, first, second)


@pytest.mark.parametrize("reverse", [False, True])
def test_requests_packed_in_one_step_keep_their_own_states(
    organization: str, reverse: bool
) -> None:
    # Prompts of 5 and 9 tokens with chunks of 4, and a decoding third, in the same steps.
    engine = engine_of(organization)
    third = engine.arrive(PROMPT, 12)
    start(engine, third, 20)
    engine.step(reverse=reverse)
    first, second = engine.arrive(PROMPT[:5], 4), engine.arrive(PROMPT[3:12], 4)
    start(engine, first, 4)
    start(engine, second, 4)
    engine.grow(third, 1)
    engine.step(reverse=reverse)
    engine.check()
    engine.grow(first, 1)
    engine.grow(second, 4)
    engine.grow(third, 1)
    engine.step(reverse=reverse)
    engine.check()
    finish(engine, first, second, third)


def test_a_first_chunk_of_one_token_starts_from_nothing(organization: str) -> None:
    # A prompt that the budget gives a single token looks like a decode; its slot was used before.
    engine = engine_of(organization, 12, num_states=2)
    before = engine.arrive(PROMPT[:7], 3)
    finish(engine, before)
    request = engine.arrive(PROMPT[5:], 5)
    assert start(engine, request, 1) == 0
    engine.step()
    engine.check()
    finish(engine, request)


def test_equal_prompts_with_other_salts_are_computed_on_their_own(organization: str) -> None:
    engine = engine_of(organization)
    first = engine.arrive(PROMPT, 9, salt="a")
    start(engine, first, 16)
    engine.step()
    other, same = engine.arrive(PROMPT, 9, salt="b"), engine.arrive(PROMPT, 9, salt="a")
    assert start(engine, other, 16) == 0
    assert start(engine, same, 4) == 16
    engine.step()
    finish(engine, first, other, same)


# -- preemption ------------------------------------------------------------------------------------


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_a_resumed_request_goes_on_where_it_was(organization: str) -> None:
    engine = engine_of(organization)
    request = engine.arrive(PROMPT, 12)
    start(engine, request, 16)
    engine.step()
    engine.grow(request, 4)
    engine.step()
    for _ in range(6):
        engine.grow(request, 1)
        engine.step()
    engine.preempt(request)  # 26 tokens computed, checkpoints at 16 and 24
    assert start(engine, request, 3) == 24
    engine.step()
    finish(engine, request)


def test_a_step_that_was_taken_back_is_never_adopted(organization: str) -> None:
    engine = engine_of(organization)
    low = engine.arrive(PROMPT, 5)
    start(engine, low, 8)
    engine.step()
    engine.grow(low, 8)
    engine.preempt(low)  # in the very step that would compute tokens 8 to 16
    engine.check()
    engine.step()
    consumer = engine.arrive(PROMPT, 5)
    assert start(engine, consumer, 12) == 8
    engine.step()
    finish(engine, low, consumer)


def test_pages_of_a_preempted_request_serve_others_in_the_same_step(organization: str) -> None:
    engine = engine_of(
        organization, {"s0": 6, "s1": 12, "s2": 12, "s3": 12, "d0": 16}[organization]
    )
    first, second = engine.arrive(PROMPT[:9], 9), engine.arrive(PROMPT[5:14], 9)
    start(engine, first, 9)
    engine.step()
    start(engine, second, 9)
    engine.preempt(second)
    assert engine.grow(first, 1)
    engine.check()
    engine.step()
    engine.check()
    finish(engine, first, second)


def test_unique_prompts_adopt_only_what_they_computed_themselves(organization: str) -> None:
    engine = engine_of(organization, TIGHT[organization], num_states=7)
    requests = [
        engine.arrive([100 * number + token for token in range(17)], 12) for number in range(8)
    ]
    finish(engine, *requests, token_budget=24)
    assert engine.num_preemptions > 0
    assert [request.adopted[0] for request in requests] == [0] * 8


# -- under pressure --------------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_all_outputs_are_right_in_a_pool_that_is_too_small(arrangement: Arrangement) -> None:
    counters: dict[str, int] = {}
    adopted = 0
    for seed in range(3):
        engine = arrangement.engine()
        requests = [
            engine.arrive(prompt, num_output)
            for prompt, num_output in prompts(seed, 14, arrangement.grid)
        ]
        finish(engine, *requests, token_budget=3 * arrangement.grid)
        assert all_free(engine.memory)
        assert engine.memory.pinning.num_pins == 0
        adopted += sum(sum(request.adopted) for request in requests)
        for name in ("preemptions", "lost_checkpoints", "lost_blocks", "reclaimed_slabs",
                     "retained_checkpoints", "pinned_checkpoints"):  # fmt: skip
            counters[name] = counters.get(name, 0) + getattr(engine.memory.cache.counters, name)
    # The proof is empty unless all of these happened.
    happened = {name for name, count in counters.items() if count}
    expected = {"preemptions", "lost_checkpoints", "lost_blocks"}
    if arrangement.organization in ("s2", "s3"):
        expected.add("reclaimed_slabs")
    for policy, name in (("retention", "retained"), ("pinning", "pinned")):
        if arrangement.policies.get(policy) is not None:
            expected.add(f"{name}_checkpoints")
    assert happened == expected
    assert adopted > 0


@pytest.mark.parametrize("token_budget", [3, 8, 11, 64])
def test_outputs_do_not_depend_on_the_token_budget(organization: str, token_budget: int) -> None:
    engine = engine_of(organization, TIGHT[organization], num_states=7)
    requests = [engine.arrive(prompt, count) for prompt, count in prompts(5, 8, 8)]
    if token_budget < 8:
        # No chunk reaches the grid: give each request its tokens by hand, one request at a time.
        for request in list(requests):
            serve_alone(engine, request, token_budget)
    else:
        finish(engine, *requests, token_budget=token_budget)
    for request in requests:
        assert request.output == request.correct_output
    assert all_free(engine.memory)


def serve_alone(engine: ToyEngine, request: ToyRequest, token_budget: int) -> None:
    hit = engine.lookup(request)
    first = True
    while not request.is_done:
        computed = hit.tokens if first else request.computed
        chunk = min(token_budget, request.num_tokens - computed)
        if first:
            engine.admit(request, hit, chunk)
            first = False
        else:
            assert engine.grow(request, chunk)
        engine.step()
        engine.check()


def test_two_hundred_requests_one_after_the_other_keep_nothing(organization: str) -> None:
    engine = engine_of(organization, TIGHT[organization], num_states=7)
    drawn: Sequence[tuple[list[int], int]] = prompts(11, 200, 8)
    for prompt, num_output in drawn:
        request = engine.arrive(prompt, num_output)
        engine.run(token_budget=64, check=False)
        assert request.output == request.correct_output
        assert all_free(engine.memory)
    engine.check()
