"""Admission: how many pages must stay free when a request joins the running ones (Section 4.4)."""

import math
from collections.abc import Sequence

from hsexp.memory.pool import PagePool
from hsexp.memory.sequence import Refusal


class HeadroomAdmission:
    """Admit when need + H <= free in every pool, H = floor(reserve B) + floor(f B).

    While nothing runs H is 0, so that an empty engine can always take the first request.
    """

    def __init__(
        self, pools: Sequence[PagePool], *, headroom: float, reserve_fraction: float
    ) -> None:
        self.pools = pools
        self.headroom_pages = tuple(
            floor_of(reserve_fraction, pool.spec.num_pages)
            + floor_of(headroom, pool.spec.num_pages)
            for pool in pools
        )

    def refusal(self, need: Sequence[int], *, nothing_runs: bool) -> Refusal | None:
        """None admits; otherwise the first pool that says no."""
        for pool, pages, headroom in zip(self.pools, need, self.headroom_pages, strict=True):
            kept_free = 0 if nothing_runs else headroom
            if pages + kept_free > len(pool.queue):
                return Refusal(
                    pool=pool.spec.name, need=pages, headroom=kept_free, free=pool.num_free
                )
        return None


def floor_of(fraction: float, count: int) -> int:
    """floor(fraction * count), exact for decimal fractions (0.29 of 100 is 29, not 28)."""
    return math.floor(round(fraction * count, 9))
