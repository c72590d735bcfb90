"""The declared family of Q6, and declarations that are refused."""

import pytest
import yaml

from analysis.config import campaigns, listing, load, parse
from analysis.errors import AnalysisError
from analysis.published import published_table, published_value
from hsexp.config.arm import Arm
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF


def declaration():
    return yaml.safe_load((CONF / "analysis" / "q6.yaml").read_text())


def campaign_blocks():
    return yaml.safe_load((CONF / "campaign" / "q6.yaml").read_text())["campaign"]["blocks"]


def test_every_analysis_file_is_accepted_and_named_after_its_campaign():
    for campaign in campaigns():
        assert listing(campaign).campaign == campaign


def test_the_family_of_q6_has_seventeen_tests_with_two_self_comparisons(q6):
    alike = [contrast.id for contrast in q6.family.contrasts if contrast.is_self_comparison]
    assert q6.family.size == published_value("text", "B.12", "confirmation comparison family size")
    assert alike == ["ID-b63", "IS-b108"]


def test_the_other_contrasts_are_the_thirteen_of_table_b7(q6):
    declared = {
        contrast.id: (
            contrast.at.budget,
            contrast.numerator.organization_label,
            contrast.numerator.headroom,
            contrast.denominator.organization_label,
            contrast.denominator.headroom,
        )
        for contrast in q6.family.contrasts
        if not contrast.is_self_comparison
    }
    arms = [f"{s}_{a}" for s in ("numerator", "denominator") for a in ("organization", "headroom")]
    printed = published_table("B-7")[["budget", *arms]]
    assert declared == {row.Index: tuple(row[1:]) for row in printed.itertuples()}


def test_preselected_settings_are_the_rings_of_figure_6(q6):
    for panel, budget in zip("abc", q6.design.budget, strict=True):
        for organization, arm in q6.preselected[budget].items():
            row = f"{panel}/{organization.upper()}/open ring"
            assert arm.headroom == published_value("figure-6", row, "preselected_headroom")


def test_the_design_is_that_of_table_b8(q6):
    cells = published_table("B-8")
    printed = list(zip(cells["budget"], cells["organization"], cells["headroom"], strict=True))
    declared = [(a.budget, a.organization_label, a.headroom) for a in q6.design.cells()]
    assert declared == printed


def test_inferred_definitions_are_marked(q6):
    assert {i.definition for i in q6.family.interactions} == {"inferred"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["family"]["contrasts"].append(d["family"]["contrasts"][0]), "P0-b63 twice"),
        (lambda d: d["family"]["interactions"][0].update(minuend="PX-b63"), "needs contrast PX"),
        (lambda d: d["family"]["contrasts"][0]["at"].update(headroom=0.1), "in an arm and in"),
        (lambda d: d["family"]["contrasts"][0]["at"].update(headrom=0.1), "headrom is not a known"),
        (lambda d: d["family"].update(alpha=1.5), r"family.alpha must be less than 1, got 1\.5"),
        (lambda d: d.update(design="pilot"), r"a block of the campaign \(confirm.*got 'pilot'"),
        (lambda d: d.pop("interval"), "interval is required"),
    ],
)
def test_a_wrong_declaration_is_refused_by_field_and_value(change, message):
    data = declaration()
    change(data)
    with pytest.raises(ConfigError, match=message):
        parse(data, blocks=campaign_blocks())


def test_an_arm_is_written_as_in_the_paper():
    assert Arm(organization="d0", headroom=0.1).label == "D0(0.10)"
    assert Arm(organization="s1").label == "S1"


def test_an_unknown_campaign_names_those_that_exist():
    with pytest.raises(
        AnalysisError, match="campaign q66 has no analysis; choose from advise, branching, "
    ):
        load("q66")
