"""Copies of pages and lines: bit by bit, in words, also where a buffer is larger than 2 GiB."""

import pytest
import torch

from hsexp.engine.copies import Places, in_words
from hsexp.memory import Copy
from hsexp.memory.checkpoint import NO_LINE


def copies(*pairs: tuple[int, int], with_lines: bool = False) -> list[Copy]:
    """Of states of one page, and of their lines, which have the numbers of the pages."""
    return [
        Copy(
            kind="state", request_id="a", source=(source,), target=(target,), num_tokens=1, step=1,
            source_line=source if with_lines else NO_LINE,
            target_line=target if with_lines else NO_LINE,
        )
        for source, target in pairs
    ]  # fmt: skip


def rows_of(num_rows: int, row_bytes: int, *, step: int, offset: int) -> torch.Tensor:
    """Rows of random bytes, every `step` bytes in a buffer, after its first `offset` bytes."""
    generator = torch.Generator().manual_seed(0)
    size = offset + num_rows * step
    buffer = torch.randint(-128, 128, (size,), generator=generator, dtype=torch.int8)
    return buffer[offset:].as_strided((num_rows, row_bytes), (step, 1))


@pytest.mark.parametrize(
    ("row_bytes", "step", "offset", "word_bytes"),
    [
        (524_288, 524_288, 0, 16),  # a page
        (21_504, 32_768, 0, 16),  # Falcon-H1-7B's line in a slot
        (21_504, 32_768, 8, 8),
        (48, 56, 0, 8),
        (52, 64, 0, 4),
        (48, 64, 2, 2),
        (15, 16, 0, 1),
        (16, 17, 0, 1),
    ],
)
def test_rows_are_copied_bit_by_bit_in_the_largest_words_that_they_are_made_of(
    row_bytes: int, step: int, offset: int, word_bytes: int
) -> None:
    pages = rows_of(6, row_bytes, step=step, offset=offset)
    assert in_words(pages).dtype.itemsize == word_bytes
    before = pages.clone()
    Places(pages={"attention": [], "state": [pages]}, lines=[]).carry_out(copies((1, 4), (2, 5)))
    assert torch.equal(pages[[4, 5]], before[[1, 2]])
    assert torch.equal(pages[:4], before[:4])


def test_a_copied_line_leaves_what_lies_between_lines_as_it_was() -> None:
    slots = rows_of(4, 96, step=96, offset=0)
    before = slots.clone()
    lines = slots.view(torch.bfloat16).as_strided((4, 3, 8), (48, 8, 1))  # 48 of 96 bytes
    assert in_words(lines).dtype.itemsize == 16
    elsewhere = rows_of(4, 16, step=16, offset=0)
    Places(pages={"attention": [], "state": [elsewhere]}, lines=[lines]).carry_out(
        copies((1, 3), with_lines=True)
    )
    assert torch.equal(slots[3, :48], before[1, :48])
    assert torch.equal(slots[3, 48:], before[3, 48:])
    assert torch.equal(slots[:3], before[:3])


def test_pages_and_lines_beyond_two_to_the_31_bytes_are_copied() -> None:
    """Three places a gigabyte of elements apart; memory is taken only where it is touched."""
    memory = torch.empty(2 * 2**30 + 2**20, dtype=torch.bfloat16)
    pages = memory.view(torch.int8).as_strided((3, 4096), (2**31, 1))
    lines = memory[2**16 :].as_strided((3, 3, 64), (2**30, 64, 1))
    pages[1], pages[2], lines[1], lines[2] = 1, 2, 3.0, 4.0
    Places(pages={"attention": [], "state": [pages]}, lines=[lines]).carry_out(
        copies((2, 1), with_lines=True)
    )
    assert bool((pages[1] == 2).all()) and bool((lines[1] == 4).all())
