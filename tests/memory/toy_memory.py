"""Memories of countable size for all organizations, and a view of everything a memory keeps.

Block of 8 tokens and a checkpoint grid of 8 (D0: block of 2; S3: tail blocks of 2). Sizes follow
from two tiny models:

    TINY      KV 128 B a token, SSM 3,072 B, convolution 224 B
      S0      page 3,296 B   a block, or a whole state
      S1      page 1,024 B   a block; a state is 3 members + 1 convolution page
      S2      page 1,024 B   a block; a state is 3 members + one of a slab's 4 slots of 256 B
      S3      as S2; a page holds 4 tail blocks as well
    TINY_D0   KV 128 B a token, SSM 192 B, convolution 64 B
      D0      unit 256 B of attention (2 tokens), 256 B composites (2 tokens' KV, so grid 8)

With three recurrent layers for each attention layer a checkpoint has three composites:

    TINY_3    KV 128 B a token, SSM 400 B, convolution 80 B
      S0      page 1,024 B   a block, or a composite; a state is 3 pages
      S1      page 1,024 B   a block; a state is 3 members + 3 convolution pages
      S2      page 1,024 B   a block; a state is 3 members + one of a slab's 4 slots of 256 B
    TINY_D0   a state is 3 composites of 256 B
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from copy import deepcopy
from typing import Any

from cores import IS_COMPILED

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option, standing_options
from hsexp.memory import (
    Hit,
    HybridMemory,
    MemoryConfig,
    Observer,
    PagePool,
    PrefixKeys,
    SequenceMemory,
    build_memory,
)
from hsexp.memory.checkpoint import Checkpoint, Slab
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig, create
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.organizations.s0 import S0Config
from hsexp.memory.organizations.s1 import S1Config
from hsexp.memory.organizations.s2 import S2Config
from hsexp.memory.organizations.s3 import S3Config
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.eviction.paper import ReleaseOrder
from hsexp.memory.policies.eviction.queue import TwoEndedQueue
from hsexp.memory.policies.eviction.ranked import Ranking
from hsexp.memory.policies.leaves import NO_LEAVES, FinalLeaves
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import PlacementConfig
from hsexp.memory.policies.pricing import Price, PricedRetention
from hsexp.memory.policies.reservation import ReservationConfig
from hsexp.memory.policies.retention import DemandedRetention, RetentionConfig
from hsexp.memory.policies.states import StatesConfig
from hsexp.memory.prefixes import Block, Restart
from hsexp.memory.slab import SlabStateStore
from hsexp.memory.tails import PackedTails

ORGANIZATIONS = ("s0", "s1", "s2", "s3", "d0")
WHOLE_PAGES = tuple(name for name in ORGANIZATIONS if name != "s3")
"""Those without packed tails: their sequences fork, and what they generate is cached."""

GRID = 8

TINY = ModelConfig(
    name="tiny",
    num_attention_layers=1,
    num_recurrent_layers=1,
    num_kv_heads=1,
    head_dim=32,  # 2 * 32 * 2 B = 128 B of KV a token
    ssm_heads=2,
    ssm_head_dim=32,
    d_state=24,  # 64 * 24 * 2 B = 3,072 B: three pages of 8 tokens
    ssm_groups=1,
    conv_width=2,  # (64 + 2 * 24) * 2 B = 224 B
    dtype_bytes=2,
    max_model_tokens=512,
    d0_attention_fraction=0.5,
)
TINY_D0 = TINY.model_copy(
    update={"ssm_heads": 1, "ssm_head_dim": 8, "d_state": 12}  # 8 * 12 * 2 B and (8 + 24) * 2 B
)

TINY_3 = TINY.model_copy(
    update={
        "num_recurrent_layers": 3,
        "ssm_heads": 1,
        "ssm_head_dim": 20,
        "d_state": 10,  # 20 * 10 * 2 B = 400 B, and (20 + 2 * 10) * 2 B = 80 B
    }
)

NATIVE_ORDER = ReleaseOrder(
    hashed="tail",
    plain_attention="head",
    plain_representative="head",
    plain_members="tail",
    idle_slab="head",
)


def toy_config(name: str, *, grid: int = GRID, **changes: Any) -> OrganizationConfig:
    """An organization without a reserve that counts one state at admission."""
    common: dict[str, Any] = {
        "kind": name,
        "name": name,
        "block_size": 2 if name == "d0" else 8,
        "reserve_fraction": 0.0,
        "num_admission_states": 1,
        "release_order": NATIVE_ORDER,
    }
    match name:
        case "s0":
            return S0Config(**(common | {"checkpoint_grid": grid} | changes))
        case "s1":
            return S1Config(**(common | {"checkpoint_grid": grid} | changes))
        case "s2":
            return S2Config(**(common | {"checkpoint_grid": grid, "slot_bytes": 256} | changes))
        case "s3":
            packed = {"checkpoint_grid": grid, "slot_bytes": 256, "tail_block_size": 2}
            return S3Config(**(common | packed | changes))
        case _:
            native: dict[str, Any] = {
                "checkpoint_multiple": grid,
                "checkpoint_grid": None,
                "attention_fraction": None,
            }
            return D0Config(**(common | native | changes))


EVICTIONS: dict[str, Any] = {
    name: parse_union(EvictionConfig, read_option("eviction", name), path="eviction")
    for name in standing_options("eviction")
}
"""Every order of eviction, by its name."""

RANKED = [name for name, option in EVICTIONS.items() if option.knows_prefixes]
"""Those that rank restart points, which priced retention needs."""

PRICES = (0.5, 4.0, 30.0)
"""Toy prices at which no, some and every restart point may be taken."""

PLACEMENTS: dict[str, Any] = {
    name: parse_union(PlacementConfig, read_option("placement", name), path="placement")
    for name in standing_options("placement")
}
"""Every placement of checkpoints, by its name."""

RESERVATIONS: dict[str, Any] = {
    name: parse_union(ReservationConfig, read_option("reservation", name), path="reservation")
    for name in standing_options("reservation")
}
"""Every reservation of an admission, by its name."""

STATES: dict[str, Any] = {
    name: parse_union(StatesConfig, read_option("states", name), path="states")
    for name in standing_options("states")
}
"""Every rule of states, by its name."""

standing_eviction = "paper"
"""The order of a memory whose test names none."""

standing_reservation = "full_prompt"
"""Likewise its reservation."""

standing_states = "per_boundary"
"""Likewise its rule of states."""


def toy_memory(
    name: str,
    num_pages: int,
    *,
    num_states: int = 20,
    headroom: float = 0.0,
    retention: int | None = None,
    price: float | None = None,
    pinning: int | None = None,
    protected: float = 1.0,
    eviction: str | None = None,
    placement: str = "chunk_ends",
    reservation: str | None = None,
    states: str | None = None,
    observer: Observer | None = None,
    max_leaves: int = 0,
    max_final: int = 0,
    max_drafts: int = 0,
    composites: int = 1,
    **changes: Any,
) -> HybridMemory:
    """`num_pages` usable pages; in D0 those are attention units, beside `num_states` composites.

    Args:
        composites: of a checkpoint, 1 or 3.
        retention: K of S2+Retention, or None.
        price: what a step costs, in prefill tokens, with priced retention; None keeps `retention`.
        pinning: K of pinning at preemption, or None.
        protected: fraction of the recurrent pool that pins may hold.
        eviction: one of `EVICTIONS`; None uses `standing_eviction`.
        placement: one of `PLACEMENTS`.
        reservation: one of `RESERVATIONS`; None uses `standing_reservation`.
        states: one of `STATES`; None uses `standing_states`.
        max_final: most leaves of finished requests; 0 keeps none.
        changes: fields of the organization's configuration, or its checkpoint `grid`.
    """
    config = toy_config(name, **changes)
    if isinstance(config, D0Config):
        # Half a unit above the whole one, so that both pools round down to what was asked for.
        total = num_pages + 1 + num_states + 1 + 1
        fraction = (num_pages + 1.5) / total
        model = TINY_D0.model_copy(update={"num_recurrent_layers": composites})
        config = config.model_copy(update={"attention_fraction": fraction})
        nominal_bytes = total * 256
    else:
        model = {1: TINY, 3: TINY_3}[composites]
        nominal_bytes = (num_pages + 1) * create(config, model).plan(1 << 20).pools[0].page_bytes
    kept: RetentionConfig = DemandedRetention(name="toy", requesters=retention)
    if price is not None:
        kept = PricedRetention(
            kind="priced", name="toy", step_s=price, prefill_token_s=1.0, output_tokens=8
        )
    memory = build_memory(
        MemoryConfig(
            model=model,
            organization=config,
            admission=AdmissionConfig(headroom=headroom, cap=64),
            retention=kept,
            pinning=PinningConfig(name="toy", requesters=pinning, protected_fraction=protected),
            eviction=EVICTIONS[eviction or standing_eviction],
            placement=PLACEMENTS[placement],
            reservation=RESERVATIONS[reservation or standing_reservation],
            states=STATES[states or standing_states],
            leaves=FinalLeaves(kind="final", name="toy", max_final=max_final)
            if max_final
            else NO_LEAVES,
        ),
        nominal_bytes,
        observer=observer,
        max_leaves=max_leaves,
        max_drafts=max_drafts,
    )
    usable = [pool.spec.num_usable for pool in memory.cache.pools]
    assert usable == ([num_pages, num_states] if name == "d0" else [num_pages])
    return memory


MISS = Hit(tokens=0)


# -- requests ------------------------------------------------------------------------------------


def toy_sequence(
    memory: HybridMemory,
    request_id: int | str,
    num_prompt_tokens: int = 64,
    *,
    content: Hashable = "X",
    shared: int = 64,
    salt: str | None = None,
) -> SequenceMemory:
    """A request whose first `shared` tokens have this content; the others are its own."""

    def keys(grid: int) -> list[Hashable]:
        return [
            (salt, content if end <= shared else request_id, end) for end in range(grid, 257, grid)
        ]

    return SequenceMemory(
        request_id=request_id,
        keys=PrefixKeys(
            attention=keys(memory.block_size), checkpoints=keys(memory.checkpoint_grid)
        ),
        num_prompt_tokens=num_prompt_tokens,
    )


def admit(memory: HybridMemory, sequence: SequenceMemory, num_tokens: int) -> int:
    """Look up and admit. Returns the tokens of the hit."""
    hit = memory.lookup(sequence, num_tokens)
    memory.admit(sequence, hit, num_tokens)
    return hit.tokens


def run_steps(memory: HybridMemory, sequence: SequenceMemory, *ends: int, start: int = 0) -> None:
    """Extend to each end in a step of its own."""
    for end in ends:
        memory.cache.step += 1
        assert memory.extend(sequence, start, end), f"no room for tokens {start} to {end}"
        start = end
    memory.cache.step += 1


def compute(
    memory: HybridMemory, request_id: int | str, num_tokens: int, **kwargs: Any
) -> SequenceMemory:
    """A new request that computes `num_tokens` from scratch, one grid interval a step."""
    sequence = toy_sequence(memory, request_id, num_tokens, **kwargs)
    memory.admit(sequence, MISS)
    grid = memory.checkpoint_grid
    run_steps(memory, sequence, *range(grid, num_tokens, grid), num_tokens)
    return sequence


def leave_cached(
    memory: HybridMemory, request_id: int | str, num_tokens: int, **kwargs: Any
) -> None:
    """A request that computes `num_tokens` and finishes."""
    memory.release(compute(memory, request_id, num_tokens, **kwargs), num_tokens)


# -- what a memory keeps -------------------------------------------------------------------------


def free_pages(memory: HybridMemory) -> list[int]:
    return [pool.num_free for pool in memory.cache.pools]


def all_free(memory: HybridMemory) -> bool:
    return all(pool.num_free == pool.spec.num_usable for pool in memory.cache.pools)


def queue_of(pool: PagePool) -> list[int]:
    return list(pool.free_pages())


def leave_free(memory: HybridMemory, attention: int, recurrent: int) -> None:
    """A foreign holder takes all pages but these; in a shared pool their sum is left."""
    if len(memory.cache.pools) == 1:
        memory.cache.attention_pool.take(
            memory.cache.attention_pool.num_free - attention - recurrent
        )
    else:
        memory.cache.attention_pool.take(memory.cache.attention_pool.num_free - attention)
        memory.cache.states.pool.take(memory.cache.states.pool.num_free - recurrent)


def pages_in_order(pool: PagePool) -> OrderedDict[int, None]:
    """The free queue itself."""
    assert isinstance(pool._queue, TwoEndedQueue)
    return pool._queue.pages


def put_first(pool: PagePool, page: int) -> None:
    """Let this queued page be the next to go."""
    pages_in_order(pool).move_to_end(page, last=False)


def put_last(pool: PagePool, page: int) -> None:
    pages_in_order(pool).move_to_end(page)


def reassign(pool: PagePool, *pages: int) -> None:
    """Give queued pages a new owner, as if they were the next to go, and free them again."""
    if not isinstance(pool._queue, TwoEndedQueue):
        pool._queue.remove(pages)
        pool.on_reassign(list(pages))
        pool._queue.put(pages, "attention", pool.entries)
        return
    for page in reversed(pages):
        put_first(pool, page)
    taken = pool.take(len(pages))
    assert taken == list(pages)
    free_last(pool, taken)


def free_last(pool: PagePool, pages: Iterable[int]) -> None:
    """Free these pages, so that they are the last to go where an order allows it."""
    freed = list(pages)
    pool.release(freed, "attention")
    if isinstance(pool._queue, TwoEndedQueue):
        for page in freed:
            put_last(pool, page)


def tail_store(memory: HybridMemory) -> PackedTails:
    assert isinstance(memory.cache.attention, PackedTails)
    return memory.cache.attention


def slab_store(memory: HybridMemory) -> SlabStateStore:
    assert isinstance(memory.cache.states, SlabStateStore)
    return memory.cache.states


def state_of(sequence: SequenceMemory) -> Checkpoint:
    assert sequence.state is not None
    return sequence.state


def cached_checkpoints(memory: HybridMemory) -> dict[Hashable, list[Checkpoint]]:
    """Checkpoints by key, the oldest first."""
    index = memory.cache.checkpoint_index
    return {key: [oldest, *index.duplicates.get(key, [])] for key, oldest in index.oldest.items()}


def cached_boundaries(memory: HybridMemory, sequence: SequenceMemory) -> list[int]:
    """Boundaries of the sequence's prefix that have a checkpoint, in tokens."""
    return [
        (index + 1) * memory.checkpoint_grid
        for index, key in enumerate(sequence.keys.checkpoints)
        if key in memory.cache.checkpoint_index.oldest
    ]


def snapshot(memory: HybridMemory) -> dict[str, Any]:
    """All that must be equal before and after an operation that changes nothing."""
    store, blocks = memory.cache.states, memory.cache.block_index
    view: dict[str, Any] = {
        "pools": [
            {
                "queue": list(pool.free_pages()),
                "refs": list(pool.refs),
                "entries": [_entry(entry) for entry in pool.entries],
            }
            for pool in memory.cache.pools
        ],
        "blocks": (dict(blocks.oldest), _copied(blocks.duplicates)),
        "checkpoints": {
            key: [_checkpoint(state) for state in states]
            for key, states in cached_checkpoints(memory).items()
        },
        "sequences": {
            request_id: (
                list(sequence.blocks),
                list(sequence.tail),
                sequence.num_published_blocks,
                _checkpoint(sequence.state),
                sequence.state_index,
                _checkpoint(sequence.superseded),
                [_checkpoint(state) for state in sequence.retained],
            )
            for request_id, sequence in memory.cache.sequences.items()
        },
        "pins": {key: _checkpoint(state) for key, state in memory.pinning.pins().items()},
        "supply": memory.cache.supply,
        "step": memory.cache.step,
    }
    if isinstance(store, SlabStateStore):
        view["slabs"] = {page: _slab(slab) for page, slab in store.slabs.items()}
        view["free_active_slots"] = store.free_active_slots
    if isinstance(memory.cache.attention, PackedTails):
        view["tails"] = memory.cache.attention.free_slots()
    for name in ("retention", "pinning"):
        demand = getattr(getattr(memory, name), "demand", None)
        if demand is not None:
            view[f"{name} demand"] = {key: set(ids) for key, ids in demand._requesters.items()}
    return view


def _copied(lists: dict[Hashable, list[int]]) -> dict[Hashable, list[int]]:
    return {key: list(entries) for key, entries in lists.items()}


def _entry(entry: Any) -> Any:
    if isinstance(entry, Checkpoint):
        return _checkpoint(entry)
    return _slab(entry) if isinstance(entry, Slab) else entry


def _checkpoint(state: Checkpoint | None) -> Any:
    if state is None:
        return None
    return (id(state), tuple(state.pages), state.slot, state.refs, state.key, state.tokens)


def _slab(slab: Slab) -> Any:
    return (slab.page, slab.serial, slab.free_mask, slab.num_active)


# -- priced retention ----------------------------------------------------------------------------


def check_price(memory: HybridMemory, hit: Hit, need: list[int]) -> None:
    """Give up what an admission with this hit may take, on a copy of the memory: exactly the pages
    that it counts on can be taken before a restart point that it must keep loses one."""
    if not isinstance(memory.retention, Price) or IS_COMPILED:  # which cannot be copied
        return
    copy, hit, need = deepcopy((memory, hit, need))
    cache, price = copy.cache, copy.retention
    assert isinstance(price, Price) and isinstance(cache.prefixes, Ranking)
    permit = price.permit(hit, need)
    if hit.checkpoint is not None:
        cache.attention_pool.hold(hit.blocks)
        cache.states.hold(hit.checkpoint)
    taken = {restart for restart, _ in permit.permitted}
    kept = [each for each in cache.prefixes.proven() if each not in taken]
    in_use = list(cache.prefixes.in_use())
    for restart, _ in permit.permitted:
        cache.prefixes.sacrifice_all(restart)
    protected = [pages_of(copy, kept, in_use, pool) for pool in cache.pools]
    for place, pool in enumerate(cache.pools):
        assert len(protected[place]) == permit.kept[place]
        count = pool.num_free - permit.kept[place]
        assert not protected[place] & set(pool.take(count))
    for restart in kept:
        assert cache.checkpoint_index.oldest[restart.key] is restart.checkpoint
        assert restart.supports


def pages_of(
    memory: HybridMemory, kept: list[Restart], in_use: list[Restart], pool: PagePool
) -> set[int]:
    """Free pages of this pool in restart points to keep, and in attention of those in use."""
    pages: set[int] = set()
    for restart in (*kept, *in_use):
        if pool is memory.cache.attention_pool:
            block: Block | None = restart.anchor
            while block is not None:
                pages.add(block.page)
                block = block.parent
        if pool is memory.cache.states.pool and restart.checkpoint.refs == 0:
            pages.update(restart.checkpoint.pages)
            if restart.checkpoint.slab is not None:
                pages.add(restart.checkpoint.slab.page)
    return {page for page in pages if pool.refs[page] == 0}
