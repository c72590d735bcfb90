"""The cyclic working set: how many requests a cache of a given capacity serves.

    stride 2 of 16    0 2 4 6 8 10 12 14 | 0 2 4 ...      eight identities, one after the other
    capacity 4        each is lost before it is used again 0 hits in the first sixteen requests
    capacity 8        all are cached the second time       8 hits

Requests arrive at a steady rate after a first batch. The cache is a `PagePool` under the order
`lru`: an entry that is hit goes to the end of the queue. The lab has no branches, sharing
or copies: it only shows why a cache has no hits at all when more distinct state is used than fits.
"""

import math
from dataclasses import dataclass

from hsexp.config.campaigns import CacheLabCampaign
from hsexp.memory.index import CacheIndex
from hsexp.memory.policies.eviction.lru import LruEviction
from hsexp.memory.pool import PagePool, PoolSpec


@dataclass(frozen=True, kw_only=True)
class CacheLabRow:
    """Hits of one cache at one time."""

    capacity: int
    """Entries that fit."""
    stride: int
    time_s: float
    num_identities: int
    """Distinct entries that the requests ask for."""
    num_requests: int
    """Requests that have arrived by then."""
    hits: int
    first_hits: int
    """Hits among the first batch."""


def cachelab_rows(campaign: CacheLabCampaign) -> list[CacheLabRow]:
    """Every capacity, stride and time, each counted from an empty cache."""
    rows = []
    for capacity in campaign.capacities:
        for stride in campaign.strides:
            for time_s in campaign.times_s:
                num_requests = num_requests_at(campaign, time_s)
                hits = hits_of(capacity, stride, num_requests, campaign.identities)
                rows.append(
                    CacheLabRow(
                        capacity=capacity,
                        stride=stride,
                        time_s=time_s,
                        num_identities=campaign.identities // math.gcd(campaign.identities, stride),
                        num_requests=num_requests,
                        hits=sum(hits),
                        first_hits=sum(hits[: campaign.first_requests]),
                    )
                )
    return rows


def num_requests_at(campaign: CacheLabCampaign, time_s: float) -> int:
    """Requests that have arrived: N = min(max, first + floor(rate t))."""
    arrived = campaign.first_requests + math.floor(campaign.rate_per_s * time_s)
    return min(campaign.max_requests, arrived)


def hits_of(capacity: int, stride: int, num_requests: int, identities: int) -> list[bool]:
    """Whether each request finds its identity; request i asks for stride * i mod identities."""
    spec = PoolSpec(name="cache", num_pages=capacity + 1, page_bytes=1)
    pool = PagePool(spec, LruEviction(kind="lru", name="lru"))
    index: CacheIndex[int] = CacheIndex()

    def lose(pages: list[int]) -> None:
        for page in pages:
            if pool.entries[page] is not None:
                index.remove(pool.entries[page], page)
                pool.entries[page] = None

    pool.on_reassign = lose
    hits = []
    for request in range(num_requests):
        identity = stride * request % identities
        page = index.oldest.get(identity)
        hits.append(page is not None)
        if page is None:
            page = pool.take(1)[0]
            pool.entries[page] = identity
            index.add(identity, page)
        else:
            pool.hold((page,))
        pool.release((page,), "attention")
    return hits
