"""S3 is chosen like any organization, and refuses by name what its sequences cannot do."""

import pytest
from launches import composed, planned

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.engine.settings import ServingSettings
from hsexp.memory.geometry import ModelConfig
from hsexp.plan.resolve import resolve

MODEL = ModelConfig.parse(read_option("model", "falcon_h1_7b"))


def test_a_campaign_of_the_paper_runs_in_s3_where_the_command_line_says_so() -> None:
    plan = planned("campaign=q6", "organization=s3", "budget=b63", "seeds=[76400]")
    assert {cell.axes["organization"] for cell in plan.cells} == {"s3"}
    assert {cell.config["organization"]["tail_block_size"] for cell in plan.cells} == {16}


def test_s3_has_the_settings_of_s2_but_for_its_tail_blocks() -> None:
    s2, s3 = read_option("organization", "s2"), read_option("organization", "s3")
    assert s3 == s2 | {"kind": "s3", "name": "s3", "tail_block_size": 16}


@pytest.mark.parametrize("campaign", ["branching", "speculation"])
def test_a_lab_that_branches_refuses_s3(campaign: str) -> None:
    with pytest.raises(ConfigError, match=f"organization s3 cannot run campaign {campaign}"):
        resolve(composed(f"campaign={campaign}", "organization=s3"))


def test_a_server_refuses_leaves_in_s3_and_runs_without_them() -> None:
    with pytest.raises(ConfigError, match="max_leaves 64 contradicts organization s3"):
        ServingSettings.of({"organization": "s3"}).resolve(MODEL, cap=8)
    for choice in ({"max_leaves": 0}, {"exact": True}):
        settings = ServingSettings.of({"organization": "s3"} | choice).resolve(MODEL, cap=8)
        assert settings.layout.kernel_block_size == 16
