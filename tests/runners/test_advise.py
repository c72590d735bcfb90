"""Advice as a user gets it: two sentences, a table, a figure and a command, from a trace."""

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import ROOT
from small_launches import carried_out

import analysis.__main__
from analysis.advice import Advice
from analysis.errors import AnalysisError
from analysis.intervals import Interval
from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.engine.settings import KEY, ServingSettings
from hsexp.ledger import Ledger
from hsexp.memory.geometry import ModelConfig
from hsexp.plan.advice import THROUGHPUT, TTFT

MODELS = ROOT / "tests" / "models" / "configs"

LEDGER = Path("ledgers/advise/sim")
ANALYSIS = LEDGER / "analysis"


def write_trace(path: Path, rows: int, *, gap_s: float = 0.2) -> None:
    """Requests that share nothing, with lengths that differ; no randomness."""
    lines = ["arrival_s,input_tokens,output_tokens"]
    lines += [f"{gap_s * i:.3f},{600 + 700 * (i % 5)},{40 + 30 * (i % 7)}" for i in range(rows)]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("requests.csv"), 24)


SMALL = (
    "campaign=advise",
    "workload.path=requests.csv",
    "budget=bytes",
    "budget.bytes=30000000",
    "retention=off",
    "waiting=first_come",
    "workers=1",
)
"""Few pages, so that headroom and organizations differ; 20 cells and what follows from them."""


def summary(folder: Path = ANALYSIS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "advise.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the small launch has ended."""
    folder = tmp_path_factory.mktemp("advised")
    write_trace(folder / "requests.csv", 24)
    with contextlib.chdir(folder):
        result, printed = carried_out(*SMALL, analyse=True)
    assert result.exit_code == 0, printed
    return folder


@pytest.fixture
def advised(finished: Path) -> dict[str, Any]:
    """Its answer; the launch itself is copied to the working directory."""
    shutil.copytree(finished / "ledgers", "ledgers")
    return summary()


# -- what it ends in -------------------------------------------------------------------------------


def test_a_launch_ends_in_two_sentences_a_table_a_figure_and_a_command(
    advised: dict[str, Any],
) -> None:
    first, second = advised["sentences"]
    assert first.startswith("Serve falcon_h1_7b on a100_40gb with ")
    assert "simulated (affine-a100-v2)" in second
    assert {path.name for path in ANALYSIS.iterdir()} >= {
        "advise.csv",
        "advise.json",
        "advise-sensitivity.csv",
        "figure-advise.svg",
    }
    assert [row["where"] for row in advised["sensitivity"]] == [
        "budget x 0.8",
        "budget x 1.2",
        "step times x 0.5",
        "step times x 2",
    ]


def test_the_analysis_makes_the_same_from_the_ledger_alone(advised: dict[str, Any]) -> None:
    analysis.__main__.main(["campaign=advise", "out=again"])
    assert summary(Path("again")) == advised
    for name in ("advise.json", "advise.csv", "advise-sensitivity.md"):
        assert (Path("again") / name).read_bytes() == (ANALYSIS / name).read_bytes()


def test_every_arm_has_an_interval_and_the_advised_one_is_first(advised: dict[str, Any]) -> None:
    arms = advised["arms"]
    assert [row["rank"] for row in arms] == list(range(1, len(arms) + 1))
    for row in arms:
        assert row["throughput_low"] <= row["throughput_high"]
        assert row["ttft_low"] <= row["ttft_high"]
    assert arms[0]["headroom"] == advised["advised"]["headroom"]
    most = max(row["throughput_tok_per_s"] for row in advised["all_arms"])
    assert arms[0]["throughput_tok_per_s"] >= 0.99 * most


def test_the_command_is_one_that_the_plugin_takes(advised: dict[str, Any]) -> None:
    words = str(advised["serve"])
    assert words.startswith("vllm serve tiiuae/Falcon-H1-7B-Instruct --scheduler-cls hsexp.engine.")
    settings = json.loads(words.split("--additional-config '")[1].split("'")[0])[KEY]
    assert settings["budget_bytes"] == 30000000
    assert settings["organization"] == advised["advised"]["organization"]
    model = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
    ServingSettings.of(settings).resolve(model, cap=256)


def test_a_gain_that_may_be_noise_is_not_advised(
    advised: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advised["advised"]["organization"] != "s0"
    noise = Interval(low=-1.0, high=3.0, level=0.95, kind="block bootstrap", n=40)
    monkeypatch.setattr(
        Advice, "_changes", lambda self, arm, base: dict.fromkeys((THROUGHPUT, TTFT), noise)
    )
    analysis.__main__.main(["campaign=advise", "out=again"])
    found = summary(Path("again"))
    assert "that is the default" in found["sentences"][0]
    assert found["advised"]["organization"] == "s0"
    assert found["arms"][0]["organization"] == "S0"
    assert all(row["stands"] for row in found["sensitivity"])


# -- resuming --------------------------------------------------------------------------------------


def test_a_launch_that_is_repeated_runs_nothing_and_says_the_same(
    advised: dict[str, Any],
) -> None:
    cells = Ledger.read(LEDGER).accepted()
    _, printed = carried_out(*SMALL, analyse=True)
    assert "20 already accepted, 0 to run" in printed
    assert summary() == advised
    assert Ledger.read(LEDGER).accepted() == cells


@pytest.mark.parametrize(
    "attempts",
    [pytest.param(3, marks=pytest.mark.slow), 22, pytest.param(34, marks=pytest.mark.slow)],
)
def test_a_launch_that_was_killed_anywhere_goes_on_to_the_same_answer(
    attempts: int, finished: Path
) -> None:
    process = commands.start(*SMALL, cwd=Path.cwd())
    commands.wait_for_attempts(LEDGER, attempts)
    process.kill()
    process.communicate()
    carried_out(*SMALL, analyse=True)
    assert summary() == summary(finished / ANALYSIS)


# -- a target --------------------------------------------------------------------------------------


def test_the_advised_arm_keeps_the_target(advised: dict[str, Any]) -> None:
    values = sorted({row["ttft_p99_s"] for row in advised["all_arms"]})
    bound = round((values[0] + values[1]) / 2.0, 4)
    carried_out(*SMALL, f"target='ttft_p99_s<{bound}'", analyse=True)
    found = summary()
    assert found["arms"][0]["ttft_p99_s"] == values[0]
    assert f"which keeps ttft_p99_s<{bound:g}" in found["sentences"][0]


def test_a_target_that_no_arm_reaches_is_refused_with_the_nearest_value(
    advised: dict[str, Any],
) -> None:
    shutil.rmtree(ANALYSIS)
    with pytest.raises(AnalysisError, match=r"target ttft_p99_s<0.001: none of \d+ arms keeps it"):
        carried_out(*SMALL, "target='ttft_p99_s<0.001'", analyse=True)
    assert not ANALYSIS.exists()


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        ("ttft_p98_s<2", "no metric is called 'ttft_p98_s'; the nearest is ttft_p99_s"),
        ("ttft_p99_s", "target must be like ttft_p99_s<2, got 'ttft_p99_s'"),
        ("ttft_p99_s<soon", "target must be like ttft_p99_s<2"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused_before_any_work(target: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        carried_out(*SMALL, f"target='{target}'")
    assert not LEDGER.exists()


# -- what cannot be advised ------------------------------------------------------------------------


def test_a_budget_smaller_than_one_request_is_refused_with_the_least_that_works() -> None:
    small = [word for word in SMALL if not word.startswith("budget.bytes")]
    with pytest.raises(ConfigError, match="is too small under every organization") as refused:
        carried_out(*small, "budget.bytes=3000000")
    least = str(refused.value).rpartition("budget.bytes=")[2]
    assert carried_out(*small, f"budget.bytes={least}", "stage=plan")[0].exit_code == 0
    assert not LEDGER.exists()


def test_requests_beyond_the_model_are_refused_with_the_length_that_works() -> None:
    with pytest.raises(ConfigError, match=r"max_model_tokens=3590 serves them"):
        carried_out(*SMALL, "model.max_model_tokens=2000")
    assert carried_out(*SMALL, "model.max_model_tokens=3590", "stage=plan")[0].exit_code == 0


def test_memory_of_a_gpu_beside_a_budget_that_is_given_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpu_gib must be null beside a budget that is given"):
        carried_out(*SMALL, "gpu_gib=80")


def test_organizations_that_cannot_carry_the_model_are_left_out_with_a_sentence() -> None:
    trace = Path("requests.csv").absolute()
    done = commands.run(
        "campaign=advise",
        f"model={MODELS / 'lfm2_1_2b.json'}",
        f"workload.path={trace}",
        "budget=bytes",
        "budget.bytes=30000000",
        "stage=plan",
        cwd=Path.cwd(),
    )
    assert done.returncode == 0, done.stderr
    assert "s2 packs convolution states, and the model has none" in done.stdout
    assert "it is left out" in done.stdout


# -- a new user ------------------------------------------------------------------------------------

LIMIT_S = 600.0
"""What a new user may wait on two cores."""


def three_commands(rows: int, *more: str) -> tuple[list[str], float]:
    """A new user's script: the plan, the answer, and the answer under a target. Returns what each
    command printed, and their seconds."""
    Path("my-model").mkdir()
    shutil.copy(MODELS / "nemotron_h_8b.json", "my-model/config.json")
    write_trace(Path("mine.csv"), rows, gap_s=0.05)
    script = ("campaign=advise", "model=my-model", *GPU, "workload.path=mine.csv", *more)
    printed, start = [], time.monotonic()
    for last in ("stage=plan", "stage=all", "target=ttft_p99_s<1000"):
        done = commands.run(*script, last, cwd=Path.cwd())
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    return printed, time.monotonic() - start


GPU = ("device=h100", "gpu_gib=22")


def test_three_commands_of_a_new_user_end_in_two_sentences() -> None:
    printed, _ = three_commands(30, "retention=off", "waiting=first_come")
    assert "budget beside_weights: " in printed[0]
    assert "Serve my-model on " in printed[1]
    assert "vllm serve " in printed[1]
    assert ", which keeps ttft_p99_s<1000: " in printed[2]


@pytest.mark.slow
def test_the_answer_for_a_trace_of_four_hundred_rows_takes_less_than_ten_minutes() -> None:
    printed, seconds = three_commands(400)
    assert "Serve my-model on " in printed[1]
    assert seconds < LIMIT_S
