"""The families' tests one by one: change and decision, here and in the paper."""

import numpy as np
import pandas as pd

from analysis import config as configs
from analysis.compare.sources import Sources
from analysis.compare.targets import Targets
from analysis.families import Contrast, Family, Interaction
from analysis.family_tests import RunsOf, adjusted_p, family_tests
from analysis.ledgers import Ledgers
from analysis.published import published_value
from analysis.runs import Origin, Runs
from analysis.tables import b7
from analysis.tables.table import Column, Table

_COLUMNS = (
    "family",
    "test",
    "arms",
    "n",
    "unit",
    "change",
    "change_paper",
    "raw_p",
    "raw_p_paper",
    "holm_p",
    "holm_p_paper",
    "reject",
    "reject_paper",
)


def compared_tests(targets: Targets, sources: Sources) -> pd.DataFrame:
    """All families' tests: change and decision, here and in the paper."""
    rows: list[dict[str, object]] = []
    for name in targets.families:
        rows += _family_rows(configs.family(name), sources.of, targets.raw_p.get(name))
    for campaign, block in targets.confirmations.items():
        rows += _confirmation_rows(campaign, sources.runs(campaign, block))
    return _compared(rows)


def tests_of(campaign: str, ledgers: Ledgers) -> pd.DataFrame:
    """The tests that draw on a campaign's runs, each adjusted over the whole of its family."""
    rows: list[dict[str, object]] = []
    for family in configs.families_of(campaign):
        own = campaigns_by_test(family)
        tests = _family_rows(family, ledgers.of, None)
        rows += [row for row in tests if own[str(row["test"])] == campaign]
    if configs.has_family(campaign):
        config = configs.load(campaign)
        rows += _confirmation_rows(campaign, ledgers.open_runs(campaign, config.design))
    return _compared(rows)


def campaigns_by_test(family: Family) -> dict[str, str | None]:
    """The campaign that each test draws on; an interaction draws on that of its minuend."""
    own = {each.id: each.campaign for each in (*family.contrasts, *family.components)}
    return own | {each.id: own[each.minuend] for each in family.interactions}


def _compared(rows: list[dict[str, object]]) -> pd.DataFrame:
    """The rows as a frame that says where both sides agree."""
    tests = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(
        {"reject": "boolean", "reject_paper": "boolean"}
    )
    tests["sign_agrees"] = _agree(_signs(tests["change"]), _signs(tests["change_paper"]))
    tests["reject_agrees"] = _agree(tests["reject"], tests["reject_paper"])
    return tests


def _family_rows(
    family: Family, runs_of: RunsOf, raw_p: tuple[str, str] | None
) -> list[dict[str, object]]:
    tests = family_tests(family, runs_of)
    declared: dict[str, Contrast | Interaction] = {each.id: each for each in family.contrasts}
    declared |= {each.id: each for each in family.interactions}
    rows = []
    for test, p in zip(tests, adjusted_p(tests), strict=True):
        change, printed_p = (
            None if cell is None else published_value(*cell)
            for cell in (declared[test.id].published_change, declared[test.id].published_p)
        )
        known = test.p_value is not None and test.moved
        rows.append(
            {
                "family": family.name,
                "test": test.id,
                "arms": test.arms,
                "n": test.n,
                "unit": test.unit,
                "change": test.mean_change,
                "change_paper": change,
                "raw_p": test.p_value,
                "raw_p_paper": raw_p and published_value(raw_p[0], test.id, raw_p[1]),
                "holm_p": float(p) if known else None,
                "holm_p_paper": printed_p,
                "reject": bool(p <= family.alpha) if known else None,
                "reject_paper": None if printed_p is None else printed_p <= family.alpha,
            }
        )
    return rows


def _confirmation_rows(campaign: str, runs: Runs) -> list[dict[str, object]]:
    """Q6's tests as Table B-7 shows them; empty if there is no run."""
    config = configs.load(campaign)
    if runs.known_origin is None:
        return []
    return [
        {
            "family": config.family.name,
            "test": row["id"],
            "arms": row["arms"],
            "n": row["n"],
            "unit": row["unit"],
            "change": row["mean_change"],
            "change_paper": row["mean_change_published"],
            "raw_p": row["raw_p"],
            "raw_p_paper": None,
            "holm_p": row["holm_p"],
            "holm_p_paper": row["holm_p_published"],
            "reject": row["reject"],
            "reject_paper": row["reject_published"],
        }
        for row in b7.from_runs(runs, config).rows.to_dict("records")
    ]


def _signs(values: pd.Series) -> pd.Series:
    return pd.Series(np.sign(values.astype("float64")), index=values.index)


def _agree(here: pd.Series, paper: pd.Series) -> pd.Series:
    """Whether both are equal; unknown if either is."""
    return (here == paper).astype("boolean").mask(here.isna() | paper.isna())


def decisions_table(
    tests: pd.DataFrame, origin: Origin, beneath: pd.DataFrame | None = None
) -> Table:
    """
    Args:
        beneath: the tests on the published seeds, if `tests` are on others.
    """
    rows = tests
    if beneath is not None:
        published = beneath[["change", "holm_p", "sign_agrees", "reject_agrees"]]
        rows = tests.join(published.add_prefix("published_seeds_"))
    return Table(
        name="compare-decisions",
        title="Signs and Holm decisions, test by test",
        rows=rows,
        views=(
            (
                Column(heading="family", templates=("{family}",)),
                Column(heading="test", templates=("{test}",)),
                Column(heading="n", templates=("{n:d}",)),
                Column(group="change", heading="ours", templates=("{change:+.2f} {unit}",)),
                Column(group="change", heading="paper", templates=("{change_paper:+.2f}",)),
                Column(group="raw p", heading="ours", templates=("{raw_p:.4f}",)),
                Column(group="raw p", heading="paper", templates=("{raw_p_paper:.4f}",)),
                Column(group="Holm p", heading="ours", templates=("{holm_p:.4f}",)),
                Column(group="Holm p", heading="paper", templates=("{holm_p_paper:.4f}",)),
                Column(group="same", heading="sign", templates=("{sign_agrees}",)),
                Column(group="same", heading="decision", templates=("{reject_agrees}",)),
                *(_PUBLISHED_SEEDS if beneath is not None else ()),
            ),
        ),
        origin=origin,
        notes=(
            "A decision that the paper does not print is not compared, nor is one of ours where "
            "the arms took the same time in every seed.",
        ),
    )


_PUBLISHED_SEEDS = (
    Column(group="published seeds", heading="change", templates=("{published_seeds_change:+.2f}",)),
    Column(group="published seeds", heading="Holm p", templates=("{published_seeds_holm_p:.4f}",)),
    Column(
        group="published seeds",
        heading="decision",
        templates=("{published_seeds_reject_agrees}",),
    ),
)
