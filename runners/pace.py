"""How fast runs end, and how long the others will take, as one reads them: 41 runs/min, 5:12."""

from dataclasses import dataclass

_S_PER_MIN, _MIN_PER_H = 60, 60


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Runs that ended in a time."""

    num_ended: int
    seconds: float

    @property
    def per_s(self) -> float | None:
        """None until a run has ended."""
        return self.num_ended / self.seconds if self.num_ended and self.seconds > 0 else None

    def seconds_for(self, num_runs: int) -> float | None:
        """Time that so many more runs take; None while the rate is unknown."""
        return None if self.per_s is None else num_runs / self.per_s

    def __str__(self) -> str:
        """Empty while the rate is unknown."""
        if self.per_s is None:
            return ""
        per_min = self.per_s * _S_PER_MIN
        if per_min >= 1:
            return f"{per_min:,.0f} runs/min"
        return f"{per_min * _MIN_PER_H:.1f} runs/h"


def clock(seconds: float) -> str:
    """5:12, or 1:05:12 from an hour on."""
    minutes, s = divmod(round(seconds), _S_PER_MIN)
    hours, minutes = divmod(minutes, _MIN_PER_H)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
