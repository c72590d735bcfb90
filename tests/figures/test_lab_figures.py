"""What the figures of the labs show, in numbers: blocks, references, waste."""

import numpy as np
import pytest

from figures import FIGURES, block_sharing, block_waste, state_ownership, style
from hsexp.plan.resolve import standing

NAMES = ["block-sharing", "block-waste", "state-ownership"]


@pytest.fixture(scope="module", autouse=True)
def closed():
    style.use()
    yield
    style.plt.close("all")


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_of_a_lab_says_that_nothing_is_measured(name):
    figure = FIGURES[name].from_ledgers(None)
    said = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "nothing is measured" in said
    assert FIGURES[name].from_paper is None


def test_a_shared_prefix_of_eight_tokens_takes_two_blocks_instead_of_four():
    separate, shared, diverged = block_sharing.scenes()
    assert separate.tables == {"A": (1, 2), "B": (3, 4)}
    assert [page.references for page in separate.pages.values()] == [1, 1, 1, 1]
    assert shared.tables["A"][:2] == shared.tables["B"][:2]
    assert [scene.note.split()[0] for scene in (separate, shared, diverged)] == ["4", "2", "2"]
    references = {page.slots[0]: page.references for page in shared.pages.values()}
    assert (references["1"], references["5"]) == (2, 2)


def test_the_divergence_copies_the_tail_and_nothing_else():
    diverged = block_sharing.scenes()[2]
    first, second = (diverged.pages[table[2]] for table in diverged.tables.values())
    assert (first.slots, second.slots) == (("9", "10", "a", ""), ("9", "10", "b", ""))
    assert len(diverged.pages) == 4


def test_the_waste_of_a_sequence_is_less_than_a_block():
    lengths, layouts = np.arange(1, 2049), standing("capacity").layouts
    for name, block in (("s0", 512), ("s1", 512), ("s2", 512), ("d0", 16)):
        unused, size = block_waste.unused_slots(layouts[name], lengths)
        assert size == block
        assert (min(unused), max(unused)) == (0, block - 1)
        assert (unused[0], unused[block - 1], unused[block]) == (block - 1, 0, block - 1)


def test_every_tooth_of_the_waste_is_wide_enough_to_be_seen():
    figure = FIGURES["block-waste"].from_ledgers(None)
    figure.canvas.draw()
    drawn = {}
    for axis in figure.axes:
        for line in axis.get_lines():
            heights = np.asarray(line.get_ydata())
            teeth = int((np.diff(heights) > 0).sum()) + 1
            width_pt = axis.bbox.width / figure.dpi * 72.0
            if len(heights) > 2:
                drawn[line.get_label()] = width_pt / teeth
    assert len(drawn) == 3
    assert all(tooth_pt > 12.0 * 0.9 for tooth_pt in drawn.values()), drawn


def test_the_source_has_a_third_holder_while_it_is_copied():
    before, during, after = state_ownership.moments()
    assert [place.references for place in before.places] == [2, 2]
    assert [place.references for place in during.places] == [3, 3, 1, 1]
    assert [place.references for place in after.places] == [1, 1, 1, 1]
    # The child holds the sources until the copies are complete, then their targets.
    held = [
        [moment.places[place].label for holder, place in moment.holds if holder == "child"]
        for moment in (before, during, after)
    ]
    assert held[0] == held[1] == [place.label for place in before.places]
    assert not set(held[2]) & set(held[0])
