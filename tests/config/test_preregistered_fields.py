"""Which fields a plan freezes, and which may change after the first run."""

from copy import deepcopy
from typing import Any

from launches import composed_data, planned

from hsexp.config.launch import parse_launch
from hsexp.plan.cells import Plan
from hsexp.plan.planner import make_plan


def q6() -> dict[str, Any]:
    return deepcopy(composed_data("campaign=q6"))


def plan_of(data: dict[str, Any]) -> Plan:
    return make_plan(parse_launch(data), engine="sim")


def test_a_launch_that_adds_seeds_has_the_same_digest() -> None:
    whole = planned("campaign=q6")
    assert planned("campaign=q6", "seeds=[1,2]").digest == whole.digest


def test_a_launch_that_narrows_its_axes_has_a_digest_of_the_names_that_it_uses() -> None:
    """Until contracts named only what their cells use, this digest was the whole campaign's."""
    whole, narrowed = planned("campaign=q6"), planned("campaign=q6", "budget=b63")
    assert narrowed.digest != whole.digest
    assert narrowed.registration == whole.registration


def test_free_text_is_not_in_the_digest() -> None:
    described = planned("campaign=q6", "device.description=another", "device.source=another")
    assert described.digest == planned("campaign=q6").digest


def test_what_a_campaign_s_tables_need_names_no_cell_and_is_in_no_contract() -> None:
    asking = planned("campaign=submitted_work")
    silent = planned("campaign=submitted_work", "campaign.record_steps=false")
    assert (asking.cells, asking.digest) == (silent.cells, silent.digest)


def test_what_the_campaign_declares_is_in_the_digest() -> None:
    whole = plan_of(q6())
    seeds, primary, exclusions, alpha, arm = (q6() for _ in range(5))
    seeds["campaign"]["blocks"]["confirmation"]["seeds"][0] = 7
    primary["campaign"]["registered"]["primary"] = "another one"
    exclusions["campaign"]["registered"]["exclusions"] = ["seed 76400"]
    alpha["analysis"]["family"]["alpha"] = 0.1
    arm["analysis"]["family"]["contrasts"][0]["numerator"] = {"organization": "s2"}
    changed = [plan_of(data).digest for data in (seeds, primary, exclusions, alpha, arm)]
    assert len({whole.digest, *changed}) == 6


def test_how_tables_look_and_where_the_paper_prints_them_is_not_in_the_digest() -> None:
    data = q6()
    data["analysis"]["title"] = "Another title"
    data["analysis"]["tables"] = []
    data["analysis"]["family"]["contrasts"][0]["published_p"] = ["B-7", "row", "column"]
    assert plan_of(data).digest == plan_of(q6()).digest


def test_a_contrast_is_registered_under_its_name() -> None:
    contrasts = planned("campaign=q6").registration["analysis"]["family"]["contrasts"]
    assert contrasts["PT-b63"]["numerator"] == {"organization": "d0", "headroom": 0.0}


def test_a_campaign_registers_the_whole_families_that_draw_on_it() -> None:
    families = planned("campaign=split_sweep").registration["families"]
    campaigns = {contrast["campaign"] for contrast in families["extension22"]["contrasts"].values()}
    assert list(families) == ["extension22"]
    assert {"q1", "split_sweep"} <= campaigns
