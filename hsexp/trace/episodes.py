"""Admission episodes: what a request could reuse when it joined the queue and when it was admitted.

An episode lasts from an entry to the next admission of the same request. Its first one is INITIAL;
one that follows a preemption is RESUME. It is bound by request and number of preemptions, so that
no episode overwrites another one (Appendix C.1).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import pandas as pd

from hsexp.trace.supply import Depths, Supply
from hsexp.trace.trace import Event, Trace, TracedMemory

DepthClass = Literal["zero_to_zero", "positive_equal", "zero_to_positive", "deeper", "shallower"]
"""How Jadopt compares with Jenter: the columns of Table C-2."""
DEPTH_CLASSES: tuple[DepthClass, ...] = get_args(DepthClass)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One entry into the queue and the admission that ended it."""

    request: int
    id: str
    episode: int
    """Preemptions before it."""
    entry_step: int
    entry: Depths
    """At the entry; `entry.joint` is Jenter."""
    adopted_step: int
    adopted_tokens: int
    """Jadopt, as the scheduler recorded it."""
    computed: Depths
    """Mask M0 at the admission: what earlier steps have computed."""
    visible: Depths
    """Mask M1 at the admission: also what the coming step publishes ahead."""

    @property
    def is_initial(self) -> bool:
        return self.episode == 0

    @property
    def is_replayed(self) -> bool:
        """Whether the events lead to the depth that the scheduler recorded.

        Depths are boundaries; a leaf (`leaves=final`) that was adopted lies beyond them.
        """
        return self.computed.joint == self.adopted_tokens == self.visible.joint

    @property
    def depth_class(self) -> DepthClass:
        before, after = self.entry.joint, self.adopted_tokens
        if after < before:
            return "shallower"
        if after == before:
            return "positive_equal" if before else "zero_to_zero"
        return "deeper" if before else "zero_to_positive"

    @property
    def gap_r(self) -> tuple[int, int]:
        """GapR = Rmax - Jadopt under M0 and under M1, which bracket it (Appendix G.2)."""
        tokens = self.adopted_tokens
        return self.computed.recurrent - tokens, self.visible.recurrent - tokens


def episodes(trace: Trace) -> list[Episode]:
    """The admitted episodes of a run, in order of their admissions.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, found = Replay(trace.memory), []
    for event in trace.rows("enter", "publish", "lose", "adopt"):
        if event.kind == "enter":
            replay.enter(event)
        elif event.kind == "adopt":
            episode = replay.adopt(event)
            if episode is not None:
                found.append(episode)
        else:
            replay.supply.apply(event)
    return found


class Replay:
    """The supply, and the requests that wait for it."""

    def __init__(self, memory: TracedMemory) -> None:
        self.supply = Supply(memory)
        self._entered: dict[int, tuple[Event, Depths]] = {}

    def enter(self, event: Event) -> Depths:
        """A request joins the queue. Returns what it could reuse now."""
        # A new request comes between two steps: whatever the last one published is computed.
        step = event.step + (event.episode == 0)
        depths = self.supply.depths(event.keys, event.boundary_keys, "M1", step=step)
        self._entered[event.request] = event, depths
        return depths

    def adopt(self, event: Event) -> Episode | None:
        """A request is admitted. Returns its episode; None for a branch, which never waits."""
        if event.request not in self._entered:
            return None
        return _episode(self.supply, event, *self._entered.pop(event.request))


def _episode(supply: Supply, adopt: Event, enter: Event, entry: Depths) -> Episode:
    computed, visible = (
        supply.depths(enter.keys, enter.boundary_keys, mask, step=adopt.step)
        for mask in ("M0", "M1")
    )
    return Episode(
        request=enter.request,
        id=enter.id,
        episode=enter.episode,
        entry_step=enter.step,
        entry=entry,
        adopted_step=adopt.step,
        adopted_tokens=adopt.tokens,
        computed=computed,
        visible=visible,
    )


def depth_columns(trace: Trace, request_ids: list[str]) -> pd.DataFrame:
    """The columns of `measure.records.DEPTH_COLUMNS` of these requests, in order.

    A request that was never admitted has 0.
    """
    initial = {each.id: each for each in episodes(trace) if each.is_initial}
    rows = [_depths(initial.get(request_id)) for request_id in request_ids]
    return pd.DataFrame(
        rows, columns=["entry_joint_tokens", "attention_tokens", "recurrent_tokens"]
    )


def _depths(episode: Episode | None) -> tuple[int, int, int]:
    if episode is None:
        return 0, 0, 0
    return episode.entry.joint, episode.visible.attention, episode.visible.recurrent
