"""The grid of a probe, what it launches, and what it refuses. `tests/engine` runs one."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from hsexp.plan.planner import make_plan
from runners import probe

GRID = probe.ProbeConfig(
    batches=(1, 2),
    prompt_tokens=(64, 128),
    output_tokens=8,
    gap_s=1.0,
    model="falcon_h1_mini",
    hardware="cpu",
    organizations=("d0", "s2"),
    budget_bytes=100_000_000,
)


def test_a_burst_of_each_size_comes_for_each_prompt() -> None:
    assert list(GRID.requests()) == [
        (0.0, 64, 8),
        (1.0, 64, 8),
        (1.0, 64, 8),
        (2.0, 128, 8),
        (3.0, 128, 8),
        (3.0, 128, 8),
    ]


def test_a_probe_plans_traced_runs_under_both_kinds_of_kernels(tmp_path: Path) -> None:
    overrides = probe.launch_of(GRID, tmp_path)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", overrides))
    cells = make_plan(launch, engine="vllm").cells
    assert launch.keeps_steps
    assert [cell.axes["organization"] for cell in cells] == ["d0", "s2"]
    assert all(cell.config["trace"] for cell in cells)
    assert all(cell.config["admission"]["cap"] == 2 for cell in cells)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=falcon_h1_mini"], "probe needs device="),
        (["device=a100_40gb"], "device a100_40gb exists"),
        (["device=mine", "speed=2"], "argument speed=2 is unknown"),
    ],
)
def test_what_a_probe_cannot_write_is_refused_before_it_runs(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnalysisError, match=message):
        probe.main(arguments)
    assert not list(tmp_path.iterdir())


def test_a_device_that_was_written_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(AnalysisError, match="overwrite=true replaces it"):
        probe.main(["device=mine", "out=mine.yaml"])


@pytest.mark.parametrize("argument", ["model=nope", "hardware=nope"])
def test_a_probe_of_what_does_not_exist_is_refused_before_it_writes(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="'nope' does not exist; choose from"):
        probe.main(["device=mine", argument])
    assert not any(tmp_path.iterdir())
