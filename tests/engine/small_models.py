"""Small hybrid checkpoints with seeded weights whose logits are not degenerate."""

from pathlib import Path
from typing import Any

from hsexp.engine.mini import VOCABULARY, write_weights
from hsexp.memory.geometry import ModelConfig

__all__ = ["VOCABULARY", "save_model", "save_tokenizer", "tiny", "tiny_granite"]


def save_model(folder: Path, shape: ModelConfig, *, dtype: str, seed: int = 1) -> str:
    """Write a checkpoint of this shape; returns its folder."""
    write_weights(folder, shape, dtype=dtype, seed=seed)
    return str(folder)


def tiny(dtype_bytes: Any) -> ModelConfig:
    """Two layers whose pages can be counted: at 4 bytes an element a 32-token block is 16 KiB, the
    SSM state two members of two heads, the convolution 3 KiB."""
    return ModelConfig(
        name="tiny",
        num_attention_layers=2,
        num_recurrent_layers=2,
        num_kv_heads=1,
        head_dim=64,
        ssm_heads=4,
        ssm_head_dim=32,
        d_state=64,
        ssm_groups=1,
        conv_width=4,
        dtype_bytes=dtype_bytes,
        max_model_tokens=2048,
        d0_attention_fraction=0.6,
    )


def tiny_granite(dtype_bytes: Any) -> ModelConfig:
    """Two attention and six Mamba2 layers: at 4 bytes an element a 32-token block is 32 KiB, an SSM
    state two members of four heads, a convolution 4.5 KiB, so that a checkpoint's three make a
    slot of 16 KiB."""
    return ModelConfig(
        name="tiny_granite",
        num_attention_layers=2,
        num_recurrent_layers=6,
        num_kv_heads=2,
        head_dim=64,
        ssm_heads=8,
        ssm_head_dim=32,
        d_state=64,
        ssm_groups=1,
        conv_width=4,
        dtype_bytes=dtype_bytes,
        max_model_tokens=2048,
        d0_attention_fraction=0.4,
    )


def save_tokenizer(folder: Path) -> None:
    """Words "t0", "t1", ... for the token ids, beside the model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", pad_token="t0", bos_token="t1", eos_token="t2"
    ).save_pretrained(folder)
