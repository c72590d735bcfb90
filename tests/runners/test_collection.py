"""A collection: members one after the other, each with its ledger, none stopped by another."""

from pathlib import Path

import pytest
from small_launches import SMALL, carried_out

from hsexp.config.base import ConfigError
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


def test_fresh_seeds_run_too_in_ledgers_of_their_own_unless_the_launch_names_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unnamed = [each for each in TWO if not each.startswith("seeds=")]
    one = ("campaign.campaigns=[q8]", "campaign.fresh_seeds=[5000,5001]")
    result, printed = carried_out(*unnamed, *one)
    assert result.exit_code == 0
    assert "paper: the same on fresh seeds, 5000" in printed
    assert (attempts("q8"), attempts("fresh/q8")) == (3, 2)  # the paper has three seeds
    _, printed = carried_out(*TWO, *one, "ledger=named")
    assert "fresh" not in printed
    assert not Path("named/fresh").exists()


def test_a_fresh_seed_is_named_once() -> None:
    with pytest.raises(ConfigError, match="must not name a seed twice"):
        carried_out(*TWO, "campaign.fresh_seeds=[5000,5000]")


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
