"""What a run sends and what it returns: the contract of the transports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import pandas as pd

from hsexp.config.engine import LimitsConfig
from runners.vllm.clock import Episode
from runners.vllm.observed import Streams
from runners.vllm.readback import Report


@dataclass(frozen=True, kw_only=True)
class Load:
    """A workload as token ids. Its results are written into `streams`."""

    streams: Streams
    prompts: Sequence[Sequence[int]]
    """Prompts of the streams, in their order."""
    warmup: Sequence[Sequence[int]]
    """Prompts that are sent before the run, one after the other."""
    max_retries: int
    limits: LimitsConfig


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run measures besides its streams."""

    episode: Episode
    samples: pd.DataFrame
    """Columns of `measure.records.SAMPLE_COLUMNS`; times count from the start of the workload."""


class Engine(Protocol):
    """A booted engine; a context manager that leaves no process behind."""

    @property
    def report(self) -> Report:
        """What runs, as the engine reports it."""
        ...

    def run(self, load: Load) -> Measured:
        """Warm up, empty the prefix cache, then send every request at its planned time.

        Raises:
            RunFault: the run gives no numbers.
        """
        ...

    def end(self, deadline_s: float) -> None:
        """Shut down, so that the engine's record has its end."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


WARMUP_TOKENS = 16
"""Output tokens of a warm-up request: enough for prefill, decode and sampling to have run."""


def engine_request_id(index: int, num_retries: int) -> str:
    """Id of a request at the engine, where a retry is another request."""
    return f"hsexp-{index}-{num_retries}"
