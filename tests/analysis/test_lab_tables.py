"""Tables of the labs: counted from conf alone, and marked as such."""

from pathlib import Path

import pytest

from analysis.ledgers import Ledgers
from analysis.tables import TABLES, derive, make
from analysis.tables.table import to_csv, to_markdown
from hsexp.config.base import Config
from hsexp.config.campaigns import CapacityCampaign
from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig
from hsexp.plan.resolve import resolve, standing


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("speculation-scratch", "| s2 | 4 | 2,097,152 | 6,815,744 | 1,557 |"),
        ("cachelab", "| 8 | 2 | 8 | 0 | 16 | 8 | 8 |"),
        ("branching-samples", "| s2 | copy | 2 | 0 | 7 | 1 | 5,264,384 | 7 | 1 |"),
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


STORAGE = ("A-1", "A-2", "B-2", "B-3")
"""Tables of storage that the paper prints."""


def changed(kind: str, **settings: Config) -> Ledgers:
    """A counted campaign with other settings, for its tables."""
    launch = standing(kind).launch.model_copy(update=settings)
    return Ledgers(Path("unused"), launch=resolve(launch))


@pytest.mark.parametrize("name", STORAGE)
def test_storage_at_the_paper_s_sizes_stands_beside_its_values(name: str) -> None:
    rows = make(name, Ledgers(Path("unused"))).rows
    assert set(rows["verdict"]) == {"equal to print"}


@pytest.mark.parametrize("name", STORAGE)
def test_storage_of_another_model_has_no_published_column(name: str) -> None:
    model = standing("capacity").launch.model.model_copy(update={"name": "other", "d_state": 128})
    table = make(name, changed("capacity", model=model))
    assert not {"published", "verdict"} & set(table.rows)
    assert "The paper prints no values for these settings." in table.notes
    assert ", other." in table.caption


@pytest.mark.parametrize("name", STORAGE)
def test_storage_of_a_changed_organization_has_no_published_column(name: str) -> None:
    d0 = standing("capacity").catalog.option("organization", "d0")
    table = make(name, changed("capacity", organization=d0.model_copy(update={"block_size": 32})))
    assert "published" not in table.rows


def test_another_state_set_of_the_campaign_has_no_published_column() -> None:
    campaign = standing("capacity").campaign
    assert isinstance(campaign, CapacityCampaign)
    fewer = campaign.model_copy(update={"mixes": campaign.mixes[:1]})
    assert "published" not in make("A-1", changed("capacity", campaign=fewer)).rows


def test_a_table_that_is_asked_for_elsewhere_does_not_take_another_campaign_s_launch() -> None:
    ledgers = changed("capacity")
    assert ledgers.resolved("cachelab").inputs == standing("cachelab").inputs
    assert to_csv(make("cachelab", ledgers)) == to_csv(make("cachelab", Ledgers(Path("unused"))))


def test_every_organization_of_granite_copies_as_the_rule_says() -> None:
    granite = ModelConfig.parse(read_option("model", "granite_4_h"))
    campaign = standing("branching").campaign.model_copy(
        update={"branches": (2,), "tail_tokens": (0, 257)}
    )
    table = make("branching-samples", changed("branching", model=granite, campaign=campaign)).rows
    assert set(table["organization"]) == {"s0", "s1", "s2", "d0"}
    assert (table["page_copies"] == table["rule_page_copies"]).all()
    assert (table["state_copies"] == table["rule_state_copies"]).all()
