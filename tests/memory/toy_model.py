"""An integer-exact toy hybrid model on physical pages, driven by a memory as an engine would be.

    recurrent state   three words, each a non-commutative hash of the token history
    convolution       the last three tokens
    KV of a token     a hash of its token, position and recurrent state
    next token        a hash of state, convolution and all KV read through the block table

A wrong, stale, half or mis-ordered state changes every later token. Pages are words in real
arrays; a page or slot that gets a new owner is wiped, and reading a wiped word is an error. The
reference is a replay from scratch without any memory.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from cores import replace_method

from hsexp.memory import Copy, Hit, HybridMemory, PagePool, PrefixKeys, SequenceMemory
from hsexp.memory.branching.leaves import LeafKey
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.slab import SlabStateStore

Token = int
Word = int | None
"""What a place in memory holds; None is a wiped one."""

PARTS = 3
WINDOW = 3
MODULUS = 2**61 - 1
VOCABULARY = 9973


def mix(values: Iterable[int]) -> int:
    """A hash in which the order counts."""
    digest = 1
    for value in values:
        digest = (digest * 6364136223846793005 + value + 1442695040888963407) % MODULUS
    return digest


# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """Recurrent and convolution state after some tokens."""

    parts: tuple[int, ...]
    window: tuple[int, ...]

    def after(self, token: Token) -> "ModelState":
        parts: list[int] = []
        carried = token
        for part in self.parts:
            carried = mix((part, carried))
            parts.append(carried)
        return ModelState(parts=tuple(parts), window=(*self.window[1:], token))

    def kv(self, token: Token, position: int) -> int:
        """KV of the token that led to this state."""
        return mix((token, position, *self.parts))

    def next_token(self, kv: Sequence[int]) -> Token:
        return mix((*self.parts, *self.window, *kv)) % VOCABULARY


START = ModelState(parts=(0,) * PARTS, window=(0,) * WINDOW)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A request computed from scratch: what everything must be."""

    tokens: tuple[Token, ...]
    """Prompt and output."""
    states: tuple[ModelState, ...]
    """`states[n]` is the state after n tokens."""
    kv: tuple[int, ...]

    @classmethod
    def of(cls, prompt: Sequence[Token], num_output: int) -> "Replay":
        tokens, states, kv = list(prompt), [START], list[int]()
        for position in range(len(prompt) + num_output - 1):
            token = tokens[position]
            states.append(states[-1].after(token))
            kv.append(states[-1].kv(token, position))
            if position + 1 == len(tokens):
                tokens.append(states[-1].next_token(kv))
        return cls(tokens=tuple(tokens), states=tuple(states), kv=tuple(kv))

    def kv_of_block(self, end: int, block_size: int) -> tuple[int, ...]:
        return self.kv[end - block_size : end]


# -- physical memory -----------------------------------------------------------------------------


class StaleRead(AssertionError):
    """A word was read that its new owner had not written."""


class PhysicalMemory:
    """The words of all pages, wiped whenever a page gets a new owner.

    The words of a state are dealt out to its composites, one or three.
    """

    def __init__(self, memory: HybridMemory, *, composites: int = 1) -> None:
        self.memory = memory
        self.composites = composites
        store = memory.cache.states
        self.num_slots = store.num_slots if isinstance(store, SlabStateStore) else 0
        self.page_words = max(memory.block_size, PARTS + WINDOW, self.num_slots * WINDOW)
        self.pages = {
            pool.spec.name: [self._wiped() for _ in range(pool.spec.num_pages)]
            for pool in memory.cache.pools
        }
        for pool in memory.cache.pools:
            pool.on_reassign = partial(self._wipe_after, pool.on_reassign, pool)
        attention = memory.cache.attention
        self.block_size = attention.kernel_block_size
        self.blocks_per_page = attention.blocks_per_page
        if self.blocks_per_page > 1:  # a block of a slab gets new owners without its page
            replace_method(attention, "take", partial(self._take_wiped, attention.take))

    def _wiped(self) -> list[Word]:
        return [None] * self.page_words

    def _wipe_after(
        self, lose_entries: Callable[[list[int]], None], pool: PagePool, pages: list[int]
    ) -> None:
        lose_entries(pages)
        for page in pages:
            self.pages[pool.spec.name][page] = self._wiped()

    def _take_wiped(
        self, take: Callable[[SequenceMemory, int], None], sequence: SequenceMemory, end: int
    ) -> None:
        """Take blocks, and wipe the slots of slabs that others may have had."""
        before = len(sequence.tail)
        take(sequence, end)
        for block_id in sequence.tail[before:]:
            page, word = self._place([block_id], 0)
            page[word : word + self.block_size] = [None] * self.block_size

    def _attention(self, page: int) -> list[Word]:
        return self.pages[self.memory.cache.attention_pool.spec.name][page]

    def _recurrent(self, page: int) -> list[Word]:
        return self.pages[self.memory.cache.states.pool.spec.name][page]

    def _place(self, blocks: Sequence[int], position: int) -> tuple[list[Word], int]:
        """Page and word of a token, given the ids of its sequence's blocks."""
        block, offset = divmod(position, self.block_size)
        page, part = divmod(blocks[block], self.blocks_per_page)
        return self._attention(page), part * self.block_size + offset

    def write_kv(self, blocks: Sequence[int], position: int, value: int) -> None:
        page, word = self._place(blocks, position)
        page[word] = value

    def read_kv(self, blocks: Sequence[int], end: int) -> list[int]:
        return [self._read(*self._place(blocks, position)) for position in range(end)]

    def blocks(self, sequence: SequenceMemory) -> list[int]:
        """Ids of a sequence's blocks."""
        return self.memory.cache.attention.block_ids(sequence)

    def read_block(self, page: int) -> list[Word]:
        return self._attention(page)[: self.memory.block_size]

    def _places(self, state: Checkpoint) -> list[tuple[list[Word], int]]:
        return self._places_at(state.pages, state.line)

    def _places_at(self, ids: Sequence[int], line: int) -> list[tuple[list[Word], int]]:
        """Where the words of a state lie: its parts, then its window."""
        pages = [self._recurrent(page) for page in ids]
        if len(pages) == 1:  # one composite page
            return [(pages[0], word) for word in range(PARTS + WINDOW)]
        parts = [(pages[part], 0) for part in range(PARTS)]
        if line < 0:  # each composite's window is in one of the last pages
            last = pages[-self.composites :] * (WINDOW // self.composites)
            return parts + [(page, PARTS + word) for word, page in enumerate(last)]
        page, slot = divmod(line, self.num_slots)
        slab = self._recurrent(page)
        return parts + [(slab, slot * WINDOW + word) for word in range(WINDOW)]

    def wipe_state(self, state: Checkpoint) -> None:
        for page, word in self._places(state):
            page[word] = None

    def write_state(self, state: Checkpoint, value: ModelState) -> None:
        words = (*value.parts, *value.window)
        for (page, word), content in zip(self._places(state), words, strict=True):
            page[word] = content

    def read_state(self, state: Checkpoint) -> ModelState:
        words = [self._read(page, word) for page, word in self._places(state)]
        return ModelState(parts=tuple(words[:PARTS]), window=tuple(words[PARTS:]))

    def carry_out(self, copy: Copy) -> None:
        """Copy a page or a state, whatever is in it."""
        if copy.kind == "attention":
            self._attention(copy.target[0])[:] = self._attention(copy.source[0])
            return
        targets = self._places_at(copy.target, copy.target_line)
        sources = self._places_at(copy.source, copy.source_line)
        for (target, to), (source, word) in zip(targets, sources, strict=True):
            target[to] = source[word]

    def poison_free(self) -> None:
        """Wipe what nobody references and nobody can find: free pages and free slots."""
        for pool in self.memory.cache.pools:
            for page in pool.free_pages():
                if pool.entries[page] is None:
                    self.pages[pool.spec.name][page] = self._wiped()
        store = self.memory.cache.states
        if isinstance(store, SlabStateStore):
            for slab in store.slabs.values():
                for slot, state in enumerate(slab.slots):
                    if state is None:
                        words = slice(slot * WINDOW, (slot + 1) * WINDOW)
                        self._recurrent(slab.page)[words] = [None] * WINDOW

    def _read(self, page: list[Word], word: int) -> int:
        value = page[word]
        if value is None:
            raise StaleRead("a word that nobody has written since its page got a new owner")
        return value


# -- the engine ----------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class ToyRequest:
    """A request, and what it must yield."""

    request_id: int
    prompt: tuple[Token, ...]
    num_output: int
    truth: Replay
    sequence: SequenceMemory
    salt: str | None = None
    output: list[Token] = field(default_factory=list)
    computed: int = 0
    end: int = 0
    """Where the step that is being scheduled takes it; 0 while it has no part in it."""
    adopted: list[int] = field(default_factory=list)
    """Tokens adopted at each admission."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.prompt) + len(self.output)

    @property
    def tokens(self) -> tuple[Token, ...]:
        return (*self.prompt, *self.output)

    @property
    def is_done(self) -> bool:
        return len(self.output) == self.num_output

    @property
    def correct_output(self) -> list[Token]:
        return list(self.truth.tokens[len(self.prompt) :])


class ToyEngine:
    """Schedules by hand or by `run`, and computes on physical pages.

    A step: `admit` and `grow` as many requests as fit, then `step` computes them all.
    """

    def __init__(self, memory: HybridMemory, *, composites: int = 1) -> None:
        self.memory = memory
        self.physical = PhysicalMemory(memory, composites=composites)
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.finished: list[ToyRequest] = []
        self.num_preemptions = 0
        self._num_arrived = 0
        self._true_blocks: dict[Hashable, tuple[int, ...]] = {}
        self._true_states: dict[Hashable, ModelState] = {}
        self._true_leaves: dict[Hashable, Replay] = {}

    def arrive(
        self, prompt: Sequence[Token], num_output: int, *, salt: str | None = None
    ) -> ToyRequest:
        """A new waiting request, keyed by the content of its prefixes and its salt."""
        self._num_arrived += 1
        truth = Replay.of(prompt, num_output)
        request = ToyRequest(
            request_id=self._num_arrived,
            prompt=tuple(prompt),
            num_output=num_output,
            truth=truth,
            sequence=SequenceMemory(
                request_id=self._num_arrived,
                keys=self._keys(truth, salt),
                num_prompt_tokens=len(prompt),
            ),
            salt=salt,
        )
        self.memory.enter(request.sequence, request.num_tokens)
        self.waiting.append(request)
        return request

    def _keys(self, truth: Replay, salt: str | None) -> PrefixKeys:
        block, grid = self.memory.block_size, self.memory.checkpoint_grid
        reach = len(truth.kv)
        attention = [(salt, truth.tokens[:end]) for end in range(block, reach + 1, block)]
        checkpoints = [(salt, truth.tokens[:end]) for end in range(grid, reach + 1, grid)]
        for end, key in zip(range(block, reach + 1, block), attention, strict=True):
            self._true_blocks[key] = truth.kv_of_block(end, block)
        for end, key in zip(range(grid, reach + 1, grid), checkpoints, strict=True):
            self._true_states[key] = truth.states[end]
        return PrefixKeys(attention=attention, checkpoints=checkpoints)

    # -- scheduling ------------------------------------------------------------------------------

    def lookup(self, request: ToyRequest) -> Hit:
        """The deeper one of a leaf and a boundary."""
        leaves = self.memory.branching.leaves
        leaf = leaves.deepest(
            request.sequence, partial(_exact, request), num_tokens=request.num_tokens - 1
        )
        return self.memory.lookup(request.sequence, request.num_tokens).or_deeper(leaf)

    def refuses(self, request: ToyRequest, hit: Hit) -> bool:
        refusal = self.memory.refusal(
            request.sequence, hit, request.num_tokens, nothing_runs=not self.running
        )
        return refusal is not None

    def admit(self, request: ToyRequest, hit: Hit, num_tokens: int) -> None:
        """Start the request with a chunk after its hit."""
        self.memory.admit(request.sequence, hit, request.num_tokens)
        self.waiting.remove(request)
        self.running.append(request)
        request.computed = hit.tokens
        request.adopted.append(hit.tokens)
        assert self.grow(request, num_tokens), "admission counts the first chunk"

    def grow(self, request: ToyRequest, num_tokens: int) -> bool:
        """Give the request its part of the step; False if there is no room."""
        assert request.end == 0
        end = request.computed + num_tokens
        before = request.sequence.state
        if not self.memory.extend(request.sequence, request.computed, end):
            return False
        request.end = end
        state = request.sequence.state
        assert state is not None
        if state is not before:
            self.physical.wipe_state(state)
        return True

    def preempt(self, request: ToyRequest) -> None:
        self.memory.preempt(request.sequence, request.computed)
        self.num_preemptions += 1
        self._stop(request)
        self.waiting.insert(0, request)

    def cancel(self, request: ToyRequest) -> None:
        """The client went away; a step that was scheduled for it is not computed."""
        if request in self.running:
            self.memory.release(request.sequence, request.computed)
            self._stop(request)
        else:
            self.memory.unpin(request.request_id)
            self.waiting.remove(request)

    def _stop(self, request: ToyRequest) -> None:
        self.running.remove(request)
        request.computed = request.end = 0

    # -- computing -------------------------------------------------------------------------------

    def step(self, *, reverse: bool = False) -> None:
        """Compute what was scheduled, in or against running order: it must not matter."""
        for copy in self.memory.take_copies():
            self.physical.carry_out(copy)
        scheduled = [request for request in self.running if request.end]
        if reverse:
            scheduled.reverse()
        for request in scheduled:
            self._compute_state(request)
        self.memory.cache.step += 1
        for request in scheduled:
            self._sample(request)

    def source_of(self, request: ToyRequest) -> Checkpoint | None:
        """The state that the request's next token continues; None before its first token."""
        if request.computed == 0:
            return None
        sequence = request.sequence
        if self._crosses(request) and self.memory.states.max_states(crosses=True) > 1:
            return sequence.superseded
        return sequence.state

    def _crosses(self, request: ToyRequest) -> bool:
        """The scheduled step writes another state than it reads."""
        grid = self.memory.checkpoint_grid
        return request.end > 0 and (request.end - 1) // grid > (request.computed - 1) // grid

    def _compute_state(self, request: ToyRequest) -> None:
        source = self.source_of(request)
        state = START if source is None else self.physical.read_state(source)
        blocks = self.physical.blocks(request.sequence)
        for position in range(request.computed, request.end):
            token = request.tokens[position]
            state = state.after(token)
            self.physical.write_kv(blocks, position, state.kv(token, position))
        assert request.sequence.state is not None
        self.physical.write_state(request.sequence.state, state)

    def _sample(self, request: ToyRequest) -> None:
        request.computed, request.end = request.end, 0
        if request.computed < request.num_tokens:
            return
        assert request.sequence.state is not None
        state = self.physical.read_state(request.sequence.state)
        kv = self.physical.read_kv(self.physical.blocks(request.sequence), request.computed)
        request.output.append(state.next_token(kv))
        if request.is_done:
            leaf = None
            if self.memory.branching.leaves.keeps_final:
                leaf = _exact(request, request.computed)
                self._true_leaves[leaf] = request.truth
            self.memory.release(request.sequence, request.computed, leaf=leaf)
            self.running.remove(request)
            self.finished.append(request)

    # -- the physical check ----------------------------------------------------------------------

    def check(self) -> None:
        """Every cached entry and every running request holds exactly what a replay yields."""
        self.memory.check_integrity()
        ahead = {
            page
            for request in self.running
            for page in request.sequence.blocks[request.computed // self.memory.block_size :]
        }
        for key, page in self.memory.cache.block_index:
            if isinstance(key, LeafKey):
                truth, end = self._leaf(key)
                start = end // self.memory.block_size * self.memory.block_size
                tail = tuple(self.physical.read_block(page)[: end - start])
                assert tail == truth.kv[start:end]
            elif page not in ahead:
                assert tuple(self.physical.read_block(page)) == self._true_blocks[key]
        for key, checkpoint in self.memory.cache.checkpoint_index:
            if isinstance(key, LeafKey):
                truth, end = self._leaf(key)
                assert self.physical.read_state(checkpoint) == truth.states[end]
            elif checkpoint.published_step < self.memory.cache.step:
                assert self.physical.read_state(checkpoint) == self._true_states[key]
        for request in self.running:
            end = request.computed
            if self.memory.branching.copies.is_awaited_by(request.sequence):
                end -= end % self.memory.block_size  # the last block may not be there yet
            kv = self.physical.read_kv(self.physical.blocks(request.sequence), end)
            assert tuple(kv) == request.truth.kv[:end]
            source = self.source_of(request)
            if source is not None and not source.awaits_copy:
                state = self.physical.read_state(source)
                assert state == request.truth.states[request.computed]
        for request in (*self.running, *self.finished):
            assert request.output == request.correct_output[: len(request.output)]

    def _leaf(self, leaf: LeafKey) -> tuple[Replay, int]:
        """What a leaf must hold: the request that left it, and where it ended."""
        _, tokens = leaf.key  # type: ignore[misc]
        return self._true_leaves[leaf.key], len(tokens)

    # -- a scheduler -----------------------------------------------------------------------------

    def run(self, *, token_budget: int, check: bool = True) -> None:
        """First come first served until all have finished, the youngest preempted."""
        for _ in range(10_000):
            if not (self.waiting or self.running):
                return
            self.schedule(token_budget)
            if check:
                self.check()
            self.step(reverse=self.memory.cache.step % 2 == 1)
            if check:
                self.check()
        raise AssertionError("no end: " + self.memory.describe())

    def schedule(self, token_budget: int) -> None:
        """One step: who runs grows first, and nobody is admitted after a preemption."""
        preemptions = self.num_preemptions
        left = self._grow_running(token_budget)
        if self.num_preemptions == preemptions:
            self._admit_waiting(left)

    def _grow_running(self, left: int) -> int:
        for request in list(self.running):
            while request in self.running and not request.end:
                stops = request.sequence.stops
                chunk = self._next_chunk(request, request.computed, left, stops)
                if not chunk:
                    break
                if self.grow(request, chunk):
                    left -= chunk
                    break
                if len(self.running) > 1 or not self.memory.give_way(request.sequence):
                    self.preempt(self.running[-1])
        return left

    def _admit_waiting(self, left: int) -> None:
        while self.waiting:
            request = self.waiting[0]
            hit = self.lookup(request)
            chunk = self._next_chunk(request, hit.tokens, left, hit.stops)
            if not hit.ready or not chunk:
                return
            if self.refuses(request, hit):
                if self.running or not self.memory.give_way():
                    return
                continue
            self.admit(request, hit, chunk)
            left -= chunk

    def _next_chunk(
        self, request: ToyRequest, computed: int, left: int, stops: Sequence[int]
    ) -> int:
        """A chunk ends on the grid, at a stop at the latest, or with the last token."""
        grid, num_tokens = self.memory.checkpoint_grid, request.num_tokens
        end = min(computed + left, num_tokens, *(stop for stop in stops if stop > computed))
        if computed < num_tokens // grid * grid:
            end = end // grid * grid
        return max(end - computed, 0)


def _exact(request: ToyRequest, num_tokens: int) -> Hashable:
    """Key of a leaf after the first tokens of a request."""
    return request.salt, request.tokens[:num_tokens]
