"""Retention: which superseded checkpoints a running request keeps (Section 4.5, Q8)."""

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.policies.demand import DemandKeys


class RetentionConfig(Config):
    """Producer-side checkpoint lifetime (Section 4.5, Q8)."""

    name: Name
    requesters: PositiveInt | None
    """Distinct requests that must have asked for a checkpoint before its holder keeps it while
    running; null releases every superseded checkpoint."""
    demand_keys: DemandKeys = None
