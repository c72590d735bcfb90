r"""What a device means for a model: how long its steps take, and which budget its memory leaves.

    data sheet x efficiency  \
                              >  step time of a prior (`hsexp.config.roofline`)
    sizes of the model       /

    memory x utilization = weights + activations + [ state of all layers ]
"""

import math
from dataclasses import dataclass

from hsexp.config.base import ConfigError
from hsexp.config.catalog import options, read_option
from hsexp.config.device import DeviceConfig, Occupancy
from hsexp.config.launch import Launch
from hsexp.config.roofline import RooflineStepTime
from hsexp.memory import MemoryConfig, build_memory
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelShape
from hsexp.memory.weights import Weights

GIB = 1024**3

_STANDARD = "a100_40gb_prior"
"""The device from which the other GPUs inherit."""

_DIGITS = 6
"""Significant digits of a reckoned coefficient: far more than its inputs have."""


# -- step times ----------------------------------------------------------------------------------


def priced(launch: Launch) -> Launch:
    """The launch with a device whose step times are reckoned, if none were fitted.

    Raises:
        ConfigError: the device prices steps by a data sheet, and the model's weights are not known.
    """
    device = launch.device
    if device.step_time is not None or device.sheet is None:
        return launch
    step_time = roofline(device, launch.model)
    return launch.model_copy(update={"device": device.model_copy(update={"step_time": step_time})})


def roofline(device: DeviceConfig, model: ModelShape) -> RooflineStepTime:
    """The step times of a model on a device, from the device's data sheet.

    Raises:
        ConfigError: the device has no data sheet, or the model's weights are not known.
    """
    sheet, efficiency = device.sheet, device.efficiency
    if sheet is None or efficiency is None:
        raise ConfigError(
            f"device.sheet and device.efficiency are required to reckon step times, got null for "
            f"device {device.name}; {_those_with('sheet')} have them"
        )
    weights = weights_of(model)
    experts = weights.experts
    bytes_per_s = 1e9 * sheet.bandwidth_gb_per_s
    flop_per_s = 1e12 * sheet.bf16_tflop_per_s * efficiency.compute
    read_s = weights.dtype_bytes / (bytes_per_s * efficiency.weights)
    routed = 0 if experts is None else experts.per_token * experts.parameters
    state_bytes = model.num_recurrent_layers * (model.ssm_bytes + model.conv_bytes)
    kv_bytes = model.num_attention_layers * model.kv_token_bytes
    return RooflineStepTime(
        kind="roofline",
        name=f"roofline-{device.name}",
        fixed_s=efficiency.step_s,
        weights_s=_round((weights.token_parameters + weights.head_parameters) * read_s),
        experts_s=_round(0 if experts is None else experts.num * experts.parameters * read_s),
        expert_share=_round(0 if experts is None else experts.per_token / experts.num),
        # A multiplication and an addition for each parameter; for a query and a key, two of each
        # for every element of the heads.
        decode_token_s=_round(2 * weights.active_parameters / flop_per_s),
        prefill_token_s=_round(2 * (weights.token_parameters + routed) / flop_per_s),
        state_s=_round(2 * state_bytes / (bytes_per_s * efficiency.states)),
        context_token_s=_round(kv_bytes / (bytes_per_s * efficiency.kv)),
        pair_s=_round(4 * weights.attention_width / flop_per_s),
    )


def weights_of(model: ModelShape) -> Weights:
    """What the model's weights weigh.

    Raises:
        ConfigError: it is not known; names the reason.
    """
    if model.weights is None:
        why = model.weights_unknown or "model=PATH reads them from a config.json"
        raise ConfigError(f"model.weights is required, got null for model {model.name}: {why}")
    return model.weights


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# -- memory --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MemoryShare:
    """How the memory of a GPU is divided; `num_bytes` is left for the memory organization."""

    gpu_bytes: int
    utilization: float
    weight_bytes: int
    activation_bytes: int
    num_layers: int
    """Attention layers of the model. `budget.bytes` is of one of them with its recurrent layers."""

    @property
    def num_bytes(self) -> int:
        """State of all layers."""
        taken = self.weight_bytes + self.activation_bytes
        return int(self.gpu_bytes * self.utilization) - taken

    @property
    def layer_bytes(self) -> int:
        """The budget as `budget.bytes` has it."""
        return self.num_bytes // self.num_layers

    def __str__(self) -> str:
        """How the budget was reckoned, in one sentence."""
        return (
            f"{self.num_bytes / GIB:.2f} GiB for states = {self.gpu_bytes / GIB:.1f} GiB x "
            f"{self.utilization:g} - {self.weight_bytes / GIB:.2f} GiB of weights - "
            f"{self.activation_bytes / GIB:.2f} GiB of activations: {self.layer_bytes:,} bytes for "
            f"each of {self.num_layers} attention layers with its recurrent ones"
        )


def budget_beside_weights(
    device: DeviceConfig, model: ModelShape, gpu_gib: float | None = None
) -> MemoryShare:
    """The bytes that are left for the memory organization beside a model's weights.

    Memory of the GPU times the share that the engine takes of it, less the weights and less
    activations (`device.gpu_gib`, `device.occupancy`). `.num_bytes` is for all layers,
    `.layer_bytes` is a `budget.bytes`, and `str()` says in a sentence how it was reckoned.
    `require_room` checks whether a request fits.

    Args:
        gpu_gib: memory of the GPU; None uses the device's.

    Raises:
        ConfigError: the device's memory or the model's weights are not known, or nothing is left;
            one line that names it and the nearest thing that works.
    """
    weights, occupancy = weights_of(model), _occupancy_of(device)
    gib = device.gpu_gib if gpu_gib is None else gpu_gib
    if gib is None:
        raise ConfigError(
            f"device.gpu_gib is required to reckon a budget, got null for device {device.name}: "
            f"{_those_with('gpu_gib')} have it, and gpu_gib=N gives it for any device"
        )
    share = MemoryShare(
        gpu_bytes=int(gib * GIB),
        utilization=occupancy.utilization,
        weight_bytes=weights.num_bytes,
        activation_bytes=int(occupancy.activations_gib * GIB),
        num_layers=model.num_attention_layers,
    )
    if share.layer_bytes < 1:
        taken = (share.weight_bytes + share.activation_bytes) / GIB
        raise ConfigError(
            f"model {model.name} does not fit on {gib:g} GiB of device {device.name}: weights and "
            f"activations take {taken:.1f} of {gib * occupancy.utilization:.1f} GiB; "
            f"{_larger(taken)}"
        )
    return share


def require_memory(device: DeviceConfig, model: ModelShape, budget: BudgetConfig) -> None:
    """Check that a budget fits beside the weights, before a real engine is started.

    Nothing is checked where the device's memory or the model's weights are not known.

    Raises:
        ConfigError: it does not; names the nearest values that work.
    """
    if device.gpu_gib is None or model.weights is None:
        return
    share = budget_beside_weights(device, model)
    if budget.bytes > share.layer_bytes:
        more = (budget.bytes - share.layer_bytes) * share.num_layers
        taken = share.gpu_bytes * share.utilization + more
        raise ConfigError(
            f"budget {budget.name} of {budget.bytes:,} bytes does not fit on device "
            f"{device.name}, which has {share}; {_larger(taken / GIB)}, and the largest that fits "
            f"here is budget=bytes budget.bytes={share.layer_bytes}"
        )


def require_room(
    share: MemoryShare, settings: MemoryConfig, num_tokens: int, *, device: str
) -> None:
    """Check that a request of `num_tokens` tokens, prompt and output, fits beside the weights.

    Raises:
        ConfigError: it does not; names the organization, the budget, and the smallest that works.
    """
    if _fits(settings, share.layer_bytes, num_tokens):
        return
    needed = smallest_budget(settings, num_tokens)
    missing = (needed - share.layer_bytes) * share.num_layers / share.utilization
    least_gib = math.ceil(10 * (share.gpu_bytes + missing) / GIB) / 10
    raise ConfigError(
        f"organization {settings.organization.name} on device {device}: {share.layer_bytes:,} "
        f"bytes beside the weights do not hold one request of {num_tokens:,} tokens, which needs "
        f"{needed:,}: gpu_gib={least_gib:g} is the least that works"
    )


def smallest_budget(settings: MemoryConfig, num_tokens: int) -> int:
    """The least `budget.bytes` that holds one request of `num_tokens` tokens, prompt and output.

    A memory may fit where a slightly larger one does not, if pages are cut otherwise. Found within
    one part in a thousand.

    Raises:
        ValueError: the organization cannot carry the model.
    """
    _ = settings.layout
    low, high = 0, 1024**2
    while not _fits(settings, high, num_tokens):
        low, high = high, 2 * high
    while high - low > max(high // 1000, 1):
        middle = (low + high) // 2
        if _fits(settings, middle, num_tokens):
            high = middle
        else:
            low = middle
    return high


def _fits(settings: MemoryConfig, num_bytes: int, num_tokens: int) -> bool:
    try:
        memory = build_memory(settings, num_bytes)
    except ValueError:
        return False  # too small for the pools
    return memory.never_fits(num_tokens - 1) is None  # the last token is never computed


def _those_with(field: str) -> str:
    """Names of the devices that have a field."""
    return ", ".join(name for name in options("device") if read_option("device", name).get(field))


def _occupancy_of(device: DeviceConfig) -> Occupancy:
    """The device's own, or that of every GPU in `conf/device`."""
    found = device.occupancy or _parsed(_STANDARD).occupancy
    assert found is not None, f"conf/device/{_STANDARD}.yaml has it"
    return found


def _parsed(name: str) -> DeviceConfig:
    return DeviceConfig.parse(read_option("device", name), path=f"device.{name}")


def _larger(taken_gib: float) -> str:
    """The smallest device on which weights and activations leave something."""
    sizes: dict[str, float] = {}
    for name in options("device"):
        device = _parsed(name)
        if device.gpu_gib is not None and device.occupancy is not None:
            sizes[name] = device.gpu_gib * device.occupancy.utilization
    enough = [name for name in sizes if sizes[name] > taken_gib]
    if not enough:
        return "no device of conf/device is large enough for it"
    return f"the smallest that is large enough is device={min(enough, key=sizes.__getitem__)}"
