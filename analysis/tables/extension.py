"""The extension's family of 22 tests: Tables B-5, B-6, E-12 and E-17, and the family as a whole.

Appendices B.5, B.12, E.5 and E.14. `ledgers.adoption` sets how the rerun of order139 is treated.
"""

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis import config as configs
from analysis.families import Adoption, Contrast, Family, Interaction
from analysis.family_tests import FamilyTest, adjusted_p, family_tests
from analysis.gaps import describe
from analysis.ledgers import Ledgers, common_origin
from analysis.published import published_row, published_value
from analysis.runs import Origin, Runs
from analysis.tables.beside import Number, Quantity
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.catalog import read_option

SCENARIOS: dict[str, Adoption] = {"A": "current", "B": "complete_case", "C": "invalid"}
"""Adoption of each scenario of Table E-17."""

CHANGE = Quantity(name="mean_change", heading="change", spec="+.3f")
HOLM_P = Quantity(name="holm_p", heading="Holm p", spec=".5f")

_KEYS = (
    Column(heading="test", templates=("{id}",)),
    Column(heading="n", templates=("{n}",)),
)
_RAW_P = Column(heading="raw p", templates=("{raw_p:.5f}",))
_REJECT = Column(heading="reject", templates=("{reject}",))


@table("extension-22", by_adoption=True)
def extension22(ledgers: Ledgers) -> Table:
    """Every test of the family."""
    tests = _tests(ledgers)
    return _table(
        "extension-22",
        f"The extension's family of {_family().size} tests",
        rows=[_row(test, p) for test, p in _with_p(tests)],
        views=((*_KEYS, *CHANGE.columns(), _RAW_P, *HOLM_P.columns(), _REJECT),),
        ledgers=ledgers,
        missing=tests,
        notes=_inferred(tests),
    )


@table("B-5", by_adoption=True)
def b5(ledgers: Ledgers) -> Table:
    """The six stepwise contrasts with their seed variation."""
    tests = _tests(ledgers)
    rows = []
    for test, p in _with_p(tests):
        key = _printed_in("B-5", test.id)
        if key is None:
            continue
        changes, known = test.changes, published_row("B-5", key)
        low = Quantity(name="observed_min", heading="min", spec="+.3f")
        high = Quantity(name="observed_max", heading="max", spec="+.3f")
        rows.append(
            _row(test, p)
            | {"budget": known["budget"], "contrast": known["contrast"]}
            | low.compare(_or_none(changes, "min"), known["observed_min"])
            | high.compare(_or_none(changes, "max"), known["observed_max"])
            | {
                "positive_seeds": None if changes is None else int((changes > 0).sum()),
                "negative_seeds": None if changes is None else int((changes < 0).sum()),
                "positive_seeds_published": int(known["positive_seeds"]),
                "negative_seeds_published": int(known["negative_seeds"]),
            }
        )
    signs = "{positive_seeds%s:.0f}/{negative_seeds%s:.0f}"
    span = "{observed_min%s:+.2f} to {observed_max%s:+.2f}"
    return _table(
        "B-5",
        "Stepwise effects on throughput and their observed seed variation",
        rows=rows,
        views=(
            (*_KEYS, *CHANGE.columns(), _RAW_P, *HOLM_P.columns(), _REJECT),
            (
                *_KEYS,
                Column(group="observed range", heading="here", templates=(span % ("", ""),)),
                Column(
                    group="observed range",
                    heading="paper",
                    templates=(span % ("_published", "_published"),),
                ),
                Column(group="positive/negative", heading="here", templates=(signs % ("", ""),)),
                Column(
                    group="positive/negative",
                    heading="paper",
                    templates=(signs % ("_published", "_published"),),
                ),
            ),
        ),
        ledgers=ledgers,
        missing=tests,
        notes=("The range over seeds is not a confidence interval.",),
    )


@table("B-6")
def b6(ledgers: Ledgers) -> Table:
    """The affected contrasts with and without the seed in doubt."""
    scenarios: dict[Adoption, str] = {
        "current": "current adoption",
        "complete_case": f"exclude {_affected_seed()}",
    }
    rows: list[dict[str, object]] = []
    missing: list[FamilyTest] = []
    for adoption, scenario in scenarios.items():
        tests = _tests(ledgers, adoption)
        missing += tests
        for test, p in _with_p(tests):
            if test.id not in affected_ids():
                continue
            contrast = _contrast_label(test.id)
            known = published_row("B-6", f"{contrast}/{scenario}")
            rows.append(
                {"contrast": contrast, "scenario": scenario, "n": test.n, "raw_p": test.p_value}
                | CHANGE.compare(test.mean_change, known.get("mean_change"))
                | HOLM_P.compare(_known(p, test), known.get("holm_p"))
            )
    rows.sort(key=lambda row: str(row["contrast"]))
    return _table(
        "B-6",
        "The contrasts of the rerun cell, with and without its seed",
        rows=rows,
        views=(
            (
                Column(heading="contrast", templates=("{contrast}",)),
                Column(heading="scenario", templates=("{scenario}",)),
                Column(heading="n", templates=("{n}",)),
                *CHANGE.columns(),
                _RAW_P,
                *HOLM_P.columns(),
            ),
        ),
        ledgers=ledgers,
        missing=missing,
        notes=("A sensitivity analysis after the fact; it replaces no main result (B.12).",),
        adoption_note=False,
    )


@table("E-12", by_adoption=True)
def e12(ledgers: Ledgers) -> Table:
    """D0 with other pool splits, relative to the model's own split."""
    tests = _tests(ledgers)
    rows = []
    for test, p in _with_p(tests):
        key = _printed_in("E-12", test.id)
        if key is None:
            continue
        known = published_row("E-12", key)
        share = Quantity(name="attention_fraction", heading="attention", spec=".6f")
        rows.append(
            _row(test, p)
            | {"budget": known["budget"], "setting": known["setting"]}
            | share.compare(split_fraction(test.id), known["attention"])
        )
    return _table(
        "E-12",
        "D0 with other pool splits, relative to the model's own",
        rows=rows,
        views=(
            (
                Column(heading="budget", templates=("{budget}",)),
                Column(heading="setting", templates=("{setting}",)),
                Column(heading="attention", templates=("{attention_fraction:.6f}",)),
                Column(heading="n", templates=("{n}",)),
                *CHANGE.columns(),
                *HOLM_P.columns(),
                _REJECT,
            ),
        ),
        ledgers=ledgers,
        missing=tests,
    )


@table("E-17")
def e17(ledgers: Ledgers) -> Table:
    """Rejections of the whole family under the three adoption scenarios."""
    rejections = Quantity(name="rejections", heading="rejections", spec=".0f")
    rows: list[dict[str, object]] = []
    missing: list[FamilyTest] = []
    for scenario, adoption in SCENARIOS.items():
        known = published_row("E-17", scenario)
        tests = _tests(ledgers, adoption)
        missing += tests
        p_values = [_known(p, test) for test, p in _with_p(tests)]
        complete = all(p is not None for p in p_values)
        alpha = _family().alpha
        count = sum(p <= alpha for p in p_values if p is not None) if complete else None
        affected = [test for test in tests if test.id in affected_ids()]
        n = {test.n for test in affected} if adoption != "invalid" else set()
        rows.append(
            {
                "scenario": scenario,
                "adoption": adoption,
                "n_affected_contrasts": n.pop() if len(n) == 1 else None,
                "n_affected_contrasts_published": known.get("n_affected_contrasts"),
                "family_size": len(tests),
            }
            | rejections.compare(count, known["rejections"])
        )
    return _table(
        "E-17",
        f"Rejections of the family of {_family().size} under three adoption scenarios",
        rows=rows,
        views=(
            (
                Column(heading="scenario", templates=("{scenario}",)),
                Column(heading="adoption", templates=("{adoption}",)),
                Column(
                    group="n affected", heading="here", templates=("{n_affected_contrasts:.0f}",)
                ),
                Column(
                    group="n affected",
                    heading="paper",
                    templates=("{n_affected_contrasts_published:.0f}",),
                ),
                *rejections.columns(),
                Column(heading="of", templates=("{family_size}",)),
            ),
        ),
        ledgers=ledgers,
        missing=missing,
        notes=(
            f"Affected: {', '.join(affected_ids())} (seed {_affected_seed()}). A counts the "
            "adopted attempt; B leaves the seed out of these contrasts; C treats them as not "
            "estimable, p = 1. The family keeps its size.",
            "Rejections are counted once every test of the family has its runs.",
        ),
        adoption_note=False,
    )


# -- shared by the tables ------------------------------------------------------------------------


def affected_ids() -> list[str]:
    """Contrasts that use the run in doubt."""
    family = _family()
    return [
        contrast.id
        for contrast in family.contrasts
        for run in family.affected
        if any(run.arm.axes.items() <= axes.items() for axes in _whole_axes(contrast))
    ]


def split_fraction(test_id: str) -> float:
    """Attention's share of the budget in the numerator of a split contrast (conf/organization)."""
    (contrast,) = (each for each in _family().contrasts if each.id == test_id)
    fraction = read_option("organization", str(contrast.numerator.organization))
    return float(fraction["attention_fraction"])


def _whole_axes(contrast: Contrast) -> list[dict[str, object]]:
    design = configs.block_design(str(contrast.campaign), str(contrast.block))
    arms = (contrast.numerator.at(contrast.at), contrast.denominator.at(contrast.at))
    return [dict(design.whole(arm).axes) for arm in arms]


def _family() -> Family:
    return configs.family("extension22")


def _tests(ledgers: Ledgers, adoption: Adoption | None = None) -> list[FamilyTest]:
    return family_tests(_family(), ledgers.of, adoption=adoption or ledgers.adoption)


def _with_p(tests: list[FamilyTest]) -> Iterable[tuple[FamilyTest, float]]:
    return zip(tests, map(float, adjusted_p(tests)), strict=True)


def _known(holm_p: float, test: FamilyTest) -> float | None:
    return None if test.p_value is None else holm_p


def _declared(test_id: str) -> Contrast | Interaction:
    (found,) = (test for test in _family().tests if test.id == test_id)
    return found


def _printed_in(table: str, test_id: str) -> str | None:
    """The row of a published table that prints the test's effect."""
    place = _declared(test_id).published_change
    return place[1] if place is not None and place[0] == table else None


def _contrast_label(test_id: str) -> str:
    declared = _declared(test_id)
    assert isinstance(declared, Contrast)
    return declared.label


def _affected_seed() -> int:
    return _family().affected[0].seed


def _row(test: FamilyTest, holm_p: float) -> dict[str, object]:
    declared = _declared(test.id)
    change, p = (
        None if place is None else published_value(*place)
        for place in (declared.published_change, declared.published_p)
    )
    known = _known(holm_p, test)
    return {
        "id": test.id,
        "arms": test.arms,
        "place": test.place,
        "unit": test.unit,
        "definition": test.definition,
        "n": test.n,
        "raw_p": test.p_value,
        "reject": None if known is None else bool(known <= _family().alpha),
        **CHANGE.compare(test.mean_change, change),
        **HOLM_P.compare(known, p),
    }


def _or_none(changes: pd.Series | None, statistic: str) -> Number:
    return None if changes is None else float(changes.agg(statistic))


def _inferred(tests: list[FamilyTest]) -> tuple[str, ...]:
    names = [test.id for test in tests if test.definition == "inferred"]
    return (f"Definition inferred, not printed in the paper: {', '.join(names)}.",)


def _runs(ledgers: Ledgers) -> list[Runs]:
    family = _family()
    return [ledgers.of(contrast) for contrast in (*family.contrasts, *family.components)]


def _table(
    name: str,
    title: str,
    *,
    rows: list[dict[str, object]],
    views: tuple[tuple[Column, ...], ...],
    ledgers: Ledgers,
    missing: Sequence[FamilyTest],
    notes: tuple[str, ...] = (),
    adoption_note: bool = True,
) -> Table:
    origin: Origin = common_origin(_runs(ledgers))
    family = _family()
    remarks = [
        "Change: mean over seeds of 100 (numerator / denominator − 1), in %; of interactions the "
        "difference of two changes, in percentage points.",
        f"raw p: exact two-sided sign-flip test of log ratios; Holm over {family.size}, reject at "
        f"{family.alpha}.",
        *notes,
    ]
    if adoption_note and ledgers.adoption != "current":
        remarks.append(
            f"adoption={ledgers.adoption} of seed {_affected_seed()} in "
            f"{', '.join(affected_ids())}."
        )
    if any(test.p_value is None for test in missing):
        remarks.append(
            "Tests with missing cells keep their place in the family; the other Holm p are upper "
            "bounds until they are run."
        )
    return Table(
        name=name,
        title=title,
        rows=pd.DataFrame(rows).astype({"reject": "boolean"} if "reject" in rows[0] else {}),
        views=views,
        origin=origin,
        notes=tuple(remarks),
        missing=describe(gap for test in missing for gap in test.gaps),
    )
