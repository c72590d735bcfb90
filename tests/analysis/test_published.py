"""The published values: that they are all there, and relations that the paper itself states."""

import pytest

from analysis.errors import AnalysisError
from analysis.published import FOLDER, names, published, published_table, published_value

SEEDWISE = 4096
"""Sign assignments of twelve seeds."""


def test_every_published_file_is_tidy_and_names_its_table():
    for name in names():
        table = published(name)
        assert list(table.columns[:6]) == ["table", "row", "column", "value", "unit", "source"]
        assert set(table["table"]) == {name}
        assert (table[["row", "column", "value", "source"]] != "").all().all(), name
        assert not table.duplicated(["row", "column", "unit"]).any(), name


def test_no_published_file_lies_outside_the_list_of_tables():
    assert {f"{name}.csv" for name in names()} == {path.name for path in FOLDER.glob("*.csv")}


ROWS = {"A-1": 4, "B-2": 3, "B-5": 6, "B-7": 13, "B-8": 30, "C-3": 4, "E-5": 5}
ROWS |= {"E-12": 8, "E-13": 5, "G-3": 6, "G-5": 6, "G-7": 6}


@pytest.mark.parametrize(("table", "rows"), ROWS.items())
def test_a_table_has_the_rows_that_are_printed(table, rows):
    assert len(published_table(table)) == rows


def test_numbers_become_numbers_and_names_stay_names():
    cell = published_table("B-8").loc["b83/S2/0.27"]
    assert cell["organization"] == "S2"
    assert published_table("B-8")["requests_per_s"].dtype == "float64"
    assert cell["requests_per_s"] == published_value("B-8", "b83/S2/0.27", "requests_per_s")


def test_adjusted_p_values_of_b7_lie_on_the_grid_of_twelve_seeds():
    printed = [float(value) for value in published_table("B-7")["holm_p"]]
    printed.append(published_value("text", "B.12", "budget-endpoint interaction adjusted p"))
    for p in printed:
        assert abs(p * SEEDWISE - round(p * SEEDWISE)) < SEEDWISE * 0.5e-8


def test_b7_rejects_where_the_adjusted_p_is_below_five_percent():
    table = published_table("B-7")
    assert ((table["holm_p"] < 0.05) == (table["reject"] == "True")).all()


def test_intervals_of_b7_hold_their_means():
    table = published_table("B-7")
    assert (table["ci95_low"] < table["mean_change"]).all()
    assert (table["mean_change"] < table["ci95_high"]).all()


def test_b8_counts_360_runs_and_orders_its_latencies():
    table = published_table("B-8")
    assert table["runs"].sum() == published_value("text", "B.12", "adopted confirmation runs")
    assert (table["e2e_p99"] > table["ttft_p99"]).all()


def test_b7_agrees_with_the_ratios_of_b8_within_what_averaging_can_do():
    cells = published_table("B-8").set_index(["budget", "organization", "headroom"])
    for row in published_table("B-7").itertuples():
        top = cells.loc[(row.budget, row.numerator_organization, row.numerator_headroom)]
        bottom = cells.loc[(row.budget, row.denominator_organization, row.denominator_headroom)]
        ratio = 100 * (top["requests_per_s"] / bottom["requests_per_s"] - 1)
        assert ratio == pytest.approx(row.mean_change, abs=0.7)


def test_an_unknown_table_names_those_that_exist():
    with pytest.raises(
        AnalysisError, match=r"published table B-9 does not exist; choose from 1, A-1"
    ):
        published("B-9")


def test_an_absent_value_is_refused_rather_than_zero():
    with pytest.raises(AnalysisError, match="has 0 values for PT-b63, nothing"):
        published_value("B-7", "PT-b63", "nothing")
