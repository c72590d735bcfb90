"""Azure and length tables: what a small file gives, and everything that refuses one."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from hsexp.workload import TraceError, Workload, build
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.traces.config import TraceWorkload

TraceLoader = Callable[..., Workload]

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9799600,4808,10\r\n"
    "2023-11-17 00:00:00.0319600,3180,8\r\n"
    "2023-11-17 00:00:02.9799600,110,27"
)
LENGTHS = "arrival_s,input_tokens,output_tokens\n0.5,100,10\n0.75,200,20\n"


def shape(workload: Workload) -> list[tuple[float, int, int]]:
    return [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in workload.requests]


# -- azure ---------------------------------------------------------------------------------------


def test_an_azure_trace_counts_time_from_its_first_row(load: TraceLoader) -> None:
    # Carriage returns, seven digits, midnight in between, no newline at the end.
    assert shape(load("a.csv", AZURE)) == [(0.0, 4808, 10), (0.052, 3180, 8), (3.0, 110, 27)]


def test_azure_requests_share_nothing(load: TraceLoader) -> None:
    assert all(r.segments == () and r.cache_salt is None for r in load("a.csv", AZURE).requests)


def test_time_zones_and_a_byte_order_mark_are_understood(load: TraceLoader) -> None:
    text = (
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 02:00:01.009930+02:00,2399,6\n"
    )
    assert shape(load("a.csv", text)) == [(0.0, 2162, 5), (1.0, 2399, 6)]


def test_columns_are_found_by_name_and_others_ignored(load: TraceLoader) -> None:
    text = "output_tokens,user,input_tokens\n10,ann,100\n"
    assert shape(load("a.csv", text))[0][1:] == (100, 10)


def test_an_azure_trace_that_goes_back_in_time_is_refused(load: TraceLoader) -> None:
    rows = AZURE.split("\r\n")
    with pytest.raises(TraceError, match=r"a\.csv, line 3: TIMESTAMP is earlier than the row"):
        load("a.csv", "\r\n".join([rows[0], rows[2], rows[1]]))


# -- lengths -------------------------------------------------------------------------------------


def test_a_table_of_lengths_keeps_its_times(load: TraceLoader) -> None:
    assert shape(load("a.csv", LENGTHS)) == [(0.5, 100, 10), (0.75, 200, 20)]


def test_an_unordered_table_is_sorted_and_equal_times_keep_their_order(load: TraceLoader) -> None:
    text = "arrival_s,input_tokens,output_tokens\n2,1,1\n1,2,1\n2,3,1\n1,4,1\n"
    workload = load("a.csv", text)
    assert [r.prompt_tokens for r in workload.requests] == [2, 4, 1, 3]
    assert [r.request_id for r in workload.requests] == [0, 1, 2, 3]


def test_a_table_without_times_draws_them(load: TraceLoader) -> None:
    text = "input_tokens,output_tokens\n100,10\n200,20\n"
    first, second = load("a.csv", text, seed=0), load("a.csv", text, seed=1)
    assert first.requests[-1].arrival_s == 1.0  # two requests at 2 per second
    assert [r.prompt_tokens for r in first.requests] == [100, 200]
    assert first.digest == load("a.csv", text, seed=0).digest != second.digest


def test_times_of_the_trace_are_set_aside_on_request(load: TraceLoader) -> None:
    drawn = load("a.csv", LENGTHS, keep_arrivals=False)
    assert drawn.requests[-1].arrival_s == 1.0
    assert drawn.digest != load("a.csv", LENGTHS).digest


# -- every format --------------------------------------------------------------------------------


def test_an_unchanged_file_has_the_same_digest_at_each_load_and_seed(load: TraceLoader) -> None:
    # An unseeded shuffle in a loader gave other requests at each start.
    assert load("a.csv", AZURE, seed=0).digest == load("a.csv", AZURE, seed=1).digest


def test_a_changed_length_changes_the_digest(load: TraceLoader) -> None:
    assert load("a.csv", AZURE).digest != load("a.csv", AZURE.replace("4808", "4809")).digest


def test_a_limit_reads_the_first_rows_only(load: TraceLoader) -> None:
    broken_later = LENGTHS + "one,two,three\n"
    assert len(load("a.csv", broken_later, max_requests=2).requests) == 2


def test_empty_lines_hold_no_request(load: TraceLoader) -> None:
    assert shape(load("a.csv", LENGTHS.replace("\n0.75", "\n\n0.75") + "\n")) == shape(
        load("b.csv", LENGTHS)
    )


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.csv", None, None, "No such file"),
        ("a.csv", "", 1, "the file is empty"),
        ("a.csv", "\r\n \n", 1, "the file is empty"),
        ("a.csv", b"input_tokens,output_tokens\n1,2\n\xff\xfe", 3, "not UTF-8 text"),
        ("a.csv", "x,y\n1,2\n", 1, "cannot tell the format"),
        ("a.csv", "arrival_s,input_tokens\n1,2\n", 1, "cannot tell the format"),
        ("a.csv", "input_tokens,output_tokens\n", None, "no requests in this lengths trace"),
        ("a.csv", LENGTHS + "1.0,300", 4, "expected 3 fields, got 2"),
        ("a.csv", LENGTHS + "1.0,300,", 4, "output_tokens must be a whole number, got ''"),
        ("a.csv", LENGTHS + "1.0,300,3,0", 4, "expected 3 fields, got 4"),
        ("a.csv", LENGTHS + "1.0,ten,3", 4, "input_tokens must be a whole number, got 'ten'"),
        ("a.csv", LENGTHS + "1.0,1.5,3", 4, "input_tokens must be a whole number, got '1.5'"),
        ("a.csv", LENGTHS + "1.0,0,3", 4, r"input_tokens must be in \[1, 2147483647\], got 0"),
        ("a.csv", LENGTHS + "1.0,5,0", 4, r"output_tokens must be in \[1, 2147483647\], got 0"),
        ("a.csv", LENGTHS + "1.0,-5,3", 4, r"input_tokens must be in .*, got -5"),
        ("a.csv", LENGTHS + "1.0,4294967296,3", 4, r"input_tokens must be in .*, got 4294967296"),
        ("a.csv", LENGTHS + "soon,5,3", 4, "arrival_s must be a number, got 'soon'"),
        ("a.csv", LENGTHS + "nan,5,3", 4, "arrival_s must be in .*, got nan"),
        ("a.csv", LENGTHS + "inf,5,3", 4, "arrival_s must be in .*, got inf"),
        ("a.csv", LENGTHS + "-1,5,3", 4, r"arrival_s must be in \[0, .*, got -1"),
        ("a.csv", AZURE + "\r\n2023-11-1", 5, "expected 3 fields, got 1"),
        ("a.csv", AZURE + "\r\nyesterday,1,1", 5, "TIMESTAMP must be a date and time"),
        ("a.csv", AZURE + "\r\n2023-11-17 00:00:03,,1", 5, "ContextTokens must be a whole number"),
        ("a.csv", AZURE + "\r\n2023-11-17 00:00:03,5,0", 5, "GeneratedTokens must be in"),
    ],
)
def test_a_bad_table_is_refused_with_file_line_and_reason(
    load: TraceLoader, name: str, text: str | bytes | None, line: int | None, reason: str
) -> None:
    with pytest.raises(TraceError, match=reason) as refusal:
        load(name, text)
    assert refusal.value.line == line
    assert refusal.value.path.name == name
    assert name in str(refusal.value)


def test_a_missing_column_is_named_where_the_format_is_given(load: TraceLoader) -> None:
    with pytest.raises(TraceError, match=r"line 1: columns \['GeneratedTokens'\] are missing"):
        load("a.csv", "TIMESTAMP,ContextTokens\n", format="azure")


def test_a_directory_is_refused(load: TraceLoader) -> None:
    with pytest.raises(TraceError, match="directory"):
        load("", None)


def test_a_refusal_survives_the_way_back_from_a_worker_process() -> None:
    error = TraceError(Path("a.csv"), 3, "because")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "a.csv, line 3: because"
    assert (copy.path, copy.line, copy.reason) == (error.path, error.line, error.reason)


def test_build_loads_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(LENGTHS)
    spec = TraceWorkload(
        kind="trace",
        name="mine",
        path=str(path),
        format="lengths",
        max_requests=None,
        tokenizer=None,
        keep_arrivals=True,
    )
    workload = build(spec, PoissonArrivals(kind="poisson", rate_per_s=1.0), 0)
    assert (workload.name, len(workload.requests)) == ("mine", 2)
