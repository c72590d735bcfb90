"""Parameters counted from a config.json, against those that transformers' own classes have."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hsexp.models.reading import read_model

CONFIGS = Path(__file__).parents[1] / "models" / "configs"

NAMES = sorted({path.stem for path in CONFIGS.glob("*.json")} - {"minimax_text_01"})
"""transformers has the later format of MiniMax-Text-01."""


@pytest.mark.parametrize("name", NAMES)
def test_transformers_has_as_many_parameters(name: str) -> None:
    path = CONFIGS / f"{name}.json"
    weights = read_model(str(path)).weights
    assert weights is not None
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = sum(parameter.numel() for parameter in model.parameters())  # a tied one once
    # Norms, biases, decays and convolutions are not counted.
    assert weights.num_parameters == pytest.approx(found, rel=0.005)
