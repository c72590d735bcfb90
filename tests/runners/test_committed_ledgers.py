"""The measured ledgers in git open with the commands that their pages give, and lack nothing."""

import re
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from small_launches import carried_out

from hsexp.config.campaigns import ContinuationCampaign
from hsexp.config.catalog import CONF
from hsexp.config.launch import Launch, parse_launch
from hsexp.ledger import Ledger
from hsexp.plan.cells import Plan
from hsexp.plan.contract import in_words
from hsexp.plan.planner import make_plan
from runners import engines
from runners.continuation.plan import make_plan as continuation_plan

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "ledgers" / "cpu_falcon_h1_mini"
SERVING = ("q1", "q6", "q9")


def command_of_readme(campaign: str) -> list[str]:
    """The README has it for q1 and says that the others differ in the name alone."""
    readme = (MEASURED / "README.md").read_text(encoding="utf-8")
    command = re.search(r"python -m hsexp (campaign=q1 .*?) +# and q6, q9", readme)
    assert command is not None
    return command[1].replace("campaign=q1", f"campaign={campaign}").split()


def composed(*overrides: str) -> Launch:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return parse_launch(compose("config", list(overrides)))


def planned(campaign: str) -> Plan:
    """What the command would run on real vLLM, which need not be installed for it."""
    if campaign in SERVING:
        return make_plan(composed(*command_of_readme(campaign)), engine="vllm")
    launch = composed(f"campaign={campaign}", "engine=vllm")
    assert isinstance(launch.campaign, ContinuationCampaign)
    return continuation_plan(launch, launch.campaign)


@pytest.mark.parametrize("campaign", [*SERVING, "continuation"])
def test_a_committed_ledger_takes_its_campaign_and_has_run_nothing_else(
    campaign: str, tmp_path: Path
) -> None:
    shutil.copytree(MEASURED / campaign / "vllm", tmp_path / "vllm")
    plan = planned(campaign)
    ledger = Ledger.open(tmp_path / "vllm", contract=plan.contract)
    plan = in_words(plan, ledger.contract.get("words", {}))
    ledger.register(plan.registration, digest=plan.digest)
    ledger.require_cells(plan.cells)
    to_run = {cell.cell_id for cell in plan.cells} - ledger.accepted().keys()
    assert not ledger.accepted().keys() - {cell.cell_id for cell in plan.cells}
    # Continuation is committed as far as it was run: the first 129 of 696 checks.
    assert len(to_run) == (0 if campaign in SERVING else 567)


@pytest.mark.parametrize("campaign", SERVING)
def test_the_command_of_its_page_has_nothing_to_run(
    campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is asked for and never started, so that a light install can say so too."""
    monkeypatch.setattr(engines, "_is_installed", lambda package: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # holds the lock of real runs
    shutil.copytree(MEASURED / campaign / "vllm", tmp_path / "vllm")
    ledger = f"ledger={tmp_path / 'vllm'}"
    result, printed = carried_out(*command_of_readme(campaign), "stage=run", ledger)
    assert result.exit_code == 0
    assert ", 0 to run" in printed
