"""The `vllm serve` command that starts an arm of a ledger, from what the ledger's names mean."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsexp.config.arm import Arm
from hsexp.config.axes import MEMORY_AXES
from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import options, read_option, standing_options
from hsexp.engine.settings import KEY, SCHEDULER, ServingSettings, serving_defaults
from hsexp.memory.geometry import AnyModel, ModelShape
from hsexp.memory.organizations.base import OrganizationSettings

_ENGINE_OF_DEVICE = ("release_order",)
"""Fields of an organization that a device's fit sets to match another engine; ours has its own."""


@dataclass(frozen=True, kw_only=True)
class ServeLine:
    """A command, or why there is none."""

    command: str
    refusal: str | None
    """Why the plugin refuses it; None if it starts."""


def serve_line(contract: Mapping[str, Any], arm: Arm, *, budget_bytes: int, cap: int) -> ServeLine:
    """The command of an arm.

    Args:
        contract: of the ledger.
        budget_bytes: state of one attention layer with its recurrent layers.
        cap: most running requests.
    """
    model: ModelShape = parse_union(AnyModel, contract["model"], path="model")
    settings: dict[str, Any] = {}
    defaults = serving_defaults()
    for axis in MEMORY_AXES:
        name = str(getattr(arm, axis.name))
        meaning = contract["options"].get(axis.name, {}).get(name)
        written = name if _stands(axis.name, name, axis.options, meaning, model) else meaning
        if written != defaults[axis.name]:
            settings[axis.name] = written
    settings["budget_bytes"] = budget_bytes
    if arm.headroom:
        settings["admission"] = {"headroom": arm.headroom}
    refusal = _refusal(settings, model, cap)
    if refusal is not None:
        without = settings | {"max_leaves": 0}
        if _refusal(without, model, cap) is None:
            settings, refusal = without, None
    flags = {
        "--scheduler-cls": SCHEDULER,
        "--additional-config": json.dumps({KEY: settings}),
        "--max-model-len": str(model.max_model_tokens),
        "--max-num-seqs": str(cap),
        "--max-num-batched-tokens": str(contract["scheduler"]["token_budget"]),
    }
    words = ["vllm", "serve", _weights(model.name)]
    for flag, value in flags.items():
        words += [flag, value]
    return ServeLine(command=shlex.join(words), refusal=refusal)


def _stands(
    group: str, name: str, kind: Any, meaning: Mapping[str, Any] | None, model: ModelShape
) -> bool:
    """Whether an option means in the ledger what it means in `conf`."""
    if meaning is None:
        return True
    if name not in standing_options(group):
        return False
    standing = parse_union(kind, read_option(group, name), path=f"{group}.{name}")
    if isinstance(standing, OrganizationSettings):
        standing = standing.fitted(model)
    return _own(standing.model_dump(mode="json")) == _own(meaning)


def _own(option: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in option.items() if name not in _ENGINE_OF_DEVICE}


def _refusal(settings: Mapping[str, Any], model: ModelShape, cap: int) -> str | None:
    """Why the plugin refuses the settings for the model; None if it takes them."""
    try:
        ServingSettings.of(settings).resolve(model, cap=cap)
    except (ConfigError, ValueError) as error:
        return str(error)
    return None


def _weights(model: str) -> str:
    """What vLLM loads: the weights that `conf/model` names, else the model's own name."""
    if model not in options("model"):
        return model
    return str(read_option("model", model).get("checkpoint") or model)
