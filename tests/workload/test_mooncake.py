"""Mooncake traces: their hashes become shared content, counted by hand."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from hsexp.workload import Request, TraceError, Workload

TraceLoader = Callable[..., Workload]


def line(timestamp: Any, input_length: Any, output_length: Any, hash_ids: Any) -> str:
    row = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
    }
    return json.dumps(row) + "\n"


GOOD = line(27_482, 1_536, 52, [0, 1, 2]) + line(30_982, 1_500, 7, [0, 1, 3])


def shared_tokens(one: Request, other: Request) -> int:
    """Length of the common prefix that the segments of two requests claim."""
    ends = {segment.content_id: segment.end_tokens for segment in one.segments}
    common = [s.end_tokens for s in other.segments if ends.get(s.content_id) == s.end_tokens]
    return max(common, default=0)


def test_requests_share_exactly_the_blocks_before_their_first_difference(
    load: TraceLoader,
) -> None:
    one, other = load("m.jsonl", GOOD).requests
    assert shared_tokens(one, other) == 1_024  # blocks 0 and 1


def test_segments_end_at_block_ends_and_a_partial_block_at_the_prompt_end(
    load: TraceLoader,
) -> None:
    one, other = load("m.jsonl", GOOD).requests
    assert [s.end_tokens for s in one.segments] == [512, 1_024, 1_536]
    assert [s.end_tokens for s in other.segments] == [512, 1_024, 1_500]


def test_times_are_seconds_after_the_first_row(load: TraceLoader) -> None:
    requests = load("m.jsonl", GOOD).requests
    assert [r.arrival_s for r in requests] == [0.0, 3.5]
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(1_536, 52), (1_500, 7)]


def test_a_hash_that_recurs_after_another_prefix_is_other_content(load: TraceLoader) -> None:
    text = line(0, 1_024, 1, [5, 9]) + line(1, 1_024, 1, [6, 9]) + line(2, 1_024, 1, [9, 5])
    requests = load("m.jsonl", text).requests
    ids = [segment.content_id for request in requests for segment in request.segments]
    assert len(set(ids)) == 6


def test_a_partial_block_is_not_the_full_block_of_the_same_hash(load: TraceLoader) -> None:
    text = line(0, 600, 1, [0, 1]) + line(1, 1_024, 1, [0, 1]) + line(2, 600, 1, [0, 1])
    partial, full, again = load("m.jsonl", text).requests
    assert shared_tokens(partial, full) == 512
    assert shared_tokens(partial, again) == 600


def test_an_unchanged_file_has_the_same_digest_at_each_load(load: TraceLoader) -> None:
    assert load("m.jsonl", GOOD, seed=0).digest == load("m.jsonl", GOOD, seed=1).digest


def test_a_limit_reads_the_first_rows_only(load: TraceLoader) -> None:
    assert len(load("m.jsonl", GOOD + "{broken", max_requests=2).requests) == 2


def test_every_cut_of_the_last_row_is_refused_with_its_line(load: TraceLoader) -> None:
    first, second = GOOD.splitlines(keepends=True)
    for length in range(1, len(second) - 1):  # without its last two characters, } and newline
        with pytest.raises(TraceError, match="line 2: not a whole JSON object"):
            load("m.jsonl", first + second[:length])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("[1, 2]\n", "expected a JSON object"),
        ("[" * 100_000 + "\n", "not a JSON object of a trace"),
        ("9" * 5_000 + "\n", "not a JSON object of a trace"),
        ('{"timestamp": 1, "timestamp": 2}\n', r"the fields \['timestamp'\] occur twice"),
        (GOOD.replace("}\n{", "}\r{"), "a carriage return stands inside the line"),
        ('{"timestamp": 40000}\n', "input_length is missing"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": [0]}\n', "timestamp is missing"),
        (line("now", 5, 1, [0]), "timestamp must be a number, got 'now'"),
        (line(float("nan"), 5, 1, [0]), "timestamp must be in .*, got nan"),
        (line(10**400, 5, 1, [0]), "timestamp must be in"),
        (line(-1, 5, 1, [0]), "timestamp must be in .*, got -1"),
        (line(27_481, 5, 1, [0]), "timestamp 27481 is earlier than the row before it"),
        (line(40_000, 0, 1, []), "input_length must be in .*, got 0"),
        (line(40_000, -5, 1, []), "input_length must be in .*, got -5"),
        (line(40_000, 5.0, 1, [0]), "input_length must be a whole number, got 5.0"),
        (line(40_000, True, 1, [0]), "input_length must be a whole number, got True"),
        (line(40_000, 5, 0, [0]), "output_length must be in .*, got 0"),
        (line(40_000, 5, None, [0]), "output_length must be a whole number, got None"),
        (line(40_000, 5, 1, 0), "hash_ids must be a list of whole numbers"),
        (line(40_000, 5, 1, ["0"]), "hash_ids must be a list of whole numbers"),
        (line(40_000, 513, 1, [0]), "input_length 513 needs 2 hash_ids of 512 tokens, got 1"),
        (line(40_000, 512, 1, [0, 1]), "input_length 512 needs 1 hash_ids of 512 tokens, got 2"),
    ],
)
def test_a_bad_row_is_refused_with_file_line_and_reason(
    load: TraceLoader, row: str, reason: str
) -> None:
    with pytest.raises(TraceError, match=rf"m\.jsonl, line 3: {reason}"):
        load("m.jsonl", GOOD + row)


def test_an_empty_file_is_refused(load: TraceLoader) -> None:
    with pytest.raises(TraceError, match="the file is empty"):
        load("m.jsonl", "\n\n")
