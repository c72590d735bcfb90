"""Figure 3: recorded input beside throughput, and throughput where that input is equal (Q2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.ledgers import Ledgers, common_origin
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Origin, Runs
from analysis.tables.beside import PAPER
from analysis.tables.no_sharing_index import index_by_seed
from figures import style
from figures.points import (
    Bars,
    Point,
    bars,
    has,
    lacks_cells,
    leave_empty,
    marks,
    not_drawn,
    of_seeds,
    spread_sentence,
)
from figures.registry import derived, plot
from hsexp.config.arm import Arm

ORGANIZATIONS = ("s0", "s1", "s2")
ANCHORS = {"anchor_b63": "b63", "anchor_b108": "b108"}
"""The paper's name of the operating point, by block of Q2."""
INPUT = "c_once_tokens"

_KILO = 1000.0


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """The three organizations at one operating point of panel (a)."""

    label: str
    input_ktok: Bars
    throughput: Bars


@dataclass(frozen=True, kw_only=True)
class Indices:
    """Ratios to S0 of panel (b)."""

    inputs: Bars
    throughput: Bars


@plot("3")
def from_ledgers(ledgers: Ledgers) -> Figure:
    """Means over seeds; the index of (b) is a mean of within-seed ratios (Appendix G.1).

    Raises:
        AnalysisError: an arm lacks a seed or a metric; all such cells are named.
    """
    anchors = {name: ledgers.runs("q2", name) for name in ANCHORS}
    control = ledgers.runs("q2", "no_sharing")
    every = [*anchors.values(), control]
    origin = common_origin(every)
    absent = not_drawn("3", [(runs, _arms(), [THROUGHPUT, INPUT]) for runs in every])
    present = [_anchor(runs, ANCHORS[name]) for name, runs in anchors.items() if _drawn(runs)]
    indices = _indices(control)
    if not present and indices is None:
        raise lacks_cells("3", absent)
    figure = _draw(
        present or anchors["anchor_b63"],
        indices or control,
        origin=origin,
        samples=(
            f"(a) n = {len(anchors['anchor_b63'].seeds)} seeds a bar "
            f"({anchors['anchor_b63'].seeds_text}); (b) n = {len(control.seeds)} "
            f"({control.seeds_text})."
        ),
    )
    style.leave_out(figure, absent)
    return figure


@derived("3")
def from_paper() -> Figure:
    """The figure from published values alone (Table E-1, Appendix G.1)."""
    anchors = [
        Anchor(
            label=_anchor_label(budget, _printed(budget, "s0", "rate")),
            input_ktok={
                name: Point(value=_printed(budget, name, "c_once") / _KILO)
                for name in ORGANIZATIONS
            },
            throughput={
                name: Point(value=_printed(budget, name, "throughput")) for name in ORGANIZATIONS
            },
        )
        for budget in ANCHORS.values()
    ]
    return _draw(
        anchors,
        Indices(
            inputs={name: Point(value=_printed_index(name, INPUT)) for name in ORGANIZATIONS},
            throughput={
                name: Point(value=_printed_index(name, THROUGHPUT)) for name in ORGANIZATIONS
            },
        ),
        origin=PAPER,
        samples="(a) n = 3 seeds a bar; (b) n = 12. The paper prints no interval.",
    )


def _arms() -> list[Arm]:
    return [Arm(organization=name) for name in ORGANIZATIONS]


def _drawn(runs: Runs) -> dict[str, Arm]:
    """The organizations that have every run."""
    return {str(arm.organization): arm for arm in _arms() if has(runs, arm, [THROUGHPUT, INPUT])}


def _anchor(runs: Runs, budget: str) -> Anchor:
    arms = _drawn(runs)
    return Anchor(
        label=_anchor_label(budget, runs.design.rate_per_s[0]),
        input_ktok={
            name: of_seeds(
                runs.values(arm, INPUT) / _KILO,
                published=_printed(budget, name, "c_once") / _KILO,
            )
            for name, arm in arms.items()
        },
        throughput={
            name: of_seeds(
                runs.values(arm, THROUGHPUT), published=_printed(budget, name, "throughput")
            )
            for name, arm in arms.items()
        },
    )


def _indices(runs: Runs) -> Indices | None:
    """The indices; None without runs of S0, which the others are divided by."""
    arms = _drawn(runs)
    if "s0" not in arms:
        return None
    return Indices(
        inputs={name: _index(runs, arm, INPUT) for name, arm in arms.items()},
        throughput={name: _index(runs, arm, THROUGHPUT) for name, arm in arms.items()},
    )


def _index(runs: Runs, arm: Arm, metric: str) -> Point:
    values = index_by_seed(runs, arm, metric)
    if (values == 1.0).all():  # S0 itself, and equal input: no spread to show
        return Point(value=1.0, published=_printed_index(str(arm.organization), metric))
    return of_seeds(values, published=_printed_index(str(arm.organization), metric))


def _anchor_label(budget: str, rate_per_s: float | None) -> str:
    return f"{budget}, {rate_per_s:g}/s"


def _printed(budget: str, organization: str, column: str) -> float:
    return published_value("E-1", f"{budget}/{organization.upper()}", column)


def _printed_index(organization: str, metric: str) -> float:
    column = {THROUGHPUT: "throughput_index", INPUT: "norm_c_once"}[metric]
    return published_value("figure-3", f"b/{organization.upper()}/b83", column)


def _draw(
    anchors: Sequence[Anchor] | Runs,
    control: Indices | Runs,
    *,
    origin: Origin,
    samples: str,
) -> Figure:
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(style.PAGE_IN, 2.9), width_ratios=[1.0, 1.0, 0.85]
    )
    points: list[Point] = []
    title = "(b) no sharing, b83"
    if isinstance(control, Runs):
        leave_empty(right, title, control)
    else:
        _control(right, control)
        right.set_title(title)
        points += control.throughput.values()
    titles = ("(a) recorded initial input", "(a) throughput")
    for axis, title in zip((left, middle), titles, strict=True):
        if isinstance(anchors, Runs):
            leave_empty(axis, title, anchors)
            continue
        first = axis is left
        groups = [anchor.input_ktok if first else anchor.throughput for anchor in anchors]
        _grouped(axis, [anchor.label for anchor in anchors], groups)
        axis.set_ylabel("C_once, 1,000 tokens / run" if first else "output tokens / s")
        axis.set_title(title)
        points += [point for group in groups for point in group.values()]
    has_runs = origin != PAPER
    _legend(figure, paper=has_runs)
    spread = spread_sentence(points)
    paper = " Paper: Table E-1 and Appendix G.1." if has_runs else ""
    style.footer(
        figure,
        f"{style.origin_sentence(origin)} {samples}",
        *([f"{spread}{paper}"] if spread or paper else []),
    )
    figure.subplots_adjust(left=0.075, right=0.99, top=0.92, bottom=0.315, wspace=0.33)
    return figure


def _grouped(axis: Axes, labels: Sequence[str], groups: Sequence[Bars]) -> None:
    width = 0.28
    for index, group in enumerate(groups):
        bars(
            axis,
            [index + (ORGANIZATIONS.index(name) - 1) * width for name in group],
            list(group.values()),
            colors=[style.color(name) for name in group],
            width=0.92 * width,
        )
    axis.set_xticks(range(len(labels)), labels)
    axis.tick_params(axis="x", length=0)


def _control(axis: Axes, indices: Indices) -> None:
    """Draw both as ratios to S0, so they share one axis."""
    positions = [float(k) for k in range(len(indices.inputs))]
    throughput = list(indices.throughput.values())
    bars(
        axis,
        positions,
        [Point(value=point.value) for point in indices.inputs.values()],
        colors=[style.color(name) for name in indices.inputs],
        width=0.62,
        alpha=0.45,
    )
    axis.plot(
        positions,
        [point.value for point in throughput],
        color=style.INK,
        marker="o",
        markersize=4.5,
        linewidth=1.0,
        zorder=5,
    )
    marks(axis, positions, throughput, spread=0.36)
    axis.set_ylim(0.0, 1.65)
    axis.set_xticks(positions, [name.upper() for name in indices.inputs])
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel("over S0 of the same seed")


def _legend(figure: Figure, *, paper: bool) -> None:
    handles: list[Patch | Line2D] = [
        Patch(color=style.color(name), label=name.upper()) for name in ORGANIZATIONS
    ]
    handles += [
        Patch(color=style.FAINT, alpha=0.45, label="C_once (b)"),
        Line2D([], [], color=style.INK, marker="o", markersize=4.5, label="throughput (b)"),
    ]
    if paper:
        handles.append(Line2D([], [], **style.published_marker(), label="paper"))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.125),
        ncols=len(handles),
        columnspacing=1.8,
        handlelength=1.5,
    )
