"""Advice: throughput against TTFT p99, one point an arm, and the Pareto front."""

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.advice import Advice
from analysis.ledgers import Ledgers
from figures import style
from figures.registry import plot
from hsexp.plan.advice import THROUGHPUT, TTFT, Candidate


@plot("advise")
def draw(ledgers: Ledgers) -> Figure:
    """Every arm that serves all requests; the front is what no other arm beats in both.

    Raises:
        AnalysisError: there is no arm to advise.
    """
    advice = Advice(ledgers)
    figure, axis = plt.subplots(figsize=(style.PAGE_IN, 3.6))
    for organization in dict.fromkeys(str(each.arm.organization) for each in advice.order):
        arms = [each for each in advice.order if each.arm.organization == organization]
        axis.plot(
            [each.metric(TTFT) for each in arms],
            [each.metric(THROUGHPUT) for each in arms],
            linestyle="none",
            marker=style.marker(organization),
            markersize=4.5,
            color=style.color(organization),
            alpha=0.75,
            label=organization.upper(),
        )
    best = front(advice.order)
    axis.plot(
        [each.metric(TTFT) for each in best],
        [each.metric(THROUGHPUT) for each in best],
        drawstyle="steps-post",
        color=style.FAINT,
        linewidth=0.9,
        zorder=1,
        label="Pareto front",
    )
    _ring(axis, advice.advised, "advised", style.INK)
    if advice.default.arm != advice.advised.arm:
        _ring(axis, advice.default, "default", style.FAINT)
    if advice.target is not None and advice.target.metric in (TTFT, THROUGHPUT):
        line = axis.axvline if advice.target.metric == TTFT else axis.axhline
        line(advice.target.bound, color=style.FAINT, linestyle=":", label=f"{advice.target}")
    axis.set_xlim(_at_least_a_tenth(axis.get_xlim()))
    axis.set_ylim(_at_least_a_tenth(axis.get_ylim()))
    axis.set_xlabel("TTFT p99, s")
    axis.set_ylabel("output tokens / s")
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    style.footer(
        figure,
        f"{style.origin_sentence(advice.origin)} {advice.model}, {len(advice.order)} arms.",
        f"Advised: {advice.describe(advice.advised.arm)}. "
        f"Default: {advice.describe(advice.default.arm)}.",
    )
    figure.subplots_adjust(left=0.09, right=0.82, top=0.96, bottom=0.26)
    return figure


def front(arms: Sequence[Candidate]) -> list[Candidate]:
    """Arms that no other one passes in throughput without a longer TTFT, by TTFT."""
    ordered = sorted(arms, key=lambda each: (each.metric(TTFT), -each.metric(THROUGHPUT)))
    best: list[Candidate] = []
    for each in ordered:
        if not best or each.metric(THROUGHPUT) > best[-1].metric(THROUGHPUT):
            best.append(each)
    return best


def _ring(axis: Axes, candidate: Candidate, label: str, color: str) -> None:
    axis.plot(
        [candidate.metric(TTFT)],
        [candidate.metric(THROUGHPUT)],
        linestyle="none",
        marker="o",
        markersize=11.0,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.1,
        label=label,
        zorder=6,
    )


def _at_least_a_tenth(ends: tuple[float, float]) -> tuple[float, float]:
    """An axis that spans a tenth of its values at least, so that equal arms look equal."""
    low, high = ends
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    half = max(half, 0.05 * abs(middle))
    return middle - half, middle + half
