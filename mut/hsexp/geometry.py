"""State sizes of one hybrid layer, from the model's shape (Section 3, Table 1)."""

from dataclasses import dataclass

from hsexp.config.schema import ModelConfig


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
