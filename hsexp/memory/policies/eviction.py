"""Eviction: in which order free pages get a new owner."""

from typing import Literal

from hsexp.config.base import Config


class ReleaseOrder(Config):
    """Which end of the free queue a released page joins; pages are reassigned from the head."""

    hashed: Literal["head", "tail"]
    """An attention page or checkpoint that stays in the cache."""
    plain_attention: Literal["head", "tail"]
    """An attention page without a cache key."""
    plain_representative: Literal["head", "tail"]
    """The first page of a recurrent state without a cache key."""
    plain_members: Literal["head", "tail"]
    """The other pages of a recurrent state without a cache key."""
    idle_slab: Literal["head", "tail", "like_state"]
    """A slab whose slots are all cached or free (S2 only); like_state: with the first page of the
    state whose release made it idle."""
