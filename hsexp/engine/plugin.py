"""The `vllm.general_plugins` entry point: active in every process that vLLM starts.

Without `additional_config={"hsexp": ...}` every replaced function does what it did before. With or
without, the engine cores and workers that vLLM starts end when the process that started them ends.
"""

import math
import multiprocessing
from collections.abc import Callable
from typing import Any

_STARTED_BY_VLLM = ("EngineCore", "VllmWorker", "ApiServer")
"""How the names of vLLM's own processes begin."""


def register() -> None:
    """Verify the targets and replace them. Safe to call more than once.

    Raises:
        PatchError: vLLM is not the one that this was written against.
    """
    from hsexp.engine import targets

    if targets.active:
        return
    _die_with_parent()
    targets.verify_targets()
    _patch_configuration()
    _patch_engine_core()
    _patch_front_end()
    _patch_worker()
    targets.active = True


def _die_with_parent() -> None:
    """In a process that vLLM has started: without this, a killed server leaves its core behind."""
    from hsexp.descent import die_with_parent

    parent = multiprocessing.parent_process()
    name = multiprocessing.current_process().name
    if parent is not None and parent.pid is not None and name.startswith(_STARTED_BY_VLLM):
        die_with_parent(parent.pid)


def _patch_configuration() -> None:
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs.create_engine_config = _with_flags(EngineArgs.create_engine_config)


def _with_flags(stock: Callable[..., Any]) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from hsexp.engine.flags import apply_flags

        return apply_flags(self, lambda: stock(self, *args, **kwargs))

    return create_engine_config


def _patch_engine_core() -> None:
    import vllm.v1.engine.core as core

    core.get_kv_cache_configs = _planned_pools(core.get_kv_cache_configs)
    core.resolve_kv_cache_block_sizes = _fine_hashes(core.resolve_kv_cache_block_sizes)
    core.EngineCore._initialize_kv_caches = _described(core.EngineCore._initialize_kv_caches)
    core.EngineCoreProc._make_ready_response = _reporting(core.EngineCoreProc._make_ready_response)


def _described(stock: Callable[..., Any]) -> Callable[..., Any]:
    def _initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        from hsexp.engine import report
        from hsexp.engine.pools import settings_of

        kv_cache_config = stock(self, vllm_config)
        if settings_of(vllm_config) is not None:
            report.ask_workers(self.model_executor, vllm_config)
        return kv_cache_config

    return _initialize_kv_caches


def _reporting(stock: Callable[..., Any]) -> Callable[..., Any]:
    def _make_ready_response(self: Any) -> Any:
        from hsexp.engine import report

        reports = report.kept_reports(self.vllm_config)
        response = stock(self)
        return report.with_report(response, reports[0]) if reports else response

    return _make_ready_response


def _patch_front_end() -> None:
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.engine.core_client import MPClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.loggers import StatLoggerManager

    from hsexp.engine.monitor import HybridStats

    InputProcessor.process_inputs = _announced(InputProcessor.process_inputs)
    # Read once, when the first decoder of messages is made, which is later.
    EngineCoreOutputs.__annotations__["scheduler_stats"] = HybridStats | None
    MPClient._apply_ready_response = _with_report(MPClient._apply_ready_response)
    StatLoggerManager.__init__ = _with_memory_logger(StatLoggerManager.__init__)


def _announced(stock: Callable[..., Any]) -> Callable[..., Any]:
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        from hsexp.engine.forks import announce_samples, check_max_hit
        from hsexp.engine.settings import KEY

        request = stock(self, *args, **kwargs)
        if KEY in (self.vllm_config.additional_config or {}):
            check_max_hit(request.params)
            announce_samples(request.params)
        return request

    return process_inputs


def _with_report(stock: Callable[..., Any]) -> Callable[..., Any]:
    def _apply_ready_response(self: Any, payload: bytes) -> None:
        from hsexp.engine import report
        from hsexp.engine.pools import settings_of

        stock(self, payload)
        if payload and settings_of(self.vllm_config) is not None:
            report.keep_received(self.vllm_config, payload)

    return _apply_ready_response


def _with_memory_logger(stock: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        from hsexp.engine.metrics import MemoryLogger
        from hsexp.engine.pools import settings_of

        stock(self, vllm_config, *args, **kwargs)
        if settings_of(vllm_config) is not None:
            self.stat_loggers.append(MemoryLogger(vllm_config, self.engine_indexes))

    return __init__


def _planned_pools(stock: Callable[..., Any]) -> Callable[..., Any]:
    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: list[dict[str, Any]], available_memory: list[int]
    ) -> Any:
        from hsexp.config.base import ConfigError
        from hsexp.engine.pools import plan_pools, settings_of
        from hsexp.engine.scheduler import HybridScheduler

        settings = settings_of(vllm_config)
        if settings is None:
            return stock(vllm_config, kv_cache_specs, available_memory)
        scheduler = vllm_config.scheduler_config.get_scheduler_cls()
        if not issubclass(scheduler, HybridScheduler):
            raise ConfigError(
                "organization settings need scheduler_cls hsexp.engine.scheduler.HybridScheduler, "
                f"got {scheduler.__module__}.{scheduler.__qualname__}"
            )
        return plan_pools(vllm_config, kv_cache_specs, available_memory)

    return get_kv_cache_configs


def _fine_hashes(stock: Callable[..., Any]) -> Callable[..., Any]:
    def resolve_kv_cache_block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int]:
        from hsexp.engine.pools import settings_of

        settings = settings_of(vllm_config)
        if settings is None:
            sizes: tuple[int, int] = stock(kv_cache_config, vllm_config)
            return sizes
        layout = settings.layout
        return (
            math.lcm(layout.block_size, layout.checkpoint_grid),
            math.gcd(layout.kernel_block_size, layout.checkpoint_grid),
        )

    return resolve_kv_cache_block_sizes


def _patch_worker() -> None:
    """Paged states: table, views, metadata and layer. Contiguous ones run stock code. And weights
    that are made on the device."""
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder

    from hsexp.engine.seeded_loader import register_loader

    runner.GPUModelRunner.initialize_kv_cache = _open_table(
        runner.GPUModelRunner.initialize_kv_cache
    )
    runner.mamba_utils.preprocess_mamba = _with_states(runner.mamba_utils.preprocess_mamba)
    MambaMixer2.bind_kv_cache = _paged_views(MambaMixer2.bind_kv_cache)
    MambaMixer2.conv_ssm_forward = _paged_forward(MambaMixer2.conv_ssm_forward)
    Mamba2AttentionMetadataBuilder.__init__ = _with_row_buffers(
        Mamba2AttentionMetadataBuilder.__init__
    )
    Mamba2AttentionMetadataBuilder.build = _with_rows(Mamba2AttentionMetadataBuilder.build)
    register_loader()


def _open_table(stock: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
        from hsexp.engine import paged
        from hsexp.engine.pools import planned_settings

        # Profiling for CUDA graphs makes a small stock cache first, which is not ours.
        settings = planned_settings(self.vllm_config, kv_cache_config, *args, **kwargs)
        layout = None if settings is None else paged.PagedLayout.of(settings)
        composites = {} if layout is None else kv_cache_config.composites
        paged.open_table(layout, composites, self.vllm_config, self.device)
        result = stock(self, kv_cache_config, *args, **kwargs)
        if settings is not None:
            from hsexp.engine.copies import carry_forks
            from hsexp.engine.seeds import keep_seeds

            if settings.lists_copies:
                carry_forks(self)
            keep_seeds(self)
        if settings is not None and settings.exact:
            from hsexp.engine.alone import run_alone

            run_alone(self)
        return result

    return initialize_kv_cache


def _with_states(stock: Callable[..., Any]) -> Callable[..., Any]:
    def preprocess_mamba(scheduler_output: Any, *args: Any, **kwargs: Any) -> None:
        from hsexp.engine import paged
        from hsexp.engine.fresh import clear_fresh_states
        from hsexp.engine.pools import PlannedCacheConfig

        table = paged.table()
        if table is not None:
            table.enter(scheduler_output.hsexp_composites)
            return
        stock(scheduler_output, *args, **kwargs)
        kv_cache_config, _, state_positions, _, requests, layers, *_ = args
        if isinstance(kv_cache_config, PlannedCacheConfig):
            clear_fresh_states(scheduler_output, kv_cache_config, state_positions, requests, layers)

    return preprocess_mamba


def _paged_views(stock: Callable[..., Any]) -> Callable[..., Any]:
    def bind_kv_cache(self: Any, kv_cache: Any) -> None:
        from hsexp.engine import paged

        table = paged.table()
        if table is None:
            stock(self, kv_cache)
            return
        table.bind(self, kv_cache)

    return bind_kv_cache


def _paged_forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    def conv_ssm_forward(self: Any, projected_states: Any, output: Any) -> Any:
        from vllm.forward_context import get_forward_context

        from hsexp.engine import paged, paged_forward

        if paged.table() is None or get_forward_context().attn_metadata is None:
            return stock(self, projected_states, output)
        return paged_forward.conv_ssm_forward(self, projected_states, output)

    return conv_ssm_forward


def _with_row_buffers(stock: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        from hsexp.engine import paged

        stock(self, *args, **kwargs)
        table = paged.table()
        if table is not None:
            self.hsexp_buffers = paged.RowBuffers(table, self.decode_cudagraph_max_bs)
            # Every metadata object is built with its rows, never copied from another group's.
            self.supports_update_block_table = False

    return __init__


def _with_rows(stock: Callable[..., Any]) -> Callable[..., Any]:
    def build(
        self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from hsexp.engine import paged

        metadata = stock(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        table = paged.table()
        if table is not None:
            composites = paged.composites_of(common_attn_metadata, self.kv_cache_spec.block_size)
            # vLLM picks a full graph by shape alone, one token a request, so that is when its rows
            # are staged: also for a first token, which vLLM's own metadata counts as a prefill.
            full_graphs = self.compilation_config.cudagraph_mode.has_full_cudagraphs()
            if full_graphs and common_attn_metadata.max_query_len == 1:
                metadata.hsexp_rows = self.hsexp_buffers.stage(*composites)
            else:
                metadata.hsexp_rows = table.find(*composites)
        return metadata

    return build
