"""Pinning: extra references on a preempted request's checkpoint (Appendix B.2)."""

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Fraction, Name
from hsexp.memory.policies.demand import DemandKeys


class PinningConfig(Config):
    """Extra references taken at preemption (Appendix B.2)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct-requester threshold K of the rightmost boundary; null is Roff."""
    protected_fraction: Fraction
    """Most blocks of the recurrent pool that pins may hold."""
    demand_keys: DemandKeys = None
