"""Seeded weights as wide as a real model's: their configuration, how they are drawn, what they
say."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_process import EngineProcess, settings
from small_models import tiny, tiny_granite

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.engine.full_width import LOAD_FORMAT, config_fields, config_folder, load_arguments
from hsexp.engine.seeded_loader import draw_weights
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.weights import SeededWidth

NARROW = SeededWidth(hidden=256, intermediate=512, query_heads=4, vocabulary=512, scan_chunk=64)


@pytest.fixture
def seven_b() -> tuple[ModelConfig, SeededWidth]:
    shape = ModelConfig.parse(read_option("model", "falcon_h1_7b_seeded"))
    assert shape.checkpoint is None and shape.seeded_width is not None
    return shape, shape.seeded_width


def test_the_width_of_the_option_is_that_of_falcon_h1_7b(
    seven_b: tuple[ModelConfig, SeededWidth],
) -> None:
    """Every field of the public configuration that sizes depend on, and its parameters."""
    from transformers import FalconH1Config, FalconH1ForCausalLM

    fields = config_fields(*seven_b)
    public = Path(__file__).parents[1] / "models" / "configs" / "falcon_h1_7b.json"
    expected = json.loads(public.read_text(encoding="utf-8"))
    sizes = expected.keys() - {"mamba_expand", "max_position_embeddings"}  # a length that is served
    assert {name: fields[name] for name in sizes} == {name: expected[name] for name in sizes}
    with torch.device("meta"):
        model = FalconH1ForCausalLM(FalconH1Config(**fields))
    weights = seven_b[0].weights
    assert weights is not None
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total == pytest.approx(weights.num_parameters, rel=1e-3)


def test_the_states_are_those_of_falcon_h1_7b(seven_b: tuple[ModelConfig, SeededWidth]) -> None:
    shape = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
    ours = seven_b[0].model_dump(mode="json")
    assert ours | {"name": shape.name} == shape.model_dump(mode="json")


@pytest.mark.parametrize(
    ("shape", "width", "message"),
    [
        (tiny_granite(4), NARROW, "seeded_width is that of a Falcon-H1"),
        (
            tiny(4).model_copy(update={"num_kv_heads": 3}),
            NARROW,
            "query_heads must be a multiple of num_kv_heads 3, got 4",
        ),
    ],
)
def test_a_width_that_no_model_has_is_refused(
    shape: ModelConfig, width: SeededWidth, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_fields(shape, width)


def test_an_engine_is_told_of_the_format_only_where_it_makes_the_weights() -> None:
    assert load_arguments(None, NARROW) == {"load_format": LOAD_FORMAT}
    assert load_arguments("a/checkpoint", NARROW) == load_arguments(None, None) == {}


# -- how weights are drawn -------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Parameters of every kind, named as vLLM names them."""

    def __init__(self, *, turned: bool = False) -> None:
        super().__init__()
        parts: dict[str, Any] = {
            "in_proj": torch.empty(300, 400),
            "conv1d": torch.empty(300, 1, 4),
            "input_layernorm": torch.empty(400),
        }
        for name in reversed(parts) if turned else parts:
            part = torch.nn.Module()
            part.weight = torch.nn.Parameter(parts[name])
            self.add_module(name, part)
        self.conv1d.bias = torch.nn.Parameter(torch.empty(300))
        for name in ("A", "D", "dt_bias"):
            setattr(self, name, torch.nn.Parameter(torch.empty(500)))


def drawn(*, seed: int = 1, turned: bool = False) -> dict[str, torch.Tensor]:
    layer = Layer(turned=turned)
    draw_weights(layer, seed=seed)
    return {name: value.detach() for name, value in layer.named_parameters()}


def test_weights_depend_on_the_seed_and_their_names_alone() -> None:
    first, again, turned, other = drawn(), drawn(), drawn(turned=True), drawn(seed=2)
    for name, value in first.items():
        assert torch.equal(value, again[name]) and torch.equal(value, turned[name])
    assert not torch.equal(first["in_proj.weight"], other["in_proj.weight"])


def test_matrices_keep_the_size_of_what_passes_through_them() -> None:
    found = drawn()
    # 1.2 over the root of the inputs, or of the taps.
    assert found["in_proj.weight"].std().item() == pytest.approx(1.2 / 20, rel=0.02)
    assert found["conv1d.weight"].std().item() == pytest.approx(0.6, rel=0.1)
    assert bool((found["input_layernorm.weight"] == 1).all())
    assert bool((found["conv1d.bias"] == 0).all()) and bool((found["D"] == 1).all())


def test_heads_remember_from_one_to_a_thousand_tokens() -> None:
    found = drawn()
    steps = torch.nn.functional.softplus(found["dt_bias"])
    lifetimes = -1 / (found["A"] * steps)
    assert bool((found["A"] <= -1).all()) and bool((found["A"] >= -16).all())
    assert 0.6 <= lifetimes.min().item() < 2  # 1 / (16 x 0.1)
    assert 200 < lifetimes.max().item() <= 1001


def test_a_parameter_of_no_known_kind_is_refused() -> None:
    layer = torch.nn.Module()
    layer.gate = torch.nn.Parameter(torch.empty(3))
    with pytest.raises(ConfigError, match=r"do not know the parameter gate \(3,\)"):
        draw_weights(layer, seed=1)


# -- a real engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(engines: EngineProcess) -> dict[str, Any]:
    """Prompts of 64 tokens of one of two contexts and the same 20 tokens behind, from 2 layers."""
    shape = tiny(4)
    rng = random.Random(5)
    contexts = [[rng.randrange(3, 512) for _ in range(64)] for _ in range(2)]
    end = [rng.randrange(3, 512) for _ in range(20)]
    prompts = [contexts[0] + end, contexts[1] + end, contexts[0] + end]
    return engines.run(
        {
            "model": str(config_folder(shape, NARROW)),
            "dtype": "float32",
            "max_model_len": 512,
            "cap": 8,
            "token_budget": 128,
            "in_turn": 3,
            "arguments": {"load_format": LOAD_FORMAT},
            "requests": [
                {"id": str(i), "prompt": prompt, "max_tokens": 24, "add_at": 0}
                for i, prompt in enumerate(prompts)
            ],
            "settings": settings(
                shape,
                "s2",
                200 * 16384,
                block_size=32,
                slot_bytes=4096,
                keep_idle_slabs=True,
            ),
        }
    )


def test_logits_tell_states_apart_through_the_same_last_tokens(served: dict[str, Any]) -> None:
    first, other, again = (served["outputs"][str(i)] for i in range(3))
    assert [each["cached"] for each in (first, other, again)] == [0, 0, 64]
    assert again["tokens"] == first["tokens"]
    assert other["tokens"] != first["tokens"]
    assert len(set(first["tokens"])) > 3


def test_probabilities_are_neither_certain_nor_even(served: dict[str, Any]) -> None:
    best = [max(each.values()) for each in served["outputs"]["0"]["logprobs"]]
    assert max(best) < -1e-3 and min(best) > math.log(1 / 512) + 1
