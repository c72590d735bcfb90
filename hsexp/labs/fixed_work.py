"""`campaign=fixed_work`: equal work in steps of other shapes, by the device's step-time model.

    width    | 16 D |            or  | 8 D | 8 D |
    mixing   | 512 P + 15 D |    or  | 512 P | 15 D |

An affine model charges every step its base: more steps cost more, always. On a GPU a step of
decodes alone may replay a recorded graph, which a mixed step cannot; the model does not show that.
A device that reckons its steps from a data sheet reads the weights once a step. Contexts are empty.
"""

from dataclasses import dataclass

from hsexp.config.campaigns import FixedWorkCampaign
from hsexp.config.device import DeviceConfig
from hsexp.sim.clocks import clock_of
from hsexp.sim.steptime import NS_PER_S, StepTimes


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One way to cut the work into steps."""

    steps: tuple[tuple[int, int], ...]
    """Decode and prefill tokens of each step."""
    total_s: float
    """Modelled time of all steps."""

    @classmethod
    def of(cls, clock: StepTimes, *steps: tuple[int, int]) -> "Shape":
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
        """Time saved by the split shape; negative where it costs more."""
        return self.joined.total_s - self.split.total_s


def step_clock(device: DeviceConfig) -> StepTimes:
    """The device's step-time model.

    Raises:
        ConfigError: the device was never fitted.
    """
    return clock_of(device.known_step_time)


def width(clock: StepTimes, campaign: FixedWorkCampaign) -> Comparison:
    """Experiment 9a: all decodes in one step, or fewer in several."""
    num_steps = campaign.num_wide // campaign.num_narrow
    return Comparison(
        joined=Shape.of(clock, (campaign.num_wide, 0)),
        split=Shape.of(clock, *[(campaign.num_narrow, 0)] * num_steps),
    )


def mixing(clock: StepTimes, campaign: FixedWorkCampaign) -> dict[int, Comparison]:
    """Experiment 9b: each input chunk with the decodes in one step, or before them."""
    decodes = campaign.num_mixed_decodes
    return {
        chunk.prefill_tokens: Comparison(
            joined=Shape.of(clock, (decodes, chunk.prefill_tokens)),
            split=Shape.of(clock, (0, chunk.prefill_tokens), (decodes, 0)),
        )
        for chunk in campaign.chunks
    }
