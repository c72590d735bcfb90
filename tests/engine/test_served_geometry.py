"""State sizes of real model configurations, as vLLM will use them."""

from pathlib import Path
from typing import Any

import pytest
from served_configs import (
    FALCON_H1_7B,
    GRANITE_4_H,
    JAMBA,
    LLAMA,
    NEMOTRON_H,
    QWEN3_NEXT,
    ZAMBA2,
    stock_config,
)
from vllm.config import VllmConfig

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.engine.geometry import model_of
from hsexp.engine.plugin import register
from hsexp.memory.geometry import ModelConfig, SizedModel, StateGeometry

register()  # as vLLM does in every process that it starts

NAMES = {"name", "max_model_tokens"}


def mamba2_of(config: VllmConfig) -> ModelConfig:
    found = model_of(config)
    assert isinstance(found, ModelConfig)
    return found


@pytest.mark.parametrize(
    ("config", "option"), [(FALCON_H1_7B, "falcon_h1_7b"), (GRANITE_4_H, "granite_4_h")]
)
def test_a_public_configuration_gives_the_model_of_conf(
    config: dict[str, Any], option: str, tmp_path: Path
) -> None:
    found = model_of(stock_config(tmp_path, config))
    known = ModelConfig.parse(read_option("model", option))
    assert found.model_dump(exclude=NAMES) == known.model_dump(exclude=NAMES)
    assert found.max_model_tokens == 4096


def test_a_layer_list_counts_attention_and_mamba_layers_and_no_others(tmp_path: Path) -> None:
    found = mamba2_of(stock_config(tmp_path, NEMOTRON_H))
    assert (found.num_attention_layers, found.num_recurrent_layers) == (2, 4)
    # vLLM keeps Nemotron-H's recurrent state in fp32 unless it is told otherwise.
    assert (found.dtype_bytes, found.ssm_element_bytes) == (2, 4)
    assert StateGeometry.of(found).ssm_bytes == 16 * 32 * 64 * 4
    assert StateGeometry.of(found).conv_bytes == 3 * (16 * 32 + 2 * 4 * 64) * 2


def test_a_layer_with_both_counts_as_both(tmp_path: Path) -> None:
    found = mamba2_of(stock_config(tmp_path, ZAMBA2))
    assert (found.num_attention_layers, found.num_recurrent_layers) == (2, 4)
    assert (found.ssm_heads, found.ssm_head_dim, found.ssm_groups) == (8, 64, 2)


def test_the_last_groups_may_lack_layers(tmp_path: Path) -> None:
    uneven = NEMOTRON_H | {"hybrid_override_pattern": "M*M*M*M*M"}
    found = model_of(stock_config(tmp_path, uneven))
    assert (found.composites_per_checkpoint, found.num_missing_layers) == (2, 3)
    assert found.num_empty_groups == 1


def test_gated_delta_net_has_the_bytes_of_its_states(tmp_path: Path) -> None:
    found = model_of(stock_config(tmp_path, QWEN3_NEXT, mamba_ssm_cache_dtype="float32"))
    assert isinstance(found, SizedModel) and found.family == "gated delta net"
    assert (found.num_attention_layers, found.num_recurrent_layers) == (2, 6)
    assert found.kv_token_bytes == 2 * 2 * 64 * 2
    assert found.ssm_bytes == 4 * 64 * 64 * 4
    assert found.conv_bytes == 3 * (2 * 2 * 64 + 4 * 64) * 2


def test_a_rank_of_two_has_half_of_the_heads_and_its_own_group(tmp_path: Path) -> None:
    found = mamba2_of(stock_config(tmp_path, FALCON_H1_7B, tensor_parallel_size=2))
    assert (found.num_kv_heads, found.ssm_heads, found.ssm_groups) == (1, 12, 1)


def test_the_recurrent_type_is_the_one_that_vllm_will_use(tmp_path: Path) -> None:
    found = mamba2_of(stock_config(tmp_path, FALCON_H1_7B, mamba_ssm_cache_dtype="float32"))
    assert (found.dtype_bytes, found.ssm_element_bytes) == (2, 4)
    assert StateGeometry.of(found).ssm_bytes == 2 * 1536 * 1024
    assert found.d0_attention_fraction is None  # screened for states of another size


@pytest.mark.parametrize(
    ("config", "arguments", "reason"),
    [
        (LLAMA, {}, "is not a hybrid of attention and Mamba2 layers"),
        (JAMBA, {}, "are not Mamba2's, which are a convolution of two and a recurrence of three"),
        (FALCON_H1_7B, {"mamba_cache_dtype": "float32"}, "mamba_cache_dtype float32"),
        (
            GRANITE_4_H | {"layer_types": ["mamba", "sliding_attention"] * 20},
            {},
            "layers of kind sliding_attention are not supported",
        ),
    ],
)
def test_other_models_are_refused_with_the_reason(
    config: dict[str, Any], arguments: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    served = stock_config(tmp_path, config, **arguments)
    with pytest.raises(ConfigError, match=reason):
        model_of(served)
