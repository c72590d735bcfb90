"""Why a waiting request was not admitted: its refusals, alike ones in a row as one."""

from dataclasses import dataclass, field

from hsexp.trace import Trace
from hsexp.trace.clock import Clock
from hsexp.trace.trace import Event, TracedMemory


@dataclass(kw_only=True)
class Refused:
    """Refusals of one request in a row, with one cause and one pool that is short."""

    request: int
    episode: int
    cause: str
    """memory | headroom | price."""
    pool: int
    start_ns: int
    end_ns: int
    """When something else happened to it: another refusal, or its admission."""
    count: int = 0
    needs: list[int] = field(default_factory=list)
    """Pages of the short pool, of each refusal that was worked out."""
    free: list[int] = field(default_factory=list)

    @property
    def time_ns(self) -> int:
        return self.end_ns - self.start_ns


def refusals(trace: Trace, clock: Clock) -> dict[int, list[Refused]]:
    """The refusals of each request, in order."""
    found: dict[int, list[Refused]] = {}
    episodes: dict[int, int] = {}
    for event in trace.rows("enter", "refuse", "adopt"):
        request, now = event.request, clock.of(event)
        own = found.setdefault(request, []) if event.kind == "refuse" else found.get(request, [])
        last = own[-1] if own else None
        if event.kind == "adopt":
            if last is not None and last.episode == event.episode:
                last.end_ns = max(now, last.start_ns)
        elif event.kind == "enter":
            episodes[request] = event.episode
        else:
            _add(own, event, now, episodes.get(request, 0))
    return found


def _add(own: list[Refused], event: Event, now: int, episode: int) -> None:
    last = own[-1] if own else None
    if event.cause == "standing":  # nothing that it needs has changed since the last one
        if last is not None:
            last.count += event.count
            last.end_ns = max(last.end_ns, now)
        return
    if (
        last is None
        or (last.cause, last.pool, last.episode) != (event.cause, event.pool, episode)
    ):  # fmt: skip
        if last is not None and last.episode == episode:
            last.end_ns = max(now, last.start_ns)
        last = Refused(
            request=event.request,
            episode=episode,
            cause=event.cause,
            pool=event.pool,
            start_ns=now,
            end_ns=now,
        )
        own.append(last)
    last.count += event.count
    last.end_ns = max(last.end_ns, now)
    last.needs.append(event.need[event.pool])
    last.free.append(event.free[event.pool])


def sentence(refused: Refused, memory: TracedMemory) -> str:
    """Why, in words: need against free pages, and what admission keeps free."""
    pool = memory.pools[refused.pool]
    need, free = _range(refused.needs), _range(refused.free)
    headroom = memory.headroom_pages[refused.pool]
    missing = _range(
        [
            a + (headroom if refused.cause == "headroom" else 0) - b
            for a, b in zip(refused.needs, refused.free, strict=True)
        ]
    )
    if refused.cause == "headroom":
        return (
            f"pool {pool.name} had {free} free pages and it needed {need}, but admission keeps "
            f"{headroom} free while others run: {missing} too few"
        )
    if refused.cause == "price":
        return (
            f"pool {pool.name} had {free} free pages and it needed {need}, but the price spared "
            "checkpoints that are worth more than a running request"
        )
    return f"pool {pool.name} was short: it needed {need} pages and {free} were free"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
