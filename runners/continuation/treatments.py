"""What is done to requests, and how to see that it really happened (fidelity, Appendix D.5).

A treatment arranges requests and a memory; the engine runs them, and every request is compared with
its isolated recomputation. A pool that must be tight is tried from wide to narrow, until everything
has happened.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runners.continuation.prompts import Ask, Prompts

Observed = Mapping[str, Any]
"""What a run reports; see `runners.continuation.engine`."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request, and when it comes."""

    ask: Ask
    step: int = 0
    """Engine step at which it is added, counted from the end of `after`."""
    after: str | None = None
    """Arrival that must have finished before; None counts from the start."""
    salt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of an engine."""

    arrivals: tuple[Arrival, ...]
    pools: tuple[float, ...] = (12.0,)
    """Bytes of state, as multiples of what the largest request takes alone; the first at which
    everything happened counts."""
    compared: tuple[str, ...] | None = None
    """Names of the asks that are compared with references; None means all."""
    retention: str = "off"
    preempt_at: tuple[int, ...] = ()
    """Steps before which the youngest running request is preempted."""
    reset_at: int | None = None
    """Step before which all running requests are preempted and the cache is emptied."""
    happened: Mapping[str, Callable[[Observed], bool]] = field(default_factory=dict)
    """Fidelity conditions by their wording."""


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """A named way to disturb requests."""

    name: str
    title: str
    scenarios: Callable[[Prompts], Sequence[Scenario]]
    only: tuple[str, ...] = ()
    """Kinds of organization that it can happen to; empty means all."""

    def applies_to(self, kind: str) -> bool:
        return not self.only or kind in self.only


ROOMY = 12.0
TIGHT = (5.0, 4.0, 3.0, 2.5, 2.0, 1.7, 1.4, 1.2, 1.05)
"""Pools from wide to narrow, in requests."""


def in_turn(asks: Sequence[Ask], *, salted: bool = False) -> tuple[Arrival, ...]:
    """One after the other, each alone."""
    return tuple(
        Arrival(
            ask=ask,
            after=None if before is None else before.name,
            salt=ask.name if salted else None,
        )
        for before, ask in zip((None, *asks), asks, strict=False)
    )


def there_and_back(asks: Sequence[Ask]) -> tuple[Arrival, ...]:
    """One after the other, and again from the last to the first: the last ones are still cached."""
    again = [replace(ask, name=f"{ask.name} again") for ask in reversed(asks)]
    return in_turn([*asks, *again])


def staggered(asks: Sequence[Ask], *, every: int, salted: bool = False) -> tuple[Arrival, ...]:
    """Each a few steps after the one before, so that batches grow and shrink."""
    return tuple(
        Arrival(ask=ask, step=i * every, salt=ask.name if salted else None)
        for i, ask in enumerate(asks)
    )


# -- the treatments --------------------------------------------------------------------------------


def _repeat(prompts: Prompts) -> list[Scenario]:
    return [
        Scenario(
            arrivals=in_turn(prompts.members, salted=True),
            happened={"nothing was adopted": lambda run: _num_hits(run) == 0},
        )
    ]


def _hits(prompts: Prompts) -> list[Scenario]:
    """A producer leaves a checkpoint, a consumer reuses it; then the next boundary's."""
    pairs = [
        (prompts.producer(index), consumer) for index, consumer in enumerate(prompts.consumers)
    ]
    return [
        Scenario(
            arrivals=in_turn([ask for pair in pairs for ask in pair]),
            compared=tuple(consumer.name for _, consumer in pairs),
            happened={
                "every consumer adopted its boundary": lambda run: all(
                    run["cached"][consumer.name] == (index + 1) * prompts.grid
                    for index, (_, consumer) in enumerate(pairs)
                )
            },
        )
    ]


def _batch(prompts: Prompts) -> list[Scenario]:
    first, *others = prompts.members
    return [
        Scenario(
            arrivals=(
                Arrival(ask=first),
                *(
                    Arrival(ask=ask, after=first.name, step=step)
                    for ask, step in zip(others, (0, 1, 1, 3, 6), strict=True)
                ),
            ),
            happened={
                "at least four ran at once": lambda run: run["max_running"] >= 4,
                "at least two adopted a checkpoint": lambda run: _num_hits(run) >= 2,
            },
        )
    ]


def _turns(prompts: Prompts) -> list[Scenario]:
    """A member is answered, and the answer comes back as part of a longer prompt."""
    pairs = zip(prompts.members, prompts.turns, strict=True)
    return [
        Scenario(
            arrivals=in_turn([ask for pair in pairs for ask in pair]),
            compared=tuple(ask.name for ask in prompts.turns),
            happened={
                "every turn adopted a checkpoint": lambda run: all(
                    run["cached"][ask.name] > 0 for ask in prompts.turns
                )
            },
        )
    ]


def _eviction(prompts: Prompts) -> list[Scenario]:
    return [
        Scenario(
            arrivals=there_and_back(prompts.members),
            pools=TIGHT,
            happened={
                "checkpoints were lost": _counted("lost_checkpoints"),
                "one was adopted all the same": lambda run: _num_hits(run) > 0,
            },
        )
    ]


def _slabs(prompts: Prompts) -> list[Scenario]:
    return [
        Scenario(
            arrivals=there_and_back(prompts.members),
            pools=TIGHT,
            happened={"a slab was reclaimed": _counted("reclaimed_slabs")},
        )
    ]


def _preemption(prompts: Prompts) -> list[Scenario]:
    """The youngest request is preempted twice, and once all of them lose the cache too."""
    happened = {
        "a request was preempted": _counted("preemptions"),
        "one had generated tokens": lambda run: any(run["generated_when_preempted"]),
    }
    arrivals = staggered(prompts.members, every=1)
    return [
        Scenario(arrivals=arrivals, preempt_at=(14, 18), happened=happened),
        Scenario(arrivals=arrivals, reset_at=16, happened=happened),
    ]


def _retention(prompts: Prompts) -> list[Scenario]:
    return [
        Scenario(
            arrivals=staggered(prompts.members, every=1),
            retention="k2",
            happened={"a checkpoint was retained": _counted("retained_checkpoints")},
        )
    ]


def _isolation(prompts: Prompts) -> list[Scenario]:
    return [
        Scenario(
            arrivals=staggered(prompts.members, every=4),
            happened={"SHARE adopted": lambda run: _num_hits(run) > 0},
        ),
        Scenario(
            arrivals=staggered(prompts.members, every=4, salted=True),
            happened={"ISOLATE adopted nothing": lambda run: _num_hits(run) == 0},
        ),
    ]


def _counted(counter: str) -> Callable[[Observed], bool]:
    return lambda run: bool(run["counters"][counter] > 0)


def _num_hits(run: Observed) -> int:
    return sum(tokens > 0 for tokens in run["cached"].values())


TREATMENTS = {
    treatment.name: treatment
    for treatment in (
        Treatment(name="repeat", title="alone again", scenarios=_repeat),
        Treatment(name="hit", title="hit at every boundary", scenarios=_hits),
        Treatment(name="batch", title="hits in changing batches", scenarios=_batch),
        Treatment(name="turns", title="next turn of a conversation", scenarios=_turns),
        Treatment(name="eviction", title="eviction", scenarios=_eviction),
        Treatment(name="slabs", title="slab reclaim", scenarios=_slabs, only=("s2",)),
        Treatment(name="preemption", title="preemption and resume", scenarios=_preemption),
        Treatment(name="retention", title="retention", scenarios=_retention),
        Treatment(name="isolation", title="SHARE and ISOLATE", scenarios=_isolation),
    )
}
"""By name, in the order of the tables."""
