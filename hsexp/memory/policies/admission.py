"""Admission: how many pages must stay free when a request joins the running ones (Section 4.4)."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import OpenFraction
from hsexp.memory.pool import PagePool, floor_of
from hsexp.memory.sequence import Refusal


class Admission(Protocol):
    """Whether there is room for one more request."""

    @property
    def headroom_pages(self) -> tuple[int, ...]:
        """Pages of each pool that admission keeps free while other requests run."""
        ...

    def refusal(self, need: Sequence[int], *, nothing_runs: bool) -> Refusal | None:
        """None admits a request that needs `need` pages of each pool."""
        ...


class AdmissionConfig(Config):
    """When a waiting or preempted request may join the running ones (Section 4.4)."""

    headroom: OpenFraction
    """Fraction f of all blocks that must stay free: H = floor(f B)."""
    cap: PositiveInt
    """Most running requests."""

    def build(self, pools: Sequence[PagePool], *, reserve_fraction: float) -> Admission:
        """
        Args:
            reserve_fraction: fraction of blocks that is always kept free, in addition to the
                headroom (`policies.reservation`).
        """
        return HeadroomAdmission(pools, headroom=self.headroom, reserve_fraction=reserve_fraction)


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
        """None admits; otherwise the refusal names the first pool without enough free pages."""
        for pool, pages, headroom in zip(self.pools, need, self.headroom_pages, strict=True):
            kept_free = 0 if nothing_runs else headroom
            if pages + kept_free > pool.num_free:
                return Refusal(
                    pool=pool.spec.name, need=pages, headroom=kept_free, free=pool.num_free
                )
        return None
