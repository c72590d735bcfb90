"""Figure 7: the state that limits reuse (Q7), and depth (Q8) and throughput (Q9) with retention."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.effects import geometric_mean
from analysis.ledgers import Ledgers, common_origin
from analysis.published import published_value
from analysis.runs import Origin, Runs
from analysis.tables import q9
from analysis.tables.beside import PAPER, printed_row, printed_rows
from analysis.tables.g3 import ARMS, DEPTHS, METRICS
from analysis.tables.q7_depths import HEADROOMS, printed_depths, printed_seeds, s2_arms
from figures import style
from figures.points import has, lacks_cells, leave_empty, not_drawn
from figures.registry import derived, plot
from hsexp.config.arm import Arm
from hsexp.plan.cells import format_seeds

BASE, CHANGED = style.color("s2"), "#E69F00"
"""Colours of plain S2, and of S2 with headroom or retention."""

SHORT = {"m1_a_max": "A", "m1_r_max": "R", "j_adopt": "J"}
"""Short names of the depths in drawing order, by the paper's column."""

Pair = tuple[float | None, float | None]
"""Values before and after."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One depth of one seed, before and after, with the values that the paper prints."""

    seed: int
    depth: str
    """J, R or A."""
    before: float | None
    after: float | None
    before_published: float | None = None
    after_published: float | None = None


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Panel (c): throughputs by seed and arm, and the effects between the arms."""

    by_seed: pd.DataFrame
    effects: Mapping[str, q9.Effect | None]
    timebase: str
    beside: Mapping[str, float]
    """Published geometric means by arm; empty if the bars themselves are published values."""


@plot("7")
def from_ledgers(ledgers: Ledgers) -> Figure:
    """Depths by seed, and geometric means of throughputs beside single runs (Section 5.5).

    Raises:
        AnalysisError: an arm lacks a seed or a metric; all such cells are named.
    """
    q7, q8, p1 = (
        ledgers.runs(campaign, block)
        for campaign, block in (
            ("q7", "availability"),
            ("q8", "lifetime"),
            ("q9", "confirmation"),
        )
    )
    origin = common_origin([q7, q8, p1])
    absent = not_drawn(
        "7",
        [
            (q7, s2_arms(), METRICS),
            (q8, ARMS.values(), METRICS),
            (p1, q9.ARMS.values(), [q9.TIMEBASES["span"]]),
        ],
    )
    q8_arms = (ARMS["S2"], ARMS["S2+Retention"])
    panels = (
        _changes(q7, s2_arms(), _printed_q7),
        _changes(q8, q8_arms, _printed_q8),
        _retention(p1),
    )
    if not any(panels):
        raise lacks_cells("7", absent)
    figure = _draw(
        panels[0] or q7,
        panels[1] or q8,
        panels[2] or p1,
        origin=origin,
        samples=f"(a) seeds {q7.seeds_text} and (b) {q8.seeds_text}: one run a mark; (c) n = "
        f"{len(p1.seeds)} seeds a bar ({p1.seeds_text}).",
    )
    style.leave_out(figure, absent)
    return figure


@derived("7")
def from_paper() -> Figure:
    """The figure from published values alone (Appendices G.2 to G.4)."""
    exact = q9.exact_throughputs()
    q7_seeds = printed_seeds()
    q8_seeds = list(dict.fromkeys(int(row["seed"]) for row in printed_rows("G-3")))
    q7 = [
        Change(seed=seed, depth=depth, before=before, after=after)
        for seed in q7_seeds
        for depth in ("R", "J")
        for before, after in [_printed_q7(seed, depth)]
    ]
    q8 = [
        Change(seed=seed, depth=depth, before=before, after=after)
        for seed in q8_seeds
        for depth in SHORT.values()
        for before, after in [_printed_q8(seed, depth)]
    ]
    return _draw(
        q7,
        q8,
        Retention(by_seed=exact, effects=q9.effects(exact), timebase="ledger", beside={}),
        origin=PAPER,
        samples=f"(a) seeds {format_seeds(q7_seeds)} (no Amax is printed) and (b) "
        f"{format_seeds(q8_seeds)}: one run a mark; (c) n = {len(exact)} seeds a bar.",
    )


def _retention(runs: Runs) -> Retention | None:
    """Panel (c); None if no arm has a run."""
    if not any(has(runs, arm, [q9.TIMEBASES["span"]]) for arm in q9.ARMS.values()):
        return None
    timebase = "ledger" if q9.has(q9.throughputs(runs, "ledger")) else "span"
    by_seed = q9.throughputs(runs, timebase)
    return Retention(
        by_seed=by_seed, effects=q9.effects(by_seed), timebase=timebase, beside=_printed_means()
    )


def _changes(
    runs: Runs, arms: tuple[Arm, Arm], printed: Callable[[int, str], Pair]
) -> list[Change]:
    """Changes of all depths and seeds; empty unless both arms have runs."""
    before, after = arms
    if not all(has(runs, arm, METRICS) for arm in arms):
        return []
    changes = []
    for name, depth in SHORT.items():
        metric, _ = DEPTHS[name]
        low, high = runs.values(before, metric), runs.values(after, metric)
        for seed in runs.seeds:
            published = printed(seed, depth)
            changes.append(
                Change(
                    seed=seed,
                    depth=depth,
                    before=float(low[seed]),
                    after=float(high[seed]),
                    before_published=published[0],
                    after_published=published[1],
                )
            )
    return changes


def _printed_q7(seed: int, depth: str) -> Pair:
    """Published depths of Q7: Jadopt and Rmax coincide, and no Amax is printed."""
    printed = printed_depths(seed) if depth != "A" else {}
    return printed.get("j_adopt_at_0_tokens"), printed.get("j_adopt_at_19_tokens")


def _printed_q8(seed: int, depth: str) -> Pair:
    column = next(name for name, short in SHORT.items() if short == depth)
    before, after = (printed_row("G-3", seed=seed, arm=arm).get(column) for arm in ARMS)
    return before, after


def _printed_means() -> dict[str, float]:
    return {
        f"{mode.lower()}_{policy}": published_value("G-6", mode, f"{policy}_geomean")
        for mode in q9.MODES
        for policy in q9.POLICIES
    }


def _draw(
    q7: Sequence[Change] | Runs,
    q8: Sequence[Change] | Runs,
    retention: Retention | Runs,
    *,
    origin: Origin,
    samples: str,
) -> Figure:
    figure, (a, b, c) = plt.subplots(
        1, 3, figsize=(style.PAGE_IN, 3.35), width_ratios=[1.0, 1.0, 0.95]
    )
    _both_depths((a, b), (q7, q8))
    sentences = [
        style.origin_sentence(origin),
        samples,
        "A = Amax, R = Rmax, J = Jadopt, all at first admission.",
    ]
    title = "(c) retention, throughput"
    if isinstance(retention, Runs):
        leave_empty(c, title, retention)
    else:
        _throughput(c, retention)
        c.set_title(title)
        sentences[-1] += (
            f" (c) Geometric means on the {_TIMEBASE_NAMES[retention.timebase]}; dots: single runs."
        )
        paper = " Paper: Table G-6 on the ledger timebase." if retention.beside else ""
        sentences.append(f"Kret with its 95 % paired t interval of log ratios.{paper}")
    _legend(figure, paper=origin != PAPER)
    style.footer(figure, *sentences)
    figure.subplots_adjust(left=0.075, right=0.995, top=0.93, bottom=0.36, wspace=0.14)
    _move(c, 0.03)
    return figure


_TIMEBASE_NAMES = {"span": "request span", "ledger": "ledger timebase"}


def _move(axis: Axes, right: float) -> None:
    """Make room for the axis labels of the last panel."""
    box = axis.get_position()
    axis.set_position((box.x0 + right, box.y0, box.width - right, box.height))


def _both_depths(
    axes: tuple[Axes, Axes], panels: tuple[Sequence[Change] | Runs, Sequence[Change] | Runs]
) -> None:
    """Panels (a) and (b) on one scale; a block that was not run leaves its panel empty."""
    drawn = []
    for axis, title, changes in zip(
        axes, ("(a) S2, headroom", "(b) retention, depth"), panels, strict=True
    ):
        if isinstance(changes, Runs):
            leave_empty(axis, title, changes)
        else:
            _depths(axis, changes)
            axis.set_title(title)
            drawn.append(axis)
    for axis in drawn:
        low = min(other.get_ylim()[0] for other in drawn)
        high = max(other.get_ylim()[1] for other in drawn)
        axis.set_ylim(low, high)
    if drawn:
        drawn[0].set_ylabel("mean depth, tokens / request", labelpad=2)
    for axis in drawn[1:]:
        axis.tick_params(labelleft=False)


def _depths(axis: Axes, changes: Sequence[Change]) -> None:
    """Draw one dumbbell per seed and depth; runs are filled, published ones hollow beside them."""
    seeds = list(dict.fromkeys(change.seed for change in changes))
    letters = list(SHORT.values())
    ticks = []
    for change in changes:
        x = seeds.index(change.seed) + 0.29 * (letters.index(change.depth) - 1)
        ticks.append((x, change.depth))
        _dumbbell(axis, x - 0.05, change.before, change.after, hollow=False)
        _dumbbell(axis, x + 0.07, change.before_published, change.after_published, hollow=True)
    ticks = sorted(set(ticks))
    axis.set_xticks([x for x, _ in ticks], [letter for _, letter in ticks])
    axis.tick_params(axis="x", length=0)
    for index, seed in enumerate(seeds):
        axis.text(
            index,
            -0.115,
            str(seed),
            transform=axis.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7.5,
        )
        if index:
            axis.axvline(index - 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
    axis.set_xlim(-0.5, len(seeds) - 0.5)


def _dumbbell(
    axis: Axes, x: float, before: float | None, after: float | None, *, hollow: bool
) -> None:
    if before is None or after is None:
        return
    axis.plot([x, x], [before, after], color=style.FAINT, linewidth=0.8, zorder=2)
    for value, color in ((before, BASE), (after, CHANGED)):
        look: dict[str, Any] = (
            style.published_marker(markeredgecolor=color, markersize=3.4)
            if hollow
            else {"marker": "o", "markersize": 4.2, "color": color, "zorder": 5}
        )
        axis.plot([x], [value], **look)


def _throughput(axis: Axes, retention: Retention) -> None:
    positions = {
        f"{mode.lower()}_{policy}": index + (0.2 if policy == "s2_retention" else -0.2)
        for index, mode in enumerate(q9.MODES)
        for policy in q9.POLICIES
    }
    for name, x in positions.items():
        values = retention.by_seed[name]
        if values.isna().any():
            continue
        color = CHANGED if name.endswith("retention") else BASE
        axis.bar([x], [geometric_mean(values)], width=0.36, color=color, alpha=0.75, zorder=2)
        count = len(values)
        fan = [x - 0.13 + 0.18 * k / max(count - 1, 1) for k in range(count)]
        axis.plot(fan, values, **style.seed_marker())
        if name in retention.beside:
            axis.plot([x + 0.115], [retention.beside[name]], **style.published_marker())
    top = float(retention.by_seed.max().max())
    axis.set_ylim(0.0, 1.5 * top)
    axis.set_xticks(range(len(q9.MODES)), list(q9.MODES))
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel("output tokens / s", labelpad=2)
    for index, mode in enumerate(q9.MODES):
        effect = retention.effects[f"delta_{mode}"]
        highest = max(
            float(retention.by_seed[f"{mode.lower()}_{policy}"].max()) for policy in q9.POLICIES
        )
        if effect is not None:
            axis.text(
                index, highest + 0.035 * top, f"{effect.percent:+.1f} %", ha="center", fontsize=7.5
            )
    interaction = retention.effects["Kret"]
    if interaction is not None:
        low, high = interaction.interval.low, interaction.interval.high
        axis.text(
            0.03,
            0.97,
            f"$K_{{ret}}$ = {interaction.percent:+.1f} %\n95 %: {low:+.1f} to {high:+.1f}",
            transform=axis.transAxes,
            ha="left",
            va="top",
            fontsize=7.5,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.FAINT},
        )


def _legend(figure: Figure, *, paper: bool) -> None:
    base: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.5}
    handles: list[Patch | Line2D] = [
        Line2D([], [], **base, color=BASE, label="S2, f = 0, no retention"),
        Line2D([], [], **base, color=CHANGED, label=f"f = {HEADROOMS[1]:g} (a), retention (b, c)"),
    ]
    if paper:
        handles.append(Line2D([], [], **style.published_marker(), label="paper"))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.172),
        ncols=len(handles),
        columnspacing=2.0,
        handletextpad=0.4,
    )
