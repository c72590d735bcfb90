"""A collection: members one after the other, each with its ledger, none stopped by another."""

from pathlib import Path

import pytest
from small_launches import SMALL, carried_out

from hsexp.ledger import Ledger

TWO = ("campaign=paper", "campaign.campaigns=[q9,q8]", "budget=b83", "retention=off", *SMALL)
"""Two campaigns of S2 at b83, cut down to one cell and two."""


def attempts(name: str) -> int:
    return len(Ledger.read(f"ledgers/{name}/sim").attempts())


def test_each_member_fills_a_ledger_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(*TWO)
    assert result.exit_code == 0
    assert (attempts("q9"), attempts("q8")) == (2, 1)  # q9: SHARE and ISOLATE
    assert "paper: 2 campaigns in" in printed
    assert "not complete" not in printed


def test_a_member_that_is_refused_does_not_stop_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.open("ledgers/q9/sim", contract={"campaign": "something else"})
    result, printed = carried_out(*TWO)
    assert result.exit_code == 2
    assert "q9: ledgers/q9/sim holds runs of another configuration" in capsys.readouterr().err
    assert "paper: 2 campaigns in" in printed
    assert "1 of them not complete" in printed
    assert (attempts("q9"), attempts("q8")) == (0, 1)


def test_a_collection_with_seeds_of_its_own_gives_them_to_every_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two = ("campaign=paper_fresh", "campaign.campaigns=[q9,q8]", "stage=plan")
    result, printed = carried_out(*two)
    assert result.exit_code == 0
    for name in ("q9", "q8"):
        assert f"{name}: seeds set to 32 values from 5000 to 5031" in printed
    narrowed = carried_out(*two, "seeds=[7]")[1]
    assert narrowed.count("seeds set to 7, ") == 2
