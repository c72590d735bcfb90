"""Most decode steps need nothing from the memory: it says until when, and that is exact."""

import pytest
from toy_memory import ORGANIZATIONS, snapshot, toy_memory, toy_sequence


@pytest.mark.parametrize("grid", [8, 16])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_quiet_step_changes_nothing_and_the_next_one_does(organization: str, grid: int) -> None:
    memory = toy_memory(organization, 60, grid=grid)
    sequence = toy_sequence(memory, 1)
    memory.admit(sequence, memory.lookup(sequence, 64))
    num_quiet = 0
    for end in range(1, 41):
        memory.cache.step += 1
        promised, before = sequence.quiet_end, snapshot(memory)
        if end <= promised:
            num_quiet += 1
            assert memory.extend(sequence, end - 1, end)
            assert snapshot(memory) == before
            sequence.quiet_end = 0  # now the long way round
        assert memory.extend(sequence, end - 1, end)
        assert (snapshot(memory) == before) == (end <= promised)
        memory.check_integrity()
    # Of a block of 8, two tokens take or complete it, and after each boundary there is one more
    # step, to give up the superseded state: 5 blocks. D0's blocks of 2 are never quiet.
    num_boundaries = 40 // grid if 40 % grid else 40 // grid - 1
    assert num_quiet == (0 if organization == "d0" else 5 * 6 - num_boundaries)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_request_that_left_promises_nothing(organization: str) -> None:
    memory = toy_memory(organization, 60)
    sequence = toy_sequence(memory, 1)
    memory.admit(sequence, memory.lookup(sequence, 64))
    memory.cache.step += 1
    assert memory.extend(sequence, 0, 5)
    assert sequence.quiet_end == (5 if organization == "d0" else 7)
    memory.preempt(sequence, 5)
    assert sequence.quiet_end == 0
