"""Provenance: tells two states of the code apart and nothing about the person who ran it."""

import sys
from pathlib import Path

import hsexp
from hsexp.ledger import Provenance
from hsexp.ledger.provenance import code_version, source_digest


def make_package(folder: Path, source: str) -> Path:
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "core.py").write_text(source)
    return folder


def test_a_changed_source_line_changes_the_code_version(tmp_path: Path) -> None:
    before = make_package(tmp_path / "before", "x = 1\n")
    after = make_package(tmp_path / "after", "x = 2\n")
    assert code_version(before) != code_version(after)


def test_the_source_digest_depends_on_sources_alone(tmp_path: Path) -> None:
    here = make_package(tmp_path / "here", "x = 1\n")
    there = make_package(tmp_path / "there", "x = 1\n")
    (there / "notes.txt").write_text("not a source")
    assert source_digest(here) == source_digest(there)


def test_sources_outside_a_checkout_have_no_commit(tmp_path: Path) -> None:
    package = make_package(tmp_path / "package", "")
    assert code_version(package).endswith(f"+{source_digest(package)}")


def test_provenance_names_no_folder_of_this_machine() -> None:
    text = repr(Provenance.collect())
    assert str(Path(hsexp.__file__).parent) not in text
    assert sys.prefix not in text
