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
from analysis.tables.g3 import ARMS, METRICS, depths
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

COMPUTED = {"m1_a_max": "m0_a_max", "m1_r_max": "m0_r_max"}
"""The same depth under M0, by its column under M1."""

_TITLES = ("(a) S2, headroom", "(b) retention, depth", "(c) retention, throughput")


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
    computed: Pair = (None, None)
    """Both under M0, where the mask matters and is known; the values themselves are under M1."""
    computed_published: Pair = (None, None)


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
        _changes(q7, s2_arms(), _printed_q7, lambda seed, depth: (None, None)),
        _changes(q8, q8_arms, _printed_q8, _printed_q8_computed),
        _retention(p1),
    )
    if not any(panels):
        raise lacks_cells("7", absent)
    figure = _draw(
        panels[0] or q7,
        panels[1] or q8,
        panels[2] or p1,
        origin=origin,
        samples=(
            f"(a) seeds {q7.seeds_text}",
            f"(b) seeds {q8.seeds_text}",
            f"(c) n = {len(p1.seeds)} seeds a bar ({p1.seeds_text})",
        ),
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
        Change(
            seed=seed,
            depth=depth,
            before=before,
            after=after,
            computed=_printed_q8_computed(seed, depth),
        )
        for seed in q8_seeds
        for depth in SHORT.values()
        for before, after in [_printed_q8(seed, depth)]
    ]
    return _draw(
        q7,
        q8,
        Retention(by_seed=exact, effects=q9.effects(exact), timebase="ledger", beside={}),
        origin=PAPER,
        samples=(
            f"(a) seeds {format_seeds(q7_seeds)} (no Amax is printed)",
            f"(b) seeds {format_seeds(q8_seeds)}",
            f"(c) n = {len(exact)} seeds a bar",
        ),
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
    runs: Runs,
    arms: tuple[Arm, Arm],
    printed: Callable[[int, str], Pair],
    printed_computed: Callable[[int, str], Pair],
) -> list[Change]:
    """Changes of all depths and seeds; empty unless both arms have runs."""
    if not all(has(runs, arm, METRICS) for arm in arms):
        return []
    changes = []
    for seed in runs.seeds:
        low, high = (depths(runs, arm, seed) for arm in arms)
        for name, depth in SHORT.items():
            published = printed(seed, depth)
            below = COMPUTED.get(name)
            changes.append(
                Change(
                    seed=seed,
                    depth=depth,
                    before=low[name],
                    after=high[name],
                    before_published=published[0],
                    after_published=published[1],
                    computed=(None, None) if below is None else (low[below], high[below]),
                    computed_published=printed_computed(seed, depth),
                )
            )
    return changes


def _printed_q7(seed: int, depth: str) -> Pair:
    """Published depths of Q7: Jadopt and Rmax coincide, and no Amax is printed."""
    printed = printed_depths(seed) if depth != "A" else {}
    return printed.get("j_adopt_at_0_tokens"), printed.get("j_adopt_at_19_tokens")


def _printed_q8(seed: int, depth: str) -> Pair:
    return _printed_g3(seed, next(name for name, short in SHORT.items() if short == depth))


def _printed_q8_computed(seed: int, depth: str) -> Pair:
    """Published depths under M0; Jadopt has no mask."""
    columns = {SHORT[visible]: computed for visible, computed in COMPUTED.items()}
    return _printed_g3(seed, columns[depth]) if depth in columns else (None, None)


def _printed_g3(seed: int, column: str) -> Pair:
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
    samples: tuple[str, str, str],
) -> Figure:
    """The three panels; a single one with runs is drawn and described alone."""
    panels = (q7, q8, retention)
    drawn = [place for place, panel in enumerate(panels) if not isinstance(panel, Runs)]
    if len(drawn) == 1:
        figure, axis = plt.subplots(figsize=(0.58 * style.PAGE_IN, 3.6))
        axes: list[Axes | None] = [axis if place in drawn else None for place in range(3)]
    else:
        figure, three = plt.subplots(
            1, 3, figsize=(style.PAGE_IN, 3.35), width_ratios=[0.95, 0.95, 1.05]
        )
        axes = list(three)
    _both_depths(axes[:2], (q7, q8))
    if axes[2] is not None:
        if isinstance(retention, Runs):
            leave_empty(axes[2], _TITLES[2], retention)
        else:
            _throughput(axes[2], retention)
            axes[2].set_title(_TITLES[2])
    foot = style.footer(figure, style.origin_sentence(origin), *_sentences(panels, drawn, samples))
    _legend(figure, drawn, paper=origin != PAPER, bottom=foot / figure.get_figheight())
    if len(drawn) == 1:
        figure.subplots_adjust(left=0.15, right=0.98, top=0.93, bottom=0.4)
    else:
        figure.subplots_adjust(left=0.075, right=0.995, top=0.93, bottom=0.385, wspace=0.14)
        _move(three[2], 0.04)
    return figure


def _sentences(
    panels: tuple[Sequence[Change] | Runs, Sequence[Change] | Runs, Retention | Runs],
    drawn: Sequence[int],
    samples: tuple[str, str, str],
) -> list[str]:
    """What the panels with runs show."""
    sentences = []
    depths_drawn = [place for place in drawn if place < 2]
    parts = []
    if depths_drawn:
        parts.append(f"{' and '.join(samples[place] for place in depths_drawn)}: one run a mark")
    if 2 in drawn:
        parts.append(samples[2])
    sentences.append(f"{'; '.join(parts)}.")
    if depths_drawn:
        legend = "A = Amax, R = Rmax, J = Jadopt, all at first admission."
        changes = [
            change for panel in panels[:2] if not isinstance(panel, Runs) for change in panel
        ]
        if any(None not in change.computed for change in changes):
            legend += " Bars from a mark: from mask M1 down to M0, where they differ."
        sentences.append(legend)
    retention = panels[2]
    if not isinstance(retention, Runs):
        means = f"Geometric means on the {_TIMEBASE_NAMES[retention.timebase]}; dots: single runs."
        if depths_drawn:
            sentences[-1] += f" (c) {means}"
        else:
            sentences.append(means)
        paper = " Paper: Table G-6 on the ledger timebase." if retention.beside else ""
        sentences.append(f"Kret with its 95 % paired t interval of log ratios.{paper}")
    return sentences


_TIMEBASE_NAMES = {"span": "request span", "ledger": "ledger timebase"}


def _move(axis: Axes, right: float) -> None:
    """Make room for the axis labels of the last panel."""
    box = axis.get_position()
    axis.set_position((box.x0 + right, box.y0, box.width - right, box.height))


def _both_depths(
    axes: Sequence[Axes | None], panels: tuple[Sequence[Change] | Runs, Sequence[Change] | Runs]
) -> None:
    """Panels (a) and (b) on one scale; a block that was not run leaves its panel empty."""
    drawn = []
    for axis, title, changes in zip(axes, _TITLES[:2], panels, strict=True):
        if axis is None:
            continue
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
        here = (change.before, change.after)
        paper = (change.before_published, change.after_published)
        _dumbbell(axis, x - 0.05, here, change.computed, hollow=False)
        _dumbbell(axis, x + 0.07, paper, change.computed_published, hollow=True)
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


def _dumbbell(axis: Axes, x: float, depths: Pair, computed: Pair, *, hollow: bool) -> None:
    """Both values of a depth, and a bar from each down to its value under M0."""
    before, after = depths
    if before is None or after is None:
        return
    axis.plot([x, x], [before, after], color=style.FAINT, linewidth=0.8, zorder=2)
    for value, below, color in zip((before, after), computed, (BASE, CHANGED), strict=True):
        look: dict[str, Any] = (
            style.published_marker(markeredgecolor=color, markersize=3.4)
            if hollow
            else {"marker": "o", "markersize": 4.2, "color": color, "zorder": 5}
        )
        axis.plot([x], [value], **look)
        if below is not None and below != value:
            axis.plot([x, x], [below, value], color=color, linewidth=2.4, zorder=3)
            axis.plot([x], [below], marker="_", markersize=6.0, color=color, zorder=3)


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


def _legend(figure: Figure, drawn: Sequence[int], *, paper: bool, bottom: float) -> None:
    """
    Args:
        bottom: upper end of the footer, as a fraction of the figure's height.
    """
    base: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.5}
    headroom = f"f = {HEADROOMS[1]:g}"
    changed = f"{headroom} (a), retention (b, c)"
    if len(drawn) == 1:
        changed = headroom if drawn[0] == 0 else "S2, f = 0, retention"
    handles: list[Patch | Line2D] = [
        Line2D([], [], **base, color=BASE, label="S2, f = 0, no retention"),
        Line2D([], [], **base, color=CHANGED, label=changed),
    ]
    if paper:
        handles.append(Line2D([], [], **style.published_marker(), label="paper"))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, bottom),
        ncols=len(handles),
        columnspacing=2.0 if len(drawn) > 1 else 1.0,
        handletextpad=0.4,
    )
