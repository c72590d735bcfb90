"""Which engine runs: what is asked for, and what the machine has."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from small_launches import carried_out

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from runners import engines
from runners.engines import choose_engine, machine_for, num_workers

CPU = DeviceConfig.parse(read_option("device", "cpu"))
A100 = DeviceConfig.parse(read_option("device", "a100_40gb"))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vllm and torch were installed, on a machine without a GPU."""
    monkeypatch.setattr(engines, "_is_installed", lambda package: True)
    monkeypatch.setattr(engines, "_has_gpu", lambda: False)
    monkeypatch.setattr(engines, "_why_no_gpu", lambda: "none is present")


def test_sim_runs_everywhere() -> None:
    assert choose_engine("sim", A100)[0] == "sim"


@pytest.mark.usefixtures("packages")
def test_vllm_on_cores_must_be_asked_for_with_a_device_of_cores() -> None:
    assert choose_engine("vllm", CPU) == ("vllm", "engine=vllm was asked for")
    with pytest.raises(ConfigError, match="device a100_40gb needs a GPU, and none is present"):
        choose_engine("vllm", A100)


@pytest.mark.usefixtures("packages")
def test_auto_takes_vllm_only_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("auto", A100)[0] == "sim"
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    assert choose_engine("auto", A100)[0] == "vllm"
    engine, why = choose_engine("auto", CPU)
    assert (engine, why) == (
        "sim",
        "engine=auto uses vllm only on a GPU, and device cpu is not one",
    )


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_is_installed", lambda package: package != "torch")
    with pytest.raises(ConfigError, match="engine vllm cannot run: torch is not installed"):
        choose_engine("vllm", CPU)
    assert choose_engine("auto", CPU) == ("sim", "engine=auto: torch is not installed")


@pytest.mark.parametrize(
    ("cuda", "fault", "said"),
    [
        (None, None, "torch 2.0+cpu is a build without CUDA"),
        ("13.0", "Found no NVIDIA driver on your system. Please check", "none is present"),
        (
            "13.0",
            "The NVIDIA driver on your system is too old (found version 11040). Please update",
            "The NVIDIA driver on your system is too old (found version 11040)",
        ),
    ],
)
def test_no_gpu_an_old_driver_and_a_build_for_cpus_are_three_messages(
    cuda: str | None, fault: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")

    def init() -> None:
        raise RuntimeError(fault)

    for name, value in {
        "__version__": "2.0+cpu",
        "version": SimpleNamespace(cuda=cuda),
        "cuda": SimpleNamespace(is_available=lambda: False, init=init),
    }.items():
        monkeypatch.setattr(torch, name, value, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(engines, "_is_installed", lambda package: True)
    monkeypatch.setattr(engines, "plugin_fault", lambda: None)
    with pytest.raises(ConfigError) as refused:
        choose_engine("vllm", A100)
    assert f"device a100_40gb needs a GPU, and {said} (device=cpu" in str(refused.value)


def test_one_real_run_at_a_time_in_a_launch() -> None:
    assert num_workers("vllm", None, 8) == num_workers("vllm", 1, 8) == 1
    assert (num_workers("sim", None, 8), num_workers("sim", 3, 8)) == (8, 3)
    with pytest.raises(ConfigError, match="workers must be 1 for engine vllm"):
        num_workers("vllm", 2, 8)


def test_one_real_launch_at_a_time_on_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with machine_for("vllm"):
        with machine_for("sim"):
            pass
        with (
            pytest.raises(ConfigError, match="another launch runs a real engine on this machine"),
            machine_for("vllm"),
        ):
            raise AssertionError
    with machine_for("vllm"):
        pass


@pytest.mark.parametrize("stage", ["plan", "run"])
@pytest.mark.parametrize("engine", ["sim", "auto"])
def test_a_device_without_step_times_is_refused_before_the_first_cell(
    stage: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        carried_out("campaign=q6", f"engine={engine}", "device=cpu", f"stage={stage}")
    assert "device cpu" in str(refused.value)
    assert "python -m analysis calibrate" in str(refused.value)
    assert not list(tmp_path.iterdir())
