"""Two flags become a whole configuration.

    vllm serve MODEL --scheduler-cls hsexp.engine.scheduler.HybridScheduler
                     --additional-config '{"hsexp": {"organization": "s2"}}'

All other settings follow from them and are set here, in the process that makes vLLM's
configuration. A user's value that contradicts them is refused by name, never overwritten.
"""

from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

from hsexp.config.base import ConfigError
from hsexp.engine.geometry import model_of
from hsexp.engine.paged import require_members
from hsexp.engine.refusals import (
    most_running,
    refuse_contradictions,
    refuse_features,
    refuse_more_than_blocks,
    refuse_short_steps,
    refuse_split_blocks,
    refuse_two_orders,
)
from hsexp.engine.settings import KEY, SCHEDULER, EngineSettings, ServingSettings

logger = init_logger(f"vllm.{__name__}")


def apply_flags(args: EngineArgs, create: Callable[[], VllmConfig]) -> VllmConfig:
    """Make the configuration of engine arguments; without our flags it is vLLM's own.

    Args:
        create: vLLM's own `create_engine_config` of these arguments.

    Raises:
        ConfigError: one flag without the other, a contradiction, or a model or feature that the
            organizations cannot serve.
    """
    asynchronous = _is_asynchronous(args.scheduler_cls)
    data = (args.additional_config or {}).get(KEY)
    if asynchronous is None and data is None:
        return create()
    if asynchronous is None:
        raise ConfigError(
            f"additional_config.{KEY} needs scheduler_cls {SCHEDULER}, got {args.scheduler_cls}"
        )
    if data is None:
        raise ConfigError(
            f"scheduler_cls {SCHEDULER} needs additional_config.{KEY}, "
            f'such as {{"{KEY}": {{"organization": "s2"}}}}'
        )
    wanted = ServingSettings.of(data)
    _derive(args, wanted, asynchronous=asynchronous)
    is_open = args.max_num_seqs is None  # vLLM fills it in
    config, settings = _resolved(wanted, create)
    most = most_running(config, settings)
    if is_open and most is not None and most < config.scheduler_config.max_num_seqs:
        logger.info("max_num_seqs is %d: graphs want a block for each running request", most)
        args.max_num_seqs = most
        config, settings = _resolved(wanted, create)  # sizes of graphs follow from it
    layout = settings.layout
    refuse_more_than_blocks(config, settings)
    refuse_split_blocks(config, settings)
    refuse_short_steps(config, settings)
    refuse_two_orders(config, settings)
    require_members(settings)
    _agree(args, "mamba_block_size", layout.checkpoint_grid)
    config.cache_config.mamba_block_size = layout.checkpoint_grid
    _require_kept(config, asynchronous=asynchronous)
    _give_budget(config, settings)
    config.additional_config = args.additional_config | settings.additional_config()
    if not asynchronous:
        logger.info("%s schedules without looking ahead: async_scheduling is off", SCHEDULER)
    return config


def _resolved(
    wanted: ServingSettings, create: Callable[[], VllmConfig]
) -> tuple[VllmConfig, EngineSettings]:
    """vLLM's configuration, and the settings that follow from it."""
    config = create()
    refuse_features(config)
    return config, wanted.resolve(model_of(config), cap=config.scheduler_config.max_num_seqs)


def _give_budget(config: VllmConfig, settings: EngineSettings) -> None:
    """Tell vLLM on a CPU how large its cache is.

    Otherwise it wants gpu_memory_utilization of the machine's whole memory, 92 %, to be free,
    whatever the budget. VLLM_CPU_KVCACHE_SPACE and kv_cache_memory_bytes are left as they are.
    """
    cache = config.cache_config
    has_budget = settings.budget_bytes is not None
    if current_platform.is_cpu() and cache.kv_cache_memory_bytes is None and has_budget:
        cache.kv_cache_memory_bytes = settings.state_bytes


def _derive(args: EngineArgs, wanted: ServingSettings, *, asynchronous: bool) -> None:
    """Set what vLLM must know before it makes its configuration."""
    refuse_contradictions(args)
    organization = wanted.resolve_organization()
    derived: dict[str, Any] = {
        "block_size": organization.kernel_block_size,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": asynchronous,
    }
    if wanted.admission.cap is not None:
        derived["max_num_seqs"] = wanted.admission.cap
    for name, value in derived.items():
        _agree(args, name, value)
        setattr(args, name, value)
    if args.mamba_cache_mode not in ("none", "align"):
        raise ConfigError(_contradiction("mamba_cache_mode", args.mamba_cache_mode, "align"))
    args.mamba_cache_mode = "align"


def _agree(args: EngineArgs, name: str, value: Any) -> None:
    given = getattr(args, name)
    if given is not None and given != value:
        raise ConfigError(_contradiction(name, given, value))


def _contradiction(name: str, given: Any, value: Any) -> str:
    return f"{name} {given} contradicts {KEY}, which makes it {value}; leave it out"


def _require_kept(config: VllmConfig, *, asynchronous: bool) -> None:
    """Refuse what vLLM has switched off, as it does for some models and platforms."""
    kept = {
        "enable_prefix_caching": (config.cache_config.enable_prefix_caching, True),
        "mamba_cache_mode": (config.cache_config.mamba_cache_mode, "align"),
        "enable_chunked_prefill": (config.scheduler_config.enable_chunked_prefill, True),
        "async_scheduling": (bool(config.scheduler_config.async_scheduling), asynchronous),
    }
    for name, (found, needed) in kept.items():
        if found != needed:
            raise ConfigError(
                f"vLLM has made {name} {found} for this model or platform; "
                f"{config.scheduler_config.scheduler_cls} needs {needed}"
            )


def _is_asynchronous(scheduler_cls: Any) -> bool | None:
    """Whether the scheduler is our asynchronous one; None if it is not ours."""
    from hsexp.engine.scheduler import AsyncHybridScheduler, HybridScheduler

    if scheduler_cls is None:
        return None
    found = (
        resolve_obj_by_qualname(scheduler_cls) if isinstance(scheduler_cls, str) else scheduler_cls
    )
    if not (isinstance(found, type) and issubclass(found, HybridScheduler)):
        return None
    return issubclass(found, AsyncHybridScheduler)
