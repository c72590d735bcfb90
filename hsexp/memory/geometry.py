"""State sizes of one hybrid layer, from the model's shape (Section 3, Table 1)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Name


class ModelConfig(Config):
    """The shape of one hybrid layer stack; every state size follows from it (Section 3)."""

    name: Name
    num_attention_layers: PositiveInt
    num_recurrent_layers: PositiveInt
    """A multiple of the attention layers: that many layer groups, each with its own states."""
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Elements of one attention head."""
    ssm_heads: PositiveInt
    ssm_head_dim: PositiveInt
    d_state: PositiveInt
    """Recurrent (SSM) state elements per head and channel."""
    ssm_groups: PositiveInt
    """Groups that share B and C; they widen the convolution."""
    conv_width: Annotated[int, Field(ge=2)]
    """Taps of the causal convolution; its state keeps `conv_width - 1` of them."""
    dtype_bytes: Literal[2, 4]
    """Bytes of one state element (2 for BF16)."""
    ssm_dtype_bytes: Annotated[
        Literal[2, 4] | None, Field(exclude_if=lambda value: value is None)
    ] = None
    """Bytes of one recurrent state element where they differ from `dtype_bytes`."""
    max_model_tokens: PositiveInt
    """Longest prompt plus output that is served."""
    d0_attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    """Attention's share of the budget in D0's static split (Table B-3); null where no split was
    screened for the model: D0 then needs `organization.attention_fraction`."""
    checkpoint: str | None = Field(default=None, exclude=True)
    """Weights that a real engine loads: a folder or a name on the Hugging Face hub; null makes
    small ones of this shape from a seed. A simulation loads none, so its cell ids leave it out."""

    @model_validator(mode="after")
    def _layers_divide(self) -> "ModelConfig":
        if self.num_recurrent_layers % self.num_attention_layers:
            raise ValueError(
                f"num_recurrent_layers {self.num_recurrent_layers} must be a multiple of "
                f"num_attention_layers {self.num_attention_layers}"
            )
        return self

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: the inner width, and B and C of every group."""
        return self.ssm_heads * self.ssm_head_dim + 2 * self.ssm_groups * self.d_state

    @property
    def ssm_element_bytes(self) -> int:
        return self.ssm_dtype_bytes or self.dtype_bytes

    @property
    def composites_per_checkpoint(self) -> int:
        """Recurrent composites that one checkpoint consists of, per attention layer."""
        return self.num_recurrent_layers // self.num_attention_layers


@dataclass(frozen=True, kw_only=True)
class StateGeometry:
    """Bytes of the three state types, for one attention layer and one of its recurrent layers.

    Falcon-H1-7B in BF16: 1,024 B of KV a token, 1,536 KiB recurrent and 21 KiB convolution state.
    """

    kv_token_bytes: int
    """Attention KV of one token."""
    ssm_bytes: int
    """Recurrent (SSM) state of one request."""
    conv_bytes: int
    """Convolution state of one request."""
    composites: int
    """Recurrent layers for each attention layer: composites that one checkpoint consists of."""

    @classmethod
    def of(cls, model: ModelConfig) -> "StateGeometry":
        d_inner = model.ssm_heads * model.ssm_head_dim
        return cls(
            kv_token_bytes=2 * model.num_kv_heads * model.head_dim * model.dtype_bytes,
            ssm_bytes=d_inner * model.d_state * model.ssm_element_bytes,
            composites=model.composites_per_checkpoint,
            conv_bytes=(model.conv_width - 1) * model.conv_channels * model.dtype_bytes,
        )

    @property
    def composite_bytes(self) -> int:
        """One contiguous recurrent checkpoint: SSM and convolution state together."""
        return self.ssm_bytes + self.conv_bytes
