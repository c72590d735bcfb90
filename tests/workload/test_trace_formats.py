"""Every format that a trace may have, in a few rows that were written by hand."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_specs import spec_of

from hsexp.workload import Request, Trace, TraceError, Workload, read_trace

TraceLoader = Callable[..., Workload]
TraceReader = Callable[..., Trace]

Shape = list[tuple[float, int, int]]


def lines(*records: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def shape(workload: Workload) -> Shape:
    return [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in workload.requests]


def shared_tokens(one: Request, other: Request) -> int:
    """Length of the common prefix that the segments of two requests claim."""
    ends = {segment.content_id: segment.end_tokens for segment in one.segments}
    common = [s.end_tokens for s in other.segments if ends.get(s.content_id) == s.end_tokens]
    return max(common, default=0)


TEXT = "x" * 40  # ten tokens

TIMED = {
    "azure 2024": (
        "azure",
        "AzureLLMInferenceTrace_conv_1week.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01.509930+00:00,2399,6\n",
        [(0.0, 2162, 5), (1.5, 2399, 6)],
    ),
    "burstgpt": (
        "burstgpt",
        "BurstGPT_1.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,230,1317,Conversation log\n",
        [(0.0, 472, 18), (40.0, 1087, 230)],
    ),
    "vidur": (
        "vidur",
        "splitwise_conv.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,810,44\n2.75,90,3\n",
        [(0.0, 810, 44), (2.25, 90, 3)],
    ),
    "bailian": (
        "bailian",
        "qwen_traceA_blksz_16.jsonl",
        lines(
            {
                "chat_id": 159,
                "parent_chat_id": -1,
                "timestamp": 61.114,
                "input_length": 33,
                "output_length": 13,
                "type": "text",
                "turn": 1,
                "hash_ids": [1089, 1090, 1091],
            },
            {
                "chat_id": 160,
                "parent_chat_id": 159,
                "timestamp": 62.5,
                "input_length": 64,
                "output_length": 8,
                "type": "text",
                "turn": 2,
                "hash_ids": [1089, 1090, 6326, 13148],
            },
        ),
        [(0.0, 33, 13), (1.386, 64, 8)],
    ),
    "aiperf trace": (
        "aiperf",
        "a.jsonl",
        lines(
            {"session_id": "a", "timestamp": 1000, "input_length": 300, "output_length": 40},
            {"session_id": "b", "timestamp": 1500, "input_length": 200, "output_length": 20},
        ),
        [(0.0, 300, 40), (0.5, 200, 20)],
    ),
    "aiperf prompts": (
        "aiperf",
        "a.jsonl",
        lines(
            {"text": TEXT, "output_length": 5, "timestamp": 0},
            {"text": TEXT * 2, "output_length": 6, "timestamp": 2500},
        ),
        [(0.0, 10, 5), (2.5, 20, 6)],
    ),
    "openai with times": (
        "openai",
        "o.jsonl",
        lines(
            {
                "session_id": "s",
                "messages": [{"role": "user", "content": TEXT}],
                "output_length": 7,
                "timestamp": 0,
            },
            {
                "session_id": "s",
                "messages": [
                    {"role": "user", "content": TEXT},
                    {"role": "assistant", "content": TEXT},
                    {"role": "user", "content": TEXT},
                ],
                "output_length": 8,
                "timestamp": 4000,
            },
        ),
        [(0.0, 10, 7), (4.0, 30, 8)],
    ),
}
"""Formats that have times: what `auto` takes the file for, its name and text, and its requests."""


@pytest.mark.parametrize("name", TIMED)
def test_a_format_with_times_is_told_from_its_columns_and_replayed(
    load: TraceLoader, read: TraceReader, name: str
) -> None:
    expected, file, text, requests = TIMED[name]
    assert read(file, text).format == expected
    assert shape(load(file, text)) == requests
    assert shape(load(file, text, format=expected)) == requests


UNTIMED = {
    "vidur lengths": (
        "vidur",
        "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n10,5,15,2.0\n20,6,26,3.3\n",
    ),
    "vllm": (
        "vllm",
        "custom.jsonl",
        lines({"prompt": TEXT, "output_tokens": 5}, {"prompt": TEXT * 2, "output_tokens": 6}),
    ),
    "guidellm": (
        "guidellm",
        "data.jsonl",
        lines(
            {"prompt": TEXT, "output_tokens_count": 5},
            {"prefix": TEXT, "prompt": TEXT, "output_tokens_count": 6},
        ),
    ),
    "guidellm csv": (
        "guidellm",
        "data.csv",
        f"prompt,output_tokens_count\n{TEXT},5\n{TEXT * 2},6\n",
    ),
    "guidellm turns": (
        "guidellm",
        "data.jsonl",
        lines(
            {
                "prompt_0": TEXT,
                "output_tokens_count_0": 5,
                "prompt_1": "x" * 20,
                "output_tokens_count_1": 6,
            }
        ),
    ),
    "aiperf turns": (
        "aiperf",
        "turns.jsonl",
        lines(
            {
                "session_id": "a",
                "turns": [
                    {"text": TEXT, "output_length": 5},
                    {"text": "x" * 20, "output_length": 6, "delay": 500},
                ],
            }
        ),
    ),
    "sharegpt jsonl": (
        "sharegpt",
        "s.jsonl",
        lines(
            {
                "conversations": [
                    {"from": "human", "value": TEXT},
                    {"from": "gpt", "value": "y" * 20},
                    {"from": "human", "value": "x" * 20},
                    {"from": "gpt", "value": "y" * 24},
                ]
            }
        ),
    ),
    "openai": (
        "openai",
        "o.jsonl",
        lines(
            {
                "messages": [
                    {"role": "user", "content": TEXT},
                    {"role": "assistant", "content": "y" * 20},
                    {"role": "user", "content": [{"type": "text", "text": "x" * 20}]},
                    {"role": "assistant", "content": "y" * 24},
                ]
            }
        ),
    ),
    "openai list": (
        "openai",
        "o.json",
        json.dumps(
            [
                {
                    "messages": [
                        {"role": "user", "content": TEXT},
                        {"role": "assistant", "content": "y" * 20},
                        {"role": "user", "content": "x" * 20},
                        {"role": "assistant", "content": "y" * 24},
                    ]
                }
            ]
        ),
    ),
}
"""Formats without times. All have requests of 10 and 20 prompt tokens, and 5 and 6 of output."""


@pytest.mark.parametrize("name", UNTIMED)
def test_a_format_without_times_is_told_from_its_columns(
    load: TraceLoader, read: TraceReader, name: str
) -> None:
    expected, file, text = UNTIMED[name]
    trace = read(file, text)
    assert (trace.format, trace.has_times) == (expected, False)
    requests = [(r.prompt_tokens, r.output_tokens) for r in load(file, text).requests]
    assert requests == [(10, 5), (20, 6)]


# -- containers ------------------------------------------------------------------------------------

LENGTHS = "arrival_s,input_tokens,output_tokens\n0.5,100,10\n0.75,200,20\n"


def zstd(text: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text.encode())
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv"])
def test_gzip_is_told_from_the_first_bytes(load: TraceLoader, name: str) -> None:
    assert load(name, gzip.compress(LENGTHS.encode())).requests == load("b.csv", LENGTHS).requests


@pytest.mark.parametrize("name", ["a.csv.zst", "a.csv"])
def test_zstandard_is_told_from_the_first_bytes(load: TraceLoader, name: str) -> None:
    assert load(name, zstd(LENGTHS)).requests == load("b.csv", LENGTHS).requests


@pytest.mark.parametrize("pack", [lambda text: gzip.compress(text.encode()), zstd])
def test_a_cut_compressed_file_is_refused(load: TraceLoader, pack: Callable[[str], bytes]) -> None:
    whole = pack(LENGTHS + "1,300,30\n" * 2_000)
    with pytest.raises(TraceError):
        load("a.csv.gz", whole[: len(whole) // 2])


def test_a_compressed_trace_has_the_digest_of_its_text(read: TraceReader) -> None:
    assert read("a.csv.zst", zstd(LENGTHS)).digest == read("b.csv", LENGTHS).digest


def parquet(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path)


def test_a_parquet_table_is_read_like_a_csv_table(load: TraceLoader, tmp_path: Path) -> None:
    parquet(
        tmp_path / "a.parquet",
        {"arrival_s": [0.5, 0.75], "input_tokens": [100.0, 200.0], "output_tokens": [10, 20]},
    )
    assert load("a.parquet", None).requests == load("b.csv", LENGTHS).requests


def test_parquet_holds_dates_hashes_and_messages(load: TraceLoader, tmp_path: Path) -> None:
    parquet(
        tmp_path / "a.parquet",
        {
            "TIMESTAMP": pa.array([0, 1_500_000_000], pa.timestamp("ns")),
            "ContextTokens": [7, 8],
            "GeneratedTokens": [1, 2],
        },
    )
    assert shape(load("a.parquet", None)) == [(0.0, 7, 1), (1.5, 8, 2)]
    parquet(
        tmp_path / "m.parquet",
        {
            "timestamp": [0, 1],
            "input_length": [600, 512],
            "output_length": [1, 2],
            "hash_ids": [[4, 5], [4]],
        },
    )
    assert shared_tokens(*load("m.parquet", None).requests) == 512
    messages = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "y" * 20}]
    parquet(tmp_path / "o.parquet", {"messages": [messages]})
    (request,) = load("o.parquet", None).requests
    assert (request.prompt_tokens, request.output_tokens) == (10, 5)


def test_a_refusal_of_parquet_names_the_row(load: TraceLoader, tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"input_tokens": [1, -5], "output_tokens": [1, 1]})
    with pytest.raises(TraceError, match=r"a\.parquet, row 2: input_tokens must be .*, got -5"):
        load("a.parquet", None)
    parquet(tmp_path / "a.parquet", {"input_tokens": [1.5], "output_tokens": [1]})
    with pytest.raises(TraceError, match=r"row 1: input_tokens must be a whole number, got 1\.5"):
        load("a.parquet", None)


def test_a_cut_parquet_file_is_refused(load: TraceLoader, tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"input_tokens": [1], "output_tokens": [1]})
    data = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(TraceError, match="not a whole Parquet file"):
        load("a.parquet", data[:-20])


# -- columns ---------------------------------------------------------------------------------------


def test_columns_of_other_names_are_mapped(load: TraceLoader) -> None:
    text = "when,ctx,gen_len\n0,100,10\n1500,200,20\n"
    columns = {"time": "when", "prompt": "ctx", "output": "gen_len"}
    mapped = load("a.csv", text, columns=columns, time_unit="ms")
    assert shape(mapped) == [(0.0, 100, 10), (1.5, 200, 20)]


def test_one_column_is_mapped_and_the_others_keep_their_names(load: TraceLoader) -> None:
    text = LENGTHS.replace("output_tokens", "gen_len")
    mapped = load("a.csv", text, columns={"output": "gen_len"})
    assert mapped.requests == load("b.csv", LENGTHS).requests


def test_dates_are_read_where_the_unit_says_so(load: TraceLoader) -> None:
    text = "at,input_tokens,output_tokens\n2024-05-10 00:00:01,5,1\n2024-05-10 00:00:00,6,1\n"
    workload = load("a.csv", text, columns={"time": "at"}, time_unit="date")
    assert shape(workload) == [(0.0, 6, 1), (1.0, 5, 1)]


@pytest.mark.parametrize(("unit", "seconds"), [("s", 7.0), ("ms", 0.007), ("us", 7e-6)])
def test_the_unit_of_times_is_a_setting(load: TraceLoader, unit: str, seconds: float) -> None:
    text = "arrival_s,input_tokens,output_tokens\n0,100,10\n7,200,20\n"
    assert load("a.csv", text, time_unit=unit).requests[1].arrival_s == seconds


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**6)),
        min_size=1,
        max_size=20,
    ),
    order=st.permutations(["t", "p", "o"]),
)
def test_a_mapped_table_is_the_same_trace_in_csv_json_lines_and_parquet(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], order: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("mapped")
    records = [dict(zip("tpo", row, strict=True)) for row in rows]
    (folder / "a.csv").write_text(
        "\n".join([",".join(order), *(",".join(str(r[c]) for c in order) for r in records)])
    )
    (folder / "a.jsonl").write_text(lines(*records))
    parquet(folder / "a.parquet", {c: [r[c] for r in records] for c in order})
    columns = {"time": "t", "prompt": "p", "output": "o"}
    digests = {
        read_trace(spec_of(folder / name, columns=columns)).digest
        for name in ("a.csv", "a.jsonl", "a.parquet")
    }
    assert len(digests) == 1


# -- sharing ---------------------------------------------------------------------------------------


def test_prefix_columns_share_without_hashes(load: TraceLoader) -> None:
    text = (
        "input_tokens,output_tokens,prefix_id,prefix_tokens\n"
        "100,1,a,60\n80,1,b,50\n70,1,a,60\n90,1,,0\n"
    )
    first, second, third, last = load("a.csv", text).requests
    assert shared_tokens(first, third) == 60
    assert shared_tokens(first, second) == 0
    assert last.segments == ()


def test_hashed_blocks_have_the_size_that_is_set(load: TraceLoader) -> None:
    record = {"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}
    (request,) = load("m.jsonl", lines(record), block_tokens=16).requests
    assert [segment.end_tokens for segment in request.segments] == [16, 32, 40]


def test_hashes_of_whole_blocks_alone_leave_the_rest_private(load: TraceLoader) -> None:
    _, file, text, _ = TIMED["bailian"]
    whole = text.replace(", 1091]", "]")
    one, other = load(file, whole).requests
    assert [s.end_tokens for s in one.segments] == [16, 32]
    assert shared_tokens(one, other) == 32


def test_turns_of_a_bailian_chat_are_one_session(read: TraceReader) -> None:
    _, file, text, _ = TIMED["bailian"]
    other = text.splitlines()[1].replace('"chat_id": 160', '"chat_id": 7').replace("159", "-1")
    rows = read(file, text + other + "\n").rows
    assert [row.conversation for row in rows] == [0, 0, 1]


SESSIONS = (
    "arrival_s,input_tokens,output_tokens,user\n"
    "0,100,10,ann\n1,50,5,bob\n2,130,20,ann\n3,140,7,ann\n4,30,9,ann\n"
)


def test_a_turn_that_is_long_enough_begins_with_the_history(load: TraceLoader) -> None:
    one, other, two, three, four = load("a.csv", SESSIONS, columns={"session": "user"}).requests
    assert other.segments == ()  # a session of one turn
    assert shared_tokens(one, two) == 110  # the answer among it
    assert shared_tokens(two, three) == 130  # the prompt alone: 150 would hold the answer
    assert shared_tokens(three, four) == 0  # cut
    assert [s.generated for s in two.segments] == [False, True, False, True]


def test_prompts_share_the_blocks_with_which_both_begin(load: TraceLoader) -> None:
    system = "s" * 128  # two blocks of sixteen tokens
    records = [{"prompt": system + tail, "output_tokens": 1} for tail in ("abcd", "efgh")]
    assert shared_tokens(*load("p.jsonl", lines(*records)).requests) == 32


def test_later_turns_of_an_aiperf_dialogue_hold_the_answers(load: TraceLoader) -> None:
    _, file, text = UNTIMED["aiperf turns"]
    one, two = load(file, text).requests
    assert shared_tokens(one, two) == 15  # 10 and 5
    assert [segment.end_tokens for segment in two.segments] == [10, 15, 20, 26]


def test_an_answer_of_tool_calls_is_text_and_a_tool_asks(load: TraceLoader) -> None:
    calls = [{"function": {"name": "f"}}]
    messages = [
        {"role": "system", "content": TEXT},
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": TEXT},
        {"role": "assistant", "content": "done"},
    ]
    one, two = load("o.jsonl", lines({"messages": messages})).requests
    called = -(-len(json.dumps(calls)) // 4)
    assert (one.prompt_tokens, one.output_tokens) == (20, called)
    assert (two.prompt_tokens, two.output_tokens) == (30 + called, 1)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "changes", "reason"),
    [
        (
            "a.csv",
            "arrival_s,input_tokens,gen_len\n0,1,2\n",
            {},
            r"line 1: cannot tell the format from .*: the nearest is lengths, which also needs "
            r"\['output_tokens'\]; workload\.columns\.",
        ),
        (
            "a.csv",
            LENGTHS,
            {"columns": {"output": "output_token"}},
            r"line 1: workload\.columns\.output=output_token is not in the file, which has .*; the "
            "nearest is output_tokens",
        ),
        (
            "a.csv",
            LENGTHS,
            {"format": "burstgpt"},
            r"line 1: columns \['Timestamp', 'Request tokens', 'Response tokens'\] are missing",
        ),
        (
            "g.jsonl",
            lines({"timestamp": 1, "input_length": 2, "output_length": 3}),
            {},
            r"timestamp may count seconds or milliseconds: workload\.format=guidellm reads sec",
        ),
        (
            "v.jsonl",
            lines({"prompt": TEXT}),
            {},
            r"line 1: output_tokens is missing; workload\.output_tokens=128 sets it",
        ),
        ("v.jsonl", lines({"prompt": "", "output_tokens": 1}), {}, "prompt must be text, got ''"),
        (
            "a.csv",
            LENGTHS.replace(",20\n", ",0\n"),
            {},
            r"line 3: output_tokens must be .*, got 0; workload\.zero_output=drop leaves such rows",
        ),
        (
            "b.csv",
            "Timestamp,Request tokens,Response tokens\n5,1,1\n4,1,1\n",
            {},
            r"line 3: Timestamp is earlier than the row before it, got 4; workload\.sort=true",
        ),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens\n2024-05-10 00:00:00,1,1\n",
            {},
            r"line 2: arrival_s must be a number, got '2024-05-10 00:00:00'; workload\.time_unit=d",
        ),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens\n0,1,1\n,1,1\n",
            {},
            "line 3: arrival_s is missing, and the rows before it have one",
        ),
        (
            "p.csv",
            "input_tokens,output_tokens,prefix_id,prefix_tokens\n9,1,a,5\n9,1,a,6\n",
            {},
            "line 3: prefix_tokens of prefix_id 'a' must be 5, as on line 2, got 6",
        ),
        (
            "p.csv",
            "input_tokens,output_tokens,prefix_id,prefix_tokens\n9,1,a,10\n",
            {},
            "line 2: prefix_tokens 10 is more than the prompt's 9 tokens",
        ),
        (
            "a.csv",
            "input_tokens,output_tokens\n9,1\n",
            {"speed": 2.0},
            r"the file has no times, so workload\.speed means nothing",
        ),
        (
            "a.csv",
            "input_tokens,output_tokens\n9,1\n",
            {"start_s": 2.0},
            r"the file has no times, so workload\.start_s and workload\.duration_s mean nothing",
        ),
        (
            "t.jsonl",
            lines(
                {
                    "turns": [
                        {"text": TEXT, "output_length": 1, "timestamp": 0},
                        {"text": TEXT, "output_length": 1},
                    ]
                }
            ),
            {},
            r"a later turn has neither a time nor a pause; workload\.turns=closed",
        ),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_works(
    load: TraceLoader, name: str, text: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TraceError, match=reason) as refusal:
        load(name, text, **changes)
    assert "\n" not in str(refusal.value)
