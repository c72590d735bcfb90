"""Choose the engine that runs the cells, from what was asked for and what this machine has."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

from filelock import FileLock, Timeout

from hsexp.config.base import ConfigError
from hsexp.config.catalog import options, read_option
from hsexp.config.device import DeviceConfig
from hsexp.config.engine import VllmEngine
from hsexp.config.launch import Launch
from hsexp.engine.installed import plugin_fault
from hsexp.user_cache import cache_folder
from runners import sim
from runners.trial import Outcome
from runners.vllm import remains

Engine = Literal["sim", "vllm"]


def choose_engine(
    asked: Literal["sim", "vllm", "auto"], device: DeviceConfig
) -> tuple[Engine, str]:
    """The engine to run, and why.

    Raises:
        ConfigError: the engine was asked for by name and cannot run.
    """
    if asked == "sim":
        return "sim", "engine=sim was asked for"
    lacking = _missing_for_vllm(device)
    if asked == "vllm":
        if lacking is not None:
            raise ConfigError(f"engine vllm cannot run: {lacking}")
        return "vllm", "engine=vllm was asked for"
    if lacking is not None:
        return "sim", f"engine=auto: {lacking}"
    if _platform(device) != "cuda":
        return "sim", f"engine=auto uses vllm only on a GPU, and device {device.name} is not one"
    return "vllm", "engine=auto: vllm and a GPU are present"


def executor(engine: Engine, launch: Launch) -> Callable[..., Outcome]:
    """The function that runs one cell; importable in a spawned process.

    On a real engine it also takes `logs`, the folder of the attempts' logs.
    """
    if engine == "sim":
        return partial(sim.execute, record_steps=launch.keeps_steps)
    from runners.vllm.execute import execute

    assert isinstance(launch.engine, VllmEngine)
    return partial(execute, limits=launch.engine.limits)


def num_workers(engine: Engine, asked: int | None, num_cores: int) -> int:
    """Cells that run at the same time; one on a real engine, because its runs are timed.

    Raises:
        ConfigError: more were asked for.
    """
    if engine == "sim":
        return asked or num_cores
    if asked not in (None, 1):
        raise ConfigError(f"workers must be 1 for engine vllm, whose runs are timed, got {asked}")
    return 1


@contextmanager
def machine_for(engine: Engine) -> Iterator[None]:
    """Reserve this machine for a real engine; simulated runs share it.

    Nothing of an engine lives when the reservation ends.

    Raises:
        ConfigError: another launch runs a real engine here.
    """
    if engine == "sim":
        yield
        return
    path = cache_folder() / "real-runs.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            try:
                yield
            finally:
                remains.require_none()  # a launch that is stopped waits for its engine's end
    except Timeout:
        raise ConfigError(
            f"another launch runs a real engine on this machine ({path}); the two would disturb "
            "each other's times"
        ) from None


def _missing_for_vllm(device: DeviceConfig) -> str | None:
    for package in ("vllm", "torch"):
        if not _is_installed(package):
            return f"{package} is not installed"
    fault = plugin_fault()
    if fault is not None:
        return fault
    if _platform(device) != "cuda":
        return None
    if not _has_gpu():
        return f"device {device.name} needs a GPU, and {_why_no_gpu()} (device=cpu needs no GPU)"
    return _other_gpu(device)


def _other_gpu(device: DeviceConfig) -> str | None:
    """What is wrong with the GPU that is here; None if the device's name is right for it."""
    if device.gpu is None:
        return None
    name = _gpu_name()
    if re.search(device.gpu, name):
        return None
    fitting = [f"device={each.name}" for each in devices_of(name)]
    way_out = (
        f"type {' or '.join(fitting)}"
        if fitting
        else "write a device file for it (docs/devices.md)"
    )
    return f"device {device.name} is not the GPU that is here, {name}: {way_out}"


def devices_of(gpu: str) -> list[DeviceConfig]:
    """The options of conf/device whose pattern fits the driver's name of a GPU."""
    devices = (DeviceConfig.parse(read_option("device", name)) for name in options("device"))
    return [device for device in devices if device.gpu and re.search(device.gpu, gpu)]


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _gpu_name() -> str:
    import torch

    return str(torch.cuda.get_device_name())


def _why_no_gpu() -> str:
    """None is there, its driver is too old, or torch is a build for CPUs."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        if "too old" in str(error):
            return str(error).strip().partition(". ")[0]  # names the version that was found
    return "none is present"


def _platform(device: DeviceConfig) -> str | None:
    return None if device.hardware is None else device.hardware.platform
