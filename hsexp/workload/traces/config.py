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
    """File to read. Its place is not part of a run; `content_digest` stands for it."""
    format: Literal["auto", "azure", "mooncake", "sharegpt", "lengths"]
    max_requests: PositiveInt | None
    """Read only the first requests; null reads the whole file."""
    tokenizer: str | None
    """Tokenizer for ShareGPT text (needs `transformers`); null counts about four characters per
    token."""
    keep_arrivals: bool
    """True replays the trace's own arrival times; false draws them from `arrivals`."""
    content_digest: str | None
    """Digest of the requests that are read (`Trace.digest`); a file with others is refused. Null
    takes any file; the plan of a campaign fills it in."""
