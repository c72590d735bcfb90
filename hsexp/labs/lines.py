"""Lines of tokens that run through a memory by hand: the requests of the labs.

A line has computed some tokens and writes the next ones a step at a time. The lab counts the tokens
and the copies that an engine would need for it.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from hsexp.memory import (
    Copy,
    Hit,
    HybridMemory,
    MemoryConfig,
    PrefixKeys,
    SequenceMemory,
    build_memory,
    exact_prefix,
)


class LabError(ValueError):
    """A lab does not fit its budget."""


class TokenKeys(Sequence[Hashable]):
    """Keys of a growing list of tokens, chained block by block, each computed once."""

    def __init__(self, tokens: list[int], size: int) -> None:
        self._tokens, self._size = tokens, size
        self._keys: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens) // self._size

    def __getitem__(self, index: Any) -> Any:
        keys, size = self._keys, self._size
        for block in range(len(keys), len(self)):
            above = keys[-1] if keys else 0
            keys.append(hash((above, *self._tokens[block * size : (block + 1) * size])))
        return keys[index]


class Line:
    """One request: its tokens, and its sequence in the memory."""

    def __init__(self, lab: "Lab", tokens: Sequence[int], num_prompt_tokens: int) -> None:
        lab.num_lines += 1
        memory = lab.memory
        self.tokens = list(tokens)
        self.computed = 0
        self.sequence = SequenceMemory(
            request_id=lab.num_lines,
            keys=PrefixKeys(
                attention=TokenKeys(self.tokens, memory.block_size),
                checkpoints=TokenKeys(self.tokens, memory.checkpoint_grid),
            ),
            num_prompt_tokens=num_prompt_tokens,
        )


class Lab:
    """One memory, and counts of the work in it."""

    def __init__(
        self,
        config: MemoryConfig,
        nominal_bytes: int,
        *,
        max_leaves: int = 0,
        max_drafts: int = 0,
    ) -> None:
        self.memory: HybridMemory = build_memory(
            config, nominal_bytes, max_leaves=max_leaves, max_drafts=max_drafts
        )
        self.name = config.organization.name
        self.organization = config.layout
        self.num_lines = 0
        self.computed_tokens = 0
        """Tokens that were computed, including those computed again."""
        self.copies: Counter[str] = Counter()
        """Copies by kind."""
        self.copied_bytes = 0
        """Bytes copied in one layer."""
        self.peak_pages = 0
        """Most pages in use at once, all pools together."""
        self.peak_bytes = 0
        """Most bytes in use at once, of one layer."""

    # -- lines -----------------------------------------------------------------------------------

    def start(self, tokens: Sequence[int], *, leaf: bool = False) -> Line:
        """A new request, from a leaf of all its tokens except the last, or from its deepest hit.

        Raises:
            LabError: it does not fit.
        """
        line, memory = Line(self, tokens, len(tokens)), self.memory
        memory.cache.step += 1  # entries of earlier steps can be hit
        found: Hit | None = None
        if leaf:
            key = self.leaf_key(line, len(tokens) - 1)
            found = memory.branching.leaves.find(line.sequence, key)
        hit = found or memory.lookup(line.sequence, len(tokens))
        refusal = memory.refusal(line.sequence, hit, len(tokens), nothing_runs=True)
        if refusal is not None:
            raise LabError(f"{self.name}: {refusal}")
        memory.admit(line.sequence, hit, len(tokens))
        line.computed = hit.tokens
        return line

    def fork(self, parent: Line, token: int, *, by_copying: bool = False) -> Line:
        """A line that continues the parent's computed tokens with one token of its own.

        Raises:
            LabError: there is no room for the copies.
        """
        child = Line(
            self, [*parent.tokens[: parent.computed], token], parent.sequence.num_prompt_tokens
        )
        if not by_copying:
            self.memory.fork(parent.sequence, child.sequence, parent.computed)
        elif not self.memory.fork_by_copying(parent.sequence, child.sequence, parent.computed):
            raise LabError(f"{self.name}: no room to copy {parent.computed} tokens")
        child.computed = parent.computed
        return child

    def compute(self, *lines: Line) -> None:
        """Run steps until every line has computed all its tokens; states fall on every boundary.

        Raises:
            LabError: there is no room.
        """
        grid = self.memory.checkpoint_grid
        while left := [line for line in lines if line.computed < len(line.tokens)]:
            ends = [min(len(line.tokens), (line.computed // grid + 1) * grid) for line in left]
            for line, end in zip(left, ends, strict=True):
                if not self.memory.extend(line.sequence, line.computed, end):
                    raise LabError(f"{self.name}: {self.in_one_line()}")
            self.end_step()
            for line, end in zip(left, ends, strict=True):
                self.computed_tokens += end - line.computed
                line.computed = end

    def end_step(self) -> None:
        """Count the copies and the pages in use."""
        self._note_use()
        for copy in self.memory.take_copies():
            self.copies[copy.kind] += 1
            self.copied_bytes += self._bytes_of(copy)
        self.memory.cache.step += 1

    def release(self, line: Line, *, leaf: bool = False) -> None:
        key = self.leaf_key(line, line.computed) if leaf else None
        self.memory.release(line.sequence, line.computed, leaf=key)

    def leaf_key(self, line: Line, num_tokens: int) -> Hashable:
        return exact_prefix(line.sequence.keys, self.memory.block_size, line.tokens[:num_tokens])

    def in_one_line(self) -> str:
        """Use of the pools, in one line."""
        return "; ".join(self.memory.describe().splitlines())

    # -- counts ----------------------------------------------------------------------------------

    def _note_use(self) -> None:
        used = [pool.spec.num_usable - pool.num_free for pool in self.memory.cache.pools]
        sizes = [pool.spec.page_bytes for pool in self.memory.cache.pools]
        self.peak_pages = max(self.peak_pages, sum(used))
        self.peak_bytes = max(
            self.peak_bytes, sum(pages * size for pages, size in zip(used, sizes, strict=True))
        )

    def _bytes_of(self, copy: Copy) -> int:
        """Bytes of a copy: the page of a block, or the payload of a state."""
        geometry = self.organization.geometry
        if copy.kind == "attention":
            return self.memory.block_size * geometry.kv_token_bytes
        return geometry.composites * geometry.composite_bytes
