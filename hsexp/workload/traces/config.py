"""Settings of a workload that is read from a trace."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Name

TimeUnit = Literal["s", "ms", "us", "ns", "date"]
"""What a column of times counts; `date` is a date and a time of day."""

FormatName = Literal[
    "azure",
    "lengths",
    "burstgpt",
    "vidur",
    "mooncake",
    "bailian",
    "aiperf",
    "guidellm",
    "vllm",
    "sharegpt",
    "openai",
]
"""The formats that `hsexp.workload.traces.formats` reads."""


def _neutral(value: Any) -> Any:
    """A field that a cell's id contains only where it has another value."""
    return Field(exclude_if=lambda given: given == value)


class TraceColumns(Config):
    """Columns, or fields of JSON, by what they hold. Null uses the format's own name."""

    time: str | None = None
    prompt: str | None = None
    """Tokens of the whole prompt."""
    output: str | None = None
    """Tokens of the output."""
    session: str | None = None
    """Requests with one value are turns of one session, in order of time."""
    pause: str | None = None
    """Time from the answer of the turn before to this turn, in the unit of the times."""
    prefix_id: str | None = None
    """Requests with one value begin with the same `prefix_tokens` tokens; an empty one shares
    nothing."""
    prefix_tokens: str | None = None
    hashes: str | None = None
    """Hashes of the prompt's blocks, each of `block_tokens` tokens."""

    @property
    def given(self) -> dict[str, str]:
        """The columns that are named, by what they hold."""
        return {role: name for role, name in self if name is not None}


NO_COLUMNS = TraceColumns()


class TraceWorkload(Config):
    """Requests read from a file (`hsexp.workload.traces`).

    What has a default leaves the requests as the file has them. A cell's id contains it only where
    it has another value.
    """

    kind: Literal["trace"]
    name: Name
    path: str
    """File to read. Its place is not part of a run; `content_digest` stands for it."""
    format: Literal["auto", FormatName]
    max_requests: PositiveInt | None
    """Read only the first requests; null reads the whole file."""
    tokenizer: str | None
    """Tokenizer for text (needs `transformers`); null counts about four characters per token."""
    keep_arrivals: bool
    """True replays the trace's own arrival times; false draws them from `arrivals`."""
    content_digest: str | None
    """Digest of the requests that are read (`Trace.digest`); a file with others is refused. Null
    takes any file; the plan of a campaign fills it in."""
    columns: Annotated[TraceColumns, _neutral(NO_COLUMNS)] = NO_COLUMNS
    """Other names than those of the format."""
    time_unit: Annotated[TimeUnit | None, _neutral(None)] = None
    """Unit of times and pauses; null uses the format's."""
    block_tokens: Annotated[PositiveInt | None, _neutral(None)] = None
    """Tokens of a hashed block; null uses the format's."""
    output_tokens: Annotated[PositiveInt | None, _neutral(None)] = None
    """Output of a request whose row does not say it; null refuses such a row."""
    zero_output: Annotated[Literal["refuse", "drop"], _neutral("refuse")] = "refuse"
    """Whether a row with an output of 0 tokens is refused, or left out and counted."""
    sort: Annotated[bool, _neutral(False)] = False
    """Sort rows whose times go back, also where the format is in order of time."""
    start_s: Annotated[float, Field(ge=0.0), _neutral(0.0)] = 0.0
    """Leave out what arrives in the first seconds of the trace."""
    duration_s: Annotated[PositiveFloat | None, _neutral(None)] = None
    """Keep so many seconds from `start_s` on; null keeps all."""
    sessions: Annotated[float, Field(gt=0.0, le=1.0), _neutral(1.0)] = 1.0
    """Fraction of the sessions that is kept, each of them whole. A request outside of any session
    is one of its own. Which ones are kept depends on nothing else, and a larger fraction keeps them
    too."""
    speed: Annotated[PositiveFloat, _neutral(1.0)] = 1.0
    """The trace's own times and pauses are divided by it: 2 doubles the load."""
    turns: Annotated[Literal["open", "closed"], _neutral("open")] = "open"
    """Whether a later turn of a session arrives at its own time, or a think time after the answer
    of the turn before it."""
    think_s: Annotated[float | None, Field(ge=0.0), _neutral(None)] = None
    """Think time of every turn. Null uses the pause that the file has for the turn, or else the
    time between the two arrivals, which is too long by the answer's own time."""

    @model_validator(mode="after")
    def _settings_act(self) -> Self:
        if self.think_s is not None and self.turns == "open":
            raise ValueError(
                f"think_s {self.think_s:g} changes nothing: turns=closed waits for the answer of "
                "the turn before"
            )
        if self.speed != 1.0 and not self.keep_arrivals:
            raise ValueError(
                f"speed {self.speed:g} changes nothing: keep_arrivals=false draws the times, and "
                "arrivals.rate_per_s sets the load"
            )
        return self
