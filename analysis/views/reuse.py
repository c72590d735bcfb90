"""What a request could have reused and did not, and who evicted what it lacked.

    Jenter      deepest joint boundary when it joined the queue
    Jadopt      what it adopted
    Amax, Rmax  how deep attention and states reached at its admission
    Jever       what it would have adopted if nothing had ever been lost

Jever - Jadopt tokens were computed again because of evictions. All depths but Jenter count what
earlier steps have computed (mask M0). `hsexp.trace.lineage` has what changed from Jenter to Jadopt
while the request waited; most of what a request lacks was lost before it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hsexp.trace import Trace
from hsexp.trace.episodes import Episode, Replay
from hsexp.trace.lives import PageLives
from hsexp.trace.supply import Depths, Entry
from hsexp.trace.trace import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A cached entry went, and with it the last one of its key."""

    seq: int
    step: int
    cause: str
    act: str
    request: int | None
    """For whom; None for no single one."""
    page: int


@dataclass(kw_only=True)
class Cached:
    """What is known of one key: who published it last, and how it was lost last."""

    entry: Entry
    producer: int
    published_step: int
    page: int
    life: int
    """Which life of the page it is (`hsexp.trace.lives.PageLife`)."""
    tokens: int
    lost: Lost | None = None
    """None while it is cached."""

    @property
    def name(self) -> str:
        """Its identity over its life."""
        return f"{'state' if self.entry == 'state' else 'page'} {self.page}.{self.life}"


@dataclass(frozen=True, kw_only=True)
class Lack:
    """An entry that stood between Jadopt and Jever."""

    boundary: int
    """Tokens at the boundary that it belongs to."""
    cached: Cached


@dataclass(kw_only=True)
class Reuse:
    """One admission of one request."""

    request: int
    id: str
    episode: int
    enter: Event
    adopt: Event
    entry_tokens: int
    """Jenter."""
    adopted: Depths
    """At the admission: Amax, Rmax and the joint depth on the grid."""
    ever_tokens: int
    """Jever."""
    lacks: list[Lack] = field(default_factory=list)
    """What it lacked at the deepest boundary, the state first; empty where it lacked nothing."""

    @property
    def adopted_tokens(self) -> int:
        """Jadopt; a leaf may lie beyond all boundaries."""
        return int(self.adopt.tokens)

    @property
    def lost_tokens(self) -> int:
        """Tokens that evictions made it compute again."""
        return max(self.ever_tokens - self.adopted_tokens, 0)

    @property
    def culprit(self) -> Lack | None:
        """The loss that it suffered from: of the entries that it lacked, the last to go."""
        return max(self.lacks, key=lambda lack: _lost_seq(lack.cached), default=None)


def reuses(trace: Trace) -> list[Reuse]:
    """The admissions of a run, in order.

    Raises:
        TraceError: the events contradict each other.
    """
    return list(_Replay(trace).run())


class _Replay:
    """The supply, and what was ever in it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._replay = Replay(trace.memory)
        self._known: dict[tuple[Entry, int], Cached] = {}
        self._first_step: dict[tuple[Entry, int], int] = {}
        """The first step that finds a key computed."""
        self._key_of: dict[tuple[Entry, int], int] = {}
        self._copies: dict[tuple[Entry, int], int] = {}
        self._lives = PageLives(trace.memory)
        self._waiting: dict[int, Event] = {}

    def run(self) -> Iterator[Reuse]:
        for event in self._trace.rows("take", "enter", "publish", "lose", "adopt"):
            if event.kind == "take":
                self._lives.take(event)
            elif event.kind == "enter":
                self._replay.enter(event)
                self._waiting[event.request] = event
            elif event.kind == "publish":
                self._replay.supply.apply(event)
                self._publish(event)
            elif event.kind == "lose":
                self._replay.supply.apply(event)
                self._lose(event)
            elif (episode := self._replay.adopt(event)) is not None:
                yield self._adopt(event, self._waiting.pop(event.request), episode)

    def _publish(self, event: Event) -> None:
        entry: Entry = event.entry
        pages = event.pages[:1] if entry == "state" else event.pages
        memory = self._trace.memory
        size = memory.block_size
        for place, (page, key) in enumerate(zip(pages, event.keys, strict=True)):
            name = entry, key
            self._key_of[entry, page] = key
            self._copies[name] = self._copies.get(name, 0) + 1
            self._first_step.setdefault(name, event.step + event.ahead)
            tokens = event.tokens if entry == "state" else (event.start + place + 1) * size
            self._known[name] = Cached(
                entry=entry,
                producer=event.request,
                published_step=event.step,
                page=page,
                life=self._lives.of_entry(entry, page).life,
                tokens=tokens,
            )

    def _lose(self, event: Event) -> None:
        entry: Entry = event.entry
        for page in event.pages[:1] if entry == "state" else event.pages:
            name = entry, self._key_of.pop((entry, page))
            self._copies[name] -= 1
            if event.cause == "withdrawn" and self._first_step[name] > event.step:
                del self._first_step[name]  # nobody has computed it
            if not self._copies[name]:
                del self._copies[name]
                self._known[name].lost = Lost(
                    seq=event.seq,
                    step=event.step,
                    cause=event.cause,
                    act=event.act,
                    request=event.request,
                    page=page,
                )

    def _adopt(self, event: Event, enter: Event, episode: Episode) -> Reuse:
        ever = self._ever(enter, event.step)
        return Reuse(
            request=event.request,
            id=event.id,
            episode=event.episode,
            enter=enter,
            adopt=event,
            entry_tokens=episode.entry.joint,
            adopted=episode.computed,
            ever_tokens=ever,
            lacks=self._lacks(enter, ever) if ever > event.tokens else [],
        )

    def _ever(self, enter: Event, step: int) -> int:
        """Jever."""
        memory, first = self._trace.memory, self._first_step
        blocks = 0
        for key in enter.keys:
            if first.get(("attention", key), step + 1) > step:
                break
            blocks += 1
        reach = blocks * memory.block_size // memory.checkpoint_grid
        for boundary in range(min(reach, len(enter.boundary_keys)), 0, -1):
            if first.get(("state", enter.boundary_keys[boundary - 1]), step + 1) <= step:
                return boundary * memory.checkpoint_grid
        return 0

    def _lacks(self, enter: Event, boundary: int) -> list[Lack]:
        """Entries of a boundary that are lost: its state, and the first attention block."""
        memory, known = self._trace.memory, self._known
        names: list[tuple[Entry, int]] = [
            ("state", enter.boundary_keys[boundary // memory.checkpoint_grid - 1]),
            *(("attention", key) for key in enter.keys[: boundary // memory.block_size]),
        ]
        lost: dict[Entry, Lack] = {}
        for name in names:
            if name[0] not in lost and known[name].lost is not None:
                lost[name[0]] = Lack(boundary=boundary, cached=known[name])
        return list(lost.values())


def _lost_seq(cached: Cached) -> int:
    return -1 if cached.lost is None else cached.lost.seq


def why_lost(cause: str, act: str, name: str | None) -> str:
    """The cause of a loss in words.

    Args:
        cause, act: as the trace has them (`LossCause`, `Act`).
        name: of the request that it was lost for; None for no single one.
    """
    if cause == "withdrawn":
        return "it was withdrawn, because its producer left before the step computed it"
    if cause == "reset":
        return "the prefix cache was emptied"
    if cause == "leaf":
        return "younger leaves took its place"
    how = "its slab was reclaimed" if cause == "slab" else "its page was reassigned"
    if name is None:
        return f"{how} ({act})"
    return f"{how} {_FOR_WHAT.get(act, 'for request {name}').format(name=name)}"


_FOR_WHAT = {
    "admit": "to admit request {name}",
    "extend": "to make room for the next step of request {name}",
    "give_way": "so that request {name} could go on alone",
}
