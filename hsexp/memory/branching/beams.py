"""Beams: branches with a score, forked, reordered and pruned together.

before    A  B  C               parents [1, 1, 0]: beam 1 continues twice, beam 0 once
after     B  B' A               B' is forked from B; C is pruned; A and B move, nothing is copied
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.sequence import SequenceMemory


@dataclass(kw_only=True, slots=True, eq=False)
class Beam:
    """One branch of a search; its block table and its state are those of `sequence`."""

    sequence: SequenceMemory
    num_tokens: int
    """Computed tokens: its length, and the position of its next token."""
    score: float
    """Sum of the log probabilities of its output."""

    @property
    def num_output(self) -> int:
        """Computed tokens beyond the prompt."""
        return max(0, self.num_tokens - self.sequence.num_prompt_tokens)


class Beams:
    """The live beams of one search, in the order of its last reordering."""

    def __init__(self, memory: HybridMemory, root: SequenceMemory, num_tokens: int) -> None:
        """
        Args:
            root: a running sequence that has computed `num_tokens` tokens.
        """
        self.memory = memory
        self.beams = [Beam(sequence=root, num_tokens=num_tokens, score=0.0)]

    def reorder(
        self,
        parents: Sequence[int],
        scores: Sequence[float],
        child: Callable[[Beam], SequenceMemory],
    ) -> None:
        """Make beam i the continuation of beam `parents[i]`, with `scores[i]`.

        A parent's first heir keeps its memory, others are forked from it, and a beam without heirs
        is pruned. No beam may be in the step that is being scheduled.

        Args:
            child: makes the sequence of a further heir, given its parent.

        Raises:
            ValueError: a parent does not exist, the number of scores differs, or a score is NaN.
        """
        before = self.beams
        if len(parents) != len(scores):
            raise ValueError(f"{len(parents)} parents need as many scores, got {len(scores)}")
        for parent in parents:
            if not 0 <= parent < len(before):
                raise ValueError(f"parents must be beams 0 to {len(before) - 1}, got {parent}")
        for place, score in enumerate(scores):
            _require_number(place, score)
        heirs = []
        for place, parent in enumerate(parents):
            beam = before[parent]
            heirs.append(self._fork(beam, child) if parent in parents[:place] else beam)
        for place, beam in enumerate(before):
            if place not in parents:
                self.memory.release(beam.sequence, beam.num_tokens)
        for beam, score in zip(heirs, scores, strict=True):
            beam.score = score
        self.beams = heirs

    def prune(self, place: int) -> None:
        """Release one beam; the others keep the pages that they share with it."""
        beam = self.beams.pop(place)
        self.memory.release(beam.sequence, beam.num_tokens)

    def cancel(self) -> None:
        """Release all beams."""
        while self.beams:
            self.prune(-1)

    def ranked(self, length_penalty: float) -> list[Beam]:
        """The beams by score / output length ** penalty, the best first; ties keep their order.

        A beam without output has no length to divide by, and ranks by its score.

        Raises:
            ValueError: a score is NaN.
        """
        for place, beam in enumerate(self.beams):
            _require_number(place, beam.score)
        return sorted(
            self.beams,
            key=lambda beam: beam.score / max(beam.num_output, 1) ** length_penalty,
            reverse=True,
        )

    def _fork(self, beam: Beam, child: Callable[[Beam], SequenceMemory]) -> Beam:
        sequence = child(beam)
        self.memory.fork(beam.sequence, sequence, beam.num_tokens)
        return Beam(sequence=sequence, num_tokens=beam.num_tokens, score=beam.score)


def _require_number(place: int, score: float) -> None:
    if math.isnan(score):
        raise ValueError(f"the score of beam {place} must be a number, got {score}")
