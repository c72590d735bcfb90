"""The shape of a served model, read from the configuration that vLLM itself uses.

State sizes come from vLLM's own generic sources (the model class for Mamba states, the model
configuration for attention), so that any hybrid of vLLM with Mamba2 or gated delta
net has a geometry. They are those of one tensor-parallel rank: heads are divided before they come
here. The sizes are read before the weights are loaded, and compared with the loaded layers when
pools are made.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.models import ModelRegistry
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import read_option, standing_options
from hsexp.memory.geometry import (
    GATED_DELTA_NET,
    ModelConfig,
    ModelShape,
    ServedModel,
    StateGeometry,
)
from hsexp.models.known import is_delta_net

_KINDS = {
    "attention": (1, 0),
    "full_attention": (1, 0),
    "mamba": (0, 1),
    "mamba2": (0, 1),
    "linear_attention": (0, 1),  # what transformers calls a Mamba layer since 5.13
    "hybrid": (1, 1),  # both in one layer: Falcon-H1, Zamba2
    "mlp": (0, 0),
    "moe": (0, 0),
}
"""Attention and recurrent layers that a layer of the model's list stands for."""


def model_of(vllm_config: VllmConfig) -> ModelShape:
    """The shape of the model that vLLM is to serve, as one rank holds it.

    Raises:
        ConfigError: the model is not a hybrid of full attention and Mamba2 or gated delta net, or
            its states have sizes that no organization supports.
    """
    served, cache = vllm_config.model_config, vllm_config.cache_config
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", Path(str(served.served_model_name)).name)
    if not served.is_hybrid:
        raise ConfigError(f"model {name} is not a hybrid of attention and Mamba2 layers")
    if served.use_mla:
        raise ConfigError(f"model {name}: MLA attention has no keys and values that pages can hold")
    window = served.get_sliding_window()
    if window is not None:
        raise ConfigError(f"model {name}: sliding-window attention ({window} tokens)")
    num_attention, num_recurrent = _count_layers(name, served.hf_text_config)
    kv_dtype = (
        served.dtype if cache.cache_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[cache.cache_dtype]
    )
    model_class, _ = ModelRegistry.resolve_model_cls(served.architecture, model_config=served)
    shapes = model_class.get_mamba_state_shape_from_config(vllm_config)
    dtypes = model_class.get_mamba_state_dtype_from_config(vllm_config)
    is_contiguous = is_delta_net(served.hf_text_config.model_type)
    states = (_DeltaNetStates if is_contiguous else _Mamba2States)(name, shapes, dtypes)
    if states.conv_dtype.itemsize != kv_dtype.itemsize:
        raise ConfigError(
            f"mamba_cache_dtype {cache.mamba_cache_dtype}: convolution states in "
            f"{states.conv_dtype} beside KV in {kv_dtype} are not supported"
        )
    shape: ModelShape = parse_union(
        ServedModel,
        {
            "name": name,
            "num_attention_layers": num_attention,
            "num_recurrent_layers": num_recurrent,
            "max_model_tokens": served.max_model_len,
            "d0_attention_fraction": None,
            **states.fields(
                num_kv_heads=served.get_num_kv_heads(vllm_config.parallel_config),
                head_dim=served.get_head_size(),
                dtype_bytes=kv_dtype.itemsize,
            ),
        },
        path=f"model {name}",
    )
    return shape.model_copy(update={"d0_attention_fraction": screened_split(shape)})


def screened_split(model: ModelShape) -> float | None:
    """D0's split of a model in `conf/model` whose layers have the same states.

    The paper screened each split on that model's worst stranded bytes (Appendix B.3); there is no
    formula for another one.
    """
    wanted = StateGeometry.of(model)
    known = (ModelConfig.parse(read_option("model", name)) for name in standing_options("model"))
    return next(
        (shape.d0_attention_fraction for shape in known if StateGeometry.of(shape) == wanted), None
    )


def _count_layers(name: str, text_config: Any) -> tuple[int, int]:
    """Attention and recurrent layers, from the list of layers in the HF configuration."""
    kinds: Sequence[str] | None = getattr(text_config, "layers_block_type", None) or getattr(
        text_config, "layer_types", None
    )
    if kinds is None:
        raise ConfigError(f"model {name}: its configuration has no layers_block_type")
    unknown = sorted(set(kinds) - _KINDS.keys())
    if unknown:
        raise ConfigError(f"model {name}: layers of kind {', '.join(unknown)} are not supported")
    attention, recurrent = (sum(_KINDS[kind][i] for kind in kinds) for i in (0, 1))
    if not attention or not recurrent:
        raise ConfigError(
            f"model {name} has {attention} attention and {recurrent} Mamba2 layers; "
            "a hybrid has both"
        )
    return attention, recurrent


class _States(ABC):
    """Shapes and types of the two states of a layer."""

    def __init__(
        self, name: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype]
    ) -> None:
        ranks = [len(shape) for shape in shapes]
        if ranks != [2, 3]:
            raise ConfigError(
                f"model {name}: states of shapes {[tuple(shape) for shape in shapes]} are not "
                "Mamba2's, which are a convolution of two and a recurrence of three dimensions"
            )
        self.name = name
        self.conv, self.ssm = shapes
        self.conv_dtype, self.ssm_dtype = dtypes

    @abstractmethod
    def fields(self, *, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> dict[str, Any]:
        """Fields of the model's shape that depend on its family.

        Args:
            dtype_bytes: of an element of KV.
        """


class _Mamba2States(_States):
    """Shapes that give the heads.

    convolution  [conv_width - 1, heads * head_dim + 2 * groups * d_state]   (or the other way)
    recurrent    [heads, head_dim, d_state]
    """

    def fields(self, *, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> dict[str, Any]:
        heads, ssm_head_dim, d_state = self.ssm
        channels, taps = self.conv if is_conv_state_dim_first() else reversed(self.conv)
        groups, rest = divmod(channels - heads * ssm_head_dim, 2 * d_state)
        if groups < 1 or rest or heads % groups:
            raise ConfigError(
                f"model {self.name}: {channels} convolution channels beside {heads} heads of "
                f"{ssm_head_dim} and d_state {d_state} are not Mamba2's"
            )
        ssm_bytes = self.ssm_dtype.itemsize
        return {
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "ssm_heads": heads,
            "ssm_head_dim": ssm_head_dim,
            "d_state": d_state,
            "ssm_groups": groups,
            "conv_width": taps + 1,
            "dtype_bytes": dtype_bytes,
            "ssm_dtype_bytes": None if ssm_bytes == dtype_bytes else ssm_bytes,
        }


class _DeltaNetStates(_States):
    """Shapes of which only the bytes matter.

    convolution  [conv_width - 1, 2 * key heads * key_dim + value heads * value_dim]
    recurrent    [value heads, value_dim, key_dim]
    """

    def fields(self, *, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> dict[str, Any]:
        return {
            "kind": "sized",
            "family": GATED_DELTA_NET,
            "kv_bytes": 2 * num_kv_heads * head_dim * dtype_bytes,
            "recurrent_bytes": prod(self.ssm) * self.ssm_dtype.itemsize,
            "convolution_bytes": prod(self.conv) * self.conv_dtype.itemsize,
        }
