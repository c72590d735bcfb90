"""Priced retention: an admission may take a proven restart point only if a running slot is worth
more than the restart point.

    value of a restart point    p(hit) x tokens that a hit saves x seconds for a prefill token
    price of a slot             seconds for a step x E[output] / (N (N + 1))

Both are seconds for a byte: the value is divided by what the eviction frees, the price by what the
admission needs. p(hit) is the share of the requests that asked for the restart point, the older
ones by their weight: the chance that the next arrival asks for it. N requests share the fixed cost
of a step, so one more saves each of its steps the (N (N + 1))th part of that.

    free pages    plain | useless | orphans | unproven | permitted | kept | attention in use
                  <----- what the admission can count on --------->

An admission that needs more than that, with its headroom, is refused, and nothing has changed.
Otherwise it names the permitted restart points that it cannot do without, the first ones in the
order of eviction, and they are given up. Requests that run may take any page, in the order of
eviction, and so may a request that would run alone.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import le
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.cache import Cache
from hsexp.memory.checkpoint import Checkpoint, Slab
from hsexp.memory.policies.eviction.ranked import Ranking
from hsexp.memory.prefixes import Block, Restart
from hsexp.memory.sequence import Hit, Refusal


class PricedRetention(Config):
    """Proven restart points stay in the cache while they are worth more than a running slot."""

    kind: Literal["priced"]
    name: Name
    step_s: PositiveFloat
    """Fixed seconds of a step, which its requests share."""
    prefill_token_s: PositiveFloat
    """Seconds of one prefill token."""
    output_tokens: PositiveFloat
    """Expected output of a request before any has finished; it counts like one that has."""
    keeps_states: ClassVar[bool] = False
    """Whether a running request may keep states that it has moved on from."""
    needs_ranks: ClassVar[bool] = True
    """Whether the order of eviction must rank restart points."""

    def build(self, cache: Cache) -> "Price":
        assert isinstance(cache.prefixes, Ranking), "the settings of a memory refuse other orders"
        return Price(self, cache, cache.prefixes)


@dataclass(frozen=True, kw_only=True)
class Permit:
    """What one admission may take from proven restart points."""

    kept: list[int]
    """Free pages of each pool that it may not count on."""
    permitted: list[tuple[Restart, list[int]]]
    """Restart points that it may take, in the order of eviction, and what each frees in each pool
    once those before it are gone."""


class Price:
    """Weighs restart points against admissions."""

    def __init__(self, settings: PricedRetention, cache: Cache, ranking: Ranking) -> None:
        self._settings = settings
        self._cache = cache
        self._ranking = ranking
        self._output_tokens = settings.output_tokens
        self._num_outputs = 1
        self._named: tuple[int | str, list[Restart]] | None = None
        """The request that was not refused last, and what its admission gives up."""

    # -- ordinary caching while a request runs ---------------------------------------------------

    def on_admission(self, request_id: int | str, keys: Iterable[Hashable]) -> None:
        """Give up what the request may take."""
        if self._named is not None and self._named[0] == request_id:
            for restart in self._named[1]:
                self._ranking.sacrifice_all(restart)
        self._named = None

    def keeps(self, checkpoint: Checkpoint) -> bool:
        return False

    def on_finish(self, output_tokens: int) -> None:
        self._output_tokens += output_tokens
        self._num_outputs += 1

    # -- admissions ------------------------------------------------------------------------------

    def refusal(
        self, request_id: int | str, hit: Hit, need: Sequence[int], headroom: Sequence[int]
    ) -> Refusal | None:
        # What no restart point can change is decided without weighing any.
        pools, self._named = self._cache.pools, None
        wanted = [pages + more for pages, more in zip(need, headroom, strict=True)]
        for place, pool in enumerate(pools):
            if wanted[place] > pool.num_free:
                return Refusal(
                    pool=pool.spec.name,
                    need=need[place],
                    headroom=headroom[place],
                    free=pool.num_free,
                )
        if all(map(le, wanted, self._ranking.num_plain())):
            return None
        permit = self.permit(hit, need)
        short = []
        for place, pool in enumerate(pools):
            free = pool.num_free - permit.kept[place]
            if wanted[place] > free:
                return Refusal(
                    pool=pool.spec.name,
                    need=need[place],
                    headroom=headroom[place],
                    free=free,
                    by_price=True,
                )
            spare = free - sum(pages[place] for _, pages in permit.permitted)
            short.append(wanted[place] - spare)
        named = []
        for restart, pages in permit.permitted:
            if max(short) <= 0:
                break
            named.append(restart)
            short = [missing - freed for missing, freed in zip(short, pages, strict=True)]
        self._named = (request_id, named)
        return None

    def permit(self, hit: Hit, need: Sequence[int]) -> Permit:
        """What an admission with this hit may take."""
        cache, ranking = self._cache, self._ranking
        price = self._slot_s() / self._bytes(need)
        proven = [each for each in ranking.proven() if each.checkpoint is not hit.checkpoint]
        kept: list[Restart] = []
        permitted: list[Restart] = []
        cover, pages = self._cover(hit), [0] * len(cache.pools)
        for restart in reversed(proven):
            frees = cover.add(restart)
            if self._value_s(restart) / self._bytes(frees) < price:
                permitted.append(restart)
            else:
                kept.append(restart)
                pages = _sum(pages, frees)
        if permitted:  # what they share with others is freed by neither, or by the last of them
            cover, pages = self._cover(hit), [0] * len(cache.pools)
            for restart in kept:
                pages = _sum(pages, cover.add(restart))
        for restart in ranking.in_use():
            pages = _sum(pages, cover.add_attention(restart))
        frees_of = [(restart, cover.add(restart)) for restart in permitted]
        return Permit(kept=pages, permitted=frees_of[::-1])

    def _cover(self, hit: Hit) -> "_Cover":
        """Covers what the hit takes out of the queue; the admission needs these pages anyway."""
        cover = _Cover(self._cache)
        restart = None if hit.checkpoint is None else self._ranking.restarts.get(hit.checkpoint)
        if restart is not None:
            cover.add(restart)
        return cover

    def _slot_s(self) -> float:
        """Seconds that one more running request saves."""
        running = max(len(self._cache.sequences), 1)
        expected = self._output_tokens / self._num_outputs
        return self._settings.step_s * expected / (running * (running + 1))

    def _value_s(self, restart: Restart) -> float:
        """Seconds that a restart point is expected to save."""
        demand, above = self._ranking.demand, restart.above
        while above is not None and demand.is_equal(restart.key, above.key):
            above = above.above  # it goes before this one
        saved = restart.tokens - (0 if above is None else above.tokens)
        return demand.share(restart.key) * saved * self._settings.prefill_token_s

    def _bytes(self, pages: Sequence[int]) -> int:
        pools = self._cache.pools
        return sum(count * pool.spec.page_bytes for count, pool in zip(pages, pools, strict=True))


class _Cover:
    """The free pages of restart points, each counted for the first of them that needs it."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._blocks: set[Block] = set()
        self._slabs: set[Slab] = set()

    def add(self, restart: Restart) -> list[int]:
        """Free pages of each pool that the restart point adds."""
        checkpoint, state_pages = restart.checkpoint, 0
        if checkpoint.refs == 0:
            state_pages = len(checkpoint.pages)
            slab = checkpoint.slab
            if slab is not None and slab.num_active == 0 and slab not in self._slabs:
                self._slabs.add(slab)
                state_pages += 1
        return self._cache.by_pool(self._add_blocks(restart), state_pages)

    def add_attention(self, restart: Restart) -> list[int]:
        """Likewise, without the checkpoint."""
        return self._cache.by_pool(self._add_blocks(restart), 0)

    def _add_blocks(self, restart: Restart) -> int:
        refs, covered, added = self._cache.attention_pool.refs, self._blocks, 0
        block: Block | None = restart.anchor
        while block is not None and block not in covered:  # nor any block before it
            covered.add(block)
            added += refs[block.page] == 0
            block = block.parent
        return added


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
