"""Advice from a ledger alone: which arm, how sure that is, and what it depends on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import pandas as pd
from pydantic import Field, PositiveInt

from analysis.config import parsed
from analysis.errors import AnalysisError, NoRunsError
from analysis.families import Listing
from analysis.intervals import Interval, paired_t, paired_t_percent
from analysis.ledgers import Ledgers
from analysis.runs import Origin
from analysis.stretches import (
    Blocks,
    throughput_change,
    throughput_interval,
    ttft_change,
    ttft_interval,
)
from hsexp.config.arm import Arm
from hsexp.config.axes import NEUTRAL
from hsexp.config.campaigns import AdviceConfig
from hsexp.config.catalog import read_file
from hsexp.config.fields import Seed
from hsexp.ledger import Ledger
from hsexp.plan.advice import (
    BESIDE_WEIGHTS,
    CHOICES,
    THROUGHPUT,
    TTFT,
    Candidate,
    Ranking,
    candidates,
    elsewhere,
    target_of,
)
from hsexp.runs import axis_of

CAMPAIGN = "advise"

_PLACE = ("budget", "rate_per_s", "cap", "sharing", "isolation", "step_time_factor")
"""Axes that all ranked arms share."""


class AdviseAnalysis(Listing):
    """The declaration, conf/analysis/advise.yaml."""

    level: Annotated[float, Field(gt=0.0, lt=1.0)]
    pieces: PositiveInt
    block: PositiveInt
    resamples: PositiveInt
    seed: Seed

    @property
    def blocks(self) -> Blocks:
        return Blocks(
            pieces=self.pieces,
            length=self.block,
            resamples=self.resamples,
            level=self.level,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Intervals of one arm, and of its change over the default in percent."""

    throughput: Interval | None
    ttft: Interval | None
    throughput_change: Interval | None
    ttft_change: Interval | None


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The finalists and the default where one thing is not as it was assumed."""

    words: str
    order: Sequence[Candidate]
    advised: Candidate | None
    """None if the advised arm cannot serve the requests there."""
    default: Candidate | None
    stands: bool
    """Whether the advised arm is first there, or as good as the first."""
    rate_per_s: float | None
    """The rate, if that is what differs."""


class Advice:
    """The ranked arms of a ledger. Reads only."""

    def __init__(self, ledgers: Ledgers) -> None:
        """
        Raises:
            NoRunsError: there is no run to advise on.
            AnalysisError: the ledger has runs at several places, or no arm keeps the target.
        """
        self.declared = parsed(CAMPAIGN, AdviseAnalysis)
        self.ledger: Ledger = ledgers.ledger(CAMPAIGN)
        self._config = AdviceConfig.parse(read_file("campaign", CAMPAIGN)["campaign"]["advice"])
        self.target = target_of(_last_override(self.ledger, "target"))
        self.ranking = Ranking.of(self._config, self.target)
        rows = self.ledger.frame()
        if ledgers.seeds is not None:
            rows = rows[rows["seed"].isin(ledgers.seeds)]
        places = rows["block"].map(lambda block: elsewhere(str(block)) or "")
        here = rows[(places == "").to_numpy(dtype=bool)]
        if here.empty:
            raise NoRunsError("the ledger has no run to advise on")
        _require_one_place(here)
        self.origin = Origin.of(here)
        self.place = {axis: axis_of(here, axis).iloc[0] for axis in _PLACE}
        self.arms = candidates(here.to_dict("records"))
        self.order = self.ranking.order(self.arms)
        if not self.order:
            raise AnalysisError(
                f"none of the {len(self.arms)} arms serves every request: a larger budget does"
            )
        self._tables: dict[str, pd.DataFrame] = {}
        self.default = self.ranking.standard(self.order)
        self.advised = self._beyond_noise()
        self.conditions = [
            self._condition(words, rows[(places == words).to_numpy(dtype=bool)])
            for words in sorted(set(places))
            if words
        ]
        self._require_target()

    def _beyond_noise(self) -> Candidate:
        """The first arm, unless its gain over the default may be noise: then the default."""
        best, default = self.order[0], self.default
        keeps = self.ranking.keeps_target
        if best.arm == default.arm or (keeps(best) and not keeps(default)):
            return best
        spread = self.spread(best)
        more, sooner = spread.throughput_change, spread.ttft_change
        if more is None or sooner is None or more.low > 0.0 or sooner.high < 0.0:
            return best
        self.order.remove(default)
        self.order.insert(0, default)
        return default

    def _condition(self, words: str, rows: pd.DataFrame) -> Condition:
        order = self.ranking.order(candidates(rows.to_dict("records")))
        by_arm = {each.arm: each for each in order}
        advised = by_arm.get(self.advised.arm)
        return Condition(
            words=words,
            order=order,
            advised=advised,
            default=by_arm.get(self.default.arm),
            stands=advised is not None and self.ranking.is_level(advised, order[0]),
            rate_per_s=float(rows["rate_per_s"].iloc[0]) if words.startswith("rate") else None,
        )

    def _require_target(self) -> None:
        """Raises AnalysisError if no arm keeps the target."""
        if self.target is None or self.ranking.keeps_target(self.advised):
            return
        value = self.advised.metric(self.target.metric)
        lower = [
            each.rate_per_s
            for each in self.conditions
            if each.rate_per_s and each.order and self.ranking.keeps_target(each.order[0])
        ]
        at = f"; at {max(lower):g} requests/s an arm keeps it" if lower else ""
        if pd.isna(self.place["rate_per_s"]):  # the trace is replayed
            at = "; workload.speed=0.5 halves the load"
        raise AnalysisError(
            f"target {self.target}: none of {len(self.order)} arms keeps it; the nearest is "
            f"{self.describe(self.advised.arm)} with {self.target.metric} {value:.4g}{at}"
        )

    @property
    def highest_rate(self) -> float | None:
        """The highest rate up to which the advised arm keeps the target; None if no other rate was
        tried."""
        tried = {
            each.rate_per_s: each.advised for each in self.conditions if each.rate_per_s is not None
        }
        if not tried:
            return None
        tried[float(self.place["rate_per_s"])] = self.advised
        highest = None
        for rate in sorted(tried):
            candidate = tried[rate]
            if candidate is None or not self.ranking.keeps_target(candidate):
                break
            highest = rate
        return highest

    # -- words -----------------------------------------------------------------------------------

    @cached_property
    def _varied(self) -> tuple[str, ...]:
        """Choices in which arms differ."""
        names = [axis.name for axis in CHOICES]
        return tuple(n for n in names if len({getattr(each.arm, n) for each in self.arms}) > 1)

    def describe(self, arm: Arm) -> str:
        """The organization, and every choice that is not neutral."""
        return ", ".join([arm.organization_label, *self.settings(arm)])

    def settings(self, arm: Arm, *, headroom: bool = True) -> list[str]:
        """Choices beside the organization that are not neutral, such as `retention k2`."""
        left = {
            name: value
            for name in self._varied
            if name != "organization" and (headroom or name != "headroom")
            for value in [getattr(arm, name)]
            if value != NEUTRAL[name]
        }
        words = []
        for bundle, settings in self._config.bundles.items():
            if settings.axes.items() <= left.items():
                left = {name: left[name] for name in left if name not in settings.axes}
                words.append(f"policies {bundle}")
        words += [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in left.items()
        ]
        return words

    @property
    def bundle_words(self) -> list[str]:
        """What the names of bundles stand for that an arm has."""
        return [
            f"policies {bundle}: "
            + ", ".join(f"{axis} {value}" for axis, value in arm.axes.items())
            for bundle, arm in self._config.bundles.items()
            if any(arm.axes.items() <= each.arm.axes.items() for each in self.order)
        ]

    @cached_property
    def budget_words(self) -> str | None:
        """How the budget was reckoned; None if it was given."""
        launches = self.ledger.launches()
        start = f"budget {BESIDE_WEIGHTS}: "
        notes = [] if launches.empty else launches["notes"].iloc[-1]
        found = (str(note).removeprefix(start) for note in notes if str(note).startswith(start))
        return next(found, None)

    @property
    def model(self) -> str:
        return str(self.ledger.contract["model"]["name"])

    @property
    def budget_bytes(self) -> int:
        """Bytes of one attention layer with its recurrent layers."""
        budgets = self.ledger.contract["options"]["budget"]
        return int(budgets[str(self.place["budget"])]["bytes"])

    # -- intervals -------------------------------------------------------------------------------

    def spread(self, candidate: Candidate) -> Spread:
        """Intervals of an arm: over seeds if it has several, else over stretches of its run."""
        if len(candidate.cells) > 1:
            return self._over_seeds(candidate)
        runs, base = (self._requests(each) for each in (candidate, self.default))
        blocks, is_default = self.declared.blocks, candidate.arm == self.default.arm
        return Spread(
            throughput=throughput_interval(runs, blocks),
            ttft=ttft_interval(runs, 99.0, blocks),
            throughput_change=None if is_default else throughput_change(runs, base, blocks),
            ttft_change=None if is_default else ttft_change(runs, base, 99.0, blocks),
        )

    def _over_seeds(self, candidate: Candidate) -> Spread:
        level = self.declared.level
        values = {name: self._by_seed(candidate, name) for name in (THROUGHPUT, TTFT)}
        changes: dict[str, Interval | None] = dict.fromkeys(values)
        if candidate.arm != self.default.arm:
            for name, ours in values.items():
                logs = ours.map(math.log) - self._by_seed(self.default, name).map(math.log)
                changes[name] = paired_t_percent(logs, level=level)
        return Spread(
            throughput=paired_t(values[THROUGHPUT], level=level),
            ttft=paired_t(values[TTFT], level=level),
            throughput_change=changes[THROUGHPUT],
            ttft_change=changes[TTFT],
        )

    def _by_seed(self, candidate: Candidate, metric: str) -> "pd.Series[float]":
        """A metric of an arm by seed."""
        recorded = self.ledger.frame().set_index("cell_id")[metric]
        values = {seed: recorded.loc[cell] for seed, cell in candidate.cells.items()}
        return pd.Series(values, dtype="float64").sort_index()

    def _requests(self, candidate: Candidate) -> pd.DataFrame:
        (cell,) = candidate.cells.values()
        if cell not in self._tables:
            self._tables[cell] = self.ledger.request_table(cell)
        return self._tables[cell]


def change_percent(
    candidate: Candidate | None, base: Candidate | None, metric: str
) -> float | None:
    """A metric over another arm's, as a change; None if it is not known."""
    if candidate is None or base is None:
        return None
    below = base.metric(metric)
    return None if below == 0.0 else 100.0 * (candidate.metric(metric) / below - 1.0)


def _last_override(ledger: Ledger, setting: str) -> str | None:
    """A setting on the command line of the last launch, as it was typed; None if there is none."""
    launches = ledger.launches()
    if launches.empty:
        return None
    typed = dict(str(item).split("=", 1) for item in launches["overrides"].iloc[-1] if "=" in item)
    value = typed.get(setting, "null").strip("'\"")
    return None if value == "null" else value


def _require_one_place(rows: pd.DataFrame) -> None:
    """Refuse to rank arms that served under different loads or budgets."""
    for axis in _PLACE:
        found = axis_of(rows, axis).unique().tolist()
        if len(found) > 1:
            raise AnalysisError(
                f"advice needs one {axis}, got {', '.join(map(str, found))}: "
                "give each a ledger of its own, ledger=DIR"
            )
