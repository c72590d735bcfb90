"""Recount of a cache: every reference has an owner, and every entry is in an index."""

from collections.abc import Iterable
from typing import Any

from hsexp.memory.cache import Cache
from hsexp.memory.checkpoint import Checkpoint, Slab
from hsexp.memory.sequence import SequenceMemory


def check_cache(cache: Cache, *, others: Iterable[int | Checkpoint]) -> None:
    """Recount references, entries and slots from the live sequences and the indexes.

    Args:
        others: attention pages and states that are held outside sequences, once for each
            reference.
    """
    for pool in cache.pools:
        pool.check_integrity()
    cache.states.check_integrity()
    sequences = cache.sequences.values()
    cache.attention.check_integrity(sequences)
    for sequence in sequences:
        _check_quiet(cache, sequence)
    blocks = [page for sequence in sequences for page in sequence.blocks]
    blocks += cache.attention.shared_pages()
    states = [state for sequence in sequences for state in sequence.states]
    for held in others:
        if isinstance(held, Checkpoint):
            states.append(held)
        else:
            blocks.append(held)
    _check_references(cache, blocks, states)
    _check_entries(cache)


def _check_quiet(cache: Cache, sequence: SequenceMemory) -> None:
    """Until `quiet_end` no block or state has to be taken, published or released; until `idle_end`
    no state."""
    assert sequence.quiet_end == 0 or (
        sequence.superseded is None
        and sequence.quiet_end <= (sequence.state_index + 1) * cache.checkpoint_grid
    )
    assert sequence.idle_end == 0 or (
        sequence.superseded is None
        and not sequence.num_planned
        and sequence.idle_end < (sequence.state_index + 1) * cache.checkpoint_grid
    )


def _check_references(cache: Cache, blocks: list[int], states: list[Checkpoint]) -> None:
    """The pools have exactly these references, and no page belongs to two owners."""
    attention, recurrent = cache.attention_pool, cache.states.pool
    num_refs: dict[int, int] = {}
    for state in states:
        num_refs[id(state)] = num_refs.get(id(state), 0) + 1
    held = {id(state): state for state in states}
    cached = {id(state): state for _, state in cache.checkpoint_index}
    owner: dict[tuple[int, int], Any] = {}
    for state in (held | cached).values():
        assert state.refs == num_refs.get(id(state), 0)
        for page in state.pages:
            assert owner.setdefault((id(recurrent), page), state) is state
            assert id(state) not in held or recurrent.refs[page] == 1
            assert id(state) not in cached or recurrent.entries[page] is state
    for page in set(blocks):
        assert attention.refs[page] == blocks.count(page)
        assert (id(attention), page) not in owner
    slabs = {state.slab.page for state in held.values() if state.slab is not None}
    num_held = len(blocks) + sum(len(state.pages) for state in held.values()) + len(slabs)
    assert num_held == sum(sum(pool.refs) for pool in cache.pools)


def _check_entries(cache: Cache) -> None:
    """Entries of pages and entries of indexes match in both directions."""
    blocks = {(key, page) for key, page in cache.block_index}
    checkpoints = {id(checkpoint) for _, checkpoint in cache.checkpoint_index}
    for key, page in cache.block_index:
        assert cache.attention_pool.entries[page] == key
    for pool in cache.pools:
        for page, entry in enumerate(pool.entries):
            if type(entry) is Checkpoint:
                assert id(entry) in checkpoints and page in entry.pages
            elif entry is not None and type(entry) is not Slab:
                assert (entry, page) in blocks
