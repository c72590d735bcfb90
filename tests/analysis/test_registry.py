"""Tables and figures register themselves where they are written."""

import importlib
from pathlib import Path

import pytest

from analysis import config as configs
from analysis.registry import Registry
from analysis.tables import TABLES
from figures import FIGURES

ONE = "from {package} import REGISTRY\n\nREGISTRY.add({name!r}, lambda ledgers: {name!r})\n"


def package(folder: Path, name: str, **modules: str) -> Path:
    root = folder / name
    root.mkdir()
    (root / "__init__.py").write_text(
        "from analysis.registry import Registry\n\nREGISTRY = Registry()\n"
    )
    for module, text in modules.items():
        (root / f"{module}.py").write_text(text.replace("{package}", name))
    return root


def gather(folder: Path, name: str) -> dict[str, object]:
    module = importlib.import_module(name)
    return dict(module.REGISTRY.gather(name, [str(folder / name)]))


def test_a_module_in_the_package_is_a_table_without_another_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    texts = {
        module: ONE.replace("{name!r}", repr(name))
        for module, name in (("late", "own"), ("ten", "E-10"), ("two", "E-2"), ("first", "B-9"))
    }
    package(tmp_path, "some_tables", **texts)
    assert list(gather(tmp_path, "some_tables")) == ["B-9", "E-2", "E-10", "own"]


def test_a_name_is_registered_once() -> None:
    registry = Registry[str]()
    registry.add("B-9", lambda ledgers: "")
    with pytest.raises(AssertionError, match="B-9 is registered twice"):
        registry.add("B-9", lambda ledgers: "")


def test_what_is_derived_takes_the_adoption_only_where_it_changes_something() -> None:
    registry = Registry[str]()
    registry.add("B-5", lambda ledgers: "", by_adoption=True)
    registry.add("B-6", lambda ledgers: "")
    registry.derived("B-5")(lambda adoption: f"under {adoption}")
    registry.derived("B-6")(lambda: "always")
    entries = registry.gather("no_modules", [])
    made = [entry.from_paper("invalid") for entry in entries.values() if entry.from_paper]
    assert made == ["under invalid", "always"]


def test_every_listed_table_and_figure_is_registered_and_every_registered_one_is_listed() -> None:
    listings = [configs.listing(campaign) for campaign in configs.campaigns()]
    assert {name for each in listings for name in each.tables} == set(TABLES)
    assert {name for each in listings for name in each.figures} == set(FIGURES)


def test_the_papers_tables_stand_in_its_order_before_the_others() -> None:
    names = list(TABLES)
    assert names[:5] == ["A-1", "A-2", "B-1", "B-2", "B-3"]
    assert names.index("E-9") + 1 == names.index("E-10")
    assert names.index("G-7") < names.index("branching-beams")
    assert list(FIGURES)[:7] == list("1234567")
