"""python -m hsexp probe device=NAME [hardware=cpu] [model=MODEL] [budget_bytes=N]
                   [ledger=DIR] [out=FILE] [overwrite=true]

Times steps of the real engine that is there and writes a device file with their cost: base, decode
token, prefill token, what paged kernels add, and a token of context where the steps can tell it.

  device=NAME       name of the new device; `conf-local/device/NAME.yaml`, or out=FILE
  hardware=cpu      option of conf/device whose hardware runs the engine: cpu, or a GPU
  model=MODEL       option of conf/model, or a folder with config.json and weights
  budget_bytes=N    state of one attention layer with its recurrent ones
  ledger=DIR        where the runs go; the default is ledgers/probe-NAME

The grid of batches, prompts and outputs is in conf/probe.yaml. The engine runs it once under
contiguous and once under paged kernels, which takes two minutes on two CPU cores.
"""

import hsexp.starting  # noqa: F401, I001

import csv
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, PositiveFloat, PositiveInt

from hsexp.shadows import guard

guard("analysis")

from analysis.__main__ import print_and_write
from analysis.calibration.command import calibrate
from analysis.calibration.device_file import default_path, how_to_use
from analysis.command import LEDGERS, parse_pairs, run
from analysis.errors import AnalysisError
from hsexp.config.base import Config
from hsexp.config.catalog import CONF, as_override, path_of
from hsexp.config.fields import Name
from hsexp.console import make_console
from hsexp.models.naming import is_config

_KEYS = ("device", "hardware", "model", "budget_bytes", "ledger", "out", "overwrite")

Counts = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class ProbeConfig(Config):
    """The grid, and where it runs."""

    batches: Counts
    prompt_tokens: Counts
    output_tokens: PositiveInt
    gap_s: PositiveFloat
    model: str
    hardware: Name
    organizations: Annotated[tuple[Name, ...], Field(min_length=1)]
    budget_bytes: PositiveInt

    def requests(self) -> Iterator[tuple[float, int, int]]:
        """Arrival, prompt and output tokens of each request."""
        burst = 0
        for prompt_tokens in self.prompt_tokens:
            for batch in self.batches:
                for _ in range(batch):
                    yield burst * self.gap_s, prompt_tokens, self.output_tokens
                burst += 1


def main(arguments: Sequence[str]) -> None:
    """Run the grid, fit the steps, write the device.

    Raises:
        AnalysisError: an argument is refused, or the engine did not run the grid.
        ConfigError: there is no such model or device.
    """
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return
    given = parse_pairs(arguments, keys=_KEYS)
    if "device" not in given:
        raise AnalysisError("probe needs device=, the name of the device to write")
    name = given["device"]
    out = Path(given["out"]) if "out" in given else default_path(name)
    if out.exists() and given.get("overwrite") != "true":
        raise AnalysisError(f"{out} exists; overwrite=true replaces it, out= names another file")
    config = _config(
        {key: given[key] for key in ("hardware", "model", "budget_bytes") if key in given}
    )
    ledger = Path(given.get("ledger", LEDGERS / f"probe-{name}"))
    _run_grid(config, ledger)
    wanted = [f"ledger={ledger}", f"device={name}", f"out={out}", "context=true", "errors=relative"]
    tables, folder, _ = calibrate([*wanted, f"overwrite={given.get('overwrite', 'false')}"])
    print_and_write(tables, folder, console)
    console.print(f"device written: {out}", markup=False)
    console.print(f"to use it: {how_to_use(out)}", markup=False)


def _config(given: dict[str, Any]) -> ProbeConfig:
    standing = yaml.safe_load((CONF / "probe.yaml").read_text(encoding="utf-8"))
    config = ProbeConfig.parse(standing | given, path="probe")
    _ = path_of("device", config.hardware)
    if not is_config(config.model):
        _ = path_of("model", config.model)
    return config


def _run_grid(config: ProbeConfig, ledger: Path) -> None:
    """Run the grid on the engine, as a launch of its own; what ran before is not run again.

    Raises:
        AnalysisError: the launch failed; it has printed why.
    """
    overrides = launch_of(config, ledger)
    done = subprocess.run([sys.executable, "-m", "hsexp", *overrides], check=False)
    if done.returncode != 0:
        raise AnalysisError(f"the engine did not run the grid (exit code {done.returncode})")


def launch_of(config: ProbeConfig, ledger: Path) -> list[str]:
    """Write the grid beside the runs; what `python -m hsexp` is given to run it."""
    ledger.mkdir(parents=True, exist_ok=True)
    path = ledger / "grid.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("arrival_s", "input_tokens", "output_tokens"))
        table.writerows(config.requests())
    longest = max(config.prompt_tokens) + config.output_tokens
    return [
        "campaign=trace",
        "stage=run",
        "engine=vllm",
        "engine.transport=inproc",
        f"device={config.hardware}",
        f"model={config.model}",
        f"model.max_model_tokens={longest}",
        "~scale",
        f"workload.path={path.absolute()}",
        "budget=bytes",
        f"budget.bytes={config.budget_bytes}",
        f"campaign.blocks.replay.organization=[{','.join(config.organizations)}]",
        f"admission.cap={max(config.batches)}",
        "trace=true",
        "record_steps=true",
        f"ledger={ledger.absolute()}",
        *as_override(),
    ]


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
