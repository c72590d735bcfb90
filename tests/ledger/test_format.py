"""docs/ledger.md says what journals hold: the kinds of events, and the fields of each."""

import ast
import inspect
import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
from toy_ledger import CONTRACT

from hsexp.ledger import Ledger, LedgerError
from hsexp.ledger.history import _FIELDS, SCHEMA, History

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    return DOC.partition(f"## {title}\n")[2].partition("\n## ")[0]


EVENTS = {
    kind: set(re.findall(r"`(\w+)`", fields))
    for kind, fields in re.findall(r"^\| `(\w+)` \| (`.*?) \|", _section("Events"), re.M)
}
JOURNALS = sorted((ROOT / "ledgers").glob("cpu_*/*/*/journal.jsonl"))


def events(journal: Path) -> list[dict[str, object]]:
    return [json.loads(line)["event"] for line in journal.read_text("utf-8").splitlines()]


def test_every_kind_of_event_that_a_reader_knows_is_documented() -> None:
    tree = ast.parse(dedent(inspect.getsource(History._apply)))
    kinds = {
        case.pattern.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Match)
        for case in node.cases
        if isinstance(case.pattern, ast.MatchValue) and isinstance(case.pattern.value, ast.Constant)
    }
    assert set(EVENTS) == kinds
    assert f"schema {SCHEMA}" in DOC.splitlines()[0]


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: path.parts[-3])
def test_events_of_measured_ledgers_have_the_documented_fields(journal: Path) -> None:
    for event in events(journal):
        assert event.keys() - {"kind"} <= EVENTS[str(event["kind"])]


def test_every_field_of_a_row_is_documented() -> None:
    rows = _section("Rows")
    named = {
        name
        for line in re.findall(r"^\| (`.*?) \|", rows, re.M)
        for name in re.findall(r"`(\w+)`", line)
    }
    assert set(_FIELDS) | {"tables"} == named


def test_a_ledger_that_is_made_today_has_the_documented_schema(tmp_path: Path) -> None:
    Ledger.open(tmp_path, contract=CONTRACT)
    assert events(tmp_path / "journal.jsonl")[0]["schema"] == SCHEMA


def test_a_copy_of_a_ledger_without_one_of_its_tables_is_refused(tmp_path: Path) -> None:
    source = JOURNALS[0].parent
    Ledger.copy(source, tmp_path / "whole")
    broken = Ledger.copy(source, tmp_path / "broken").path
    next(broken.glob("requests-*.parquet")).unlink()
    with pytest.raises(LedgerError, match=r"the table of requests of attempt .* is missing"):
        Ledger.read(broken).check_tables()
    with pytest.raises(LedgerError, match="is missing"):
        Ledger.copy(broken, tmp_path / "again")
