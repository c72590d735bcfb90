"""Lineage: every event between a request's entry and its admission that changed its joint depth.

A depth changes only when a key that it needs appears or vanishes: a second page under the same key
changes nothing. Each change names its page by life, who published it, and for a loss also for whom
it was lost. So no producer is ambiguous, and the depths of a lineage lead from Jenter to Jadopt.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hsexp.trace.episodes import Episode, Replay
from hsexp.trace.lives import PageLife, PageLives
from hsexp.trace.schema import TraceError
from hsexp.trace.supply import Entry, Supply, Turn
from hsexp.trace.trace import Event, Trace, TracedMemory

Beneficiary = Literal["own", "other", "none"]
"""Whom an entry was lost for: the waiting request itself, another one, or nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One event that changed the joint depth of a waiting request."""

    seq: int
    step: int
    kind: Literal["publish", "lose"]
    entry: Entry
    before: int
    """Joint depth in tokens before the event."""
    after: int
    page: PageLife
    producer: int
    """The request that published the page."""
    request: int | None
    """The request that acted; for a loss, the one that it was lost for. None: nobody (a reset)."""
    act: str | None
    """What that request did (`hsexp.memory.observer.Act`); None for a publication."""
    cause: str | None
    """Why it was lost (`hsexp.memory.observer.LossCause`); None for a publication."""

    @property
    def is_allocation(self) -> bool:
        """Whether it was lost because its page, or its slab, got a new owner."""
        return self.cause in ("reassigned", "slab")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """An episode, and every event that changed its joint depth."""

    episode: Episode
    changes: tuple[Change, ...]
    """In order. Losses decrease the depth, publications increase it."""

    @property
    def losses(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.kind == "lose")

    @property
    def publications(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.kind == "publish")

    @property
    def end(self) -> int:
        """The depth that the changes lead to, from Jenter on."""
        return self.changes[-1].after if self.changes else self.episode.entry.joint

    @property
    def is_replayed(self) -> bool:
        """Whether every change starts where the one before it ended, and the last one ends at the
        depth that the scheduler recorded."""
        depth = self.episode.entry.joint
        for change in self.changes:
            if change.before != depth or change.before == change.after:
                return False
            if (change.after > change.before) != (change.kind == "publish"):
                return False
            depth = change.after
        return depth == self.episode.adopted_tokens

    def beneficiary(self, loss: Change) -> Beneficiary:
        """Whom a loss of this lineage happened for."""
        if loss.request is None:
            return "none"
        return "own" if loss.request == self.episode.request else "other"

    @property
    def lost_to_others(self) -> tuple[Change, ...]:
        """Losses to allocations of other requests."""
        return tuple(
            loss for loss in self.losses if loss.is_allocation and self.beneficiary(loss) == "other"
        )


def lineages(trace: Trace) -> list[Lineage]:
    """The lineages of a run's admitted episodes, in order of their admissions.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, lives, found = Replay(trace.memory), _Lives(trace.memory), []
    queue = _Queue(trace.memory, replay.supply, lives)
    for event in trace.rows("take", "enter", "publish", "lose", "adopt"):
        if event.kind == "take":
            lives.take(event)
        elif event.kind == "enter":
            queue.enter(event, replay.enter(event).joint)
        elif event.kind == "adopt":
            episode = replay.adopt(event)
            if episode is not None:
                found.append(Lineage(episode=episode, changes=queue.leave(event.request)))
        else:
            for turn in replay.supply.turns(event):
                producer = lives.turn(event, turn)
                if turn.turns:
                    queue.turn(event, turn, producer)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Publications:
    """Pages and states that became visible in a run."""

    total: int
    same_step: int
    """Of these, those in whose step other requests published as well."""
    ambiguous: int
    """Of these in turn, those whose producer is not recorded."""


def publications(trace: Trace) -> Publications:
    """Count what was published, and what the paper could not attribute (Appendix C.1)."""
    in_step: defaultdict[int, list[tuple[int | None, int]]] = defaultdict(list)
    for event in trace.rows("publish"):
        count = 1 if event.entry == "state" else len(event.pages)
        in_step[event.step].append((event.request, count))
    shared = [published for published in in_step.values() if len({who for who, _ in published}) > 1]
    return Publications(
        total=sum(count for published in in_step.values() for _, count in published),
        same_step=sum(count for published in shared for _, count in published),
        ambiguous=sum(count for published in shared for who, count in published if who is None),
    )


class _Lives:
    """Identity and producer of every cached page."""

    def __init__(self, memory: TracedMemory) -> None:
        self._pages = PageLives(memory)
        self._producers: dict[tuple[Entry, int], int] = {}

    def take(self, event: Event) -> None:
        self._pages.take(event)

    def turn(self, event: Event, turn: Turn) -> int:
        """A page gets its key, or loses it. Returns its producer.

        Raises:
            TraceError: nobody has taken the page.
        """
        name = (turn.entry, turn.page)
        if event.kind == "lose":
            return self._producers.pop(name)
        page = self.of(turn)
        if not page.life:
            raise TraceError(f"page {page.page} of pool {page.pool} has a key without a take")
        producer: int = event.request
        self._producers[name] = producer
        return producer

    def of(self, turn: Turn) -> PageLife:
        """The identity of a page now."""
        return self._pages.of_entry(turn.entry, turn.page)


class _Waiting:
    """The part of the supply that one waiting request can use."""

    def __init__(self, event: Event, joint: int, supply: Supply) -> None:
        self.keys, self.boundary_keys = event.keys, event.boundary_keys
        self.joint = joint
        self.changes: list[Change] = []
        self._supply = supply
        self._num_blocks = 0
        self._states = {
            boundary
            for boundary, key in enumerate(self.boundary_keys, 1)
            if supply.has("state", key)
        }
        self._grow()

    def turn(self, turn: Turn, index: int, *, appears: bool) -> bool:
        """A key of the request appears or vanishes: its block or boundary of this index.

        Returns whether the joint depth may be another one.
        """
        if turn.entry == "state":
            (self._states.add if appears else self._states.discard)(index + 1)
            return True
        if not appears:
            shrinks = index < self._num_blocks
            self._num_blocks = min(self._num_blocks, index)
            return shrinks
        if index == self._num_blocks:
            self._grow()
            return True
        return False

    def deepest(self, block_size: int, grid: int) -> int:
        """The joint depth now."""
        end = self._num_blocks * block_size // grid
        return grid * max((state for state in self._states if state <= end), default=0)

    def _grow(self) -> None:
        keys, at = self.keys, self._num_blocks
        while at < len(keys) and self._supply.has("attention", keys[at]):
            at += 1
        self._num_blocks = at


class _Queue:
    """The waiting requests, by the keys that they can use."""

    def __init__(self, memory: TracedMemory, supply: Supply, lives: _Lives) -> None:
        self._memory = memory
        self._supply = supply
        self._lives = lives
        self._waiting: dict[int, _Waiting] = {}
        self._users: dict[Entry, dict[int, dict[int, int]]] = {"attention": {}, "state": {}}
        """Index in its prefix by request, by key."""

    def enter(self, event: Event, joint: int) -> None:
        waiting = self._waiting[event.request] = _Waiting(event, joint, self._supply)
        for key, index, users in self._uses(waiting):
            users.setdefault(key, {})[event.request] = index

    def leave(self, request: int) -> tuple[Change, ...]:
        """The request is admitted. Returns what changed its depth."""
        waiting = self._waiting.pop(request)
        for key, _, users in self._uses(waiting):
            del users[key][request]
            if not users[key]:
                del users[key]
        return tuple(waiting.changes)

    def turn(self, event: Event, turn: Turn, producer: int) -> None:
        """A key appears or vanishes."""
        users = self._users[turn.entry].get(turn.key)
        if users is None:
            return
        block_size, grid = self._memory.block_size, self._memory.checkpoint_grid
        appears = event.kind == "publish"
        for request, index in users.items():
            waiting = self._waiting[request]
            if not waiting.turn(turn, index, appears=appears):
                continue
            depth = waiting.deepest(block_size, grid)
            if depth != waiting.joint:
                page, before = self._lives.of(turn), waiting.joint
                waiting.changes.append(_change(event, turn, page, producer, before, depth))
                waiting.joint = depth

    def _uses(self, waiting: _Waiting) -> Iterator[tuple[int, int, dict[int, dict[int, int]]]]:
        for index, key in enumerate(waiting.keys):
            yield key, index, self._users["attention"]
        for index, key in enumerate(waiting.boundary_keys):
            yield key, index, self._users["state"]


def _change(
    event: Event, turn: Turn, page: PageLife, producer: int, before: int, after: int
) -> Change:
    is_loss = event.kind == "lose"
    return Change(
        seq=event.seq,
        step=event.step,
        kind=event.kind,
        entry=turn.entry,
        before=before,
        after=after,
        page=page,
        producer=producer,
        request=event.request,
        act=event.act if is_loss else None,
        cause=event.cause if is_loss else None,
    )
