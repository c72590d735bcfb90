"""What a memory knows about the prefixes in its cache: their shape, and who asks for them.

    block        cached attention block. Its parent is the block before it
    restart      cached checkpoint. It is anchored at the last block of its tokens
    supports     a restart whose attention is complete supports each block up to its anchor

    blocks       a ---- b ---- c ---- d ---- e
                               |      |
    restarts                   R      S               S supports a to d, R supports a to c
                                                      e supports nothing: an orphan

Demand is counted for boundaries, when requests arrive, and outlives the entries. Only orders of
eviction that rank prefixes need any of this (`hsexp.memory.policies.eviction.ranked`).
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hsexp.memory.checkpoint import Checkpoint
    from hsexp.memory.sequence import PrefixKeys

_MOST_WEIGHT = 1e100


class Demand:
    """How many distinct requests asked for a boundary, each one weighing less as others arrive.

    A request counts 1 when it arrives, and half of that `half_life` arrivals later. A boundary is
    proven while it counts more than 1, which no single request does.
    """

    def __init__(self, half_life: float) -> None:
        """
        Args:
            half_life: arrivals.
        """
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        """What the last arrival counts. It grows, where older ones would have to shrink."""
        self._total = 0.0
        """What all of them count."""
        self._counts: OrderedDict[Hashable, float] = OrderedDict()
        """By boundary; the one asked for longest ago comes first."""

    def register(self, keys: Sequence[Hashable]) -> None:
        """A request that has not been counted yet asks for these boundaries."""
        counts = self._counts
        self._weight = weight = self._weight * self._growth
        self._total += weight
        for key in keys:
            counts[key] = counts.get(key, 0.0) + weight
            counts.move_to_end(key)
        while counts and counts[oldest := next(iter(counts))] * 1024 < weight:
            del counts[oldest]
        if weight > _MOST_WEIGHT:
            for key in counts:
                counts[key] /= weight
            self._total /= weight
            self._weight = 1.0

    def is_proven(self, key: Hashable | None) -> bool:
        """Whether at least two distinct requests asked for the boundary, and not long ago."""
        return self._counts.get(key, 0.0) > self._weight

    def of(self, key: Hashable) -> float:
        """Requests that asked for the boundary, the older ones by their weight."""
        return self._counts.get(key, 0.0) / self._weight

    def share(self, key: Hashable) -> float:
        """Fraction of the requests that asked for the boundary, in [0, 1]."""
        return self._counts.get(key, 0.0) / self._total if self._total else 0.0

    def is_equal(self, one: Hashable, other: Hashable) -> bool:
        """Whether the same requests asked for two boundaries of one prefix."""
        return self._counts.get(one, 0.0) == self._counts.get(other, 0.0)

    def __len__(self) -> int:
        return len(self._counts)


class Block:
    """One attention block of a prefix, as long as it is cached, or something behind it is."""

    __slots__ = ("boundary", "children", "depth", "is_reached", "key", "num_live", "page", "parent",
                 "restarts")  # fmt: skip

    def __init__(
        self, key: Hashable, parent: "Block | None", depth: int, boundary: Hashable | None
    ) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        """Tokens up to its end."""
        self.boundary = boundary
        """Key of the first boundary at or behind its end; None where it was not known yet."""
        self.page = 0
        """The page that a lookup finds; 0 while it is not cached."""
        self.is_reached = False
        """Whether it is cached, and every block before it."""
        self.num_live = 0
        """Restarts that are anchored here and support it, and children that are supported."""
        self.children: dict[Block, None] | None = None
        self.restarts: list[Restart] | None = None
        """Those that are anchored here."""


class Restart:
    """A cached checkpoint as a restart point."""

    __slots__ = ("above", "anchor", "below", "broken", "chain", "checkpoint", "is_found", "key",
                 "last_used", "supports", "tokens")  # fmt: skip

    def __init__(self, checkpoint: "Checkpoint", anchor: Block, chain: Sequence[Hashable]) -> None:
        assert checkpoint.key is not None
        self.checkpoint = checkpoint
        self.key: Hashable = checkpoint.key
        self.tokens = checkpoint.tokens
        self.anchor = anchor
        self.chain = chain
        """Keys of the boundaries before it."""
        self.is_found = False
        """Whether a lookup finds it, and not another one of its key."""
        self.broken = False
        """Given up by the order of eviction. It can be found until its pages go, and is whole
        again when it is held."""
        self.supports = False
        self.above: Restart | None = None
        """The next shallower restart of its prefix that supports its blocks."""
        self.below: dict[Restart, None] = {}
        """Restarts whose `above` is this one."""
        self.last_used = 0

    @property
    def replay_tokens(self) -> int:
        """What its loss would cost the next request of the prefix."""
        return self.tokens - (0 if self.above is None else self.above.tokens)


class Listener(Protocol):
    """The free pages of one pool, which follow what happens to the entries in them."""

    def on_block_lost(self, page: int) -> None:
        """A page lost its block; if it is free, it caches nothing."""

    def on_found(self, block: Block) -> None:
        """A lookup finds the page of this block from now on."""

    def on_orphaned(self, block: Block) -> None:
        """No restart supports this block any more."""

    def on_lost(self, checkpoint: "Checkpoint") -> None:
        """A checkpoint lost its key; pages of it that are free cache nothing."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of one memory."""

    block: int
    """Tokens of an attention block."""
    grid: int
    """Tokens between boundaries."""
    block_bytes: int
    """Bytes of an attention block."""
    state_bytes: int
    """Bytes of a checkpoint, without its slot in a slab."""


class Prefixes:
    """The prefixes of one cache. It changes nothing in the cache, and holds no references."""

    def __init__(self, *, half_life: float) -> None:
        self._sizes = Sizes(block=1, grid=1, block_bytes=1, state_bytes=1)
        self.demand = Demand(half_life)
        self.listeners: list[Listener] = []
        """Those of the attention pool and of the pool of states; both may be the same."""
        self.blocks: dict[Hashable, Block] = {}
        self.restarts: dict[Checkpoint, Restart] = {}
        self.found: dict[Hashable, Restart] = {}
        """The restart of each key that a lookup finds."""
        self.version = 0
        """Grows whenever the ranks of restarts may have changed."""
        self._first: dict[Hashable, dict[Restart, None]] = {}
        """Restarts without one above them, by the first boundary of their prefix."""
        self._clock = 0

    def fit(self, sizes: Sizes) -> None:
        """Take over the sizes of the memory, which are known once it is built."""
        self._sizes = sizes

    def bytes_of(self, restart: Restart) -> int:
        """Bytes of a restart point and of all attention that it needs."""
        sizes = self._sizes
        return sizes.state_bytes + -(-restart.tokens // sizes.block) * sizes.block_bytes

    # -- requests --------------------------------------------------------------------------------

    def ask(self, keys: Sequence[Hashable]) -> None:
        """A new request asks for these boundaries."""
        self.demand.register(keys)
        self.version += 1

    def use(self, checkpoint: "Checkpoint") -> None:
        """A request reuses this state, which a fork may share before it is cached."""
        restart = self.restarts.get(checkpoint)
        if restart is not None:
            restart.last_used = self._tick()
            self.mend(restart)

    # -- entries come ----------------------------------------------------------------------------

    def add_blocks(
        self,
        keys: "PrefixKeys",
        start: int,
        block_keys: Sequence[Hashable],
        pages: Sequence[int],
    ) -> None:
        """These pages are cached as the blocks of a prefix from block `start` on."""
        blocks, block = self.blocks, None
        for index, (key, page) in enumerate(zip(block_keys, pages, strict=True), start):
            parent, block = block, blocks.get(key)
            if block is None:
                if parent is None:
                    block = self._block(keys, index)
                else:  # the one before it in this call
                    block = self._new_block(key, parent, index, keys)
            if not block.page:
                self._set_page(block, page)

    def add_leaf(
        self,
        checkpoint: "Checkpoint",
        keys: "PrefixKeys",
        page: int | None,
    ) -> None:
        """A checkpoint off the grid is cached, with its tail block if it has one."""
        tokens = checkpoint.tokens
        num_full = tokens // self._sizes.block
        anchor = self._block(keys, num_full - 1) if num_full else None
        if page is not None:
            key = checkpoint.key
            assert key is not None
            tail = self.blocks.get(key)
            if tail is None:
                tail = self._enter(Block(key, anchor, tokens, None))
            if not tail.page:
                self._set_page(tail, page)
            anchor = tail
        assert anchor is not None
        self._add(Restart(checkpoint, anchor, keys.checkpoints[: tokens // self._sizes.grid]))

    def add_checkpoint(self, checkpoint: "Checkpoint", keys: "PrefixKeys") -> None:
        """A checkpoint of the grid is cached."""
        anchor = self._block(keys, checkpoint.tokens // self._sizes.block - 1)
        index = checkpoint.tokens // self._sizes.grid - 1
        self._add(Restart(checkpoint, anchor, keys.checkpoints[:index]))

    def _add(self, restart: Restart) -> None:
        anchor = restart.anchor
        self.restarts[restart.checkpoint] = restart
        if anchor.restarts is None:
            anchor.restarts = []
        anchor.restarts.append(restart)
        restart.last_used = self._tick()
        if restart.key not in self.found:
            self.found[restart.key] = restart
            restart.is_found = True
        self._settle(restart)

    # -- entries go ------------------------------------------------------------------------------

    def lose_block(self, key: Hashable, lost: int, page: int | None) -> None:
        """A page of this block lost its entry.

        Args:
            page: the page that a lookup finds now; None if there is no other one.
        """
        block = self.blocks[key]
        self.listeners[0].on_block_lost(lost)
        if page is not None:
            if block.page != page:
                block.page = page
                self.listeners[0].on_found(block)
            return
        block.page = 0
        if block.children or block.restarts:
            if block.is_reached:
                self._spread(block)
            return
        del self.blocks[key]  # most are the end of their prefix
        parent = block.parent
        if parent is not None:
            assert parent.children is not None
            del parent.children[block]
            if not parent.page:
                self._forget(parent)

    def lose_checkpoint(self, checkpoint: "Checkpoint", found: "Checkpoint | None") -> None:
        """A checkpoint lost its key.

        Args:
            found: the one of this key that a lookup finds now.
        """
        restart = self.restarts.pop(checkpoint)
        if restart.is_found:
            restart.is_found = False
            del self.found[restart.key]
            self._settle(restart)
            if found is not None:
                heir = self.restarts[found]
                self.found[heir.key] = heir
                heir.is_found = True
                self._settle(heir)
        self.version += 1
        anchor = restart.anchor
        assert anchor.restarts is not None
        anchor.restarts.remove(restart)
        self._forget(anchor)
        self.listeners[-1].on_lost(checkpoint)

    # -- whole and broken ------------------------------------------------------------------------

    def sacrifice(self, restart: Restart) -> None:
        """Give up a restart point: its checkpoint, and the attention that only it supports."""
        restart.broken = True
        self._settle(restart)

    def mend(self, restart: Restart) -> None:
        """Take back a sacrifice."""
        self.version += 1
        if restart.broken:
            restart.broken = False
            self._settle(restart)

    # -- inside ----------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _block(self, keys: "PrefixKeys", index: int) -> Block:
        """The block of a prefix, made with those before it where they are not known."""
        names, missing = keys.attention, []
        while index >= 0 and (key := names[index]) not in self.blocks:
            missing.append((index, key))
            index -= 1
        block = None if index < 0 else self.blocks[names[index]]
        for index, key in reversed(missing):
            block = self._new_block(key, block, index, keys)
        assert block is not None
        return block

    def _new_block(
        self, key: Hashable, parent: Block | None, index: int, keys: "PrefixKeys"
    ) -> Block:
        depth = (index + 1) * self._sizes.block
        place, boundaries = (depth - 1) // self._sizes.grid, keys.checkpoints
        boundary = boundaries[place] if place < len(boundaries) else None
        return self._enter(Block(key, parent, depth, boundary))

    def _enter(self, block: Block) -> Block:
        self.blocks[block.key] = block
        parent = block.parent
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[block] = None
        return block

    def _forget(self, block: Block | None) -> None:
        """Drop blocks that are not cached and have nothing behind them."""
        while block is not None and not (block.page or block.children or block.restarts):
            del self.blocks[block.key]
            parent = block.parent
            if parent is not None:
                assert parent.children is not None
                del parent.children[block]
            block = parent

    def _set_page(self, block: Block, page: int) -> None:
        block.page = page
        parent = block.parent
        if parent is None or parent.is_reached:
            self._spread(block)

    def _spread(self, block: Block) -> None:
        """A block came that is reached, or one that was reached went: so did those behind it."""
        if not block.children and not block.restarts:  # most are the end of their prefix
            block.is_reached = not block.is_reached
            return
        changed = [block]
        while changed:
            block = changed.pop()
            parent = block.parent
            is_reached = block.page > 0 and (parent is None or parent.is_reached)
            if block.is_reached == is_reached:
                continue
            block.is_reached = is_reached
            for restart in block.restarts or ():
                self._settle(restart)
            changed += block.children or ()

    def _settle(self, restart: Restart) -> None:
        """Let a restart support its blocks if it can."""
        supports = restart.is_found and restart.anchor.is_reached and not restart.broken
        if supports == restart.supports:
            return
        restart.supports = supports
        self.version += 1
        block: Block | None = restart.anchor
        if supports:
            self._link(restart)
            while block is not None:
                block.num_live += 1
                if block.num_live > 1:
                    break
                block = block.parent
        else:
            self._unlink(restart)
            while block is not None:
                block.num_live -= 1
                if block.num_live:
                    break
                self.listeners[0].on_orphaned(block)
                block = block.parent

    def _link(self, restart: Restart) -> None:
        """Enter a restart between the one above it and those below."""
        above = None
        for key in reversed(restart.chain):
            found = self.found.get(key)
            if found is not None and found.supports:
                above = found
                break
        siblings = self._siblings(restart, above)
        place = len(restart.chain)
        for other in list(siblings):
            if len(other.chain) > place and other.chain[place] == restart.key:
                del siblings[other]
                restart.below[other] = None
                other.above = restart
        siblings[restart] = None
        restart.above = above

    def _unlink(self, restart: Restart) -> None:
        siblings = self._siblings(restart, restart.above)
        del siblings[restart]
        for other in restart.below:
            other.above = restart.above
        siblings.update(restart.below)
        if not siblings and restart.above is None:
            del self._first[_first_of(restart)]
        restart.above = None
        restart.below = {}

    def _siblings(self, restart: Restart, above: Restart | None) -> dict[Restart, None]:
        if above is not None:
            return above.below
        return self._first.setdefault(_first_of(restart), {})

    # -- recount ---------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Recount what each restart supports, from the chains of the blocks."""
        live: dict[Block, int] = dict.fromkeys(self.blocks.values(), 0)
        for restart in self.restarts.values():
            assert restart.key == restart.checkpoint.key
            assert self.blocks[restart.anchor.key] is restart.anchor
            assert restart.is_found == (self.found.get(restart.key) is restart)
            path = _path(restart.anchor)
            is_complete = all(block.page for block in path)
            assert restart.supports == (restart.is_found and is_complete and not restart.broken)
            above = None
            for key in restart.chain:
                other = self.found.get(key)
                if other is not None and other.supports and restart.supports:
                    above = other
            assert restart.above is above
            if restart.supports:
                for block in path:
                    live[block] += 1
        for block, count in live.items():
            assert (block.num_live > 0) == (count > 0)
            assert block.page or block.children or block.restarts
            assert block.is_reached == all(each.page for each in _path(block))


def _path(block: Block) -> list[Block]:
    """The block and all before it."""
    path, at = [], block
    while True:
        path.append(at)
        if at.parent is None:
            return path
        at = at.parent


def _first_of(restart: Restart) -> Hashable:
    return restart.chain[0] if restart.chain else restart.key
