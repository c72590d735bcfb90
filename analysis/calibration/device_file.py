"""Writes a fitted step-time model as a device option of the user: DIR/device/NAME.yaml."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from analysis.calibration.fit import CONTEXT, Fit
from analysis.errors import AnalysisError
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, folders, standing_options
from hsexp.config.device import DeviceConfig

OWN = Path("conf-local")
"""Folder of the user's own options, below the working directory."""

DIGITS = 9
"""Decimals of a second: nanoseconds, the resolution of the simulator's clock."""

_FINER = {CONTEXT: 12}
"""Picoseconds: a token of context takes some nanoseconds."""


def to_device(
    name: str, fit: Fit, *, description: str, source: str, model: str | None
) -> DeviceConfig:
    """The device that a fit describes.

    Raises:
        AnalysisError: the name or a coefficient is invalid.
    """
    terms = {term: round(float(fit.coefficients[term]), _digits(term)) for term in fit.terms}
    try:
        return DeviceConfig.parse(
            {
                "name": name,
                "description": description,
                "step_time": {"name": f"affine-{name}", **terms},
                "source": source,
                "fitted_model": model,
            },
            path="device",
        )
    except ConfigError as error:
        raise AnalysisError(str(error)) from None


def default_path(name: str) -> Path:
    """Default path of a device file: in the folder of the user's own options, never in `conf`.

    Raises:
        AnalysisError: `conf` has a device of that name, which Hydra would use instead.
    """
    if name in standing_options("device"):
        raise AnalysisError(
            f"device {name} exists in {CONF / 'device'}, and Hydra would use that one; "
            "choose another name"
        )
    own = [folder for folder in folders() if folder != CONF]
    return (own[0] if own else OWN) / "device" / f"{name}.yaml"


def how_to_use(path: Path) -> str:
    """The command that simulates on the device of a file."""
    if path.parent.name != "device":
        return f"move it to DIR/device/{path.name}, then --config-dir DIR device={path.stem}"
    folder = path.parent.parent
    if folder.resolve() == CONF:
        return f"python -m hsexp device={path.stem} engine=sim"
    return f"python -m hsexp --config-dir {shlex.quote(str(folder))} device={path.stem} engine=sim"


def write_device(
    device: DeviceConfig,
    fit: Fit,
    path: Path,
    *,
    overwrite: bool,
    remarks: Sequence[str] = (),
) -> None:
    """Write the file that `device=NAME` reads.

    Args:
        remarks: on the fit; comments of the file.

    Raises:
        AnalysisError: the file exists and may not be overwritten, or cannot be written.
    """
    if path.exists() and not overwrite:
        raise AnalysisError(f"{path} exists; overwrite=true replaces it, out= names another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_yaml(device, fit, remarks), encoding="utf-8")
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be written: {error.strerror}") from None


def _yaml(device: DeviceConfig, fit: Fit, remarks: Sequence[str]) -> str:
    terms = device.known_step_time.model_dump(include=set(fit.terms))
    lines = [
        "# Fitted by `python -m analysis calibrate`.",
        *(f"# {remark}" for remark in remarks),
        f"name: {device.name}",
        f"description: {json.dumps(device.description, ensure_ascii=False)}",
        "step_time:",
        f"  name: {device.known_step_time.name}",
        *(
            f"  {term}: {terms[term]:.{_digits(term)}f}{_precision(fit, term)}"
            for term in fit.terms
        ),
        f"source: {json.dumps(device.source, ensure_ascii=False)}",
        f"fitted_model: {json.dumps(device.fitted_model)}",
    ]
    return "\n".join([*lines, ""])


def _digits(term: str) -> int:
    return _FINER.get(term, DIGITS)


def _precision(fit: Fit, term: str) -> str:
    error = float(fit.standard_errors[term])
    return "  # held at 0" if error != error else f"  # standard error {error:.2g}"
