"""Tables of the labs: branching, drafting and the cyclic working set, counted on the memory core.

They need no run and no published input: a launch defines the cases, and `hsexp.labs` counts them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from analysis.runs import Origin
from analysis.tables.registry import counted
from analysis.tables.table import Column, Table
from hsexp.config.base import ConfigError
from hsexp.config.campaigns import (
    BranchingCampaign,
    CacheLabCampaign,
    CountedCampaign,
    SpeculationCampaign,
)
from hsexp.labs.branching import BranchingRow, beam_rows, fork_rows
from hsexp.labs.cachelab import cachelab_rows
from hsexp.labs.lines import LabError
from hsexp.labs.speculation import pass_rows, scratch_rows
from hsexp.memory import MemoryConfig
from hsexp.plan.resolve import Resolved, refused

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


@counted("branching-samples", campaign="branching")
def branching_samples(resolved: Resolved) -> Table:
    """Parallel samples of one prompt: shared, fully copied, or as new requests."""
    return _ways(resolved, "branching-samples", "Samples of one prompt", fork_rows)


@counted("branching-beams", campaign="branching")
def branching_beams(resolved: Resolved) -> Table:
    """Beam search over one prompt, the same ways, and with kept leaves."""
    return _ways(resolved, "branching-beams", "Beam search over one prompt", beam_rows)


@counted("speculation-passes", campaign="speculation")
def speculation_passes(resolved: Resolved) -> Table:
    """Tokens per pass beside the expected (1 - a^(K + 1)) / (1 - a)."""
    campaign, memory, (budget,) = resolved.campaign, resolved.memories[0], resolved.budgets
    assert isinstance(campaign, SpeculationCampaign)
    with refused(f"budget {budget.name} is too small", LabError):
        rows = pass_rows(campaign, memory, budget.bytes)
    return _table(
        resolved,
        "speculation-passes",
        f"Drafts of known acceptance in {memory.organization.name}",
        rows,
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


@counted("speculation-scratch", campaign="speculation")
def speculation_scratch(resolved: Resolved) -> Table:
    """Memory of drafts beside a running request: one scratch state, or one state per draft."""
    campaign = resolved.campaign
    assert isinstance(campaign, SpeculationCampaign)
    return _table(
        resolved,
        "speculation-scratch",
        f"What drafts take beside one request of {resolved.launch.model.name}, a layer",
        (row for memory in resolved.memories for row in scratch_rows(campaign, memory)),
        (
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="drafts", templates=("{num_drafts:d}",)),
            Column(heading="one scratch", templates=("{scratch_bytes:,d}",), group="bytes"),
            Column(heading="a draft", templates=("{state_a_draft_bytes:,d}",), group="bytes"),
            Column(heading="a state in KV tokens", templates=("{scratch_in_tokens:,d}",)),
        ),
    )


@counted("cachelab", campaign="cachelab")
def cachelab(resolved: Resolved) -> Table:
    """Hits of a cyclic working set."""
    campaign = resolved.campaign
    assert isinstance(campaign, CacheLabCampaign)
    return _table(
        resolved,
        "cachelab",
        "A cyclic working set against caches of several capacities",
        cachelab_rows(campaign),
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


_Ways = Callable[[BranchingCampaign, MemoryConfig, int], list[BranchingRow]]


def _ways(resolved: Resolved, name: str, title: str, count: _Ways) -> Table:
    """Rows of every organization that fits the budget; a note gives the reason for each other one.

    Raises:
        ConfigError: no organization fits.
    """
    campaign, (budget,) = resolved.campaign, resolved.budgets
    assert isinstance(campaign, BranchingCampaign)
    rows: list[BranchingRow] = []
    refusals: list[str] = []
    for memory in resolved.memories:
        try:
            rows += count(campaign, memory, budget.bytes)
        except LabError as error:
            refusals.append(f"budget {budget.name} is too small: {error}")
    if not rows:
        raise ConfigError("\n".join(refusals))
    return _table(
        resolved,
        name,
        f"{title} of {campaign.prefix_tokens:,} tokens and a tail",
        rows,
        _WAYS,
        *(f"Left out: {refusal}." for refusal in refusals),
    )


def _table(
    resolved: Resolved,
    name: str,
    title: str,
    rows: Iterable[Any],
    view: Sequence[Column],
    *notes: str,
) -> Table:
    campaign = resolved.campaign
    assert isinstance(campaign, CountedCampaign)
    return Table(
        name=name,
        title=title,
        rows=pd.DataFrame([asdict(row) for row in rows]),
        views=(tuple(view),),
        origin=Origin(data_kind=campaign.method),
        notes=(*notes, *resolved.notes),
    )
