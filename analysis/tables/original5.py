"""Tables E-5, E-13 and E-14: the original five comparisons of D0 (Appendices B.5, E.8, E.9)."""

import numpy as np
import pandas as pd

from analysis import config as configs
from analysis.effects import pair_up, relative_changes
from analysis.families import Contrast, Family
from analysis.family_tests import FamilyTest, adjusted_p, family_tests, sequential_p
from analysis.gaps import describe
from analysis.ledgers import Ledgers, common_origin, missing_cells
from analysis.published import (
    printed_number,
    published_row,
    published_table,
    published_value,
)
from analysis.reconstruction import holm_exact, on_grid
from analysis.runs import Runs
from analysis.tables.beside import Quantity
from analysis.tables.cells import mean_change, text_column
from analysis.tables.registry import derived, table
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Column, Table
from hsexp.config.arm import Arm
from hsexp.measure.goodput import Thresholds, goodput_tok_per_s, union_thresholds

_KEYS = (
    text_column("no.", "id"),
    text_column("comparison", "comparison"),
    text_column("seeds", "seeds"),
)
_GAP = Quantity(name="mean_d0_gap", heading="mean D0 gap, %", spec="+.2f")
_SEQUENTIAL = Quantity(name="sequential_p", heading="sequential p", spec=".4f")
_HOLM = Quantity(name="holm_p", heading="Holm p", spec=".4f")


_DIRECTIONS = "{seeds_favoring_d0%s:.0f}/{seeds_favoring_comparator%s:.0f}"
_E5_VIEWS = (
    (
        *_KEYS,
        *_GAP.columns(),
        Column(group="D0/other", heading="here", templates=(_DIRECTIONS % ("", ""),)),
        Column(
            group="D0/other",
            heading="paper",
            templates=(_DIRECTIONS % ("_published", "_published"),),
        ),
    ),
    (_KEYS[0], text_column("looks", "p_looks"), *_SEQUENTIAL.columns(), *_HOLM.columns()),
)


@table("E-5")
def e5(ledgers: Ledgers) -> Table:
    """Gaps, their directions, the two-look p and Holm over five."""
    family = _family()
    tests = family_tests(family, ledgers.of)
    rows = [
        _key(contrast, ledgers) | _e5_row(test, None if test.p_value is None else float(p))
        for test, contrast, p in zip(tests, family.contrasts, adjusted_p(tests), strict=True)
    ]
    return Table(
        name="E-5",
        title=f"The original {family.size} comparisons of D0",
        rows=pd.DataFrame(rows),
        views=_E5_VIEWS,
        origin=common_origin(map(ledgers.of, family.contrasts)),
        notes=(
            "Gap: mean over seeds of 100 (D0 / comparator − 1).",
            "Sequential p: twice the smaller of the exact sign-flip p of relative effects on six "
            "and on nine seeds; 1 stands for a look that was not taken (Eq. B1). Holm over "
            f"{family.size}.",
            *_incomplete(tests),
        ),
        missing=describe(gap for test in tests for gap in test.gaps),
    )


def _e5_row(test: FamilyTest, holm_p: float | None) -> dict[str, object]:
    known, changes = published_row("E-5", test.id), test.changes
    looks = ", ".join(f"p{look.n} = {look.p_value:.4f}" for look in test.looks)
    return {
        "n": test.n,
        "seeds_favoring_d0": None if changes is None else int((changes > 0).sum()),
        "seeds_favoring_comparator": None if changes is None else int((changes < 0).sum()),
        "seeds_favoring_d0_published": known["seeds_favoring_d0"],
        "seeds_favoring_comparator_published": known["seeds_favoring_comparator"],
        "p_looks": looks or None,
        **_GAP.compare(test.mean_change, known["mean_d0_gap"]),
        **_SEQUENTIAL.compare(test.p_value, known["sequential_p"]),
        **_HOLM.compare(holm_p, known["holm_p"]),
    }


@derived("E-5")
def e5_from_paper() -> Table:
    """Exact p from the printed sequential p, and their Holm adjustment over five."""
    family = _family()
    exact = {
        contrast.id: on_grid(
            printed_number("E-5", contrast.id, "sequential_p"), _looks_grid(contrast)
        )
        for contrast in family.contrasts
    }
    adjusted = holm_exact(exact)
    relations = [
        relation
        for contrast in family.contrasts
        for relation in (
            Relation(
                row=contrast.id,
                column="sequential_p",
                computed=sequential_p([float(exact[contrast.id] / 2)], len(family.looks)),
                formula=f"2 x {exact[contrast.id] / 2 * _assignments(contrast)}"
                f"/{_assignments(contrast)} (Eq. B1)",
            ),
            Relation(
                row=contrast.id,
                column="holm_p",
                computed=float(adjusted[contrast.id]),
                formula=f"Holm over {family.size} of exact sequential p",
            ),
        )
    ]
    return relations_table(
        "E-5",
        "The original five comparisons: exact p and their adjustment",
        relations,
        notes=(
            "The sequential p on the grid of 2/64 or 2/512 is the only one that is printed so.",
        ),
    )


@table("E-13", lacks="the latencies of single requests")
def e13(ledgers: Ledgers) -> Table:
    """Latency ratios, and goodput under thresholds taken from the runs themselves."""
    family, printed = _family(), published_table("E-13")
    assert family.goodput is not None
    quantities = (
        Quantity(name="e2e_p99_ratio", heading="E2E p99 ratio", spec=".3f"),
        Quantity(name="tpot_p99_ratio", heading="TPOT p99 ratio", spec=".3f"),
        Quantity(
            name="comparator_threshold_effect", heading="comparator threshold, %", spec="+.2f"
        ),
        Quantity(name="union_threshold_effect", heading="union threshold, %", spec="+.2f"),
    )
    rows = []
    for contrast, row in zip(family.contrasts, printed.index, strict=True):
        runs = ledgers.of(contrast)
        effects = goodput_effects(ledgers, contrast, family.goodput.percent)
        here = {
            "e2e_p99_ratio": _mean_ratio(runs, contrast, "e2e_p99_s"),
            "tpot_p99_ratio": _mean_ratio(runs, contrast, "tpot_p99_s"),
            "comparator_threshold_effect": effects[0],
            "union_threshold_effect": effects[1],
        }
        entries = _key(contrast, ledgers)
        for quantity in quantities:
            entries |= quantity.compare(
                here[quantity.name], published_value("E-13", row, quantity.name)
            )
        rows.append(entries)
    percent = family.goodput.percent
    return Table(
        name="E-13",
        title="The original five comparisons: latency ratios and latency-qualified goodput",
        rows=pd.DataFrame(rows),
        views=tuple(
            (*_KEYS, *(column for quantity in part for column in quantity.columns()))
            for part in (quantities[:2], quantities[2:])
        ),
        origin=common_origin(map(ledgers.of, family.contrasts)),
        notes=(
            "Ratios: mean over seeds of D0's run-level p99 over the comparator's.",
            f"Goodput effect: mean over seeds of 100 (D0 / comparator − 1) of output tokens of "
            f"requests within the {percent:g}th percentile of E2E and of TPOT, taken over the "
            "comparator's requests, or over both arms', of all seeds. Percentile and pooling are "
            "inferred, not printed.",
        ),
        missing=missing_cells(_needs(ledgers, ["e2e_p99_s", "tpot_p99_s"])),
    )


def goodput_effects(
    ledgers: Ledgers, contrast: Contrast, percent: float
) -> tuple[float | None, float | None]:
    """Mean seedwise goodput effects under the comparator's and under both arms' thresholds.

    None if a run is missing or a seed has no good request.
    """
    runs = ledgers.of(contrast)
    arms = (contrast.numerator, contrast.denominator)
    if any(runs.missing_seeds(arm) for arm in arms):
        return None, None
    campaign = str(contrast.campaign)
    tables = [
        {seed: ledgers.request_table(campaign, cell) for seed, cell in runs.cell_ids(arm).items()}
        for arm in arms
    ]
    both = [*tables[0].values(), *tables[1].values()]
    thresholds = (
        union_thresholds(list(tables[1].values()), percent),
        union_thresholds(both, percent),
    )
    comparator, union = (_goodput_effect(tables, each) for each in thresholds)
    return comparator, union


@table("E-14")
def e14(ledgers: Ledgers) -> Table:
    """Gaps over the whole run and over the central arrivals."""
    family, printed = _family(), published_table("E-14")
    full = Quantity(name="full_run_gap", heading="full run, %", spec="+.2f")
    central = Quantity(name="central_arrival_gap", heading="central arrivals, %", spec="+.2f")
    metrics = {full: "throughput_tok_per_s", central: "central_throughput_tok_per_s"}
    rows = []
    for contrast, row in zip(family.contrasts, printed.index, strict=True):
        runs = ledgers.of(contrast)
        entries = _key(contrast, ledgers)
        for quantity, metric in metrics.items():
            gap = mean_change(runs, contrast.numerator, contrast.denominator, metric)
            entries |= quantity.compare(gap, published_value("E-14", row, quantity.name))
        rows.append(entries)
    return Table(
        name="E-14",
        title="The original five comparisons over two observation windows",
        rows=pd.DataFrame(rows),
        views=((*_KEYS, *full.columns(), *central.columns()),),
        origin=common_origin(map(ledgers.of, family.contrasts)),
        notes=(
            "Central arrivals: output tokens generated between the 20th and the 80th percentile of "
            "the planned arrivals, the same window for both arms of a seed. It is not a steady "
            "state.",
        ),
        missing=missing_cells(_needs(ledgers, list(metrics.values()))),
    )


@derived("E-14")
def e14_from_paper() -> Table:
    """Check that the full-run gaps are those of Table E-5."""
    rows = zip(published_table("E-14").index, published_table("E-5").index, strict=True)
    return relations_table(
        "E-14",
        "The original five comparisons over two windows: full-run gaps",
        [
            Relation(
                row=row,
                column="full_run_gap",
                computed=printed_number("E-5", number, "mean_d0_gap").value,
                formula=f"E-5, no. {number}",
            )
            for row, number in rows
        ],
        notes=("Central-arrival gaps need the requests of every run, which are not printed.",),
    )


# -- shared by the tables ------------------------------------------------------------------------


def _family() -> Family:
    return configs.family("original5")


def _key(contrast: Contrast, ledgers: Ledgers) -> dict[str, object]:
    runs = ledgers.of(contrast)
    design = runs.design
    arm = design.whole(contrast.numerator)
    arrivals = f" {design.arrivals}" if design.arrivals else ""
    load = f"{arrivals} {arm.rate_per_s:g}/s, cap {arm.cap}"
    return {
        "id": contrast.id,
        "campaign": contrast.campaign,
        "block": contrast.block,
        "comparison": f"{contrast.label} {arm.budget},{load}",
        "seeds": runs.seeds_text,
    }


def _needs(ledgers: Ledgers, metrics: list[str]) -> list[tuple[Runs, tuple[Arm, Arm], list[str]]]:
    return [
        (ledgers.of(contrast), (contrast.numerator, contrast.denominator), metrics)
        for contrast in _family().contrasts
    ]


def _mean_ratio(runs: Runs, contrast: Contrast, metric: str) -> float | None:
    change = mean_change(runs, contrast.numerator, contrast.denominator, metric)
    return None if change is None else 1.0 + change / 100.0


def _goodput_effect(tables: list[dict[int, pd.DataFrame]], thresholds: Thresholds) -> float | None:
    numerator, denominator = (
        pd.Series(
            {seed: goodput_tok_per_s(table, thresholds) for seed, table in of_arm.items()},
            dtype=np.float64,
        )
        for of_arm in tables
    )
    pairs = pair_up(numerator, denominator)
    return None if pairs.undefined else float(relative_changes(pairs).mean())


def _assignments(contrast: Contrast) -> int:
    """Sign assignments of the seeds of a comparison."""
    design = configs.block_design(str(contrast.campaign), str(contrast.block))
    return int(2 ** len(design.seeds))


def _looks_grid(contrast: Contrast) -> int:
    """Denominator of sequential p, which are twice an even count over the assignments."""
    return _assignments(contrast) // 4


def _incomplete(tests: list[FamilyTest]) -> tuple[str, ...]:
    if all(test.p_value is not None for test in tests):
        return ()
    return (
        "Tests with missing cells keep their place in the family; the other Holm p are upper "
        "bounds until they are run.",
    )
