"""Takes the place of vLLM's KVCacheManager: the scheduler asks, the memory core answers.

KV-cache groups as in stock vLLM: attention blocks by page id, or by their ids in pages where a
page holds several (`AttentionStore.block_ids`), and recurrent states by COMPOSITE
id in a position-indexed table whose skipped positions are the null id 0. A composite's id is its
representative page, which is unique among live states; where a composite takes more than one page,
`take_new_composites` tells the worker which pages and which convolution line it has. States that
vLLM's own kernels find have a group for each recurrent layer of an attention layer, and each group
a table with pages of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request

from hsexp.engine.forks import Forks, ForkWork, TableChange, max_hit
from hsexp.engine.keys import prefix_keys
from hsexp.memory import HybridMemory, MemoryFault, SequenceMemory
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.chunking import Chunking
from hsexp.memory.pool import pool_usage
from hsexp.memory.sequence import MISS, Hit
from hsexp.memory.standing import StandingRefusal

NULL_ID = 0


class PageIds(KVCacheBlocks):
    """Page ids of all groups, in the form the scheduler passes to the worker."""

    def __init__(self, ids: tuple[Sequence[int], ...]) -> None:
        self.ids = ids

    @property
    def blocks(self) -> tuple[Sequence[int], ...]:  # type: ignore[override]
        return self.ids

    def get_block_ids(self, allow_none: bool = False) -> Any:
        return None if allow_none and not any(self.ids) else self.ids

    def new_empty(self) -> "PageIds":
        return NOTHING_NEW


NOTHING_NEW = PageIds(((), ()))
"""The answer to most decode steps; shared, so that they create no objects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewComposite:
    """The place of a state that is first used in this step."""

    composite_id: int
    pages: tuple[int, ...]
    line: int
    """Convolution line, or NO_LINE."""


@dataclass(kw_only=True, slots=True)
class _Running:
    """A request that holds memory, and its tables of states as the worker has them."""

    sequence: SequenceMemory
    state_tables: list[list[int]]
    """By group: composite ids by position; 0 where no state is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _LookedUp:
    """The request that the scheduler asked about last; it is admitted or refused next."""

    request_id: str
    hit: Hit
    losses: int
    """Entries that the memory had lost by then."""
    refused: bool = False
    """Nothing has changed that could reverse its last refusal."""


class HybridCacheManager:
    """The scheduler's view of a `HybridMemory`.

    It has a method for everything that vLLM's scheduler calls, hence more than twenty of them.
    """

    def __init__(
        self,
        memory: HybridMemory,
        chunking: Chunking,
        *,
        hash_block_size: int,
        attention_group: Literal[0, 1],
        num_state_groups: int = 1,
        enable_caching: bool,
        log_stats: bool,
    ) -> None:
        assert num_state_groups == 1 or attention_group == 0
        self.memory = memory
        self.chunking = chunking
        self.enable_caching = enable_caching
        self.log_stats = log_stats
        self.hash_block_size = hash_block_size
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.empty_kv_cache_blocks = NOTHING_NEW
        self._attention_first = attention_group == 0
        self._num_state_groups = num_state_groups
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, SequenceMemory] = {}
        """Sequences of requests that were looked up and do not run."""
        self._looked_up: _LookedUp | None = None
        self._refusal: StandingRefusal | None = None
        self._refused_by_headroom = False
        self.headroom_refusals = 0
        """Admissions refused although the pages were there, counted at each try."""
        self._new_blocks: list[int] = []
        self._new_composites: list[NewComposite] = []
        self.forks = Forks(memory) if memory.branching.leaves.max_leaves else None
        self._table_changes: list[TableChange] = []

    # -- what the scheduler calls --------------------------------------------------------------

    def enter(self, request: Request) -> None:
        """The request joins the queue."""
        if self.memory.counts_arrivals:
            self.memory.enter(self._sequence(request), request.num_tokens)
        if self.forks is not None:
            self.forks.enter(request, self._sequence(request))

    def new_step_starts(self) -> None:
        self.memory.cache.step += 1

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        return self.enable_caching and not request.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Request) -> tuple[PageIds, int, int]:
        """The joint hit of a waiting request: (pages, tokens, no junction to pin).

        Where its prefill stops is a question of its own (`stops`).
        """
        memory, refused = self.memory, False
        if not self.prefix_cache_lookup_enabled(request):
            hit = MISS
        else:
            sequence = self._sequence(request)
            refusal = self._refusal
            if (
                refusal is not None
                and refusal.num_tokens == request.num_tokens
                and refusal.stands(sequence)
            ):
                hit, refused = refusal.hit, True
            else:
                hit = self._find(request, sequence, memory.lookup)
        self._looked_up = _LookedUp(
            request_id=request.request_id, hit=hit, losses=memory.cache.num_losses, refused=refused
        )
        return NOTHING_NEW, hit.tokens, 0

    def stops(self, request: Request) -> Sequence[int]:
        """Where the prefill of a running request stops, or of the one that was looked up last."""
        running = self._running.get(request.request_id)
        if running is not None:
            return running.sequence.stops
        looked_up = self._looked_up
        assert looked_up is not None and looked_up.request_id == request.request_id
        return looked_up.hit.stops

    def hit_tokens(self, request: Request) -> int:
        """Tokens that a waiting request would take from the cache now."""
        if not self.prefix_cache_lookup_enabled(request):
            return 0
        return self._find(request, self._sequence(request), self.memory.peek).tokens

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
        """Room for a step of a running request, or admission of a waiting one; None refuses."""
        running = self._running.get(request.request_id)
        if running is None:
            return self._admit(request, num_new_tokens, nothing_runs=not has_scheduled_reqs)
        computed = request.num_computed_tokens
        end = computed + num_new_tokens
        if end <= running.sequence.quiet_end:
            return NOTHING_NEW
        return self._extend(running, computed, end)

    def get_blocks(self, request_id: str) -> PageIds:
        running = self._running[request_id]
        blocks = self.memory.cache.attention.block_ids(running.sequence)
        return self._ids(blocks, [table.copy() for table in running.state_tables])

    def get_block_ids(self, request_id: str) -> tuple[Sequence[int], ...]:
        return self.get_blocks(request_id).ids

    def free(self, request: Request) -> None:
        """A finished request leaves; any other one is preempted."""
        self._refusal = None
        running = self._running.pop(request.request_id, None)
        if running is None:  # it never ran, or was preempted before
            self._waiting.pop(request.request_id, None)
            self.memory.unpin(request.request_id)
            self._leave_forks(request)
            return
        # A step in flight is computed before anything that is scheduled from now on; only this very
        # step is not. The last token of an asynchronous one, and so its block's key, is not known.
        computed = min(request.num_computed_tokens, request.num_tokens)
        self._leave_forks(request)
        if request.is_finished():
            leaf = None
            if self.forks is not None:
                leaf = self.forks.leaf_at_end(request, running.sequence, computed)
            self.memory.release(running.sequence, computed, leaf=leaf)
        else:
            self.memory.preempt(running.sequence, computed)
            self._waiting[request.request_id] = running.sequence
            self.enter(request)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publication happens in `extend`; the asynchronous scheduler calls this as well."""

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        if self.prefix_cache_stats is not None and self.prefix_cache_lookup_enabled(request):
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
        """Attention blocks handed out in this step; the worker zeroes them, since old state bytes
        read as bf16 may be NaN."""
        blocks, self._new_blocks = self._new_blocks, []
        return blocks

    def take_new_composites(self) -> list[NewComposite]:
        """States first used in this step."""
        composites, self._new_composites = self._new_composites, []
        return composites

    def take_fork_work(self) -> ForkWork | None:
        """What the worker does for forks in this step."""
        changes, self._table_changes = self._table_changes, []
        copies = self.memory.take_copies()
        return ForkWork(changes=changes, copies=copies) if copies else None

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
        self.memory.cache.reset()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    @property
    def usage(self) -> float:
        return pool_usage(self.memory.cache.pools)

    # -- inside --------------------------------------------------------------------------------

    def _sequence(self, request: Request) -> SequenceMemory:
        sequence = self._waiting.get(request.request_id)
        if sequence is None:
            keys = prefix_keys(
                request.block_hashes,
                hash_block_size=self.hash_block_size,
                block_size=self.memory.block_size,
                checkpoint_grid=self.memory.checkpoint_grid,
            )
            sequence = self._waiting[request.request_id] = SequenceMemory(
                request_id=request.request_id,
                keys=self.chunking.keys(keys, request.num_prompt_tokens),
                num_prompt_tokens=request.num_prompt_tokens,
                has_asked=not self.prefix_cache_lookup_enabled(request),
            )
        return sequence

    def _leave_forks(self, request: Request) -> None:
        if self.forks is not None:
            self.forks.leave(request.request_id)

    def _find(
        self,
        request: Request,
        sequence: SequenceMemory,
        look: Callable[[SequenceMemory, int], Hit],
    ) -> Hit:
        """The deeper one of a leaf and a boundary; a state is never kept as both.

        Args:
            look: `lookup` or `peek` of the memory.
        """
        hit = look(sequence, max_hit(request) + 1)
        return hit if self.forks is None else hit.or_deeper(self.forks.find(request, sequence))

    def _admit(
        self, request: Request, num_new_tokens: int, *, nothing_runs: bool
    ) -> PageIds | None:
        memory, sequence = self.memory, self._sequence(request)
        looked_up, self._looked_up = self._looked_up, None
        if looked_up is None or looked_up.request_id != request.request_id:
            raise MemoryFault(f"request {request.request_id} is admitted without a lookup")
        if looked_up.losses != memory.cache.num_losses:
            raise MemoryFault(
                f"request {request.request_id} was looked up before entries were lost"
            )
        hit = looked_up.hit
        if looked_up.refused:
            memory.cache.counters.refusals += 1
            self.headroom_refusals += self._refused_by_headroom
            if memory.cache.observer is not None:
                memory.cache.observer.on_refuse_again(sequence, 1)
            return None
        if not hit.ready:
            return None
        while refusal := memory.refusal(
            sequence, hit, request.num_tokens, nothing_runs=nothing_runs
        ):
            if not nothing_runs:
                self._refused_by_headroom = refusal.by_headroom
                self.headroom_refusals += refusal.by_headroom
                self._remember_refusal(request, sequence, hit, by_price=refusal.by_price)
                return None
            if not memory.give_way():
                return None
            if self._find(request, sequence, memory.lookup) != hit:
                return None  # it gave way with its own hit: the next step looks again
        self._refusal = None
        memory.admit(sequence, hit, request.num_tokens)
        extended = memory.extend(sequence, hit.tokens, hit.tokens + num_new_tokens)
        assert extended, "admission counts at least what the first chunk needs"
        if self.forks is not None:
            self.forks.advance(sequence, hit.tokens + num_new_tokens)
        del self._waiting[request.request_id]
        attention = memory.cache.attention
        self._new_blocks += attention.block_ids(
            sequence, len(hit.blocks) * attention.blocks_per_page
        )
        tables: list[list[int]] = [[] for _ in range(self._num_state_groups)]
        read = sequence.superseded or sequence.state
        if hit.checkpoint is not None and read is not None:
            _enter(tables, (hit.tokens - 1) // memory.checkpoint_grid, read)
        self._running[request.request_id] = _Running(sequence=sequence, state_tables=tables)
        if sequence.state is not hit.checkpoint:
            self._enter_new_state(sequence, tables)
        return self.get_blocks(request.request_id)

    def _remember_refusal(
        self, request: Request, sequence: SequenceMemory, hit: Hit, *, by_price: bool
    ) -> None:
        """The next steps need not look again. A request that reads no cache has nothing to look
        for."""
        if request.skip_reading_prefix_cache:
            return
        self._refusal = StandingRefusal(
            self.memory.cache,
            sequence,
            hit,
            request.num_tokens,
            losses_matter=True,
            by_price=by_price,
        )

    def _extend(self, running: _Running, computed: int, end: int) -> PageIds | None:
        sequence, tables, memory = running.sequence, running.state_tables, self.memory
        attention = memory.cache.attention
        num_blocks, num_pages = attention.num_blocks(sequence), len(sequence.blocks)
        num_positions, state = len(tables[0]), sequence.state
        tail = sequence.blocks[-1] if num_pages else None
        while not memory.extend(sequence, computed, end):
            if len(self._running) > 1 or not memory.give_way(sequence):
                return None
        if self.forks is not None:
            self.forks.advance(sequence, end)
        new_blocks = attention.block_ids(sequence, num_blocks)
        self._new_blocks += new_blocks
        if num_pages and sequence.blocks[num_pages - 1] != tail:
            self._change(sequence, 0, num_pages - 1, sequence.blocks[num_pages - 1])
        if sequence.state is not state:
            self._enter_new_state(sequence, tables)
            if len(tables[0]) == num_positions:
                for kind, table in enumerate(tables, start=1):
                    self._change(sequence, kind, num_positions - 1, table[-1])
        elif state is not None and sequence.state_index >= num_positions:
            _enter(tables, sequence.state_index, state)  # the same one, written in place
        return self._ids(new_blocks, [table[num_positions:] for table in tables])

    def _change(self, sequence: SequenceMemory, kind: int, position: int, page: int) -> None:
        """Change a table that the worker already has: 0 is attention's, the others are states'."""
        group = kind if self._attention_first else 1 - kind
        self._table_changes.append(
            TableChange(
                request_id=str(sequence.request_id), group=group, position=position, page=page
            )
        )

    def _enter_new_state(self, sequence: SequenceMemory, tables: list[list[int]]) -> None:
        state = sequence.state
        assert state is not None
        _enter(tables, sequence.state_index, state)
        self._new_composites.append(
            NewComposite(composite_id=state.pages[0], pages=tuple(state.pages), line=state.line)
        )

    def _ids(self, attention: list[int], states: list[list[int]]) -> PageIds:
        return PageIds((attention, *states) if self._attention_first else (*states, attention))


def _enter(tables: list[list[int]], position: int, checkpoint: Checkpoint) -> None:
    """Put a composite of each group at its position; positions that were skipped hold the null
    id. A single group has the representative page."""
    for table, page in zip(tables, checkpoint.pages, strict=False):
        del table[position:]  # a copy takes the place of what it was copied from
        table += [NULL_ID] * (position - len(table))
        table.append(page)
