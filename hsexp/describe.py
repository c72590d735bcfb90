"""python -m hsexp trace=FILE [workload.SETTING=VALUE ...] [model=MODEL] [organization=s2]
                [json=true] [config_dir=DIR]

Says what is in a request trace, and runs nothing: lengths, rates, burstiness, sessions, what an
unlimited prefix cache would reuse, and the memory of that for a model in each organization.

  workload.speed=2      settings of conf/workload/trace.yaml: format, columns, window, sampling
  model=MODEL           an option of conf/model, or the config.json of a model
  organization=s2       this organization alone
  json=true             the same as JSON

docs/request_traces.md lists the formats.
"""

import hsexp.starting  # noqa: F401, I001

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich import box
from rich.console import Console
from rich.table import Table

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, as_override, follow_config_dir, read_option
from hsexp.config.launch import parse_launch
from hsexp.config.overrides import refuse_several_options
from hsexp.console import make_console
from hsexp.described import KEY
from hsexp.ending import end_well
from hsexp.labs.working_set import WorkingSet, working_sets
from hsexp.memory import MemoryConfig
from hsexp.memory.geometry import ModelShape
from hsexp.memory.organizations import OrganizationConfig
from hsexp.models.option import with_options
from hsexp.config.base import parse_union
from hsexp.plan.resolve import memory_for
from hsexp.workload.traces import read_trace
from hsexp.models.naming import is_config
from hsexp.workload.traces.config import TraceWorkload
from hsexp.workload.traces.records import nearest
from hsexp.workload.traces.statistics import PEAK_S, Spread, TraceStatistics

_SETTINGS = ("workload", "model", "organization")
"""Groups of a launch whose settings mean something here."""
_ORGANIZATIONS = ("s0", "s1", "s2", "s3", "d0")
_GIB = 2**30


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns the exit code."""
    return end_well(lambda: _run(arguments), ConfigError)


def _run(arguments: Sequence[str]) -> int:
    console = make_console()
    if not arguments or "--help" in arguments:
        console.print((__doc__ or "").strip(), markup=False)
        return 0
    asked = _Asked.parse(arguments)
    statistics = TraceStatistics.of(read_trace(asked.workload))
    sets = working_sets(statistics.sharing, asked.memories)
    if asked.as_json:
        console.print(json.dumps(_plain(statistics, asked.model, sets), indent=2), markup=False)
    else:
        _print(statistics, asked.model, sets, console)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """One parsed command line."""

    workload: TraceWorkload
    model: ModelShape
    memories: list[MemoryConfig]
    as_json: bool

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "_Asked":
        """
        Raises:
            ConfigError: names the argument.
        """
        path, as_json, others = None, False, []
        for argument in follow_config_dir(arguments):
            key, equals, value = argument.partition("=")
            if not equals:
                raise ConfigError(f"arguments are key=value, got {argument!r}")
            if key == KEY:
                path = value
            elif key == "json":
                if value.lower() not in ("true", "false"):
                    raise ConfigError(f"json must be true or false, got {value!r}")
                as_json = value.lower() == "true"
            elif key.partition(".")[0] in _SETTINGS and key != "workload.path":
                _require_known(key, value)
                others.append(argument)
            else:
                raise ConfigError(
                    f"{argument} means nothing to trace=FILE, which runs nothing; it takes "
                    "workload.SETTING=, model=, organization=, config_dir= and json="
                )
        if not path:
            raise ConfigError("trace is required, such as trace=requests.csv")
        composed = _compose(with_options([*others, *as_override()]))
        workload = TraceWorkload.parse(composed.pop("workload") | {"path": path}, path="workload")
        launch = parse_launch(composed | {"workload": {}})
        chosen = launch.organization
        organizations = [chosen] if chosen else [_standing(name) for name in _ORGANIZATIONS]
        return cls(
            workload=workload,
            model=launch.model,
            memories=[memory_for(organization, launch.model) for organization in organizations],
            as_json=as_json,
        )


def _require_known(key: str, value: str) -> None:
    """
    Raises:
        ConfigError: there is no such setting of a trace, or no such option.
    """
    group, _, setting = key.partition(".")
    name = setting.partition(".")[0]
    if group == "workload" and name not in TraceWorkload.model_fields:
        raise ConfigError(
            f"{key} is not a setting of a trace{nearest(name, TraceWorkload.model_fields)}"
        )
    if not setting and not (group == "model" and is_config(value)):
        read_option(group, value)


def _standing(name: str) -> OrganizationConfig:
    option: OrganizationConfig = parse_union(
        OrganizationConfig, read_option("organization", name), path=f"organization {name}"
    )
    return option


def _compose(overrides: list[str]) -> dict[str, Any]:
    """The configuration of a launch that serves a trace, as plain data."""
    try:
        refuse_several_options(overrides)
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = compose("config", ["workload=trace", "workload.path=FILE", *overrides])
        data: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(str(error).strip().partition("\n")[0]) from None
    return dict(data)


# -- what is said ----------------------------------------------------------------------------------


def _plain(
    statistics: TraceStatistics, model: ModelShape, sets: list[WorkingSet]
) -> dict[str, Any]:
    """The statistics as plain data."""
    sharing, load, sessions = statistics.sharing, statistics.load, statistics.sessions
    depth = sharing.depth
    return {
        "path": str(statistics.path),
        "format": statistics.format,
        "num_requests": statistics.num_requests,
        "left_out": dict(statistics.dropped),
        "prompt_tokens": asdict(statistics.prompt_tokens),
        "output_tokens": asdict(statistics.output_tokens),
        "load": None if load is None else asdict(load),
        "sessions": None if sessions is None else asdict(sessions),
        "sharing": {
            "reused_fraction": sharing.fraction(),
            "num_reusing": sharing.num_reusing,
            "depth_tokens": None if depth is None else asdict(depth),
        },
        "model": {
            "name": model.name,
            "max_model_tokens": model.max_model_tokens,
            "num_too_long": _num_too_long(statistics, model),
        },
        "working_sets": [asdict(each) for each in sets],
    }


def _num_too_long(statistics: TraceStatistics, model: ModelShape) -> int:
    return int((statistics.total_tokens > model.max_model_tokens).sum())


def _print(
    statistics: TraceStatistics, model: ModelShape, sets: list[WorkingSet], console: Console
) -> None:
    for line in _lines(statistics, model):
        console.print(line, markup=False)
    spreads = {"prompt tokens": statistics.prompt_tokens, "output tokens": statistics.output_tokens}
    if (depth := statistics.sharing.depth) is not None:
        spreads["reused tokens, where any are"] = depth
    if (sessions := statistics.sessions) is not None:
        spreads["turns of a session"] = sessions.turns
        if sessions.pause_s is not None:
            spreads["seconds between turns"] = sessions.pause_s
    console.print(_spreads(spreads))
    console.print(_working_sets(model, sets))


def _lines(statistics: TraceStatistics, model: ModelShape) -> list[str]:
    load, sharing = statistics.load, statistics.sharing
    count = statistics.num_requests
    lines = [f"{statistics.path}: {statistics.format}, {count:,} requests"]
    if statistics.dropped:
        counts = ", ".join(f"{number:,} {why}" for why, number in statistics.dropped.items())
        lines.append(f"left out: {counts}")
    if load is None:
        lines.append("no times: arrivals.rate_per_s draws them")
    elif load.rate_per_s is None:
        lines.append("all requests arrive at once")
    else:
        lines.append(
            f"{load.duration_s:,.1f} s: {load.rate_per_s:.3g} requests/s, at most "
            f"{load.peak_per_s:.3g} over {PEAK_S:g} s; {load.prompt_tokens_per_s:,.0f} prompt and "
            f"{load.output_tokens_per_s:,.0f} output tokens/s"
        )
        if load.gap_cv is not None:
            lines.append(f"gaps: coefficient of variation {load.gap_cv:.2f} (Poisson has 1)")
    if statistics.sessions is not None:
        lines.append(f"{statistics.sessions.num_sessions:,} sessions")
    lines.append(
        f"an unlimited prefix cache reuses {sharing.fraction():.1%} of the prompt tokens, in "
        f"{sharing.num_reusing:,} requests ({sharing.num_reusing / count:.1%})"
    )
    if (too_long := _num_too_long(statistics, model)) > 0:
        lines.append(
            f"longer than the {model.max_model_tokens:,} tokens of {model.name}, and would be "
            f"refused (model.max_model_tokens): {too_long:,}"
        )
    return lines


def _spreads(spreads: dict[str, Spread]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    columns = ("mean", "p50", "p90", "p99", "max")
    for column in columns:
        table.add_column(column, justify="right")
    for name, spread in spreads.items():
        table.add_row(name, *(_short(getattr(spread, column)) for column in columns))
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _working_sets(model: ModelShape, sets: list[WorkingSet]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"working set of {model.name}, all layers")
    for column in (
        "organization",
        "block",
        "checkpoint every",
        "reused",
        "GiB of that",
        "GiB of all",
    ):
        table.add_column(column, justify="left" if column == "organization" else "right")
    for each in sets:
        table.add_row(
            each.organization,
            f"{each.block_tokens:,}",
            f"{each.checkpoint_grid:,}",
            f"{each.reused_fraction:.1%}",
            f"{each.reused_bytes / _GIB:,.2f}",
            f"{each.all_bytes / _GIB:,.1f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
