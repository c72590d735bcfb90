"""The fold over events, for any order of decisions."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsexp.ledger.history import SCHEMA, History
from hsexp.ledger.journal import Event, LedgerError

HEADER: Event = {"kind": "header", "schema": SCHEMA, "contract": {}}


def attempt(number: int, status: str) -> Event:
    row: dict[str, Any] = {
        "cell_id": "c",
        "attempt_id": f"c-{number}",
        "status": status,
        "reason": None,
    }
    row |= {"campaign": "toy", "block": "all", "pair_id": "p"}
    row |= {"axes": {}, "metrics": {}, "provenance": {}}
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


# -- events that are not what they should be -------------------------------------------------------


def changed(event: Event, *path: str, to: object = None) -> Event:
    """The event with one field replaced, or removed."""
    copy: Event = deepcopy(event)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return copy


RUN = attempt(1, "ok")
JOIN: Event = {
    "kind": "join",
    "table": "requests",
    "file": "requests-1.parquet",
    "footer": "f",
    "attempts": {"c-1": "d"},
}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([changed(HEADER, "kind")], r"the field 'kind' is missing \(line 1\)"),
        ([changed(HEADER, "schema")], r"the field 'schema' is missing \(line 1\)"),
        ([changed(HEADER, "contract")], r"the field 'contract' is missing \(line 1\)"),
        ([changed(HEADER, "schema", to=1.0)], r"schema must be 1, got 1\.0 \(line 1\)"),
        ([changed(HEADER, "schema", to=True)], r"schema must be 1, got True \(line 1\)"),
        ([HEADER, RUN, HEADER], r"a second header; the file contains two journals \(line 3\)"),
        ([HEADER, changed(RUN, "row")], r"the field 'row' is missing \(line 2\)"),
        ([HEADER, changed(RUN, "row", "axes")], r"the field 'axes' is missing \(line 2\)"),
        ([HEADER, changed(RUN, "row", "metrics", to=[])], r"metrics of a row cannot be \[\]"),
        ([HEADER, changed(RUN, "row", "attempt_id", to="../c-1")], r"cannot be '\.\./c-1'"),
        ([HEADER, changed(RUN, "row", "cell_id", to="a/b")], r"cannot be 'a/b' \(line 2\)"),
        ([HEADER, RUN, RUN], r"attempt c-1 is recorded twice \(line 3\)"),
        ([HEADER, changed(JOIN, "file", to="../requests-1.parquet")], "cannot be '../requests"),
        ([HEADER, changed(JOIN, "file", to="steps-1.parquet")], "cannot be 'steps-1.parquet'"),
        ([HEADER, changed(JOIN, "attempts", to=["c-1"])], r"not an event: .* \(line 2\)"),
        ([HEADER, {"kind": "adopt", "cell_id": "c"}], r"'attempt_id' is missing \(line 2\)"),
        ([HEADER, {"kind": "amend", "after": {}}], r"'num_attempts' is missing \(line 2\)"),
    ],
)
def test_an_event_that_is_none_is_refused_with_its_line(events: list[Event], message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        History().apply(events)


def test_a_decision_about_a_run_that_is_not_recorded_leaves_its_cell_open() -> None:
    decision = {"cell_id": "c", "attempt_id": "c-1", "reason": "why"}
    history = History()
    history.apply([HEADER, {"kind": "adopt", **decision}, {"kind": "exclude", **decision}])
    assert history.adopted == {}
    history.apply([attempt(2, "ok")])
    assert history.adopted == {"c": "c-2"}


def test_no_id_is_given_twice_whatever_lines_are_gone() -> None:
    history = History()
    history.apply([HEADER, {"kind": "adopt", "cell_id": "c", "attempt_id": "c-1", "reason": "why"}])
    assert history.next_attempt_id("c") == "c-2"
    history.apply([JOIN | {"attempts": {"c-2": "d"}}, attempt(5, "failed")])
    assert history.next_attempt_id("c") == "c-3"
