"""Yield and cost of drafting: tokens of a pass, tokens computed twice, and states in memory.

The sampler is real, over models whose distributions are known; the memory is the core's. Drafts
are cut at checkpoint boundaries (`hsexp.memory.branching.drafting`), which the expected number
ignores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsexp.config.campaigns import SpeculationCampaign
from hsexp.labs.lines import Lab, LabError
from hsexp.memory.config import MemoryConfig
from hsexp.memory.organizations import StateMix
from hsexp.speculation import DilutedDrafter, SpeculativeDecoder, expected_tokens
from hsexp.speculation.sampling import Probabilities

NEVER = 0
"""A token that the target never generates, which the drafter proposes when it is wrong."""


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """One drafter whose drafts are accepted with a known probability."""

    acceptance: float
    num_drafts: int
    expected_tokens: float
    """Expected tokens of a pass, (1 - a^(K + 1)) / (1 - a)."""
    counted_tokens: float
    """Mean tokens of the passes that were run."""
    num_passes: int
    computed_tokens: float
    """Mean of a pass: known tokens, accepted drafts of the previous pass, and drafts."""
    most_computed: int


@dataclass(frozen=True, kw_only=True)
class ScratchRow:
    """Memory of drafts in addition to a running request, in one organization."""

    organization: str
    num_drafts: int
    scratch_bytes: int
    """One scratch state of one layer, as the organization allocates it."""
    state_a_draft_bytes: int
    """Bytes of the alternative: a state for every draft, of which the right one is kept."""
    scratch_in_tokens: int
    """Tokens whose KV is as large as one state."""


class SeededChain:
    """A Markov chain whose law is drawn from a seed."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        weights = np.random.default_rng(seed).exponential(size=(vocabulary, vocabulary))
        weights[:, NEVER] = 0.0
        self._law = weights / weights.sum(axis=1, keepdims=True)

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        law: Probabilities = self._law[tokens[-1] % len(self._law)]
        return law


def pass_rows(
    campaign: SpeculationCampaign,
    config: MemoryConfig,
    nominal_bytes: int,
) -> list[PassRow]:
    """Passes of every acceptance and number of drafts, over the memory of one organization.

    Raises:
        LabError: the budget is too small.
    """
    return [
        _passes(
            campaign,
            Lab(config, nominal_bytes, max_drafts=num_drafts),
            acceptance,
            num_drafts,
        )
        for acceptance in campaign.acceptances
        for num_drafts in campaign.drafts
    ]


def scratch_rows(campaign: SpeculationCampaign, config: MemoryConfig) -> list[ScratchRow]:
    """Bytes of the two ways to reject drafts."""
    organization = config.layout
    geometry = organization.geometry
    state_bytes = geometry.composites * geometry.composite_bytes

    def states(count: int) -> int:
        return organization.mix_bytes(StateMix(attention_tokens=0, checkpoints=count))

    return [
        ScratchRow(
            organization=config.organization.name,
            num_drafts=num_drafts,
            scratch_bytes=states(1),
            state_a_draft_bytes=states(num_drafts),
            scratch_in_tokens=-(-state_bytes // geometry.kv_token_bytes),
        )
        for num_drafts in campaign.drafts
    ]


def _passes(campaign: SpeculationCampaign, lab: Lab, acceptance: float, num_drafts: int) -> PassRow:
    memory, drafting = lab.memory, lab.memory.drafting
    target = SeededChain(campaign.vocabulary, campaign.seed)
    drafter = DilutedDrafter(target, acceptance=acceptance, never=NEVER)
    rng = np.random.default_rng([campaign.seed, num_drafts, round(1000 * acceptance)])
    decoder = SpeculativeDecoder(target, drafter, rng)
    line = lab.start(range(1, campaign.prompt_tokens + 1))
    lab.compute(line)
    line.tokens.append(decoder.run_pass(line.tokens, 0).token)
    yielded, computed = list[int](), list[int]()
    while len(yielded) < campaign.passes:
        known = len(line.tokens)
        drafts = min(num_drafts, drafting.num_drafts(known))
        fits = memory.extend(line.sequence, line.computed, known)
        if not fits or (drafts and not drafting.draft(line.sequence, known, drafts)):
            raise LabError(f"{lab.name}: {lab.in_one_line()}")
        made = decoder.run_pass(line.tokens, drafts)
        lab.end_step()
        if drafts == num_drafts:  # leave out passes that a boundary cut short
            yielded.append(len(made.tokens))
            computed.append(known - line.computed + drafts)
        line.tokens += made.tokens
        line.computed = known
        if drafts:
            line.computed = drafting.settle(
                line.sequence, known, num_drafts=drafts, num_accepted=made.num_accepted
            )
    return PassRow(
        acceptance=acceptance,
        num_drafts=num_drafts,
        expected_tokens=expected_tokens(acceptance, num_drafts),
        counted_tokens=float(np.mean(yielded)),
        num_passes=len(yielded),
        computed_tokens=float(np.mean(computed)),
        most_computed=max(computed),
    )
