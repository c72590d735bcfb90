"""A random client of one memory, and an oracle that checks the contents of every page.

    words of a sequence   w0 = hash(salt), w1 = hash(w0, token 0), w2 = hash(w1, token 1), ...
    attention page        one word for each of its tokens
    state after n tokens  wn in each of its member pages and in its convolution line

A place is poisoned when its owner changes. A step computes as an engine does: it carries out the
copies, reads each request's state, and writes where the request's tables point. The client preempts
and cancels any request at any point of a step, including requests already scheduled in that step.

When a lookup reports a hit as ready, the hit must hold the right words at once. After each step,
every cached block, checkpoint and pin and every running request must hold the right words. Two more
promises are checked: a standing refusal would be repeated, and a request that runs alone has room
after the memory gave way.

    PYTHONPATH=.:tests python tests/memory/oracle.py s2 both --actions 1_000_000 --seed 5
"""

import argparse
import random
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from time import perf_counter
from typing import Any

from cores import replace_method
from live_depths import live_depths
from toy_memory import (
    EVICTIONS,
    NATIVE_ORDER,
    ORGANIZATIONS,
    PLACEMENTS,
    PRICES,
    RANKED,
    RESERVATIONS,
    STATES,
    WHOLE_PAGES,
    all_free,
    toy_memory,
)

from hsexp.memory import (
    Copy,
    Hit,
    HybridMemory,
    MemoryFault,
    PrefixKeys,
    Refusal,
    SequenceMemory,
    exact_prefix,
)
from hsexp.memory.branching.leaves import LeafKey
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.slab import SlabStateStore
from hsexp.memory.standing import StandingRefusal

POLICIES = ("none", "retention", "pinning", "both")
POISON = 0
NUM_PAGES = {"s0": (5, 20), "s1": (11, 40), "s2": (10, 36), "s3": (10, 36), "d0": (7, 44)}
NUM_STATES = (2, 8)
MAX_TOKENS = 40
SALTS = (None, None, None, 1)
CONTEXTS = tuple(tuple(range(100 * start, 100 * start + 24)) for start in (1, 2))
"""Prompts begin with one of these."""
PREFIXES = (0, 5, 7, 8, 16, 23, 24)
INTEGRITY_STEPS = 40
"""Steps between two recounts of the memory."""
LENGTHS = (60, 250, 1000)
"""Actions of one episode."""
LOG_LENGTH = 80

# Relative frequency of each action.
SERVING = (
    ("arrive", 12),
    ("admit", 26),
    ("grow", 20),
    ("grow_all", 10),
    ("preempt", 6),
    ("leave_alone", 1),
    ("cancel", 4),
    ("reset", 1),
    ("step", 22),
)
BRANCHING = (
    ("fork", 12),
    ("fork_by_copying", 4),
    ("make_private", 3),
    ("begin_copy", 2),
    ("complete_copy", 4),
    ("keep_leaf", 8),
)


class PromiseBroken(AssertionError):
    """The memory broke a promise. The message lists the last actions."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes and policies of one memory, and the habits of its client."""

    organization: str
    num_pages: int
    num_states: int
    composites: int
    grid: int
    headroom: float
    retention: int | None
    pinning: int | None
    protected: float
    idle_slab: str
    num_admission_states: int
    max_leaves: int
    max_final: int
    """Most leaves of finished requests."""
    max_drafts: int
    max_live: int
    """Most requests and branches at once. With few, one often runs alone."""
    branches: bool
    """Whether sequences fork."""
    keys: str
    """When a key becomes known: "all" from the start, "live" with its last token, "late" one step
    after that, as in an asynchronous engine."""
    finishes_in_step: bool
    """Whether a finished request leaves before the step counter advances, as in the simulator."""
    eviction: str
    price: float | None
    """What a step costs, where the order ranks restart points; None has no price."""
    placement: str
    reservation: str
    states: str

    @classmethod
    def draw(cls, organization: str, policy: str, rng: random.Random) -> "Setting":
        """Tiny pools under one of `POLICIES`. Everything else is random."""
        composites = rng.choice((1, 1, 1, 3))
        few, many = NUM_PAGES[organization]
        most = rng.randint(few, many)
        keys = rng.choice(("all", "live", "late"))
        retention = rng.choice((1, 1, 2)) if policy in ("retention", "both") else None
        states = rng.choice(sorted(STATES)) if retention is None else "per_boundary"
        lonely = STATES[states].refusal(retention=False, branches=True) is not None
        lonely = lonely or organization not in WHOLE_PAGES
        branches = not lonely and rng.random() < 0.7
        eviction = rng.choice(sorted(EVICTIONS))
        return cls(
            organization=organization,
            num_pages=rng.randint(few * composites, most * composites),
            num_states=rng.randint(*NUM_STATES) * composites,
            composites=composites,
            grid=rng.choice((8, 8, 16)),
            headroom=rng.choice((0.0, 0.0, 0.1, 0.3)),
            retention=retention,
            pinning=rng.choice((1, 1, 2)) if policy in ("pinning", "both") else None,
            protected=rng.choice((0.25, 1.0)),
            idle_slab=rng.choice(("head", "tail", "like_state")),
            num_admission_states=rng.choice((1, 2)),
            max_leaves=rng.choice((0, 1, 3)) if branches else 0,
            max_final=rng.choice((0, 1, 4)) if organization in WHOLE_PAGES else 0,
            max_drafts=0 if keys == "late" or lonely else rng.choice((0, 0, 1, 3)),
            max_live=rng.choice((2, 4, 8, 8)),
            branches=branches,
            keys=keys,
            finishes_in_step=rng.random() < 0.5,
            eviction=eviction,
            price=rng.choice((None, *PRICES)) if eviction in RANKED else None,
            placement=rng.choice(sorted(PLACEMENTS)),
            reservation=rng.choice(sorted(RESERVATIONS)),
            states=states,
        )

    def build(self) -> HybridMemory:
        return toy_memory(
            self.organization,
            self.num_pages,
            num_states=self.num_states,
            composites=self.composites,
            grid=self.grid,
            headroom=self.headroom,
            retention=self.retention,
            pinning=self.pinning,
            protected=self.protected,
            eviction=self.eviction,
            price=self.price,
            placement=self.placement,
            reservation=self.reservation,
            states=self.states,
            max_leaves=self.max_leaves,
            max_final=self.max_final,
            max_drafts=self.max_drafts,
            num_admission_states=self.num_admission_states,
            release_order=NATIVE_ORDER.model_copy(update={"idle_slab": self.idle_slab}),
        )

    @property
    def has_leaves(self) -> bool:
        return self.max_leaves + self.max_final > 0

    def actions(self) -> list[str]:
        """Names of the client's actions, each as often as it is to be chosen."""
        weights = list(SERVING)
        if self.branches:
            weights += BRANCHING
        if self.max_drafts:
            weights.append(("speculate", 16))
        return [name for name, weight in weights for _ in range(weight)]


class Calls:
    """The memory's operations under the names that the referee uses."""

    def __init__(self, memory: HybridMemory) -> None:
        branching, drafting = memory.branching, memory.drafting
        self.fork = memory.fork
        self.fork_point = branching.fork_point
        self.fork_by_copying = memory.fork_by_copying
        self.make_private = branching.make_private
        self.begin_copy = branching.begin_copy
        self.complete_copy = branching.complete_copy
        self.take_copies = memory.take_copies
        self.is_awaited_by = branching.copies.is_awaited_by
        self.keep_leaf = branching.keep_leaf
        self.deepest_leaf = branching.leaves.find_deepest
        self.num_drafts = drafting.num_drafts
        self.draft = drafting.draft
        self.settle = drafting.settle


# -- contents ------------------------------------------------------------------------------------


def words_of(salt: int | None, tokens: Sequence[int]) -> list[int]:
    """The words after 0, 1, 2, ... tokens."""
    word = first_word(salt)
    words = [word]
    for token in tokens:
        word = hash((word, token))
        words.append(word)
    return words


def first_word(salt: int | None) -> int:
    return hash((-1, salt or 0))


def words_after(word: int, tokens: Sequence[int]) -> list[int]:
    """The words after each further token."""
    words = []
    for token in tokens:
        word = hash((word, token))
        words.append(word)
    return words


class Places:
    """Contents of all pages and convolution lines."""

    def __init__(self, memory: HybridMemory) -> None:
        self.block_size = memory.block_size
        self._poison = [POISON] * memory.block_size
        words = {pool: [self._poison] * pool.spec.num_pages for pool in memory.cache.pools}
        self.pages = words[memory.cache.attention_pool]
        """Words of each page of the attention pool, which may hold states as well."""
        self.state_pages = words[memory.cache.states.pool]
        for pool in memory.cache.pools:
            pool.on_reassign = partial(self._reassigned, pool.on_reassign, words[pool])
        attention = memory.cache.attention
        self.kernel_block_size = attention.kernel_block_size
        self.blocks_per_page = attention.blocks_per_page
        if self.blocks_per_page > 1:
            replace_method(attention, "take", partial(self._taken, attention.take))
        self.lines: list[int] = []
        store = memory.cache.states
        if isinstance(store, SlabStateStore):
            self.lines = [POISON] * (store.pool.spec.num_pages * store.num_slots)
            allocate = store.allocate
            replace_method(store, "allocate", partial(self._allocated, allocate))

    def _reassigned(
        self, lose_entries: Callable[[list[int]], None], words: list[list[int]], pages: list[int]
    ) -> None:
        lose_entries(pages)
        for page in pages:
            words[page] = self._poison[:]

    def _taken(
        self, take: Callable[[SequenceMemory, int], None], sequence: SequenceMemory, end: int
    ) -> None:
        before = len(sequence.tail)
        take(sequence, end)
        size = self.kernel_block_size
        for block_id in sequence.tail[before:]:
            words, first = self._tail_block(block_id)
            words[first : first + size] = self._poison[:size]

    def _tail_block(self, block_id: int) -> tuple[list[int], int]:
        """The words of a slab, and the place of the block's first one."""
        page, slot = divmod(block_id, self.blocks_per_page)
        return self.pages[page], slot * self.kernel_block_size

    def _allocated(self, allocate: Callable[[], Checkpoint]) -> Checkpoint:
        state = allocate()
        self.lines[state.line] = POISON
        return state

    def write_kv(self, sequence: SequenceMemory, start: int, words: Sequence[int]) -> None:
        """Write the words of consecutive tokens, the first at position `start`."""
        size, done, blocks = self.block_size, 0, sequence.blocks
        own = len(blocks) * size if sequence.tail else start + len(words)
        while start + done < own and done < len(words):
            block, offset = divmod(start + done, size)
            part = words[done : done + size - offset]
            self.pages[blocks[block]][offset : offset + len(part)] = part
            done += len(part)
        for word in words[done:]:
            block, offset = divmod(start + done - own, self.kernel_block_size)
            page, first = self._tail_block(sequence.tail[block])
            page[first + offset] = word
            done += 1

    def read_tail(self, tail: Sequence[int], num_tokens: int) -> list[int]:
        """The words of the first tokens of a tail."""
        words: list[int] = []
        for block_id in tail:
            page, first = self._tail_block(block_id)
            words += page[first : first + self.kernel_block_size]
        return words[:num_tokens]

    def write_state(self, state: Checkpoint, word: int) -> None:
        words = self.state_pages
        for member, page in enumerate(state.pages):
            words[page][0] = word + member
        if state.slab is not None:
            self.lines[state.line] = word

    def read_state(self, state: Checkpoint) -> int:
        """The state's word, or poison if its parts belong to different states."""
        words, pages = self.state_pages, state.pages
        word = words[pages[0]][0]
        for member, page in enumerate(pages):
            if words[page][0] != word + member:
                return POISON
        if state.slab is not None and self.lines[state.line] != word:
            return POISON
        return word

    def carry_out(self, copy: Copy) -> None:
        """Copy the present contents, right or wrong."""
        if copy.kind == "attention":
            self.pages[copy.target[0]] = self.pages[copy.source[0]][:]
            return
        words = self.state_pages
        for source, target in zip(copy.source, copy.target, strict=True):
            words[target][0] = words[source][0]
        if self.lines:
            self.lines[copy.target_line] = self.lines[copy.source_line]


# -- the client ----------------------------------------------------------------------------------


class Request:
    """A request or a branch. Its tokens are drawn at once and become known one by one."""

    __slots__ = ("before", "blocks", "computed", "copying", "drafts", "end", "known", "num_tokens",
                 "salt", "sequence", "tokens", "words")  # fmt: skip

    def __init__(
        self,
        memory: HybridMemory,
        request_id: int,
        tokens: Sequence[int],
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        salt: int | None,
        all_keys: bool,
    ) -> None:
        """
        Args:
            num_tokens: tokens that are known at the start.
            all_keys: whether the keys of all tokens are known at the start.
        """
        size, grid = memory.block_size, memory.checkpoint_grid
        self.tokens = tokens
        self.salt = salt
        self.words = words_of(salt, tokens)
        self.blocks = [
            self.words[end - size + 1 : end + 1] for end in range(size, len(tokens) + 1, size)
        ]
        """Expected words of its full blocks."""
        self.num_tokens = num_tokens
        self.known = num_tokens
        """Tokens that the scheduler knows. Keys reach this far unless all are known."""
        self.computed = 0
        self.before = 0
        """Computed tokens before the last step."""
        self.end = 0
        """End of its chunk in the current step, or 0 if it is not scheduled."""
        self.drafts: list[int] = []
        self.copying = 0
        """Number of its copies in flight."""
        reach = len(tokens) if all_keys else num_tokens
        self.sequence = SequenceMemory(
            request_id=request_id,
            keys=PrefixKeys(
                attention=self.words[size : reach + 1 : size],
                checkpoints=self.words[grid : reach + 1 : grid],
            ),
            num_prompt_tokens=num_prompt_tokens,
        )

    def learn(self, known: int, block_size: int, grid: int) -> None:
        """Let the scheduler know the first `known` tokens, and extend the keys."""
        self.known = known
        keys = self.sequence.keys
        for each, size in ((keys.attention, block_size), (keys.checkpoints, grid)):
            assert isinstance(each, list)
            each += self.words[(len(each) + 1) * size : known + 1 : size]


class Referee:
    """One memory with its client and the oracle."""

    def __init__(self, organization: str, policy: str, seed: str) -> None:
        self.name = f"{organization} {policy} {seed}"
        rng = random.Random(self.name)
        self.setting = setting = Setting.draw(organization, policy, rng)
        self.memory = memory = setting.build()
        self.calls = Calls(memory)
        self.places = Places(memory)
        self.num_actions = 0
        self.log: deque[tuple[Any, ...]] = deque(maxlen=LOG_LENGTH)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.in_flight: dict[Copy, Request | None] = {}
        """Copies in flight and the request that waits for each, None once it has left."""
        self._rng = rng
        self._random = rng.random
        self._blocks: dict[Hashable, list[int]] = {}
        """Expected words of each block key."""
        self._standing: list[tuple[StandingRefusal, Request, int]] = []
        """The last refusal, its request, and the number of tokens it asked for."""
        self._ended: deque[Request] = deque(maxlen=8)
        """Those that left a leaf; a later request may be the next turn of a conversation."""
        self._num_requests = 0
        self._num_steps = 0
        self._actions = [getattr(self, name) for name in setting.actions()]
        self._max_tokens = next(
            num_tokens
            for num_tokens in range(MAX_TOKENS, 0, -1)
            if memory.never_fits(num_tokens) is None
        )

    def run(self) -> None:
        """Act for a while, then release everything and check that nothing is left."""
        actions, rand = self._actions, self._random
        num_choices, num_actions = len(actions), self._rng.choice(LENGTHS)
        try:
            while self.num_actions < num_actions:
                actions[int(rand() * num_choices)]()
            self.end()
        except PromiseBroken:
            raise
        except (AssertionError, LookupError, MemoryFault) as error:
            raise PromiseBroken(self._report(f"{type(error).__name__}: {error}")) from error

    def end(self) -> None:
        """Release all requests and check that the memory is empty."""
        memory = self.memory
        self.step()
        for request in list(self.running):
            self._leave(request)
        for request in self.waiting:
            memory.unpin(request.sequence.request_id)
        for copy in list(self.in_flight):
            self._complete(copy)
        memory.check_integrity()
        assert all_free(memory) and not memory.cache.sequences and not memory.pinning.num_pins
        memory.cache.reset()
        assert not any(any(pool.entries) for pool in memory.cache.pools)

    # -- requests come ---------------------------------------------------------------------------

    def arrive(self) -> None:
        if len(self.waiting) + len(self.running) >= self.setting.max_live:
            return
        choice = self._rng.choice
        talk = None
        if self._ended and self._random() < 0.3:
            talk = choice(self._ended)
        before = talk.tokens if talk else choice(CONTEXTS)[: choice(PREFIXES)]
        prompt = [*before, *self._some(5)]
        prompt = prompt[: self._max_tokens]
        tokens = [*prompt, *self._some(16)][: self._max_tokens]
        salt = talk.salt if talk else choice(SALTS)
        request = self._new(tokens, len(prompt), len(prompt), salt)
        self.memory.enter(request.sequence, request.known)
        self.waiting.append(request)
        self._note("arrive", request, tokens, request.salt)

    def _some(self, most: int) -> list[int]:
        """A few tokens of a tiny vocabulary, so that requests often share prefixes."""
        rand = self._random
        return [int(rand() * 2) for _ in range(1 + int(rand() * most))]

    def _new(
        self, tokens: Sequence[int], num_tokens: int, num_prompt_tokens: int, salt: int | None
    ) -> Request:
        self._num_requests += 1
        request = Request(
            self.memory,
            self._num_requests,
            tokens,
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            salt=salt,
            all_keys=self.setting.keys == "all",
        )
        size = self.memory.block_size
        self._blocks.update(zip(request.words[size::size], request.blocks, strict=True))
        return request

    def admit(self) -> None:
        if not self.waiting:
            return
        request = self._one_of(self.waiting)
        memory, sequence, known = self.memory, request.sequence, request.known
        self._note("admit", request)
        self._check_standing()
        hit = self._find(request)
        while hit.ready:
            nothing_runs = not self.running
            refusal = memory.refusal(sequence, hit, known, nothing_runs=nothing_runs)
            if refusal is None:
                break
            if not nothing_runs:
                self._remember(request, hit, refusal)
                return
            if not memory.give_way():
                self._require(self.in_flight, f"alone and refused: {refusal}")
                return
            hit = self._find(request)
        else:
            return
        memory.admit(sequence, hit, known)
        self.waiting.remove(request)
        self.running.append(request)
        request.before = request.computed = hit.tokens
        end = self._some_end(request)
        self._require(memory.extend(sequence, hit.tokens, end), "admission counts the first chunk")
        request.end = end

    def _find(self, request: Request) -> Hit:
        """The deeper one of a leaf and a boundary, after a check of its words."""
        sequence, known = request.sequence, request.known
        leaf = None
        if self.setting.has_leaves:
            leaf = self.calls.deepest_leaf(
                sequence, request.tokens, num_tokens=known - 1, salt=request.salt
            )
        boundary = self.memory.lookup(sequence, known)
        if self.setting.placement == "junction":
            attention, _, joint = live_depths(self.memory, sequence, known)
            junction = (attention,) if attention > joint else ()
            self._require(boundary.stops == junction, f"stops {boundary.stops}, not {junction}")
        hit = boundary.or_deeper(leaf)
        if hit.tokens and hit.ready:
            self._require(hit.tokens < known, "a hit leaves a token to compute")
            assert hit.checkpoint is not None
            self._check_stand(request, hit.blocks, (), hit.checkpoint, hit.tokens)
        return hit

    def _remember(self, request: Request, hit: Hit, refusal: Refusal) -> None:
        """Keep the refusal as the engine does, and as the simulator does."""
        memory, known = self.memory, request.known
        held = 0 if hit.checkpoint is None else memory.cache.states.pages_to_hold(hit.checkpoint)
        for_sure = (
            hit.tokens % memory.checkpoint_grid == 0
            and not memory.branching.sharers
            and not memory.reservation.makes_promises
        )
        fits_without = refusal.need - held + refusal.headroom <= refusal.free
        self._standing = [
            (
                StandingRefusal(
                    memory.cache,
                    request.sequence,
                    hit,
                    known,
                    losses_matter=losses_matter,
                    by_price=refusal.by_price,
                ),
                request,
                known,
            )
            for losses_matter in {True, fits_without or not for_sure}
        ]

    # -- requests grow and go --------------------------------------------------------------------

    def grow(self) -> None:
        if self.running:
            self._grow(self._one_of(self.running))

    def grow_all(self) -> None:
        """Schedule one token for every running request."""
        requests = self.running[:]
        if self._random() < 0.5:
            requests.reverse()
        for request in requests:
            if request in self.running:
                self._grow(request, single=True)

    def _grow(self, request: Request, *, single: bool = False) -> bool:
        if request.end or request.copying:
            return False
        end = request.computed + 1 if single else self._some_end(request)
        if end > len(request.tokens):  # its last token is on the way
            return False
        memory, sequence = self.memory, request.sequence
        while True:
            self._note("extend", request, request.computed, end)
            if memory.extend(sequence, request.computed, end):
                request.end = end
                return True
            copies = memory.branching.copies
            self._require(not copies.give_up_checkpoints(), "no checkpoint preempts anybody")
            if len(self.running) == 1:
                if memory.give_way(sequence):
                    continue
                self._require(
                    self.in_flight or self._is_scattered(sequence),
                    f"request {sequence.request_id} has no room alone",
                )
            elif self._random() < 0.1:  # it may as well wait
                return False
            victim = self._one_of(self.running)
            self._preempt(victim)
            if victim is request:
                return False

    def _is_scattered(self, sequence: SequenceMemory) -> bool:
        """Whether its tail takes more slabs than it needs, which a preemption mends."""
        attention = self.memory.cache.attention
        slabs = {block_id // attention.blocks_per_page for block_id in sequence.tail}
        return len(slabs) > -(-len(sequence.tail) // attention.blocks_per_page)

    def _some_end(self, request: Request) -> int:
        """End of its next chunk. One token beyond the known ones may be in flight."""
        end = request.known
        for stop in request.sequence.stops:
            if request.computed < stop < end:
                end = stop
                break
        left = end - request.computed
        return request.computed + (1 + int(self._random() * left) if left > 1 else 1)

    def preempt(self) -> None:
        if self.running:
            self._preempt(self._one_of(self.running))

    def _preempt(self, request: Request) -> None:
        self._note("preempt", request)
        self.memory.preempt(request.sequence, self._told(request))
        self._stop(request)
        self.waiting.append(request)

    def leave_alone(self) -> None:
        """Preempt all requests but one, and grow that one."""
        if self.running:
            request = self._one_of(self.running)
            for other in self.running[::-1]:
                if other is not request:
                    self._preempt(other)
            self._grow(request)

    def cancel(self) -> None:
        which = int(self._random() * (len(self.running) + len(self.waiting)))
        if which < len(self.running):
            self._leave(self.running[which])
        elif self.waiting:
            request = self.waiting.pop(which - len(self.running))
            self._note("cancel", request)
            self.memory.unpin(request.sequence.request_id)

    def _leave(self, request: Request) -> None:
        """Release a cancelled or finished request, and sometimes keep a leaf."""
        leaf = None
        if self.setting.has_leaves and self._can_stand(request) and self._random() < 0.5:
            leaf = self._leaf(request, request.computed)
            self._ended.append(request)
        self._note("release", request, leaf is not None)
        told = self._told(request) if leaf is None else request.computed
        self.memory.release(request.sequence, told, leaf=leaf)
        self._stop(request)

    def _told(self, request: Request) -> int:
        """Number of computed tokens that the memory receives when a request leaves.

        An asynchronous engine learns the last token of a step late, and may not count the step in
        flight at all. That step is computed nevertheless.
        """
        if self.setting.keys == "late" and self._random() < 0.3:
            return min(request.before, request.known)
        return min(request.computed, request.known)

    def _stop(self, request: Request) -> None:
        self.running.remove(request)
        request.before = request.computed = request.end = request.copying = 0
        request.drafts = []
        for copy, owner in self.in_flight.items():
            if owner is request:
                self.in_flight[copy] = None

    def reset(self) -> None:
        """Rarely clear the cache, and drop all pins if nothing runs."""
        if self._random() < 0.7:
            return
        self._note("reset", None)
        if not self.running:
            self.memory.unpin_all()
        self.memory.cache.reset()

    # -- branches --------------------------------------------------------------------------------

    def fork(self) -> None:
        parent = self._standing_request()
        if parent is None or len(self.running) >= self.setting.max_live:
            return
        child, num_tokens, memory = self._child(parent), parent.computed, self.memory
        if self._random() < 0.5:
            point = self.calls.fork_point(parent.sequence, num_tokens)
            if memory.refusal(child.sequence, point, num_tokens + 1, nothing_runs=False):
                return
        self._note("fork", parent, child.sequence.request_id, child.tokens)
        self.calls.fork(parent.sequence, child.sequence, num_tokens)
        self._started(child, num_tokens)

    def fork_by_copying(self) -> None:
        parent = self._standing_request()
        if parent is None or len(self.running) >= self.setting.max_live:
            return
        child = self._child(parent)
        self._note("fork_by_copying", parent, child.sequence.request_id, child.tokens)
        if self.calls.fork_by_copying(parent.sequence, child.sequence, parent.computed):
            self._started(child, parent.computed)

    def _standing_request(self) -> Request | None:
        """A running request that may be forked now, or None."""
        if self.running:
            request: Request = self._one_of(self.running)
            if self._can_stand(request):
                return request
        return None

    def _can_stand(self, request: Request) -> bool:
        return not request.end and 0 < request.computed <= request.known

    def _child(self, parent: Request) -> Request:
        """A child with the parent's continuation or another one."""
        computed = parent.computed
        if computed < len(parent.tokens) and self._random() < 0.5:
            tokens = parent.tokens
        else:
            tokens = [*parent.tokens[:computed], *self._some(12)][: self._max_tokens]
        # Its next token is given.
        num_tokens = min(computed + 1, len(tokens))
        return self._new(tokens, num_tokens, parent.sequence.num_prompt_tokens, parent.salt)

    def _started(self, child: Request, computed: int) -> None:
        child.before = child.computed = computed
        self.running.append(child)

    def make_private(self) -> None:
        request = self._standing_request()
        if request is not None and not request.copying:
            self._note("make_private", request)
            self.calls.make_private(request.sequence)

    def begin_copy(self) -> None:
        request = self._standing_request()
        if request is None or request.copying or not self.memory.cache.has_room(1, True):
            return
        if self.calls.is_awaited_by(request.sequence):
            return
        self._note("begin_copy", request)
        for copy in self.calls.begin_copy(request.sequence):
            self.in_flight[copy] = request
            request.copying += 1

    def complete_copy(self) -> None:
        if self.in_flight:
            self._complete(self._one_of(list(self.in_flight)))

    def _complete(self, copy: Copy) -> None:
        """Carry out a copy in flight as late as possible, and complete it."""
        request = self.in_flight.pop(copy)
        self._note("complete_copy", request)
        self.places.carry_out(copy)
        self.calls.complete_copy(copy)
        if request is not None:
            request.copying -= 1

    def keep_leaf(self) -> None:
        request = self._standing_request()
        if request is not None and self.setting.max_leaves:
            self._note("keep_leaf", request)
            num_tokens = request.computed
            self.calls.keep_leaf(request.sequence, num_tokens, self._leaf(request, num_tokens))

    def _leaf(self, request: Request, num_tokens: int) -> Hashable:
        return exact_prefix(
            request.sequence.keys,
            self.memory.block_size,
            request.tokens,
            num_tokens=num_tokens,
            salt=request.salt,
        )

    # -- drafts ----------------------------------------------------------------------------------

    def speculate(self) -> None:
        """Schedule all known tokens of a request and some drafts, a few of them right."""
        if not self.running:
            return
        request = self._one_of(self.running)
        known = request.known
        if request.end or request.copying or request.computed >= known:
            return
        num_drafts = min(self.calls.num_drafts(known), len(request.tokens) - known)
        self._note("extend", request, request.computed, known)
        if not self.memory.extend(request.sequence, request.computed, known):
            return
        request.end = known
        if num_drafts < 1:
            return
        self._note("draft", request, num_drafts)
        if self.calls.draft(request.sequence, known, num_drafts):
            num_right = int(self._random() * (num_drafts + 1))
            right = request.tokens[known : known + num_right]
            request.drafts = [*right, *[-1] * (num_drafts - num_right)]

    # -- a step ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Compute the scheduled requests in either order, and check all contents."""
        memory, places, setting = self.memory, self.places, self.setting
        self._check_standing()
        self._note("step", None, memory.cache.step)
        for copy in self.calls.take_copies():
            places.carry_out(copy)
        scheduled = [request for request in self.running if request.end]
        if self._random() < 0.5:
            scheduled.reverse()
        for request in self.running:
            request.before = request.computed
        for request in scheduled:
            self._compute(request)
        if not setting.finishes_in_step:
            memory.cache.step += 1
        if setting.keys == "late":
            self._learn_late()
        finished = [request for request in scheduled if self._sample(request)]
        self._check()
        for request in finished:
            self._leave(request)
        if setting.finishes_in_step:
            memory.cache.step += 1
        self._num_steps += 1
        if self._num_steps % INTEGRITY_STEPS == 0:
            memory.check_integrity()

    def _compute(self, request: Request) -> None:
        sequence, words = request.sequence, request.words
        start, end, grid = request.computed, request.end, self.memory.checkpoint_grid
        if start:
            crosses = (end - 1) // grid > (start - 1) // grid
            moves = crosses and self.setting.states == "per_boundary"
            source = sequence.superseded if moves else sequence.state
            assert source is not None
            self._require(
                self.places.read_state(source) == words[start],
                f"request {sequence.request_id} reads another state than that of {start} tokens",
            )
        assert sequence.state is not None
        self.places.write_kv(sequence, start, words[start + 1 : end + 1])
        self.places.write_state(sequence.state, words[end])
        if request.drafts:
            drafted = words_after(words[end], request.drafts)
            assert sequence.scratch is not None
            self.places.write_kv(sequence, end, drafted)
            self.places.write_state(sequence.scratch, drafted[-1])

    def _sample(self, request: Request) -> bool:
        """Account for a computed chunk and its new token. Returns whether it is finished."""
        end, drafts = request.end, request.drafts
        request.computed, request.end = end, 0
        if end < request.num_tokens:
            return False
        num_accepted = 0
        if drafts:
            right = request.tokens[end : end + len(drafts)]
            while num_accepted < len(drafts) and drafts[num_accepted] == right[num_accepted]:
                num_accepted += 1
        num_tokens = end + num_accepted
        if num_tokens < len(request.tokens):
            num_tokens += 1
        request.num_tokens = num_tokens
        if self.setting.keys != "late":
            self._learn(request)
        if drafts:
            request.drafts = []
            request.computed = self.calls.settle(
                request.sequence, end, num_drafts=len(drafts), num_accepted=num_accepted
            )
        return request.computed == len(request.tokens)

    def _learn_late(self) -> None:
        """Receive the tokens of the previous step while the current one is computed."""
        for request in (*self.running, *self.waiting):
            if request.known < request.num_tokens:
                self._learn(request)

    def _learn(self, request: Request) -> None:
        request.learn(request.num_tokens, self.memory.block_size, self.memory.checkpoint_grid)

    # -- the oracle ------------------------------------------------------------------------------

    def _check(self) -> None:
        """Check every cached entry, every pin and every running request after a step."""
        for request in self.running:
            if request.computed:
                sequence = request.sequence
                assert sequence.state is not None
                self._check_stand(
                    request, sequence.blocks, sequence.tail, sequence.state, request.computed
                )
        memory, words, right = self.memory, self.places.pages, self._blocks
        if memory.cache.block_index.duplicates or self.setting.has_leaves:
            for key, page in memory.cache.block_index:
                if isinstance(key, LeafKey):
                    found, expected = self._leaf_words(key, page)
                else:
                    found, expected = words[page], right[key]
                self._require(found == expected, f"page {page} is cached as {key} and is not")
        else:
            oldest = memory.cache.block_index.oldest
            self._require(
                [words[page] for page in oldest.values()] == [right[key] for key in oldest],
                "a page is cached as what it is not",
            )
        read = self.places.read_state
        for key, state in memory.cache.checkpoint_index:
            expected = self._leaf_word(key) if isinstance(key, LeafKey) else key
            self._require(read(state) == expected, f"{state} is cached as {key} and is not")
        for name, state in memory.pinning.pins().items():
            self._require(
                state.key is not None and read(state) == state.key,
                f"request {name} pins {state}, which is not what its key says",
            )

    def _check_stand(
        self,
        request: Request,
        blocks: Sequence[int],
        tail: Sequence[int],
        state: Checkpoint,
        num_tokens: int,
    ) -> None:
        """Check that the pages and the state hold the request's first `num_tokens` tokens."""
        words, size = self.places.pages, self.memory.block_size
        num_full = min(num_tokens // size, len(blocks)) if tail else num_tokens // size
        start = num_full * size
        right = [words[page] for page in blocks[:num_full]] == request.blocks[:num_full]
        if right and tail:
            found = self.places.read_tail(tail, num_tokens - start)
            right = found == request.words[start + 1 : num_tokens + 1]
        elif right and start < num_tokens:
            offset = num_tokens - start
            right = words[blocks[num_full]][:offset] == request.words[start + 1 : num_tokens + 1]
        if not right or self.places.read_state(state) != request.words[num_tokens]:
            what = "state" if right else "attention"
            name = request.sequence.request_id
            raise PromiseBroken(self._report(f"{what} of request {name} at {num_tokens} tokens"))

    def _leaf_words(self, leaf: LeafKey, page: int) -> tuple[list[int], list[int]]:
        above, tokens = leaf.key  # type: ignore[misc]
        expected = words_after(self._above(above), tokens)
        return self.places.pages[page][: len(tokens)], expected

    def _leaf_word(self, leaf: LeafKey) -> int:
        above, tokens = leaf.key  # type: ignore[misc]
        word = self._above(above)
        return words_after(word, tokens)[-1] if tokens else word

    def _above(self, above: Any) -> int:
        """The last word before a leaf's partial block (see `exact_prefix`)."""
        return first_word(above[1]) if isinstance(above, tuple) else above

    def _check_standing(self) -> None:
        """Check that a standing refusal would be repeated."""
        for standing in self._standing:
            refusal, request, known = standing
            if request not in self.waiting or request.known != known or not self.running:
                self._standing = []
                return
            if refusal.stands(request.sequence):
                hit = self._find(request)
                self._require(
                    not hit.ready
                    or self.memory.refusal(request.sequence, hit, known, nothing_runs=False),
                    f"a refusal of request {request.sequence.request_id} stands and would turn",
                )

    def _require(self, holds: object, promise: str) -> None:
        if not holds:
            raise PromiseBroken(self._report(promise))

    def _report(self, what: str) -> str:
        actions = "\n".join(" ".join(map(str, entry)) for entry in self.log)
        return f"{what}\n{self.name}: {self.setting}\n{self.memory.describe()}\n{actions}"

    # -- choices ---------------------------------------------------------------------------------

    def _one_of(self, items: list[Any]) -> Any:
        return items[int(self._random() * len(items))]

    def _note(self, action: str, request: Request | None, *details: object) -> None:
        self.num_actions += 1
        name = "" if request is None else request.sequence.request_id
        self.log.append((action, name, *details))


# -- many memories -------------------------------------------------------------------------------


def episodes(
    organization: str,
    policy: str,
    *,
    seed: int,
    num_actions: int,
    prepare: Callable[[Referee], None] = lambda referee: None,
) -> Iterator[Referee]:
    """Play on new memories until `num_actions` are done. Yields the referee of each.

    Args:
        prepare: called with each referee before it acts.

    Raises:
        PromiseBroken: the message ends with the actions that led to it.
    """
    done = 0
    for episode in count():
        referee = Referee(organization, policy, f"{seed}.{episode}")
        prepare(referee)
        referee.run()
        yield referee
        done += referee.num_actions
        if done >= num_actions:
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("organization", choices=(*ORGANIZATIONS, "all"))
    parser.add_argument("policy", choices=(*POLICIES, "all"))
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    organizations = ORGANIZATIONS if options.organization == "all" else (options.organization,)
    policies = POLICIES if options.policy == "all" else (options.policy,)
    for organization, policy in product(organizations, policies):
        start = perf_counter()
        done = [
            referee.num_actions
            for referee in episodes(
                organization, policy, seed=options.seed, num_actions=options.actions
            )
        ]
        rate = sum(done) / (perf_counter() - start)
        sys.stdout.write(
            f"{organization} {policy}: {sum(done)} actions on {len(done)} memories, "
            f"{rate:.0f} a second\n"
        )


if __name__ == "__main__":
    main()
