"""Features of vLLM whose memory rules the core does not have: each is refused by name at the start.

They are refused where the configuration is made, before anything is loaded, and again by the
scheduler, for engines whose configuration was made by hand.
"""

from typing import Any

import vllm.envs as envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.worker.utils import select_common_block_size

from hsexp.config.base import ConfigError
from hsexp.engine.settings import KEY, EngineSettings

_LEFT_ALONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "watermark": ((0.0,), "admission.headroom decides what stays free"),
    "scheduler_reserve_full_isl": ((True,), "admission always counts the full prompt"),
    "num_gpu_blocks_override": ((None,), "the budget decides how many pages there are"),
    "prefix_match_unit": ((None,), "the organization decides where a prefix can end"),
    "disable_hybrid_kv_cache_manager": (
        (None, False),
        "attention and recurrent state have tables of their own",
    ),
}
"""Values that our memory accepts, and why it accepts no others."""


def refuse_contradictions(*given: Any) -> None:
    """Refuse values that the memory core decides by itself.

    Args:
        given: engine arguments, or the parts of a configuration that hold these values.

    Raises:
        ConfigError: names the value, and what decides in its place.
    """
    for name, (agreeing, reason) in _LEFT_ALONE.items():
        value = next(getattr(holder, name) for holder in given if hasattr(holder, name))
        if value not in agreeing:
            raise ConfigError(f"{name} {value} contradicts {KEY}: {reason}; leave it out")


def refuse_features(vllm_config: VllmConfig) -> None:
    """Refuse features that the memory core does not have.

    Raises:
        ConfigError: names the features.
    """
    found = [name for name, present in _features(vllm_config).items() if present]
    if found:
        raise ConfigError(f"hsexp organizations do not support {', '.join(found)}")


def refuse_short_steps(vllm_config: VllmConfig, settings: EngineSettings) -> None:
    """A chunk ends on the checkpoint grid: a step that cannot reach it would prefill nothing.

    Raises:
        ConfigError: names the limit and its value.
    """
    grid, scheduler = settings.layout.checkpoint_grid, vllm_config.scheduler_config
    limits = {
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold or None,
    }
    for name, limit in limits.items():
        if limit is not None and limit < grid:
            raise ConfigError(
                f"{name} {limit} must hold a chunk of one checkpoint grid ({grid} tokens)"
            )


def refuse_two_orders(vllm_config: VllmConfig, settings: EngineSettings) -> None:
    """A waiting order replaces vLLM's queue, so only one of both can be chosen.

    Raises:
        ConfigError: names both.
    """
    policy = vllm_config.scheduler_config.policy
    if policy != "fcfs" and not settings.waiting.by_arrival:
        raise ConfigError(
            f"scheduling_policy {policy} contradicts waiting {settings.waiting.name}: both decide "
            "who is admitted next; leave one of them out"
        )


def most_running(vllm_config: VllmConfig, settings: EngineSettings) -> int | None:
    """Most requests that vLLM's graphs can run; None where there is no limit, or not yet.

    A full graph wants a block for each running request, and vLLM refuses a larger max_num_seqs
    after it has loaded the weights. A request has one block at least, so a cap of all blocks admits
    the same requests.
    """
    graphs = vllm_config.compilation_config.cudagraph_mode
    if settings.budget_bytes is None or graphs is None or not graphs.has_full_cudagraphs():
        return None
    return settings.num_blocks


def refuse_more_than_blocks(vllm_config: VllmConfig, settings: EngineSettings) -> None:
    """Refuse more running requests than there are blocks, where steps run in graphs.

    Raises:
        ConfigError: names both numbers, and what to type instead.
    """
    most, asked = most_running(vllm_config, settings), vllm_config.scheduler_config.max_num_seqs
    if most is not None and asked > most:
        raise ConfigError(
            f"max_num_seqs {asked} (admission.cap) exceeds the {most} blocks that organization "
            f"{settings.organization.name} has under this budget, and graphs want a block for each "
            f"running request: {most} is the most, and enforce_eager=true runs without graphs"
        )


def refuse_split_blocks(vllm_config: VllmConfig, settings: EngineSettings) -> None:
    """Refuse an attention backend that splits padded blocks into smaller ones.

    vLLM steps over the padding after a block of the size that it was given, and not after each part
    of one: it would crash when it makes the cache, after the weights are loaded.

    Raises:
        ConfigError: names the backend, the organization, and what to type instead.
    """
    if settings.padded_block_bytes is None:
        return
    block_size = settings.layout.kernel_block_size
    backend = _attention_backend(vllm_config)
    with set_current_vllm_config(vllm_config):
        part = select_common_block_size(block_size, [backend])
    if part != block_size:
        raise ConfigError(
            f"attention backend {backend.get_name()} splits blocks of {block_size} tokens into "
            f"blocks of {part}, and those of organization {settings.organization.name} are padded, "
            "which vLLM cannot split: attention_backend=FLASH_ATTN and attention_backend="
            "TRITON_ATTN split none, and organizations s1, s2 and d0 have no padding"
        )


def _attention_backend(vllm_config: VllmConfig) -> type[AttentionBackend]:
    """The backend that vLLM will choose for the model's attention layers."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    with set_current_vllm_config(vllm_config):
        backend: type[AttentionBackend] = get_attn_backend(
            model.get_head_size(), model.dtype, cache.cache_dtype
        )
    return backend


def _features(config: VllmConfig) -> dict[str, bool]:
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    events = config.kv_events_config
    return {
        "speculative decoding": config.num_speculative_tokens > 0,
        "a KV connector": config.kv_transfer_config is not None,
        "an encoder-cache connector": config.ec_transfer_config is not None,
        "KV-cache events": events is not None and events.enable_kv_cache_events,
        "KV-cache residency metrics": config.observability_config.kv_cache_metrics,
        "KV offloading": cache.kv_offloading_size is not None,
        "KV sharing": cache.kv_sharing_fast_prefill,
        "KV-cache quantization": bool(
            cache.kv_cache_dtype_skip_layers
            or cache.cache_dtype not in ("auto", "bfloat16", "float16")
        ),
        "ReplaySSM": cache.use_replayssm,
        "tensor parallelism": parallel.tensor_parallel_size > 1,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": max(
            parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
        )
        > 1,
        "dual-batch overlap": parallel.use_ubatching,
        "elastic expert parallelism": parallel.enable_elastic_ep,
        "the V2 model runner": config.use_v2_model_runner,
        "an encoder-decoder model": model.is_encoder_decoder,
        "a pooling model": model.runner_type == "pooling",
        "routed experts in outputs": model.enable_return_routed_experts,
        "the Rust front end": envs.VLLM_USE_RUST_FRONTEND,
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": (
            envs.VLLM_PREFIX_CACHE_RETENTION_INTERVAL is not None
        ),
    }
