"""The fold over events, for any order of decisions."""

from hypothesis import given
from hypothesis import strategies as st

from hsexp.ledger.history import SCHEMA, History
from hsexp.ledger.journal import Event

HEADER: Event = {"kind": "header", "schema": SCHEMA, "contract": {}}


def attempt(number: int, status: str) -> Event:
    row = {"cell_id": "c", "attempt_id": f"c-{number}", "status": status}
    return {"kind": "attempt", "row": row}


@st.composite
def decisions(draw: st.DrawFn) -> list[Event]:
    """Attempts of one cell, and adoptions and exclusions of those there are."""
    events: list[Event] = []
    ok: list[str] = []
    number = 0
    for kind in draw(st.lists(st.sampled_from(["ok", "failed", "adopt", "exclude"]), max_size=12)):
        if kind in {"ok", "failed"}:
            number += 1
            events.append(attempt(number, kind))
            ok += [f"c-{number}"] if kind == "ok" else []
        elif ok:
            chosen = draw(st.sampled_from(ok))
            events.append({"kind": kind, "cell_id": "c", "attempt_id": chosen, "reason": "why"})
    return events


@given(decisions())
def test_at_most_one_attempt_counts_and_it_is_ok_and_not_excluded(events: list[Event]) -> None:
    history = History()
    history.apply([HEADER, *events])
    assert list(history.adopted.values()) == list(history.adoption_reasons)
    assert history.implied.items() <= history.adopted.items()
    for attempt_id in history.adopted.values():
        assert history.rows[attempt_id]["status"] == "ok"
        assert attempt_id not in history.exclusion_reasons


@given(decisions())
def test_writing_the_implied_adoptions_down_changes_no_decision(events: list[Event]) -> None:
    implicit, explicit = History(), History()
    implicit.apply([HEADER, *events])
    explicit.apply([HEADER])
    for event in events:
        explicit.apply([event])
        for cell_id, attempt_id in list(explicit.implied.items()):
            adoption = {"kind": "adopt", "cell_id": cell_id, "attempt_id": attempt_id}
            explicit.apply([{**adoption, "reason": "first ok attempt"}])
    assert explicit.adopted == implicit.adopted
    assert explicit.exclusion_reasons == implicit.exclusion_reasons
    assert not explicit.implied


@given(decisions(), st.integers(0, 12))
def test_events_read_in_two_parts_add_up_to_the_same(events: list[Event], cut: int) -> None:
    at_once, in_parts = History(), History()
    at_once.apply([HEADER, *events])
    in_parts.apply([HEADER, *events[:cut]])
    in_parts.apply(events[cut:])
    assert vars(at_once) == vars(in_parts)
