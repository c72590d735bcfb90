"""An audit of retention knows what the memory itself knows of its states."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import play, request, toy_memory

from hsexp.memory import Hit, SequenceMemory
from hsexp.memory.checkpoint import Checkpoint
from hsexp.trace import Trace, TraceError, TraceRecorder
from hsexp.trace.ownership import Ownership, ownership


class Owners(TraceRecorder):
    """A recorder that also notes objects of the memory: a state is one object all its life."""

    def __init__(self) -> None:
        super().__init__()
        self.adopted: list[tuple[int | str, int | str, bool, bool, bool]] = []
        """Request, producer, and whether the state was referenced, retained and pinned."""
        self.kept: list[tuple[int | str, str, bool]] = []
        """Request, cause, and whether nobody else held the state."""
        self._states: list[Checkpoint] = []
        self._producer: dict[int, int | str] = {}
        self._reasons: dict[int, set[str]] = {}
        self._references: dict[int | str, int] = {}

    def on_publish_state(self, sequence: SequenceMemory, state: Checkpoint, *, ahead: bool) -> None:
        super().on_publish_state(sequence, state, ahead=ahead)
        self._states.append(state)  # so that no other object gets its id
        self._producer[id(state)] = sequence.request_id

    def on_lookup(self, sequence: SequenceMemory, hit: Hit) -> None:
        super().on_lookup(sequence, hit)
        if hit.checkpoint is not None:
            self._references[sequence.request_id] = hit.checkpoint.refs

    def on_keep(
        self, request_id: int | str, state: Checkpoint, reason: Literal["retained", "pinned"]
    ) -> None:
        super().on_keep(request_id, state, reason)
        self._reasons.setdefault(id(state), set()).add(reason)
        self.kept.append((request_id, reason, reason == "retained" and state.refs == 1))

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        super().on_adopt(sequence, hit)
        if hit.checkpoint is None:
            return
        state, reasons = id(hit.checkpoint), self._reasons.get(id(hit.checkpoint), set())
        self.adopted.append(
            (
                sequence.request_id,
                self._producer[state],
                self._references[sequence.request_id] > 0,
                "retained" in reasons,
                "pinned" in reasons,
            )
        )


def audited(case: ToyCase) -> tuple[Ownership, Owners, dict[int, int]]:
    """The audit, what the memory said, and the request ids by number."""
    recorder = Owners()
    record = case.run(case.new_memory(), trace=recorder)
    assert record.trace is not None
    ids = {event.request: int(event.id) for event in record.trace.rows("enter")}
    return ownership(record.trace), recorder, ids


@given(toy_cases())
@settings(max_examples=200, deadline=None)
def test_the_audit_agrees_with_the_memory(case: ToyCase) -> None:
    found, recorder, ids = audited(case)
    adopted = [
        (ids[a.request], ids[a.producer], a.was_referenced, a.was_retained, a.was_pinned)
        for a in found.adoptions
    ]
    assert adopted == recorder.adopted
    kept = [(ids[each.request], each.cause, each.is_free_skip) for each in found.kept]
    assert kept == recorder.kept


@given(toy_cases())
@settings(max_examples=50, deadline=None)
def test_an_adopted_state_is_older_than_its_adoption(case: ToyCase) -> None:
    found, _, _ = audited(case)
    for adoption in found.adoptions:
        assert adoption.published_step < adoption.adopted_step
        assert adoption.age_s is not None and adoption.age_s > 0.0


def two_of_one_prefix() -> Trace:
    """S2 with a grid of 4: the second request adopts the first one's state at 8 tokens."""
    record = play(
        [request(10, 8, shared=8), request(10, 8, at=0.04, shared=8)],
        toy_memory("s2", 40, retention=1),
        trace=TraceRecorder(),
    )
    assert record.trace is not None
    return record.trace


def test_a_state_that_its_holder_keeps_is_a_skipped_free_until_others_hold_it() -> None:
    found = ownership(two_of_one_prefix())
    (adoption,) = found.adoptions
    assert (adoption.request, adoption.producer, adoption.tokens) == (1, 0, 8)
    assert (adoption.is_own, adoption.was_referenced, adoption.was_retained) == (False, True, True)
    kept = [(each.request, each.num_references, each.is_free_skip) for each in found.kept]
    assert (0, 1, True) in kept
    assert (1, 2, False) in kept
    assert not replace(found.kept[0], cause="pinned").is_free_skip


def test_a_state_that_nobody_published_cannot_be_adopted() -> None:
    table = two_of_one_prefix().table
    kinds = ["note" if kind == "publish" else kind for kind in table["kind"].to_pylist()]
    forged = table.set_column(table.column_names.index("kind"), "kind", [kinds])
    with pytest.raises(TraceError, match="which has no key"):
        ownership(Trace(forged))
