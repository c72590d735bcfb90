"""Tables E-15 and E-16: pinning at preemption and the D0/S2 gap (Appendix E.13)."""

from collections.abc import Sequence

import pandas as pd

from analysis import config as configs
from analysis.families import Family
from analysis.family_tests import FamilyTest, adjusted_p, component_changes, family_tests
from analysis.gaps import describe
from analysis.holm import holm
from analysis.ledgers import Ledgers, common_origin
from analysis.published import printed_number, published_row, published_table, published_value
from analysis.runs import Origin
from analysis.tables.beside import Quantity, complete_mean
from analysis.tables.cells import text_column
from analysis.tables.registry import derived, table
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Column, Table

_POINTS = ("A", "B")
_SETTINGS = {
    "Roff": "roff_pin_off_gap",
    "R0": "r0_k3_gap",
    "R1": "r1_k2_gap",
    "R2": "r2_k1_gap",
}
"""Column of Table E-15, by setting."""


@table("E-15")
def e15(ledgers: Ledgers) -> Table:
    """Mean gaps under four settings at two operating points, and D0's pins a run."""
    contrasts = {contrast.id: contrast for contrast in _family().components}
    gaps = component_changes(_family(), ledgers.of)
    shown = {
        setting: Quantity(name=column, heading=setting, spec="+.2f")
        for setting, column in _SETTINGS.items()
    }
    rows = []
    for point in _POINTS:
        known = published_row("E-15", point)
        entries: dict[str, object] = {"operating_point": point}
        entries |= {name: known[name] for name in ("budget", "rate", "cap")}
        for setting, quantity in shown.items():
            gap, contrast = gaps[f"{point}-{setting}"], contrasts[f"{point}-{setting}"]
            d0 = contrast.numerator.at(contrast.at)
            entries[f"{setting}_d0_pins"] = complete_mean(
                ledgers.of(contrast).values(d0, "pinned_checkpoints")
            )
            entries |= quantity.compare(gap.mean_change, known[quantity.name])
        rows.append(entries)
    return Table(
        name="E-15",
        title="Mean D0/S2 gaps, %, by pinning setting",
        rows=pd.DataFrame(rows),
        views=(
            (
                *_keys(),
                *(column for quantity in shown.values() for column in quantity.columns()),
            ),
            (
                *_keys(),
                *(
                    Column(
                        group="D0 pins a run",
                        heading=setting,
                        templates=(f"{{{setting}_d0_pins:.1f}}",),
                    )
                    for setting in shown
                ),
            ),
        ),
        origin=_origin(ledgers),
        notes=(
            f"Means over {_num_seeds(ledgers)} seeds of 100 (D0/S2 − 1). Roff pins nothing; R0 to "
            "R2: K = 3, 2, 1.",
            f"The paper's D0 pins a run: {_pins('under Roff')} under Roff, "
            f"{_pins('under enabled rules, low')} to {_pins('under enabled rules, high')} "
            "otherwise.",
        ),
        missing=describe(gap for test in gaps.values() for gap in test.gaps),
    )


@table("E-16")
def e16(ledgers: Ledgers) -> Table:
    """Changes from R0 to R2: the primary tests, and log ratios as a sensitivity."""
    family = _family()
    primary = family_tests(family, ledgers.of)
    logs = family_tests(family.model_copy(update={"scale": "log ratio"}), ledgers.of)
    change = Quantity(name="mean_change", heading="mean change, pp", spec="+.4f")
    low = Quantity(name="observed_seed_min", heading="seed min", spec="+.4f")
    high = Quantity(name="observed_seed_max", heading="seed max", spec="+.4f")
    relative = Quantity(name="raw_relative_gap_p", heading="raw p, gaps", spec=".5f")
    log_ratio = Quantity(name="raw_log_ratio_p", heading="raw p, log ratios", spec=".5f")
    holm_p = Quantity(name="holm_p", heading="Holm p", spec=".3f")
    rows = []
    for test, log, p in zip(primary, logs, adjusted_p(primary), strict=True):
        known = published_row("E-16", test.id)
        extremes = (
            (None, None)
            if test.changes is None
            else (float(test.changes.min()), float(test.changes.max()))
        )
        rows.append(
            {"operating_point": test.id, "contrast": "R0->R2", "n": test.n}
            | {name: known[name] for name in ("budget", "rate", "cap")}
            | change.compare(test.mean_change, known["mean_change"])
            | low.compare(extremes[0], known["observed_seed_min"])
            | high.compare(extremes[1], known["observed_seed_max"])
            | relative.compare(test.p_value if test.moved else None, known["raw_relative_gap_p"])
            | log_ratio.compare(log.p_value if test.moved else None, known["raw_log_ratio_p"])
            | holm_p.compare(
                None if test.p_value is None or not test.moved else float(p), _printed_holm()
            )
        )
    return Table(
        name="E-16",
        title="R0 to R2: change of the D0/S2 gap",
        rows=pd.DataFrame(rows),
        views=(
            (*_keys(), *change.columns(), *low.columns(), *high.columns()),
            (_keys()[0], *relative.columns(), *log_ratio.columns(), *holm_p.columns()),
        ),
        origin=_origin(ledgers),
        notes=(
            f"Exact sign-flip test of differences of relative gaps, Holm over {family.size}; the "
            "test of log ratios is a sensitivity.",
            *_without_answer(primary),
        ),
        missing=describe(gap for test in primary for gap in test.gaps),
    )


@derived("E-15")
def e15_from_paper() -> Table:
    """Check that the R1 gaps are those of the reused runs of Q5."""
    return relations_table(
        "E-15",
        "Mean D0/S2 gaps by pinning setting: the reused runs",
        [
            Relation(
                row=row,
                column="r1_k2_gap",
                computed=printed_number(*place).value,
                formula=formula,
            )
            for row, place, formula in (
                (
                    "A",
                    ("text", "5.3", "common six b108 seeds: D0/S2 gap at 4.5 req/s"),
                    "Section 5.3, six common seeds",
                ),
                ("B", ("E-5", "1", "mean_d0_gap"), "E-5, no. 1"),
            )
        ],
        notes=("The other gaps need the runs, which are not printed.",),
    )


@derived("E-16")
def e16_from_paper() -> Table:
    """Changes as differences of E-15, and Holm over the two raw p."""
    printed = published_table("E-16")
    adjusted = holm(printed["raw_relative_gap_p"].to_numpy())
    relations = []
    for row, p in zip(printed.index, adjusted, strict=True):
        relations += [
            Relation(
                row=row,
                column="mean_change",
                computed=published_value("E-15", row, "r2_k1_gap")
                - published_value("E-15", row, "r0_k3_gap"),
                formula="R2 − R0 of E-15",
                approximate="E-15 prints gaps to 0.01 only",
            ),
            Relation(
                table="text",
                row="E.13",
                column="R0 to R2 adjusted p, both points",
                computed=float(p),
                formula=f"Holm over two, {row}",
            ),
        ]
    return relations_table("E-16", "R0 to R2: change of the D0/S2 gap", relations)


def _without_answer(tests: Sequence[FamilyTest]) -> tuple[str, ...]:
    """A note on the points at which pinning changed no run."""
    still = [test.id for test in tests if test.changes is not None and not test.moved]
    if not still:
        return ()
    return (
        f"No answer at {' and '.join(still)}: with pins and without, every run took the same time. "
        "A preempted request comes back before its checkpoint would be lost, so that a pin has "
        "nothing to protect (docs/simulator.md).",
    )


def _family() -> Family:
    return configs.family("pinning2")


def _num_seeds(ledgers: Ledgers) -> int:
    return len(ledgers.of(_family().components[0]).seeds)


def _pins(rule: str) -> str:
    return printed_number("text", "E.13", f"D0 pins per run {rule}").text


def _printed_holm() -> float:
    return published_value("text", "E.13", "R0 to R2 adjusted p, both points")


def _origin(ledgers: Ledgers) -> Origin:
    return common_origin(map(ledgers.of, _family().components))


def _keys() -> tuple[Column, ...]:
    return (
        text_column("point", "operating_point"),
        text_column("budget", "budget"),
        Column(heading="req/s", templates=("{rate:.1f}",)),
        Column(heading="cap", templates=("{cap:.0f}",)),
    )
