"""Admission episodes: what a request could reuse when it joined the queue and when it was admitted.

An episode lasts from an entry to the next admission of the same request. Its first one is INITIAL;
one that follows a preemption is RESUME. It is bound by request and number of preemptions, so that
no episode overwrites another one (Appendix C.1).
"""

from dataclasses import dataclass

import pandas as pd

from hsexp.trace.supply import Depths, Supply
from hsexp.trace.trace import Event, Trace


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


def episodes(trace: Trace) -> list[Episode]:
    """The admitted episodes of a run, in order of their admissions.

    Raises:
        TraceError: the events contradict each other.
    """
    supply, entered, found = Supply(trace.memory), dict[int, tuple[Event, Depths]](), []
    for event in trace.rows("enter", "publish", "lose", "adopt"):
        if event.kind == "enter":
            # A new request comes between two steps: whatever the last one published is computed.
            step = event.step + (event.episode == 0)
            depths = supply.depths(event.keys, event.boundary_keys, "M1", step=step)
            entered[event.request] = event, depths
        elif event.kind == "adopt":
            if event.request in entered:  # a branch never waits
                found.append(_episode(supply, event, *entered.pop(event.request)))
        else:
            supply.apply(event)
    return found


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
