"""python -m hsexp.serve organization=s2 model=MODEL [budget_gib=4] [admission.headroom=0.19]
                      [retention=k2] [host=127.0.0.1] [port=8000] [api_key=KEY] [stage=plan]
                      [config_dir=DIR] [vLLM's own options]

Starts vLLM's OpenAI-compatible server with one of the memory organizations.

  model=NAME        a name or folder that vLLM can load, or an option of conf/model:
                    falcon_h1_mini is small, with seeded weights and no tokenizer
  organization=s2   an option of conf/organization; organization.block_size=256 changes a value
  budget_gib=4      state of all layers on one device; budget_bytes=N is that of one layer, as in
                    a campaign; neither: all that vLLM has (gpu_memory_utilization and the like)
  host=0.0.0.0      listens on every address of the machine; the default is 127.0.0.1, this machine
                    alone
  api_key=KEY       what clients must send; it goes to the environment at once, so that no list of
                    processes and no log shows it. VLLM_API_KEY does the same
  stage=plan        prints the pools and the same command for `vllm serve`, and starts nothing
  config_dir=DIR    a folder with options of your own, such as DIR/organization/NAME.yaml

Everything else goes to vLLM's server: max_model_len=8192 is --max-model-len 8192, and
enforce_eager=true is --enforce-eager. Defaults are in conf/serve.yaml.
"""

import hsexp.starting  # noqa: F401, I001

import importlib.util
import ipaddress
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.config.axes import MEMORY_AXES
from hsexp.config.base import ConfigError
from hsexp.config.catalog import (
    CONF,
    as_override,
    follow_config_dir,
    options,
    read_option,
    standing_options,
)
from hsexp.config.overrides import refuse_several_options
from hsexp.console import make_console
from hsexp.ending import end_well, print_error
from hsexp.engine.installed import plugin_fault
from hsexp.engine.settings import KEY, SCHEDULER, EngineSettings, ServingSettings
from hsexp.engine.targets import PatchError
from hsexp.memory.geometry import ModelConfig

_GROUPS = tuple(axis.name for axis in MEMORY_AXES)
_OURS = ("stage", *(name for name in ServingSettings.model_fields if name != "model"))
"""First parts of the names in conf/serve.yaml; all other names except `model`, `host` and `api_key`
are vLLM's."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One parsed command line."""

    stage: str
    model: str
    """A name or folder that vLLM can load, or an option of conf/model."""
    settings: dict[str, Any]
    """For `additional_config`, without values that equal conf/serve.yaml."""
    vllm_options: dict[str, str]
    host: str
    api_key: str | None = field(repr=False)
    """Never an argument of `vllm serve`, which logs them."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Command":
        """Read `key=value` arguments.

        Raises:
            ConfigError: names the argument.
        """
        ours, others = [], {}
        for argument in follow_config_dir(arguments):
            key, equals, value = argument.partition("=")
            if not equals or not key:
                raise ConfigError(f"arguments are key=value, got {argument!r}")
            if key in _GROUPS:
                read_option(key, value)
            if key.replace("-", "_") == "api_key":
                others["api_key"] = value
            elif key.split(".")[0] in _OURS:
                ours.append(argument)
            else:
                others[key] = value
        composed, defaults = _compose(ours), _compose([])
        if composed["organization"] is None:
            raise ConfigError("organization is required, such as organization=s2")
        if not others.get("model"):
            raise ConfigError("model is required, such as model=falcon_h1_mini")
        stage, host, api_key = (composed.pop(name) for name in ("stage", "host", "api_key"))
        if stage not in ("plan", "serve"):
            raise ConfigError(f"stage must be plan or serve, got {stage!r}")
        return cls(
            stage=stage,
            model=others.pop("model"),
            settings=_shortest(composed, defaults),
            host=others.pop("host", host),
            api_key=others.pop("api_key", api_key),
            vllm_options=others,
        )

    @property
    def is_open(self) -> bool:
        """Whether other machines may reach the server, and need no key."""
        has_key = bool(self.api_key or os.environ.get("VLLM_API_KEY"))
        return not (has_key or "uds" in self.vllm_options or _is_loopback(self.host))

    def serve_arguments(self) -> list[str]:
        """Arguments of `vllm serve`.

        Raises:
            ConfigError: seeded weights of the model's shape cannot be made.
        """
        model, implied = self.model, {}
        if model in options("model"):
            shape = ModelConfig.parse(read_option("model", model), path=f"model {model}")
            if shape.checkpoint is None:
                from hsexp.engine.full_width import config_folder, load_arguments
                from hsexp.engine.mini import seeded_weights

                width = shape.seeded_width
                implied = {"skip_tokenizer_init": "true", "served_model_name": model}
                implied |= load_arguments(None, width)
                model = str(seeded_weights(shape) if width is None else config_folder(shape, width))
            else:
                model = shape.checkpoint
        flags = ["--scheduler-cls", SCHEDULER]
        flags += ["--additional-config", json.dumps({KEY: self.settings})]
        for name, value in (implied | self.vllm_options | {"host": self.host}).items():
            flags += _flag(name, value)
        return [model, *flags]


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns the exit code."""
    return end_well(lambda: _run(arguments), ConfigError, PatchError)


def _run(arguments: Sequence[str]) -> int:
    if not arguments or "--help" in arguments:
        make_console().print((__doc__ or "").strip(), markup=False)
        return 0
    command = Command.parse(arguments)
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vllm is not installed here: make setup-cpu, or make setup-gpu on a CUDA machine"
        )
    fault = plugin_fault()
    if fault is not None:
        raise ConfigError(fault)
    if command.stage == "plan":
        _print_plan(command.serve_arguments())
        return 0
    if command.api_key is not None:
        _hide(command.api_key)
    if command.is_open:
        print_error(
            f"warning: {command.host} is open to other machines, and nobody needs a key: "
            "give api_key=KEY or VLLM_API_KEY, or leave out host"
        )
    _serve(command.serve_arguments())
    return 0


def _compose(overrides: list[str]) -> dict[str, Any]:
    """conf/serve.yaml with overrides, as plain data."""
    try:
        refuse_several_options(overrides)
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = compose("serve", [*overrides, *as_override()])
        data: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(str(error).strip()) from None
    return dict(data)


def _shortest(composed: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ from the defaults; an option that stands so in `conf` by its name."""
    settings = {name: value for name, value in composed.items() if value != defaults[name]}
    for group in _GROUPS:
        chosen = settings.get(group)
        if (
            chosen is not None
            and chosen["name"] in standing_options(group)
            and chosen == read_option(group, chosen["name"])
        ):
            settings[group] = chosen["name"]
    return settings


def _flag(name: str, value: str) -> list[str]:
    dashed = name.replace("_", "-")
    if value.lower() in ("true", "false"):
        return [f"--{dashed}" if value.lower() == "true" else f"--no-{dashed}"]
    return [f"--{dashed}", value]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hide(api_key: str) -> None:
    """Start this program again with the key in its environment instead of its arguments."""
    os.environ["VLLM_API_KEY"] = api_key
    kept = [
        argument
        for argument in sys.orig_argv[1:]
        if argument.partition("=")[0].replace("-", "_") != "api_key"
    ]
    os.execv(sys.executable, [sys.executable, *kept])


def _serve(arguments: list[str]) -> None:
    """vLLM's `serve` in this process; it returns when the server has shut down."""
    from hsexp.engine.cli import serve

    serve(arguments)


def _print_plan(arguments: list[str]) -> None:
    from hsexp.engine.cli import settings_for

    console = make_console()
    _print_pools(settings_for(arguments), console)
    console.print("\nvllm serve " + shlex.join(arguments), markup=False)


def _print_pools(settings: EngineSettings, console: Console) -> None:
    layout, model = settings.layout, settings.model
    layers = f"{model.num_attention_layers} layers"
    if model.composites_per_checkpoint > 1:
        layers = f"{layers} of attention with {model.composites_per_checkpoint} recurrent ones each"
    if model.num_missing_layers:
        layers = f"{layers}, lacking {model.num_missing_layers}"
    console.print(
        f"{settings.organization.name} for {model.name}: {layers}, "
        f"{layout.block_size}-token blocks, a checkpoint every {layout.checkpoint_grid} tokens"
    )
    if settings.budget_bytes is None:
        console.print("pools: as large as vLLM's memory allows; vLLM decides when it starts")
        return
    memory = settings.memory()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("pool")
    for column in ("pages", "kept free", "page bytes", "bytes a layer", "bytes"):
        table.add_column(column, justify="right")
    for pool, headroom, num_bytes in zip(
        memory.cache.pools, memory.admission.headroom_pages, settings.pool_bytes, strict=True
    ):
        spec = pool.spec
        numbers = (spec.num_pages, headroom, spec.page_bytes, spec.total_bytes, num_bytes)
        table.add_row(spec.name, *(f"{number:,}" for number in numbers))
    console.print(table)
    console.print(
        f"a single request takes {_pages(settings, model.max_model_tokens)} at "
        f"{model.max_model_tokens:,} tokens"
    )


def _pages(settings: EngineSettings, num_tokens: int) -> str:
    memory = settings.memory()
    needs = memory.max_need(num_tokens - 1)
    return ", ".join(
        f"{need} of {pool.spec.num_usable} {pool.spec.name} pages"
        for pool, need in zip(memory.cache.pools, needs, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
