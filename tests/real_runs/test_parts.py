"""The parts of a real run that need no process: tokens, pages of metrics, records, logs."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from hsexp.workload import Request, Segment
from runners.vllm.client import _body
from runners.vllm.clock import Episode
from runners.vllm.engine_record import read_engine_record
from runners.vllm.exposition import Exposition
from runners.vllm.faults import (
    BootFailed,
    EngineDied,
    OtherOutput,
    OutOfMemory,
    RecordTorn,
    RunFault,
    death,
)
from runners.vllm.observed import Streams
from runners.vllm.tokens import prompt_tokens, warmup_prompts

VOCABULARY = 512


def request(request_id: int, *segments: tuple[int, int], prompt: int = 40) -> Request:
    """A prompt whose segments are (end, content)."""
    return Request(
        request_id=request_id,
        arrival_s=0.0,
        prompt_tokens=prompt,
        output_tokens=3,
        segments=tuple(Segment(end_tokens=end, content_id=content) for end, content in segments),
    )


# -- tokens ----------------------------------------------------------------------------------------


def test_equal_content_gives_equal_tokens_and_nothing_else_does() -> None:
    one, two = (prompt_tokens(request(i, (30, 4)), VOCABULARY) for i in (1, 2))
    other = prompt_tokens(request(3, (30, 5)), VOCABULARY)
    assert one[:30] == two[:30]
    assert one[30] != two[30]
    assert one[0] != other[0]


def test_a_longer_stretch_of_a_content_begins_like_a_shorter_one() -> None:
    short, long = (prompt_tokens(request(1, (end, 4)), VOCABULARY) for end in (20, 39))
    assert short[:20] == long[:20]


def test_private_prompts_differ_in_their_first_tokens() -> None:
    firsts = {tuple(prompt_tokens(request(i), VOCABULARY)[:4]) for i in range(2000)}
    assert len(firsts) == 2000


def test_tokens_lie_in_the_vocabulary_and_are_as_many_as_planned() -> None:
    tokens = prompt_tokens(request(7, (10, 1), (25, 2)), VOCABULARY)
    assert len(tokens) == 40
    assert min(tokens) >= 3 and max(tokens) < VOCABULARY
    assert all(isinstance(token, int) for token in tokens)


def test_no_workload_has_the_prompts_of_the_warm_up() -> None:
    warm = [prompt[:4] for prompt in warmup_prompts(4, 40, VOCABULARY)]
    assert not [i for i in range(2000) if prompt_tokens(request(i), VOCABULARY)[:4] in warm]


# -- metrics ---------------------------------------------------------------------------------------

PAGE = r"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="hsexp"} 3.0
hsexp:free_pages{engine="0",pool="attention"} 10.0
hsexp:free_pages{engine="0",pool="recurrent"} 2.0
hsexp:engine_info{organization="d0",note="a \"quoted\" \\ text, with a comma"} 1.0
no_labels_total 7
"""


def test_a_metric_is_summed_over_its_labels_and_a_missing_one_is_unknown() -> None:
    page = Exposition(PAGE)
    assert page.total("hsexp:free_pages") == 12.0
    assert page.total("vllm:num_requests_running") == 3.0
    assert page.total("no_labels_total") == 7.0
    assert page.total("hsexp:slabs") is None


def test_labels_are_read_with_their_escapes() -> None:
    (sample,) = Exposition(PAGE).samples("hsexp:engine_info")
    assert sample.labels == {
        "organization": "d0",
        "note": 'a "quoted" \\ text, with a comma',
    }


def test_what_prometheus_own_client_writes_is_read_back() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("hsexp:pages", "Pages.", ("pool", "note"), registry=registry)
    counter = Counter("hsexp:losses", "Losses.", registry=registry)
    notes = ['a "b"', "c\\d", "e\nf", "{g},h=1 "]
    for value, note in enumerate(notes):
        gauge.labels("kv", note).set(value + 0.5)
    counter.inc(3)
    page = Exposition(generate_latest(registry).decode())
    assert [(s.labels["note"], s.value) for s in page.samples("hsexp:pages")] == [
        (note, value + 0.5) for value, note in enumerate(notes)
    ]
    assert page.total("hsexp:losses_total") == 3.0
    assert page.total("hsexp:losses") is None


def test_a_line_that_is_not_in_the_format_is_a_fault_with_the_metrics_name() -> None:
    page = Exposition('good 1\nbad{pool="kv} x\n')
    assert page.total("good") == 1.0
    with pytest.raises(RunFault, match="the server's metric bad cannot be read"):
        page.total("bad")


# -- streams ---------------------------------------------------------------------------------------


def test_tokens_of_one_chunk_share_the_wait_for_it() -> None:
    streams = Streams([request(0)])
    streams.arrived(0, 1_000_000_000, [7])
    streams.arrived(0, 3_000_000_000, [8, 9])
    streams.finished(0)
    assert streams.token_gaps_s().tolist() == [1.0, 1.0]


def test_a_request_that_waits_stalls_and_one_that_is_not_sent_does_not() -> None:
    streams = Streams([request(0), request(1)])
    streams.require_progress(10**18, stall_s=1.0)
    streams.sent(0, 0)
    streams.arrived(0, 5_000_000_000, [7])
    streams.require_progress(5_900_000_000, stall_s=1.0)
    streams.sent(1, 5_950_000_000)  # a request that goes out is no progress of the engine
    with pytest.raises(Exception, match=r"no token for 1\.1 s while 2 requests are outstanding"):
        streams.require_progress(6_100_000_000, stall_s=1.0)


def test_a_retry_keeps_the_time_of_the_first_try_and_none_of_its_tokens() -> None:
    streams = Streams([request(0)])
    streams.sent(0, 100)
    streams.arrived(0, 200, [7, 8])
    streams.lost(0)
    streams.sent(0, 300)
    streams.arrived(0, 400, [1, 2, 3])
    streams.finished(0)
    (stream,) = streams.all
    assert (stream.sent_ns, stream.tokens, stream.num_retries) == (100, [1, 2, 3], 1)


def test_an_output_that_a_later_prompt_holds_must_be_what_that_prompt_holds() -> None:
    streams = Streams([request(0), request(1), request(2)], [7, 7, None])
    for index, tokens in enumerate([[7, 7, 7], [7, 8, 7], [1, 2, 3]]):
        streams.arrived(index, 100, tokens)
    streams.finished(0)
    streams.finished(2)
    with pytest.raises(OtherOutput, match="request 1 ended with other tokens than 7, which a lat"):
        streams.finished(1)
    assert [stream.finished for stream in streams.all] == [True, False, True]


def test_the_engine_is_asked_for_the_only_token_of_an_output_and_for_no_other() -> None:
    with_token, without = (
        json.loads(_body([5, 6], 3, request_id="a", only_token=token)) for token in (7, None)
    )
    assert with_token.pop("logit_bias") == {"7": 100.0}
    assert with_token == without


# -- the engine's record ---------------------------------------------------------------------------

EPISODE = Episode(begin_ns=1000, start_ns=2000, end_ns=9000)

RECORD: list[list[Any]] = [
    ["start", 10],
    ["step", 20, 90, 0, 40, 1, 0],  # the warm-up's
    ["mark", 95, {"preemptions": 4}],
    ["mark", 99, {"preemptions": 5}],
    ["step", 2000, 2500, 0, 40, 1, 0],
    ["step", 2500, 2600, 1, 0, 1, 0],
    ["request", "cmpl-hsexp-0-1-0-ab", "FINISHED_LENGTH_CAPPED", 2000, 1, 32, 8, 3, 1],
    ["end", 9500, {"preemptions": 7}, 0, 0],
]


def write_record(path: Path, events: list[list[Any]], torn: str = "") -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + torn)
    return path


def test_a_record_is_cut_to_the_episode(tmp_path: Path) -> None:
    record = read_engine_record(write_record(tmp_path / "engine.jsonl", RECORD), EPISODE)
    assert record.steps[["start_s", "prefill_tokens", "decode_tokens"]].to_numpy().tolist() == [
        [0.0, 40, 0],
        [5e-7, 0, 1],
    ]
    assert record.counters == {"preemptions": 2}  # 7 less the 5 of the last mark before
    request = record.requests[0, 1]
    assert (request.num_preemptions, request.adopted_tokens, request.prefill_tokens) == (1, 32, 8)


@pytest.mark.parametrize(
    ("events", "torn", "reason"),
    [
        (RECORD[:-1], "", "has no end: 2 steps were recorded"),
        (RECORD[:-1], '["end", 9500, {"pree', "has no end"),
        ([*RECORD[:-1], ["end", 1, {}, 2, 9]], "", "ended with 2 live requests, 9 pages held"),
    ],
)
def test_a_record_that_proves_nothing_is_refused(
    tmp_path: Path, events: list[list[Any]], torn: str, reason: str
) -> None:
    path = write_record(tmp_path / "engine.jsonl", events, torn)
    with pytest.raises(RecordTorn, match=reason):
        read_engine_record(path, EPISODE)


def test_a_record_that_was_never_written_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(RecordTorn, match="has written no record"):
        read_engine_record(tmp_path / "engine.jsonl", EPISODE)


# -- logs ------------------------------------------------------------------------------------------

PREFIX = "(EngineCore pid=17) ERROR 11-29 22:18:49 [core.py:12] "


def test_the_line_that_tells_most_becomes_the_reason_without_its_prefix() -> None:
    log = [f"{PREFIX}MemoryError: std::bad_alloc: out of memory", "RuntimeError: engine failed"]
    fault = death(log, 1, BootFailed, "booting")
    assert isinstance(fault, OutOfMemory)
    assert str(fault) == (
        "the engine ended while booting (exit 1): MemoryError: std::bad_alloc: out of memory"
    )


def test_a_kill_without_a_word_may_be_for_memory() -> None:
    fault = death([], -9, EngineDied, "serving requests")
    assert isinstance(fault, OutOfMemory)
    assert "(out of memory?)" in str(fault)


def test_a_port_is_taken_at_boot_only() -> None:
    log = ["OSError: address already in use"]
    assert type(death(log, 1, EngineDied, "serving requests")) is EngineDied
