"""The axes that a campaign can vary."""

AXES = (
    "budget",
    "rate_per_s",
    "cap",
    "sharing",
    "headroom",
    "retention",
    "pinning",
    "isolation",
    "trace",
    "organization",
    "seeds",
)
"""What a block may vary."""
