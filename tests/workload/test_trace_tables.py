"""Azure and length tables: what a small file gives, and everything that refuses one."""

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsexp.workload import TraceError, Workload, build, load_trace, read_trace
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


def test_a_table_of_lengths_counts_time_from_its_first_row(load: TraceLoader) -> None:
    assert shape(load("a.csv", LENGTHS)) == [(0.0, 100, 10), (0.25, 200, 20)]


def test_an_unordered_table_is_sorted_and_equal_times_keep_their_order(load: TraceLoader) -> None:
    text = "arrival_s,input_tokens,output_tokens\n2,1,1\n1,2,1\n2,3,1\n1,4,1\n"
    workload = load("a.csv", text)
    assert [r.prompt_tokens for r in workload.requests] == [2, 4, 1, 3]
    assert [r.arrival_s for r in workload.requests] == [0.0, 0.0, 1.0, 1.0]
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


HOUR_LATER = {
    "azure": (AZURE, AZURE.replace("-17 00:", "-17 01:").replace("-16 23:", "-17 00:")),
    "lengths": (LENGTHS, LENGTHS.replace("0.5,", "3600.5,").replace("0.75,", "3600.75,")),
    "unix lengths": (
        LENGTHS,
        LENGTHS.replace("0.5,", "1700000000.000000500,").replace("0.75,", "1700000000.250000500,"),
    ),
    "mooncake": (
        '{"timestamp": 5, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
        '{"timestamp": 1005.5, "input_length": 8, "output_length": 2, "hash_ids": [1]}\n',
        '{"timestamp": 3600005, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
        '{"timestamp": 3601005.5, "input_length": 8, "output_length": 2, "hash_ids": [1]}\n',
    ),
}
"""Each format that has times: a trace, and the same on a clock that began at another time."""


@pytest.mark.parametrize("name", HOUR_LATER)
def test_the_start_of_a_clock_changes_no_request(load: TraceLoader, name: str) -> None:
    # A table that was shifted by an hour had an hour of idle samples; one in Unix time had 54
    # years of them.
    suffix = "jsonl" if name == "mooncake" else "csv"
    early, late = (load(f"{i}.{suffix}", text) for i, text in enumerate(HOUR_LATER[name]))
    assert early.requests == late.requests
    assert early.requests[0].arrival_s == 0.0 < early.requests[1].arrival_s


def test_a_row_of_another_clock_is_refused(load: TraceLoader) -> None:
    with pytest.raises(
        TraceError, match=r"a\.csv, line 4: its time is 19,675 days after that of l"
    ):
        load("a.csv", LENGTHS + "1700000000,300,30\n0.8,1,1\n")


def test_the_digest_of_a_trace_is_that_of_its_requests(tmp_path: Path) -> None:
    def digest(name: str, text: str, **changes: Any) -> str:
        (tmp_path / name).write_text(text)
        return read_trace(spec_of(tmp_path / name, **changes)).digest

    whole = digest("a.csv", LENGTHS)
    # Another place, other line ends, a column that is not read, a clock that began elsewhere.
    assert digest("b.csv", LENGTHS) == whole
    assert digest("a.csv", LENGTHS.replace("\n", "\r\n")) == whole
    assert digest("a.csv", HOUR_LATER["lengths"][1]) == whole
    # Rows that the limit leaves out.
    assert digest("a.csv", LENGTHS + "1.0,300,30\n", max_requests=2) == whole
    for changed in ("0.75,200,21", "0.75,201,20", "0.76,200,20"):
        assert digest("a.csv", LENGTHS.replace("0.75,200,20", changed)) != whole


def test_a_file_whose_requests_changed_is_refused_by_the_digest_of_its_plan(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(LENGTHS)
    planned = spec_of(path, content_digest=read_trace(spec_of(path)).digest)
    assert len(load_trace(planned, None, 0).requests) == 2
    path.write_text(LENGTHS.replace("100", "101"))
    with pytest.raises(TraceError, match=r"a\.csv: the file has changed: its requests have the di"):
        load_trace(planned, None, 0)


def test_a_limit_reads_the_first_rows_only(load: TraceLoader) -> None:
    broken_later = LENGTHS + "one,two,three\n"
    assert len(load("a.csv", broken_later, max_requests=2).requests) == 2


def test_a_limit_reads_no_further_than_its_rows(load: TraceLoader, tmp_path: Path) -> None:
    # 18 MB of rows; two of them are asked for.
    (tmp_path / "long.csv").write_text(LENGTHS + "1.0,300,30\n" * 1_600_000)
    tracemalloc.start()
    try:
        assert len(load("long.csv", None, max_requests=2).requests) == 2
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * 2**20  # a chunk, and what parses it


def test_lines_are_counted_over_empty_ones(load: TraceLoader) -> None:
    with pytest.raises(TraceError, match=r"a\.csv, line 6: input_tokens must be"):
        load("a.csv", LENGTHS + "\n\n1.0,ten,3\n")


def test_a_line_break_in_quotes_belongs_to_its_field(load: TraceLoader) -> None:
    text = 'note,input_tokens,output_tokens\n"two\nlines",100,10\nnone,200,0\n'
    with pytest.raises(TraceError, match=r"a\.csv, line 4: output_tokens must be"):
        load("a.csv", text)
    assert shape(load("a.csv", text.replace(",0\n", ",20\n"), max_requests=1))[0][1:] == (100, 10)


def test_empty_lines_hold_no_request(load: TraceLoader) -> None:
    assert shape(load("a.csv", LENGTHS.replace("\n0.75", "\n\n0.75") + "\n")) == shape(
        load("b.csv", LENGTHS)
    )


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.csv", None, None, "No such file"),
        ("a.csv", "", 1, "the file is empty"),
        ("a.csv", "\ufeff\n", 1, "the file is empty"),
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
        ("a.csv", LENGTHS + "1.0,1_000,3", 4, "input_tokens must be a whole number, got '1_000'"),
        ("a.csv", LENGTHS + "1_0.5,5,3", 4, "arrival_s must be a number, got '1_0.5'"),
        ("a.csv", LENGTHS + "1.0,\uff15,3", 4, "input_tokens must be a whole number, got '\uff15'"),
        ("a.csv", LENGTHS + f"1.0,{'9' * 5000},3", 4, "input_tokens must be a whole number, got"),
        ("a.csv", LENGTHS + "1e400,5,3", 4, r"arrival_s must be in \[0, .*, got 1E\+400"),
        ("a.csv", LENGTHS.replace("\n", "\r"), 1, "a carriage return stands inside the line"),
        ("a.csv", LENGTHS + "1.0,\r5,3\n", 4, "a carriage return stands inside the line"),
        ("a.csv", LENGTHS + '1.0,"5"0,3', 4, "expected after"),
        (
            "a.csv",
            "input_tokens,output_tokens,input_tokens\n1,2,3\n",
            1,
            r"the columns \['input_tokens'\] occur twice",
        ),
        ("a.csv", AZURE + "\r\n20231117,1,1", 5, "TIMESTAMP must be .*, got '20231117'"),
        ("a.csv", AZURE + "\r\n2023-W47-5,1,1", 5, "TIMESTAMP must be .*, got '2023-W47-5'"),
        ("a.csv", AZURE + "\r\n2023-11-17,1,1", 5, "TIMESTAMP must be .*, got '2023-11-17'"),
        ("a.csv", AZURE + "\r\n2023-11-31 00:00:00,1,1", 5, "TIMESTAMP must be a date and time"),
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


def spec_of(path: Path, **changes: Any) -> TraceWorkload:
    fields: dict[str, Any] = {
        "name": "mine",
        "path": str(path),
        "format": "lengths",
        "max_requests": None,
        "tokenizer": None,
        "keep_arrivals": True,
        "content_digest": None,
    }
    return TraceWorkload(kind="trace", **(fields | changes))


def test_build_loads_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(LENGTHS)
    workload = build(spec_of(path), PoissonArrivals(kind="poisson", rate_per_s=1.0), 0)
    assert (workload.name, len(workload.requests)) == ("mine", 2)
