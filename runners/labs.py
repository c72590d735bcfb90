"""`campaign=branching`, `speculation`, `cachelab`: experiments on the memory core, counted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.campaigns import BranchingCampaign, CacheLabCampaign, SpeculationCampaign
from hsexp.config.catalog import read_option
from hsexp.config.launch import Launch
from hsexp.labs.branching import BranchingRow, beam_rows, fork_rows
from hsexp.labs.cachelab import cachelab_rows
from hsexp.labs.lines import LabError
from hsexp.labs.speculation import pass_rows, scratch_rows
from hsexp.memory.config import BudgetConfig, MemoryConfig
from hsexp.memory.organizations import OrganizationConfig

MIB = 1024 * 1024
COUNTED = "counted on the memory core, nothing is timed"


def print_branching(launch: Launch, campaign: BranchingCampaign, console: Console) -> None:
    """Print what samples and beams copy, hold and compute, each way.

    Raises:
        ConfigError: an organization or budget does not exist, or is too small.
    """
    budget = _budget(launch, campaign.budget)
    memories = _memories(launch, campaign.organizations)
    for title, count in (
        (f"Samples of one prompt, {campaign.output_tokens} tokens each", fork_rows),
        (f"Beam search for {campaign.beam_steps} tokens", beam_rows),
    ):
        with _refused_as_config():
            rows = [row for memory in memories for row in count(campaign, memory, budget)]
        prompt = f"prompt of {campaign.prefix_tokens:,} tokens and a tail"
        _print_ways(f"{title}, {prompt}; {COUNTED}", rows, console)


def print_speculation(launch: Launch, campaign: SpeculationCampaign, console: Console) -> None:
    """Print tokens of a pass beside their expected number, and what drafts take.

    Raises:
        ConfigError: an organization or budget does not exist, or is too small.
    """
    budget = _budget(launch, campaign.budget)
    memories = _memories(launch, campaign.organizations)
    first = memories[0]
    name = first.organization.name
    table = _table(
        f"Drafts of known acceptance, {campaign.passes} passes each in {name}; {COUNTED}",
        ["acceptance", "drafts", "expected tokens", "tokens of a pass", "computed tokens", "most"],
    )
    with _refused_as_config():
        rows = pass_rows(campaign, first, budget)
    for row in rows:
        table.add_row(
            f"{row.acceptance:g}",
            str(row.num_drafts),
            f"{row.expected_tokens:.4f}",
            f"{row.counted_tokens:.3f}",
            f"{row.computed_tokens:.3f}",
            str(row.most_computed),
        )
    console.print(table)
    table = _table(
        "What drafts take beside one running request, a layer",
        ["organization", "drafts", "scratch MiB", "a state a draft MiB", "a state in KV tokens"],
    )
    for memory in memories:
        for scratch in scratch_rows(campaign, memory):
            table.add_row(
                scratch.organization,
                str(scratch.num_drafts),
                f"{scratch.scratch_bytes / MIB:.3f}",
                f"{scratch.state_a_draft_bytes / MIB:.3f}",
                f"{scratch.scratch_in_tokens:,}",
            )
    console.print(table)


def print_cachelab(campaign: CacheLabCampaign, console: Console) -> None:
    """Print the hits of every capacity, stride and time."""
    table = _table(
        f"A cyclic working set; {COUNTED}",
        ["capacity", "stride", "identities", "t s", "requests", "hits", "hits of the first"],
    )
    for row in cachelab_rows(campaign):
        table.add_row(
            str(row.capacity),
            str(row.stride),
            str(row.num_identities),
            f"{row.time_s:g}",
            f"{row.num_requests:,}",
            f"{row.hits:,}",
            f"{row.first_hits} of {campaign.first_requests}",
        )
    console.print(table)


def _print_ways(title: str, rows: Sequence[BranchingRow], console: Console) -> None:
    table = _table(
        title,
        ["org.", "tail", "branches", "way", "page copies", "state copies", "by the rule",
         "copied MiB", "peak pages", "peak MiB", "computed", "saved"],
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.organization,
            str(row.tail_tokens),
            str(row.num_branches),
            row.way,
            f"{row.page_copies:,}",
            f"{row.state_copies:,}",
            f"{row.rule_page_copies:,} + {row.rule_state_copies:,}",
            f"{row.copied_bytes / MIB:.2f}",
            f"{row.peak_pages:,}",
            f"{row.peak_bytes / MIB:.2f}",
            f"{row.computed_tokens:,}",
            f"{row.saved_tokens:,}",
        )
    console.print(table)


@contextmanager
def _refused_as_config() -> Iterator[None]:
    try:
        yield
    except (LabError, ValueError) as error:
        raise ConfigError(f"budget is too small: {error}") from None


def _memories(launch: Launch, names: Sequence[str]) -> list[MemoryConfig]:
    organizations = (
        [launch.organization]
        if launch.organization is not None
        else [
            parse_union(OrganizationConfig, read_option("organization", name), path=name)
            for name in names
        ]
    )
    return [
        MemoryConfig.without_policies(model=launch.model, organization=organization)
        for organization in organizations
    ]


def _budget(launch: Launch, name: str) -> int:
    budget = launch.budget or BudgetConfig.parse(read_option("budget", name))
    return budget.bytes


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table
