"""Assembles a memory from its settings and a budget."""

from hsexp.memory.admission import HeadroomAdmission, floor_of
from hsexp.memory.cache import Cache
from hsexp.memory.config import MemoryConfig
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.lifetime import ReleaseSuperseded, RetainDemanded
from hsexp.memory.observer import Observer
from hsexp.memory.organizations.base import Organization
from hsexp.memory.pinning import NoPinning, PinDemanded
from hsexp.memory.pool import PagePool


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
        layout: the organization where it is not sized for the model of `config`.
        max_leaves: restart points off the checkpoint grid that are kept at most.
        max_drafts: draft tokens of a speculative pass.

    Raises:
        ValueError: the budget is too small for the organization's pools, or the organization
            cannot carry the model.
    """
    organization = config.layout if layout is None else layout
    pools = tuple(PagePool(spec) for spec in organization.plan(nominal_bytes).pools)
    states = organization.build_states(pools)
    retention, pinning = config.retention, config.pinning
    cache = Cache(
        pools=pools,
        states=states,
        block_size=organization.block_size,
        checkpoint_grid=organization.checkpoint_grid,
        order=config.organization.release_order,
        observer=observer,
    )
    return HybridMemory(
        cache,
        num_admission_states=config.organization.num_admission_states,
        admission=HeadroomAdmission(
            pools,
            headroom=config.admission.headroom,
            reserve_fraction=config.organization.reserve_fraction,
        ),
        lifetime=ReleaseSuperseded()
        if retention.requesters is None
        else RetainDemanded(retention.requesters, demand_keys=retention.demand_keys),
        pinning=NoPinning()
        if pinning.requesters is None
        else PinDemanded(
            states,
            requesters=pinning.requesters,
            demand_keys=pinning.demand_keys,
            max_pages=floor_of(pinning.protected_fraction, states.pool.spec.num_pages),
        ),
        max_leaves=max_leaves,
        max_drafts=max_drafts,
    )
