"""Configurations of Hugging Face models, as vLLM finds them in a folder; no weights."""

import json
from pathlib import Path
from typing import Any

import torch
from vllm import EngineArgs
from vllm.config import VllmConfig
from vllm.model_executor.models.registry import ModelRegistry, _RegisteredModel
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from hsexp.engine.settings import SCHEDULER
from hsexp.memory.geometry import ModelConfig

FALCON_H1_7B = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 44,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_d_ssm": 3072,
    "mamba_n_heads": 24,
    "mamba_d_head": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "vocab_size": 512,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}
GRANITE_4_H = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "mamba_n_heads": 64,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "num_local_experts": 0,
    "vocab_size": 512,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 9,
    "hybrid_override_pattern": "M-M*-M-M*",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attention_head_dim": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
    "ssm_state_size": 64,
    "n_groups": 4,
    "conv_kernel": 4,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}
ZAMBA2 = {
    "architectures": ["Zamba2ForCausalLM"],
    "model_type": "zamba2",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_mamba_heads": 8,
    "mamba_ngroups": 2,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
BAMBA_LIKE = GRANITE_4_H | {
    "num_hidden_layers": 32,
    "layer_types": ["attention" if i in (9, 18, 27) else "mamba" for i in range(32)],
}
"""Bamba has no class in vLLM 0.27.1: its 29 and 3 layers, as a Granite-4-H."""
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}
JAMBA = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "num_experts": 1,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def load_here(architecture: str) -> None:
    """vLLM looks at a model's class in a process of its own, which takes seconds a class."""
    known = ModelRegistry.models[architecture]
    if not isinstance(known, _RegisteredModel):
        ModelRegistry.register_model(architecture, known.load_model_cls())


def write_config(folder: Path, model: dict[str, Any]) -> None:
    """What vLLM needs to know of a model before it loads weights."""
    load_here(model["architectures"][0])
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")


def stock_config(folder: Path, model: dict[str, Any], **arguments: Any) -> VllmConfig:
    """vLLM's own configuration of a model."""
    write_config(folder, model)
    given = {"max_model_len": 4096, "skip_tokenizer_init": True} | arguments
    return EngineArgs(model=str(folder), **given).create_engine_config()


def served_config(
    folder: Path, model: dict[str, Any], settings: dict[str, Any], **arguments: Any
) -> VllmConfig:
    """The configuration that two flags come to, and whatever else is given."""
    return stock_config(
        folder,
        model,
        **{"scheduler_cls": SCHEDULER, "additional_config": {"hsexp": settings}} | arguments,
    )


def layers_of(model: ModelConfig) -> dict[str, Any]:
    """The specs of a model's layers, as vLLM collects them from loaded ones."""
    dtype = {2: torch.bfloat16, 4: torch.float32}[model.dtype_bytes]
    ssm_dtype = {2: torch.bfloat16, 4: torch.float32}[model.ssm_element_bytes]
    channels = model.ssm_heads * model.ssm_head_dim + 2 * model.ssm_groups * model.d_state
    attention = FullAttentionSpec(
        block_size=512, num_kv_heads=model.num_kv_heads, head_size=model.head_dim, dtype=dtype
    )
    mamba = MambaSpec(
        block_size=512,
        shapes=(
            (model.conv_width - 1, channels),
            (model.ssm_heads, model.ssm_head_dim, model.d_state),
        ),
        dtypes=(dtype, ssm_dtype),
        mamba_cache_mode="align",
    )
    return {f"attention.{i}": attention for i in range(model.num_attention_layers)} | {
        f"mamba.{i}": mamba for i in range(model.num_recurrent_layers)
    }
