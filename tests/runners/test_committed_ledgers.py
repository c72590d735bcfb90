"""The measured ledgers in git open with the commands that their pages give, and lack nothing."""

import re
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from small_launches import carried_out

from analysis.__main__ import main as analyse
from hsexp.config.campaigns import ContinuationCampaign
from hsexp.config.catalog import CONF, read_option
from hsexp.config.launch import Launch, parse_launch
from hsexp.ledger import Ledger
from hsexp.plan.cells import Plan
from hsexp.plan.contract import in_words
from hsexp.plan.planner import make_plan
from runners import engines
from runners.continuation.plan import make_plan as continuation_plan

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "ledgers" / "cpu_falcon_h1_mini"
FITTED = ("q1", "q6", "q9")
SERVING = (*FITTED, "q7", "q8", "q10", "submitted_work")


def command_of_readme(campaign: str) -> list[str]:
    """The README has it for q1 and says that the others differ in the name alone."""
    readme = (MEASURED / "README.md").read_text(encoding="utf-8")
    rest = "# and q6 to q10, submitted_work"
    command = re.search(rf"python -m hsexp (campaign=q1 .*?) +{rest}", readme)
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


def test_the_page_that_docs_link_to_comes_back_from_its_ledger(tmp_path: Path) -> None:
    """The other pages and figures are not in git, since their ledgers give them back as well."""
    analyse(["campaign=continuation", f"ledgers={MEASURED}", f"out={tmp_path}"])
    kept = MEASURED / "continuation" / "vllm" / "analysis" / "continuation.md"
    assert (tmp_path / "continuation.md").read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("campaign", FITTED)
def test_the_device_that_was_fitted_names_the_journal_that_is_here(campaign: str) -> None:
    """Joining a ledger's tables adds a line to its journal and leaves its digest as it is."""
    digest = Ledger.read(MEASURED / campaign / "vllm").digest[:16]
    device = read_option("device", f"cpu_falcon_h1_mini_{campaign}")
    assert f"(journal SHA-256 {digest})" in device["source"]


@pytest.mark.parametrize("campaign", [*SERVING, "continuation"])
def test_every_committed_table_is_what_was_recorded(campaign: str) -> None:
    ledger = Ledger.read(MEASURED / campaign / "vllm")
    frame = ledger.frame()
    for row in frame.itertuples():
        if campaign in SERVING:
            assert len(ledger.request_table(row.cell_id)) == row.num_requests
            assert ledger.step_table(row.cell_id)["num_steps"].sum() == row.num_steps
    assert ledger.requests()["cell_id"].nunique() == len(frame)
