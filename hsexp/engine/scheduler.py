"""vLLM's schedulers over the memory core: stock scheduling, our answers about memory."""

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec
from vllm.v1.request import Request, RequestStatus

from hsexp.config.base import ConfigError
from hsexp.engine.manager import HybridCacheManager
from hsexp.engine.monitor import HybridStats, MemoryMonitor
from hsexp.engine.refusals import (
    refuse_contradictions,
    refuse_features,
    refuse_short_steps,
    refuse_two_orders,
)
from hsexp.engine.report import make_report
from hsexp.engine.settings import EngineSettings
from hsexp.engine.targets import require_active
from hsexp.engine.waiting import OrderedQueue


class HybridScheduler(Scheduler):
    """`scheduler_cls="hsexp.engine.scheduler.HybridScheduler"`."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        require_active()
        settings = EngineSettings.of(vllm_config.additional_config)
        refuse_features(vllm_config)
        refuse_contradictions(vllm_config.cache_config, vllm_config.scheduler_config)
        refuse_short_steps(vllm_config, settings)
        refuse_two_orders(vllm_config, settings)
        super().__init__(vllm_config, *args, **kwargs)
        self.settings = settings
        attention_group, num_state_groups = _groups(self.kv_cache_config)
        self.kv_cache_manager: Any = HybridCacheManager(  # type: ignore[assignment]
            settings.memory(),
            settings.chunking,
            hash_block_size=self.hash_block_size,
            attention_group=attention_group,
            num_state_groups=num_state_groups,
            enable_caching=bool(self.cache_config.enable_prefix_caching),
            log_stats=self.log_stats,
        )
        if not settings.waiting.by_arrival:
            self.waiting = OrderedQueue(settings.waiting, self.kv_cache_manager)
        forks = self.kv_cache_manager.forks
        self._forks = forks if forks is not None and forks.lets_fork else None
        self._stops = self.kv_cache_manager.stops
        self._chunk_tokens = settings.chunking.tokens
        self.need_mamba_block_aligned_split = True
        self._monitor = MemoryMonitor(self.kv_cache_manager)
        make_report(self)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """The stock schedule, with the places of states that its step is the first to use."""
        if self._forks is not None:
            self._forks.keep()
        output = super().schedule(*args, **kwargs)
        output.hsexp_composites = self.kv_cache_manager.take_new_composites()
        output.hsexp_forks = self.kv_cache_manager.take_fork_work()
        if output.total_num_scheduled_tokens:
            self._monitor.add_step()
        return output

    def make_stats(self, *args: Any, **kwargs: Any) -> HybridStats | None:
        """vLLM's statistics of a step, and the memory's."""
        stats = super().make_stats(*args, **kwargs)
        if stats is None:
            return None
        state = self._monitor.observe(is_idle=not self.has_unfinished_requests())
        return HybridStats(**vars(stats), hsexp=state)

    def add_request(self, request: Request) -> None:
        """Refuse a request at once if it could never finish here."""
        max_tokens = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        reason = self.kv_cache_manager.memory.never_fits(max_tokens - 1)
        if reason is not None:
            raise ValueError(f"request {request.request_id} can never be served: {reason}")
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if is_new:
            self.kv_cache_manager.enter(request)

    def _mamba_block_aligned_split(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Chunk ends by the core's rule, on the organization's own grid."""
        computed = request.num_computed_tokens + num_new_local_computed_tokens
        num_tokens = request.num_tokens
        if num_new_tokens == 1 and computed + 1 >= num_tokens:
            # A decode: the rule has nothing to cut. An asynchronous one may run ahead of the tokens
            # that are known.
            return 1
        chunk = self._chunk_tokens(
            computed, request.num_prompt_tokens, num_tokens, num_new_tokens, self._stops(request)
        )
        stop = None if self._forks is None else self._forks.stop(request, computed)
        return chunk if stop is None else min(chunk, stop - computed)

    # vLLM skips a waiting request that is blocked, and tries the others behind it. Where requests
    # may fork, every one is asked whether it waits for another one's prefix.

    def _is_blocked_waiting_status(self, status: RequestStatus) -> bool:  # type: ignore[override]
        return self._forks is not None or Scheduler._is_blocked_waiting_status(status)

    def _try_promote_blocked_waiting_request(self, request: Request) -> bool:
        blocked = Scheduler._is_blocked_waiting_status(request.status)
        if blocked and not super()._try_promote_blocked_waiting_request(request):
            return False
        return self._forks is None or not self._forks.must_wait(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        blocked = Scheduler._is_blocked_waiting_status(request.status)
        (self.skipped_waiting if blocked else self.waiting).add_request(request)


class AsyncHybridScheduler(HybridScheduler, AsyncScheduler):
    """`HybridScheduler` with asynchronous scheduling."""


def _groups(kv_cache_config: Any) -> tuple[Any, int]:
    """Index of the one attention group, and the number of Mamba groups.

    Raises:
        ConfigError: the model has other groups.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    attention = [i for i, spec in enumerate(specs) if isinstance(spec, AttentionSpec)]
    mamba = [i for i, spec in enumerate(specs) if isinstance(spec, MambaSpec)]
    if len(attention) != 1 or not mamba or len(specs) != 1 + len(mamba):
        names = [type(spec).__name__ for spec in specs]
        raise ConfigError(f"KV-cache groups must be one attention and Mamba groups, got {names}")
    return attention[0], len(mamba)
