"""What a campaign fixes before its first run stays, or its change is recorded with a reason."""

from pathlib import Path
from typing import Any

import pytest
from toy_ledger import CONTRACT, toy_attempt, toy_cell, toy_requests

from hsexp.ledger import Ledger, LedgerError, encode_table

FIELDS: dict[str, Any] = {"primary": "s2 over s0", "seeds": {"all": [1, 2]}, "family": {"size": 2}}
OTHER: dict[str, Any] = FIELDS | {"seeds": {"all": [1, 3]}, "family": {"size": 2, "alpha": 0.1}}


def registered(path: Path, fields: dict[str, Any] = FIELDS) -> Ledger:
    ledger = Ledger.open(path, contract=CONTRACT)
    ledger.register(fields, digest="d1")
    return ledger


def test_the_fields_of_the_first_launch_are_the_registration(tmp_path: Path) -> None:
    registered(tmp_path)
    ledger = Ledger.read(tmp_path)
    assert ledger.registration == FIELDS
    assert ledger.registration_notes == ()
    assert ledger.amendments().empty


def test_the_same_fields_write_nothing_again(tmp_path: Path) -> None:
    registered(tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    Ledger.open(tmp_path).register(FIELDS, digest="d1", amend="needless")
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_other_fields_are_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    registered(tmp_path)
    with pytest.raises(LedgerError) as refusal:
        Ledger.open(tmp_path).register(OTHER, digest="d2")
    assert "seeds.all: ledger has [1, 2], this run has [1, 3]" in str(refusal.value)
    assert "family.alpha: ledger has nothing, this run has 0.1" in str(refusal.value)
    assert "primary" not in str(refusal.value)
    assert 'amend="REASON"' in str(refusal.value)
    assert Ledger.read(tmp_path).registration == FIELDS


def test_an_amendment_keeps_both_versions_and_its_reason(tmp_path: Path) -> None:
    ledger = registered(tmp_path)
    ledger.record(toy_attempt(1), requests=encode_table(toy_requests()))
    ledger.register(OTHER, digest="d2", amend="seed 2 was used in a pilot")
    ((_, event),) = Ledger.read(tmp_path).amendments().iterrows()
    assert (event["before"], event["after"], event["digest"]) == (FIELDS, OTHER, "d2")
    assert (event["reason"], event["num_attempts"]) == ("seed 2 was used in a pilot", 1)
    (note,) = Ledger.read(tmp_path).registration_notes
    assert "after 1 attempts, because seed 2 was used in a pilot" in note
    assert "seeds.all: ledger has [1, 2], this run has [1, 3]" in note


def test_after_an_amendment_the_new_fields_are_the_registered_ones(tmp_path: Path) -> None:
    registered(tmp_path).register(OTHER, digest="d2", amend="pilot")
    ledger = Ledger.open(tmp_path)
    ledger.register(OTHER, digest="d2")
    with pytest.raises(LedgerError, match="other preregistered fields"):
        ledger.register(FIELDS, digest="d1")


def test_an_amendment_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="reason must say why, got ' '"):
        registered(tmp_path).register(OTHER, digest="d2", amend=" ")


def test_a_ledger_from_before_says_that_it_was_registered_late(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, contract=CONTRACT)
    ledger.record(toy_attempt(1), requests=encode_table(toy_requests()))
    assert Ledger.read(tmp_path).registration is None
    ledger.register(FIELDS, digest="d1")
    assert Ledger.read(tmp_path).registration_notes == ("registered only after 1 attempts",)
    assert toy_cell(1).cell_id in Ledger.read(tmp_path).accepted()
