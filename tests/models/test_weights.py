"""Parameters counted from a config.json, beside those that the models' cards state."""

import json
from pathlib import Path

import pytest

from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig
from hsexp.models.reading import read_model

CONFIGS = Path(__file__).parent / "configs"

BILLIONS = {
    # name: billions of parameters in memory, and of those that a token uses, as cards state them
    "bamba_9b": (9.78, 9.78),
    "falcon_h1_0_5b": (0.52, 0.52),
    "falcon_h1_7b": (7.59, 7.59),
    "granite_4_0_h_micro": (3.19, 3.19),
    "granite_4_0_h_small": (32.2, 9.0),
    "jamba_v0_1": (51.6, 12.1),
    "kimi_linear_48b_a3b": (49.1, 3.4),
    "lfm2_1_2b": (1.17, 1.17),
    "minimax_text_01": (456, 45.9),
    "nemotron_h_8b": (8.1, 8.1),
    "nemotron_nano_9b_v2": (8.89, 8.89),
    "qwen3_next_80b_a3b": (79.7, 3.9),
    "zamba2_1_2b": (1.22, 1.22),
    "zamba2_7b": (7.36, 7.36),
}


@pytest.mark.parametrize("name", BILLIONS)
def test_the_parameters_of_a_config_are_those_of_its_card(name: str) -> None:
    weights = read_model(str(CONFIGS / f"{name}.json")).weights
    assert weights is not None
    assert weights.num_parameters / 1e9 == pytest.approx(BILLIONS[name][0], rel=0.015)


@pytest.mark.parametrize("name", ["granite_4_0_h_small", "jamba_v0_1", "minimax_text_01"])
def test_a_token_uses_the_experts_that_its_card_states(name: str) -> None:
    weights = read_model(str(CONFIGS / f"{name}.json")).weights
    assert weights is not None
    # Cards count the embedding or not; it is less than 3 % of these.
    assert weights.active_parameters / 1e9 == pytest.approx(BILLIONS[name][1], rel=0.04)


def test_a_block_that_layers_share_lies_in_memory_once_and_is_read_by_each() -> None:
    weights = read_model(str(CONFIGS / "zamba2_7b.json")).weights
    assert weights is not None
    # Thirteen hybrid layers take turns with two blocks of attention and MLP.
    hidden, inner = 3584, 14_336
    block = 3 * 2 * hidden * 7168 + 7168 * hidden + 3 * hidden * inner
    read = weights.token_parameters + weights.head_parameters
    assert read - weights.num_parameters == 11 * block


def test_the_shipped_weights_are_those_of_the_config() -> None:
    shipped = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
    assert shipped.weights == read_model(str(CONFIGS / "falcon_h1_7b.json")).weights
    granite = ModelConfig.parse(read_option("model", "granite_4_h"))
    assert granite.weights == read_model(str(CONFIGS / "granite_4_0_h_micro.json")).weights


def test_weights_do_not_change_the_ids_of_cells() -> None:
    assert "weights" not in ModelConfig.parse(read_option("model", "falcon_h1_7b")).model_dump()


@pytest.mark.parametrize(
    ("lost", "given", "why"),
    [
        ("vocab_size", None, "vocab_size is required"),
        ("intermediate_size", None, "intermediate_size is required"),
        ("quantization_config", {"bits": 4}, "quantized weights are not counted"),
    ],
)
def test_a_config_without_countable_weights_says_why_and_keeps_its_states(
    lost: str, given: object, why: str, tmp_path: Path
) -> None:
    fields = json.loads((CONFIGS / "bamba_9b.json").read_text(encoding="utf-8")) | {lost: given}
    path = tmp_path / "bamba.json"
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    model = read_model(str(path))
    assert model.weights is None
    assert model.weights_unknown is not None
    assert why in model.weights_unknown
    assert model.num_recurrent_layers == 29
