"""The labs against sums by hand, and the rule against what the core copied, at full size."""

from functools import cache
from typing import Any

import pytest

from hsexp.config.base import parse_union
from hsexp.config.campaigns import BranchingCampaign, CacheLabCampaign, SpeculationCampaign
from hsexp.config.catalog import read_option
from hsexp.labs.branching import BranchingRow, beam_rows, draw_parents, fork_rows
from hsexp.labs.cachelab import cachelab_rows, hits_of, num_requests_at
from hsexp.labs.lines import LabError
from hsexp.labs.speculation import pass_rows, scratch_rows
from hsexp.memory.config import BudgetConfig, MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig

ORGANIZATIONS = ("s0", "s1", "s2", "d0")
BLOCK = {"s0": 512, "s1": 512, "s2": 512, "d0": 16}
GRID = {"s0": 512, "s1": 512, "s2": 512, "d0": 1792}


def memory_config(name: str) -> MemoryConfig:
    return MemoryConfig.without_policies(
        model=ModelConfig.parse(read_option("model", "falcon_h1_7b")),
        organization=parse_union(OrganizationConfig, read_option("organization", name), path=name),
    )


def budget() -> int:
    return BudgetConfig.parse(read_option("budget", "b320")).bytes


@cache
def rows_of(kind: str, organization: str) -> list[BranchingRow]:
    campaign = BranchingCampaign.parse(read_option("campaign", "branching")["campaign"])
    count = fork_rows if kind == "samples" else beam_rows
    return count(campaign, memory_config(organization), budget())


def of(rows: list[BranchingRow], **wanted: Any) -> BranchingRow:
    (row,) = [
        row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())
    ]
    return row


@pytest.mark.parametrize("kind", ["samples", "beams"])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_what_is_copied_is_what_the_rule_predicts(kind: str, organization: str) -> None:
    rows = rows_of(kind, organization)
    for row in rows:
        copied = (row.page_copies, row.state_copies)
        assert copied == (row.rule_page_copies, row.rule_state_copies), row
    assert sum(row.page_copies for row in rows) > 0


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_eight_samples_by_hand(organization: str) -> None:
    # Prompt of 3,584 + 256: 7 further branches copy a tail (D0: 256 fills its blocks) and a state.
    rows = rows_of("samples", organization)
    wanted = {"num_branches": 8, "tail_tokens": 256}
    share, copy = of(rows, way="share", **wanted), of(rows, way="copy", **wanted)
    again = of(rows, way="recompute", **wanted)
    tails = 0 if organization == "d0" else 7
    assert (share.page_copies, share.state_copies) == (tails, 7)
    assert share.copied_bytes == tails * 512 * 1024 + 7 * 1594368  # 1,536 + 21 KiB a state
    blocks = -(-3840 // BLOCK[organization])
    assert (copy.page_copies, copy.state_copies) == (7 * blocks, 7)
    # The prompt once and 8 x 32 outputs; anew, seven compute the 256 tokens behind the boundary.
    assert share.computed_tokens == copy.computed_tokens == 3840 + 8 * 32
    assert again.computed_tokens == share.computed_tokens + 7 * 256
    assert share.saved_tokens == 7 * 256
    # Copying everything holds 7 x the full blocks besides; its peak is later or the same.
    assert copy.peak_pages - share.peak_pages == 7 * (3840 // BLOCK[organization])


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_full_prompt_is_forked_for_nothing(organization: str) -> None:
    row = of(rows_of("samples", organization), way="share", num_branches=8, tail_tokens=0)
    assert (row.page_copies, row.state_copies, row.copied_bytes, row.saved_tokens) == (0, 0, 0, 0)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_beams_compute_each_of_their_tokens_once_unless_they_start_anew(organization: str) -> None:
    rows = rows_of("beams", organization)
    for width in (2, 4, 8):
        for way in ("share", "leaf", "copy"):
            row = of(rows, way=way, num_branches=width)
            assert row.computed_tokens == 3584 + 256 + 32 * width
        assert of(rows, way="recompute", num_branches=width).computed_tokens == 3584 + 256 + sum(
            width * ((3840 + step) % GRID[organization] + 1) for step in range(32)
        )


def test_leaves_copy_for_every_beam_and_forks_for_the_further_ones() -> None:
    choices = draw_parents(4, 32, seed=1)
    further = sum(4 - len(set(parents)) for parents in choices)
    assert choices[0] == [0, 0, 0, 0] and 0 < further < 4 * 32
    rows = rows_of("beams", "s2")
    assert of(rows, way="share", num_branches=4).state_copies == further
    assert of(rows, way="leaf", num_branches=4).state_copies == 4 * 32


def test_a_budget_that_is_too_small_is_told() -> None:
    campaign = BranchingCampaign.parse(read_option("campaign", "branching")["campaign"])
    for count in (fork_rows, beam_rows):
        with pytest.raises(LabError, match="s2: "):
            count(campaign, memory_config("s2"), 20_000_000)


# -- drafts ----------------------------------------------------------------------------------------


def test_passes_yield_what_is_expected_of_known_drafters() -> None:
    data = read_option("campaign", "speculation")["campaign"] | {"drafts": [4], "passes": 300}
    rows = pass_rows(SpeculationCampaign.parse(data), memory_config("s2"), budget())
    expected = {row.acceptance: row.expected_tokens for row in rows}
    assert expected == {0.0: 1.0, 0.5: 1.9375, 0.8: pytest.approx(3.3616), 1.0: 5.0}
    for row in rows:
        # At a = .5 a pass has a standard deviation of 1.2 tokens, at .8 of 1.7: 5 errors of 300.
        assert row.counted_tokens == pytest.approx(row.expected_tokens, abs=0.5)
        # A known token and 4 drafts, and at most the 3 drafts that a partial pass had accepted.
        assert 5 <= row.computed_tokens <= row.most_computed <= 8
    never, _, _, always = rows
    assert (never.counted_tokens, never.computed_tokens) == (1.0, 5.0)
    assert (always.counted_tokens, always.computed_tokens) == (5.0, 5.0)


def test_one_scratch_state_weighs_as_much_whatever_is_drafted() -> None:
    campaign = SpeculationCampaign.parse(read_option("campaign", "speculation")["campaign"])
    s2 = {row.num_drafts: row for row in scratch_rows(campaign, memory_config("s2"))}
    # Three members of 512 KiB and a slab, in which 16 convolution states find room.
    assert {row.scratch_bytes for row in s2.values()} == {4 * 512 * 1024}
    assert s2[4].state_a_draft_bytes == 13 * 512 * 1024
    assert s2[4].scratch_in_tokens == 1557  # 1,557 KiB over 1 KiB a token


# -- the cyclic working set ------------------------------------------------------------------------


def cachelab() -> CacheLabCampaign:
    return CacheLabCampaign.parse(read_option("campaign", "cachelab")["campaign"])


@pytest.mark.parametrize(
    ("capacity", "first_hits"), [(4, 0), (7, 0), (8, 8), (16, 8)]
)  # eight identities
def test_a_cycle_hits_nothing_until_it_fits(capacity: int, first_hits: int) -> None:
    rows = [row for row in cachelab_rows(cachelab()) if (row.capacity, row.stride) == (capacity, 2)]
    assert {row.num_identities for row in rows} == {8}
    assert {row.first_hits for row in rows} == {first_hits}
    for row in rows:
        assert row.hits == (row.num_requests - 8 if first_hits else 0)


def test_requests_come_at_their_rate_up_to_the_most() -> None:
    arrived = [num_requests_at(cachelab(), t) for t in (0.0, 0.4, 0.5, 10.2, 2039.9, 2040.0, 1e6)]
    assert arrived == [16, 16, 17, 36, 4095, 4096, 4096]


def test_the_least_recently_used_entry_goes_first() -> None:
    # Stride 3 of 4 in a cache of 3: 0 3 2 1 | 0 3 2 1, each gone when it comes again; in one of 4
    # all are there. Stride 2 of 4: 0 2 0 2.
    assert not any(hits_of(3, 3, 8, 4))
    assert hits_of(4, 3, 8, 4) == [False] * 4 + [True] * 4
    assert hits_of(2, 2, 4, 4) == [False, False, True, True]
