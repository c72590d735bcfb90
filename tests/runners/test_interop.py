"""Results of `vllm bench serve` come in and go out with their numbers."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from toy_campaign import CONTRACT as TOY
from toy_campaign import execute, toy_cell

from hsexp.config.base import ConfigError
from hsexp.ledger import Attempt, EngineFacts, Ledger, LedgerError, Provenance, encode_table
from hsexp.measure.metrics import summarize
from hsexp.measure.records import RunRecord
from hsexp.plan.cells import Cell, content_key
from runners.interop import CONTRACT, export_attempt, import_result, main
from runners.trial import Outcome, try_cell

# Three requests, sent at 100.0, 100.5 and 101.0 s. The first gets tokens at 101, 101.5 and 102, the
# second all three within one later chunk at 102.5, the third is refused.
RESULT: dict[str, Any] = {
    "date": "20261129-203000",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "falcon",
    "tokenizer_id": "falcon",
    "num_prompts": 3,
    "organization": "s2",
    "seed": "1",
    "request_rate": 2.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 2.6,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 30,
    "total_output_tokens": 6,
    "request_throughput": 2 / 2.6,
    "request_goodput": None,
    "output_throughput": 6 / 2.6,
    "total_token_throughput": 36 / 2.6,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 3, 0],
    "ttfts": [1.0, 1.0, 0.0],
    "itls": [[0.5, 0.5], [1.0], []],
    "start_times": [100.0, 100.5, 101.0],
    "generated_texts": ["a b c", "d e f", ""],
    "errors": ["", "", "Bad Request"],
    "max_output_tokens_per_s": 3.0,
    "max_concurrent_requests": 2,
    "rtfx": 0.0,
    "mean_ttft_ms": 1000.0,
    "median_ttft_ms": 1000.0,
    "std_ttft_ms": 0.0,
    "p99_ttft_ms": 1000.0,
}
"""By the fields of vllm/benchmarks/serve.py."""


@pytest.fixture
def imported(tmp_path: Path) -> tuple[Ledger, str]:
    ledger = Ledger.open(tmp_path / "bench", contract=CONTRACT)
    return ledger, import_result(RESULT, ledger, device="cpu")


def test_an_imported_result_is_a_measured_row_whose_axes_are_its_metadata(
    imported: tuple[Ledger, str],
) -> None:
    ledger, attempt_id = imported
    (row,) = ledger.frame().to_dict("records")
    assert row["attempt_id"] == attempt_id
    assert (row["organization"], row["seed"], row["request_rate"]) == ("s2", "1", 2.0)
    assert (row["engine"], row["device"], row["data_kind"]) == ("vllm", "cpu", "measured")
    # First request at 0 s, last success at 0.5 + 1.0 + 1.0 s: 6 tokens in 2.5 s.
    assert row["throughput_tok_per_s"] == 6 / 2.5
    assert (row["num_requests"], row["num_finished"], row["num_unfinished"]) == (3, 2, 1)
    assert row["ttft_mean_s"] == 1.0


def test_the_start_of_a_clock_changes_no_metric(
    imported: tuple[Ledger, str], tmp_path: Path
) -> None:
    # Powers of two, so that no bit of a sum is lost.
    times = [time + 2.0**30 for time in RESULT["start_times"]]
    ledger = Ledger.open(tmp_path / "later", contract=CONTRACT)
    import_result(RESULT | {"start_times": times}, ledger, device="cpu")
    before, after = imported[0].frame(), ledger.frame()
    pd.testing.assert_frame_equal(
        after.drop(columns="attempt_id"), before.drop(columns="attempt_id"), check_exact=True
    )
    table = ledger.request_table(after["cell_id"][0])
    assert table["arrival_s"].tolist() == [0.0, 0.5, 1.0]


def test_a_chunk_of_several_tokens_counts_by_tokens(imported: tuple[Ledger, str]) -> None:
    ledger, _ = imported
    # Gaps 0.5 and 0.5, and two of 0.5 for the chunk that brought two tokens after one second.
    assert ledger.frame()["itl_mean_s"][0] == 0.5
    assert ledger.frame()["itl_p99_s"][0] == 0.5


def test_what_a_benchmark_cannot_see_is_unknown_and_no_zero(imported: tuple[Ledger, str]) -> None:
    ledger, _ = imported
    row = ledger.frame().iloc[0]
    unknown = ["num_steps", "num_preemptions", "c_once_tokens", "queue_mean_s", "running_mean"]
    assert row[unknown].isna().all()
    assert row["versions"] == "{}"
    assert "num_preemptions" not in ledger.request_table(row["cell_id"])


def test_a_second_import_is_another_attempt_of_the_same_cell(imported: tuple[Ledger, str]) -> None:
    ledger, first = imported
    second = import_result(RESULT | {"date": "20261129-210000"}, ledger, device="cpu")
    assert first.rpartition("-")[0] == second.rpartition("-")[0]
    assert ledger.frame()["attempt_id"].tolist() == [first]
    assert len(ledger.attempts()) == 2


def test_a_result_without_details_is_refused_by_its_fields(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "bench", contract=CONTRACT)
    summary = {key: value for key, value in RESULT.items() if key not in ("ttfts", "itls")}
    with pytest.raises(ConfigError, match=r"ttfts, itls missing: .* --save-detailed"):
        import_result(summary, ledger, device="cpu")
    assert ledger.attempts().empty


def test_an_exported_attempt_has_the_numbers_that_came_in(imported: tuple[Ledger, str]) -> None:
    exported = export_attempt(*imported)
    same = ["input_lens", "output_lens", "completed", "failed", "total_output_tokens", "errors"]
    same += ["mean_ttft_ms", "p99_ttft_ms", "std_ttft_ms", "seed", "organization", "date"]
    assert {name: exported[name] for name in same} == {name: RESULT[name] for name in same}
    assert exported["output_throughput"] == 6 / 2.5
    assert exported["start_times"] == [0.0, 0.5, 1.0]
    assert exported["itls"] == [None, None, None]
    assert exported["total_input_tokens"] == 30  # of the finished ones, as the benchmark counts
    assert set(RESULT) - set(exported) == {
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
    }


def test_an_exported_attempt_can_be_imported_again(
    imported: tuple[Ledger, str], tmp_path: Path
) -> None:
    ledger = Ledger.open(tmp_path / "again", contract=CONTRACT)
    import_result(export_attempt(*imported) | {"itls": RESULT["itls"]}, ledger, device="cpu")
    ours, theirs = ledger.frame().iloc[0], imported[0].frame().iloc[0]
    for metric in ("throughput_tok_per_s", "ttft_p99_s", "e2e_mean_s", "tpot_mean_s"):
        assert ours[metric] == theirs[metric]


# -- what is unknown is no zero --------------------------------------------------------------------

KNOWN = (
    *("num_requests", "num_finished", "num_refused", "num_unfinished", "prompt_tokens"),
    *("output_tokens", "o_ctr_tokens", "span_s", "throughput_tok_per_s", "requests_per_s"),
    *(f"{name}_{of}_s" for name in ("ttft", "tpot", "itl", "e2e") for of in ("mean", "p50", "p99")),
    "planned_rate_per_s",
)
"""Metrics that a result carries; an engine's steps are not among them."""


def measured_attempt(path: Path) -> tuple[Ledger, str]:
    """A measured run of four requests: the second waited for a token for 4 s, one was refused."""
    requests = pd.DataFrame(
        {
            "request_id": [0, 1, 2, 3],
            "status": ["finished", "finished", "refused", "finished"],
            "reason": [None, None, "too long", None],
            "prompt_tokens": [10, 20, 30, 5],
            "generated_tokens": [3, 5, 0, 1],
            "arrival_s": [0.5, 1.0, 1.5, 2.0],
            "first_token_s": [1.0, 2.0, math.nan, 2.5],
            "finish_s": [2.0, 7.0, math.nan, 2.5],
            "sent_s": [0.6, 1.1, math.nan, 2.2],
            "num_retries": [0, 0, 0, 0],
        }
    )
    record = RunRecord(
        requests=requests,
        steps=pd.DataFrame(),
        token_gaps_s=np.array([0.5, 0.5, 4.0, 0.5, 0.25, 0.25]),
        episode_s=8.0,
    )
    settings = {"organization": "s2", "budget": "b63", "rate_per_s": 2.0, "seed": 1}
    key = content_key(settings)
    attempt = Attempt(
        cell=Cell(
            campaign="q1", block="q1", axes=settings, config=settings, cell_id=key, pair_id="1"
        ),
        status="ok",
        reason=None,
        metrics=summarize(record),
        workload_digest="0",
        engine=EngineFacts(
            engine="vllm",
            device="cpu",
            time_model="wall clock",
            data_kind="measured",
            observed={"config": {"model": {"name": "falcon"}, "arrivals": {"kind": "burst"}}},
        ),
        provenance=Provenance.collect(),
        started_at="2026-01-01T00:00:00.000+00:00",
        wall_s=9.0,
    )
    ledger = Ledger.open(path, contract={"campaign": "q1"})
    return ledger, ledger.record(attempt, requests=encode_table(requests))


def again(exported: dict[str, Any], folder: Path) -> "pd.Series[Any]":
    """The row of an exported attempt that was written, read and imported."""
    ledger = Ledger.open(folder, contract=CONTRACT)
    import_result(json.loads(json.dumps(exported)), ledger, device="cpu")
    row: pd.Series[Any] = ledger.frame().iloc[0]
    return row


def test_a_measured_attempt_comes_back_with_its_metrics(tmp_path: Path) -> None:
    ledger, attempt_id = measured_attempt(tmp_path / "q1")
    exported = export_attempt(ledger, attempt_id)
    ours, theirs = ledger.frame().iloc[0], again(exported, tmp_path / "again")
    assert ours["throughput_tok_per_s"] == 9 / 6.5  # 0.5 to 7.0 s; 9 / 2.0 s without its gaps
    assert theirs[list(KNOWN)].to_dict() == pytest.approx(ours[list(KNOWN)].to_dict())
    assert pd.isna(theirs["realised_rate_per_s"])  # its times are the planned ones
    others = [name for name in theirs.index if name in ours.index and name.startswith("num_")]
    assert [name for name in others if name not in KNOWN and not pd.isna(theirs[name])] == []
    assert (theirs["organization"], theirs["budget"], theirs["seed"]) == ("s2", "b63", 1)
    assert theirs["request_rate"] == 2.0
    assert pd.isna(exported["burstiness"])  # bursts are not one gamma process


def test_an_imported_result_comes_back_with_its_metrics(
    imported: tuple[Ledger, str], tmp_path: Path
) -> None:
    ours, theirs = imported[0].frame().iloc[0], again(export_attempt(*imported), tmp_path / "again")
    metrics = [name for name in ours.index[ours.index.get_loc("num_requests") :] if name in theirs]
    metrics = metrics[: metrics.index("config_digest")]
    assert len(metrics) > 50
    known = [name for name in metrics if not pd.isna(ours[name])]
    assert theirs[known].to_dict() == pytest.approx(ours[known].to_dict())
    assert theirs[[name for name in metrics if name not in known]].isna().all()
    assert json.loads(theirs["engine_facts"])["latencies_from"] == "sending"
    assert (theirs["request_rate"], theirs["burstiness"]) == (2.0, 1.0)


def test_an_end_that_is_not_told_is_no_first_token(
    imported: tuple[Ledger, str], tmp_path: Path
) -> None:
    exported = export_attempt(*imported)
    del exported["e2els"]
    with pytest.raises(ConfigError, match=r"the end of request 0 is unknown: itls\[0\] is null"):
        again(exported, tmp_path / "again")


@pytest.mark.parametrize(("completed", "failed"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("ttft", [0.0, None, math.nan])
def test_an_answer_without_a_first_token_and_a_failure_without_a_text_have_not_finished(
    ttft: float | None, completed: int, failed: int, tmp_path: Path
) -> None:
    # The second request: no error, no token. The benchmark may count it as either.
    silent = {"ttfts": [1.0, ttft, 0.0], "output_lens": [3, 0, 0], "itls": [[0.5, 0.5], [], []]}
    result = RESULT | silent | {"completed": completed, "failed": failed}
    ledger = Ledger.open(tmp_path / "bench", contract=CONTRACT)
    attempt_id = import_result(result, ledger, device="cpu")
    row = ledger.frame().iloc[0]
    assert (row["num_finished"], row["num_unfinished"]) == (1, 2)
    assert (row["ttft_mean_s"], row["ttft_p50_s"]) == (1.0, 1.0)
    assert pd.isna(row["o_ctr_tokens"])
    request = ledger.request_table(attempt_id).iloc[1]
    assert (request["status"], request["reason"]) == ("unfinished", "no first token and no error")
    assert export_attempt(ledger, attempt_id)["errors"][1] == "no first token and no error"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completed": 3, "failed": 0}, "completed must be 2 by errors and ttfts, got 3"),
        ({"completed": 1, "failed": 2}, "completed must be 2 by errors and ttfts, got 1"),
        ({"failed": 2}, "completed 2 and failed 2 must add up to the 3 requests"),
        ({"completed": None}, "completed must be a number, got None"),
        ({"ttfts": [1.0, 1.0]}, r"ttfts must have one entry for each of the 3 errors, got 2"),
        ({"output_lens": 0}, "output_lens must be a list, got 0"),
        ({"start_times": [1.0, None, 2.0]}, r"start_times\[1\] must be a number, got None"),
        ({"itls": [[0.5, -9.0], [1.0], []]}, "request 0 finished, but its first_token_s"),
        ({"statuses": ["finished", "finished", "lost"]}, r"statuses\[2\] is 'lost', but request 2"),
        ({"statuses": ["finished"] * 3}, r"statuses\[2\] is 'finished', but .* 'Bad Request'"),
        ({"statuses": ["refused", "finished", "refused"]}, r"statuses\[0\] is .* and no error"),
        ({"itls": [0.5, [1.0], []]}, r"itls\[0\] must be a list of numbers or null, got 0\.5"),
        ({"itls": [["x"], [1.0], []]}, r"itls\[0\] must be a list of numbers or null, got \['x'\]"),
        ({"errors": None}, "errors must be a list, got None"),
        ({"input_lens": [10, -20, 30]}, r"input_lens\[1\] must be a whole number, got -20"),
        ({"output_lens": [3, 2.5, 0]}, r"output_lens\[1\] must be a whole number, got 2\.5"),
        ({"request_rate": [2.0]}, r"request_rate must be a text or a number, got \[2\.0\]"),
        ({"burstiness": math.nan}, "burstiness must be a text or a number, got nan"),
        ({"backend": "sglang"}, "backend must be vllm or openai or .*, got 'sglang'"),
        ({"backend": None}, "backend must be vllm or .*, got None"),
        ({"endpoint_type": "vllm-pooling"}, "endpoint_type must be vllm or .*, got 'vllm-pooling'"),
        ({"data_kind": "guessed"}, "data_kind must be measured, got 'guessed'"),
        ({"device": "h200"}, "device must be cpu, got 'h200'"),
        ({"date": "today"}, "date must be like 20261129-203000, got 'today'"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused_by_its_field(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    ledger = Ledger.open(tmp_path / "bench", contract=CONTRACT)
    with pytest.raises(ConfigError, match=said):
        import_result(RESULT | changes, ledger, device="cpu")
    assert ledger.attempts().empty


@pytest.mark.parametrize("field", ["backend", "endpoint_type", "data_kind"])
def test_a_simulated_run_never_becomes_a_measured_one(field: str, tmp_path: Path) -> None:
    source = Ledger.open(tmp_path / "toy", contract=TOY)
    trial = try_cell(simulate, Provenance.collect(), toy_cell(1))
    exported = export_attempt(source, source.record(trial.attempt, requests=trial.requests))
    assert (exported["backend"], exported["data_kind"]) == ("sim", "simulated")
    for other in {"backend", "endpoint_type", "data_kind"} - {field}:
        del exported[other]
    ledger = Ledger.open(tmp_path / "bench", contract=CONTRACT)
    with pytest.raises(ConfigError, match=f"{field} is sim.*not imported as a measured one"):
        import_result(exported, ledger, device="cpu")
    assert ledger.attempts().empty


def simulate(cell: Cell) -> Outcome:
    """The toy's run, under the simulator's name and with the metrics of its table."""
    outcome = execute(cell)
    facts = replace(outcome.engine, engine="sim")
    times = {"arrival_s": 0.0, "first_scheduled_s": 0.5, "first_token_s": 1.0, "finish_s": 2.0}
    requests = outcome.requests.assign(**times)
    record = RunRecord(requests=requests, steps=pd.DataFrame())
    return replace(outcome, requests=requests, engine=facts, metrics=summarize(record))


# -- refusals --------------------------------------------------------------------------------------


def test_a_failed_attempt_cannot_be_exported(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, contract=TOY)
    trial = try_cell(execute, Provenance.collect(), toy_cell(1, "fail"))
    attempt_id = ledger.record(trial.attempt)
    with pytest.raises(LedgerError, match=f"no ok attempt is called '{attempt_id}'"):
        export_attempt(ledger, attempt_id)


def test_the_command_imports_a_file_and_exports_one(tmp_path: Path) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_text(json.dumps(RESULT))
    main([f"import={source}", f"ledger={tmp_path / 'bench'}", "device=cpu"])
    (attempt_id,) = Ledger.read(tmp_path / "bench").frame()["attempt_id"]
    main([f"export={attempt_id}", f"ledger={tmp_path / 'bench'}", f"out={target}"])
    assert json.loads(target.read_text())["completed"] == 2
    with pytest.raises(ConfigError, match=r"python -m runners\.interop import="):
        main(["import=x"])


@pytest.mark.parametrize("text", ["{", "[]", '{"date": 1}\n{"date": 2}'])
def test_a_file_that_is_not_one_result_is_refused_by_its_path(text: str, tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text(text)
    with pytest.raises(ConfigError, match=r"in\.json is not one JSON result"):
        main([f"import={source}", f"ledger={tmp_path / 'bench'}", "device=cpu"])
