"""Every plan has the cells, pairs, contract and notes that were frozen (`freeze.py`)."""

import pytest
from frozen_form import differences, digest_of_data, read, require_equal
from frozen_plans import FILE, frozen_plans, launches
from frozen_project import campaigns, composed_data

LAUNCHES = launches()
GOLDEN = read(FILE)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_has_the_plan_that_was_frozen(name: str) -> None:
    require_equal(f"the plan of {name}", GOLDEN.get(name, {}), frozen_plans(LAUNCHES[name]))


def test_every_campaign_is_frozen_and_nothing_else() -> None:
    assert set(GOLDEN) == set(LAUNCHES)
    assert {f"campaign={name}" for name in campaigns()} <= set(GOLDEN)


def test_a_launch_for_vllm_differs_from_one_for_the_simulator_in_its_engine_alone() -> None:
    """`frozen_plans` composes each launch once and replaces the engine."""
    sim, vllm = (composed_data("campaign=q6", f"engine={name}") for name in ("sim", "vllm"))
    assert vllm == sim | {"engine": vllm["engine"]}


# -- the comparison itself -------------------------------------------------------------------------


def test_a_difference_names_the_campaign_the_field_and_the_command_that_accepts_it() -> None:
    golden = {"sim": {"cell_ids": "aa", "contract": "bb"}}
    found = {"sim": {"cell_ids": "aa", "contract": "cc"}}
    with pytest.raises(AssertionError) as error:
        require_equal("the plan of campaign=q6", golden, found)
    assert str(error.value).splitlines() == [
        "the plan of campaign=q6 differs from tests/golden:",
        "  sim.contract: was 'bb', is 'cc'",
        "  If the change is intended: python tests/golden/freeze.py",
    ]


def test_values_that_are_gone_or_new_differ() -> None:
    assert list(differences({"a": 1}, {"b": 2})) == ["a: gone, was 1", "b: new, 2"]
    assert list(differences({"a": 1, "b": {"c": [2]}}, {"b": {"c": [2]}, "a": 1})) == []


def test_the_order_of_keys_does_not_change_a_digest_and_any_value_does() -> None:
    assert digest_of_data({"a": 1, "b": 2}) == digest_of_data({"b": 2, "a": 1})
    assert digest_of_data({"a": 0.1}) != digest_of_data({"a": 0.1 + 2**-56})
