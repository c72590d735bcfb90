"""A launch returns its objective, so that a sweeper can search."""

import json
from importlib.util import find_spec
from pathlib import Path

import commands
import pytest
from small_launches import carried_out, swept, write_trace

from hsexp.config.base import ConfigError
from hsexp.ledger import Ledger
from hsexp.measure.metrics import metric_names

RATE = "objective=throughput_tok_per_s"

Q6 = ("campaign=q6", "workload.num_requests=4", "seeds=[7,8]", "workers=1", "stage=run")
TWO_RUNS = (*Q6, "organization=s2", "budget=b63", "admission.headroom=0")

TRACE = ("campaign=trace", "workload.path=three.csv", "organization=s2", "workers=1")

WATCH = """
import pathlib
from hydra.experimental.callback import Callback

class Watch(Callback):
    def on_job_end(self, config, job_return, **kwargs):
        path = pathlib.Path(config.hydra.runtime.cwd) / "returned.txt"
        with path.open("a") as file:
            print(repr(job_return.return_value), file=file)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trace(tmp_path / "three.csv", "0.0,900,4", "0.5,40,3", "0.9,2000,5")
    (tmp_path / "watch.py").write_text(WATCH)
    return tmp_path


def test_the_objective_is_the_mean_over_the_cells_of_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(*TWO_RUNS, RATE)
    rates = Ledger.read("ledgers/q6/sim").frame()["throughput_tok_per_s"]
    assert len(rates) == 2
    assert result.objective == rates.mean()
    assert f"q6: objective throughput_tok_per_s: {rates.mean():,.6g}" in printed


def test_cells_of_other_launches_in_the_ledger_are_not_in_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, _ = carried_out(*TWO_RUNS, RATE)
    other, _ = carried_out(*TWO_RUNS[:-1], "admission.headroom=0.9", RATE)
    again, _ = carried_out(*TWO_RUNS, RATE)
    assert first.objective == again.objective != other.objective


def test_a_launch_without_an_objective_returns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(*TWO_RUNS)
    assert (result.objective, "objective" in printed) == (None, False)


def test_an_objective_that_no_run_has_is_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"got ttft_p9_s; the nearest are ttft_p99_s, ttft_p50_s"):
        carried_out(*TWO_RUNS, "objective=ttft_p9_s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("campaign", ["capacity", "paper"])
def test_a_campaign_without_one_answer_refuses_an_objective(campaign: str) -> None:
    with pytest.raises(ConfigError, match=r"objective means nothing to campaign"):
        carried_out(f"campaign={campaign}", "stage=plan", RATE)


def test_an_objective_may_be_any_metric_of_the_rows_but_an_engines_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    carried_out(*TWO_RUNS)
    assert set(metric_names()) <= set(Ledger.read("ledgers/q6/sim").frame().columns)
    assert {"throughput_tok_per_s", "ttft_p99_s", "num_preemptions"} <= set(metric_names())


def test_a_job_of_a_sweep_returns_its_objective_to_hydra(folder: Path) -> None:
    watched = "+hydra.callbacks.watch._target_=watch.Watch"
    process = commands.start(
        *("-m", *TRACE, "stage=run", RATE, "admission.cap=1,2", watched),
        cwd=folder,
        env=commands.environment(folder),
    )
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    rates = Ledger.read(folder / "ledgers/trace/sim").frame().set_index("cap")
    expected = rates["throughput_tok_per_s"].loc[[1, 2]].tolist()
    returned = [float(line) for line in (folder / "returned.txt").read_text().split()]
    assert returned == expected
    (sweep,) = (folder / "sweeps").iterdir()
    reports = [json.loads((sweep / f"job-{job}.json").read_text()) for job in (0, 1)]
    assert [report["objective"] for report in reports] == expected
    assert f"{expected[0]:,.6g}" in out


HAS_OPTUNA = (
    find_spec("hydra_plugins") is not None
    and find_spec("hydra_plugins.hydra_optuna_sweeper") is not None
)


@pytest.mark.skipif(
    not HAS_OPTUNA, reason="hydra_optuna_sweeper is not installed: pip install -e .[search]"
)
def test_optuna_searches_headroom_split_and_cap_in_one_ledger(folder: Path) -> None:
    code, printed = swept(
        folder,
        *("campaign=trace", "workload.path=three.csv", "organization=d0", "workers=1", RATE),
        *("hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=4"),
        *("hydra.sweeper.n_jobs=1", "hydra.sweeper.sampler.seed=1"),
        "admission.headroom=interval(0.0,0.5)",
        "admission.cap=range(1,4)",
        "organization.attention_fraction=interval(0.3,0.7)",
        "organization.name=d0_${organization.attention_fraction}",
    )
    assert code == 0, printed
    runs = Ledger.read(folder / "ledgers/trace/sim").frame()
    assert len(runs) == 4
    assert runs["organization"].nunique() == 4
    (sweep,) = (folder / "sweeps").iterdir()
    found = (sweep / "optimization_results.yaml").read_text()
    assert f"best_value: {runs['throughput_tok_per_s'].max()}" in found
    assert "is best: throughput_tok_per_s" in printed
