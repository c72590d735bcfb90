"""Cost of branching: forks that share, forks that copy everything, and new requests.

    share       one prefill; branches share its blocks and copy what they write (copy on write)
    leaf        beams only: every step is a request of its own, from the kept leaf of another one
    copy        one prefill; every branch gets copies of all blocks and of the state
    recompute   every branch is a request of its own, from the deepest boundary that is cached

Counted on the memory core; every number comes with the prediction of the rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hsexp.config.campaigns import BranchingCampaign
from hsexp.labs.lines import Lab, Line
from hsexp.memory.branching.beams import Beam, Beams
from hsexp.memory.config import MemoryConfig
from hsexp.memory.organizations import Organization
from hsexp.memory.sequence import SequenceMemory

Way = Literal["share", "leaf", "copy", "recompute"]


@dataclass(frozen=True, kw_only=True)
class BranchingRow:
    """One way to the same output in one organization."""

    organization: str
    way: Way
    num_branches: int
    """Branches, or beams."""
    tail_tokens: int
    """Tokens of the prompt after the last common boundary."""
    page_copies: int
    """Attention pages that were copied."""
    state_copies: int
    rule_page_copies: int
    """Prediction of the rule."""
    rule_state_copies: int
    copied_bytes: int
    """Bytes copied in one layer."""
    peak_pages: int
    """Most pages in use at once, all pools together."""
    peak_bytes: int
    """Most bytes in use at once, of one layer."""
    computed_tokens: int
    saved_tokens: int
    """Tokens that `recompute` computes in addition to these."""


def fork_rows(
    campaign: BranchingCampaign,
    config: MemoryConfig,
    nominal_bytes: int,
) -> list[BranchingRow]:
    """Parallel samples of one prompt: every tail and number of branches, in each way.

    Raises:
        LabError: the budget is too small.
    """
    rows: list[BranchingRow] = []
    organization = config.layout
    for tail in campaign.tail_tokens:
        prompt = list(range(campaign.prefix_tokens + tail))
        for num_branches in campaign.branches:
            labs: dict[Way, Lab] = {}
            for way in _SAMPLES:
                lab = labs[way] = Lab(config, nominal_bytes)
                _sample(lab, way, prompt, num_branches, campaign.output_tokens)
            block, grid = organization.block_size, organization.checkpoint_grid
            heirs = num_branches - 1
            rule: dict[Way, tuple[int, int]] = {
                "share": (
                    heirs * (len(prompt) % block > 0),
                    heirs * (len(prompt) % grid > 0),
                ),
                "copy": (heirs * -(-len(prompt) // block), heirs),
                "recompute": (0, 0),
            }
            rows += _rows(config.organization.name, labs, rule, num_branches, tail)
    return rows


def beam_rows(
    campaign: BranchingCampaign,
    config: MemoryConfig,
    nominal_bytes: int,
) -> list[BranchingRow]:
    """Beam search over one prompt: every width, each way, the same beams chosen.

    Raises:
        LabError: the budget is too small.
    """
    tail = campaign.beam_tail_tokens
    prompt = list(range(campaign.prefix_tokens + tail))
    rows: list[BranchingRow] = []
    organization = config.layout
    for width in campaign.beam_widths:
        choices = draw_parents(width, campaign.beam_steps, campaign.seed)
        labs: dict[Way, Lab] = {}
        for way in _SEARCHES:
            # leaves of the previous step, and of this one
            max_leaves = 2 * width if way == "leaf" else 0
            lab = labs[way] = Lab(config, nominal_bytes, max_leaves=max_leaves)
            if way in ("share", "copy"):
                _search_by_forks(lab, prompt, choices, by_copying=way == "copy")
            else:
                _search_by_requests(lab, prompt, choices, leaves=way == "leaf")
        rule = {way: _copies_by_rule(organization, way, len(prompt), choices) for way in _SEARCHES}
        rows += _rows(config.organization.name, labs, rule, width, tail)
    return rows


def draw_parents(width: int, num_steps: int, seed: int) -> list[list[int]]:
    """For each step the parent of every beam, by place; the first step widens the root."""
    rng = np.random.default_rng([seed, width])
    return [
        [0] * width,
        *(sorted(rng.integers(width, size=width).tolist()) for _ in range(num_steps - 1)),
    ]


_SAMPLES: tuple[Way, ...] = ("share", "copy", "recompute")
_SEARCHES: tuple[Way, ...] = ("share", "leaf", "copy", "recompute")


def _sample(
    lab: Lab, way: Way, prompt: Sequence[int], num_branches: int, output_tokens: int
) -> None:
    """Compute several outputs of one prompt; they differ from their first token on."""
    if way == "recompute":
        first = lab.start([*prompt, _token(0, 0)])
        lab.compute(first)
        others = [lab.start([*prompt, _token(0, branch)]) for branch in range(1, num_branches)]
        lab.compute(*others)
        lines = [first, *others]
    else:
        root = lab.start(prompt)
        lab.compute(root)
        forks = [
            lab.fork(root, _token(0, branch), by_copying=way == "copy")
            for branch in range(1, num_branches)
        ]
        root.tokens.append(_token(0, 0))
        lines = [root, *forks]
        lab.compute(*lines)
    for step in range(1, output_tokens):
        for branch, line in enumerate(lines):
            line.tokens.append(_token(step, branch))
        lab.compute(*lines)
    for line in lines:
        lab.release(line)


def _search_by_forks(
    lab: Lab, prompt: Sequence[int], choices: Sequence[Sequence[int]], *, by_copying: bool
) -> None:
    root = lab.start(prompt)
    lab.compute(root)
    lines = [root]
    if by_copying:
        for step, parents in enumerate(choices):
            heirs = [
                lab.fork(lines[parent], _token(step, place), by_copying=True)
                if parent in parents[:place]
                else lines[parent]
                for place, parent in enumerate(parents)
            ]
            lines = _go_on(lab, lines, heirs, step)
    else:
        known = {root.sequence.request_id: root}
        beams = Beams(lab.memory, root.sequence, root.computed)
        for step, parents in enumerate(choices):
            _reorder(lab, beams, known, parents)
            lines = [known[beam.sequence.request_id] for beam in beams.beams]
            for place, line in enumerate(lines):
                line.tokens[line.computed :] = [_token(step, place)]
            lab.compute(*lines)
            for beam, line in zip(beams.beams, lines, strict=True):
                beam.num_tokens = line.computed
    for line in lines:
        lab.release(line)


def _go_on(lab: Lab, before: Sequence[Line], heirs: list[Line], step: int) -> list[Line]:
    for line in before:
        if line not in heirs:
            lab.release(line)
    for place, line in enumerate(heirs):
        line.tokens[line.computed :] = [_token(step, place)]
    lab.compute(*heirs)
    return heirs


def _reorder(lab: Lab, beams: Beams, known: dict[int | str, Line], parents: Sequence[int]) -> None:
    def child(beam: Beam) -> SequenceMemory:
        parent = known[beam.sequence.request_id]
        line = Line(lab, parent.tokens[: parent.computed], parent.sequence.num_prompt_tokens)
        line.computed = parent.computed
        known[line.sequence.request_id] = line
        return line.sequence

    beams.reorder(parents, [0.0] * len(parents), child)


def _search_by_requests(
    lab: Lab, prompt: Sequence[int], choices: Sequence[Sequence[int]], *, leaves: bool
) -> None:
    """Search as an engine without forks does: every beam of every step is a new request."""
    root = lab.start(prompt)
    lab.compute(root)
    lab.release(root, leaf=leaves)
    texts = [list(prompt)]
    for step, parents in enumerate(choices):
        texts = [[*texts[parent], _token(step, place)] for place, parent in enumerate(parents)]
        lines = [lab.start(text, leaf=leaves) for text in texts]
        lab.compute(*lines)
        for line in lines:
            lab.release(line, leaf=leaves)


def _copies_by_rule(
    organization: Organization, way: Way, num_tokens: int, choices: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """(tail pages, states): further heirs of a beam copy; with leaves every heir does."""
    tails = states = 0
    block, grid = organization.block_size, organization.checkpoint_grid
    for step, parents in enumerate(choices):
        length = num_tokens + step
        further = len(parents) - len(set(parents))
        match way:
            case "share":
                tails += further * (length % block > 0)
                states += further * (length % grid > 0)
            case "leaf":
                tails += len(parents) * (length % block > 0)
                states += len(parents) * (length % grid > 0)
            case "copy":
                tails += further * -(-length // block)
                states += further
            case "recompute":
                pass
    return tails, states


def _rows(
    organization: str,
    labs: dict[Way, Lab],
    rule: dict[Way, tuple[int, int]],
    num_branches: int,
    tail_tokens: int,
) -> Iterator[BranchingRow]:
    most = labs["recompute"].computed_tokens
    for way, lab in labs.items():
        yield BranchingRow(
            organization=organization,
            way=way,
            num_branches=num_branches,
            tail_tokens=tail_tokens,
            page_copies=lab.copies["attention"],
            state_copies=lab.copies["state"],
            rule_page_copies=rule[way][0],
            rule_state_copies=rule[way][1],
            copied_bytes=lab.copied_bytes,
            peak_pages=lab.peak_pages,
            peak_bytes=lab.peak_bytes,
            computed_tokens=lab.computed_tokens,
            saved_tokens=most - lab.computed_tokens,
        )


def _token(step: int, place: int) -> int:
    """A token that differs from those of all other places and steps, and of all prompts."""
    return 1_000_000 + 1_000 * step + place
