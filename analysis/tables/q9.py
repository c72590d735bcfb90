"""Shared by the tables of Q9: four arms, two timebases, and throughputs by seed (Section 4.5).

Ledger throughput divides by the episode of the runner's ledger, request-span throughput by first
request start to last success. The episode of a simulated run is modelled from its span
(`hsexp.config.device.RunnerModel`); without such a model its ledger side is unknown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from analysis.effects import log_effect_percent
from analysis.intervals import Interval, paired_t_percent
from analysis.published import published_value
from analysis.runs import Runs
from analysis.tables.beside import printed_rows
from hsexp.config.arm import Arm
from hsexp.ledger import is_simulated

MODES = ("ISOLATE", "SHARE")
POLICIES = {"s2": "S2", "s2_retention": "S2+Retention"}
"""The paper's name of a policy, by its column without the mode."""

ARMS = {
    f"{mode.lower()}_{policy}": Arm(organization="s2", isolation=mode.lower(), retention=retention)
    for mode in MODES
    for policy, retention in zip(POLICIES, ("off", "k2"), strict=True)
}
"""Arms, by the paper's column."""

TIMEBASES = {"ledger": "ledger_throughput_tok_per_s", "span": "throughput_tok_per_s"}
"""Ledger metric, by the paper's timebase. Runs without a ledger episode lack the first."""

ESTIMANDS = {"delta_SHARE": "delta SHARE", "delta_ISOLATE": "delta ISOLATE", "Kret": "Kret"}

NO_EPISODE = (
    "These runs have no ledger episode, so everything here is on the request span; the "
    "paper's primary timebase is the ledger's, which adds orchestration and completion polling."
)

MODELLED_EPISODE = (
    "Ledger timebase: the episode of a simulated run is modelled from its request span, which the "
    "paper's runner rounds up to its polls (conf/device/a100_40gb.yaml)."
)

_MAX_SECONDS = 400
"""Longest episode tried as the denominator of a printed ledger throughput."""


def throughputs(runs: Runs, timebase: str) -> pd.DataFrame:
    """Tokens per second by seed and arm; NaN for a missing run or a missing timebase."""
    metric = TIMEBASES[timebase]
    return pd.DataFrame({name: runs.values(arm, metric) for name, arm in ARMS.items()})


def timebase_notes(runs: Runs, timebase: str) -> tuple[str, ...]:
    """What is not measured about the timebase that a table shows."""
    if timebase == "span":
        return (NO_EPISODE,)
    origin = runs.known_origin
    return (MODELLED_EPISODE,) if origin is not None and is_simulated(origin.data_kind) else ()


def has(table: pd.DataFrame) -> bool:
    """Whether any run has this timebase."""
    return bool(table.notna().to_numpy().any())


@dataclass(frozen=True, kw_only=True)
class Effect:
    """An effect in percent and its interval (Eqs. G3 and G4)."""

    percent: float
    interval: Interval


def effects(table: pd.DataFrame) -> dict[str, Effect | None]:
    """The three estimands by the paper's name; None where a seed is missing."""
    logs = log_effects(table)
    return {
        name: None
        if values.isna().any() or len(values) < 2
        else Effect(percent=log_effect_percent(values), interval=paired_t_percent(values))
        for name, values in logs.items()
    }


def log_effects(table: pd.DataFrame) -> dict[str, pd.Series]:
    """The log effects d_m(s) of both modes and k(s) (Eq. G2). A throughput that is not positive has
    no logarithm and counts as missing."""
    logs = table.where(table > 0.0).map(_log)
    within = {
        mode: logs[f"{mode.lower()}_s2_retention"] - logs[f"{mode.lower()}_s2"] for mode in MODES
    }
    return {
        "delta_SHARE": within["SHARE"],
        "delta_ISOLATE": within["ISOLATE"],
        "Kret": within["SHARE"] - within["ISOLATE"],
    }


def _log(value: float) -> float:
    return math.nan if math.isnan(value) else math.log(value)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Output tokens of a seed and the whole seconds of its four episodes, by the paper's column."""

    tokens: int
    seconds: Mapping[str, int]

    def throughput(self, column: str) -> Fraction:
        return Fraction(self.tokens, self.seconds[column])


def printed_throughputs() -> dict[int, dict[str, float]]:
    """Table G-5 as printed, by seed and the paper's column."""
    return {
        int(row["seed"]): {name: float(row[name]) for name in ARMS} for row in printed_rows("G-5")
    }


def by_seed(table: pd.DataFrame) -> dict[int, dict[str, float]]:
    """Rows by seed."""
    return {int(seed): dict(row) for seed, row in table.to_dict("index").items()}  # type: ignore[call-overload, arg-type]


def exact_throughputs() -> pd.DataFrame:
    """Table G-5 to full precision, from the reconstructed episodes."""
    return pd.DataFrame(
        {
            seed: {column: float(episode.throughput(column)) for column in ARMS}
            for seed, episode in reconstructed().items()
        }
    ).T


def reconstructed() -> dict[int, Episode]:
    """The smallest whole numbers that give the printed values of Table G-5.

    The paper states that all four runs of a seed complete the same tokens and that ledger durations
    are whole seconds (Appendix G.3), so a row of the table is one integer over four. An episode
    lasts at least as long as its requests take to arrive.

    Raises:
        ValueError: a row has no reading or several, up to a common factor.
    """
    return {seed: _episode(seed, row) for seed, row in printed_throughputs().items()}


def arrivals_s() -> float:
    """Mean time between the first and the last arrival of a run."""
    requests = published_value("text", "G.2", "INITIAL requests per arm")
    return (requests - 1.0) / published_value("text", "G.3", "Q9 rate")


def _episode(seed: int, printed: Mapping[str, float]) -> Episode:
    half_digit = Fraction(1, 2000)
    shortest = arrivals_s()
    first = next(iter(printed))
    found: list[Episode] = []
    for seconds in range(1, _MAX_SECONDS + 1):
        tokens = round(printed[first] * seconds)
        episode = Episode(
            tokens=tokens,
            seconds={name: max(1, round(tokens / value)) for name, value in printed.items()},
        )
        fits = min(episode.seconds.values()) >= shortest and all(
            abs(episode.throughput(name) - Fraction(str(value))) <= half_digit
            for name, value in printed.items()
        )
        multiple = any(
            all(episode.throughput(name) == other.throughput(name) for name in printed)
            for other in found
        )
        if fits and not multiple:
            found.append(episode)
    if len(found) != 1:
        raise ValueError(f"seed {seed}: {len(found)} readings as tokens over whole seconds")
    return found[0]
