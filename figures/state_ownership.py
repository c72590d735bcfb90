"""State ownership: holders of a shared tail and a shared state before, during and after a copy.

References and tables come from a memory in which the copy was begun and completed.
"""

from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, FancyBboxPatch

from figures import style
from figures.registry import drawing
from hsexp.labs.lines import Lab, Line
from hsexp.labs.small import small_lab
from hsexp.memory import Copy

COLORS = {"parent": "#0072B2", "child": "#D55E00", "copy": "#009E73"}
_Y = {"parent": 3.0, "child": 2.0, "copy": 1.0}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A tail page or a state."""

    label: str
    references: int


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The holders of each place at one time."""

    title: str
    note: str
    places: tuple[Place, ...]
    holds: tuple[tuple[str, int], ...]
    """Pairs of a holder and the index of a place."""
    copies: tuple[tuple[int, int], ...] = ()
    """Source and target indices of copies in flight."""


@drawing("state-ownership")
def draw() -> Figure:
    """Three moments side by side. Needs no run."""
    shown = moments()
    figure, axes = plt.subplots(1, len(shown), figsize=(style.PAGE_IN, 2.7))
    for axis, moment in zip(axes, shown, strict=True):
        _draw_moment(axis, moment)
    style.footer(
        figure,
        "A fork after 10 tokens, blocks of 4: the partial tail and the recurrent and convolution "
        "state are shared until the child writes. References are those of hsexp.memory; nothing is "
        "measured.",
    )
    figure.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.14, wspace=0.06)
    return figure


def moments() -> list[Moment]:
    """The moments before, during and after the child's copies."""
    lab = small_lab()
    parent = lab.start(range(1, 11))
    lab.compute(parent)
    child = lab.fork(parent, 31)
    branching = lab.memory.branching
    before = _moment(lab, parent, child, [], "before", "nobody may write: two holders each")
    copies = branching.begin_copy(child.sequence)
    during = _moment(
        lab, parent, child, copies, "during", "the child's table still names the source"
    )
    for copy in copies:
        branching.complete_copy(copy)
    after = _moment(lab, parent, child, [], "after", "each writes its own in place")
    return [before, during, after]


def _moment(
    lab: Lab, parent: Line, child: Line, copies: list[Copy], title: str, note: str
) -> Moment:
    pool, places, holds = lab.memory.cache.attention_pool, list[Place](), list[tuple[str, int]]()
    known: dict[tuple[str, int], int] = {}

    def place_of(kind: str, page: int, references: int) -> int:
        key = (kind, page)
        if key not in known:
            known[key] = len(places)
            places.append(Place(label=f"{kind} {page}", references=references))
        return known[key]

    for name, line in (("parent", parent), ("child", child)):
        state, tail = line.sequence.state, line.sequence.blocks[-1]
        assert state is not None
        holds.append((name, place_of("tail", tail, pool.refs[tail])))
        holds.append((name, place_of("state", state.pages[0], state.refs)))
    in_flight = []
    for copy in copies:
        kind = "tail" if copy.kind == "attention" else "state"
        source = known[(kind, copy.source[0])]
        target = place_of(kind, copy.target[0], 1)
        in_flight.append((source, target))
        holds += [("copy", source), ("copy", target)]
    return Moment(
        title=title,
        note=note,
        places=tuple(places),
        holds=tuple(holds),
        copies=tuple(in_flight),
    )


def _draw_moment(axis: Axes, moment: Moment) -> None:
    holders = list(dict.fromkeys(holder for holder, _ in moment.holds))
    heights = [3.4 - place for place in range(len(moment.places))]
    for holder in holders:
        _box(axis, 0.0, _Y[holder], holder, COLORS[holder])
    for place, y in zip(moment.places, heights, strict=True):
        _box(axis, 3.0, y, f"{place.label} ({place.references}×)", style.INK)
    for holder, held in moment.holds:
        axis.add_artist(
            ConnectionPatch(
                (1.3, _Y[holder]), (3.0, heights[held]), "data", "data",
                arrowstyle="-|>", color=COLORS[holder], lw=0.9, mutation_scale=7,
            )
        )  # fmt: skip
    for source, target in moment.copies:
        axis.add_artist(
            ConnectionPatch(
                (5.5, heights[source]), (5.5, heights[target]), "data", "data",
                arrowstyle="-|>", color=COLORS["copy"], lw=1.1, linestyle="--",
                connectionstyle="arc3,rad=-0.5", mutation_scale=8,
            )
        )  # fmt: skip
    axis.set_title(moment.title, loc="left", fontsize=9, weight="bold")
    axis.text(0.0, -0.15, moment.note, fontsize=8, va="top")
    axis.set_xlim(-0.1, 6.4)
    axis.set_ylim(-0.55, 3.8)
    axis.axis("off")


def _box(axis: Axes, x: float, y: float, label: str, color: str) -> None:
    width = 1.3 if x == 0.0 else 2.5
    axis.add_patch(
        FancyBboxPatch(
            (x, y - 0.24), width, 0.48,
            boxstyle="round,pad=0,rounding_size=0.08", facecolor="white", edgecolor=color, lw=0.9,
        )
    )  # fmt: skip
    axis.text(x + width / 2, y, label, ha="center", va="center", fontsize=8, color=color)
