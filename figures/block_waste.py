"""Block waste: allocated but unused slots of a sequence, by its length."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.registry import drawing
from hsexp.memory.organizations import Organization, StateMix
from hsexp.plan.resolve import standing

MAX_TOKENS = 2048
"""Longest length drawn."""

MAX_BLOCKS = 8
"""Blocks that a panel of a small block size shows; more of them would blur into a band."""

Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]


@drawing("block-waste")
def draw() -> Figure:
    """Waste of both block sizes and of a contiguous allocation. Needs no run."""
    layouts = standing("capacity").layouts
    figure, (whole, start) = plt.subplots(2, 1, figsize=(style.COLUMN_IN, 4.1))
    lengths = np.arange(1, MAX_TOKENS + 1)
    whole.plot(
        lengths,
        MAX_TOKENS - lengths,
        color=style.FAINT,
        linestyle=(0, (4, 2)),
        label=f"contiguous, {MAX_TOKENS:,} tokens reserved",
    )
    _sawtooth(whole, layouts["s2"], lengths, color=style.color("s2"), label="S0, S1, S2")
    d0 = layouts["d0"]
    longest = MAX_BLOCKS * d0.block_size
    _sawtooth(start, d0, np.arange(1, longest + 1), color=style.color("d0"), label="D0")
    whole.set_title(f"(a) up to {MAX_TOKENS:,} tokens")
    whole.set_ylim(0, 1.06 * MAX_TOKENS)
    whole.set_yticks([0, 511, 1024, 2048], ["0", "511", "1,024", "2,048"])
    whole.set_xlim(0, MAX_TOKENS)
    whole.set_xticks(range(0, MAX_TOKENS + 1, 512), ["0", "512", "1,024", "1,536", "2,048"])
    start.set_title(f"(b) the first {longest} tokens of D0")
    start.set_ylim(0, 1.25 * d0.block_size)
    start.set_yticks([0, d0.block_size // 2, d0.block_size - 1])
    start.set_xlim(0, longest)
    start.set_xticks(range(0, longest + 1, 2 * d0.block_size))
    start.set_xlabel("tokens of the sequence")
    for axis in (whole, start):
        axis.set_ylabel("unused slots")
    figure.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=1, fontsize=7)
    style.footer(
        figure,
        "By the block sizes of conf/organization; nothing is measured. Recurrent and convolution "
        "state have a fixed size and are not included.",
    )
    figure.subplots_adjust(left=0.17, right=0.94, top=0.8, bottom=0.205, hspace=0.5)
    return figure


def _sawtooth(
    axis: Axes, organization: Organization, lengths: Lengths, *, color: str, label: str
) -> None:
    """One organization's waste, and the line that it never passes."""
    unused, block = unused_slots(organization, lengths)
    axis.plot(
        lengths,
        unused,
        color=color,
        linewidth=0.9,
        label=f"{label}: blocks of {block}, at most {block - 1}",
    )
    axis.axhline(block - 1, color=color, linewidth=0.6, linestyle=":")


def unused_slots(organization: Organization, lengths: Lengths) -> tuple[list[int], int]:
    """Slots of the allocated blocks beyond each length, and the block size, in tokens."""
    size = organization.block_size
    return [
        size * organization.attention_objects(StateMix(attention_tokens=length, checkpoints=0))
        - length
        for length in lengths.tolist()
    ], size
