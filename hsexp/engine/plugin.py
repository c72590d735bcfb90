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
