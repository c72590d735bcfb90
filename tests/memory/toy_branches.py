"""Branches of the toy hybrid on physical pages, and what the copy rule predicts for them.

`BranchEngine` starts, forks, extends and drops branches as an engine would, carries out the copies
that the memory lists, and computes every token on physical words. Two references stand beside it:

    a replay of each branch's tokens from scratch, as if it had caches of its own
    `Ownership`, which knows who holds which block and state, and counts the copies that are due
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from toy_model import START, ModelState, PhysicalMemory, Token

from hsexp.memory import (
    Copy,
    Hit,
    HybridMemory,
    Observer,
    PrefixKeys,
    SequenceMemory,
    exact_prefix,
)
from hsexp.memory.branching.leaves import LeafKey
from hsexp.memory.checkpoint import Checkpoint


class ContentKeys(Sequence[Hashable]):
    """Keys of a growing list of tokens: the salt, and every token up to the end of the unit."""

    def __init__(self, tokens: list[Token], size: int, salt: str | None) -> None:
        self.tokens, self.size, self.salt = tokens, size, salt

    def __len__(self) -> int:
        return len(self.tokens) // self.size

    @overload
    def __getitem__(self, index: int) -> Hashable: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Hashable]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return (self.salt, *self.tokens[: (index + 1) * self.size])


_replayed: dict[tuple[Token, ...], tuple[ModelState, tuple[int, ...]]] = {(): (START, ())}


def replay(tokens: Sequence[Token]) -> tuple[ModelState, tuple[int, ...]]:
    """State and KV after these tokens, computed from scratch."""
    known = tuple(tokens)
    missing = []
    while known not in _replayed:
        missing.append(known)
        known = known[:-1]
    for prefix in reversed(missing):
        state, kv = _replayed[prefix[:-1]]
        state = state.after(prefix[-1])
        _replayed[prefix] = (state, (*kv, state.kv(prefix[-1], len(prefix) - 1)))
    return _replayed[tuple(tokens)]


def next_token(tokens: Sequence[Token]) -> Token:
    """What follows these tokens, computed from scratch."""
    state, kv = replay(tokens)
    return state.next_token(kv)


@dataclass(kw_only=True, eq=False)
class ToyBranch:
    """One branch: its tokens, the sampled or forced one after the computed ones included."""

    sequence: SequenceMemory
    tokens: list[Token]
    salt: str | None
    num_forced: int
    """Leading tokens that were given; the others must be the model's own."""
    computed: int = 0
    end: int = 0
    """Where the step that is being scheduled takes it; 0 while it has no part in it."""
    drafts: list[Token] = field(default_factory=list)
    """Guesses behind its tokens that the step verifies."""
    sampled: list[Token] = field(default_factory=list)
    """What the model says behind its last token and behind each draft."""

    @property
    def name(self) -> int | str:
        return self.sequence.request_id


# -- the rule ------------------------------------------------------------------------------------


class Thing:
    """Content that lies in one place: a block's, or a state's."""


@dataclass(kw_only=True, eq=False)
class Owned:
    """What a branch stands on."""

    num_tokens: int
    blocks: list[Thing]
    state: Thing
    read: Thing | None = None
    """The state that its last step read and left behind; held until its next one."""
    scratch: Thing | None = None
    """The state over its drafts."""


class Ownership:
    """Who holds what, told only what happens; of the memory it asks what is cached."""

    def __init__(self, block_size: int, grid: int) -> None:
        self.block_size = block_size
        self.grid = grid
        self.owned: dict[Hashable, Owned] = {}
        self.holders: Counter[Thing] = Counter()
        """References of branches, and of copies in flight on their sources."""
        self.kept: set[Thing] = set()
        """Tails and states of leaves."""
        self.listed: list[tuple[str, Thing, Thing]] = []
        """Copies of the step that is being scheduled: kind, source and target."""
        self.num_due: Counter[str] = Counter()
        """Copies by kind."""

    def start(self, name: Hashable, num_tokens: int, blocks: Iterable[Thing], state: Thing) -> None:
        owned = Owned(num_tokens=num_tokens, blocks=list(blocks), state=state)
        self.owned[name] = owned
        self.holders.update([*owned.blocks, owned.state])

    def fork(self, parent: Hashable, child: Hashable) -> None:
        of = self.owned[parent]
        num_blocks = -(-of.num_tokens // self.block_size)
        self.start(child, of.num_tokens, of.blocks[:num_blocks], of.state)

    def fork_by_copying(self, parent: Hashable, child: Hashable) -> None:
        self.fork(parent, child)
        for block in range(len(self.owned[child].blocks)):
            self._copy_block(child, block)
        self._copy_state(child)

    def leave(self, name: Hashable) -> None:
        owned = self.owned.pop(name)
        self.holders.subtract([*owned.blocks, owned.state])
        self._forget_read(owned)
        if owned.scratch is not None:
            self.holders[owned.scratch] -= 1
        for copy in reversed(self.listed[:]):  # what nobody would read is not copied
            kind, _, target = copy
            if self.num_references(target) == 0:
                self.listed.remove(copy)
                self.num_due[kind] -= 1

    def num_references(self, thing: Thing) -> int:
        """Of branches and of copies."""
        return self.holders[thing] + sum(source is thing for _, source, _ in self.listed)

    def due(self, name: Hashable, end: int, *, leaves_count: bool = True) -> tuple[bool, bool]:
        """Whether a step to `end` copies the tail, and the state."""
        owned = self.owned[name]
        block, offset = divmod(owned.num_tokens, self.block_size)
        return (
            offset > 0 and self._is_shared(owned.blocks[block], leaves_count),
            not self._crosses(owned, end) and self._is_shared(owned.state, leaves_count),
        )

    def write(self, name: Hashable, end: int, *, tail: bool, state: bool) -> None:
        """A step to `end` is scheduled, with these copies."""
        owned = self.owned[name]
        self._forget_read(owned)
        self.own(name, tail=tail, state=state)
        if self._crosses(owned, end):
            owned.read, owned.state = owned.state, self._new()
        while len(owned.blocks) < -(-end // self.block_size):
            owned.blocks.append(self._new())
        owned.num_tokens = end

    def draft(self, name: Hashable, end: int) -> None:
        """Room for drafts up to `end`."""
        owned = self.owned[name]
        owned.scratch = self._new()
        while len(owned.blocks) < -(-end // self.block_size):
            owned.blocks.append(self._new())

    def settle(self, name: Hashable, end: int, *, all_accepted: bool) -> None:
        """A pass was verified: the state stands at `end`."""
        owned = self.owned[name]
        assert owned.scratch is not None
        goes = owned.state if all_accepted else owned.scratch
        if all_accepted:
            owned.state = owned.scratch
        self.holders[goes] -= 1
        owned.scratch = None
        owned.num_tokens = end

    def own(self, name: Hashable, *, tail: bool, state: bool) -> None:
        """What it stands at is copied."""
        if tail:
            self._copy_block(name, self.owned[name].num_tokens // self.block_size)
        if state:
            self._copy_state(name)

    def _crosses(self, owned: Owned, end: int) -> bool:
        return (end - 1) // self.grid > (owned.num_tokens - 1) // self.grid

    def _is_shared(self, thing: Thing, leaves_count: bool) -> bool:
        return self.holders[thing] > 1 or (leaves_count and thing in self.kept)

    def _copy_block(self, name: Hashable, block: int) -> None:
        blocks = self.owned[name].blocks
        blocks[block] = self._copied("attention", blocks[block])

    def _copy_state(self, name: Hashable) -> None:
        owned = self.owned[name]
        owned.state = self._copied("state", owned.state)

    def remap(self, name: Hashable, source: Thing) -> None:
        """A copy beside the steps is done: the branch names its target instead of the source."""
        owned, target = self.owned[name], self._new()
        self.holders[source] -= 1
        if owned.state is source:
            owned.state = target
        else:
            owned.blocks[owned.blocks.index(source)] = target

    def _copied(self, kind: str, source: Thing) -> Thing:
        target = self._new()
        self.holders[source] -= 1
        self.listed.append((kind, source, target))
        self.num_due[kind] += 1
        return target

    def _new(self) -> Thing:
        thing = Thing()
        self.holders[thing] = 1
        return thing

    def _forget_read(self, owned: Owned) -> None:
        if owned.read is not None:
            self.holders[owned.read] -= 1
            owned.read = None


class CopyRecorder(Observer):
    """Copies since it was last asked."""

    def __init__(self) -> None:
        self._copies: list[Copy] = []

    def on_copy(self, sequence: SequenceMemory, copy: Copy) -> None:
        self._copies.append(copy)

    def take(self) -> list[Copy]:
        copies, self._copies = self._copies, []
        return copies


# -- the engine ----------------------------------------------------------------------------------


class BranchEngine:
    """Branches over one memory. A step: `grow` as many as fit, then `step` computes them all."""

    def __init__(self, memory: HybridMemory) -> None:
        self.memory = memory
        assert memory.cache.observer is None
        self._copies = CopyRecorder()
        memory.cache.watch(self._copies)
        self._unwritten: set[int] = set()
        """Pages of targets of this step's copies."""
        self.physical = PhysicalMemory(memory)
        self.rule = Ownership(memory.block_size, memory.checkpoint_grid)
        self.branches: list[ToyBranch] = []
        self.leaves: list[tuple[tuple[Token, ...], str | None]] = []
        """Tokens and salt of every leaf that was ever kept."""
        self.num_copies: Counter[str] = Counter()
        """Carried out, by kind."""
        self.is_crowded = False
        """Strangers hold pages, of which the memory knows nothing."""
        self.in_flight: dict[Copy, tuple[Hashable, Thing]] = {}
        """Copies beside the steps: whose, and of what."""
        self._num_started = 0
        self._at_page: dict[int, Thing] = {}
        self._at_state: dict[Checkpoint, Thing] = {}

    # -- branches come ---------------------------------------------------------------------------

    def start(
        self, prompt: Sequence[Token], *, salt: str | None = None, must_fit: bool = True
    ) -> ToyBranch | None:
        """A new request with the deepest cached restart point; None if it is refused."""
        branch = self.new_branch(prompt, salt)
        hit = self.memory.lookup(branch.sequence, len(prompt))
        return self._admit(branch, hit, must_fit)

    def start_from_leaf(
        self, tokens: Sequence[Token], forced: Token, *, salt: str | None = None
    ) -> ToyBranch | None:
        """A new request that continues a kept leaf; None if it is gone or refused."""
        branch = self.new_branch([*tokens, forced], salt)
        hit = self.memory.branching.leaves.find(branch.sequence, self._leaf(branch, len(tokens)))
        return None if hit is None or not hit.ready else self._admit(branch, hit, must_fit=False)

    def _admit(self, branch: ToyBranch, hit: Hit, must_fit: bool) -> ToyBranch | None:
        refusal = self.memory.refusal(
            branch.sequence, hit, len(branch.tokens), nothing_runs=not self.branches
        )
        if refusal is not None or not hit.ready:
            assert not must_fit, refusal
            return None
        state = Thing() if hit.checkpoint is None else self._at_state[hit.checkpoint]
        self.memory.admit(branch.sequence, hit, len(branch.tokens))
        self.rule.start(
            branch.name, hit.tokens, [self._at_page[page] for page in hit.blocks], state
        )
        branch.computed = hit.tokens
        self.branches.append(branch)
        return branch

    def fork(
        self, parent: ToyBranch, forced: Token, *, must_fit: bool = True, by_copying: bool = False
    ) -> ToyBranch | None:
        """A child that goes on with another token; None if it is refused."""
        assert parent.end == 0, "fork before the parent's part of the step"
        child = self.child_of(parent, forced)
        memory, num_tokens = self.memory, parent.computed
        if by_copying:
            if not memory.fork_by_copying(parent.sequence, child.sequence, num_tokens):
                assert not must_fit
                return None
            self._new_copies()
            self.rule.fork_by_copying(parent.name, child.name)
        else:
            point = memory.branching.fork_point(parent.sequence, num_tokens)
            refusal = memory.refusal(child.sequence, point, num_tokens + 1, nothing_runs=False)
            if refusal is not None:
                assert not must_fit, refusal
                return None
            memory.fork(parent.sequence, child.sequence, num_tokens)
            self.rule.fork(parent.name, child.name)
        self._join(parent, child)
        return child

    def child_of(self, parent: ToyBranch, forced: Token) -> ToyBranch:
        """A branch of the parent's computed tokens and another one, not forked yet."""
        tokens = [*parent.tokens[: parent.computed], forced]
        return self.new_branch(
            tokens, parent.salt, num_prompt_tokens=parent.sequence.num_prompt_tokens
        )

    def forked(self, parent: ToyBranch, child: ToyBranch) -> None:
        """The memory was told of a fork by somebody else."""
        self.rule.fork(parent.name, child.name)
        self._join(parent, child)

    def _join(self, parent: ToyBranch, child: ToyBranch) -> None:
        child.computed = parent.computed
        self.branches.append(child)

    def new_branch(
        self,
        known: Sequence[Token],
        salt: str | None = None,
        *,
        num_prompt_tokens: int | None = None,
    ) -> ToyBranch:
        """A branch that the memory knows nothing of yet."""
        tokens = list(known)
        self._num_started += 1
        sequence = SequenceMemory(
            request_id=self._num_started,
            keys=PrefixKeys(
                attention=ContentKeys(tokens, self.memory.block_size, salt),
                checkpoints=ContentKeys(tokens, self.memory.checkpoint_grid, salt),
            ),
            num_prompt_tokens=num_prompt_tokens or len(tokens),
        )
        return ToyBranch(sequence=sequence, tokens=tokens, salt=salt, num_forced=len(tokens))

    def _leaf(self, branch: ToyBranch, num_tokens: int) -> Hashable:
        return exact_prefix(
            branch.sequence.keys,
            self.memory.block_size,
            branch.tokens[:num_tokens],
            salt=branch.salt,
        )

    # -- branches grow and go --------------------------------------------------------------------

    def grow(self, branch: ToyBranch, num_tokens: int = 1) -> bool:
        """Give the branch its part of the step; False if there is no room."""
        assert branch.end == 0
        end = min(branch.computed + num_tokens, len(branch.tokens))
        before = branch.sequence.state
        self._refresh_kept()
        due = self.rule.due(branch.name, end)
        if not self.memory.extend(branch.sequence, branch.computed, end):
            return False
        copied = Counter(copy.kind for copy in self._new_copies())
        tail, state = copied["attention"] > 0, copied["state"] > 0
        if (tail, state) != due:  # a leaf gave way to its only user, since there was no room
            assert (tail, state) == self.rule.due(branch.name, end, leaves_count=False)
            assert not self._have_room(due[0] - tail, due[1] - state)
        self.rule.write(branch.name, end, tail=tail, state=state)
        branch.end = end
        now = branch.sequence.state
        assert now is not None
        if now is not before and not state:
            self.physical.wipe_state(now)
        return True

    def speculate(self, branch: ToyBranch, drafts: Sequence[Token]) -> bool:
        """A step over all known tokens and these drafts behind them; False if there is no room.

        Without room for the drafts it is an ordinary step.
        """
        known, drafting = len(branch.tokens), self.memory.drafting
        if not self.grow(branch, known - branch.computed):
            return False
        num_drafts = min(len(drafts), drafting.num_drafts(known))
        if num_drafts and drafting.draft(branch.sequence, known, num_drafts):
            branch.drafts = list(drafts[:num_drafts])
            assert branch.sequence.scratch is not None
            self.physical.wipe_state(branch.sequence.scratch)
            self.rule.draft(branch.name, known + num_drafts)
        return True

    def _new_copies(self) -> list[Copy]:
        copies = self._copies.take()
        self._unwritten.update(page for copy in copies for page in copy.target)
        return copies

    def _have_room(self, num_blocks: int, num_states: int) -> bool:
        memory = self.memory
        pages = memory.cache.states.pages_needed(num_states)
        if len(memory.cache.pools) == 1:
            return num_blocks + pages <= memory.cache.attention_pool.num_free
        return (
            num_blocks <= memory.cache.attention_pool.num_free
            and pages <= memory.cache.states.pool.num_free
        )

    def drop(self, branch: ToyBranch, *, leaf: bool = False) -> None:
        """The branch is pruned, cancelled or done; its part of the step is not computed."""
        self._note_places()
        key = self._leaf(branch, branch.computed) if leaf else None
        if leaf:
            assert branch.end == 0
            self.leaves.append((tuple(branch.tokens[: branch.computed]), branch.salt))
        self.memory.release(branch.sequence, branch.computed, leaf=key)
        self.left(branch)

    def preempt(self, branch: ToyBranch) -> None:
        """The branch loses its memory; it may come back as a new request."""
        self.memory.preempt(branch.sequence, branch.computed)
        self.left(branch)

    def left(self, branch: ToyBranch) -> None:
        """The memory was told that it goes."""
        branch.end = 0
        branch.drafts = []
        self.branches.remove(branch)
        self.rule.leave(branch.name)

    def keep_leaf(self, branch: ToyBranch) -> bool:
        assert branch.end == 0
        self.leaves.append((tuple(branch.tokens[: branch.computed]), branch.salt))
        return self.memory.branching.keep_leaf(
            branch.sequence, branch.computed, self._leaf(branch, branch.computed)
        )

    def make_private(self, branch: ToyBranch) -> bool:
        """Copy now what the branch's next token would copy."""
        self._refresh_kept()
        due = self.rule.due(branch.name, branch.computed + 1)
        if not self.memory.branching.make_private(branch.sequence):
            assert not self._have_room(*map(int, due))
            return False
        copied = Counter(copy.kind for copy in self._new_copies())
        tail, state = copied["attention"] > 0, copied["state"] > 0
        if (tail, state) != due:
            assert not self._have_room(due[0] - tail, due[1] - state)
        self.rule.own(branch.name, tail=tail, state=state)
        return True

    def owes(self, branch: ToyBranch) -> bool:
        """Whether the branch's next token copies anything."""
        return branch.computed > 0 and any(self.rule.due(branch.name, branch.computed + 1))

    def begin_copy(self, branch: ToyBranch) -> list[Copy]:
        """Start the branch's copies beside the steps."""
        self._refresh_kept()
        tail, state = self.rule.due(branch.name, branch.computed + 1)
        if not self._have_room(int(tail), int(state)):
            return []
        if self.memory.branching.copies.is_awaited_by(branch.sequence):
            return []
        copies = self.memory.branching.begin_copy(branch.sequence)
        assert copies == self._copies.take()
        kinds = [copy.kind for copy in copies]
        assert kinds == ["attention"] * tail + ["state"] * state
        owned = self.rule.owned[branch.name]
        for copy in copies:
            on_page = copy.kind == "attention"
            source = (
                owned.blocks[branch.computed // self.memory.block_size] if on_page else owned.state
            )
            self.rule.holders[source] += 1
            self.in_flight[copy] = (branch.name, source)
        return copies

    def complete_copy(self, copy: Copy) -> None:
        """The copy is done at the last moment; only now the branch names its target."""
        name, source = self.in_flight.pop(copy)
        self.physical.carry_out(copy)
        self.num_copies[copy.kind] += 1
        self.rule.num_due[copy.kind] += 1
        self.memory.branching.complete_copy(copy)
        self.rule.holders[source] -= 1
        if name in self.rule.owned:
            self.rule.remap(name, source)

    # -- computing -------------------------------------------------------------------------------

    def step(self, *, reverse: bool = False) -> None:
        """Carry out the copies, then compute what was scheduled, in or against order."""
        self.physical.poison_free()
        for copy in self.memory.take_copies():
            self.physical.carry_out(copy)
            self.num_copies[copy.kind] += 1
        self.rule.listed.clear()
        self._unwritten.clear()
        assert self.num_copies == self.rule.num_due
        scheduled = [branch for branch in self.branches if branch.end]
        for branch in reversed(scheduled) if reverse else scheduled:
            self._compute(branch)
        self.memory.cache.step += 1
        for branch in scheduled:
            self._end_step(branch)

    def _compute(self, branch: ToyBranch) -> None:
        sequence, source = branch.sequence, self._source_of(branch)
        state = START if source is None else self.physical.read_state(source)
        tokens = [*branch.tokens, *branch.drafts]
        branch.sampled = []
        for position in range(branch.computed, branch.end + len(branch.drafts)):
            state = state.after(tokens[position])
            self.physical.write_kv(sequence.blocks, position, state.kv(tokens[position], position))
            target = sequence.state if position < branch.end else sequence.scratch
            assert target is not None
            self.physical.write_state(target, state)
            if position + 1 >= len(branch.tokens):
                kv = self.physical.read_kv(sequence.blocks, position + 1)
                branch.sampled.append(state.next_token(kv))

    def _end_step(self, branch: ToyBranch) -> None:
        """Greedy verification: drafts are accepted as far as they are what the model says."""
        end, drafts, sampled = branch.end, branch.drafts, branch.sampled
        branch.computed, branch.end, branch.drafts = end, 0, []
        num_accepted = 0
        while num_accepted < len(drafts) and drafts[num_accepted] == sampled[num_accepted]:
            num_accepted += 1
        branch.tokens += sampled[: num_accepted + 1]
        if drafts:
            branch.computed = self.memory.drafting.settle(
                branch.sequence, end, num_drafts=len(drafts), num_accepted=num_accepted
            )
            self.rule.settle(branch.name, branch.computed, all_accepted=num_accepted == len(drafts))

    def _source_of(self, branch: ToyBranch) -> Checkpoint | None:
        """The state that the branch's next token continues; None before its first token."""
        if branch.computed == 0:
            return None
        grid, sequence = self.memory.checkpoint_grid, branch.sequence
        crosses = branch.end > 0 and (branch.end - 1) // grid > (branch.computed - 1) // grid
        return sequence.superseded if crosses else sequence.state

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """The memory adds up, the rule agrees with it, and every branch has a replay's words."""
        if self.is_crowded:
            for pool in self.memory.cache.pools:
                pool.check_integrity()
            self.memory.branching.check_integrity()
        else:
            self.memory.check_integrity()
        self._refresh_kept()
        self._check_ownership()
        self._check_words()

    def _check_ownership(self) -> None:
        """One place for each thing, one thing for each place, and as many references as holders."""
        memory, rule = self.memory, self.rule
        pages: dict[Thing, int] = {}
        states: dict[Thing, Checkpoint] = {}
        for branch in self.branches:
            owned, sequence = rule.owned[branch.name], branch.sequence
            assert sequence.state is not None or branch.computed == branch.end == 0
            for thing, page in zip(owned.blocks, sequence.blocks, strict=True):
                assert pages.setdefault(thing, page) == page
            held = [
                (owned.state, sequence.state),
                (owned.read, sequence.superseded),
                (owned.scratch, sequence.scratch),
            ]
            for state_thing, state in held:
                if state is not None and state_thing is not None:
                    assert states.setdefault(state_thing, state) is state
        assert len(set(pages.values())) == len(pages)
        assert len({id(state) for state in states.values()}) == len(states)
        for thing, page in pages.items():
            assert memory.cache.attention_pool.refs[page] == rule.num_references(thing)
        for thing, state in states.items():
            assert state.refs == rule.num_references(thing)

    def _note_places(self) -> None:
        """Where things lie, so that they are known again in a hit."""
        for branch in self.branches:
            owned, sequence = self.rule.owned[branch.name], branch.sequence
            self._at_page.update(zip(sequence.blocks, owned.blocks, strict=True))
            if sequence.state is not None:
                self._at_state[sequence.state] = owned.state

    def _refresh_kept(self) -> None:
        self._note_places()
        memory = self.memory
        pages = [page for key, page in memory.cache.block_index if isinstance(key, LeafKey)]
        states = [state for key, state in memory.cache.checkpoint_index if isinstance(key, LeafKey)]
        self.rule.kept = {self._at_page[page] for page in pages} | {
            self._at_state[state] for state in states
        }

    def _check_words(self) -> None:
        """Targets that are listed are looked at once they are copied."""
        size = self.memory.block_size
        for branch in self.branches:
            state, kv = replay(branch.tokens[: branch.computed])
            for start in range(0, branch.computed, size):
                page = branch.sequence.blocks[start // size]
                if page not in self._unwritten:
                    valid = kv[start : start + size]
                    assert tuple(self.physical.read_block(page)[: len(valid)]) == valid
            source = self._source_of(branch)
            if source is not None and not self._unwritten.intersection(source.pages):
                assert self.physical.read_state(source) == state
            for place in range(branch.num_forced, min(len(branch.tokens), branch.computed + 1)):
                assert branch.tokens[place] == next_token(branch.tokens[:place])
