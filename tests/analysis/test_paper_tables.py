"""`source=paper`: what follows from published values is equal to print, or known not to be."""

import pytest

from analysis.errors import AnalysisError
from analysis.published import PrintedNumber, printed_number, published_row, published_table
from analysis.tables import TABLES, derive
from analysis.tables.relations import Relation, Verdict, relations_table, verdict

MINE = [
    name
    for name, entry in TABLES.items()
    if name[0] in "ABE" or name == "extension-22"
    if entry.from_paper is not None
]
KNOWN = {
    "E-7": [("L", "trace_minus_ref")],
    "E-8": [("ALL", "L"), ("ALL", "M"), ("ALL", "H")],
    "E-10": [("L", "defer_label"), ("M", "defer_label")],
}
"""Of the inconsistencies that analysis/paper/README.md lists, those of these tables."""


EQUAL = {"A-1": 24, "A-2": 15, "B-2": 30, "B-3": 8, "B-4": 15, "B-6": 4, "B-7": 14}
EQUAL |= {"E-1": 6, "E-3": 6, "E-5": 10, "E-6": 2, "E-9": 6, "E-14": 5, "E-15": 2, "E-17": 6}
"""Tables of which every relation is equal to print: how many."""


def of(name, wanted):
    rows = derive(name).rows
    return rows[rows["verdict"] == wanted]


@pytest.mark.parametrize("name", MINE)
def test_no_derived_value_differs_without_a_reason(name):
    assert of(name, Verdict.DIFFERS).empty


@pytest.mark.parametrize("name", [name for name in MINE if "row" in derive(name).rows])
def test_the_known_inconsistencies_are_those_on_record_and_no_others(name):
    known = of(name, Verdict.KNOWN)
    assert list(zip(known["row"], known["column"], strict=True)) == KNOWN.get(name, [])


@pytest.mark.parametrize(
    ("name", "count"),
    EQUAL.items(),
)
def test_everything_that_the_paper_prints_inputs_of_is_equal_to_print(name, count):
    assert len(of(name, Verdict.EQUAL)) == count == len(derive(name).rows)


@pytest.mark.parametrize("name", ["A-1", "B-2"])
def test_storage_tables_show_every_number_of_the_printed_table(name):
    printed = published_table(name).select_dtypes("number").size
    assert len(derive(name).rows) == printed


def test_sequential_p_come_from_the_exact_grid():
    rows = derive("E-5").rows.set_index(["row", "column"])["computed"]
    counts = {"1": 4 / 64, "2": 2 / 512, "3": 2 / 512, "4": 140 / 512, "5": 38 / 512}
    for number, p in counts.items():
        assert rows[number, "sequential_p"] == 2 * p
    # Holm: 5 x 1/128, then 3 x 1/8; 2 x 76/512 does not lower it, 280/512 is last.
    assert [rows[number, "holm_p"] for number in "12345"] == [
        0.375,
        5 / 128,
        5 / 128,
        0.546875,
        0.375,
    ]


def test_adjusted_p_of_b7_stand_on_multiples_of_1_in_4096():
    rows = derive("B-7").rows.set_index("column", append=True)["computed"]
    assert sorted({p * 4096 for p in rows}) == [34.0, 560.0, 1260.0]


@pytest.mark.parametrize("name", ["B-5", "E-12", "extension-22"])
def test_reconstructed_tables_say_so_and_show_printed_p_of_the_current_adoption(name):
    table = derive(name)
    assert "reconstructed" in str(table.origin)
    assert any("Reconstructed" in note for note in table.notes)
    assert len(of(name, Verdict.EQUAL)) == table.rows["holm_p_published"].notna().sum() > 0


def test_a_scenario_changes_the_reconstructed_p_of_tests_that_are_not_affected():
    # RM10 b108: 36/4096 stands behind one test more once S2/S1 b108 has p = 1.
    invalid = derive("extension-22", "invalid").rows.set_index("id")
    assert invalid.loc["RM10-b108", "holm_p"] == 6 * 36 / 4096
    assert not invalid.loc["RM10-b108", "reject"]
    assert derive("extension-22").rows.set_index("id").loc["RM10-b108", "holm_p"] == 150 / 4096


def test_changes_of_printed_means_are_near_and_say_what_is_not_printed():
    table = derive("E-2")
    assert set(table.rows["verdict"]) == {Verdict.NO_INPUTS}
    assert table.rows["difference"].abs().max() < 0.5
    assert any("E-2 averages changes of single seeds" in note for note in table.notes)


@pytest.mark.parametrize("name", ["B-8", "E-4", "E-11", "E-13"])
def test_a_table_without_printed_inputs_says_what_is_missing(name):
    with pytest.raises(AnalysisError, match=f"table {name} cannot be derived .* does not print "):
        derive(name)


def test_an_adoption_that_does_not_concern_a_table_is_refused():
    with pytest.raises(AnalysisError, match=r"adoption=invalid concerns B-5, E-12, .*, not E-5"):
        derive("E-5", "invalid")


# -- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("1.5", 1.45, True),  # on the border, either way
        ("1.5", 1.55, True),
        ("1.5", 1.449, False),
        ("0.125", 0.1254, True),
        ("0.125", 0.1256, False),
        ("63", 63.4, True),
        ("63", 62.4, False),
        ("-0.058", -0.0584, True),
    ],
)
def test_a_printed_number_shows_what_rounds_to_it(text, value, shown):
    assert PrintedNumber(text=text).shows(value) is shown


def test_a_printed_number_keeps_its_trailing_zeros():
    assert printed_number("A-1", "1/1", "s1").decimals == 6


def test_a_row_has_no_entry_for_what_the_paper_does_not_give():
    assert "n_affected_contrasts" not in published_row("E-17", "C")
    assert published_row("E-17", "D") == {}


@pytest.mark.parametrize(
    ("computed", "reason", "expected"),
    [
        (3.64, {"known": "rounding"}, Verdict.EQUAL),
        (3.65, {"known": "rounding"}, Verdict.KNOWN),
        (3.65, {"approximate": "means"}, Verdict.NO_INPUTS),
        (3.65, {}, Verdict.DIFFERS),
    ],
)
def test_a_relation_is_equal_or_says_why_not(computed, reason, expected):
    relation = Relation(row="1", column="mean_d0_gap", computed=computed, formula="", **reason)
    assert verdict(relation, "E-5") == expected


def test_a_reason_is_told_only_where_it_is_needed():
    relation = Relation(row="1", column="mean_d0_gap", computed=3.64, formula="", known="never")
    assert relations_table("E-5", "", [relation]).notes == ()
