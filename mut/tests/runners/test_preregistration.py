"""A launch freezes what its campaign fixes; a later one that fixes something else is refused."""

from pathlib import Path

import pytest
from small_launches import SMALL, carried_out

from hsexp.ledger import Ledger, LedgerError

Q9 = ("campaign=q9", "budget=b83", "retention=off", "isolation=share", *SMALL)
OTHER_PRIMARY = "campaign.registered.primary=tail latency"


def test_another_primary_contrast_is_refused_and_a_reason_amends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    carried_out(*Q9)
    with pytest.raises(LedgerError, match=r'primary: ledger has .* this run has "tail latency"'):
        carried_out(*Q9, OTHER_PRIMARY)
    assert len(Ledger.read("ledgers/q9/sim").launches()) == 1
    _, printed = carried_out(*Q9, OTHER_PRIMARY, "amend=the mean hides stalls")
    assert "q9: registration amended at" in printed
    assert "because the mean hides stalls" in printed
    assert Ledger.read("ledgers/q9/sim").amendments()["num_attempts"].tolist() == [1]


def test_a_plan_is_registered_before_its_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    carried_out(*Q9)
    journal = Path("ledgers/q9/sim/journal.jsonl").read_text(encoding="utf-8")
    kinds = [line.split('"kind":"')[1].split('"')[0] for line in journal.splitlines()]
    assert kinds == ["header", "register", "launch", "attempt", "adopt"]
