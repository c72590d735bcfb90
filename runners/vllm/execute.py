"""One cell on a fresh engine: boot, read back, warm up, load, shut down, record."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hsexp.config.engine import LimitsConfig
from hsexp.ledger import EngineFacts
from hsexp.measure.metrics import summarize
from hsexp.plan.cells import Cell
from hsexp.plan.run import VllmRunConfig
from hsexp.workload import Request, Workload
from runners.sim import add_depths, workload_of
from runners.trial import Outcome
from runners.vllm.command import (
    SERVER,
    engine_arguments,
    environment_of,
    server_flags,
)
from runners.vllm.engine_record import read_engine_record
from runners.vllm.facts import observed_facts
from runners.vllm.faults import RequestRefused, tail
from runners.vllm.load import Engine, Load
from runners.vllm.observed import Streams
from runners.vllm.readback import require_knobs
from runners.vllm.record import put_together
from runners.vllm.tokens import output_token, prompt_tokens, warmup_prompts
from runners.vllm.trace import collect_trace
from runners.vllm.weights import Weights, weights_of

_RAW = ("engine.jsonl", "trace.arrow", "events.jsonl", "engine.json", "load.json")
"""Files of an attempt that are deleted after a good run: the ledger's tables have their content."""


def execute(
    cell: Cell, *, logs: Path, limits: LimitsConfig, program: Sequence[str] = SERVER
) -> Outcome:
    """Run a cell to the end.

    Args:
        logs: folder below which every attempt keeps its own logs.
        program: the server to start; takes vLLM's flags.

    Raises:
        RunFault: the run gives no numbers; the last lines of its log are among the notes.
        ConfigError: the cell's configuration is refused.
    """
    config = VllmRunConfig.parse(cell.config)
    workload, digest = workload_of(config)
    refused = refusals(config, workload)
    weights = weights_of(config)
    load = load_of(config, workload, refused, weights.vocabulary, limits)
    folder = _attempt_folder(logs, cell)
    log = folder / "server.log"
    environment = environment_of(config)
    try:
        engine = open_engine(config, weights, folder, log, limits, program)
        with engine:
            report = engine.report
            require_knobs(config, report)
            measured = engine.run(load)
            engine.end(limits.shutdown_s)
        record = put_together(
            workload,
            refused,
            load.streams,
            measured,
            read_engine_record(folder / "engine.jsonl", measured.episode),
        )
        if config.trace:
            trace = folder / "trace.arrow"
            record.trace = collect_trace(trace, load.streams, measured.episode)
            add_depths(record)
    except Exception as error:
        error.add_note("\n".join([f"logs: {folder.name}; the last lines:", *tail(log)]))
        raise
    measured.samples.to_csv(folder / "poller.csv", index=False)
    for name in _RAW:
        (folder / name).unlink(missing_ok=True)
    return Outcome(
        metrics=summarize(record),
        requests=record.requests,
        steps=record.steps,
        trace=record.trace,
        engine=EngineFacts(
            engine="vllm",
            device=config.device.name,
            time_model="wall clock",
            data_kind="measured",
            observed=observed_facts(
                config,
                weights,
                report=report,
                environment=environment,
                log=f"{logs.name}/{folder.name}",
            ),
        ),
        workload_digest=digest,
    )


def open_engine(
    config: VllmRunConfig,
    weights: Weights,
    folder: Path,
    log: Path,
    limits: LimitsConfig,
    program: Sequence[str],
) -> Engine:
    """The engine of the cell's transport, not started yet."""
    arguments = engine_arguments(
        config, record=folder / "engine.jsonl", trace=folder / "trace.arrow"
    )
    environment = environment_of(config)
    if config.transport == "inproc":
        from runners.vllm.inproc import InprocEngine

        return InprocEngine(
            {"model": str(weights.folder), **arguments},
            folder=folder,
            environment=environment,
            limits=limits,
            log=log,
        )
    from runners.vllm.server import HttpEngine

    def command(port: int) -> list[str]:
        flags = server_flags(arguments, model=weights.folder, port=port, grace_s=limits.shutdown_s)
        return [*program, *flags]

    return HttpEngine(command, environment=environment, limits=limits, log=log)


def refusals(config: VllmRunConfig, workload: Workload) -> dict[int, str]:
    """Requests that can never be served, by the rules of the simulator: they are not sent."""
    memory, limit = config.memory(), config.model.max_model_tokens
    refused = {}
    for request in workload.requests:
        num_tokens = request.prompt_tokens + request.output_tokens
        reason = (
            f"{num_tokens} tokens exceed the model's {limit}"
            if num_tokens > limit
            else memory.never_fits(num_tokens - 1)
        )
        if reason is not None:
            refused[request.request_id] = reason
    return refused


def load_of(
    config: VllmRunConfig,
    workload: Workload,
    refused: dict[int, str],
    vocabulary: int,
    limits: LimitsConfig,
) -> Load:
    """The workload as token ids, and the warm-up before it."""
    requests = [r for r in _behind_sent(workload, refused) if r.request_id not in refused]
    if not requests:
        raise RequestRefused(f"no request can be served: {next(iter(refused.values()))}")
    median = statistics.median_low(r.prompt_tokens for r in requests)
    return Load(
        streams=Streams(requests, [output_token(request, vocabulary) for request in requests]),
        prompts=[prompt_tokens(request, vocabulary) for request in requests],
        warmup=warmup_prompts(config.num_warmup_requests, median, vocabulary),
        max_retries=config.max_retries,
        limits=limits,
    )


def _behind_sent(workload: Workload, refused: Collection[int]) -> list[Request]:
    """The requests, with none that waits for one that is not sent: it waits for the turn before
    that one instead, or arrives at its earliest time."""
    found: list[Request] = []
    for request in workload.requests:
        if request.after is not None and request.after in refused:
            before = found[request.after]
            request = replace(
                request,
                after=before.after,
                think_s=0.0 if before.after is None else before.think_s + request.think_s,
            )
        found.append(request)
    return found


def _attempt_folder(logs: Path, cell: Cell) -> Path:
    """A new folder, named after the cell and the time."""
    folder = logs / f"{cell.cell_id}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    folder.mkdir(parents=True)
    return folder
