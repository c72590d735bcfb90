"""A target: a bound on one metric of a run, as it is typed: `ttft_p99_s<2`."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from hsexp.config.base import ConfigError

_TARGET = re.compile(r"\s*(?P<metric>\w+)\s*(?P<side>[<>])=?\s*(?P<bound>[0-9.]+(e-?[0-9]+)?)\s*")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound that the mean of a metric must keep."""

    metric: str
    """A metric of the ledger, in its unit."""
    side: Literal["<", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str, *, known: Collection[str]) -> "Target":
        """Read a target.

        Args:
            known: names of metrics.

        Raises:
            ConfigError: it is not a target, or there is no such metric; names the nearest one.
        """
        found = _TARGET.fullmatch(text)
        if found is None:
            raise ConfigError(f"target must be like ttft_p99_s<2, got {text!r}")
        metric = found["metric"]
        if metric not in known:
            near = get_close_matches(metric, known, n=1, cutoff=0.0)
            raise ConfigError(f"target: no metric is called {metric!r}; the nearest is {near[0]}")
        try:
            bound = float(found["bound"])
        except ValueError:
            raise ConfigError(f"target must have a number, got {found['bound']!r}") from None
        return cls(metric=metric, side="<" if found["side"] == "<" else ">", bound=bound)

    def shortfall(self, value: float) -> float:
        """How far a value is on the wrong side of the bound; 0 or less keeps the target."""
        return value - self.bound if self.side == "<" else self.bound - value

    def __str__(self) -> str:
        return f"{self.metric}{self.side}{self.bound:g}"
