"""A view says what the run did: its phases, pages, depths and culprits are those of the record."""

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, talking_cases, toy_cases
from toy_engine import play, request, toy_memory

from analysis.errors import AnalysisError
from analysis.views.lanes import lanes
from analysis.views.perfetto import trace_events
from analysis.views.pools import OWNERS, Progress, fullest, samples
from analysis.views.queue import relapses
from analysis.views.refusals import refusals
from analysis.views.reuse import Lack, reuses
from analysis.views.run import TracedRun
from analysis.views.states import marks
from analysis.views.timeline import page_data, read_data, render
from analysis.views.why import explain, overview
from hsexp.measure.records import RunRecord
from hsexp.trace import Trace, TraceRecorder
from hsexp.trace.clock import NS_PER_S, Clock
from hsexp.trace.episodes import episodes
from hsexp.trace.supply import Supply

CASES = toy_cases() | talking_cases()

EXAMPLES = settings(max_examples=60, deadline=None)

ROW = {
    "campaign": "toy",
    "organization": "s0",
    "cap": 8,
    "seed": 1,
    "data_kind": "simulated",
    "engine": "sim",
    "device": "toy",
    "time_model": "toy",
}


def traced(case: ToyCase) -> tuple[Trace, RunRecord]:
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.trace is not None
    return record.trace, record


def run_of(trace: Trace, *, cap: int = 8) -> TracedRun:
    return TracedRun(attempt_id="toy-1", row=ROW | {"cap": cap}, trace=trace)


def played(*requests: Mapping[str, Any], organization: str, num_pages: int, **memory: Any) -> Trace:
    record = play(requests, toy_memory(organization, num_pages, **memory), trace=TraceRecorder())
    assert record.trace is not None
    return record.trace


# -- lanes -----------------------------------------------------------------------------------------


@given(CASES)
@EXAMPLES
def test_phases_of_a_request_are_those_of_its_record(case: ToyCase) -> None:
    trace, record = traced(case)
    clock = Clock(trace)
    rows = {str(row["request_id"]): row for row in record.requests.to_dict("records")}
    first_ns = min(
        (event.time_ns for event in trace.rows("enter", "step") if event.time_ns is not None),
        default=0,
    )
    for lane in lanes(trace, clock):
        row, kinds = rows[lane.id], [phase.kind for phase in lane.phases]
        starts = {phase.kind: phase.start_ns for phase in reversed(lane.phases)}
        for kind, column in (("prefill", "first_scheduled_s"), ("decode", "first_token_s")):
            if kind in kinds:
                assert starts[kind] + first_ns == round(row[column] * NS_PER_S)
        assert lane.is_finished
        assert lane.end_ns + first_ns == round(row["finish_s"] * NS_PER_S)
        assert kinds.count("preempted") == row["num_preemptions"]
        assert lane.prompt_tokens == row["prompt_tokens"]
        for phase, following in pairwise(lane.phases):
            assert phase.end_ns == following.start_ns


# -- pools -----------------------------------------------------------------------------------------


@given(CASES)
@EXAMPLES
def test_owners_add_up_to_the_usable_pages_at_every_moment(case: ToyCase) -> None:
    trace, _ = traced(case)
    found = samples(trace, Clock(trace))
    times = [sample.time_ns for sample in found]
    assert times == sorted(set(times))
    for shown in (found, fullest(found, 5)):
        for sample in shown:
            for pool, pages in zip(trace.memory.pools, sample.pages, strict=True):
                assert sum(pages) == pool.num_pages - 1
                assert min(pages) >= 0
    assert len(fullest(found, 5)) <= 5
    assert sum(found[-1].pages[0][: OWNERS.index("cached")]) == 0  # everything was given back


@given(CASES)
@EXAMPLES
def test_progress_reaches_the_tokens_that_each_request_left_with(case: ToyCase) -> None:
    trace, _ = traced(case)
    progress = Progress(trace)
    for event in trace.rows("adopt", "take", "chunk", "release"):
        if event.kind == "release":
            step = event.step + (event.cause == "finished")
            assert progress.tokens(event.request, step) == event.tokens
        progress.apply(event)


def test_pages_are_stranded_while_another_pool_has_none() -> None:
    # Ten attention pages of 2 tokens are full when 20 tokens are computed. Of five recurrent pages
    # the request then holds one, and the other four have nobody who could use them.
    trace = played(request(13, 8), organization="d0", num_pages=10, num_states=5)
    stranded = [sample.stranded(1) for sample in samples(trace, Clock(trace))]
    assert stranded == [0, 0, 0, 0, 0, 4, 4, 0]


# -- checkpoints -----------------------------------------------------------------------------------


@given(toy_cases())  # the counters leave out leaves
@EXAMPLES
def test_every_publication_loss_retention_and_pin_has_a_mark(case: ToyCase) -> None:
    trace, record = traced(case)
    counts = Counter(mark.kind for mark in marks(trace, Clock(trace)))
    assert counts["published"] == record.counters["published_checkpoints"]
    assert counts["lost"] == record.counters["lost_checkpoints"]
    assert counts["pinned"] == record.counters["pinned_checkpoints"]
    assert counts["retained"] == record.counters["retained_checkpoints"]


def test_a_state_keeps_its_identity_until_its_page_is_taken_again() -> None:
    # Page 3 is in its first life when request 1 takes it, and in its second one when it is lost to
    # request 2.
    found = marks(evicted(), Clock(evicted()))
    of_page = [(mark.kind, mark.state.name, mark.state.producer) for mark in found]
    assert of_page[:3] == [
        ("published", "3.1", 0),
        ("lost", "3.1", 0),
        ("published", "3.2", 1),
    ]
    # It is published when the first step ends: 10 ms, and 0.1 ms for each of 8 tokens.
    assert found[0].time_ns == 10_800_000
    assert found[1].time_ns == 1_000_000_000


# -- reuse -----------------------------------------------------------------------------------------


@given(CASES)
@EXAMPLES
def test_depths_of_a_view_are_those_of_the_episodes(case: ToyCase) -> None:
    trace, _ = traced(case)
    found, replayed = reuses(trace), episodes(trace)
    assert [(each.request, each.episode) for each in found] == [
        (each.request, each.episode) for each in replayed
    ]
    for reuse, episode in zip(found, replayed, strict=True):
        assert reuse.entry_tokens == episode.entry.joint
        assert reuse.adopted == episode.computed
        assert reuse.ever_tokens >= reuse.adopted.joint


@given(CASES)
@EXAMPLES
def test_what_a_request_lacked_was_computed_and_is_gone(case: ToyCase) -> None:
    trace, _ = traced(case)
    at_admission: dict[tuple[int, int], list[Lack]] = {}
    found = {(each.request, each.episode): each for each in reuses(trace)}
    supply = Supply(trace.memory)
    for event in trace.rows("publish", "lose", "adopt"):
        if event.kind != "adopt":
            supply.apply(event)
            continue
        reuse = found[event.request, event.episode]
        at_admission[event.request, event.episode] = reuse.lacks
        assert bool(reuse.lacks) == (reuse.lost_tokens > 0)
        keys = {"attention": reuse.enter.keys, "state": reuse.enter.boundary_keys}
        for lack in reuse.lacks:
            size = trace.memory.block_size
            entry = lack.cached.entry
            size = trace.memory.checkpoint_grid if entry == "state" else size
            assert not supply.has(entry, keys[entry][lack.cached.tokens // size - 1], "M0")
            assert lack.cached.lost is not None and lack.cached.lost.seq < event.seq
            assert lack.boundary == reuse.ever_tokens
    assert len(at_admission) == len(found)


@given(CASES)
@EXAMPLES
def test_nothing_is_lacking_where_nothing_is_ever_lost(case: ToyCase) -> None:
    trace, record = traced(case)
    if not (record.counters["lost_checkpoints"] or record.counters["lost_blocks"]):
        assert all(not each.lacks for each in reuses(trace))


@given(CASES)
@EXAMPLES
def test_refusals_are_those_that_the_memory_counted(case: ToyCase) -> None:
    trace, record = traced(case)
    found = refusals(trace, Clock(trace))
    total = sum(each.count for own in found.values() for each in own)
    assert total == record.counters["refusals"]
    for own in found.values():
        for each, following in pairwise(own):
            assert each.start_ns <= each.end_ns <= following.start_ns


@given(CASES)
@EXAMPLES
def test_every_preemption_has_somebody_who_found_no_room(case: ToyCase) -> None:
    trace, record = traced(case)
    found = relapses(trace)
    assert len(found) == record.counters["preemptions"]
    shorts = [event.seq for event in trace.rows("short")]
    for each in found:
        short, release = each.preemption.short, each.preemption.release
        assert short is not None and short.step == release.step
        assert short.seq == max(seq for seq in shorts if seq < release.seq)
        assert each.recomputed_tokens <= release.tokens


# -- why -------------------------------------------------------------------------------------------


def evicted() -> Trace:
    """Request 0 leaves a checkpoint at 8 tokens, request 1 takes its pages, request 2 lacks it.

    Seven pages of 4 tokens. Request 0 leaves two blocks and a state cached (3 pages), request 1
    needs five blocks and two states.
    """
    return played(
        request(9, 2, shared=8, content=1),
        request(17, 2, at=1.0),
        request(9, 2, at=3.0, shared=8, content=1),
        organization="s0",
        num_pages=7,
    )


def in_words(text: str) -> str:
    return " ".join(text.split())


def test_why_names_who_evicted_what_a_request_lacked() -> None:
    text = in_words(explain(run_of(evicted()), "2"))
    assert "(Jenter), 0 at best while it waited, and 0 when it was admitted (Jadopt)" in text
    assert "If nothing had been evicted, it would have adopted 8" in text
    assert (
        "The state at 8 tokens (state 3.1), which request 0 had computed at 0.00 s, was lost at "
        "1.00 s, 2.00 s before it joined the queue: its page was reassigned to make room for the "
        "next step of request 1."
    ) in text
    assert "The attention block that ends at 4 tokens (page 1.1)" in text


def test_why_blames_nobody_where_nobody_computed_the_prefix() -> None:
    text = in_words(explain(run_of(evicted()), "1"))
    assert "Evictions cost it nothing: nobody had computed a checkpoint of its prefix." in text
    assert "Who evicted" not in text
    assert "simulated" in text and "measured" not in text


def test_why_says_what_a_refusal_needed_and_what_was_free() -> None:
    # Twelve pages: request 0 grows from 7 to 10 of them; request 1 needs 5 blocks and 2 states.
    trace = played(request(17, 20), request(17, 2, at=0.05), organization="s0", num_pages=12)
    text = in_words(explain(run_of(trace), "1"))
    assert (
        "Refused 16 times for 0.18 s: pool shared was short: it needed 7 pages and 2 to 5 were "
        "free."
    ) in text
    assert "in which nobody else waited; 1 request ran of at most 8." in text


def test_why_tells_headroom_from_memory() -> None:
    trace = played(
        request(17, 20), request(17, 2, at=0.05), organization="s0", num_pages=19, headroom=0.3
    )
    text = in_words(explain(run_of(trace), "1"))
    assert "but admission keeps 6 free while others run" in text  # floor(0.3 x 20 pages)


def test_why_names_who_preempted_and_what_was_computed_again() -> None:
    # Both decode until the pool is exhausted; the younger one gives way to the older one.
    trace = played(request(9, 40), request(9, 40, at=0.02), organization="s0", num_pages=15)
    text = in_words(explain(run_of(trace), "1"))
    assert (
        "It gave up 22 computed tokens, because request 0 found no room: it needed 2 pages of pool "
        "shared and 1 were free. No checkpoint was pinned for it. It computed 22 of these tokens "
        "again."
    ) in text


def test_why_tells_a_request_that_gave_way_to_itself() -> None:
    trace = played(request(9, 40), request(9, 40, at=0.02), organization="s0", num_pages=14)
    text = in_words(explain(run_of(trace), "1"))
    assert "because it found no room for its own next step: it needed 2 pages" in text


def test_why_shows_how_a_depth_changed_and_that_the_cap_was_reached() -> None:
    # One request runs at a time: the second one waits, while the first one computes its prefix.
    requests = [request(17, 20, shared=16, content=1), request(17, 2, shared=16, content=1)]
    record = play(requests, toy_memory("s0", 40), cap=1, trace=TraceRecorder())
    assert record.trace is not None
    text = in_words(explain(run_of(record.trace, cap=1), "1"))
    assert "0 -> 16 tokens: request 0 published state 5.1." in text
    assert "The cache had 0 when it joined the queue (Jenter), 16 at best while it waited" in text
    assert "In 21 steps as many requests ran as the cap allows, so that nobody was asked." in text
    assert "It got all that there was." in text


def test_an_unknown_request_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        AnalysisError, match=r"request=7: run toy-1 traced no such request; it has 3"
    ):
        explain(run_of(evicted()), "7")


def test_an_overview_lists_who_lost_and_who_waited() -> None:
    text = in_words(overview(run_of(evicted()), "LEDGER"))
    assert "Lost most by eviction (1 of 3 requests computed 8 tokens again)" in text
    assert "2 8 0 8 the attention at 4 was lost at 1.01 s" in text
    assert "python -m analysis why ledger=LEDGER run=toy-1 request=ID" in text


@given(CASES)
@EXAMPLES
def test_why_has_an_answer_for_every_request(case: ToyCase) -> None:
    trace, _ = traced(case)
    run = run_of(trace)
    for lane in lanes(trace, Clock(trace)):
        assert explain(run, lane.id).startswith(f"Request {lane.id} of run toy-1")
    assert overview(run, "LEDGER").startswith("Run toy-1")


# -- the page --------------------------------------------------------------------------------------


class Sources(HTMLParser):
    """What a page asks for from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        self.found += [tag] if tag in ("link", "img", "iframe", "object", "embed") else []


def test_a_page_needs_nothing_but_itself() -> None:
    page = render(run_of(evicted()))
    sources = Sources()
    sources.feed(page)
    assert sources.found == []
    assert "default-src 'none'" in page
    code = page[page.index("<style>") :]
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttpRequest|import\(", code)
    assert "{{" not in page


def test_a_page_says_what_ran() -> None:
    page = render(run_of(evicted()))
    assert "<title>Timeline of run toy-1</title>" in page
    assert "organization s0, cap 8, seed 1" in page
    assert "simulated (engine sim, device toy, time model toy)" in page
    assert "measured" not in page


@given(CASES)
@EXAMPLES
def test_data_of_a_page_adds_up(case: ToyCase) -> None:
    trace, _ = traced(case)
    data = page_data(run_of(trace))
    num_moments = len(data["samples"]["time"])
    for pool, owners in zip(data["pools"], data["samples"]["pages"], strict=True):
        assert [sum(each) for each in zip(*owners, strict=True)] == [pool["usable"]] * num_moments
    assert min(data["samples"]["time"][1:], default=1) > 0
    columns = data["phases"]
    assert len({len(column) for column in columns.values()}) == 1
    assert sum(data["lanes"]["phases"]) == len(columns["kind"])
    assert max(columns["note"], default=0) < len(data["notes"])
    assert min(columns["length"], default=0) >= 0 and min(columns["gap"], default=0) >= 0
    assert len({len(column) for column in data["marks"].values()}) == 1
    assert min(data["marks"]["time"], default=0) >= 0
    load = data["load"]
    assert min(load["running"] + load["waiting"]) >= 0
    assert load["running"][-1] == load["waiting"][-1] == 0
    assert max(load["running"]) <= case.engine["cap"]


def test_a_page_holds_its_data_as_it_was_made() -> None:
    run = run_of(evicted())
    assert read_data(render(run)) == json.loads(json.dumps(page_data(run)))


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script, needs node")
def test_the_script_of_a_page_finds_the_requests_and_their_phases(tmp_path: Path) -> None:
    trace = evicted()
    page = render(run_of(trace))
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    (tmp_path / "page.js").write_text(script)
    (tmp_path / "data.json").write_text(json.dumps(read_data(page)))
    (tmp_path / "ask.js").write_text(
        "const { unpack, Run } = require('./page.js');\n"
        "const run = new Run(unpack(require('./data.json')));\n"
        "const view = { from: 0, to: run.end, end: run.end };\n"
        "console.log(JSON.stringify({ lanes: run.lanes, life: run.life(2, null, view),\n"
        "  mark: run.describe(1, view) }));\n"
    )
    done = subprocess.run(
        ["node", "ask.js"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    expected = lanes(trace, Clock(trace))
    assert [(lane["id"], lane["start"], lane["end"]) for lane in seen["lanes"]] == [
        (lane.id, lane.start_ns // 1000, lane.end_ns // 1000) for lane in expected
    ]
    assert seen["life"][0] == "Request 2, 9 prompt tokens"
    assert "adopted 0 of 9 tokens, 8 fewer because of evictions" in seen["life"][1]
    assert (
        "state 3.1 at 8 tokens, of request 0, lost: its page went to the next step of request 1"
        in seen["mark"]
    )


# -- Perfetto --------------------------------------------------------------------------------------


def check_format(data: Mapping[str, Any]) -> None:
    """The JSON of Chrome's trace events: keys, order, slices that do not overlap, whole flows."""
    needed = {
        "X": {"name", "cat", "dur"},
        "M": {"name", "args"},
        "C": {"name", "args"},
        "i": {"name", "s"},
        "s": {"name", "cat", "id"},
        "f": {"name", "cat", "id", "bp"},
    }
    ends: dict[tuple[int, int], float] = defaultdict(float)
    flows: Counter[tuple[str, int]] = Counter()
    last = 0.0
    for event in data["traceEvents"]:
        assert needed[event["ph"]] | {"ph", "ts", "pid", "tid"} <= event.keys()
        assert event["ts"] >= last
        last = event["ts"]
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            assert event["dur"] >= 0
            assert event["ts"] >= ends[track] - 0.002  # rounded to nanoseconds
            ends[track] = event["ts"] + event["dur"]
        elif event["ph"] in "sf":
            flows[event["ph"], event["id"]] += 1
        elif event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    assert set(flows.values()) <= {1}
    assert {number for kind, number in flows if kind == "s"} == {
        number for kind, number in flows if kind == "f"
    }
    json.dumps(data, allow_nan=False)


@given(CASES)
@EXAMPLES
def test_a_perfetto_file_has_the_form_of_trace_events(case: ToyCase) -> None:
    trace, _ = traced(case)
    data = trace_events(run_of(trace))
    check_format(data)
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert sum(event["pid"] == 1 for event in slices) == sum(
        len(lane.phases) for lane in lanes(trace, Clock(trace))
    )


def test_a_flow_leads_from_a_loss_to_the_request_that_suffered() -> None:
    data = trace_events(run_of(evicted()))
    start, end = (event for event in data["traceEvents"] if event["ph"] in "sf")
    assert (start["ph"], start["tid"], start["args"]["lost_tokens"]) == ("s", 2, 8)  # request 1
    assert (end["ph"], end["tid"]) == ("f", 3)  # request 2
    assert data["otherData"]["origin"].startswith("simulated")
