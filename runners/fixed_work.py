"""`campaign=fixed_work`: the same work in steps of another shape, by the device's step-time model.

    width    | 16 D |            or  | 8 D | 8 D |
    mixing   | 512 P + 15 D |    or  | 512 P | 15 D |

An affine model charges every step its base: more steps cost more, always. On a GPU a step of
decodes alone may replay a recorded graph, which a mixed step cannot; the model does not show that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from hsexp.config.campaigns import FixedWorkCampaign
from hsexp.config.launch import Launch
from hsexp.sim.steptime import NS_PER_S, StepClock

_MS = 1e3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One way to cut the work into steps."""

    steps: tuple[tuple[int, int], ...]
    """Decode and prefill tokens of each."""
    total_s: float
    """Modelled time of all steps."""

    @classmethod
    def of(cls, clock: StepClock, *steps: tuple[int, int]) -> "Shape":
        return cls(steps=steps, total_s=sum(clock.step_ns(*step) for step in steps) / NS_PER_S)

    @property
    def token_s(self) -> float:
        """Modelled time of one token of the work."""
        return self.total_s / sum(decode + prefill for decode, prefill in self.steps)

    def __str__(self) -> str:
        return " | ".join(
            " + ".join(
                f"{tokens} {kind}"
                for tokens, kind in ((prefill, "prefill"), (decode, "decode"))
                if tokens
            )
            for decode, prefill in self.steps
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Equal work in few steps and in more."""

    joined: Shape
    split: Shape

    @property
    def saving_s(self) -> float:
        """What the split shape saves; negative where it costs more."""
        return self.joined.total_s - self.split.total_s


def width(clock: StepClock, campaign: FixedWorkCampaign) -> Comparison:
    """Experiment 9a: all decodes in one step, or fewer in several."""
    num_steps = campaign.num_wide // campaign.num_narrow
    return Comparison(
        joined=Shape.of(clock, (campaign.num_wide, 0)),
        split=Shape.of(clock, *[(campaign.num_narrow, 0)] * num_steps),
    )


def mixing(clock: StepClock, campaign: FixedWorkCampaign) -> dict[int, Comparison]:
    """Experiment 9b: each input chunk with the decodes in one step, or before them."""
    decodes = campaign.num_mixed_decodes
    return {
        chunk.prefill_tokens: Comparison(
            joined=Shape.of(clock, (decodes, chunk.prefill_tokens)),
            split=Shape.of(clock, (0, chunk.prefill_tokens), (decodes, 0)),
        )
        for chunk in campaign.chunks
    }


def print_fixed_work(
    launch: Launch, console: Console, *, published_saving_s: Mapping[int, float]
) -> None:
    """Print both comparisons.

    Args:
        published_saving_s: what the paper measured that separation saves, by prefill tokens.
    """
    campaign, model = launch.fixed_work, launch.device.known_step_time
    clock = StepClock.of(model)
    wide = width(clock, campaign)
    origin = f"modelled (device {launch.device.name}, time model {model.name}), not measured"
    table = _table(
        f"Width: {campaign.num_wide} decodes at context {campaign.context_tokens}; {origin}",
        ["steps", "total ms", "ms a token"],
    )
    for shape in (wide.joined, wide.split):
        table.add_row(str(shape), f"{shape.total_s * _MS:.3f}", f"{shape.token_s * _MS:.3f}")
    console.print(table)
    console.print(
        f"One step of {campaign.num_wide} takes {-wide.saving_s * _MS:.3f} ms less. The paper "
        "measured a lower cost a token for the wider step too, and prints no number."
    )
    table = _table(
        f"Mixing: {campaign.num_mixed_decodes} decodes and one input chunk; {origin}",
        ["separated steps", "mixed ms", "separated ms", "separated saves ms", "paper, measured"],
    )
    for prefill_tokens, pair in mixing(clock, campaign).items():
        table.add_row(
            str(pair.split),
            f"{pair.joined.total_s * _MS:.3f}",
            f"{pair.split.total_s * _MS:.3f}",
            f"{pair.saving_s * _MS:+.3f}",
            f"about {published_saving_s[prefill_tokens] * _MS:+g}",
        )
    console.print(table)
    console.print(
        "The model charges every step its base, so a separated step costs one base more. It cannot "
        "show what the paper measured: separated decodes replay a recorded graph, mixed ones do "
        "not. The model does not depend on the context or on the organization either."
    )


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table
