"""Stands where vLLM's KVCacheManager stands: the scheduler asks, the memory core answers.

Two KV-cache groups as in stock vLLM: attention blocks by page id, and recurrent states by COMPOSITE
id in a position-indexed table whose skipped positions are the null id 0. A composite's id is its
representative page, which is unique among live states; where a composite takes more than one page,
`take_new_composites` tells the worker which pages and which convolution line it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request

from hsexp.engine.keys import prefix_keys
from hsexp.memory import HybridMemory, SequenceMemory
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.hybrid import MISS, pool_usage
from hsexp.memory.sequence import Hit

NULL_ID = 0


class PageIds(KVCacheBlocks):
    """Page ids of both groups, in the form the scheduler passes to the worker."""

    def __init__(self, ids: tuple[list[int], ...]) -> None:
        self.ids = ids

    @property
    def blocks(self) -> tuple[list[int], ...]:  # type: ignore[override]
        return self.ids

    def get_block_ids(self, allow_none: bool = False) -> Any:
        return None if allow_none and not any(self.ids) else self.ids

    def new_empty(self) -> "PageIds":
        return PageIds(tuple([] for _ in self.ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class NewComposite:
    """Where a state that is first used in this step lies."""

    composite_id: int
    pages: tuple[int, ...]
    line: int
    """Convolution line, or NO_LINE."""


@dataclass(kw_only=True, slots=True)
class _Running:
    """A request that holds memory, and how much of its tables the worker knows."""

    sequence: SequenceMemory
    state_table: list[int]
    """Composite ids by position; 0 where no state is kept."""


class HybridCacheManager:
    """The scheduler's view of a `HybridMemory`."""

    def __init__(
        self,
        memory: HybridMemory,
        *,
        hash_block_size: int,
        attention_group: Literal[0, 1],
        enable_caching: bool,
        log_stats: bool,
    ) -> None:
        self.memory = memory
        self.enable_caching = enable_caching
        self.log_stats = log_stats
        self.hash_block_size = hash_block_size
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.empty_kv_cache_blocks = PageIds(([], []))
        self._attention_first = attention_group == 0
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, SequenceMemory] = {}
        """Sequences of requests that were looked up and do not run."""
        self._hits: dict[str, Hit] = {}
        self._new_pages: list[int] = []
        self._new_composites: list[NewComposite] = []

    # -- what the scheduler calls --------------------------------------------------------------

    def new_step_starts(self) -> None:
        self.memory.step += 1
        self._hits.clear()

    def get_computed_blocks(self, request: Request) -> tuple[PageIds, int, int]:
        """The joint hit of a waiting request: (pages, tokens, no junction to pin)."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            hit = MISS
        else:
            hit = self.memory.lookup(self._sequence(request), request.num_tokens)
        self._hits[request.request_id] = hit
        return self.empty_kv_cache_blocks, hit.tokens, 0

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> PageIds | None:
        """Room for a step of a running request, or admission of a waiting one; None is no."""
        if request.request_id in self._running:
            return self._extend(request, num_new_tokens)
        return self._admit(request, num_new_tokens, nothing_runs=not has_scheduled_reqs)

    def get_blocks(self, request_id: str) -> PageIds:
        running = self._running[request_id]
        return self._ids(running.sequence.blocks, running.state_table)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).ids

    def free(self, request: Request) -> None:
        """A finished request leaves; any other one is preempted."""
        running = self._running.pop(request.request_id, None)
        self._hits.pop(request.request_id, None)
        if running is None:  # it never ran, or was preempted before
            self._waiting.pop(request.request_id, None)
            self.memory.unpin(request.request_id)
            return
        # What is in flight may never be computed; its entries are withdrawn.
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        if request.is_finished():
            self.memory.release(running.sequence, computed)
        else:
            self.memory.preempt(running.sequence, computed)
            self._waiting[request.request_id] = running.sequence

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publication happens in `extend`; the asynchronous scheduler calls this as well."""

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        if self.prefix_cache_stats is not None and not request.skip_reading_prefix_cache:
            self.prefix_cache_stats.record(
                num_tokens=request.num_tokens,
                num_hits=num_hits,
                preempted=request.num_preemptions > 0,
            )

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        stats = self.prefix_cache_stats
        if stats is not None:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        return [0, 0]

    def take_new_block_ids(self) -> list[int]:
        """Attention pages handed out in this step; the worker zeroes them, since old state bytes
        read as bf16 may be NaN."""
        pages, self._new_pages = self._new_pages, []
        return pages

    def take_new_composites(self) -> list[NewComposite]:
        """States first used in this step."""
        composites, self._new_composites = self._new_composites, []
        return composites

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def take_events(self) -> list[Any]:
        return []

    def estimate_cached_tokens(self, request: Request) -> int:
        running = self._running.get(request.request_id)
        return (
            0
            if running is None
            else running.sequence.num_published_blocks * (self.memory.block_size)
        )

    def reset_prefix_cache(self) -> bool:
        """False while requests hold memory, as in stock vLLM."""
        if self._running:
            return False
        self.memory.unpin_all()
        self.memory.reset_cache()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    @property
    def usage(self) -> float:
        return pool_usage(self.memory.pools)

    # -- inside --------------------------------------------------------------------------------

    def _sequence(self, request: Request) -> SequenceMemory:
        sequence = self._waiting.get(request.request_id)
        if sequence is None:
            sequence = self._waiting[request.request_id] = SequenceMemory(
                request_id=request.request_id,
                keys=prefix_keys(
                    request.block_hashes,
                    hash_block_size=self.hash_block_size,
                    block_size=self.memory.block_size,
                    checkpoint_grid=self.memory.checkpoint_grid,
                ),
                num_prompt_tokens=request.num_prompt_tokens,
            )
        return sequence

    def _admit(
        self, request: Request, num_new_tokens: int, *, nothing_runs: bool
    ) -> PageIds | None:
        hit, memory = self._hits.pop(request.request_id), self.memory
        sequence = self._sequence(request)
        if not hit.ready:
            return None
        while memory.refusal(sequence, hit, request.num_tokens, nothing_runs=nothing_runs):
            if not nothing_runs or not memory.give_way():
                return None
            if memory.lookup(sequence, request.num_tokens) != hit:
                return None  # it gave way with its own hit: the next step looks again
        memory.admit(sequence, hit)
        extended = memory.extend(sequence, hit.tokens, hit.tokens + num_new_tokens)
        assert extended, "admission counts at least what the first chunk needs"
        del self._waiting[request.request_id]
        self._new_pages += sequence.blocks[len(hit.blocks) :]
        table: list[int] = []
        if hit.checkpoint is not None:
            _enter(table, hit.tokens // memory.checkpoint_grid - 1, hit.checkpoint)
        self._running[request.request_id] = _Running(sequence=sequence, state_table=table)
        if sequence.state is not hit.checkpoint:
            self._enter_new_state(sequence, table)
        return self.get_blocks(request.request_id)

    def _extend(self, request: Request, num_new_tokens: int) -> PageIds | None:
        running, memory = self._running[request.request_id], self.memory
        sequence = running.sequence
        num_blocks, state = len(sequence.blocks), sequence.state
        num_positions = len(running.state_table)
        computed = request.num_computed_tokens
        while not memory.extend(sequence, computed, computed + num_new_tokens):
            if len(self._running) > 1 or not memory.give_way(sequence):
                return None
        new_pages = sequence.blocks[num_blocks:]
        self._new_pages += new_pages
        if sequence.state is not state:
            self._enter_new_state(sequence, running.state_table)
        return self._ids(new_pages, running.state_table[num_positions:])

    def _enter_new_state(self, sequence: SequenceMemory, table: list[int]) -> None:
        state = sequence.state
        assert state is not None
        _enter(table, sequence.state_index, state)
        self._new_composites.append(
            NewComposite(composite_id=state.pages[0], pages=tuple(state.pages), line=state.line)
        )

    def _ids(self, attention: Sequence[int], states: Sequence[int]) -> PageIds:
        groups = (list(attention), list(states))
        return PageIds(groups if self._attention_first else groups[::-1])


def _enter(table: list[int], position: int, checkpoint: Checkpoint) -> None:
    """Put a composite at its position; positions that were skipped hold the null id."""
    table += [NULL_ID] * (position - len(table))
    table.append(checkpoint.pages[0])
