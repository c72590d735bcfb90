"""`python -m hsexp trace=FILE`: what is in a trace, before any run."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import Command

import hsexp.__main__ as entry
from hsexp.describe import main
from hsexp.described import names_trace


@pytest.fixture
def described(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Statistics of a text as JSON."""

    def describe(name: str, text: str, *arguments: str) -> Any:
        (tmp_path / name).write_text(text)
        code = main([f"trace={tmp_path / name}", "json=true", *arguments])
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out)

    return describe


LENGTHS = (
    "arrival_s,input_tokens,output_tokens,user\n0,100,10,a\n1,300,10,b\n2,200,20,a\n4,400,40,c\n"
)


def test_lengths_rates_and_gaps_are_those_of_the_file(described: Any) -> None:
    found = described("a.csv", LENGTHS)
    assert (found["format"], found["num_requests"], found["left_out"]) == ("lengths", 4, {})
    assert found["prompt_tokens"] == {
        "mean": 250.0,
        "p50": 250.0,
        "p90": 370.0,
        "p99": 397.0,
        "max": 400.0,
    }
    gaps = np.array([1, 1, 2])
    assert found["load"] == {
        "duration_s": 4.0,
        "rate_per_s": 0.75,  # three gaps in four seconds
        "prompt_tokens_per_s": 250.0,
        "output_tokens_per_s": 20.0,
        "peak_per_s": 0.4,
        "gap_cv": pytest.approx(gaps.std() / gaps.mean()),
    }
    assert found["sessions"] is None
    assert found["sharing"] == {"reused_fraction": 0.0, "num_reusing": 0, "depth_tokens": None}


def test_sessions_and_their_pauses_are_counted(described: Any) -> None:
    found = described("a.csv", LENGTHS, "workload.columns.session=user")
    assert found["sessions"]["num_sessions"] == 3
    assert found["sessions"]["turns"]["max"] == 2.0
    assert found["sessions"]["pause_s"]["mean"] == 2.0
    # Turn 2 of a holds 100 tokens of the prompt and 10 of the answer.
    assert found["sharing"]["reused_fraction"] == 110 / 1000


def test_sharing_is_that_of_an_unlimited_cache_and_of_each_grid(described: Any) -> None:
    records = [
        {"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 4]},
        {"timestamp": 2, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 4]},
        {"timestamp": 3, "input_length": 512, "output_length": 1, "hash_ids": [9]},
    ]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    found = described("m.jsonl", text)
    prompt = 1536 + 1100 + 1100 + 512
    # The third prompt is the second one: all but its last token.
    assert found["sharing"]["reused_fraction"] == (1024 + 1099) / prompt
    assert found["sharing"]["num_reusing"] == 2
    sets = {each["organization"]: each for each in found["working_sets"]}
    assert set(sets) == {"s0", "s1", "s2", "s3", "d0"}
    # S1: grid and blocks of 512. Two blocks are asked for twice, one checkpoint is resumed at.
    assert sets["s1"]["reused_fraction"] == 2 * 1024 / prompt
    layers, block, page = 44, 512 * 1024, 1536 * 1024 + 21 * 1024
    assert sets["s1"]["reused_bytes"] == layers * (2 * block + -(-page // block) * block)
    assert sets["d0"]["reused_fraction"] == 0.0  # its grid is 1,792
    assert sets["s1"]["all_bytes"] > sets["s1"]["reused_bytes"]


def test_settings_of_the_trace_and_of_the_model_are_typed_as_for_a_campaign(
    described: Any,
) -> None:
    typed = ("workload.max_requests=2", "workload.speed=2", "model=granite_4_h", "organization=s2")
    found = described("a.csv", LENGTHS, *typed, "model.max_model_tokens=305")
    assert (found["num_requests"], found["load"]["duration_s"]) == (2, 0.5)
    assert found["model"] == {"name": "granite_4_h", "max_model_tokens": 305, "num_too_long": 1}
    assert [each["organization"] for each in found["working_sets"]] == ["s2"]


def test_what_is_left_out_is_said(described: Any, tmp_path: Path, capfd: Any) -> None:
    text = LENGTHS.replace("300,10", "300,0")
    assert described("a.csv", text, "workload.zero_output=drop")["left_out"] == {
        "without output": 1
    }
    assert main([f"trace={tmp_path / 'a.csv'}", "workload.zero_output=drop"]) == 0
    out = capfd.readouterr().out
    assert "left out: 1 without output" in out
    assert "working set of falcon_h1_7b" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["workload.columns.output=gen"], "workload.columns.output=gen is not in the file"),
        (["workload.format=nonsense"], "workload.format must be 'auto'"),
        (["workload.speed=0"], "workload.speed must be greater than 0"),
        (["budget=b63"], "budget=b63 means nothing to trace=FILE"),
        (["json=maybe"], "json must be true or false, got 'maybe'"),
        (["model=nobody"], "nobody"),
        (["now"], "arguments are key=value, got 'now'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    (tmp_path / "a.csv").write_text(LENGTHS)
    assert main([f"trace={tmp_path / 'a.csv'}", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert reason in err
    assert list(tmp_path.iterdir()) == [tmp_path / "a.csv"]


def test_a_switch_of_a_campaign_is_no_file() -> None:
    assert names_trace(["trace=a.csv"])
    assert names_trace(["workload.speed=2", "trace=a.csv"])
    assert not names_trace(["campaign=q7", "trace=true"])
    assert not names_trace(["trace=true"])
    assert not names_trace(["campaign=q6"])


def test_the_command_of_a_file_is_the_entry_point_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(LENGTHS)
    monkeypatch.setattr(sys, "argv", ["hsexp", f"trace={tmp_path / 'a.csv'}"])
    assert entry.main() == 0
    assert "a.csv: lengths, 4 requests" in capfd.readouterr().out


# -- campaigns -------------------------------------------------------------------------------------


def test_a_campaign_says_what_its_trace_leaves_out(command: Command, lengths: Path) -> None:
    lengths.write_text(lengths.read_text() + "1.5,10,0\n")
    typed = ("campaign=trace", f"workload.path={lengths}", "organization=s2", "stage=plan")
    code, printed = command(*typed)
    assert code == 2
    assert "output_tokens must be in" in printed
    code, printed = command(*typed, "workload.zero_output=drop")
    assert code == 0
    assert "the trace leaves out 1 without output" in printed


def test_a_campaign_serves_turns_that_wait(command: Command, lengths: Path, tmp_path: Path) -> None:
    lengths.write_text("arrival_s,input_tokens,output_tokens,user\n0,9,40,a\n1,60,4,a\n")
    closed = ("workload.columns.session=user", "workload.turns=closed", "workload.think_s=1")
    typed = ("campaign=trace", f"workload.path={lengths}", "organization=s2", "stage=run")
    code, printed = command(*typed, *closed, "ledger=ledger", "workers=1")
    assert code == 0, printed
