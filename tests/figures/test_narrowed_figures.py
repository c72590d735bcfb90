"""A figure of a narrowed launch draws what has its runs, and says in a line what has not."""

from collections.abc import Callable

import pandas as pd
import pytest
from matplotlib.figure import Figure
from test_figure6 import SEEDS, frame
from test_figures import diamonds, draw, heights, panel, words
from toy_runs import ALL, ToyLedgers

from analysis.config import load
from analysis.errors import AnalysisError
from analysis.families import AnalysisConfig
from analysis.runs import Runs
from figures import figure6, style
from hsexp.config.arm import Arm


@pytest.fixture(autouse=True)
def closed():
    yield
    style.plt.close("all")


def narrowed(name: str, kept: Callable[[Arm], bool]) -> Figure:
    return draw(name, ToyLedgers(ALL, left_out=lambda campaign, arm, seed: not kept(arm)))


def without_line(text: str) -> str:
    """What a figure says of what it leaves out."""
    return text.partition("Not drawn: ")[2]


def draw_six(
    kept: Callable[[pd.DataFrame], pd.Series], config: AnalysisConfig | None = None
) -> Figure:
    config = config or load("q6")
    attempts = frame()
    runs = Runs.select(attempts[kept(attempts)], campaign="q6", design=config.design, seeds=SEEDS)
    style.use()
    return figure6.draw(runs, config)


def test_a_complete_figure_says_nothing_of_what_is_left_out():
    for name in ("2", "3", "4", "5", "7"):
        assert "Not drawn" not in words(draw(name))


def test_figure_6_of_one_budget_draws_its_panel_and_names_the_others():
    figure = draw_six(lambda rows: rows["budget"] == "b63")
    assert panel(figure, "(a) b63").get_lines()
    for other in ("(b) b83", "(c) b108"):
        assert not panel(figure, other).get_lines()
        assert "no runs of campaign" in panel(figure, other).texts[0].get_text()
    assert without_line(words(figure)).startswith("campaign q6: no run of b83, b108.")


def test_figure_6_of_two_axes_draws_the_points_of_both():
    figure = draw_six(lambda rows: (rows["organization"] == "s2") & (rows["headroom"] == 0.19))
    for axis in figure.axes:
        (mean,) = [line for line in axis.get_lines() if line.get_linestyle() == "-"]
        assert mean.get_xdata().tolist() == [0.19]
    said = words(figure)
    assert "S2, mean" in said and "D0, mean" not in said
    assert "no run of D0, nor of headroom 0.0, 0.1, 0.27, 0.35" in said


def test_figure_2_of_one_organization_has_its_bars_alone():
    figure = narrowed("2", lambda arm: arm.organization == "s1")
    assert len(heights(panel(figure, "(a)"))) == 3  # budgets
    assert len(heights(panel(figure, "(c)"))) == 1
    assert "blocks main, low_b63, low_b108: no run of S0, S2" in words(figure)


def test_figure_3_without_s0_has_no_index():
    figure = narrowed("3", lambda arm: arm.organization != "s0")
    assert len(heights(panel(figure, "(a) throughput"))) == 4
    assert not heights(panel(figure, "(b)"))
    assert "no run of S0" in without_line(words(figure))


def test_figure_4_of_one_endpoint_has_its_bars_and_no_interaction():
    figure = narrowed("4", lambda arm: arm.sharing == 1.0)
    assert len(heights(figure.axes[0])) == 2
    said = words(figure)
    assert "pp from q = 0 to 1" not in said and "S1 over S0" in said
    assert "no run of sharing 0.0" in without_line(said)


def test_figure_4_without_any_pair_is_refused():
    with pytest.raises(AnalysisError, match=r"figure 4 lacks cells: .*no run of S1, S0"):
        narrowed("4", lambda arm: arm.organization == "s2")


def test_figure_5_of_one_load_has_a_point_a_curve():
    figure = narrowed("5", lambda arm: arm.rate_per_s == 3.0)
    axis = panel(figure, "(a)")
    means = [line for line in axis.get_lines() if line.get_marker() in ("o", "s")]
    assert {len(line.get_xdata()) for line in means} == {1, 3}  # the mean, and its seeds
    assert len(diamonds(axis)) == 2
    assert "rate_per_s 0.8, 1.3, 1.7, 2.2" in without_line(words(figure))


def test_figure_7_of_one_arm_leaves_the_panel_of_the_pair_empty():
    figure = narrowed("7", lambda arm: arm.isolation != "isolate" and arm.headroom != 0.19)
    assert not panel(figure, "(a)").get_lines() and panel(figure, "(b)").get_lines()
    assert len(heights(panel(figure, "(c)"))) == 2
    assert "Kret =" not in words(figure)


def test_an_arm_of_which_every_run_failed_is_left_out_with_its_reason():
    attempts = frame()
    failed = (attempts["organization"] == "d0") & (attempts["budget"] == "b63")
    failed &= attempts["headroom"] == 0.1
    attempts.loc[failed, ["adopted", "status", "reason"]] = [False, "failed", "OutOfMemory"]
    config = load("q6")
    style.use()
    figure = figure6.draw(
        Runs.select(attempts, campaign="q6", design=config.design, seeds=SEEDS), config
    )
    assert "D0(0.10) b63 seed 76400-76402: failed (OutOfMemory)" in words(figure)


def test_the_line_stands_below_everything_and_moves_nothing_out_of_the_figure():
    whole, part = draw("2"), narrowed("2", lambda arm: arm.organization == "s1")
    line = part.texts[-1]
    assert line.get_text().startswith("Not drawn: ")
    part.canvas.draw()
    boxes = [text.get_window_extent() for text in [*part.texts[:-1], *part.legends[0].texts]]
    assert min(box.y0 for box in boxes) >= line.get_window_extent().y1 - 1
    assert line.get_window_extent().y0 >= part.bbox.y0
    heights_in = [
        figure.axes[0].get_position().height * figure.get_figheight() for figure in (whole, part)
    ]
    assert heights_in[0] == pytest.approx(heights_in[1])


# -- organizations that the paper does not have ---------------------------------------------------


def with_own(*names: str) -> AnalysisConfig:
    config = load("q6")
    organizations = (*config.design.organization, *names)
    return config.model_copy(
        update={"design": config.design.model_copy(update={"organization": organizations})}
    )


def draw_own(*names: str) -> Figure:
    config = with_own(*names)
    attempts = frame()
    own = [attempts[attempts["organization"] == "d0"].assign(organization=name) for name in names]
    runs = Runs.select(
        pd.concat([attempts, *own], ignore_index=True),
        campaign="q6",
        design=config.design,
        seeds=SEEDS,
    )
    style.use()
    return figure6.draw(runs, config)


def test_a_variant_is_drawn_in_the_colour_of_its_kind_with_a_marker_of_its_own():
    figure = draw_own("d0_m05")
    looks = [
        (line.get_color(), line.get_marker())
        for line in figure.axes[0].get_lines()
        if line.get_linestyle() == "-"
    ]
    assert looks[0][0] == looks[2][0] != looks[1][0]
    assert len({marker for _, marker in looks}) == 3
    assert "D0_M05, mean" in words(figure)


def test_an_organization_of_a_new_kind_is_drawn_in_a_colour_of_its_own():
    figure = draw_own("paged_twice")
    colours = [
        line.get_color() for line in figure.axes[0].get_lines() if line.get_linestyle() == "-"
    ]
    assert len(set(colours)) == 3 and colours[2] not in style.COLORS.values()


def test_variants_of_a_kind_differ_in_their_markers():
    variants = ["d0", "d0_m05", "d0_m10", "d0_m512", "d0_p05", "d0_p10"]
    assert {style.color(name) for name in variants} == {style.COLORS["d0"]}
    assert len({style.marker(name) for name in variants}) == len(variants)


def test_the_papers_organizations_keep_their_looks():
    for name, colour in style.COLORS.items():
        assert style.color(name) == colour and style.marker(name) == style.MARKERS[name]
