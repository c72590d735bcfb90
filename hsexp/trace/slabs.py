"""Slots of the slabs of S2, replayed from the events of states (Section 3.4).

A slot is in use while its state is referenced or cached. A slab's last state takes the slab with
it: its page is an ordinary page again.
"""

from hsexp.trace.schema import TraceError


class SlabReplay:
    """Which state is in which slot, event by event (`PoolReplay` applies them)."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.states: dict[int, dict[int, int]] = {}
        """State in each slot in use, by slab: its page."""
        self.num_used = 0
        """Slots in use."""
        self.by_used = [0] * (num_slots + 1)
        """Number of slabs with so many slots in use. There is none with 0."""
        self._place_of: dict[int, tuple[int, int]] = {}
        """Slab and slot of each state."""

    def slab_of(self, state: int) -> int | None:
        """The slab that has the state; None if no slot is known."""
        place = self._place_of.get(state)
        return None if place is None else place[0]

    def put(self, state: int, line: int) -> int:
        """Put a state into the slot of its convolution line. Returns the slab."""
        slab, slot = divmod(line, self.num_slots)
        if self._place_of.get(state) == (slab, slot):
            return slab  # a copy and its state are two events
        states = self.states.setdefault(slab, {})
        if slot in states:
            raise TraceError(f"slot {slot} of slab {slab} has state {states[slot]} and {state}")
        if state in self._place_of:
            raise TraceError(f"state {state} gets a second slot")
        if states:
            self.by_used[len(states)] -= 1
        states[slot] = state
        self.by_used[len(states)] += 1
        self._place_of[state] = slab, slot
        self.num_used += 1
        return slab

    def remove(self, state: int) -> int | None:
        """Free the slot of a state. Returns the slab if that was its last one."""
        slab, slot = self._place_of.pop(state)
        states = self.states[slab]
        self.by_used[len(states)] -= 1
        del states[slot]
        self.num_used -= 1
        if states:
            self.by_used[len(states)] += 1
            return None
        del self.states[slab]
        return slab
