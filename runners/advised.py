"""The stages of a campaign that gives advice: what it runs next follows from what has run."""

from collections.abc import Callable
from functools import partial

from hsexp.config.campaigns import Block, ServingCampaign
from hsexp.config.launch import Launch
from hsexp.ledger import Ledger
from hsexp.plan.advice import FOLLOW_UPS, FollowUp, candidates, elsewhere, prepared
from hsexp.plan.cells import Plan
from hsexp.plan.planner import make_plan
from runners.engines import Engine

Stage = Callable[[Plan, Ledger], Plan]
"""The plan of a launch with the blocks that follow from its runs so far."""


def stages(launch: Launch, engine: Engine) -> tuple[Stage, ...]:
    """The stages of advice; on a real engine none, because its runs take as long as they serve."""
    if engine != "sim" or not isinstance(launch.campaign, ServingCampaign):
        return ()
    if launch.campaign.advice is None:
        return ()
    launch, _ = prepared(launch)
    follow_ups: dict[str, Block] = {}

    def stage(follow_up: FollowUp, plan: Plan, ledger: Ledger) -> Plan:
        ids = {cell.cell_id for cell in plan.cells if elsewhere(cell.block) is None}
        rows = ledger.frame().to_dict("records")
        found = candidates(row for row in rows if row["cell_id"] in ids)
        follow_ups.update(follow_up(launch, found))
        return make_plan(launch, engine=engine, follow_ups=follow_ups)

    return tuple(partial(stage, follow_up) for follow_up in FOLLOW_UPS)
