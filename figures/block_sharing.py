"""Block sharing: a prefix of 8 tokens in blocks of 4, kept twice, shared, and diverging.

The block tables and reference counts come from a memory that ran the scene.
"""

from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle

from figures import style
from figures.registry import drawing
from hsexp.labs.lines import Lab, Line
from hsexp.labs.small import small_lab

PREFIX = (1, 2, 3, 4, 5, 6, 7, 8)
LETTERS = {"A": "#0072B2", "B": "#D55E00"}
"""Colours of the two branches; a branch's own tokens have its colour."""
_SHARED = "#DDDDDD"


@dataclass(frozen=True, kw_only=True)
class Page:
    """A physical block: contents of its slots, and the number of tables that name it."""

    slots: tuple[str, ...]
    """Token names; empty for an unused slot."""
    references: int


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Block tables by branch, and the pages in them."""

    title: str
    note: str
    tables: dict[str, tuple[int, ...]]
    pages: dict[int, Page]


@drawing("block-sharing")
def draw() -> Figure:
    """Three scenes side by side. Needs no run."""
    shown = scenes()
    figure, axes = plt.subplots(1, len(shown), figsize=(style.PAGE_IN, 2.9))
    for axis, scene in zip(axes, shown, strict=True):
        _draw_scene(axis, scene)
    style.footer(
        figure,
        "Left of each scene the block tables, right of it the physical blocks with the number of "
        "tables that name them. A prefix is shared as far as its tokens are equal, block by block; "
        "a partial block that two branches write is copied by the first of them.",
        "Tables and counts are those of hsexp.memory after it ran the scene; nothing is measured.",
    )
    figure.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.18, wspace=0.08)
    return figure


def scenes() -> list[Scene]:
    """The prefix twice, the prefix once, and two branches behind a partial block."""
    return [_separate(), _shared(), _diverged()]


def _separate() -> Scene:
    lab = small_lab()
    lines = {"A": lab.start(PREFIX), "B": lab.start(PREFIX)}  # neither finds the other's blocks
    lab.compute(*lines.values())
    return _scene(lab, lines, "without sharing", "{} blocks for the prefix")


def _shared() -> Scene:
    lab = small_lab()
    first = lab.start([*PREFIX, 21, 22])
    lab.compute(first)
    second = lab.start([*PREFIX, 31])
    lab.compute(second)
    return _scene(
        lab, {"A": first, "B": second}, "a shared prefix", "{} blocks for the prefix", whole=8
    )


def _diverged() -> Scene:
    lab = small_lab()
    parent = lab.start([*PREFIX, 9, 10])
    lab.compute(parent)
    child = lab.fork(parent, 31)
    parent.tokens.append(21)
    lab.compute(child, parent)
    assert lab.copies["attention"] == 1
    return _scene(
        lab,
        {"A": parent, "B": child},
        "a divergence within a block",
        "{} blocks shared, the tail copied once",
        whole=8,
    )


def _scene(
    lab: Lab, lines: dict[str, Line], title: str, note: str, *, whole: int | None = None
) -> Scene:
    """Build a scene; `note` is a template for the number of blocks that hold the prefix."""
    size = lab.memory.block_size
    pages: dict[int, Page] = {}
    for name, line in lines.items():
        for block, page in enumerate(line.sequence.blocks):
            tokens = line.tokens[block * size : (block + 1) * size]
            names = [str(token) if token < 20 else name.lower() for token in tokens]
            pages[page] = Page(
                slots=(*names, *[""] * (size - len(names))),
                references=lab.memory.cache.attention_pool.refs[page],
            )
    num_blocks = len({
        page
        for line in lines.values()
        for page in line.sequence.blocks[: (whole or len(line.tokens)) // size]
    })  # fmt: skip
    return Scene(
        title=title,
        note=note.format(num_blocks),
        tables={name: tuple(line.sequence.blocks) for name, line in lines.items()},
        pages=pages,
    )


def _draw_scene(axis: Axes, scene: Scene) -> None:
    places = {page: place for place, page in enumerate(sorted(scene.pages))}
    top = max(len(places), 4)
    for page, place in places.items():
        _draw_page(axis, scene.pages[page], page, y=top - place)
    y = float(top)
    for name, table in scene.tables.items():
        axis.text(0.0, y + 0.28, name, color=LETTERS[name], weight="bold", fontsize=10, va="center")
        for block, page in enumerate(table):
            row = y - 0.62 * block
            axis.add_patch(
                Rectangle((0.35, row), 0.75, 0.5, facecolor="white", edgecolor=style.INK, lw=0.7)
            )
            axis.text(0.725, row + 0.25, str(page), ha="center", va="center", fontsize=7.5)
            axis.add_artist(
                ConnectionPatch(
                    (1.1, row + 0.25), (2.5, top - places[page] + 0.3), "data", "data",
                    arrowstyle="-|>", color=LETTERS[name], lw=0.8, mutation_scale=7,
                )
            )  # fmt: skip
        y -= 0.62 * len(table) + 0.35
    axis.set_title(scene.title, loc="left", fontsize=9, weight="bold")
    axis.text(0.0, top - 3.85, scene.note, fontsize=8, va="top")
    axis.set_xlim(-0.1, 6.2)
    axis.set_ylim(top - 4.2, top + 0.8)
    axis.axis("off")


def _draw_page(axis: Axes, page: Page, number: int, *, y: float) -> None:
    for slot, name in enumerate(page.slots):
        own = LETTERS.get(name.upper())
        axis.add_patch(
            Rectangle(
                (2.5 + 0.6 * slot, y), 0.6, 0.6,
                facecolor=own if own else (_SHARED if name else "white"),
                edgecolor=style.INK, lw=0.5, alpha=0.75 if own else 1.0,
            )
        )  # fmt: skip
        axis.text(2.8 + 0.6 * slot, y + 0.3, name, ha="center", va="center", fontsize=7.5)
    side = 2.5 + 0.6 * len(page.slots) + 0.12
    axis.text(side, y + 0.3, f"{number}: {page.references}×", va="center", fontsize=7.5)
