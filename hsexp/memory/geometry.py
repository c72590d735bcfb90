"""State sizes of one hybrid layer, from the model's shape (Section 3, Table 1)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
)

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.weights import SeededWidth, Weights


class ModelShape(Config, ABC):
    """The shape of one hybrid layer stack; every state size follows from it (Section 3).

    The memory manages groups of one attention layer and `composites_per_checkpoint` recurrent ones,
    all with equal page ids. Where the recurrent layers do not divide, the last groups are short,
    and the places of their missing layers are wasted.

        29 recurrent, 3 attention     [ A, 10 R ] [ A, 10 R ] [ A, 9 R, 1 wasted ]
    """

    name: Name
    num_attention_layers: PositiveInt
    """Layers that keep keys and values."""
    num_recurrent_layers: PositiveInt
    """Layers that keep a recurrent state; a layer may keep both."""
    max_model_tokens: PositiveInt
    """Longest prompt plus output that is served."""
    d0_attention_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    """Attention's share of the budget in D0's static split (Table B-3); null where no split was
    screened for the model: D0 then needs `organization.attention_fraction`."""
    checkpoint: str | None = Field(default=None, exclude=True)
    """Weights that a real engine loads: a folder or a name on the Hugging Face hub; null makes
    small ones of this shape from a seed. A simulation loads none, so its cell ids leave it out."""
    weights: Weights | None = Field(default=None, exclude=True)
    """What the weights weigh; null where it is not known. Only a device that prices its steps by a
    data sheet reads it, and cells then have the prices."""
    weights_unknown: str | None = Field(default=None, exclude=True)
    """Why `weights` is null."""

    seeded_width: SeededWidth | None = Field(default=None, exclude=True)
    """Where `checkpoint` is null: how wide the seeded weights are; null makes them as small as the
    states allow. A simulation loads none, so its cell ids leave it out."""
    checkpoint_revision: str | None = Field(default=None, exclude=True)
    """Commit of the weights on the hub; null uses the newest, and the ledger has its digests."""
    checkpoint_sha256: dict[str, str] | None = Field(default=None, exclude=True)
    """SHA-256 that files of the weights must have, by name; null checks none."""

    @property
    def composites_per_checkpoint(self) -> int:
        """Recurrent composites that one checkpoint consists of, per attention layer."""
        return -(-self.num_recurrent_layers // self.num_attention_layers)

    @property
    def num_missing_layers(self) -> int:
        """Recurrent layers that the last groups lack."""
        places = self.composites_per_checkpoint * self.num_attention_layers
        return places - self.num_recurrent_layers

    @property
    def num_empty_groups(self) -> int:
        """Attention layers at the end whose groups lack all recurrent layers."""
        return self.num_missing_layers // self.composites_per_checkpoint

    @property
    @abstractmethod
    def kv_token_bytes(self) -> int:
        """Attention KV of one token in one layer."""

    @property
    @abstractmethod
    def ssm_bytes(self) -> int:
        """Recurrent state of one request in one layer."""

    @property
    @abstractmethod
    def conv_bytes(self) -> int:
        """Convolution state of one request in one layer; 0 for a model without one."""


class ModelConfig(ModelShape):
    """Attention and Mamba2, as the engine's kernels know them."""

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

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: the inner width, and B and C of every group."""
        return self.ssm_heads * self.ssm_head_dim + 2 * self.ssm_groups * self.d_state

    @property
    def ssm_element_bytes(self) -> int:
        return self.ssm_dtype_bytes or self.dtype_bytes

    @property
    def kv_token_bytes(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def ssm_bytes(self) -> int:
        return self.ssm_heads * self.ssm_head_dim * self.d_state * self.ssm_element_bytes

    @property
    def conv_bytes(self) -> int:
        return (self.conv_width - 1) * self.conv_channels * self.dtype_bytes


class SizedModel(ModelShape):
    """A model of another family, by the bytes of its states. A real engine serves gated delta net,
    and a simulation all of them."""

    kind: Literal["sized"]
    family: str
    """What its recurrent layers are; for messages."""
    kv_bytes: PositiveInt
    """Attention KV of one token in one layer."""
    recurrent_bytes: PositiveInt
    convolution_bytes: NonNegativeInt

    @property
    def kv_token_bytes(self) -> int:
        return self.kv_bytes

    @property
    def ssm_bytes(self) -> int:
        return self.recurrent_bytes

    @property
    def conv_bytes(self) -> int:
        return self.convolution_bytes


def _kind(given: Any) -> str:
    kind = given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)
    return "mamba2" if kind is None else str(kind)


AnyModel = Annotated[
    Annotated[ModelConfig, Tag("mamba2")] | Annotated[SizedModel, Tag("sized")],
    Discriminator(_kind),
]
"""A Mamba2 hybrid needs no `kind`."""


GATED_DELTA_NET = "gated delta net"
"""The `family` of a `SizedModel` that a real engine serves."""


def _require_served(given: Any) -> Any:
    if _kind(given) == "mamba2":
        return given
    model = SizedModel.model_validate(given)
    if model.family != GATED_DELTA_NET:
        raise ValueError(
            f"{model.name} has recurrent layers of another family, {model.family}: only a "
            "simulation serves it"
        )
    return model


def _require_mamba2(given: Any) -> Any:
    if _kind(given) == "mamba2":
        return given
    model = SizedModel.model_validate(given)
    raise ValueError(f"{model.name} has recurrent layers of {model.family}, not of Mamba2")


ServedModel = Annotated[AnyModel, BeforeValidator(_require_served)]
"""A model that a real engine serves."""

ServedMamba2 = Annotated[ModelConfig, BeforeValidator(_require_mamba2)]
"""One that it serves with seeded weights."""


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
    def of(cls, model: ModelShape) -> "StateGeometry":
        return cls(
            kv_token_bytes=model.kv_token_bytes,
            ssm_bytes=model.ssm_bytes,
            conv_bytes=model.conv_bytes,
            composites=model.composites_per_checkpoint,
        )

    @property
    def composite_bytes(self) -> int:
        """One contiguous recurrent checkpoint: SSM and convolution state together."""
        return self.ssm_bytes + self.conv_bytes
