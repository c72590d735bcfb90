"""Assembles a memory from its settings and a budget."""

from hsexp.memory.branching.forks import Branching
from hsexp.memory.cache import Cache
from hsexp.memory.config import MemoryConfig
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.observer import Observer
from hsexp.memory.organizations.base import Organization
from hsexp.memory.pool import PagePool
from hsexp.memory.prefixes import Prefixes, Sizes


def build_memory(
    config: MemoryConfig,
    nominal_bytes: int,
    *,
    layout: Organization | None = None,
    observer: Observer | None = None,
    max_leaves: int = 0,
    max_drafts: int = 0,
) -> HybridMemory:
    """A fresh memory with empty pools.

    Args:
        nominal_bytes: budget for the state of one attention layer with its recurrent layers.
        layout: an organization that is not sized for the model of `config`; None creates it.
        max_leaves: most restart points that running requests leave off the checkpoint grid. Those
            of finished requests are a policy of `config`.
        max_drafts: most draft tokens of a speculative pass.

    Raises:
        ValueError: the budget is too small for the organization's pools, or the organization
            cannot carry the model; or the rule of states cannot carry leaves or drafts.
    """
    config.require_states(branches=max_leaves > 0 or max_drafts > 0)
    organization = config.layout if layout is None else layout
    _refuse_branches(organization, max_leaves=max_leaves, max_drafts=max_drafts)
    order = config.eviction.order(config.organization.release_order)
    pools = tuple(PagePool(spec, order) for spec in organization.plan(nominal_bytes).pools)
    attention = organization.build_attention(pools)
    reservation = config.reservation.build(
        attention=attention,
        reserve_fraction=config.organization.reserve_fraction,
        num_admission_states=config.organization.num_admission_states,
    )
    states = organization.build_states(pools)
    prefixes = order if isinstance(order, Prefixes) else None
    if prefixes is not None:
        prefixes.fit(
            Sizes(
                block=organization.block_size,
                grid=organization.checkpoint_grid,
                block_bytes=pools[0].spec.page_bytes,
                state_bytes=states.pages_per_state * states.pool.spec.page_bytes,
            )
        )
    cache = Cache(
        pools=pools,
        states=states,
        attention=attention,
        checkpoint_grid=organization.checkpoint_grid,
        observer=observer,
        prefixes=prefixes,
    )
    retention = config.retention.build(cache)
    branching = Branching(cache, max_leaves=max_leaves, max_final=config.leaves.max_final)
    return HybridMemory(
        cache,
        branching=branching,
        reservation=reservation,
        admission=config.admission.build(pools, reserve_fraction=reservation.reserve_fraction),
        retention=retention,
        states=config.states.build(
            cache, copies=branching.copies, retention=retention, reservation=reservation
        ),
        pinning=config.pinning.build(cache.states),
        placement=config.placement.build(cache),
        max_drafts=max_drafts,
    )


def _refuse_branches(organization: Organization, **limits: int) -> None:
    """Refuse leaves and drafts where sequences cannot share a block that is not full."""
    for name, limit in limits.items():
        if limit and not organization.allows_branches:
            raise ValueError(
                f"{name} {limit} contradicts organization {organization.name}, whose sequences "
                "cannot branch"
            )
