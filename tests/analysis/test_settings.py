"""Any ledger has an answer: its settings, best first, and the best one against the next."""

import math
from pathlib import Path

import pytest
from own_ledgers import Run, speeds, write

from analysis.__main__ import main
from analysis.command import run as run_command
from analysis.errors import AnalysisError, NoInputsError
from analysis.ledgers import Ledgers
from analysis.settings import Ranking, ranking_of
from analysis.tables import make
from analysis.tables.table import Table
from figures import FIGURES, style


def ledgers(folder: Path, *runs: Run, metric: str | None = None) -> Ledgers:
    write(folder / "mine" / "sim", *runs)
    return Ledgers(folder, asked="mine", metric=metric)


def ranking(folder: Path, *runs: Run, metric: str | None = None) -> Ranking:
    return ranking_of(ledgers(folder, *runs, metric=metric))


def table(folder: Path, *runs: Run, metric: str | None = None) -> Table:
    return make("settings", ledgers(folder, *runs, metric=metric))


TWO = (*speeds([100.0, 100.0], organization="s2"), *speeds([110.0, 121.0], organization="d0"))
"""Ratios 1.1 and 1.21: their geometric mean is sqrt(1.331)."""


# -- ranking ---------------------------------------------------------------------------------------


def test_the_best_setting_comes_first_with_its_gain_over_each_other_one(tmp_path: Path) -> None:
    rows = table(tmp_path, *TWO).rows
    assert rows["organization"].tolist() == ["d0", "s2"]
    assert rows["rank"].tolist() == [1, 2]
    assert rows["throughput_tok_per_s_mean"].tolist() == [115.5, 100.0]
    assert rows["throughput_tok_per_s_sd"].tolist() == pytest.approx([11 / math.sqrt(2), 0.0])
    assert math.isnan(rows["best_over_percent"][0])
    assert rows["best_over_percent"][1] == pytest.approx(100 * (math.sqrt(1.331) - 1))


def test_the_interval_is_that_of_paired_log_ratios(tmp_path: Path) -> None:
    rows = table(tmp_path, *TWO).rows
    # Logs a and 2a with a = ln 1.1: mean 1.5a, standard error a / 2, t of one degree 12.706.
    a = math.log(1.1)
    low, high = (1.5 * a + sign * 12.7062047 * a / 2 for sign in (-1, 1))
    assert rows["low_percent"][1] == pytest.approx(100 * math.expm1(low))
    assert rows["high_percent"][1] == pytest.approx(100 * math.expm1(high))


def test_an_answer_says_when_two_settings_are_not_told_apart(tmp_path: Path) -> None:
    (answer,) = ranking(tmp_path, *TWO).answers()
    assert answer == (
        "d0 is best: throughput_tok_per_s 115.5, +15.37 % against s2 (95 % interval -37.03 to "
        "+111.38 %, 2 seeds; not told apart)"
    )


def test_an_answer_says_how_many_requests_the_best_setting_refused(tmp_path: Path) -> None:
    measured = {"throughput_tok_per_s": 2.0, "num_refused": 5}
    refusing = Run(axes={"organization": "d0"}, metrics=measured)
    (answer,) = ranking(tmp_path, *speeds([1.0]), refusing).answers()
    assert answer.endswith("(one seed, so no interval); it refused 5 requests a run")


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    one = (*speeds([100.0], organization="s2"), *speeds([110.0], organization="d0"))
    found = table(tmp_path, *one)
    assert found.rows["best_over_percent"][1] == pytest.approx(10.0)
    assert found.rows["low_percent"].isna().all()
    assert found.notes[0].endswith("+10.00 % against s2 (one seed, so no interval)")
    assert "There is one seed, so nothing here says how far chance goes." in found.notes


def test_a_time_is_best_where_it_is_shortest(tmp_path: Path) -> None:
    runs = [
        Run(axes={"organization": name}, metrics={"ttft_p99_s": value})
        for name, value in (("s2", 4.0), ("d0", 3.0))
    ]
    found = table(tmp_path, *runs, metric="ttft_p99_s").rows
    assert found["organization"].tolist() == ["d0", "s2"]
    assert found["best_over_percent"][1] == pytest.approx(-25.0)


def test_a_metric_that_is_neither_a_rate_nor_a_time_is_refused_with_the_choice(
    tmp_path: Path,
) -> None:
    with pytest.raises(AnalysisError, match=r"got num_steps; choose from throughput_tok_per_s$"):
        ranking(tmp_path, *TWO, metric="num_steps")


def test_a_metric_that_no_run_has_is_refused_with_the_choice(tmp_path: Path) -> None:
    with pytest.raises(NoInputsError, match=r"has ttft_p9_s; choose from throughput_tok_per_s$"):
        ranking(tmp_path, *TWO, metric="ttft_p9_s")


# -- places ----------------------------------------------------------------------------------------


def test_settings_compete_under_one_budget_and_not_across(tmp_path: Path) -> None:
    found = ranking(
        tmp_path,
        *speeds([5.0], budget="b108"),
        *speeds([1.0], budget="b63"),
        *speeds([2.0], budget="b63", organization="d0"),
    )
    assert found.place_axes == ("budget",)
    assert [found.name_of_place(place) for place in found.places] == ["budget b63", "budget b108"]
    assert [len(place.settings) for place in found.places] == [2, 1]


def test_caps_of_one_load_compete(tmp_path: Path) -> None:
    found = ranking(tmp_path, *speeds([1.0], cap=8), *speeds([2.0], cap=63))
    assert found.answers() == [
        "s2, cap 63 is best: throughput_tok_per_s 2.0, +100.00 % against s2, cap 8 (one seed, so "
        "no interval)"
    ]


def test_blocks_with_other_requests_are_places_of_their_own(tmp_path: Path) -> None:
    measured = {"throughput_tok_per_s": 1.0}
    found = ranking(
        tmp_path,
        *speeds([2.0]),
        Run(axes={"organization": "d0"}, metrics=measured, block="long", requests="long"),
    )
    assert [place.axes["block"] for place in found.places] == ["long", "main"]


def test_blocks_with_the_same_requests_are_one_place(tmp_path: Path) -> None:
    measured = {"throughput_tok_per_s": 1.0}
    found = ranking(
        tmp_path,
        *speeds([2.0]),
        Run(axes={"organization": "d0"}, metrics=measured, block="more"),
    )
    assert [len(place.settings) for place in found.places] == [2]


def test_an_axis_that_a_cell_leaves_out_has_its_neutral_value(tmp_path: Path) -> None:
    found = table(tmp_path, *speeds([1.0]), *speeds([2.0], waiting="hit_first")).rows
    assert found["waiting"].tolist() == ["hit_first", "first_come"]


def test_seeds_that_only_one_setting_has_are_in_its_mean_and_in_no_pair(tmp_path: Path) -> None:
    found = table(tmp_path, *speeds([1.0, 1.0, 4.0]), *speeds([3.0, 3.0], organization="d0")).rows
    assert found["n"].tolist() == [2, 3]
    assert found["throughput_tok_per_s_mean"].tolist() == [3.0, 2.0]
    assert found["num_pairs"][1] == 2
    assert found["best_over_percent"][1] == pytest.approx(200.0)


def test_settings_that_served_other_requests_are_not_paired(tmp_path: Path) -> None:
    other = Run(
        axes={"organization": "d0"}, metrics={"throughput_tok_per_s": 2.0}, requests="edited"
    )
    found = ranking(tmp_path, *speeds([1.0]), other)
    assert found.answers() == [
        "d0 is best: throughput_tok_per_s 2.0; s2 comes next and served none of its requests"
    ]


def test_a_failed_cell_is_missing_with_its_reason_and_in_no_mean(tmp_path: Path) -> None:
    gone = Run(axes={"organization": "d0"}, metrics={}, error="NoProgress: stuck")
    found = table(tmp_path, *speeds([1.0]), gone)
    assert found.rows["organization"].tolist() == ["s2"]
    assert found.missing == ("1 cell: NoProgress: stuck",)


# -- commands --------------------------------------------------------------------------------------


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command(main, arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_ledger_that_conf_does_not_know_is_analysed_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "own", *TWO)
    code, out, _ = answer(capsys, f"ledger={folder}")
    assert code == 0
    assert "Settings of campaign mine by tok/s, best first, seeds 1, 2" in out
    assert (folder / "analysis" / "settings.csv").is_file()


def test_a_campaign_that_has_run_needs_no_file_in_conf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "mine" / "sim", *TWO)
    code, out, _ = answer(capsys, "campaign=mine", f"ledgers={tmp_path}")
    assert (code, "d0 is best" in out) == (0, True)


def test_the_settings_of_a_campaign_with_tables_are_made_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "own", *TWO, campaign="q6")
    code, out, _ = answer(capsys, "campaign=q6", "table=settings", f"ledger={folder}")
    assert (code, "d0 is best" in out) == (0, True)


def test_a_metric_for_a_campaigns_own_tables_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "own", *TWO, campaign="q6")
    code, _, err = answer(capsys, "campaign=q6", "metric=ttft_p99_s", f"ledger={folder}")
    assert code == 2
    assert err == "error: metric=ttft_p99_s is what table settings ranks by; add table=settings\n"


def test_a_metric_that_is_not_there_ends_with_the_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "own", *TWO)
    code, _, err = answer(capsys, f"ledger={folder}", "metric=ttft_p9_s")
    assert code == 2
    assert err.endswith("choose from throughput_tok_per_s\n")


# -- figure ----------------------------------------------------------------------------------------


def test_the_figure_has_a_line_a_setting_best_first(tmp_path: Path) -> None:
    style.use()
    figure = FIGURES["settings"].from_ledgers(ledgers(tmp_path, *TWO))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["d0", "s2"]
    assert style.save(figure, tmp_path, "figure-settings")[0].is_file()


def test_one_setting_has_no_figure(tmp_path: Path) -> None:
    with pytest.raises(NoInputsError, match="has one setting, nothing to compare"):
        FIGURES["settings"].from_ledgers(ledgers(tmp_path, *speeds([1.0, 2.0])))


def test_a_figure_of_many_settings_keeps_the_best_of_each_place_and_counts_the_others(
    tmp_path: Path,
) -> None:
    runs = [
        run
        for budget in ("b63", "b108")
        for cap in range(1, 41)
        for run in speeds([float(cap)], budget=budget, cap=cap)
    ]
    style.use()
    figure = FIGURES["settings"].from_ledgers(ledgers(tmp_path, *runs))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == 60
    assert (labels[0], labels[30]) == ("budget b63:  s2, cap 40", "budget b108:  s2, cap 40")
    assert any("20 more settings are not drawn" in text.get_text() for text in figure.texts)
