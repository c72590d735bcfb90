"""An engine's own report: the organization that really runs, read where it runs.

    workers -> ask_workers -> scheduler -> make_report -> ready message -> front end

Workers are asked once they have their pages, and the scheduler adds what it runs. The engine core
logs the report and sends it to its front ends with its ready message. `engine_report` reads it
there, and /metrics has it as the labels of `hsexp:engine_info`.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreReadyResponse

from hsexp.config.base import Config, ConfigError
from hsexp.engine.settings import EngineSettings, label_text
from hsexp.engine.targets import VLLM_VERSION, PatchError, require_active

logger = init_logger(f"vllm.{__name__}")

_PACKAGE = Path(__file__).parents[1]
_KEPT, _WORKERS = "hsexp_reports", "hsexp_workers"
"""Attributes of vLLM's configuration object that hold the reports of its process."""


class PoolReport(Config):
    """One pool of the scheduler."""

    name: str
    num_pages: int
    """The null page included."""
    page_bytes: int
    """Bytes of a page in one layer."""
    headroom_pages: int
    """Pages kept free at admission, the organization's reserve included."""


class WorkerReport(Config):
    """What a worker has allocated and runs."""

    kernels: str
    """Implementation of the recurrent layers' state access."""
    kv_dtype: str
    conv_dtype: str
    ssm_dtype: str
    state_bytes: int
    """Bytes of all state buffers."""
    plugin: str


class EngineReport(Config):
    """One engine core with its workers."""

    settings: EngineSettings
    """The settings that were asked for, with the budget that was found."""
    scheduler: str
    block_size: int
    """Tokens of an attention block."""
    checkpoint_grid: int
    """Tokens between checkpoints."""
    pools: tuple[PoolReport, ...]
    max_running: int
    """Most running requests."""
    max_model_len: int
    max_num_batched_tokens: int
    """Most tokens of a step."""
    async_scheduling: bool
    num_workers: int
    worker: WorkerReport
    """Equal for all workers."""
    plugin: str
    """Digest of the source of the plugin and the memory core."""
    vllm: str

    def labels(self) -> dict[str, str]:
        """The report as flat text, for `hsexp:engine_info`."""
        settings, worker = self.settings, self.worker
        values: dict[str, Any] = settings.labels | {
            "num_layers": settings.model.num_attention_layers,
            "budget_bytes": settings.budget_bytes,
            "block_size": self.block_size,
            "checkpoint_grid": self.checkpoint_grid,
            "pools": _joined(self.pools, "num_pages"),
            "page_bytes": _joined(self.pools, "page_bytes"),
            "headroom_pages": _joined(self.pools, "headroom_pages"),
            "cap": self.max_running,
            "max_leaves": settings.max_leaves,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "async_scheduling": self.async_scheduling,
            "num_workers": self.num_workers,
            "state_bytes": worker.state_bytes,
            "kernels": worker.kernels,
            "kv_dtype": worker.kv_dtype,
            "conv_dtype": worker.conv_dtype,
            "ssm_dtype": worker.ssm_dtype,
            "scheduler": self.scheduler,
            "plugin": self.plugin,
            "vllm": self.vllm,
        }
        return {name: label_text(value) for name, value in values.items()}

    def __str__(self) -> str:
        """One block for a log."""
        return "\n".join(f"  {name}: {value}" for name, value in self.labels().items())


def engine_report(engine: Any) -> EngineReport:
    """The report of a running engine.

    Args:
        engine: vLLM's `LLM`, `LLMEngine` or `AsyncLLM`, the engine core in its own process or not.

    Raises:
        ConfigError: it runs without an organization.
    """
    engine = getattr(engine, "llm_engine", engine)
    reports = kept_reports(engine.vllm_config)
    if not reports:
        raise ConfigError("this engine runs without an hsexp organization")
    return next(iter(reports.values()))


def ask_workers(executor: Any, vllm_config: VllmConfig) -> None:
    """Ask the workers of an engine core what they run, and keep the answers for the scheduler.

    Raises:
        PatchError, ConfigError: as in `keep_workers`, or a worker runs without the plugin.
    """
    answers = executor.collective_rpc(_describe_worker)
    keep_workers(vllm_config, [WorkerReport.parse(answer) for answer in answers])


def keep_workers(vllm_config: VllmConfig, workers: list[WorkerReport]) -> None:
    """Keep the answers of an engine core's workers for its scheduler.

    Raises:
        PatchError: a worker runs another plugin.
        ConfigError: a worker has not allocated the planned bytes, or differs from the others.
    """
    _require_equal_workers(workers, EngineSettings.of(vllm_config.additional_config))
    vars(vllm_config)[_WORKERS] = workers


def make_report(scheduler: Any) -> None:
    """Report a new scheduler to the log and keep it for the front ends.

    A scheduler outside of an engine core has no workers, and nothing to report.
    """
    config, settings = scheduler.vllm_config, scheduler.settings
    workers = vars(config).get(_WORKERS)
    if workers is None:
        return
    memory = scheduler.kv_cache_manager.memory
    report = EngineReport(
        settings=settings,
        scheduler=type(scheduler).__name__,
        block_size=memory.block_size,
        checkpoint_grid=memory.checkpoint_grid,
        pools=tuple(
            PoolReport(
                name=pool.spec.name,
                num_pages=pool.spec.num_pages,
                page_bytes=pool.spec.page_bytes,
                headroom_pages=headroom,
            )
            for pool, headroom in zip(
                memory.cache.pools, memory.admission.headroom_pages, strict=True
            )
        ),
        max_running=scheduler.max_num_running_reqs,
        max_model_len=scheduler.max_model_len,
        max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        async_scheduling=bool(config.scheduler_config.async_scheduling),
        num_workers=len(workers),
        worker=workers[0],
        plugin=plugin_digest(),
        vllm=VLLM_VERSION,
    )
    logger.info("hsexp organization %s is active:\n%s", settings.organization.name, report)
    if report.max_model_len - 1 <= report.checkpoint_grid:
        logger.warning(
            "max_model_len %d: no prompt reaches beyond the first checkpoint (%d tokens), so none "
            "will ever be answered from the cache",
            report.max_model_len,
            report.checkpoint_grid,
        )
    keep_report(config, 0, report)


def keep_report(vllm_config: VllmConfig, engine_index: int, report: EngineReport) -> None:
    """Keep an engine core's report beside the configuration of this process."""
    vars(vllm_config).setdefault(_KEPT, {})[engine_index] = report


def kept_reports(vllm_config: VllmConfig) -> dict[int, EngineReport]:
    """Reports by engine index; empty without an organization."""
    reports: dict[int, EngineReport] = vars(vllm_config).get(_KEPT, {})
    return reports


@dataclass
class ReportedReadyResponse(EngineCoreReadyResponse):
    """vLLM's message that an engine core is ready, with its report."""

    hsexp_report: dict[str, Any] | None = None


def with_report(response: EngineCoreReadyResponse, report: EngineReport) -> ReportedReadyResponse:
    """The message that a front end gets."""
    return ReportedReadyResponse(**vars(response), hsexp_report=report.model_dump(mode="json"))


def keep_received(vllm_config: VllmConfig, payload: bytes) -> None:
    """Keep the report of a received message.

    Raises:
        PatchError: there is none: the engine core does not run the plugin.
    """
    response = msgspec.msgpack.decode(payload, type=ReportedReadyResponse)
    if response.hsexp_report is None:
        raise PatchError("the engine core runs without the hsexp plugin, and settings ask for it")
    report = EngineReport.parse(response.hsexp_report)
    keep_report(vllm_config, response.data_parallel_rank, report)


@cache
def plugin_digest() -> str:
    """16 hex digits that change with the source of the plugin and the memory core."""
    sha = hashlib.sha256()
    for part in ("engine", "memory"):
        for path in sorted((_PACKAGE / part).rglob("*.py")):
            sha.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


def _describe_worker(worker: Any) -> dict[str, Any]:
    """Describe a worker's buffers; runs in its process."""
    from hsexp.engine import paged

    require_active()
    runner = worker.model_runner
    layers = runner.compilation_config.static_forward_context.values()
    caches = [layer.kv_cache for layer in layers if hasattr(layer, "kv_cache")]
    conv, ssm = next(cache for cache in caches if isinstance(cache, tuple | list))
    kv = next(cache for cache in caches if not isinstance(cache, tuple | list))
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in _flat(caches)}
    table = paged.table()
    return WorkerReport(
        kernels="stock" if table is None else table.ops.name,
        kv_dtype=_dtype(kv),
        conv_dtype=_dtype(conv),
        ssm_dtype=_dtype(ssm),
        state_bytes=sum(tensor.untyped_storage().nbytes() for tensor in storages.values()),
        plugin=plugin_digest(),
    ).model_dump()


def _require_equal_workers(workers: list[WorkerReport], settings: EngineSettings) -> None:
    planned = settings.state_bytes
    for rank, worker in enumerate(workers):
        if worker.plugin != plugin_digest():
            raise PatchError(
                f"worker {rank} runs plugin source {worker.plugin}, "
                f"the engine core {plugin_digest()}"
            )
        if worker.state_bytes != planned:
            raise ConfigError(
                f"worker {rank} has allocated {worker.state_bytes:,} bytes of state; "
                f"{planned:,} were planned"
            )
        if worker != workers[0]:
            raise ConfigError(f"worker {rank} differs from worker 0: {worker}; {workers[0]}")


def _flat(caches: list[Any]) -> list[Any]:
    return [
        tensor
        for cache in caches
        for tensor in (cache if isinstance(cache, tuple | list) else (cache,))
    ]


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _joined(pools: tuple[PoolReport, ...], field: str) -> str:
    return ",".join(f"{pool.name}={getattr(pool, field)}" for pool in pools)
