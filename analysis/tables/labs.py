"""Tables of the labs: branching, drafting and the cyclic working set, counted on the memory core.

No run and no published input: conf/campaign says what is counted, `hsexp.labs` counts it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from analysis.runs import Origin
from analysis.tables.table import Column, Table
from hsexp.config.base import parse_union
from hsexp.config.campaigns import BranchingCampaign, CacheLabCampaign, SpeculationCampaign
from hsexp.config.catalog import read_option
from hsexp.labs.branching import BranchingRow, beam_rows, fork_rows
from hsexp.labs.cachelab import cachelab_rows
from hsexp.labs.speculation import pass_rows, scratch_rows
from hsexp.memory.config import BudgetConfig, MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig

COUNTED = Origin(data_kind="counted on the memory core, nothing is timed")
MODEL = "falcon_h1_7b"

_WAYS = (
    Column(heading="org.", templates=("{organization}",)),
    Column(heading="way", templates=("{way}",)),
    Column(heading="branches", templates=("{num_branches:d}",)),
    Column(heading="tail", templates=("{tail_tokens:d}",)),
    Column(heading="pages", templates=("{page_copies:,d}",), group="copies"),
    Column(heading="states", templates=("{state_copies:,d}",), group="copies"),
    Column(heading="bytes", templates=("{copied_bytes:,d}",), group="copies"),
    Column(heading="pages", templates=("{rule_page_copies:,d}",), group="by the rule"),
    Column(heading="states", templates=("{rule_state_copies:,d}",), group="by the rule"),
    Column(heading="pages", templates=("{peak_pages:,d}",), group="peak"),
    Column(heading="bytes", templates=("{peak_bytes:,d}",), group="peak"),
    Column(heading="computed", templates=("{computed_tokens:,d}",), group="tokens"),
    Column(heading="saved", templates=("{saved_tokens:,d}",), group="tokens"),
)


def branching_samples() -> Table:
    """Parallel samples of one prompt, by sharing, by copying everything and anew."""
    return _ways("branching-samples", "Samples of one prompt", fork_rows)


def branching_beams() -> Table:
    """Beam search, also by kept leaves."""
    return _ways("branching-beams", "Beam search over one prompt", beam_rows)


def speculation_passes() -> Table:
    """Tokens of a pass beside (1 - a^(K + 1)) / (1 - a)."""
    campaign = SpeculationCampaign.parse(_campaign("speculation"))
    config = _config(campaign.organizations[0])
    return _table(
        "speculation-passes",
        f"Drafts of known acceptance in {config.organization.name}",
        pass_rows(campaign, config, _bytes(campaign.budget)),
        (
            Column(heading="acceptance", templates=("{acceptance:g}",)),
            Column(heading="drafts", templates=("{num_drafts:d}",)),
            Column(heading="expected", templates=("{expected_tokens:.4f}",), group="tokens"),
            Column(heading="counted", templates=("{counted_tokens:.3f}",), group="tokens"),
            Column(heading="mean", templates=("{computed_tokens:.3f}",), group="computed"),
            Column(heading="most", templates=("{most_computed:d}",), group="computed"),
            Column(heading="passes", templates=("{num_passes:d}",)),
        ),
    )


def speculation_scratch() -> Table:
    """What drafts take beside a running request, by one scratch state or by a state a draft."""
    campaign = SpeculationCampaign.parse(_campaign("speculation"))
    return _table(
        "speculation-scratch",
        f"What drafts take beside one request of {MODEL}, a layer",
        (row for name in campaign.organizations for row in scratch_rows(campaign, _config(name))),
        (
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="drafts", templates=("{num_drafts:d}",)),
            Column(heading="one scratch", templates=("{scratch_bytes:,d}",), group="bytes"),
            Column(heading="a draft", templates=("{state_a_draft_bytes:,d}",), group="bytes"),
            Column(heading="a state in KV tokens", templates=("{scratch_in_tokens:,d}",)),
        ),
    )


def cachelab() -> Table:
    """Hits of a cyclic working set."""
    return _table(
        "cachelab",
        "A cyclic working set against caches of several capacities",
        cachelab_rows(CacheLabCampaign.parse(_campaign("cachelab"))),
        (
            Column(heading="capacity", templates=("{capacity:d}",)),
            Column(heading="stride", templates=("{stride:d}",)),
            Column(heading="identities", templates=("{num_identities:d}",)),
            Column(heading="t s", templates=("{time_s:g}",)),
            Column(heading="requests", templates=("{num_requests:,d}",)),
            Column(heading="all", templates=("{hits:,d}",), group="hits"),
            Column(heading="of the first", templates=("{first_hits:d}",), group="hits"),
        ),
    )


_Count = Callable[[BranchingCampaign, MemoryConfig, int], list[BranchingRow]]


def _ways(name: str, title: str, count: _Count) -> Table:
    campaign = BranchingCampaign.parse(_campaign("branching"))
    rows = [
        row
        for config in map(_config, campaign.organizations)
        for row in count(campaign, config, _bytes(campaign.budget))
    ]
    return _table(name, f"{title} of {campaign.prefix_tokens:,} tokens and a tail", rows, _WAYS)


def _table(name: str, title: str, rows: Iterable[Any], view: Sequence[Column]) -> Table:
    frame = pd.DataFrame([asdict(row) for row in rows])
    return Table(name=name, title=title, rows=frame, views=(tuple(view),), origin=COUNTED)


def _campaign(name: str) -> dict[str, Any]:
    data: dict[str, Any] = read_option("campaign", name)["campaign"]
    return data


def _config(name: str) -> MemoryConfig:
    return MemoryConfig.without_policies(
        model=ModelConfig.parse(read_option("model", MODEL)),
        organization=parse_union(OrganizationConfig, read_option("organization", name), path=name),
    )


def _bytes(name: str) -> int:
    return BudgetConfig.parse(read_option("budget", name)).bytes
