"""Figure 6 from a synthetic frame: what it shows, and that equal runs give equal bytes."""

import pandas as pd
import pytest

from analysis.config import load
from analysis.errors import AnalysisError
from analysis.published import published_value
from analysis.runs import Runs
from figures import figure6, style

SEEDS = (76400, 76401, 76402)
TOKENS_PER_REQUEST = 250.0
RUN = {"campaign": "q6", "status": "ok", "reason": None, "adopted": True}
RUN |= {"data_kind": "simulated", "engine": "sim", "device": "dev", "time_model": "law"}


def level(organization, budget, headroom, seed):
    return 500.0 + int(budget[1:]) + 100.0 * headroom * (organization == "s2") + seed - SEEDS[1]


def frame():
    design = load("q6").design
    return pd.DataFrame(
        {
            **RUN,
            **arm.axes,
            "seed": seed,
            "throughput_tok_per_s": level(arm.organization, arm.budget, arm.headroom, seed),
            "num_finished": 2,
            "output_tokens": 2 * TOKENS_PER_REQUEST,
            "workload_digest": str(seed),
        }
        for arm in design.cells()
        for seed in SEEDS
    )


def draw(attempts=None):
    config = load("q6")
    runs = Runs.select(
        frame() if attempts is None else attempts,
        campaign="q6",
        design=config.design,
        seeds=SEEDS,
    )
    style.use()
    return figure6.draw(runs, config)


@pytest.fixture
def figure():
    drawn = draw()
    yield drawn
    style.plt.close(drawn)


def lines_of(axis, **properties):
    return [
        line
        for line in axis.get_lines()
        if all(getattr(line, f"get_{name}")() == value for name, value in properties.items())
    ]


def test_each_panel_shows_the_mean_over_seeds_of_both_organizations(figure):
    for axis, budget in zip(figure.axes, ("b63", "b83", "b108"), strict=True):
        means = lines_of(axis, linestyle="-")
        assert [len(line.get_xdata()) for line in means] == [5, 5]
        for line, organization in zip(means, ("d0", "s2"), strict=True):
            expected = [level(organization, budget, f, SEEDS[1]) for f in line.get_xdata()]
            assert line.get_ydata().tolist() == pytest.approx(expected)


def test_rings_stand_at_the_preselected_headrooms(figure):
    rings = [
        [float(line.get_xdata()[0]) for line in lines_of(axis, markerfacecolor="none")]
        for axis in figure.axes
    ]
    assert rings == [[0.0, 0.27], [0.10, 0.35], [0.10, 0.0]]


def test_published_levels_are_requests_per_second_times_these_runs_tokens(figure):
    ghosts = lines_of(figure.axes[1], marker="D")
    published = published_value("B-8", "b83/S2/0.27", "requests_per_s") * TOKENS_PER_REQUEST
    assert ghosts[1].get_ydata()[3] == pytest.approx(published)


def test_the_figure_says_what_its_data_are(figure):
    text = " ".join(text.get_text() for text in figure.texts)
    text += " ".join(label.get_text() for label in figure.legends[0].get_texts())
    for expected in ("Simulated", "engine sim", "device dev", "n = 3 seeds", "76400-76402"):
        assert expected in text
    for expected in ("95 % interval", "bootstrap", "10,000", "Table B-8", "250.0 output tokens"):
        assert expected in text


def test_no_text_runs_out_of_the_figure(figure):
    figure.canvas.draw()
    page = figure.bbox
    for text in [*figure.texts, *figure.legends[0].get_texts()]:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 and box.x1 <= page.x1
        assert box.y0 >= page.y0 and box.y1 <= page.y1


def test_a_missing_cell_is_named_instead_of_a_partial_mean():
    attempts = frame()
    gone = (attempts["organization"] == "d0") & (attempts["budget"] == "b83")
    gone &= (attempts["headroom"] == 0.19) & (attempts["seed"] == 76401)
    with pytest.raises(AnalysisError, match=r"D0\(0.19\) b83 seed 76401: not run"):
        draw(attempts[~gone])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    style.save(draw(), folder, "figure-6")
    return folder


def test_equal_runs_give_equal_bytes_in_every_format(saved, tmp_path):
    style.save(draw(), tmp_path, "figure-6")
    assert sorted(path.suffix for path in saved.iterdir()) == [".pdf", ".png", ".svg"]
    for path in saved.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_pdf_text_stays_text(saved):
    content = (saved / "figure-6.pdf").read_bytes()
    assert b"/FontFile2" in content  # an embedded TrueType font
    assert b"/Type3" not in content  # no glyphs drawn as paths


def test_colours_of_the_organizations_are_of_the_okabe_ito_palette():
    style.use()
    cycle = {colour.upper() for colour in style.mpl.rcParams["axes.prop_cycle"].by_key()["color"]}
    assert {colour.removeprefix("#") for colour in style.COLORS.values()} <= {
        colour.removeprefix("#") for colour in cycle
    }
    assert len(set(style.MARKERS.values())) == len(style.MARKERS)
