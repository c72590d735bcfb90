"""The requests of the continuation checks: members of one shared prefix, at hard lengths.

    grid       0 ------- g ------- 2g ------- 3g
    prefix     [ depth tokens        ]
    members    [ prefix              ][ own ]   ends: B + 1, B + g/3, B + g/2, B + g - 6, B + g, ...
    consumers  [ k g of the prefix ][ own, one grid interval and a third ]   for every boundary k
    turns      [ member             ][ its answer ][ own ]

B is the first boundary at or behind the prefix. A member of B + 1 tokens has a last chunk of a
single token; one of B + g - 6 crosses a boundary while it decodes; one of B + g ends on it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

OUTPUT_TOKENS = 16
"""Enough to cross the boundary that is six tokens ahead."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a request asks for, without its time."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int = OUTPUT_TOKENS


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """All requests of one depth and seed."""

    grid: int
    """Tokens between checkpoint boundaries."""
    prefix: tuple[int, ...]
    members: tuple[Ask, ...]
    consumers: tuple[Ask, ...]
    """One for each boundary inside the prefix, in order."""
    turns: tuple[Ask, ...] = ()
    """The next turn of each member's conversation, once its answer is known."""

    @classmethod
    def draw(cls, *, depth: int, grid: int, vocabulary: range, seed: int) -> "Prompts":
        """Draw the requests from a seed.

        Args:
            depth: tokens of the shared prefix.
            vocabulary: token ids to draw from.
        """
        rng = random.Random(f"{seed}/{depth}/{grid}")

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.choices(vocabulary, k=count))

        prefix = tokens(depth)
        boundary = -(-depth // grid) * grid
        lengths = [1, grid // 3, grid // 2, grid - 6, grid, grid + 1]
        return cls(
            grid=grid,
            prefix=prefix,
            members=tuple(
                Ask(name=f"member-{i}", prompt=prefix + tokens(boundary + length - depth))
                for i, length in enumerate(lengths)
            ),
            consumers=tuple(
                Ask(name=f"consumer-{k}", prompt=prefix[: k * grid] + tokens(grid + grid // 3))
                for k in range(1, depth // grid + 1)
            ),
        )

    def with_turns(self, answers: Mapping[str, Sequence[int]]) -> "Prompts":
        """The same prompts, with the next turns after these answers."""
        turns = [
            Ask(
                name=f"turn-{i}",
                prompt=(*member.prompt, *answers[member.name], *self.prefix[:5]),
            )
            for i, member in enumerate(self.members)
        ]
        return replace(self, turns=tuple(turns))

    @property
    def asks(self) -> tuple[Ask, ...]:
        """All requests that need a reference."""
        return self.members + self.consumers + self.turns

    def producer(self, consumer: int) -> Ask:
        """Leaves a checkpoint at the boundary of a consumer (from 0), and little else."""
        boundary = (consumer + 1) * self.grid
        own: Sequence[int] = [self.prefix[0]] * 3
        return Ask(
            name=f"producer-{consumer + 1}",
            prompt=(*self.prefix[:boundary], *own),
            max_tokens=2,
        )
