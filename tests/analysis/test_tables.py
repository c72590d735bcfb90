"""Tables B-7 and B-8 and their summary from a synthetic ledger, by hand where it can be counted."""

import csv
import io
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from analysis.published import published_table
from analysis.runs import Runs
from analysis.tables import TABLES as REGISTERED
from analysis.tables import b7, b8, derive, headroom_effects, q6_summary
from analysis.tables.q6 import headroom_effect, mean_absolute
from analysis.tables.table import to_csv, to_latex, to_markdown
from hsexp.config.arm import Arm

THROUGHPUT = "throughput_tok_per_s"
TABLES = {
    "B-7": b7.from_runs,
    "B-8": b8.from_runs,
    "headroom-effects": headroom_effects.from_runs,
    "q6-summary": q6_summary.from_runs,
}


def cell(frame, organization, budget, headroom):
    return (
        (frame["organization"] == organization)
        & (frame["budget"] == budget)
        & (frame["headroom"] == headroom)
    )


def select(attempts, q6, **options):
    return Runs.select(attempts, campaign="q6", design=q6.design, **options)


def rows(name, runs, q6):
    table = TABLES[name](runs, q6)
    return table.rows.set_index(table.rows.columns[0])


# -- B-7 -----------------------------------------------------------------------------------------


def test_b7_has_seventeen_tests_and_two_of_them_compare_a_cell_with_itself(runs, q6):
    table = rows("B-7", runs, q6)
    assert len(table) == 17
    alike = table.loc[["ID-b63", "IS-b108"]]
    assert (alike["raw_p"] == 1.0).all() and (alike["holm_p"] == 1.0).all()
    assert (alike["mean_change"] == 0.0).all()
    assert alike["ci_low"].isna().all()


def test_b7_averages_seedwise_changes_of_constant_arms_to_their_ratio(attempts, q6):
    attempts[THROUGHPUT] = 100.0
    attempts.loc[cell(attempts, "d0", "b63", 0.19), THROUGHPUT] = 90.0
    row = rows("B-7", select(attempts, q6), q6).loc["P19-b63"]
    assert row["mean_change"] == pytest.approx(-10.0)
    # All twelve log ratios are equal: only two of 4,096 assignments are as extreme.
    assert (row["num_extreme"], row["num_assignments"]) == (2, 4096)
    assert row["raw_p"] == 2 / 4096
    # The sixteen other tests have p = 1, so it stands first: 17 x 2 / 4096.
    assert row["holm_p"] == 34 / 4096
    assert row["reject"]


def test_b7_tests_interactions_as_differences_of_log_ratios(attempts, q6):
    # D0/S2 at no headroom: 1.1 at b108, 1.0 at b63; an interaction of 10 percentage points.
    attempts[THROUGHPUT] = 100.0
    attempts.loc[cell(attempts, "d0", "b108", 0.0), THROUGHPUT] = 110.0
    row = rows("B-7", select(attempts, q6), q6).loc["P0-b108-b63"]
    assert row["mean_change"] == pytest.approx(10.0)
    assert (row["unit"], row["definition"]) == ("pp", "inferred")
    assert row["raw_p"] == 2 / 4096


@pytest.mark.parametrize(("num_seeds", "has_interval"), [(1, False), (2, False), (3, True)])
def test_b7_has_no_interval_of_one_or_two_seeds(attempts, q6, num_seeds, has_interval):
    few = sorted(set(attempts["seed"]))[:num_seeds]
    runs = select(attempts[attempts["seed"].isin(few)], q6, seeds=few)
    assert (
        rows("B-7", runs, q6).loc["P0-b63", ["ci_low", "ci_high"]].notna().tolist()
        == [has_interval] * 2
    )


def test_b7_stands_beside_the_published_values(runs, q6):
    table, printed = rows("B-7", runs, q6), published_table("B-7")
    for name, row in printed.iterrows():
        assert table.loc[name, "mean_change_published"] == row["mean_change"]
        assert table.loc[name, "holm_p_published"] == row["holm_p"]
    difference = table["mean_change"] - table["mean_change_published"]
    pd.testing.assert_series_equal(table["mean_change_difference"], difference, check_names=False)
    assert table["holm_p_published"].notna().sum() == 14
    assert table["reject_published"].notna().sum() == 14


def test_b7_names_missing_cells_instead_of_averaging_the_rest(attempts, q6):
    gone = cell(attempts, "s2", "b83", 0.35) & (attempts["seed"] == 76403)
    table = TABLES["B-7"](select(attempts[~gone], q6), q6)
    by_id = table.rows.set_index("id")
    assert table.missing == ("S2(0.35) b83 seed 76403: not run",)
    lacking = by_id.index[by_id["mean_change"].isna()]
    assert list(lacking) == ["PT-b83", "IS-b83"]
    assert by_id.loc[lacking, ["raw_p", "holm_p", "reject", "ci_low"]].isna().all().all()
    assert (by_id.loc[lacking, "n"] == 11).all()
    # The family keeps its size: the others are still adjusted for 17.
    assert by_id.loc["P19-b63", "holm_p"] == 34 / 4096


def test_b7_names_a_throughput_of_zero_instead_of_dropping_the_pair(attempts, q6):
    zero = cell(attempts, "d0", "b63", 0.19) & (attempts["seed"] == 76402)
    attempts.loc[zero, THROUGHPUT] = 0.0
    table = TABLES["B-7"](select(attempts, q6), q6)
    assert table.missing == ("P19-b63 seed 76402: the numerator is 0.0",)
    assert table.rows.set_index("id")["mean_change"].isna().sum() == 1


def test_more_seeds_than_can_be_enumerated_are_labelled_monte_carlo(attempts, q6):
    extra = [
        attempts.assign(
            seed=attempts["seed"] + 12 * k, workload_digest=attempts["workload_digest"] + str(k)
        )
        for k in range(3)
    ]
    runs = select(pd.concat(extra, ignore_index=True), q6)
    table = rows("B-7", runs, q6)
    assert (table["n"] == 36).all()
    assert set(table["sign_flip_method"]) == {"Monte Carlo"}


# -- B-8 and headroom effects --------------------------------------------------------------------


def test_b8_averages_run_level_values_with_their_standard_error(attempts, q6):
    values = np.arange(1.0, 13.0)  # mean 6.5, s^2 = 13
    attempts.loc[cell(attempts, "d0", "b63", 0.0), "e2e_p99_s"] = values
    table = TABLES["B-8"](select(attempts, q6), q6).rows
    row = table[cell(table, "D0", "b63", 0.0)].iloc[0]
    assert row["e2e_p99_s"] == 6.5
    assert row["e2e_p99_s_standard_error"] == pytest.approx(np.sqrt(13 / 12))
    published = row["e2e_p99_s_published"]
    assert row["e2e_p99_s_error_pct"] == pytest.approx(100 * (6.5 / published - 1))


def test_b8_has_the_thirty_published_cells_in_their_order(runs, q6):
    table, printed = TABLES["B-8"](runs, q6).rows, published_table("B-8")
    assert table["requests_per_s_published"].tolist() == printed["requests_per_s"].tolist()
    assert table["tpot_p99_s_published"].tolist() == printed["tpot_p99"].tolist()
    assert (table["n"] == printed["runs"].to_numpy()).all()


def test_b8_leaves_an_incomplete_cell_empty_and_names_it(attempts, q6):
    gone = cell(attempts, "d0", "b108", 0.35) & (attempts["seed"] == 76411)
    table = TABLES["B-8"](select(attempts[~gone], q6), q6)
    row = table.rows[cell(table.rows, "D0", "b108", 0.35)].iloc[0]
    assert np.isnan(row["requests_per_s"])
    assert row["n"] == 11
    assert table.missing == ("D0(0.35) b108 seed 76411: not run",)


def test_a_headroom_effect_is_a_ratio_of_means_with_the_ratio_estimators_error(attempts, q6):
    # Two seeds: 12 and 24 over 10 and 20 are exactly 1.2, without any error.
    seeds = [76400, 76401]
    attempts = attempts[attempts["seed"].isin(seeds)].copy()
    attempts.loc[cell(attempts, "s2", "b63", 0.0), "requests_per_s"] = [10.0, 20.0]
    attempts.loc[cell(attempts, "s2", "b63", 0.10), "requests_per_s"] = [12.0, 24.0]
    attempts.loc[cell(attempts, "s2", "b63", 0.19), "requests_per_s"] = [15.0, 21.0]
    runs = select(attempts, q6, seeds=seeds)
    exact = headroom_effect(runs, Arm(organization="s2", budget="b63", headroom=0.10))
    assert exact.change_percent == pytest.approx(20.0)
    assert exact.standard_error == pytest.approx(0.0, abs=1e-12)
    # 36/30 again, residuals 15 - 12 = 3 and 21 - 24 = -3 over 15: s / sqrt(2) = 0.2.
    noisy = headroom_effect(runs, Arm(organization="s2", budget="b63", headroom=0.19))
    assert noisy.change_percent == pytest.approx(20.0)
    assert noisy.standard_error == pytest.approx(20.0)


# -- summary -------------------------------------------------------------------------------------


def test_the_summary_is_perfect_where_the_runs_equal_the_paper(attempts, q6):
    printed = published_table("B-8").set_index(["budget", "organization", "headroom"])
    for (budget, organization, headroom), row in printed.iterrows():
        mask = cell(attempts, organization.lower(), budget, headroom)
        attempts.loc[mask, "requests_per_s"] = row["requests_per_s"]
    table = rows("q6-summary", select(attempts, q6), q6)
    assert table.loc["headroom effects (24)", "value"] == pytest.approx(0.0, abs=1e-9)
    assert table.loc["requests/s at f = 0 (6)", "value"] == pytest.approx(0.0, abs=1e-9)


def test_the_summary_names_the_farthest_cell(attempts, q6):
    far = cell(attempts, "s2", "b83", 0.0)
    attempts.loc[far, "requests_per_s"] *= 1.5
    table = rows("q6-summary", select(attempts, q6), q6)
    assert table.loc["requests/s at f = 0 (6)", "detail"].startswith("S2(0.00) b83: +")


def test_the_summary_compares_signs_and_decisions_test_by_test(attempts, q6):
    # D0 twice as fast everywhere: seven printed D0/S2 contrasts are negative, one P0 positive...
    attempts.loc[attempts["organization"] == "d0", THROUGHPUT] *= 2.0
    table = rows("q6-summary", select(attempts, q6), q6)
    signs = table.loc["signs of mean changes"]
    printed = published_table("B-7")
    between = printed["numerator_organization"] != printed["denominator_organization"]
    turned = printed.index[between & (printed["mean_change"] < 0)]
    assert (signs["agreeing"], signs["of"]) == (13 - len(turned), 13)
    assert signs["detail"] == f"differ: {', '.join(turned)}"


def test_the_summary_of_runs_without_a_pair_agrees_and_differs_in_nothing(attempts, q6):
    only = attempts[(attempts["organization"] == "s2") & (attempts["headroom"] == 0.10)]
    table = rows("q6-summary", select(only, q6), q6)
    for quantity in ("signs of mean changes", "Holm decisions"):
        assert table.loc[quantity, "of"] == 0
        assert pd.isna(table.loc[quantity, "agreeing"]) and pd.isna(table.loc[quantity, "detail"])


def test_a_mean_error_over_incomplete_cells_is_unknown():
    assert mean_absolute([1.0, -3.0]) == 2.0
    assert mean_absolute([1.0, None]) is None
    assert mean_absolute([]) is None


# -- forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_form_of_every_table_says_what_its_data_are(name, runs, q6):
    table = TABLES[name](runs, q6)
    for text in (to_csv(table), to_markdown(table), to_latex(table)):
        assert "simulated" in text
        assert "sim" in text


@pytest.mark.parametrize("name", TABLES)
def test_a_csv_keeps_full_precision_and_leaves_the_unknown_empty(name, runs, q6):
    table = TABLES[name](runs, q6)
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(lines) == len(table.rows)
    for column in table.rows.select_dtypes("float64"):
        for line, value in zip(lines, table.rows[column], strict=True):
            assert line[column] == "" if np.isnan(value) else float(line[column]) == value


def test_latex_is_booktabs_with_escaped_text_and_true_minus_signs(runs, q6):
    text = to_latex(TABLES["B-7"](runs, q6))
    assert r"\toprule" in text and r"\midrule" in text and r"\bottomrule" in text
    assert r"95 \% interval" in text
    assert r"throughput\_tok\_per\_s" in text
    assert "$-$" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_every_part_of_a_latex_table_has_its_own_caption_and_label(runs, q6):
    text = to_latex(TABLES["B-7"](runs, q6))
    assert text.count(r"\begin{table}[t]") == text.count(r"\end{table}") == 2
    assert text.count(r"\caption{") == 2
    assert re.findall(r"\\label\{(.*?)\}", text) == ["tab:B-7", "tab:B-7-2"]
    assert "(part 1 of 2)" in text and "(part 2 of 2)" in text


def made_from_paper():
    for name, entry in REGISTERED.items():
        if entry.from_paper is not None:
            yield derive(name)


def test_latex_of_every_table_is_made_of_what_pdflatex_reads():
    for table in made_from_paper():
        text = to_latex(table)
        assert text.isascii(), (table.name, {each for each in text if not each.isascii()})
        for view, tabular in zip(
            table.views,
            re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.S),
            strict=True,
        ):
            rows = tabular.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip()
            lines = rows.split("\n")
            assert len(lines) == len(table.rows)
            for line in lines:
                assert line.endswith(r" \\") and not line.startswith("["), line
                cells = len(re.findall(r"(?<!\\)&", line)) + 1
                assert cells == len(view), (table.name, line)
        unescaped = re.sub(r"\\[\\{}$&#%_]", "", text)
        assert unescaped.count("{") == unescaped.count("}"), table.name
        assert unescaped.count("$") % 2 == 0, table.name
        assert not re.findall(r"(?<!\\)[#%~^]", text), table.name


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_compiles_every_table(tmp_path):
    body = "\n\\clearpage\n".join(to_latex(table) for table in made_from_paper())
    packages = (
        r"\usepackage[utf8]{inputenc}\usepackage[a0paper,landscape]{geometry}\usepackage{booktabs}"
    )
    (tmp_path / "tables.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}{body}\end{{document}}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_markdown_has_one_line_a_row(runs, q6):
    text = to_markdown(TABLES["headroom-effects"](runs, q6))
    assert sum(line.startswith("| b63") for line in text.splitlines()) == 8


def test_an_unknown_value_is_printed_as_a_dash_and_never_as_zero(attempts, q6):
    gone = cell(attempts, "d0", "b63", 0.0)
    table = TABLES["B-8"](select(attempts[~gone], q6), q6)
    first = table.cells(table.views[0])[0]
    assert first[:4] == ["b63", "D0", "0.00", "0"]
    assert first[4] == "—"
