"""Which engine runs the cells: what was asked for, and what this machine has."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Literal

from hsexp.config.base import ConfigError
from runners import sim
from runners.trial import Execute

Engine = Literal["sim", "vllm"]

_EXECUTE: dict[str, Callable[..., object]] = {"sim": sim.execute}
"""Runners there are; an engine without one is refused."""


def choose_engine(asked: Literal["sim", "vllm", "auto"]) -> tuple[Engine, str]:
    """The engine to run, and why.

    Raises:
        ConfigError: the engine was asked for by name and cannot run.
    """
    if asked == "sim":
        return "sim", "engine=sim was asked for"
    if asked == "vllm":
        if "vllm" not in _EXECUTE:
            raise ConfigError("engine vllm cannot run: this version has no runner for it yet")
        return "vllm", "engine=vllm was asked for"
    lacking = _what_vllm_lacks()
    if lacking is None:
        return "vllm", "engine=auto: vllm and a GPU are present"
    return "sim", f"engine=auto: {lacking}"


def executor(engine: Engine, *, record_steps: bool) -> Execute:
    """The function that runs one cell; importable in a spawned process."""
    execute: Execute = partial(_EXECUTE[engine], record_steps=record_steps)  # type: ignore[assignment]
    return execute


def _what_vllm_lacks() -> str | None:
    for package in ("vllm", "torch"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    import torch

    if not torch.cuda.is_available():
        return "no GPU is present"
    if "vllm" not in _EXECUTE:
        return "this version has no runner for vllm yet"
    return None
