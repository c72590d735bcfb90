"""What is kept of a trace: rows with an output, a window, whole sessions; and turns that wait."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trace_specs import spec_of

from hsexp.workload import Trace, TraceError, Workload, read_trace

TraceLoader = Callable[..., Workload]
TraceReader = Callable[..., Trace]

HEADER = "arrival_s,input_tokens,output_tokens,user\n"
ROWS = [(0, 10, 1, "a"), (1, 20, 0, "b"), (2, 30, 3, "a"), (4, 40, 4, "c"), (7, 50, 5, "b")]


def table(rows: list[tuple[float, int, int, str]]) -> str:
    return HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows)


TEXT = table(ROWS)


def prompts(trace: Trace) -> list[int]:
    return [row.prompt_tokens for row in trace.rows]


def test_rows_without_output_are_dropped_and_counted_where_that_is_asked_for(
    read: TraceReader,
) -> None:
    with pytest.raises(
        TraceError, match=r"line 3: output_tokens must be .*; workload\.zero_output"
    ):
        read("a.csv", TEXT)
    trace = read("a.csv", TEXT, zero_output="drop")
    assert prompts(trace) == [10, 30, 40, 50]
    assert dict(trace.dropped) == {"without output": 1}


@pytest.mark.parametrize("suffix", ["csv", "burst"])
def test_a_window_counts_from_the_first_row_and_its_end_is_open(
    read: TraceReader, suffix: str
) -> None:
    text = TEXT
    if suffix == "burst":  # in order of time, so that the rest is not read
        columns = "Timestamp,Request tokens,Response tokens,Session ID\n"
        text = TEXT.replace(HEADER, columns) + "nonsense\n"
    trace = read("a.csv", text, zero_output="drop", start_s=2.0, duration_s=5.0)
    assert prompts(trace) == [30, 40]
    assert trace.times_s == [0.0, 2.0]
    assert trace.dropped["outside of start_s and duration_s"] == 1


def test_a_limit_counts_what_is_kept(read: TraceReader) -> None:
    assert prompts(read("a.csv", TEXT, zero_output="drop", start_s=2.0, max_requests=2)) == [30, 40]


def test_a_faster_trace_has_the_same_requests_in_less_time(load: TraceLoader) -> None:
    usual = load("a.csv", TEXT, zero_output="drop").requests
    fast = load("a.csv", TEXT, zero_output="drop", speed=2.0).requests
    assert [r.arrival_s for r in fast] == [r.arrival_s / 2 for r in usual] == [0.0, 1.0, 2.0, 3.5]
    assert [r.prompt_tokens for r in fast] == [r.prompt_tokens for r in usual]


def test_a_speed_is_refused_where_times_are_drawn() -> None:
    with pytest.raises(ValidationError, match="speed 2 changes nothing: keep_arrivals=false"):
        spec_of(Path("a.csv"), speed=2.0, keep_arrivals=False)


@settings(max_examples=30, deadline=None)
@given(
    users=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40),
    fractions=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
)
def test_sessions_are_kept_whole_and_a_larger_fraction_keeps_them_too(
    tmp_path_factory: pytest.TempPathFactory, users: list[str], fractions: tuple[float, float]
) -> None:
    path = tmp_path_factory.mktemp("sampled") / "a.csv"
    path.write_text(table([(i, i + 1, 1, user) for i, user in enumerate(users)]))
    kept = []
    for fraction in sorted(fractions):
        try:
            trace = read_trace(spec_of(path, columns={"session": "user"}, sessions=fraction))
        except TraceError as none_left:
            assert "of sessions left out" in str(none_left)
            kept.append(set())
            continue
        chosen = {row.prompt_tokens - 1 for row in trace.rows}
        names = {users[i] for i in chosen}
        assert chosen == {i for i, user in enumerate(users) if user in names}
        assert sum(trace.dropped.values()) == len(users) - len(chosen)
        kept.append(chosen)
    assert kept[0] <= kept[1]


def test_requests_without_a_session_are_sampled_one_by_one(read: TraceReader) -> None:
    rows = table([(i, 1, 1, "") for i in range(1_000)])
    num_kept = len(read("a.csv", rows, sessions=0.1).rows)
    assert 60 <= num_kept <= 140  # 100 +- 4 standard deviations


def test_rows_that_go_back_are_sorted_on_request(read: TraceReader) -> None:
    text = "Timestamp,Request tokens,Response tokens\n5,1,1\n4,2,1\n"
    assert prompts(read("b.csv", text, sort=True)) == [2, 1]


# -- closed ----------------------------------------------------------------------------------------

TALK = table([(0, 100, 10, "a"), (1, 50, 5, "b"), (2, 130, 20, "a"), (9, 90, 7, "b")])


def test_a_later_turn_waits_for_the_answer_and_thinks_as_long_as_the_file_says(
    load: TraceLoader,
) -> None:
    requests = load("a.csv", TALK, columns={"session": "user"}, turns="closed").requests
    assert [(r.after, r.think_s) for r in requests] == [
        (None, 0.0),
        (None, 0.0),
        (0, 2.0),
        (1, 8.0),
    ]
    assert [r.arrival_s for r in requests] == [0.0, 1.0, 2.0, 9.0]


def test_a_think_time_holds_for_every_turn(load: TraceLoader) -> None:
    columns = {"session": "user"}
    requests = load("a.csv", TALK, columns=columns, turns="closed", think_s=0.5).requests
    # Those of session a go before those of b: 0, 0.5, 1, 1.5.
    assert [(r.arrival_s, r.after, r.think_s) for r in requests] == [
        (0.0, None, 0.0),
        (0.5, 0, 0.5),
        (1.0, None, 0.0),
        (1.5, 2, 0.5),
    ]


def test_pauses_of_the_file_are_think_times_and_a_speed_shortens_them(load: TraceLoader) -> None:
    text = (
        '{"turns": [{"text": "aaaa", "output_length": 1, "timestamp": 0},'
        ' {"text": "bbbb", "output_length": 2, "delay": 500}]}\n'
    )
    for speed, think_s in ((1.0, 0.5), (2.0, 0.25)):
        one, two = load("t.jsonl", text, turns="closed", speed=speed).requests
        assert (one.after, two.after, two.think_s) == (None, 0, think_s)


def test_drawn_sessions_begin_at_the_rate_of_their_requests(load: TraceLoader) -> None:
    requests = load(
        "a.csv", TALK, columns={"session": "user"}, turns="closed", think_s=0.0, keep_arrivals=False
    ).requests
    begins = [r.arrival_s for r in requests if r.after is None]
    assert begins[-1] == 2.0  # two sessions at one per second: two requests per second


def test_a_dialogue_that_waits_shares_its_answers(load: TraceLoader) -> None:
    text = (
        '{"conversations": [{"from": "human", "value": "aaaa"}, {"from": "gpt", "value": "bbbb"},'
        ' {"from": "human", "value": "cccc"}, {"from": "gpt", "value": "dddd"}]}\n'
    )
    one, two = load("s.jsonl", text, turns="closed", think_s=1.0).requests
    assert [(s.end_tokens, s.generated) for s in one.segments] == [(1, False), (2, True)]
    assert two.segments[:2] == one.segments
    open_one, open_two = load("s.jsonl", text).requests
    assert not any(s.generated for s in (*open_one.segments, *open_two.segments))


def test_turns_that_wait_make_another_workload(load: TraceLoader) -> None:
    columns = {"session": "user"}
    digests = [
        load("a.csv", TALK, columns=columns, **how).digest
        for how in ({}, {"turns": "closed"}, {"turns": "closed", "think_s": 8.0})
    ]
    assert len(set(digests)) == 3


def test_waiting_is_refused_where_nothing_waits(load: TraceLoader) -> None:
    with pytest.raises(TraceError, match=r"turns=closed needs sessions .*; workload\.columns\.ses"):
        load("a.csv", TALK, turns="closed")
    text = (
        '{"conversations": [{"from": "human", "value": "aaaa"}, {"from": "gpt", "value": "bbbb"},'
        ' {"from": "human", "value": "cccc"}, {"from": "gpt", "value": "dddd"}]}\n'
    )
    with pytest.raises(TraceError, match=r"workload\.think_s is required: the file has neither"):
        load("s.jsonl", text, turns="closed")
    with pytest.raises(ValidationError, match="think_s 3 changes nothing"):
        spec_of(Path("a.csv"), think_s=3.0)
