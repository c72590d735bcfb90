"""Use of the pools over the steps of a run: stranded bytes, slabs, and padding (E.1, E.12).

Every step counts once, however long it takes. All of it is replayed from the moves of pages; the
scheduler's own sums (`hsexp.memory.sums`) must be the same.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsexp.trace.pools import Agreement, PoolReplay, at_each_step
from hsexp.trace.trace import Event, Trace
from hsexp.trace.work import Life, lives


@dataclass(frozen=True, kw_only=True)
class SlabUse:
    """Slabs of convolution states over the steps (S2)."""

    slab_steps: tuple[int, ...]
    """Slabs by the number of their slots in use, times the steps; no slab is empty."""
    max_slabs: int
    max_used: int
    """Most slots in use at once; not at the step with the most slabs, perhaps."""
    conserved: Agreement
    """Steps at which the slabs are the pages that were taken for slabs, and the slots in use are
    the states that are held or cached."""

    @property
    def slab_slot_steps(self) -> int:
        """Slots of all slabs."""
        return (len(self.slab_steps) - 1) * sum(self.slab_steps)

    @property
    def used_slot_steps(self) -> int:
        return sum(used * count for used, count in enumerate(self.slab_steps))


@dataclass(frozen=True, kw_only=True)
class SlabLosses:
    """Checkpoints that were lost with a slab, whose page went to another owner."""

    reclaimed_slabs: int
    lost_checkpoints: int
    of_others: int
    """Of these, those that another request had published than the one that took the page."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Sums over the steps of a run."""

    num_steps: int
    exhausted_steps: tuple[int, ...]
    """Steps that leave each pool without a free page."""
    stranded_byte_steps: int | None
    """Free bytes of one pool while another one is exhausted; None for a single pool."""
    pool_byte_steps: int | None
    slabs: SlabUse | None
    """None where states have no slabs."""


def usage(trace: Trace) -> Usage:
    """The use of the pools at every step.

    Raises:
        TraceError: the events contradict each other.
    """
    pools = trace.memory.pools
    total_bytes = sum((pool.num_pages - 1) * pool.page_bytes for pool in pools)
    num_all = stranded = 0
    exhausted = [0] * len(pools)
    slabs = None if trace.memory.slab_slots is None else _SlabSums(trace.memory.slab_slots)
    for num_steps, replay in at_each_step(trace):
        num_all += num_steps
        if 0 in replay.num_free:
            free = zip(replay.num_free, pools, strict=True)
            stranded += num_steps * sum(pages * pool.page_bytes for pages, pool in free)
            for pool, pages in enumerate(replay.num_free):
                exhausted[pool] += num_steps * (pages == 0)
        if slabs is not None:
            slabs.add(replay, num_steps)
    is_split = len(pools) > 1
    return Usage(
        num_steps=num_all,
        exhausted_steps=tuple(exhausted),
        stranded_byte_steps=stranded if is_split else None,
        pool_byte_steps=num_all * total_bytes if is_split else None,
        slabs=None if slabs is None else slabs.result(),
    )


class _SlabSums:
    def __init__(self, num_slots: int) -> None:
        self._slab_steps = [0] * (num_slots + 1)
        self._max_slabs = self._max_used = self._num_all = self._num_conserved = 0

    def add(self, replay: PoolReplay, num_steps: int) -> None:
        slabs = replay.slabs
        assert slabs is not None
        for used, count in enumerate(slabs.by_used):
            self._slab_steps[used] += num_steps * count
        num_slabs = sum(slabs.by_used)
        self._max_slabs = max(self._max_slabs, num_slabs)
        self._max_used = max(self._max_used, slabs.num_used)
        pool = replay.memory.recurrent_pool
        held, cached = replay.count(pool), replay.count_cached(pool)
        state_pages = held["state"] + cached["state"]
        used = sum(used * count for used, count in enumerate(slabs.by_used))
        self._num_all += num_steps
        self._num_conserved += num_steps * (
            held["slab"] + cached["slab"] == num_slabs
            and state_pages == used * replay.memory.pages_per_state
        )

    def result(self) -> SlabUse:
        return SlabUse(
            slab_steps=tuple(self._slab_steps),
            max_slabs=self._max_slabs,
            max_used=self._max_used,
            conserved=Agreement(num_equal=self._num_conserved, num_all=self._num_all),
        )


def slab_losses(trace: Trace) -> SlabLosses:
    """Checkpoints lost with their slabs.

    Raises:
        TraceError: the events contradict each other.
    """
    replay, producers = PoolReplay(trace.memory), dict[int, int]()
    slabs, lost, others = 0, 0, 0
    last: int | None = None
    for event in trace.rows("take", "hold", "free", "state", "copy", "publish", "lose"):
        if event.kind == "publish" and event.entry == "state":
            producers[event.pages[0]] = event.request
        if event.kind == "lose" and event.cause == "slab" and replay.slabs is not None:
            slab = replay.slabs.slab_of(event.pages[0])
            lost += 1
            slabs += slab != last
            others += producers[event.pages[0]] != event.request
            last = slab
        else:
            last = None
        replay.apply(event)
    return SlabLosses(reclaimed_slabs=slabs, lost_checkpoints=lost, of_others=others)


# -- padding ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Attention blocks that running requests have, and their tokens, summed over the steps.

    A block that several requests share counts for each of them; it is full, and adds no padding.
    """

    block_token_steps: int
    """Tokens that the blocks have room for."""
    token_steps: int
    """Tokens that they hold, those of the step included."""

    @property
    def padding_token_steps(self) -> int:
        """Room in blocks that are partly filled."""
        return self.block_token_steps - self.token_steps


def padding(trace: Trace) -> Padding:
    """Room in the blocks of running requests that no token fills."""
    steps = trace.rows("step")
    ran, decoded = _numbers(steps), _numbers([step for step in steps if step.decode_tokens])
    room = held = 0
    for life in lives(trace):
        starts, tokens = _tokens_over_time(life, decoded)
        if life.left_step is None:
            continue
        end = life.left_step + (life.cause == "finished")
        num_steps = np.diff(np.searchsorted(ran, np.append(starts, end)))
        held += int((num_steps * tokens).sum())
        room += int((num_steps * _room(life, tokens, trace)).sum())
    return Padding(block_token_steps=room, token_steps=held)


def _numbers(steps: list[Event]) -> NDArray[np.int64]:
    stretches = [np.arange(step.step, step.step + step.count) for step in steps]
    return np.concatenate([np.arange(0), *stretches])


def _tokens_over_time(
    life: Life, decoded: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps from which a request has so many tokens, and the tokens."""
    chunk_steps = np.array([step for step, _ in life.chunks], dtype=np.int64)
    chunks = np.array([tokens for _, tokens in life.chunks], dtype=np.int64)
    last = life.adopted_step if life.last_chunk_step is None else life.last_chunk_step
    first = int(np.searchsorted(decoded, last, side="right"))
    decode_steps = decoded[first : first + life.decode_tokens]
    tokens = life.adopted_tokens + np.cumsum(
        np.concatenate([[0], chunks, np.ones(decode_steps.size, dtype=np.int64)])
    )
    return np.concatenate([[life.adopted_step], chunk_steps, decode_steps]), tokens


def _room(life: Life, tokens: NDArray[np.int64], trace: Trace) -> NDArray[np.int64]:
    """Tokens that the blocks of a request hold when they are full."""
    size, small = trace.memory.block_size, trace.memory.kernel_block_size
    if size == small:
        return np.asarray(-(-tokens // size) * size)
    own = life.prompt_tokens - life.prompt_tokens % size  # the rest is in slots of tail slabs
    in_tail = -(-(tokens - own) // small) * small
    return np.asarray(np.where(tokens <= own, -(-tokens // size) * size, own + in_tail))
