"""What the memory keeps for one live request: its block table, its states and its keys."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from hsexp.memory.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixKeys:
    """Cache keys of one request's prefix, shared content having equal keys in every request.

    `attention[i]` names the content of tokens [0, (i + 1) block_size), `checkpoints[j]` that of
    [0, (j + 1) checkpoint_grid); both reach as far as the request can. A cache salt is part of
    the key.
    """

    attention: Sequence[Hashable]
    checkpoints: Sequence[Hashable]


@dataclass(kw_only=True, slots=True, eq=False)
class SequenceMemory:
    """The memory of one request while it runs.

    tokens   0 ......... published ......... computed ...... end of step
    blocks   [ hashed, reusable ][ plain ............................... ]
    states                superseded (until the next step) -> state
    """

    request_id: int | str
    keys: PrefixKeys
    num_prompt_tokens: int
    blocks: list[int] = field(default_factory=list)
    """Attention pages in token order."""
    num_published_blocks: int = 0
    state: Checkpoint | None = None
    """The state that the last scheduled step writes (or the adopted one)."""
    state_index: int = -1
    """Grid index of `state`: it belongs to tokens (index * grid, (index + 1) * grid]."""
    superseded: Checkpoint | None = None
    """The state before, read by the step that wrote `state`; given up at the next step."""
    retained: list[Checkpoint] = field(default_factory=list)
    """Superseded states that the lifetime policy keeps until this request leaves."""

    @property
    def num_states(self) -> int:
        return (self.state is not None) + (self.superseded is not None) + len(self.retained)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A joint restart point: attention blocks and a complete checkpoint at one boundary."""

    tokens: int
    """Jadopt: tokens that need not be computed; 0 is a miss."""
    blocks: Sequence[int] = ()
    checkpoint: Checkpoint | None = None
    ready: bool = True
    """False while part of it is being computed by the step that is being scheduled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Depths:
    """How deep each kind of state reached at a lookup, in tokens (Section 4.5)."""

    attention: int
    """Amax: deepest grid boundary inside the contiguous attention prefix."""
    recurrent: int
    """Rmax: deepest complete checkpoint, whatever attention says."""
    joint: int
    """Jadopt, the deepest boundary with both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why a waiting request was not admitted."""

    pool: str
    need: int
    """Pages that the admission counts."""
    headroom: int
    """Pages that must stay free beside them."""
    free: int

    def __str__(self) -> str:
        return (
            f"pool {self.pool}: needs {self.need} + headroom {self.headroom} pages, "
            f"{self.free} are free"
        )
