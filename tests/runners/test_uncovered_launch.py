"""A launch whose runs no table covers ends in the plain run table."""

from pathlib import Path

import pytest
from small_launches import carried_out

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
