"""The `vllm.general_plugins` entry point: active in every process that vLLM starts.

Without `additional_config={"hsexp": ...}` every replaced function does what it did before.
"""

import math
from collections.abc import Callable
from typing import Any

_registered = False


def register() -> None:
    """Verify the targets and replace them. Safe to call more than once.

    Raises:
        PatchError: vLLM is not the one that this was written against.
    """
    global _registered
    if _registered:
        return
    from hsexp.engine.targets import verify_targets

    verify_targets()
    _patch_engine_core()
    _patch_worker()
    _registered = True


def _patch_engine_core() -> None:
    import vllm.v1.engine.core as core

    core.get_kv_cache_configs = _planned_pools(core.get_kv_cache_configs)
    core.resolve_kv_cache_block_sizes = _fine_hashes(core.resolve_kv_cache_block_sizes)


def _planned_pools(stock: Callable[..., Any]) -> Callable[..., Any]:
    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: list[dict[str, Any]], available_memory: list[int]
    ) -> Any:
        from hsexp.config.base import ConfigError
        from hsexp.engine.pools import kv_cache_config, settings_of
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
        return [
            kv_cache_config(settings, specs, free)
            for specs, free in zip(kv_cache_specs, available_memory, strict=True)
        ]

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
            math.gcd(layout.block_size, layout.checkpoint_grid),
        )

    return resolve_kv_cache_block_sizes


def _patch_worker() -> None:
    """Paged states: table, views, metadata and layer. Contiguous ones run stock code."""
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder

    runner.GPUModelRunner.initialize_kv_cache = _open_table(
        runner.GPUModelRunner.initialize_kv_cache
    )
    runner.mamba_utils.preprocess_mamba = _enter_composites(runner.mamba_utils.preprocess_mamba)
    MambaMixer2.bind_kv_cache = _paged_views(MambaMixer2.bind_kv_cache)
    MambaMixer2.conv_ssm_forward = _paged_forward(MambaMixer2.conv_ssm_forward)
    Mamba2AttentionMetadataBuilder.build = _with_sources(Mamba2AttentionMetadataBuilder.build)


def _open_table(stock: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
        from hsexp.engine import paged
        from hsexp.engine.pools import settings_of

        settings = settings_of(self.vllm_config)
        layout = None if settings is None else paged.PagedLayout.of(settings)
        paged.open_table(layout, self.device)
        return stock(self, kv_cache_config, *args, **kwargs)

    return initialize_kv_cache


def _enter_composites(stock: Callable[..., Any]) -> Callable[..., Any]:
    def preprocess_mamba(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        from hsexp.engine import paged

        table = paged.table()
        if table is None:
            return stock(scheduler_output, *args, **kwargs)
        table.enter(scheduler_output.hsexp_composites)
        return None

    return preprocess_mamba


def _paged_views(stock: Callable[..., Any]) -> Callable[..., Any]:
    def bind_kv_cache(self: Any, kv_cache: Any) -> None:
        from hsexp.engine import paged

        table = paged.table()
        if table is None:
            stock(self, kv_cache)
            return
        conv_dtype, ssm_dtype = self.get_state_dtype()
        self.kv_cache = table.layout.views(kv_cache, conv_dtype, ssm_dtype)

    return bind_kv_cache


def _paged_forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    def conv_ssm_forward(self: Any, projected_states: Any, output: Any) -> Any:
        from vllm.forward_context import get_forward_context

        from hsexp.engine import paged

        if paged.table() is None or get_forward_context().attn_metadata is None:
            return stock(self, projected_states, output)
        return paged.conv_ssm_forward(self, projected_states, output)

    return conv_ssm_forward


def _with_sources(stock: Callable[..., Any]) -> Callable[..., Any]:
    def build(
        self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from hsexp.engine import paged

        metadata = stock(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        if paged.table() is not None:
            grid = self.kv_cache_spec.block_size
            ids = common_attn_metadata.block_table_tensor
            computed = common_attn_metadata.compute_num_computed_tokens()
            last = ((common_attn_metadata.seq_lens - 1) // grid).clamp(min=0).long()
            before = ((computed - 1) // grid).clamp(min=0).long()
            metadata.hsexp_has_state = computed > 0
            metadata.hsexp_target = ids.gather(1, last.unsqueeze(1)).squeeze(1).long()
            metadata.hsexp_source = ids.gather(1, before.unsqueeze(1)).squeeze(1).long()
        return metadata

    return build
