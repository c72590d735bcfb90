"""What the weights of a model weigh, how many of them a step reads and a token uses, and how wide
seeded ones are."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hsexp.config.base import Config


class Experts(Config):
    """Routed experts: a token uses a few of them, a step reads those that any of its tokens use."""

    parameters: PositiveInt
    """One expert in every layer that has them, together."""
    num: PositiveInt
    """Experts of a layer."""
    per_token: PositiveInt
    """Experts of a layer that a token uses."""


class Weights(Config):
    """Parameters of a model, by how often they are read and used."""

    num_parameters: PositiveInt
    """All that lie in memory."""
    token_parameters: PositiveInt
    """Those that every token is multiplied with, and that a step reads once: no embedding, no head,
    no routed expert. A block that several layers share counts in each of them."""
    head_parameters: PositiveInt
    """The output head: a step reads it, only tokens that are sampled are multiplied with it."""
    experts: Experts | None
    """Null for a dense model."""
    attention_width: Annotated[int, Field(ge=1)]
    """Query heads times head size, summed over the attention layers."""
    dtype_bytes: Literal[2, 4]

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        return self.num_parameters * self.dtype_bytes

    @property
    def active_parameters(self) -> int:
        """Parameters that a token which is sampled is multiplied with."""
        of_experts = 0 if self.experts is None else self.experts.per_token * self.experts.parameters
        return self.token_parameters + self.head_parameters + of_experts


class SeededWidth(Config):
    """How wide seeded weights are where they are as wide as the real model's, so that a step takes
    the time of the real model's. The engine makes them on its device."""

    hidden: PositiveInt
    """Channels between layers."""
    intermediate: PositiveInt
    """Channels inside an MLP."""
    query_heads: PositiveInt
    vocabulary: PositiveInt
    scan_chunk: PositiveInt
    """Tokens of a chunk of the prefill scan."""
