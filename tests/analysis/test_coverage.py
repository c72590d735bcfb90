"""Every number of the paper has a fate, each declared reason is true, and none can slip in."""

import pytest

from analysis.compare.coverage import broken_rules, coverage_table, fates, numerals
from analysis.compare.printed import Derived, Input
from analysis.compare.targets import Targets, load_targets
from analysis.published import names, published
from hsexp.config.base import ConfigError

PAPER = load_targets("paper")


def with_printed(**changes):
    """The comparison with other declarations."""
    return PAPER.model_copy(update={"printed": PAPER.printed.model_copy(update=changes)})


def tables_with(table, **cell):
    """The published tables, one of them with another number."""
    tables = {name: published(name) for name in names()}
    tidy = tables[table]
    tidy.loc[len(tidy)] = tidy.iloc[-1].to_dict() | cell
    return tables


def test_every_number_of_the_paper_is_compared_or_derived_or_an_input_or_omitted():
    found = fates(PAPER)
    assert found.faults == ()
    assert len(found.of) == len(numerals()) == 1905


def test_every_derived_number_follows_from_others_and_every_input_is_in_conf():
    assert broken_rules(PAPER) == []


def test_no_derived_number_rests_on_an_omitted_one():
    fate = {each.cell: kind for each, (kind, _) in fates(PAPER).of.items()}
    parts = {part for declared in PAPER.printed.derived for part in declared.of if "*" not in part}
    assert {part for part in parts if fate[part] == "omitted"} == set()


def test_a_new_number_without_a_declaration_is_named():
    tables = tables_with("E-4", row="mean_throughput", column="S3", value="1.5")
    assert fates(PAPER, tables).faults == (
        "E-4 mean_throughput, S3 is neither compared nor declared",
    )


def test_a_new_number_that_fits_a_pattern_is_noticed_by_its_count():
    tables = tables_with("D-3", row="Allocator invariants", column="token_drift", value="3")
    (fault,) = fates(PAPER, tables).faults
    assert fault.startswith("D-3 *: batch_sizes_*")
    assert "22 omitted cells are declared, 23 match" in fault


def test_a_number_is_not_compared_and_omitted_at_once():
    omitted = PAPER.printed.omitted[0].model_copy(
        update={"table": "E-1", "rows": ("b63/S0",), "columns": ("k",), "cells": 1}
    )
    faults = fates(with_printed(omitted=(*PAPER.printed.omitted, omitted))).faults
    assert faults == ("E-1 b63/S0, k is omitted and compared",)


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            Derived(
                table="E-1",
                rows=("b63/S0",),
                columns=("k",),
                cells=1,
                rule="same",
                of=(("E-1", "b63/S1", "*"),),
            ),
            "E-1 b63/S0, k: 10500.3 is printed, the rule gives 4952.7",
        ),
        (
            Derived(table="E-1", rows=("b63/S0",), columns=("k",), cells=1, from_table="E-1"),
            "E-1 b63/S0, k: table E-1 says: nothing",
        ),
    ],
)
def test_a_rule_that_gives_another_number_is_named(declared, why):
    assert broken_rules(with_printed(derived=(declared,), inputs=())) == [why]


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            Input(table="E-1", rows=("b108/S0",), columns=("cap",), cells=1, axis="rate_per_s"),
            "E-1 b108/S0, cap: rate_per_s in conf/ is 4.5",
        ),
        (
            Input(
                table="1",
                rows=("S0",),
                columns=("attention_unit",),
                cells=1,
                fact="S1 page bytes",
            ),
            "1 S0, attention_unit: 1557 is printed, the rule gives 512",
        ),
    ],
)
def test_an_input_that_differs_from_conf_is_named(declared, why):
    assert broken_rules(with_printed(derived=(), inputs=(declared,))) == [why]


def test_the_coverage_table_counts_every_number_once():
    rows = coverage_table(PAPER).rows
    assert rows["fate"].dropna().tolist() == ["compared", "derived", "input", "omitted"]
    assert rows.loc[rows["fate"].notna(), "cells"].sum() == 1905
    assert rows.loc[rows["why"].notna(), "cells"].sum() == 1905 - rows["cells"][0]


def test_reasons_are_declared_and_used():
    data = PAPER.model_dump()
    data["printed"]["reasons"]["boredom"] = "it is long"
    with pytest.raises(ConfigError, match="boredom must be declared and used"):
        Targets.parse(data)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Derived, {}, "need `rule` or `from_table`"),
        (Derived, {"rule": "same"}, "`rule` and `of` go together"),
        (Input, {}, "need `axis`, `fact` or `why`"),
        (Input, {"axis": "cap", "campaign": "q1"}, "campaign and block go together"),
    ],
)
def test_a_declaration_has_exactly_one_ground(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(table="E-1", cells=1, **fields)
