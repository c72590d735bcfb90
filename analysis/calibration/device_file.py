"""Writes a fitted step-time model as an option of conf/device."""

import json
from pathlib import Path

from analysis.calibration.fit import TERMS, Fit
from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.device import DeviceConfig

DIGITS = 9
"""Whole nanoseconds: the resolution of the simulator's clock."""


def to_device(name: str, fit: Fit, *, description: str, source: str) -> DeviceConfig:
    """The device that a fit describes.

    Raises:
        AnalysisError: the name or a coefficient is refused.
    """
    terms = {term: round(float(fit.coefficients[term]), DIGITS) for term in TERMS}
    try:
        return DeviceConfig.parse(
            {
                "name": name,
                "description": description,
                "step_time": {"name": f"affine-{name}", **terms},
                "source": source,
            },
            path="device",
        )
    except ConfigError as error:
        raise AnalysisError(str(error)) from None


def write_device(device: DeviceConfig, fit: Fit, path: Path, *, overwrite: bool) -> None:
    """Write the file that `device=NAME` reads.

    Raises:
        AnalysisError: the file exists and may not be overwritten, or cannot be written.
    """
    if path.exists() and not overwrite:
        raise AnalysisError(f"{path} exists; overwrite=true replaces it, out= names another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_yaml(device, fit), encoding="utf-8")
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be written: {error.strerror}") from None


def _yaml(device: DeviceConfig, fit: Fit) -> str:
    terms = device.known_step_time.model_dump(include=set(TERMS))
    lines = [
        "# Fitted by `python -m analysis calibrate`.",
        f"name: {device.name}",
        f"description: {json.dumps(device.description, ensure_ascii=False)}",
        "step_time:",
        f"  name: {device.known_step_time.name}",
        *(f"  {term}: {terms[term]:.{DIGITS}f}{_precision(fit, term)}" for term in TERMS),
        f"source: {json.dumps(device.source, ensure_ascii=False)}",
    ]
    return "\n".join([*lines, ""])


def _precision(fit: Fit, term: str) -> str:
    error = float(fit.standard_errors[term])
    return "  # held at 0" if error != error else f"  # standard error {error:.2g}"
