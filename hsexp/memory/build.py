"""Assembles a memory from an organization, a budget and the policies."""

from dataclasses import dataclass

from hsexp.config.schema import (
    AdmissionConfig,
    OrganizationConfig,
    PinningConfig,
    RetentionConfig,
)
from hsexp.memory.admission import HeadroomAdmission, floor_of
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.lifetime import ReleaseSuperseded, RetainDemanded
from hsexp.memory.observer import Observer
from hsexp.memory.organizations.base import Organization
from hsexp.memory.pinning import NoPinning, PinDemanded
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
) -> HybridMemory:
    """A fresh memory with empty pools.

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
        else RetainDemanded(retention.requesters),
        pinning=NoPinning()
        if pinning.requesters is None
        else PinDemanded(
            states,
            requesters=pinning.requesters,
            max_pages=floor_of(pinning.protected_fraction, states.pool.spec.num_pages),
        ),
        observer=observer,
    )
