"""The runs an analysis may use: the adopted attempts of one design, from one engine.

A design without any run is a value too (`Runs.absent`): each of its cells is missing, with a
reason, and no number comes out of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.effects import Pairs, pair_up
from analysis.errors import AnalysisError, NoRunsError
from analysis.families import Design
from analysis.gaps import AxisValue, Gap
from analysis.histories import Histories, History
from hsexp.config.arm import Arm
from hsexp.plan.cells import format_seeds
from hsexp.runs import axis_of

ORIGIN = ("data_kind", "engine", "device", "time_model")
"""Columns that identify what produced a row; an analysis has one value of each."""

THROUGHPUT = "throughput_tok_per_s"
"""Column of a ledger, used by the tests of all families and by most tables and figures."""

_NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the numbers of a table or figure come from."""

    data_kind: str
    """`hsexp.ledger.attempt.DataKind` for runs; otherwise how the numbers were made."""
    engine: str | None = None
    device: str | None = None
    time_model: str | None = None

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Origin":
        """The origin of the first row; all rows of a ledger's frame share it."""
        return cls(**{name: str(rows[name].iloc[0]) for name in ORIGIN})

    def __str__(self) -> str:
        if self.engine is None:
            return self.data_kind
        return (
            f"{self.data_kind} (engine {self.engine}, device {self.device}, "
            f"time model {self.time_model})"
        )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Adopted runs of a design, and the attempts that explain what is missing."""

    adopted: pd.DataFrame
    attempts: pd.DataFrame
    campaign: str
    design: Design
    seeds: tuple[int, ...]
    """The seeds that every cell needs, ascending."""
    known_origin: Origin | None
    """None if there is no run."""
    why_absent: str | None = None
    """Why there is no run; None if there are runs."""
    notes: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    """Seeds that are left out because their runs repeat those of another seed, in words."""
    block: str | None = None
    """Block of the campaign; None if the design may occur in several."""
    traces: Histories | None = field(default=None, repr=False, compare=False)
    """State histories of the ledger; None if the runs are in none."""
    _rows: dict[Arm, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)
    """Cache of adopted runs by arm."""
    _values_tried: dict[str, frozenset[Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def select(
        cls,
        attempts: pd.DataFrame,
        *,
        campaign: str,
        design: Design,
        seeds: Sequence[int] | None = None,
        block: str | None = None,
        traces: Histories | None = None,
    ) -> "Runs":
        """The runs of a design from a ledger's attempts. Seeds that repeat one run count once.

        Args:
            attempts: `Ledger.attempts()`, one row per attempt.
            seeds: the seeds that every cell needs; None uses the design's and any others that the
                ledger has for it.
            traces: state histories of the ledger.

        Raises:
            NoRunsError: the ledger has no run of the design.
            AnalysisError: the runs mix engines, devices or time models.
        """
        of_design = attempts[attempts["campaign"] == campaign]
        for axis, values in design.axes.items():
            column = axis_of(of_design, axis)
            is_wanted = column.isin(values)
            if None in values:  # a frame has no null in a column of numbers, but NaN
                is_wanted |= column.isna()
            of_design = of_design[is_wanted]
        if design.same_law:
            of_design = of_design[of_design["block"].isin(design.same_law)]
        wanted = sorted({*design.seeds, *of_design["seed"].tolist()} if seeds is None else seeds)
        of_design = of_design[of_design["seed"].isin(wanted)]
        adopted = of_design[of_design["adopted"].astype(bool) & (of_design["status"] == "ok")]
        if adopted.empty:
            raise NoRunsError(
                f"the ledger has no adopted run of campaign {campaign} for seeds "
                f"{format_seeds(wanted)}"
            )
        copies = _copies(adopted)
        wanted = [seed for seed in wanted if seed not in copies]
        adopted = adopted[~adopted["seed"].isin(list(copies))]
        origin = Origin(**{name: _only_value(adopted, name) for name in ORIGIN})
        num_others = len(attempts) - len(of_design)
        notes = (f"{num_others} attempts outside the design left out",) if num_others else ()
        return cls(
            adopted=adopted,
            attempts=of_design,
            campaign=campaign,
            design=design,
            seeds=tuple(wanted),
            known_origin=origin,
            notes=notes,
            repeats=_describe_copies(campaign, copies),
            block=block,
            traces=traces,
        )

    @classmethod
    def absent(cls, *, campaign: str, design: Design, seeds: Sequence[int], why: str) -> "Runs":
        """A design without any run."""
        nothing = pd.DataFrame(columns=["cell_id", *Arm.model_fields, "seed", "workload_digest"])
        return cls(
            adopted=nothing,
            attempts=nothing,
            campaign=campaign,
            design=design,
            seeds=tuple(sorted(seeds)),
            known_origin=None,
            why_absent=why,
        )

    @property
    def seeds_text(self) -> str:
        """The seeds as printed text."""
        return format_seeds(self.seeds)

    @property
    def origin(self) -> Origin:
        """Raises: NoRunsError if there is no run."""
        if self.known_origin is None:
            raise NoRunsError(f"campaign {self.campaign}: {self.why_absent}")
        return self.known_origin

    def values(self, arm: Arm, metric: str) -> pd.Series:
        """One metric by seed; NaN if the run is missing or did not record the metric.

        Raises:
            AnalysisError: two runs of one seed fit the arm.
        """
        rows = self._of(arm).set_index("seed")
        recorded = rows[metric] if metric in rows else pd.Series(index=rows.index, dtype="float64")
        return recorded.reindex(self.seeds).astype(np.float64)

    def cell_ids(self, arm: Arm) -> dict[int, str]:
        """Cell id in the ledger of each seed's run."""
        rows = self._of(arm)
        return dict(zip(rows["seed"].tolist(), rows["cell_id"].tolist(), strict=True))

    def histories(self, arm: Arm) -> dict[int, History]:
        """State histories of an arm by seed; runs without a trace have none.

        Raises:
            AnalysisError: the events of a trace contradict each other.
        """
        if self.traces is None:
            return {}
        found = {seed: self.traces.of(cell) for seed, cell in self.cell_ids(arm).items()}
        return {seed: history for seed, history in found.items() if history is not None}

    def pairs(self, numerator: Arm, denominator: Arm, metric: str) -> Pairs:
        """Two arms paired by seed.

        Raises:
            AnalysisError: a seed's two runs served different requests.
        """
        self._require_same_requests(numerator, denominator)
        return pair_up(self.values(numerator, metric), self.values(denominator, metric))

    def missing(self, arms: Iterable[Arm], metrics: Iterable[str] = ()) -> list[str]:
        """The gaps as text: one line for all seeds of one arm and reason."""
        return [str(gap) for gap in self.gaps(arms, metrics)]

    def gaps(self, arms: Iterable[Arm], metrics: Iterable[str] = ()) -> list[Gap]:
        """Every cell without an adopted run, with the reason, and every run that lacks a metric."""
        if self.why_absent is not None:
            return [Gap(cells=f"campaign {self.campaign}", reason=self.why_absent)]
        needed = tuple(metrics)
        return [gap for arm in arms for gap in self._gaps_of(arm, needed)]

    def _gaps_of(self, arm: Arm, metrics: Sequence[str]) -> list[Gap]:
        by_reason: dict[str, list[int]] = {}
        for seed in self.missing_seeds(arm):
            by_reason.setdefault(self._why_missing(arm, seed), []).append(seed)
        for metric in metrics:
            values = self.values(arm, metric).drop(self.missing_seeds(arm))
            for seed in values.index[values.isna()]:
                by_reason.setdefault(f"no {metric}", []).append(int(seed))
        return [
            Gap(
                cells=f"{self._describe_arm(arm)} seed {format_seeds(seeds)}",
                reason=reason,
                campaign=self.campaign,
                block=self.block,
                unrun=self._unrun(arm, seeds) if reason == _NOT_RUN else (),
            )
            for reason, seeds in by_reason.items()
        ]

    def _unrun(self, arm: Arm, seeds: Sequence[int]) -> tuple[AxisValue, ...]:
        """Values of the arm, or else the seeds, that no attempt of the design has.

        Seeds count only if the arm lacks nothing else.
        """
        values = tuple(
            (axis, value)
            for axis, value in arm.axes.items()
            if len(self.design.axes[axis]) > 1 and value not in self._tried(axis)
        )
        if values or set(seeds) & self._tried("seed"):
            return values
        return (("seed", format_seeds(seeds)),)

    def _tried(self, axis: str) -> frozenset[Any]:
        """Values of an axis that at least one attempt has."""
        if axis not in self._values_tried:
            self._values_tried[axis] = frozenset(axis_of(self.attempts, axis).unique().tolist())
        return self._values_tried[axis]

    def _describe_arm(self, arm: Arm) -> str:
        """Describe the arm: its label, its budget, and the other axes that the design varies."""
        others = [
            f"{axis} {value}"
            for axis, value in arm.axes.items()
            if axis not in ("organization", "budget", "headroom")
            and len(self.design.axes[axis]) > 1
        ]
        return " ".join([arm.label, str(self.design.whole(arm).budget), *others])

    def missing_seeds(self, arm: Arm) -> list[int]:
        """Seeds without an adopted run of the arm."""
        return sorted(set(self.seeds) - set(self._of(arm)["seed"]))

    def _of(self, arm: Arm) -> pd.DataFrame:
        if arm not in self._rows:
            self._rows[arm] = self._find(arm)
        return self._rows[arm]

    def _find(self, arm: Arm) -> pd.DataFrame:
        rows = _matching(self.adopted, arm)
        twice = rows[rows["seed"].duplicated(keep=False)]
        if len(twice):
            axes = [name for name in Arm.model_fields if len(axis_of(twice, name).unique()) > 1]
            raise AnalysisError(
                f"seed {twice['seed'].iloc[0]} has two runs for {arm.axes}; they differ in "
                f"{', '.join(axes) or 'no axis'}"
            )
        return rows

    def _why_missing(self, arm: Arm, seed: int) -> str:
        tries = _matching(self.attempts, arm)
        tries = tries[tries["seed"] == seed]
        if tries.empty:
            return _NOT_RUN
        last = tries.iloc[-1]
        if last["status"] != "ok":
            return f"failed ({last['reason']})"
        return f"excluded ({last.get('exclusion_reason')})"

    def _require_same_requests(self, numerator: Arm, denominator: Arm) -> None:
        digests = [
            self._of(arm).set_index("seed")["workload_digest"] for arm in (numerator, denominator)
        ]
        both = pd.concat(digests, axis=1, keys=("numerator", "denominator")).dropna()
        differing = both.index[both["numerator"] != both["denominator"]]
        if len(differing):
            raise AnalysisError(
                f"seed {differing[0]}: {numerator.axes} and {denominator.axes} served different "
                "requests (workload digests differ), so they cannot be paired"
            )


def _copies(adopted: pd.DataFrame) -> dict[int, int]:
    """Seeds whose runs all repeat those of one earlier seed, and that seed.

    Runs of one arm with the same requests and the same throughput are one run: their seeds drew
    nothing. Two seeds that drew something have other digests, and two measurements of the same
    requests have other throughputs.
    """
    result = ["workload_digest", THROUGHPUT]
    if THROUGHPUT not in adopted or not adopted.duplicated(result).any():
        return {}
    known = adopted.dropna(subset=result)
    keys = [axis_of(known, axis) for axis in Arm.model_fields] + [known[name] for name in result]
    first = known["seed"].groupby(keys, dropna=False).transform("min").reindex(adopted.index)
    copies = {}
    for seed, originals in first.groupby(adopted["seed"]):
        original = originals.min()
        if original < seed and (originals == original).all():
            copies[int(seed)] = int(original)
    return copies


def _describe_copies(campaign: str, copies: Mapping[int, int]) -> tuple[str, ...]:
    seeds_of: dict[int, list[int]] = {}
    for seed, original in copies.items():
        seeds_of.setdefault(original, []).append(seed)
    return tuple(
        f"Campaign {campaign}: seed {format_seeds(seeds)} served the requests of seed {original} "
        "with the same results, so they count as one."
        for original, seeds in seeds_of.items()
    )


def _matching(frame: pd.DataFrame, arm: Arm) -> pd.DataFrame:
    mask = np.ones(len(frame), dtype=bool)
    for axis, value in arm.axes.items():
        mask &= (axis_of(frame, axis) == value).to_numpy(dtype=bool, na_value=False)
    return frame[mask]


def _only_value(frame: pd.DataFrame, name: str) -> str:
    values: list[str] = sorted(frame[name].astype(str).unique())
    if len(values) > 1:
        raise AnalysisError(
            f"the ledger mixes rows of {name} {' and '.join(values)}; analyse them apart"
        )
    return values[0]
