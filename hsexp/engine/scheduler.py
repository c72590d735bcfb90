"""vLLM's schedulers over the memory core: stock scheduling, our answers about memory."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec
from vllm.v1.request import Request

from hsexp.config.base import ConfigError
from hsexp.engine.manager import HybridCacheManager
from hsexp.engine.settings import EngineSettings
from hsexp.memory.chunking import chunk_tokens


class HybridScheduler(Scheduler):
    """`scheduler_cls="hsexp.engine.scheduler.HybridScheduler"`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = EngineSettings.of(self.vllm_config.additional_config)
        _refuse_unsupported(self)
        self.settings = settings
        self.kv_cache_manager: Any = HybridCacheManager(  # type: ignore[assignment]
            settings.memory(),
            hash_block_size=self.hash_block_size,
            attention_group=_attention_group(self.kv_cache_config),
            enable_caching=bool(self.cache_config.enable_prefix_caching),
            log_stats=self.log_stats,
        )
        self.need_mamba_block_aligned_split = True

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """The stock schedule, and where the states lie that its step is the first to use."""
        output = super().schedule(*args, **kwargs)
        output.hsexp_composites = self.kv_cache_manager.take_new_composites()
        return output

    def add_request(self, request: Request) -> None:
        """Refuse at once what could never finish here."""
        max_tokens = request.num_prompt_tokens + request.max_tokens
        reason = self.kv_cache_manager.memory.never_fits(max_tokens - 1)
        if reason is not None:
            raise ValueError(f"request {request.request_id} can never be served: {reason}")
        super().add_request(request)

    def _mamba_block_aligned_split(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Chunk ends by the core's rule, on the organization's own grid."""
        return chunk_tokens(
            request.num_computed_tokens + num_new_local_computed_tokens,
            request.num_tokens,
            num_new_tokens,
            grid=self.kv_cache_manager.memory.checkpoint_grid,
        )


class AsyncHybridScheduler(HybridScheduler, AsyncScheduler):
    """The same with asynchronous scheduling."""


def _attention_group(kv_cache_config: Any) -> Any:
    """Index of the attention group among exactly one attention and one Mamba group.

    Raises:
        ConfigError: the model's groups are others.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    attention = [i for i, spec in enumerate(specs) if isinstance(spec, AttentionSpec)]
    mamba = [i for i, spec in enumerate(specs) if isinstance(spec, MambaSpec)]
    if len(specs) != 2 or len(attention) != 1 or len(mamba) != 1:
        names = [type(spec).__name__ for spec in specs]
        raise ConfigError(f"KV-cache groups must be one attention and one Mamba group, got {names}")
    return attention[0]


def _refuse_unsupported(scheduler: Scheduler) -> None:
    """Features whose memory rules the core does not know yet stop the start.

    Raises:
        ConfigError: names the feature.
    """
    unsupported = {
        "a KV connector": scheduler.connector is not None,
        "an encoder-cache connector": scheduler.ec_connector is not None,
        "speculative decoding": scheduler.num_spec_tokens > 0,
        "pipeline parallelism": scheduler.use_pp,
        "context parallelism": max(scheduler.dcp_world_size, scheduler.pcp_world_size) > 1,
        "an encoder-decoder model": scheduler.is_encoder_decoder,
        "KV-cache events": scheduler.enable_kv_cache_events,
    }
    found = [name for name, present in unsupported.items() if present]
    if found:
        raise ConfigError(f"hsexp organizations do not support {', '.join(found)}")
