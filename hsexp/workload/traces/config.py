"""Settings of a workload that is read from a trace."""

from typing import Literal

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name


class TraceWorkload(Config):
    """Requests read from a file (`hsexp.workload.traces`)."""

    kind: Literal["trace"]
    name: Name
    path: str
    """File to read."""
    format: Literal["auto", "azure", "mooncake", "sharegpt", "lengths"]
    max_requests: PositiveInt | None
    """Read only the first requests; null reads the whole file."""
    tokenizer: str | None
    """Tokenizer for ShareGPT text (needs `transformers`); null counts about four characters per
    token."""
    keep_arrivals: bool
    """True replays the trace's own arrival times; false draws them from `arrivals`."""
