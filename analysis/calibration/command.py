"""`python -m analysis calibrate`: fits the step-time model, reports it, writes a device file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.calibration.device_file import default_path, to_device, write_device
from analysis.calibration.fit import Fit, fit, fit_with_context
from analysis.calibration.published import PAPER_MODEL, published_work
from analysis.calibration.report import (
    NO_CONTEXT_TERM,
    coefficients_table,
    residuals_table,
    rows_table,
    runs_table,
    spread,
)
from analysis.calibration.steps import read_steps
from analysis.command import LEDGERS, parse_pairs
from analysis.errors import AnalysisError
from analysis.runs import Origin
from analysis.tables.table import Table
from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig

PAPER_DEVICE = "a100_40gb"

KEYS = ("source", "device", "out", "overwrite", "context", "errors")

_OF_LEDGERS = ("context", "errors")
"""Those that only a fit of ledgers takes."""


def calibrate(arguments: Sequence[str]) -> tuple[list[Table], Path, Path | None]:
    """The report, its output folder, and the device file if one was requested.

    Raises:
        AnalysisError: an argument is refused, the steps do not identify the model, or the device
            file exists.
    """
    ledgers = [Path(text[len("ledger=") :]) for text in arguments if text.startswith("ledger=")]
    others = [text for text in arguments if not text.startswith("ledger=")]
    given = parse_pairs(others, keys=KEYS)
    if given.get("source", "ledger") not in ("ledger", "paper"):
        raise AnalysisError(f"source must be ledger or paper, got {given['source']}")
    for switch in ("overwrite", "context"):
        if given.get(switch, "false") not in ("true", "false"):
            raise AnalysisError(f"{switch} must be true or false, got {given[switch]}")
    if given.get("errors", "absolute") not in ("absolute", "relative"):
        raise AnalysisError(f"errors must be absolute or relative, got {given['errors']}")
    if given.get("source") == "paper" and (own := [key for key in _OF_LEDGERS if key in given]):
        raise AnalysisError(f"source=paper takes no {' and no '.join(own)}")
    if "device" not in given and not given.keys().isdisjoint(("out", "overwrite")):
        raise AnalysisError("out and overwrite need device=, the name of the device to write")
    if given.get("source") == "paper":
        if ledgers:
            raise AnalysisError("source=paper takes no ledger")
        return _from_paper(given)
    if not ledgers:
        raise AnalysisError("calibrate needs ledger=, once for each ledger, or source=paper")
    return _from_ledgers(ledgers, given)


def _from_ledgers(
    paths: Sequence[Path], given: Mapping[str, str]
) -> tuple[list[Table], Path, Path | None]:
    context = given.get("context") == "true"
    steps = read_steps(paths, context=context)
    weights = steps.table["num_steps"].astype("float64")
    if given.get("errors") == "relative":
        weights = weights / steps.table["step_s"] ** 2
    data = steps.table["step_s"], steps.work, weights
    fitted, on_context = fit_with_context(*data) if context else (fit(*data), NO_CONTEXT_TERM)
    size = f"{steps.num_steps} steps of {steps.num_runs} runs"
    device = _write(
        fitted,
        given,
        description=f"as recorded: {steps.origin}",
        source=f"least squares on {size}, {'; '.join(steps.sources)}",
        model=steps.model,
        remarks=(on_context, spread(fitted, steps)) if context else (),
    )
    tables = [
        coefficients_table(
            fitted,
            title=f"Step time, fitted to {size}",
            origin=steps.origin,
            notes=(on_context, *(f"From {source}." for source in steps.sources)),
        ),
        residuals_table(fitted, steps),
        runs_table(fitted, steps),
    ]
    return tables, paths[0] / "analysis", device


def _from_paper(given: Mapping[str, str]) -> tuple[list[Table], Path, Path | None]:
    time_s, work = published_work()
    fitted = fit(time_s, work, 1.0 / time_s**2)  # relative errors
    origin = Origin(data_kind="recomputed from the published values")
    tables_read = "Tables E-1, E-3, E-4 and E-6 of analysis/paper, with E-9 and G-1"
    device = _write(
        fitted,
        given,
        description="fitted to published rows",
        source=f"least squares on {len(work)} rows of {tables_read}",
        model=PAPER_MODEL,
    )
    tables = [
        coefficients_table(
            fitted,
            title=f"Step time, fitted to {len(work)} published rows by relative error",
            origin=origin,
            notes=(NO_CONTEXT_TERM, f"From {tables_read}.", _in_use(fitted)),
        ),
        rows_table(fitted, pd.Series(time_s), origin),
    ]
    return tables, LEDGERS / "analysis" / "paper", device


def _in_use(fitted: Fit) -> str:
    """Note on how far the device of the paper's campaigns is from the fit."""
    model = DeviceConfig.parse(read_option("device", PAPER_DEVICE)).known_step_time
    far = [
        f"{term} {1e3 * value:g} ms ({100.0 * (value / fitted.coefficients[term] - 1.0):+.2f} %)"
        for term, value in model.model_dump(include=set(fitted.terms)).items()
    ]
    return f"conf/device/{PAPER_DEVICE}.yaml has {', '.join(far)}."


def _write(
    fitted: Fit,
    given: Mapping[str, str],
    *,
    description: str,
    source: str,
    model: str | None,
    remarks: Sequence[str] = (),
) -> Path | None:
    if "device" not in given:
        return None
    device = to_device(given["device"], fitted, description=description, source=source, model=model)
    path = Path(given["out"]) if "out" in given else default_path(device.name)
    overwrite = given.get("overwrite") == "true"
    write_device(device, fitted, path, overwrite=overwrite, remarks=remarks)
    return path
