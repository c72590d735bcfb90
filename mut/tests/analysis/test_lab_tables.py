"""Tables of the labs: counted from conf alone, and marked as such."""

from pathlib import Path

import pytest

from analysis.ledgers import Ledgers
from analysis.tables import TABLES, derive, make
from analysis.tables.table import to_csv, to_markdown


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("speculation-scratch", "| s2 | 4 | 2,097,152 | 6,815,744 | 1,557 |"),
        ("cachelab", "| 8 | 2 | 8 | 0 | 16 | 8 | 8 |"),
    ],
)
def test_a_table_of_a_lab_needs_no_run_and_says_that_it_was_counted(
    name: str, line: str, tmp_path: Path
) -> None:
    table = make(name, Ledgers(tmp_path))
    assert line in to_markdown(table)
    assert "counted on the memory core" in to_csv(table)


@pytest.mark.parametrize("name", ["branching-samples", "branching-beams", "speculation-passes"])
def test_the_paper_prints_nothing_to_derive_a_lab_from(name: str) -> None:
    assert TABLES[name].from_paper is None
    with pytest.raises(Exception, match="the paper does not print any such experiment"):
        derive(name)
