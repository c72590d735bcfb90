"""Assembles a memory from an organization, a budget and the policies."""

from dataclasses import dataclass

from hsexp.memory.admission import HeadroomAdmission, floor_of
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.lifetime import ReleaseSuperseded, RetainDemanded
from hsexp.memory.observer import Observer
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.organizations.base import Organization
from hsexp.memory.pinning import NoPinning, PinDemanded
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.memory.pool import PagePool


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What a campaign varies beside the organization."""

    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig


def build_memory(
    organization: Organization,
    config: OrganizationConfig,
    nominal_bytes: int,
    policies: Policies,
    observer: Observer | None = None,
    *,
    max_leaves: int = 0,
    max_drafts: int = 0,
) -> HybridMemory:
    """A fresh memory with empty pools.

    Args:
        max_leaves: restart points off the checkpoint grid that are kept at most.
        max_drafts: draft tokens of a speculative pass.

    Raises:
        ValueError: the budget is too small for the organization's pools.
    """
    plan = organization.plan(nominal_bytes)
    pools = tuple(PagePool(spec) for spec in plan.pools)
    states = organization.build_states(pools)
    retention, pinning = policies.retention, policies.pinning
    return HybridMemory(
        attention_pool=pools[0],
        states=states,
        block_size=organization.block_size,
        checkpoint_grid=organization.checkpoint_grid,
        num_admission_states=config.num_admission_states,
        order=config.release_order,
        admission=HeadroomAdmission(
            pools,
            headroom=policies.admission.headroom,
            reserve_fraction=config.reserve_fraction,
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
        observer=observer,
        max_leaves=max_leaves,
        max_drafts=max_drafts,
    )
