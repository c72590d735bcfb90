"""Admission: when a request may join the running ones (Section 4.4)."""

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import OpenFraction


class AdmissionConfig(Config):
    """When a waiting or preempted request may join the running ones (Section 4.4)."""

    headroom: OpenFraction
    """Fraction f of all blocks that must stay free: H = floor(f B)."""
    cap: PositiveInt
    """Most running requests."""
