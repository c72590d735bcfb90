"""Step times of a GPU that nobody timed: its data sheet, and how much of it kernels reach."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from hsexp.config.base import Config
from hsexp.config.fields import Name

Share = Annotated[float, Field(gt=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]


class DataSheet(Config):
    """What the vendor states."""

    bandwidth_gb_per_s: PositiveFloat
    """Of the memory, in 10^9 bytes."""
    bf16_tflop_per_s: PositiveFloat
    """Dense, without sparsity."""


class Efficiency(Config):
    """How much of the data sheet kernels reach, and what a step costs beside them.

    Priors: the same values for every GPU and every model.
    """

    weights: Share
    """Of the bandwidth, reading weights."""
    kv: Share
    """Of the bandwidth, reading keys and values."""
    states: Share
    """Of the bandwidth, reading and writing recurrent and convolution states."""
    compute: Share
    """Of the BF16 rate, in matrix products and in attention over a prompt."""
    step_s: NonNegative
    """Scheduling, sampling and launches of a step."""


class RooflineStepTime(Config):
    """Duration of one step of one model, reckoned from a data sheet.

        step = fixed
             + max(reading the weights, multiplying with them)           layers of matrices
             + states of decode tokens and of chunks, read and written
             + keys and values of the context, read
             + products of queries and keys of prefill chunks

    Layers run one after the other, and each is bound by memory or by compute: matrices by either,
    the others by what is counted. So the maximum is taken for the matrices, and the rest adds up.
    """

    kind: Literal["roofline"]
    name: Name
    fixed_s: NonNegative
    weights_s: PositiveFloat
    """Reading the weights that every token uses."""
    experts_s: NonNegative
    """Reading every routed expert; 0 for a dense model."""
    expert_share: Annotated[float, Field(ge=0.0, le=1.0)]
    """Share of the experts of a layer that one token uses. With T tokens, a step reads
    1 - (1 - share)^T of them: routing is taken as even."""
    decode_token_s: PositiveFloat
    """Multiplying a decode token with the weights, and with the head."""
    prefill_token_s: PositiveFloat
    """Multiplying a prefill token with the weights."""
    state_s: NonNegative
    """Reading and writing the states of one request: of a decode token, or of a prefill chunk."""
    context_token_s: NonNegative
    """Reading the keys and values of one token: of the context of a decode token, or once for a
    chunk."""
    pair_s: NonNegative
    """One query with one key, in all attention layers, for prefill chunks."""

    @property
    def shared_s(self) -> float:
        """Seconds of a step that its requests share."""
        return self.fixed_s + self.weights_s
