"""A launch whose runs no table covers ends in the plain run table."""

from pathlib import Path

import pytest
from small_launches import carried_out, swept

OWN = ("campaign=q6", "workload.num_requests=4", "workers=1", "engine=sim")


def test_runs_that_no_table_covers_end_in_the_run_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(
        *OWN,
        *("budget=bytes", "budget.bytes=200000000", "organization=s2", "seeds=[7]"),
        analyse=True,
    )
    assert result.exit_code == 0
    assert "q6: no table of the campaign covers these runs" in printed
    assert "q6: 5 runs, simulated; means over seeds" in printed
    assert "tok/s" in printed


def test_a_sweep_that_no_table_covers_ends_in_one_run_table_of_all_jobs(tmp_path: Path) -> None:
    code, printed = swept(
        tmp_path,
        *OWN,
        *("budget=bytes", "budget.bytes=200000000", "organization=s1,s2", "seeds=[7]"),
    )
    assert code == 0, printed
    _, at_the_end = printed.split("q6: no table of the campaign covers these runs")
    assert at_the_end.count("q6: 10 runs, simulated; means over seeds") == 1
    lines = [line.split() for line in at_the_end.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("s1", "s2")] == ["s1"] * 5 + [
        "s2"
    ] * 5
    assert "tok/s" in at_the_end


def test_runs_that_a_table_covers_end_in_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(*OWN, "budget=b63", "seeds=[7,8]", analyse=True)
    assert result.exit_code == 0
    assert "means over seeds" not in printed and "no figure" not in printed
    tables = capsys.readouterr().out
    assert tables.count("Missing: campaign q6: no run of b83, b108.") == 5
    assert "figure 6: " in tables


def test_a_launch_ends_in_a_page_beside_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, printed = carried_out(*OWN, "budget=b63", "organization=s2", "seeds=[7]", analyse=True)
    assert "q6: report ledgers/q6/sim/report.html" in printed
    page = Path("ledgers/q6/sim/report.html").read_text(encoding="utf-8")
    assert "5 of 5" in page and "Seeds that are not the registered ones: 7." in page


def test_a_page_that_cannot_be_made_ends_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def broken(material: object) -> str:
        raise ZeroDivisionError("a fault of the page")

    monkeypatch.setattr("figures.report.page.render", broken)
    result, printed = carried_out(*OWN, "budget=b63", "organization=s2", "seeds=[7]", analyse=True)
    assert result.exit_code == 0
    assert "q6: no report: ZeroDivisionError: a fault of the page" in printed
    assert Path("ledgers/q6/sim/runs.parquet").is_file()
