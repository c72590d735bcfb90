"""Memory of one live request: its block table, its states and its keys."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hsexp.memory.checkpoint import NO_LINE, Checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixKeys:
    """Cache keys of one request's prefix; equal content has equal keys in every request.

    `attention[i]` names the content of tokens [0, (i + 1) block_size), `checkpoints[j]` that of
    [0, (j + 1) checkpoint_grid); both cover the request's longest prefix. A cache salt is part of
    the key.
    """

    attention: Sequence[Hashable]
    checkpoints: Sequence[Hashable]


@dataclass(kw_only=True, slots=True, eq=False)
class SequenceMemory:
    """The memory of one request while it runs.

    tokens   0 ......... published ......... computed ...... end of step
    blocks   [ hashed, reusable ][ plain ............................... ]
    states                superseded (until the next step) -> state -> scratch (drafts)
    """

    request_id: int | str
    keys: PrefixKeys
    num_prompt_tokens: int
    blocks: list[int] = field(default_factory=list)
    """Attention pages in token order."""
    tail: list[int] = field(default_factory=list)
    """Smaller attention blocks behind them (`hsexp.memory.tails`), by their ids."""
    num_published_blocks: int = 0
    state: Checkpoint | None = None
    """The state that the last scheduled step writes (or the reused one)."""
    state_index: int = -1
    """Grid index of `state`: it belongs to tokens (index * grid, (index + 1) * grid]."""
    superseded: Checkpoint | None = None
    """The previous state, read by the step that wrote `state`; released at the next step."""
    quiet_end: int = 0
    """A step that ends at or before this token allocates, publishes and releases nothing."""
    idle_end: int = 0
    """A step that ends at or before this token may take and publish blocks, and has nothing to do
    with states."""
    scratch: Checkpoint | None = None
    """The state over draft tokens, until they are accepted or not (`branching.drafting`)."""
    stops: Sequence[int] = ()
    """Tokens at which its prefill stops (`policies.placement`), in ascending order."""
    num_admitted_tokens: int = 0
    """Tokens that its admission counted; 0 for a branch, which was promised nothing."""
    num_planned: int = 0
    """States beside its first one that its admission counted, and that it has yet to take."""
    retained: list[Checkpoint] = field(default_factory=list)
    """Superseded states that the retention policy keeps until this request leaves."""
    has_asked: bool = False
    """Whether it counts in the demand for its prefix (`prefixes`)."""

    @property
    def num_states(self) -> int:
        return len(self.states)

    @property
    def states(self) -> tuple[Checkpoint, ...]:
        """Every state that the request holds a reference on, in order of release."""
        held = (self.scratch, self.state, self.superseded, *reversed(self.retained))
        return tuple(state for state in held if state is not None)

    def clear(self) -> None:
        """Forget all memory, after its references were dropped."""
        self.blocks = []
        self.tail = []
        self.num_published_blocks = 0
        self.state = self.superseded = self.scratch = None
        self.state_index = -1
        self.retained = []
        self.quiet_end = self.idle_end = 0
        self.stops = ()
        self.num_admitted_tokens = self.num_planned = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A joint restart point: attention blocks and a complete state at one length.

    A lookup finds boundaries of the checkpoint grid. A fork or a leaf may be at any length, with
    a partial last block (`hsexp.memory.branching.forks`).
    """

    tokens: int
    """Jadopt: tokens that are reused; 0 is a miss."""
    blocks: Sequence[int] = ()
    checkpoint: Checkpoint | None = None
    ready: bool = True
    """False while part of it is being computed by the step that is being scheduled."""
    stops: Sequence[int] = ()
    """Tokens at which the prefill behind it stops (`policies.placement`), in ascending order."""
    gap: Hashable | None = field(default=None, compare=False)
    """Key of the first missing block before a deeper checkpoint; None without such a checkpoint."""

    def or_deeper(self, other: "Hit | None") -> "Hit":
        """The deeper of two restart points of one prefix, with the gap of either and the stops
        of this one. A restart point off the grid has none.

        Both gaps are the same: the first block that is missing from the prefix.
        """
        if other is None:
            return self
        deeper = max(self, other, key=lambda hit: hit.tokens)
        gap = other.gap if self.gap is None else self.gap
        if deeper.gap == gap and deeper.stops == self.stops:
            return deeper
        return replace(deeper, gap=gap, stops=self.stops)


MISS = Hit(tokens=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """One physical copy of a page or a state."""

    kind: Literal["attention", "state"]
    request_id: int | str
    """The request that gets the copy."""
    source: tuple[int, ...]
    """An attention page, or the pages of a state, its representative first."""
    target: tuple[int, ...]
    num_tokens: int
    """Valid tokens of the page, or tokens that the state covers."""
    step: int
    source_line: int = NO_LINE
    """Convolution line of a state whose convolution state is outside its pages."""
    target_line: int = NO_LINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why a waiting request was not admitted."""

    pool: str
    need: int
    """Pages that the admission needs."""
    headroom: int
    """Pages that must stay free in addition."""
    free: int
    """Free pages that it may count on."""
    by_price: bool = False
    """Whether others are free and not for this admission (`policies.pricing`)."""

    @property
    def by_headroom(self) -> bool:
        """Whether enough pages were free for the request, but not for the headroom."""
        return self.need <= self.free

    def __str__(self) -> str:
        return (
            f"pool {self.pool}: needs {self.need} + headroom {self.headroom} pages, "
            f"{self.free} are free"
        )
