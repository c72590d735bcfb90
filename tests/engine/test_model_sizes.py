"""Sizes read from a config.json, against those that vLLM's own model classes compute."""

import importlib
import json
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

from hsexp.memory.geometry import StateGeometry
from hsexp.models.reading import read_model

CONFIGS = Path(__file__).parents[1] / "models" / "configs"

CLASSES = {
    "falcon_h1_7b": ("falcon_h1", "FalconH1ForCausalLM"),
    "falcon_h1_0_5b": ("falcon_h1", "FalconH1ForCausalLM"),
    "granite_4_0_h_small": ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "jamba_v0_1": ("jamba", "JambaForCausalLM"),
    "lfm2_1_2b": ("lfm2", "Lfm2ForCausalLM"),
    "nemotron_h_8b": ("nemotron_h", "NemotronHForCausalLM"),
    "nemotron_nano_9b_v2": ("nemotron_h", "NemotronHForCausalLM"),
    "olmo_hybrid_like": ("olmo_hybrid", "OlmoHybridForCausalLM"),
    # Qwen3.5 has the same formula, and its own module needs torchvision.
    "qwen3_5_like": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3_next_80b_a3b": ("qwen3_next", "Qwen3NextForCausalLM"),
    "zamba2_1_2b": ("zamba2", "Zamba2ForCausalLM"),
    "zamba2_7b": ("zamba2", "Zamba2ForCausalLM"),
}
"""Module and class; vLLM 0.27.1 has none of ours for Bamba, Kimi Linear and MiniMax-Text-01."""

STATE_DTYPES = {"nemotron_h_8b": "float32", "nemotron_nano_9b_v2": "float32"}
"""vLLM's default of the family where it is not the model's type (`models/config.py`)."""


@pytest.mark.parametrize("name", CLASSES)
def test_vllm_computes_the_same_bytes_of_state(name: str) -> None:
    fields = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    fields = fields.get("text_config", fields)
    module, kind = CLASSES[name]
    model_class: Any = getattr(
        importlib.import_module(f"vllm.model_executor.models.{module}"), kind
    )
    state = STATE_DTYPES.get(name, fields.get("mamba_ssm_dtype", "auto"))
    hf_config = SimpleNamespace(**fields)
    vllm_config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(
            hf_config=hf_config, hf_text_config=hf_config, dtype=torch.bfloat16
        ),
        cache_config=SimpleNamespace(
            mamba_cache_dtype="auto", mamba_ssm_cache_dtype=state, use_replayssm=False
        ),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    shapes = model_class.get_mamba_state_shape_from_config(vllm_config)
    dtypes = model_class.get_mamba_state_dtype_from_config(vllm_config)
    sizes = [
        prod(shape) * torch.empty((), dtype=dtype).element_size()
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    ours = StateGeometry.of(read_model(str(CONFIGS / f"{name}.json")))
    assert sizes == [size for size in (ours.conv_bytes, ours.ssm_bytes) if size]
    assert STR_DTYPE_TO_TORCH_DTYPE[fields.get("torch_dtype", "bfloat16")] is torch.bfloat16
