"""The settings of any ledger, ranked by one metric: which is best, and by how much.

    rows of a ledger -> places -> settings, best first -> the best one against the next

A setting is what the runs of one row share, their seeds aside. Settings compete at one place: the
same requests under the same budget. The other axes are the operator's to choose, the cap too.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.effects import log_effect_percent, log_ratios, pair_up
from analysis.errors import AnalysisError, NoInputsError, NoRunsError
from analysis.intervals import Interval, paired_t_percent
from analysis.ledgers import Ledgers
from analysis.runs import THROUGHPUT, Origin
from hsexp.config.axes import ARM_AXES
from hsexp.measure.load import is_overloaded
from hsexp.runs import axis_of

Axes = Mapping[str, Any]

_BLOCK = "block"

_GIVEN = tuple(axis.name for axis in ARM_AXES if axis.pairs and axis.path[0] != "admission")
"""Axes of a place. Those of admission, such as the cap, change neither requests nor memory."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric, and how it is printed."""

    metric: str
    heading: str
    spec: str


MEASURES = (
    Measure(metric=THROUGHPUT, heading="tok/s", spec=",.1f"),
    Measure(metric="ttft_mean_s", heading="TTFT mean, s", spec=",.3f"),
    Measure(metric="ttft_p99_s", heading="TTFT p99, s", spec=",.2f"),
    Measure(metric="tpot_mean_s", heading="TPOT mean, s", spec=",.4f"),
    Measure(metric="e2e_p99_s", heading="E2E p99, s", spec=",.2f"),
    Measure(metric="num_preemptions", heading="preempted", spec=",.1f"),
    Measure(metric="num_refused", heading="refused", spec=",.1f"),
)
"""Those of every table; the one that it ranks by comes first."""


def measure_of(metric: str) -> Measure:
    """How a metric is printed."""
    known = (each for each in MEASURES if each.metric == metric)
    return next(known, Measure(metric=metric, heading=metric, spec=",.4g"))


def shown_measures(metric: str) -> tuple[Measure, ...]:
    """The measures of a table that is ranked by a metric."""
    return (measure_of(metric), *(each for each in MEASURES if each.metric != metric))


# -- settings and places ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """Runs that differ in nothing but the seed."""

    axes: Axes
    """The axes that are not those of the place."""
    rows: pd.DataFrame
    """Adopted runs, by seed."""

    def values(self, metric: str) -> pd.Series:
        """A metric by seed; NaN where a run did not record it."""
        if metric not in self.rows:
            return pd.Series(math.nan, index=self.rows.index)
        return self.rows[metric].astype("float64")

    def mean(self, metric: str) -> float | None:
        """Mean over the seeds that have run; None if a run lacks the metric."""
        values = self.values(metric)
        return None if values.empty or values.isna().any() else float(values.mean())

    def deviation(self, metric: str) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        if len(self.rows) < 2 or self.mean(metric) is None:
            return None
        return float(self.values(metric).std(ddof=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Settings that served the same requests under the same budget."""

    axes: Axes
    settings: tuple[Setting, ...]
    """Best first; those whose metric is unknown come last."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One setting over another, in the seeds that both have."""

    change_percent: float | None
    """None if they share no seed with a ratio."""
    interval: Interval | None
    num_pairs: int


def interval_of(logs: pd.Series) -> Interval | None:
    """95 % interval of paired log ratios over seeds, in percent. A single seed has none."""
    return paired_t_percent(logs) if len(logs) > 1 else None


def compare(setting: Setting, other: Setting, metric: str) -> Comparison:
    """A setting over another one: the geometric mean of paired ratios as a change."""
    both = setting.rows.index.intersection(other.rows.index)
    ours, theirs = (each.rows["workload_digest"].loc[both] for each in (setting, other))
    seeds = both[(ours == theirs).to_numpy(dtype=bool, na_value=False)]
    pairs = pair_up(setting.values(metric).loc[seeds], other.values(metric).loc[seeds])
    pairs = pairs.complete_cases()
    if pairs.numerator.empty:
        return Comparison(change_percent=None, interval=None, num_pairs=0)
    logs = log_ratios(pairs)
    return Comparison(
        change_percent=log_effect_percent(logs), interval=interval_of(logs), num_pairs=len(logs)
    )


# -- the ranking of a ledger -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Every setting of a ledger."""

    campaign: str
    metric: str
    places: tuple[Place, ...]
    origin: Origin
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    """Cells without an accepted run."""
    num_repeated: int
    """Runs that another run of the same setting and seed replaces."""

    @property
    def settings(self) -> Iterator[Setting]:
        return (setting for place in self.places for setting in place.settings)

    @cached_property
    def place_axes(self) -> tuple[str, ...]:
        """Axes in which places differ: their own, and those in which no place varies."""
        within = {name for place in self.places for name in _varied_in(place)}
        others = _varied([setting.axes for setting in self.settings])
        own = _varied([place.axes for place in self.places])
        return (*own, *(name for name in others if name not in within | {"organization"}))

    @cached_property
    def setting_axes(self) -> tuple[str, ...]:
        """The organization, and the axes in which settings of one place differ."""
        within = (name for place in self.places for name in _varied_in(place))
        return tuple(dict.fromkeys(("organization", *within)))

    @property
    def num_overloaded(self) -> int:
        """Settings with a run that was offered more than it served."""
        return sum(
            any(is_overloaded(row) for row in setting.rows.to_dict("records"))
            for setting in self.settings
        )

    def name_of(self, setting: Setting) -> str:
        """`d0, headroom 0.19`."""
        return _spelled(setting.axes, self.setting_axes)

    def name_of_place(self, place: Place) -> str:
        """`budget b63, rate_per_s 3`; empty where there is one place."""
        return _spelled({**place.settings[0].axes, **place.axes}, self.place_axes)

    def answers(self) -> list[str]:
        """One sentence a place: its best setting, against the next one."""
        return [self._answer(place) for place in self.places]

    def _answer(self, place: Place) -> str:
        best, *others = place.settings
        where = self.name_of_place(place)
        start = f"{where}: {self.name_of(best)}" if where else self.name_of(best)
        level = best.mean(self.metric)
        if level is None:
            return f"{start} and all others lack {self.metric}"
        measure = measure_of(self.metric)
        found = f"{self.metric} {level:{measure.spec}}"
        known = [other for other in others if other.mean(self.metric) is not None]
        if not known:
            return f"{start} is alone: {found}"
        against = compare(best, known[0], self.metric)
        name = self.name_of(known[0])
        if against.change_percent is None:
            return f"{start} is best: {found}; {name} comes next and served none of its requests"
        change = f"{against.change_percent:+.2f} % against {name}"
        refused = best.mean("num_refused")
        more = f"; it refused {refused:,.4g} requests a run" if refused else ""
        return f"{start} is best: {found}, {change} ({_certainty(against)}){more}"


def _certainty(against: Comparison) -> str:
    interval = against.interval
    if interval is None:
        return "one seed, so no interval"
    told = "" if interval.low > 0.0 or interval.high < 0.0 else "; not told apart"
    bounds = f"{interval.low:+.2f} to {interval.high:+.2f} %"
    return f"{100 * interval.level:g} % interval {bounds}, {against.num_pairs} seeds{told}"


def ranking_of(ledgers: Ledgers) -> Ranking:
    """The ranking of the campaign that was asked for.

    Raises:
        NoInputsError: no campaign was asked for, or it has no run with the metric.
        AnalysisError: the metric is neither a rate nor a time.
    """
    campaign = ledgers.asked
    if campaign is None:
        raise NoInputsError("the settings of a ledger need campaign=NAME or ledger=DIR")
    frame, attempts = ledgers.frame(campaign), ledgers.attempts(campaign)
    if ledgers.seeds is not None:
        frame = frame[frame["seed"].isin(ledgers.seeds)]
        attempts = attempts[attempts["seed"].isin(ledgers.seeds)]
    return rank(frame, attempts, campaign=campaign, metric=ledgers.metric or THROUGHPUT)


def rank(
    frame: pd.DataFrame, attempts: pd.DataFrame, *, campaign: str, metric: str = THROUGHPUT
) -> Ranking:
    """Rank the settings of a ledger.

    Args:
        frame: its accepted runs, one row each.
        attempts: every attempt, for the cells that have no accepted run.
        metric: a rate (`..._per_s`, the more the better) or a time (`..._s`, the less).

    Raises:
        NoRunsError: there is no accepted run, or none has the metric.
        AnalysisError: the metric is neither a rate nor a time.
    """
    if frame.empty:
        raise NoRunsError(f"campaign {campaign} has no accepted run")
    descending = _more_is_better(metric, frame)
    if metric not in frame or frame[metric].isna().all():
        raise NoRunsError(f"no run of campaign {campaign} has {metric}; {_choice(frame)}")
    rows = frame.assign(**{axis.name: axis_of(frame, axis.name) for axis in _axes_of(frame)})
    given = [name for name in _GIVEN if name in rows]
    if _has_several_laws(rows, given):
        given.append(_BLOCK)
    chosen = [axis.name for axis in _axes_of(frame) if axis.name not in given]
    latest = rows.sort_values("started_at", kind="stable").drop_duplicates(
        [*given, *chosen, "seed"], keep="last"
    )

    def order(setting: Setting) -> tuple[bool, float]:
        mean = setting.mean(metric)
        return mean is None, 0.0 if mean is None else -mean if descending else mean

    places = []
    for axes, of_place in _groups(latest, given):
        settings = [
            Setting(axes=own, rows=runs.set_index("seed").sort_index())
            for own, runs in _groups(of_place, chosen)
        ]
        places.append(Place(axes=axes, settings=tuple(sorted(settings, key=order))))
    return Ranking(
        campaign=campaign,
        metric=metric,
        places=tuple(places),
        origin=Origin.of(frame),
        seeds=tuple(sorted({int(seed) for seed in frame["seed"]})),
        missing=_failures(attempts, accepted=set(frame["cell_id"])),
        num_repeated=len(rows) - len(latest),
    )


def _more_is_better(metric: str, frame: pd.DataFrame) -> bool:
    if metric.endswith("_per_s"):
        return True
    if metric.endswith("_s"):
        return False
    raise AnalysisError(
        f"metric must be a rate (..._per_s) or a time (..._s), got {metric}; {_choice(frame)}"
    )


def _choice(frame: pd.DataFrame) -> str:
    """The rates and times that runs have."""
    others = {"wall_s", *(axis.name for axis in ARM_AXES)}
    names = [str(name) for name in frame.columns if str(name).endswith("_s")]
    known = [name for name in names if name not in others and frame[name].notna().any()]
    return f"choose from {', '.join(known)}"


def _axes_of(frame: pd.DataFrame) -> list[Any]:
    return [axis for axis in ARM_AXES if axis.name in frame]


def _has_several_laws(rows: pd.DataFrame, given: Sequence[str]) -> bool:
    """Whether blocks give one place several workloads, so that the block belongs to the place."""
    axes = [axis.name for axis in _axes_of(rows)]
    requests = rows.groupby([*given, "seed"], dropna=False)["workload_digest"].nunique()
    blocks = rows.groupby([*axes, "seed"], dropna=False)[_BLOCK].nunique()
    return len(set(rows[_BLOCK])) > 1 and bool((requests > 1).any() or (blocks > 1).any())


def _groups(rows: pd.DataFrame, axes: Sequence[str]) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """Rows of equal axes, in the order of their values."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    columns = [rows[axis].astype(object).where(rows[axis].notna(), None) for axis in axes]
    keys = zip(*columns, strict=True) if axes else [()] * len(rows)
    for index, key in enumerate(keys):
        groups.setdefault(tuple(key), []).append(index)
    for key in sorted(groups, key=lambda values: [_sortable(value) for value in values]):
        yield dict(zip(axes, key, strict=True)), rows.iloc[groups[key]]


def _sortable(value: Any) -> tuple[int, float, list[tuple[int, str]]]:
    """Null first, then numbers by size, then names with b63 before b108."""
    if value is None:
        return 0, 0.0, []
    if isinstance(value, str):
        parts = re.findall(r"\d+|\D+", value)
        return 2, 0.0, [(int(part) if part.isdigit() else -1, part) for part in parts]
    return 1, float(value), []


def _varied_in(place: Place) -> tuple[str, ...]:
    return _varied([setting.axes for setting in place.settings])


def _varied(axes: Sequence[Axes]) -> tuple[str, ...]:
    names = dict.fromkeys(name for each in axes for name in each)
    return tuple(name for name in names if len({each.get(name) for each in axes}) > 1)


def _spelled(axes: Axes, names: Sequence[str]) -> str:
    return ", ".join(
        text_of(axes[name]) if name == "organization" else f"{name} {text_of(axes[name])}"
        for name in names
        if name in axes
    )


def text_of(value: Any) -> str:
    """A value of an axis as it is printed."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _failures(attempts: pd.DataFrame, *, accepted: set[str]) -> tuple[str, ...]:
    """One line a reason for the cells that were tried and have no accepted run."""
    tried = attempts[~attempts["cell_id"].isin(accepted)]
    cells = tried.drop_duplicates("cell_id", keep="last")
    reasons = cells["reason"].fillna(cells["exclusion_reason"]).fillna("not accepted")
    return tuple(
        f"{count} cell{'s' if count > 1 else ''}: {reason}"
        for reason, count in reasons.value_counts().items()
    )
