"""A simulated request: its progress and its history."""

from dataclasses import dataclass

from hsexp.memory.sequence import SequenceMemory
from hsexp.sim.steptime import NS_PER_S
from hsexp.workload.request import Request


@dataclass(kw_only=True, slots=True, eq=False)
class SimRequest:
    """A request in flight. Times are nanoseconds since the start of the run."""

    request: Request
    arrival_ns: int
    memory: SequenceMemory | None = None
    computed: int = 0
    """Tokens with state in memory, valid at decode step `anchor` while decoding."""
    generated: int = 0
    """Output tokens, likewise."""
    anchor: int = 0
    """First decode step of the current stretch of decoding."""
    decoding: bool = False
    serial: int = 0
    """Position in the running order; grows with every admission."""
    chunk: int = 0
    """Prefill tokens scheduled in this step."""
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    finish_ns: int | None = None
    num_preemptions: int = 0
    adopted_tokens: int = 0
    prefill_tokens: int = 0
    replayed_tokens: int = 0
    replayed_output_tokens: int = 0
    """Generated tokens among `replayed_tokens`."""
    refused: str | None = None

    def computed_at(self, decode_step: int) -> int:
        """Tokens in memory before a decode step."""
        return self.computed + (decode_step - self.anchor if self.decoding else 0)

    def generated_at(self, decode_step: int) -> int:
        """Output tokens before a decode step."""
        return self.generated + (decode_step - self.anchor if self.decoding else 0)

    @property
    def arrival_s(self) -> float:
        """The planned arrival; that of a turn which waits for the one before it is known when that
        one ends."""
        return self.request.arrival_s if self.request.after is None else self.arrival_ns / NS_PER_S

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far: what a prefill has to cover."""
        return self.request.prompt_tokens + self.generated

    @property
    def finish_step(self) -> int:
        """Decode step that generates the last token, unless the request is preempted before."""
        return self.anchor + self.request.output_tokens - self.generated - 1
