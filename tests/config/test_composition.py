"""What Hydra composes from conf/: every campaign, every option, and what the command shows."""

from pathlib import Path

import commands
import pytest
import yaml
from launches import Command, composed

from hsexp.config.campaigns import CollectionCampaign
from hsexp.config.catalog import CONF, options

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())

NEEDED = {
    "budget=bytes": ["budget.bytes=200000000"],
    "workload=trace": ["workload.path=requests.csv"],
    "campaign=trace": ["workload.path=requests.csv"],
    "campaign=advise": ["workload.path=requests.csv"],
}
"""What an option asks for beside its name."""

NEED_AN_ENGINE = ("continuation", "timing_probe")
"""Campaigns that a simulation has no answer to."""

WITHOUT_CELLS = {
    "capacity": "Table B-2",
    "fixed_work": "modelled",
    "branching": "counted",
    "speculation": "counted",
    "cachelab": "counted",
}
"""What campaigns that are arithmetic print instead of a plan."""

CHOICES = [f"{group}={name}" for group in GROUPS for name in options(group)]


@pytest.mark.parametrize("campaign", options("campaign"))
def test_a_campaign_composes_to_a_typed_launch(campaign: str) -> None:
    launch = composed(f"campaign={campaign}", *NEEDED.get(f"campaign={campaign}", []))
    assert launch.campaign is not None
    assert launch.campaign.name == campaign


@pytest.mark.parametrize("choice", [each for each in CHOICES if not each.startswith("campaign=")])
def test_an_option_can_be_chosen_on_the_command_line(choice: str) -> None:
    group, name = choice.split("=")
    launch = composed("campaign=q6", choice, *NEEDED.get(choice, []))
    assert getattr(launch, group) is not None, name


@pytest.mark.parametrize(
    "campaign", [name for name in options("campaign") if name not in NEED_AN_ENGINE]
)
def test_the_command_plans_a_campaign_and_writes_nothing(
    campaign: str, command: Command, lengths: Path, tmp_path: Path
) -> None:
    needed = {"trace": [f"workload.path={lengths}"]}
    needed["advise"] = [*needed["trace"], "budget=b320"]
    arguments = needed.get(campaign, [])
    if campaign not in WITHOUT_CELLS:
        arguments = [*arguments, "seeds=[7]"]
    code, printed = command(f"campaign={campaign}", "stage=plan", *arguments)
    assert code == 0, printed
    assert WITHOUT_CELLS.get(campaign, " cells") in printed
    assert list(tmp_path.iterdir()) == [lengths]


@pytest.mark.parametrize("campaign", NEED_AN_ENGINE)
@pytest.mark.parametrize("override", ["engine=auto", "engine=sim", "stage=plan"])
def test_a_campaign_about_the_engine_is_refused_with_the_reason_before_any_work(
    campaign: str, override: str, command: Command, tmp_path: Path
) -> None:
    code, printed = command(f"campaign={campaign}", override)
    assert code == 2
    assert f"error: engine must be vllm for campaign {campaign}, got " in printed
    assert "): simulated " in printed  # why a simulation has no answer
    assert f"{campaign}: organization " in printed  # the design
    assert not any(tmp_path.iterdir())


def test_the_paper_runs_no_campaign_that_a_simulation_cannot_answer() -> None:
    paper = composed("campaign=paper").campaign
    assert isinstance(paper, CollectionCampaign)
    assert "live_separation" in paper.campaigns
    assert not set(paper.campaigns) & {*NEED_AN_ENGINE, *WITHOUT_CELLS}


def test_the_composed_configuration_can_be_read_back(command: Command) -> None:
    code, printed = command("campaign=q6", "budget=b63", "--cfg", "job")
    data = yaml.safe_load(printed)
    assert code == 0
    assert (data["campaign"]["name"], data["budget"]["bytes"]) == ("q6", 101154816)
    assert "hydra" not in data


def test_help_lists_every_group_with_its_options(command: Command) -> None:
    code, printed = command("--help")
    assert code == 0
    for group in GROUPS:
        assert f"{group}: {', '.join(options(group))}" in printed


def test_a_command_without_a_campaign_says_what_to_type(command: Command) -> None:
    code, printed = command()
    assert code == 2
    for campaign in options("campaign"):
        assert f"python -m hsexp campaign={campaign}\n" in printed


def test_the_module_plans_in_a_process_of_its_own(tmp_path: Path) -> None:
    full_errors = commands.environment(HYDRA_FULL_ERROR="1")
    done = commands.run("campaign=q6", "stage=plan", cwd=tmp_path, env=full_errors)
    assert (done.returncode, done.stderr) == (0, "")
    assert "q6: 360 cells" in done.stdout
    assert not any(tmp_path.iterdir())
