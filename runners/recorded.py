"""The ledgers that a campaign has, one an engine, each with the plan of a launch for its engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hsexp.config.campaigns import ContinuationCampaign
from hsexp.config.launch import Launch
from hsexp.ledger import Ledger
from hsexp.plan.cells import Plan
from hsexp.plan.contract import in_words
from hsexp.plan.planner import make_plan
from hsexp.runs import engines_below
from runners.advised import stages
from runners.continuation.plan import make_plan as continuation_plan
from runners.engines import Engine


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A ledger, and what a launch plans for it."""

    engine: Engine
    ledger: Ledger
    plan: Plan


def plan_for(launch: Launch, engine: Engine) -> Plan:
    """The plan of a launch on an engine, which need not be installed.

    Raises:
        ConfigError: a setting is refused.
    """
    if isinstance(launch.campaign, ContinuationCampaign):
        return continuation_plan(launch, launch.campaign)
    return make_plan(launch, engine=engine)


def as_recorded(launch: Launch, ledger: Ledger) -> Recorded:
    """The plan for the engine of a ledger, in its words and with the blocks that follow from it.

    Raises:
        ConfigError: a setting is refused.
        LedgerError: the ledger holds runs of another configuration.
    """
    contract = ledger.contract
    engine = cast(Engine, contract["engine"])
    plan = plan_for(launch, engine)
    ledger.require_contract(plan.contract)
    words = contract.get("words", {})
    plan = in_words(plan, words)
    for stage in stages(launch, engine):
        accepted = ledger.accepted()
        if any(cell.cell_id not in accepted for cell in plan.cells):
            break
        plan = in_words(stage(plan, ledger), words)
    return Recorded(engine=engine, ledger=ledger, plan=plan)


def recorded(launch: Launch, root: Path) -> Iterator[Recorded]:
    """The ledgers of a launch: the one that it names, or those of its campaign below a root.

    An engine that was asked for by name leaves out those of the others.

    Raises:
        ConfigError, LedgerError: as `as_recorded`.
    """
    assert launch.campaign is not None
    asked = launch.engine.name
    given = launch.ledger
    for path in engines_below(root / launch.campaign.name) if given is None else [given]:
        ledger = Ledger.read(path)
        if given is not None or asked in ("auto", ledger.contract["engine"]):
            yield as_recorded(launch, ledger)
