"""A trace says what the memory did: replayed, it has the same depths, references and free pages."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from live_depths import live_depths
from toy_cases import ToyCase, talking_cases, toy_cases
from toy_engine import play, request, toy_memory

from hsexp.memory import Hit, HybridMemory, SequenceMemory
from hsexp.trace import Trace, TraceError, TraceRecorder
from hsexp.trace.episodes import episodes
from hsexp.trace.schema import COLUMNS, SCHEMA
from hsexp.trace.supply import Supply


class Watched(TraceRecorder):
    """A recorder that also asks the memory itself."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[int] = []
        self.admitted: list[tuple[int, int, int]] = []
        """Amax, Rmax and the joint depth at each admission."""
        self._entry: dict[int | str, int] = {}

    def start(self, memory: HybridMemory) -> None:
        super().start(memory)
        self.memory = memory

    def on_enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        super().on_enter(sequence, num_tokens)
        self._entry[sequence.request_id] = live_depths(self.memory, sequence, num_tokens)[2]

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        super().on_adopt(sequence, hit)
        self.entered.append(self._entry[sequence.request_id])
        num_tokens = sequence.num_admitted_tokens
        self.admitted.append(live_depths(self.memory, sequence, num_tokens))


def traced(case: ToyCase) -> tuple[Trace, Watched]:
    recorder = Watched()
    record = case.run(case.new_memory(), trace=recorder)
    assert record.trace is not None
    return record.trace, recorder


@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_the_replay_ends_where_the_scheduler_did_for_every_episode(case: ToyCase) -> None:
    trace, recorder = traced(case)
    found = episodes(trace)
    assert all(episode.is_replayed for episode in found)
    assert [each.entry.joint for each in found] == recorder.entered
    visible = [each.visible for each in found]
    assert [(d.attention, d.recurrent, d.joint) for d in visible] == recorder.admitted


@given(talking_cases())
@settings(max_examples=100, deadline=None)
def test_the_replay_ends_before_an_adopted_leaf_and_otherwise_where_the_scheduler_did(
    case: ToyCase,
) -> None:
    trace, _ = traced(case)
    for episode in episodes(trace):
        if episode.adopted_tokens % trace.memory.checkpoint_grid:
            assert episode.computed.joint < episode.adopted_tokens
        else:
            assert episode.is_replayed


def references(trace: Trace) -> list[tuple[list[int], Any]]:
    """Free pages of each pool before each refusal and shortage, counted from the moves of pages."""
    refs = [[0] * pool.num_pages for pool in trace.memory.pools]
    seen = []
    for event in trace.rows("take", "hold", "free", "refuse", "short"):
        if event.kind in ("refuse", "short"):
            if event.free is not None:
                free = [pool.count(0) - 1 for pool in refs]
                seen.append((event.free, free))
            continue
        for page in event.pages:
            assert event.kind != "take" or refs[event.pool][page] == 0
            refs[event.pool][page] += -1 if event.kind == "free" else 1
            assert refs[event.pool][page] >= 0
    assert not any(any(pool) for pool in refs)
    return seen


@given(toy_cases() | talking_cases())
@settings(max_examples=150, deadline=None)
def test_moves_of_pages_add_up_to_the_free_pages_of_every_refusal(case: ToyCase) -> None:
    trace, _ = traced(case)
    for recorded, counted in references(trace):
        assert recorded == counted


@given(toy_cases() | talking_cases())
@settings(max_examples=100, deadline=None)
def test_being_traced_changes_nothing(case: ToyCase) -> None:
    plain = case.run(case.new_memory())
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.requests.equals(plain.requests)
    assert record.steps.equals(plain.steps)
    assert record.counters == plain.counters


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_two_independent_counts_agree(case: ToyCase) -> None:
    """Chunks, steps, requests and the memory's counters are counted in different places."""
    recorder = TraceRecorder()
    record = case.run(case.new_memory(), trace=recorder)
    assert record.trace is not None
    chunks, steps = record.trace.events("chunk"), record.trace.events("step")
    requests = record.requests
    initial = chunks["episode"] == 0
    assert chunks[initial]["tokens"].sum() == requests["prefill_tokens"].sum()
    assert chunks[~initial]["tokens"].sum() == requests["replayed_tokens"].sum()
    assert (steps["count"] * steps["prefill_tokens"]).sum() == chunks["tokens"].sum()
    assert steps["count"].sum() == record.steps["num_steps"].sum()
    assert record.trace.events("refuse")["count"].sum() == record.counters["refusals"]
    lost = record.trace.events("lose")
    states = lost[lost["entry"] == "state"]
    assert len(states) == record.counters["lost_checkpoints"]
    blocks = lost[lost["entry"] == "attention"]["pages"].map(len).sum()
    assert blocks == record.counters["lost_blocks"]
    published = record.trace.events("publish")["entry"].tolist()
    assert published.count("state") == record.counters["published_checkpoints"]
    left = record.trace.events("release")["cause"].tolist()
    assert left.count("preempted") == record.counters["preemptions"]


# -- integrity -------------------------------------------------------------------------------------


def whole() -> pa.Table:
    record = play([request(9, 5)], toy_memory("s2", 40), trace=TraceRecorder())
    assert record.trace is not None
    return record.trace.table


def changed(table: pa.Table, **last: int) -> pa.Table:
    """The table with other values in its end record."""
    rows = table.to_pylist()
    rows[-1] |= last
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (whole().slice(0, 0), "no start"),
        (whole().slice(1), "no start"),
        (whole().slice(0, len(whole()) - 1), "no end record"),
        (pa.concat_tables([whole().slice(0, 5), whole().slice(6)]), "a gap at event 5"),
        (changed(whole(), dropped=3, write_errors=1), "has dropped 3 events in 1 failed writes"),
        (changed(whole(), write_errors=1), "1 failed writes"),
        (changed(whole(), count=7), "its end record says 7"),
    ],
)
def test_a_trace_that_is_not_whole_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Trace(table)


def test_an_event_has_the_columns_of_its_kind_and_no_others() -> None:
    trace = Trace(whole())
    for kind, columns in COLUMNS.items():
        for event in trace.rows(kind):
            assert event._fields == ("kind", "seq", "step", *columns)
    filled = {
        name: trace.table.filter(pa.compute.equal(trace.table["kind"], "chunk"))[name].null_count
        for name in trace.table.column_names
    }
    assert {name for name, nulls in filled.items() if not nulls} == {
        "kind", "seq", "step", "request", "episode", "start", "tokens",
    }  # fmt: skip


def test_what_a_step_publishes_ahead_is_visible_in_it_and_computed_after_it() -> None:
    trace = Trace(whole())
    first = next(event for event in trace.rows("publish") if event.entry == "state" and event.ahead)
    (enter,) = trace.rows("enter")
    supply = Supply(trace.memory)
    for event in trace.rows("publish"):
        if event.step <= first.step:
            supply.apply(event)
    reached = trace.memory.checkpoint_grid
    depths = {
        (mask, step): supply.depths(enter.keys, enter.boundary_keys, mask, step=step).joint
        for step in (first.step, first.step + 1)
        for mask in ("M0", "M1")
    }
    assert depths == {
        ("M0", first.step): 0,
        ("M1", first.step): first.tokens,
        ("M0", first.step + 1): first.tokens,
        ("M1", first.step + 1): first.tokens,
    }
    assert first.tokens % reached == 0
