"""Small Falcon-H1 checkpoints with seeded weights whose logits are not degenerate."""

from pathlib import Path
from typing import Any

import torch
from transformers import FalconH1Config, FalconH1ForCausalLM

from hsexp.config.schema import ModelConfig

VOCABULARY = 512


def save_model(folder: Path, shape: ModelConfig, *, dtype: str, seed: int = 1) -> str:
    """Write a checkpoint of this shape; returns its folder."""
    width = shape.ssm_heads * shape.ssm_head_dim
    config = FalconH1Config(
        hidden_size=128,
        intermediate_size=256,
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
        mamba_expand=max(width // 128, 1),
        mamba_chunk_size=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=shape.max_model_tokens,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = FalconH1ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0, 1.2 * parameter.shape[-1] ** -0.5, generator=generator)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
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
