"""Table C-1: the experiments, as the campaigns that repeat them (Appendix C.1)."""

import pandas as pd

from analysis.errors import NoLedgerError
from analysis.ledgers import Ledgers
from analysis.runs import Origin
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.campaigns import ServingCampaign
from hsexp.config.catalog import read_option, standing_options
from hsexp.plan.planner import make_plan
from hsexp.plan.resolve import standing

_OURS = ("none", "beyond the paper")
"""Sections of campaigns that are not the paper's."""


@table("C-1", lacks="the runs behind its rows")
def from_ledgers(ledgers: Ledgers) -> Table:
    """One row a campaign of the paper: its blocks, the runs that it plans, and those accepted."""
    rows = []
    for name in standing_options("campaign"):
        if read_option("campaign", name)["campaign"]["section"] in _OURS:
            continue
        launch = standing(name).launch
        campaign = launch.campaign
        if not isinstance(campaign, ServingCampaign):
            continue
        rows.append(
            {
                "campaign": name,
                "title": campaign.title,
                "section": campaign.section,
                "num_blocks": len(campaign.blocks),
                "num_planned": len(make_plan(launch, engine="sim").cells),
                "num_accepted": _accepted(ledgers, name),
            }
        )
    return Table(
        name="C-1",
        title="The paper's experiments as campaigns",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="campaign", templates=("{campaign}",)),
                Column(heading="question", templates=("{title}",)),
                Column(heading="section", templates=("{section}",)),
                Column(group="runs", heading="planned", templates=("{num_planned:,.0f}",)),
                Column(group="runs", heading="accepted", templates=("{num_accepted:,.0f}",)),
            ),
        ),
        origin=Origin(data_kind="counted in the configuration and the ledgers"),
        notes=(
            "Accepted: cells of the ledger with an adopted run, fresh seeds included; none where "
            "there is no ledger. Each campaign's file names the experiments of the paper.",
        ),
    )


def _accepted(ledgers: Ledgers, campaign: str) -> int | None:
    try:
        return len(ledgers.frame(campaign))
    except NoLedgerError:
        return None
