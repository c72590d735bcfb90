"""vLLM's load format `hsexp_seeded`: every weight is drawn on the device that uses it.

A value depends on the seed, the parameter's name, and the kind of device: not on the order of
parameters, and not on other ones. Matrices keep the size of what passes through them, as those of
`hsexp.engine.mini` do, so that logits differ from token to token. The recurrence is drawn as Mamba2
initializes it: a head remembers from one to a thousand tokens, so that a wrong state is seen long
after it was read.
"""

import math
import zlib
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from hsexp.config.base import ConfigError
from hsexp.engine.full_width import LOAD_FORMAT
from hsexp.engine.mini import GAIN

SEED = 1
_DECAY = (1.0, 16.0)
"""-A, uniform."""
_STEP = (1e-3, 1e-1)
"""Softplus of dt_bias, log-uniform."""


class SeededLoader(BaseModelLoader):
    """Draws the weights of a Falcon-H1."""

    def download_model(self, model_config: Any) -> None:
        """Nothing is downloaded."""

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        draw_weights(model, seed=SEED)


def register_loader() -> None:
    """Let vLLM find the format."""
    register_model_loader(LOAD_FORMAT)(SeededLoader)


def draw_weights(model: torch.nn.Module, *, seed: int) -> None:
    """Draw every parameter in place.

    Raises:
        ConfigError: a parameter is of no known kind.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator(parameter.device)
        generator.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        with torch.no_grad():
            _draw(name, parameter, generator)


def _draw(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    kind = name.rpartition(".")[2]
    if parameter.dim() >= 2:
        # The last dimension is what a row adds up: inputs, or taps of the convolution.
        parameter.normal_(0, GAIN * parameter.shape[-1] ** -0.5, generator=generator)
    elif kind == "A":
        parameter.uniform_(*_DECAY, generator=generator).neg_()
    elif kind == "dt_bias":
        low, high = (math.log(step) for step in _STEP)
        steps = torch.empty_like(parameter, dtype=torch.float32)
        steps.uniform_(low, high, generator=generator).exp_()
        parameter.copy_(steps.expm1().log())  # the inverse of softplus
    elif kind == "D" or (kind == "weight" and "norm" in name):
        parameter.fill_(1)
    elif kind == "bias":
        parameter.zero_()
    else:
        raise ConfigError(
            f"seeded weights do not know the parameter {name} {tuple(parameter.shape)}"
        )
