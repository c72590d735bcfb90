"""Finds the decode steps that need attention, so that the scheduler leaps over the others.

A decoding request needs the memory at a block or checkpoint boundary, and when it finishes:

    decode steps   0 . . . 4 . . . 8 . 10          blocks of 4, output ends with step 10
    growth         x       x       x
    finish                              x
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from hsexp.sim.requests import SimRequest


@dataclass(slots=True)
class Calendar:
    """Requests by the decode step at which they need attention."""

    _steps: list[int] = field(default_factory=list)
    _due: dict[int, list[tuple[int, SimRequest]]] = field(default_factory=dict)

    def add(self, step: int, request: SimRequest) -> None:
        due = self._due.get(step)
        if due is None:
            heapq.heappush(self._steps, step)
            self._due[step] = [(request.serial, request)]
        else:
            due.append((request.serial, request))

    def next_step(self) -> int | None:
        return self._steps[0] if self._steps else None

    def pop(self, step: int) -> Iterable[SimRequest]:
        """Requests due at `step` in running order; entries of an earlier admission are stale."""
        if not self._steps or self._steps[0] != step:
            return ()
        heapq.heappop(self._steps)
        due = self._due.pop(step)
        if len(due) > 1:
            due.sort(key=_by_serial)
        return [request for serial, request in due if request.serial == serial and request.decoding]


def _by_serial(item: tuple[int, SimRequest]) -> int:
    return item[0]


class DecodeCalendar:
    """The decode steps at which each decoding request grows, and at which it finishes."""

    def __init__(self, *, block_size: int, checkpoint_grid: int, every_step: bool) -> None:
        """
        Args:
            block_size: tokens of a block that generated tokens take.
            every_step: every request needs attention in every step, so that none is leaped over.
        """
        self.block_size = block_size
        self.checkpoint_grid = checkpoint_grid
        self.every_step = every_step
        self.growth = Calendar()
        """By the next decode step at which a request needs the memory; then it is entered again."""
        self.finish = Calendar()
        """By the decode step that generates a request's last token."""

    def add_growth(self, request: SimRequest, step: int) -> None:
        """Enter the next decode step, from `step` on, at which this request needs the memory."""
        if self.every_step:
            self.growth.add(step, request)
            return
        sequence = request.memory
        assert sequence is not None
        if sequence.superseded is not None:
            self.growth.add(step, request)
            return
        computed = request.computed_at(step)
        grid = self.checkpoint_grid
        wait = min(
            -computed % self.block_size,  # a new block
            -computed % grid,  # a new state
            -(computed + 1) % grid,  # a state to publish
        )
        if request.request.shares_output:
            wait = min(wait, -(computed + 1) % self.block_size)  # a block that others look for
        if step + wait <= request.finish_step:
            self.growth.add(step + wait, request)

    def quiet_steps(self, step: int) -> int:
        """Decode steps from `step` on that can pass before a request grows or finishes."""
        growth, finish = self.growth.next_step(), self.finish.next_step()
        assert finish is not None, "every decoding request has a last step"
        until_finish = finish + 1 - step
        return until_finish if growth is None else min(growth - step, until_finish)
