"""Block waste: allocated but unused slots of a sequence, by its length."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import style
from figures.registry import drawing
from hsexp.memory.organizations import Organization, StateMix
from hsexp.plan.resolve import standing

MAX_TOKENS = 2048
"""Longest length drawn."""


@drawing("block-waste")
def draw() -> Figure:
    """Waste of both block sizes and of a contiguous allocation. Needs no run."""
    lengths, layouts = np.arange(1, MAX_TOKENS + 1), standing("capacity").layouts
    figure, axis = plt.subplots(figsize=(style.COLUMN_IN, 2.6))
    axis.plot(
        lengths,
        MAX_TOKENS - lengths,
        color=style.FAINT,
        linestyle=(0, (4, 2)),
        label=f"contiguous, {MAX_TOKENS:,} tokens reserved",
    )
    for name, label in (("s2", "S0, S1, S2"), ("d0", "D0")):
        unused, block = unused_slots(layouts[name], lengths)
        axis.plot(
            lengths, unused, color=style.color(name), linewidth=0.8,
            label=f"{label}: blocks of {block}, at most {block - 1}",
        )  # fmt: skip
        axis.axhline(block - 1, color=style.color(name), linewidth=0.6, linestyle=":")
    axis.set_yscale("symlog", linthresh=16)
    axis.set_yticks([0, 8, 15, 64, 511, 2048], ["0", "8", "15", "64", "511", "2,048"])
    axis.set_ylim(0, 2 * MAX_TOKENS)
    axis.set_xlim(0, MAX_TOKENS)
    axis.set_xticks(range(0, MAX_TOKENS + 1, 512), ["0", "512", "1,024", "1,536", "2,048"])
    axis.set_xlabel("tokens of the sequence")
    axis.set_ylabel("unused slots")
    figure.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=1, fontsize=7)
    style.footer(
        figure,
        "By the block sizes of conf/organization; nothing is measured. Recurrent and convolution "
        "state have a fixed size and are not included.",
    )
    figure.subplots_adjust(left=0.16, right=0.93, top=0.78, bottom=0.32)
    return figure


def unused_slots(
    organization: Organization, lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> tuple[list[int], int]:
    """Slots of the allocated blocks beyond each length, and the block size, in tokens."""
    size = organization.block_size
    return [
        size * organization.attention_objects(StateMix(attention_tokens=length, checkpoints=0))
        - length
        for length in lengths.tolist()
    ], size
