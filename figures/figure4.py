"""Figure 4: the gain of the shared-pool refinements without and with common contexts (Q3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.effects import relative_changes
from analysis.ledgers import Ledgers
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Origin
from analysis.tables.beside import PAPER
from analysis.tables.g2 import STEPS, Step, interaction_pp, step_pairs
from figures import style
from figures.points import Point, bars, lacks_cells, not_drawn, of_seeds, spread_sentence
from figures.registry import derived, plot
from hsexp.config.arm import Arm

SHOWN = STEPS[:2]
"""S1/S0 and S2/S1; D0/S2 is only in Table G-2."""
ENDPOINTS = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class StepEffects:
    """One step at both endpoints."""

    step: Step
    points: dict[float, Point]
    """Points by endpoint; an endpoint without its runs is absent."""
    interaction_pp: float | None
    interaction_published_pp: float | None = None


@plot("4")
def from_ledgers(ledgers: Ledgers) -> Figure:
    """Means of seedwise relative changes at q = 0 and q = 1 (Section 5.2).

    Raises:
        NoRunsError: the block was not run.
        AnalysisError: an arm lacks a seed or its throughput; all such cells are named.
    """
    runs = ledgers.runs("q3", "sharing")
    origin = runs.origin
    organizations = dict.fromkeys(name for s in SHOWN for name in (s.numerator, s.denominator))
    arms = [Arm(organization=name, sharing=q) for name in organizations for q in ENDPOINTS]
    absent = not_drawn("4", [(runs, arms, [THROUGHPUT])])
    every = [
        StepEffects(
            step=step,
            points={
                sharing: of_seeds(relative_changes(pairs), published=_printed(step, sharing))
                for sharing in ENDPOINTS
                if not (pairs := step_pairs(runs, step, sharing)).undefined
            },
            interaction_pp=interaction_pp(runs, step),
            interaction_published_pp=_printed_interaction(step),
        )
        for step in SHOWN
    ]
    effects = [each for each in every if each.points]
    if not effects:
        raise lacks_cells("4", absent)
    figure = _draw(
        effects,
        origin=origin,
        sample=f"n = {len(runs.seeds)} matched seeds ({runs.seeds_text})",
    )
    style.leave_out(figure, absent)
    return figure


@derived("4")
def from_paper() -> Figure:
    """The figure from the printed effects and interactions alone."""
    effects = [
        StepEffects(
            step=step,
            points={sharing: Point(value=_printed(step, sharing)) for sharing in ENDPOINTS},
            interaction_pp=_printed_interaction(step),
        )
        for step in SHOWN
    ]
    seeds = published_value("figure-4", "caption", "matched_seeds")
    return _draw(
        effects,
        origin=PAPER,
        sample=f"n = {seeds:.0f} matched seeds; the paper prints no interval",
    )


def _printed(step: Step, sharing: float) -> float:
    row = f"{step.label}/q={sharing:g}"
    return published_value("figure-4", row, "mean_seedwise_throughput_effect")


def _printed_interaction(step: Step) -> float:
    return published_value("figure-4", f"{step.label}/q=1 minus q=0", "endpoint_interaction")


def _draw(effects: Sequence[StepEffects], *, origin: Origin, sample: str) -> Figure:
    figure, axis = plt.subplots(figsize=(style.COLUMN_IN, 3.0))
    width = 0.36
    for index, each in enumerate(effects):
        color = style.color(each.step.numerator)
        points = list(each.points.values())
        positions = [ENDPOINTS.index(sharing) + (index - 0.5) * width for sharing in each.points]
        bars(axis, positions, points, colors=[color] * len(points), width=0.94 * width)
        for position, point in zip(positions, points, strict=True):
            top = max(point.value, point.published or 0.0, *(point.value + e for e in point.error))
            axis.annotate(
                f"{point.value:.1f}",
                (position, top),
                xytext=(0.0, 3.5),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
            )
    axis.set_xticks(range(2), [f"q = {sharing:g}" for sharing in ENDPOINTS])
    axis.set_xlabel("share of requests with a common context", labelpad=2)
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel("throughput effect, %")
    axis.set_ylim(0.0, 1.06 * axis.get_ylim()[1])
    every = [point for each in effects for point in each.points.values()]
    has_runs = any(point.seeds for point in every)
    handles: list[Patch | Line2D] = [
        Patch(
            color=style.color(each.step.numerator),
            label=f"{each.step.label.replace('/', ' over ')}{_interaction_text(each)}",
        )
        for each in effects
    ]
    if has_runs:
        handles.append(Line2D([], [], **style.published_marker(), label="paper (Table G-2)"))
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.105, 1.0),
        handlelength=1.2,
        labelspacing=0.3,
        borderaxespad=0.2,
    )
    spread = spread_sentence(every)
    style.footer(
        figure,
        style.origin_sentence(origin),
        f"{sample}. b83, 3 requests/s, cap 63.",
        *([spread] if spread else []),
    )
    figure.subplots_adjust(left=0.125, right=0.985, top=0.835, bottom=0.30)
    return figure


def _interaction_text(each: StepEffects) -> str:
    if each.interaction_pp is None:
        return ""
    text = f"; {each.interaction_pp:+.1f} pp from q = 0 to 1"
    if each.interaction_published_pp is not None:
        text += f" (paper {each.interaction_published_pp:+.1f})"
    return text
