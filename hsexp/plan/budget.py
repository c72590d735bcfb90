"""How much memory of a GPU is left for state beside the weights."""

from dataclasses import dataclass

from hsexp.config.base import ConfigError
from hsexp.config.device import DeviceConfig
from hsexp.memory.geometry import ModelShape

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class LeftForState:
    """A budget, and how it was reckoned."""

    layer_bytes: int
    """Bytes for the state of one attention layer with its recurrent layers."""
    words: str

    def __str__(self) -> str:
        return self.words


def budget_beside_weights(
    device: DeviceConfig, model: ModelShape, gpu_gib: float | None = None
) -> LeftForState:
    """The budget for state on one GPU.

    Args:
        gpu_gib: memory of the GPU.

    Raises:
        ConfigError: the memory is not known, or nothing is left.
    """
    if gpu_gib is None:
        raise ConfigError(
            f"gpu_gib is required: the memory of device {device.name} is not known; such as "
            "gpu_gib=80, or budget=bytes budget.bytes=200000000"
        )
    state_bytes = int(gpu_gib * _GIB / 2)
    layers = model.num_attention_layers
    return LeftForState(
        layer_bytes=state_bytes // layers,
        words=(
            f"half of {gpu_gib:g} GiB, because the weights of {model.name} are not known: "
            f"{state_bytes / _GIB:.1f} GiB of state, {state_bytes // layers:,} bytes for each of "
            f"{layers} attention layers with their recurrent layers"
        ),
    )
