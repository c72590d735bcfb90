"""One try of a cell, as the ledger keeps it: what ran, how it ended, what it measured."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any, Literal

from hsexp.ledger.provenance import Provenance
from hsexp.plan.cells import Cell, canonical_json, content_digest, without_places

Metric = float | int | None

IDENTITY_COLUMNS = ("cell_id", "attempt_id", "campaign", "block", "pair_id")
OUTCOME_COLUMNS = ("status", "reason", "adopted", "adoption_reason", "exclusion_reason")
PROVENANCE_COLUMNS = (
    "config_digest",
    "workload_digest",
    "code_version",
    "engine",
    "device",
    "time_model",
    "data_kind",
    "engine_facts",
    "versions",
    "host",
    "reused_from",
    "started_at",
    "wall_s",
    "traceback",
)
"""Fixed columns of the attempt frame; the axes and the metrics come between them."""

DataKind = Literal["simulated", "simulated, prior", "measured"]
"""How a row came about. A prior is a simulation whose step times were reckoned, not fitted."""


def is_simulated(data_kind: object) -> bool:
    """Whether a row, by its `data_kind`, was simulated in any way."""
    return str(data_kind).split(",")[0] == "simulated"


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What produced a row. Rows that differ in one of the first three are never compared."""

    engine: str
    """"sim", "vllm", ..."""
    device: str
    time_model: str
    """Where durations come from: a named step-time model, or the wall clock."""
    data_kind: DataKind
    observed: Mapping[str, Any] = field(default_factory=dict)
    """What the engine reports about itself, e.g. its pool plan; plain data."""

    def __post_init__(self) -> None:
        canonical_json(self.observed)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try of a cell. The ledger numbers it on recording."""

    cell: Cell
    status: Literal["ok", "failed"]
    reason: str | None
    """Why it failed: error type and message. None when ok."""
    traceback: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Summary numbers. None or NaN is unknown."""
    workload_digest: str | None
    engine: EngineFacts | None
    """None when the try ended before the engine reported them."""
    provenance: Provenance
    started_at: str
    """UTC, ISO 8601."""
    wall_s: float | None
    """None when the process that measured it was killed."""

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.reason is None):
            raise ValueError(f"a {self.status} attempt cannot have the reason {self.reason!r}")
        if self.status == "ok" and (self.engine is None or self.workload_digest is None):
            raise ValueError("an ok attempt needs engine facts and a workload digest")
        canonical_json(self.cell.axes)
        for name, value in self.metrics.items():
            if value is not None and math.isinf(value):
                raise ValueError(f"metric {name} must be finite or unknown, got {value!r}")
        fixed = {*IDENTITY_COLUMNS, *OUTCOME_COLUMNS, *PROVENANCE_COLUMNS}
        if twice := (self.cell.axes.keys() | self.metrics.keys()) & fixed:
            raise ValueError(
                f"{_names(twice)} cannot be an axis or a metric: the ledger's own name"
            )
        if twice := self.cell.axes.keys() & self.metrics.keys():
            raise ValueError(f"{_names(twice)} is both an axis and a metric")

    def to_row(self, attempt_id: str) -> dict[str, Any]:
        """The row as the journal stores it: plain JSON data, unknown numbers as null."""
        engine = self.engine
        return {
            "cell_id": self.cell.cell_id,
            "attempt_id": attempt_id,
            "campaign": self.cell.campaign,
            "block": self.cell.block,
            "pair_id": self.cell.pair_id,
            "axes": self.cell.axes,
            "status": self.status,
            "reason": self.reason,
            "metrics": {name: _known(value) for name, value in self.metrics.items()},
            "provenance": {
                "config_digest": content_digest(without_places(self.cell.config)),
                "workload_digest": self.workload_digest,
                "code_version": self.provenance.code_version,
                "engine": engine and engine.engine,
                "device": engine and engine.device,
                "time_model": engine and engine.time_model,
                "data_kind": engine and engine.data_kind,
                "engine_facts": engine and dict(engine.observed),
                "versions": self.provenance.versions,
                "host": asdict(self.provenance.host),
                "reused_from": None,
                "started_at": self.started_at,
                "wall_s": self.wall_s,
                "traceback": self.traceback,
            },
        }


def _known(value: Metric) -> Metric:
    """A plain Python number, also for a NumPy one, or None where it is unknown."""
    if value is None or math.isnan(value):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))
