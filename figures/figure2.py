"""Figure 2: the stepwise organizations at the main load and at low load (Q1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.config import block_design
from analysis.families import Design
from analysis.ledgers import Ledgers, common_origin
from analysis.published import published_value
from analysis.runs import THROUGHPUT, Runs
from analysis.tables.beside import PAPER
from figures import style
from figures.points import (
    Bars,
    Point,
    bars,
    has,
    leave_empty,
    marks,
    not_drawn,
    of_seeds,
    spread_sentence,
)
from figures.registry import derived, plot
from hsexp.config.arm import Arm

ORGANIZATIONS = ("s0", "s1", "s2")
E2E, TTFT, WAITING = "e2e_p99_s", "ttft_p99_s", "waiting_max"

_EXAMPLE = {THROUGHPUT: "mean_throughput", E2E: "mean_run_level_e2e_p99"}
"""Quantities of Table E-4, which prints S1 and S2 at b108."""

MainPanel = dict[str, Bars]
"""Bars by budget."""


LATENCY_TICKS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ticks of the latency axis at low load, which is logarithmic: TTFT is far below E2E."""


@dataclass(frozen=True, kw_only=True)
class LowLoad:
    """One panel at low load: the three organizations at one budget."""

    budget: str
    cap: int
    throughput: Bars
    ttft: Bars
    e2e: Bars
    waiting: dict[str, str]
    """Range over seeds of the largest polled number of waiting requests, by organization."""
    waiting_published: dict[str, str]


@plot("2")
def from_ledgers(ledgers: Ledgers) -> Figure:
    """Means over seeds of throughput and of run-level p99 latencies (Section 5.1).

    Raises:
        AnalysisError: an arm lacks a seed or a metric; all such cells are named.
    """
    main = ledgers.runs("q1", "main")
    low = [ledgers.runs("q1", block) for block in ("low_b63", "low_b108")]
    origin = common_origin([main, *low])
    metrics = [THROUGHPUT, E2E, TTFT, WAITING]
    absent = not_drawn(
        "2",
        [
            (main, main.design.cells(), [THROUGHPUT, E2E]),
            *((runs, runs.design.cells(), metrics) for runs in low),
        ],
    )
    panels = [_main_panel(main, metric) or main for metric in (THROUGHPUT, E2E)]
    figure = _draw(
        panels,
        [_low_panel(runs) or runs for runs in low],
        footer=(
            f"{style.origin_sentence(origin)} (a, b) 3 requests/s, n = {len(main.seeds)} seeds a "
            "bar.",
            f"(c, d) 0.8 requests/s, n = {len(low[0].seeds)} seeds a bar. Seeds: "
            f"{main.seeds_text} and {low[0].seeds_text}.",
        ),
    )
    style.leave_out(figure, absent)
    return figure


@derived("2")
def from_paper() -> Figure:
    """The printed values; most means of the main load and E2E at low load are not printed."""
    budget = "b108"
    panels = [
        {
            budget: {
                name: Point(value=value)
                for name in ORGANIZATIONS
                if (value := _published_main(name, budget, metric)) is not None
            }
        }
        for metric in (THROUGHPUT, E2E)
    ]
    return _draw(
        panels,
        [_published_low(block_design("q1", block)) for block in ("low_b63", "low_b108")],
        footer=(
            f"{style.origin_sentence(PAPER)} (a, b) Table E-4: twelve seeds, 3 requests/s.",
            "(c, d) Figure 2 and Table E-3: three seeds, 0.8 requests/s. "
            "The paper does not print the other bars, nor E2E at low load.",
        ),
    )


def _published_low(design: Design) -> LowLoad:
    budget, cap = str(design.budget[0]), int(design.cap[0] or 0)
    rows = {name: _row_of(name, budget, cap) for name in ORGANIZATIONS}
    waiting = {name: _published_waiting(row) for name, row in rows.items()}
    return LowLoad(
        budget=budget,
        cap=cap,
        throughput={
            name: Point(value=published_value("E-3", f"{budget}/{name.upper()}", "throughput"))
            for name in ORGANIZATIONS
        },
        ttft={
            name: Point(value=published_value("figure-2", row, "ttft_p99"))
            for name, row in rows.items()
        },
        e2e={},
        waiting=waiting,
        waiting_published={},
    )


def _row_of(organization: str, budget: str, cap: int) -> str:
    """Row of Figure 2's printed values."""
    letter = {"b63": "c", "b108": "d"}[budget]
    return f"{letter}/{organization.upper()}/{budget}/cap {cap}"


def _published_waiting(row: str) -> str:
    low, high = (
        int(published_value("figure-2", row, f"waiting_gauge_run_max_{end}"))
        for end in ("low", "high")
    )
    return _range(low, high)


def _main_panel(runs: Runs, metric: str) -> MainPanel:
    """Bars of the budgets that have a run of at least one organization."""
    panel = {
        budget: {
            organization: of_seeds(
                runs.values(arm, metric),
                published=_published_main(organization, budget, metric),
            )
            for organization in ORGANIZATIONS
            if has(runs, arm := Arm(organization=organization, budget=budget), [metric])
        }
        for budget in runs.design.budget
    }
    return {budget: bars for budget, bars in panel.items() if bars}


def _published_main(organization: str, budget: str, metric: str) -> float | None:
    if budget != "b108" or organization == "s0":
        return None
    return published_value("E-4", _EXAMPLE[metric], organization.upper())


def _low_panel(runs: Runs) -> LowLoad | None:
    """The low-load panel; None if no organization has a run."""
    budget, cap = runs.design.budget[0], runs.design.cap[0]
    arms = {
        name: arm
        for name in ORGANIZATIONS
        if has(runs, arm := Arm(organization=name), [THROUGHPUT, E2E, TTFT, WAITING])
    }
    if not arms:
        return None
    rows = {name: _row_of(name, budget, cap) for name in arms}
    waiting = {name: runs.values(arm, WAITING) for name, arm in arms.items()}
    return LowLoad(
        budget=budget,
        cap=cap,
        throughput={
            name: of_seeds(
                runs.values(arm, THROUGHPUT),
                published=published_value("E-3", f"{budget}/{name.upper()}", "throughput"),
            )
            for name, arm in arms.items()
        },
        ttft={
            name: of_seeds(
                runs.values(arm, TTFT),
                published=published_value("figure-2", rows[name], "ttft_p99"),
            )
            for name, arm in arms.items()
        },
        e2e={name: of_seeds(runs.values(arm, E2E)) for name, arm in arms.items()},
        waiting={
            name: _range(int(values.min()), int(values.max())) for name, values in waiting.items()
        },
        waiting_published={name: _published_waiting(row) for name, row in rows.items()},
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


def _draw(
    panels: Sequence[MainPanel | Runs],
    low: Sequence[LowLoad | Runs],
    *,
    footer: tuple[str, str],
) -> Figure:
    figure = plt.figure(figsize=(style.PAGE_IN, 3.4))
    frame = {"top": 0.93, "bottom": 0.42}
    main = figure.add_gridspec(1, 2, left=0.068, right=0.515, wspace=0.38, **frame)
    low_load = figure.add_gridspec(1, 2, left=0.6, right=0.93, wspace=0.16, **frame)
    a, b = (figure.add_subplot(main[0, index]) for index in range(2))
    c, d = (figure.add_subplot(low_load[0, index]) for index in range(2))
    points: list[Point] = []
    titles = ("(a) main throughput", "(b) main E2E p99")
    units = ("output tokens / s", "E2E p99, s")
    for axis, panel, title, unit in zip((a, b), panels, titles, units, strict=True):
        if isinstance(panel, Runs):
            leave_empty(axis, title, panel)
            continue
        _grouped(axis, panel)
        axis.set_title(title)
        axis.set_ylabel(unit, labelpad=2)
        points += [point for group in panel.values() for point in group.values()]
    points += _low_loads((c, d), low)
    has_runs = any(point.seeds for point in points)
    _legend(figure, has_runs=has_runs)
    sentences = [*footer]
    if has_runs:
        sentences += [
            f"{spread_sentence(points)} Latencies: mean of run-level p99.",
            "Paper: Figure 2, Tables E-3 and E-4; absent where it prints no number.",
        ]
    style.footer(figure, *sentences)
    return figure


def _low_loads(axes: tuple[Axes, Axes], panels: Sequence[LowLoad | Runs]) -> list[Point]:
    """Draw panels (c) and (d) with their scales at the outer sides. Returns the drawn points."""
    drawn: list[tuple[Axes, Axes, LowLoad]] = []
    for axis, panel, letter in zip(axes, panels, "cd", strict=True):
        if isinstance(panel, Runs):
            leave_empty(axis, f"({letter}) low load", panel, x=0.75)  # beside the other's scale
            continue
        axis.set_title(f"({letter}) low load, {panel.budget}")
        drawn.append((axis, _low_load(axis, panel), panel))
    if not drawn:
        return []
    latencies = [
        point.value
        for _, _, panel in drawn
        for point in (*panel.e2e.values(), *panel.ttft.values())
    ]
    for index, (axis, latency, panel) in enumerate(drawn):
        latency.set_yscale("log")
        latency.set_ylim(LATENCY_TICKS_S[0], 1.6 * max(latencies))
        ticks = [tick for tick in LATENCY_TICKS_S if tick <= 1.6 * max(latencies)]
        latency.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        latency.minorticks_off()
        _waiting_rows(axis, panel, labels=index == 0)
    for axis, _, _ in drawn[1:]:
        axis.tick_params(labelleft=False)
    for _, latency, _ in drawn[:-1]:
        latency.tick_params(labelright=False)
    drawn[0][0].set_ylabel("output tokens / s", labelpad=2)
    drawn[-1][1].set_ylabel("p99, s (log)", labelpad=3)
    return [
        point
        for _, _, panel in drawn
        for point in (*panel.throughput.values(), *panel.ttft.values())
    ]


def _grouped(axis: Axes, panel: MainPanel) -> None:
    width = 0.27
    for index, group in enumerate(panel.values()):
        bars(
            axis,
            [index + (ORGANIZATIONS.index(name) - 1) * width for name in group],
            list(group.values()),
            colors=[style.color(name) for name in group],
            width=0.92 * width,
        )
    axis.set_xticks(range(len(panel)), list(panel))
    axis.tick_params(axis="x", length=0)


def _low_load(axis: Axes, panel: LowLoad) -> Axes:
    """Draw bars on the left axis, latencies on the right one, and the waiting gauge below."""
    positions = [float(index) for index in range(len(panel.throughput))]
    colors = [style.color(name) for name in panel.throughput]
    bars(axis, positions, list(panel.throughput.values()), colors=colors, width=0.74, alpha=0.35)
    axis.set_ylim(0.0, 300.0)
    latency = axis.twinx()
    latency.grid(False)
    latency.spines["right"].set_visible(True)
    for points, marker, label in ((panel.e2e, "o", "E2E"), (panel.ttft, "D", "TTFT")):
        if not points:
            continue
        latency.plot(
            positions,
            [point.value for point in points.values()],
            linestyle="none",
            marker=marker,
            markersize=5.0,
            color=style.INK,
            zorder=4,
            label=label,
        )
    published = [_only_published(point) for point in panel.ttft.values()]
    marks(latency, positions, published, spread=0.52)
    axis.set_xticks(positions, [name.upper() for name in panel.throughput])
    axis.tick_params(axis="x", length=0)
    return latency


def _waiting_rows(axis: Axes, panel: LowLoad, *, labels: bool) -> None:
    """Write the largest polled number of waiting requests below the organizations."""
    transform = axis.get_xaxis_transform()
    rows = [("most waiting", panel.waiting)]
    if panel.waiting_published:
        rows.append(("paper", panel.waiting_published))
    for row, (label, texts) in enumerate(rows):
        y = -0.185 - 0.088 * row
        for position, text in enumerate(texts.values()):
            axis.text(position, y, text, transform=transform, ha="center", va="top", fontsize=7)
        if labels:
            axis.text(-0.62, y, label, transform=transform, ha="right", va="top", fontsize=7)


def _only_published(point: Point) -> Point:
    return Point(value=point.value, published=point.published)


def _legend(figure: Figure, *, has_runs: bool) -> None:
    """Published values alone have no E2E at low load, and no marks beside runs."""
    ttft = Line2D(
        [], [], linestyle="none", marker="D", color=style.INK, label="TTFT p99 (right axis)"
    )
    e2e = Line2D(
        [], [], linestyle="none", marker="o", color=style.INK, label="E2E p99 (right axis)"
    )
    paper = Line2D([], [], **style.published_marker(), label="paper")
    handles = [
        *(Patch(color=style.color(name), label=name.upper()) for name in ORGANIZATIONS),
        *((e2e, ttft, paper) if has_runs else (ttft,)),
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.165),
        ncols=len(handles),
        columnspacing=1.6,
        handlelength=1.4,
    )
