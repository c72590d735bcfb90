"""Table C-1: the experiments, as the campaigns that repeat them (Appendix C.1)."""

import pandas as pd

from analysis.config import block_design
from analysis.errors import NoLedgerError
from analysis.ledgers import Ledgers
from analysis.runs import Origin
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.config.campaigns import ServingCampaign
from hsexp.config.catalog import read_option, standing_options
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
        campaign = standing(name).launch.campaign
        if not isinstance(campaign, ServingCampaign):
            continue
        rows.append(
            {
                "campaign": name,
                "title": campaign.title,
                "section": campaign.section,
                "num_blocks": len(campaign.blocks),
                "num_planned": _planned(campaign),
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


def _planned(campaign: ServingCampaign) -> int:
    """Runs of all blocks; blocks may share some."""
    designs = {name: block_design(campaign.name, name) for name in campaign.blocks}
    own = {
        name: (block.workload, block.arrivals, block.separate, block.exact)
        for name, block in campaign.blocks.items()
    }
    return len(
        {
            (own[name], arm.model_dump_json(), seed)
            for name, design in designs.items()
            for arm in design.cells()
            for seed in design.seeds
        }
    )


def _accepted(ledgers: Ledgers, campaign: str) -> int | None:
    try:
        return len(ledgers.frame(campaign))
    except NoLedgerError:
        return None
