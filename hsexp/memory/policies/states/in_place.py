"""One state from admission to the end, written in place; a checkpoint is a copy of it.

    tokens    0 ------ 512 ------ 1,024 --- 1,100 ... 1,600
    state     [ A
    copies            at 512 and at 1,024, each before the step that goes on from there

A request that hits copies the checkpoint into its own state before its first step, and holds the
checkpoint until then. Crossing a boundary takes nothing and publishes nothing. A prefill leaves a
checkpoint where one of its steps ends on the grid: a copy, made before the next step overwrites the
state. The copy is optional. It is made where there is room beside all promises, and is given up if
anybody else needs its pages in the same step, so that nobody is preempted for it. Once it is done
the checkpoint is cached, and nobody holds it.

A request that leaves at a boundary leaves its state there as a checkpoint, without a copy. Nobody
overwrites the state of a finished request, so that it can stay as a leaf as well.
"""

from bisect import bisect_right
from typing import ClassVar, Literal

from hsexp.memory.branching.copies import Copies
from hsexp.memory.cache import Cache
from hsexp.memory.policies.reservation.rule import Reservation
from hsexp.memory.policies.retention import Retention
from hsexp.memory.policies.states.rule import StateRule, StatesSettings
from hsexp.memory.sequence import Hit, SequenceMemory


class InPlace(StatesSettings):
    """One state for each running request."""

    copies: ClassVar[bool] = True

    kind: Literal["in_place"]
    keep_final: bool
    """Whether a request that leaves at a boundary leaves its state as a checkpoint."""

    def refusal(self, *, retention: bool, branches: bool) -> str | None:
        if retention:
            return "retention keeps superseded states, and there are none"
        if branches:
            return "forks, drafts and leaves of running requests read a state that is overwritten"
        return None

    def build(
        self, cache: Cache, *, copies: Copies, retention: Retention, reservation: Reservation
    ) -> StateRule:
        return StateInPlace(cache, copies, reservation, keep_final=self.keep_final)


class StateInPlace(StateRule):
    """Every step of a request reads and writes the same state."""

    lets_branch = False

    def __init__(
        self, cache: Cache, copies: Copies, reservation: Reservation, *, keep_final: bool
    ) -> None:
        self._cache = cache
        self._copies = copies
        self._reservation = reservation
        self._keep_final = keep_final

    def max_states(self, *, crosses: bool) -> int:
        return 1

    def num_planned(self, hit: Hit, num_tokens: int) -> int:
        """A checkpoint at each stop."""
        return len(hit.stops) - bisect_right(hit.stops, hit.tokens)

    def num_left(self, sequence: SequenceMemory, computed: int, end: int) -> int:
        """Those at stops that the step does not go on from: its checkpoint is made now or never."""
        return len(sequence.stops) - bisect_right(sequence.stops, computed)

    def begin(self, sequence: SequenceMemory, computed: int) -> None:
        pass

    def needs_state(self, sequence: SequenceMemory, end: int) -> bool:
        """Only the first step does: its request has no state, or the checkpoint that it hit."""
        return sequence.state is None or sequence.state.key is not None

    def take_state(self, sequence: SequenceMemory, computed: int) -> None:
        if sequence.state is None:
            sequence.state = self._cache.states.allocate()
        else:
            self._copies.list_state(sequence, computed)

    def publish(self, sequence: SequenceMemory, computed: int, end: int) -> None:
        grid = self._cache.checkpoint_grid
        sequence.state_index = (end - 1) // grid
        if computed and computed % grid == 0:
            self._copy_checkpoint(sequence, computed)

    def _copy_checkpoint(self, sequence: SequenceMemory, computed: int) -> None:
        """Copy the state of a prefill to a place of its own, if there is room."""
        cache, keys = self._cache, sequence.keys.checkpoints
        index = computed // cache.checkpoint_grid - 1
        if (
            computed > max(sequence.num_prompt_tokens, sequence.num_admitted_tokens)
            or computed > cache.attention.cacheable_end(sequence)
            or index >= len(keys)
            or keys[index] in cache.checkpoint_index.oldest
        ):
            return
        promised = self._reservation.outstanding(cache.sequences.values())
        need = cache.by_pool(
            cache.attention.pages_for(promised.blocks, promised.slots),
            cache.states.pages_needed(1 + promised.states),
        )
        if any(pages > pool.num_free for pages, pool in zip(need, cache.pools, strict=True)):
            return
        checkpoint = self._copies.list_checkpoint(sequence, computed)
        cache.publish_state(sequence, checkpoint, computed, step=cache.step)

    def idle_end(self, sequence: SequenceMemory, end: int) -> int:
        """Before the end of the interval: the step that goes on from there may copy the state."""
        if sequence.num_planned:
            return 0
        grid = self._cache.checkpoint_grid
        return end + -end % grid - 1 if end % grid else 0

    def make_room(self) -> bool:
        return self._copies.give_up_checkpoints()

    def counters(self) -> dict[str, int]:
        return {"state_copies": self._copies.num_done["state"]}

    def leave(self, sequence: SequenceMemory, computed: int) -> None:
        self._copies.give_up_checkpoints(sequence)
        self._cache.end_at(sequence, computed, with_boundary=self._keep_final)
