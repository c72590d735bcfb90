"""Small models of a given shape, with seeded weights, for real runs on a CPU.

A shape with one recurrent layer for each attention layer is a Falcon-H1, one with several a
Granite-4-H.

The states have exactly the sizes of the shape; whatever they do not depend on is as small as it can
be: 128 hidden channels, a vocabulary of 512. Weights are scaled so that logits differ from
token to token: a model that always answers the same would hide a wrong state.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hsexp.config.base import ConfigError
from hsexp.memory.geometry import ModelConfig, ModelShape
from hsexp.plan.cells import content_key
from hsexp.user_cache import cache_folder

VOCABULARY = 512
SPECIAL_TOKENS = 3
"""Padding, start and end come first; prompts are drawn from the others."""

_HIDDEN = 128
GAIN = 1.2
"""Multiplies the standard deviation 1 / sqrt(inputs); with 1 the logits hardly differ."""

_FORMAT = 1
"""Raise it when the same shape and seed give other weights."""


def seeded_weights(shape: ModelShape, *, seed: int = 1) -> Path:
    """The folder of the weights, made at the first call and kept in the user's cache.

    Raises:
        ConfigError: neither family has such a shape.
    """
    if not isinstance(shape, ModelConfig):
        raise ConfigError(
            f"model {shape.name}: seeded weights are those of a Mamba2 hybrid; set model.checkpoint"
        )
    key = content_key(
        {"shape": shape.model_dump(mode="json"), "seed": seed, "format": _FORMAT}
        | {"hidden": _HIDDEN, "vocabulary": VOCABULARY}
    )
    return kept_folder(f"{shape.name}-{key}", lambda half: write_weights(half, shape, seed=seed))


def kept_folder(name: str, write: Callable[[Path], None]) -> Path:
    """A folder in the user's cache, written at the first call, whole or not at all.

    Args:
        write: puts the contents into an empty folder.
    """
    folder = cache_folder() / "checkpoints" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            write(half)
            half.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def write_weights(
    folder: Path, shape: ModelConfig, *, dtype: str | None = None, seed: int = 1
) -> None:
    """Write config.json and model.safetensors of this shape.

    Args:
        dtype: of the weights; None uses the shape's, bfloat16 or float32.

    Raises:
        ConfigError: neither family has such a shape.
    """
    import torch

    is_falcon = shape.num_recurrent_layers == shape.num_attention_layers
    model = _falcon_h1(shape) if is_falcon else _granite_4_h(shape)
    seed_weights(model, seed=seed)
    chosen = dtype or ("bfloat16" if shape.dtype_bytes == 2 else "float32")
    model.to(getattr(torch, chosen)).save_pretrained(folder)


def seed_weights(model: Any, *, seed: int) -> None:
    """Draw every matrix of a transformers model anew, so that its logits are not degenerate."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            scale = GAIN * parameter.shape[-1] ** -0.5
            parameter.data.normal_(0, scale, generator=generator)


def _falcon_h1(shape: ModelConfig) -> Any:
    """Attention and one Mamba2 mixer in each layer."""
    from transformers import FalconH1Config, FalconH1ForCausalLM

    width = shape.ssm_heads * shape.ssm_head_dim
    return FalconH1ForCausalLM(
        FalconH1Config(
            hidden_size=_HIDDEN,
            intermediate_size=2 * _HIDDEN,
            num_hidden_layers=shape.num_attention_layers,
            num_attention_heads=2 * shape.num_kv_heads,
            head_dim=shape.head_dim,
            mamba_d_ssm=width,
            mamba_expand=max(width // _HIDDEN, 1),
            **shared_fields(shape),
        )
    )


def _granite_4_h(shape: ModelConfig) -> Any:
    """Mamba2 layers with an attention layer in the middle of each group; dense.

    Raises:
        ConfigError: its inner width is not a multiple of its hidden one, num_kv_heads * head_dim.
    """
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    width, hidden = shape.ssm_heads * shape.ssm_head_dim, shape.num_kv_heads * shape.head_dim
    if width % hidden:
        raise ConfigError(
            f"model {shape.name}: a seeded Granite-4-H has an inner width that is a multiple of "
            f"num_kv_heads * head_dim, got {width} and {hidden}"
        )
    layers = _layer_kinds(shape)
    return GraniteMoeHybridForCausalLM(
        GraniteMoeHybridConfig(
            hidden_size=hidden,
            num_local_experts=0,
            shared_intermediate_size=2 * hidden,
            num_hidden_layers=len(layers),
            layer_types=layers,
            num_attention_heads=shape.num_kv_heads,
            mamba_expand=width // hidden,
            **shared_fields(shape),
        )
    )


def _layer_kinds(shape: ModelShape) -> list[str]:
    """Kinds of layers in order: an attention layer in the middle of the recurrent ones of its
    group, of which the last groups may lack some."""
    layers, num_left = [], shape.num_recurrent_layers
    for _ in range(shape.num_attention_layers):
        group = ["mamba"] * min(shape.composites_per_checkpoint, num_left)
        num_left -= len(group)
        group.insert(len(group) // 2, "attention")
        layers += group
    return layers


def shared_fields(shape: ModelConfig) -> dict[str, Any]:
    """Fields that both families name alike."""
    return {
        "num_key_value_heads": shape.num_kv_heads,
        "mamba_n_heads": shape.ssm_heads,
        "mamba_d_head": shape.ssm_head_dim,
        "mamba_d_state": shape.d_state,
        "mamba_n_groups": shape.ssm_groups,
        "mamba_d_conv": shape.conv_width,
        "mamba_chunk_size": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": shape.max_model_tokens,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
