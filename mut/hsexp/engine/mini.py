"""Small Falcon-H1 checkpoints of a given shape, with seeded weights, for real runs on a CPU.

The states have exactly the sizes of the shape; everything that no state depends on is as small as
it can be: 128 hidden channels, a vocabulary of 512. Weights are scaled so that logits differ from
token to token: a model that always says the same would hide a wrong state.
"""

import shutil
import tempfile
from pathlib import Path

from hsexp.cache import cache_folder
from hsexp.config.base import ConfigError
from hsexp.config.schema import ModelConfig
from hsexp.plan import content_key

VOCABULARY = 512
SPECIAL_TOKENS = 3
"""Padding, start and end come first; prompts are drawn from the others."""

_HIDDEN = 128
_GAIN = 1.2
"""Times the standard deviation 1 / sqrt(inputs): with 1 the logits hardly differ."""

_FORMAT = 1
"""Raised when the same shape and seed give other weights."""


def seeded_checkpoint(shape: ModelConfig, *, seed: int = 1) -> Path:
    """The folder of the checkpoint, made at the first call and kept in the user's cache.

    Raises:
        ConfigError: Falcon-H1 has no such shape.
    """
    key = content_key(
        {"shape": shape.model_dump(mode="json"), "seed": seed, "format": _FORMAT}
        | {"hidden": _HIDDEN, "vocabulary": VOCABULARY}
    )
    folder = cache_folder() / "checkpoints" / f"{shape.name}-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            write_checkpoint(half, shape, seed=seed)
            half.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def write_checkpoint(
    folder: Path, shape: ModelConfig, *, dtype: str | None = None, seed: int = 1
) -> None:
    """Write config.json and model.safetensors of this shape.

    Args:
        dtype: of the weights; None takes the shape's, bfloat16 or float32.

    Raises:
        ConfigError: Falcon-H1 has no such shape.
    """
    import torch
    from transformers import FalconH1Config, FalconH1ForCausalLM

    if shape.num_attention_layers != shape.num_recurrent_layers:
        raise ConfigError(
            f"model {shape.name}: a seeded Falcon-H1 has as many recurrent as attention layers, "
            f"got {shape.num_recurrent_layers} and {shape.num_attention_layers}"
        )
    width = shape.ssm_heads * shape.ssm_head_dim
    config = FalconH1Config(
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=shape.num_attention_layers,
        num_attention_heads=2 * shape.num_kv_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        mamba_d_ssm=width,
        mamba_n_heads=shape.ssm_heads,
        mamba_d_head=shape.ssm_head_dim,
        mamba_d_state=shape.d_state,
        mamba_n_groups=shape.ssm_groups,
        mamba_d_conv=shape.conv_width,
        mamba_expand=max(width // _HIDDEN, 1),
        mamba_chunk_size=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=shape.max_model_tokens,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = FalconH1ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            scale = _GAIN * parameter.shape[-1] ** -0.5
            parameter.data.normal_(0, scale, generator=generator)
    chosen = dtype or ("bfloat16" if shape.dtype_bytes == 2 else "float32")
    model.to(getattr(torch, chosen)).save_pretrained(folder)
