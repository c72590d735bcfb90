"""Results of `vllm bench serve` come in and go out with their numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from toy_campaign import CONTRACT as TOY
from toy_campaign import execute, toy_cell

from hsexp.config.base import ConfigError
from hsexp.ledger import Ledger, LedgerError, Provenance
from runners.interop import CONTRACT, export_attempt, import_result, main
from runners.trial import try_cell

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
