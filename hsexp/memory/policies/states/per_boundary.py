"""A state for every interval of the checkpoint grid: the rule of the paper, and of vLLM.

    tokens    0 ------ 512 ------ 1,024 --- 1,100
    states    [ A      ][ B        ][ C
              A is published when its step ends at 512, is read by the step that writes B, and is
              released before the step after that

So a crossing needs two states for one step, and a checkpoint costs no copy.
"""

from typing import Literal

from hsexp.memory.branching.copies import Copies
from hsexp.memory.cache import Cache
from hsexp.memory.policies.reservation.rule import Reservation
from hsexp.memory.policies.retention import Retention
from hsexp.memory.policies.states.rule import StateRule, StatesSettings
from hsexp.memory.sequence import Hit, SequenceMemory


class PerBoundary(StatesSettings):
    """A new state at each boundary; it has no settings."""

    kind: Literal["per_boundary"]

    def build(
        self, cache: Cache, *, copies: Copies, retention: Retention, reservation: Reservation
    ) -> StateRule:
        return StatePerBoundary(cache, retention)


class StatePerBoundary(StateRule):
    """A step over a boundary reads the superseded state and writes a new one."""

    def __init__(self, cache: Cache, retention: Retention) -> None:
        self._cache = cache
        self._retention = retention

    def max_states(self, *, crosses: bool) -> int:
        return 2 if crosses else 1

    def num_planned(self, hit: Hit, num_tokens: int) -> int:
        """One, if a step ends at a boundary and another one goes on from there."""
        grid = self._cache.checkpoint_grid
        return int((num_tokens - 1) // grid > hit.tokens // grid)

    def num_left(self, sequence: SequenceMemory, computed: int, end: int) -> int:
        """None once the request holds two: each further step gives one up, and takes one."""
        superseded, grid = sequence.superseded, self._cache.checkpoint_grid
        if superseded is not None and superseded.refs == 1:
            return 0
        return int((sequence.num_admitted_tokens - 1) // grid > (end - 1) // grid)

    def begin(self, sequence: SequenceMemory, computed: int) -> None:
        if sequence.superseded is not None:
            self._give_up_superseded(sequence)
        cache, state = self._cache, sequence.state
        if not computed % cache.checkpoint_grid and state is not None and state.key is None:
            cache.publish_boundary(sequence, computed)

    def needs_state(self, sequence: SequenceMemory, end: int) -> bool:
        return (end - 1) // self._cache.checkpoint_grid > sequence.state_index

    def take_state(self, sequence: SequenceMemory, computed: int) -> None:
        sequence.superseded = sequence.state
        sequence.state = self._cache.states.allocate()

    def publish(self, sequence: SequenceMemory, computed: int, end: int) -> None:
        cache = self._cache
        sequence.state_index = (end - 1) // cache.checkpoint_grid
        if end % cache.checkpoint_grid == 0:
            cache.publish_state(sequence, sequence.state, end, step=cache.step)

    def idle_end(self, sequence: SequenceMemory, end: int) -> int:
        """Before the end of the interval: there the state is published, then comes another one."""
        if sequence.superseded is not None or sequence.num_planned:
            return 0
        grid = self._cache.checkpoint_grid
        return end + -end % grid - 1 if end % grid else 0

    def leave(self, sequence: SequenceMemory, computed: int) -> None:
        self._cache.end_at(sequence, computed)

    def _give_up_superseded(self, sequence: SequenceMemory) -> None:
        cache, checkpoint = self._cache, sequence.superseded
        assert checkpoint is not None
        sequence.superseded = None
        if self._retention.keeps(checkpoint):
            sequence.retained.append(checkpoint)
            cache.counters.retained_checkpoints += 1
            if cache.observer is not None:
                cache.observer.on_keep(sequence.request_id, checkpoint, "retained")
        else:
            cache.release_state(checkpoint)
