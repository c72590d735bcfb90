"""Imports follow the data: conf -> plan -> runner -> ledger -> analysis -> figures."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hsexp", "runners", "analysis", "figures")

DOORS = {
    "hsexp.__main__": ("runners",),
    "runners.command": ("analysis",),  # its errors
    "runners.derived": ("analysis", "figures"),  # what an archive holds beside its ledgers
    "runners.launch": ("analysis", "figures"),  # a launch ends with tables and figures
    "runners.pack": ("analysis",),  # its arguments and errors
    "runners.probe": ("analysis",),  # fits the steps and writes the device
    "runners.replay": ("analysis",),  # prints a table
    "runners.verify": ("analysis",),  # its errors
}
"""Entry points, which put the stages one behind the other: what else each may import."""

FORBIDDEN = [
    ("hsexp", ("runners", "analysis", "figures")),
    ("runners", ("analysis", "figures")),
    ("analysis", ("runners", "figures")),
    ("figures", ("runners",)),
    # Tables and figures come from the ledger alone, or from what `hsexp.labs` counts.
    ("analysis", ("hsexp.plan.planner", "hsexp.sim", "hydra", "omegaconf")),
    ("figures", ("hsexp.plan.planner", "hsexp.sim", "hydra", "omegaconf")),
    # A ledger does not know what it keeps, a workload not who serves it.
    ("hsexp.ledger", ("hsexp.config", "hsexp.plan.planner", "hsexp.memory", "hsexp.sim")),
    ("hsexp.workload", ("hsexp.plan.planner", "hsexp.memory", "hsexp.sim", "hsexp.ledger")),
    # Hydra ends where a launch is typed.
    ("hsexp.plan", ("hydra", "omegaconf")),
    ("hsexp.labs", ("hydra", "omegaconf", "hsexp.plan", "hsexp.ledger")),
    ("hsexp.sim", ("hydra", "omegaconf", "hsexp.plan.planner", "hsexp.ledger")),
]

MEMORY_USES = ("hsexp.memory", "hsexp.config.base", "hsexp.config.fields", "pydantic")
"""The memory core runs in the simulator and inside vLLM: beside these, which its settings need, it
imports only the standard library."""

CLOCKS = ("time", "datetime", "asyncio", "sched")

INSIDE_VLLM = ("hsexp.engine", "runners.continuation.engine")
"""What vLLM loads as a plugin, and a process around it; all else belongs to the light install."""

SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
"""Dotted name -> file."""


def imports(module: str) -> Iterator[str]:
    """Everything that a module imports anywhere in its text, e.g. `hsexp.plan.Cell`."""
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or lies in one."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize(("package", "forbidden"), FORBIDDEN)
def test_a_stage_imports_nothing_of_the_stages_behind_it(
    package: str, forbidden: tuple[str, ...]
) -> None:
    assert not [
        f"{module} imports {name}"
        for module in SOURCES
        if below(module, package)
        for name in imports(module)
        if below(name, *forbidden) and not below(name, *DOORS.get(module, ()))
    ]


def test_every_door_uses_what_it_may() -> None:
    for module, allowed in DOORS.items():
        for package in allowed:
            assert any(below(name, package) for name in imports(module)), (module, package)


def test_the_memory_core_needs_only_itself_and_the_types_of_its_settings() -> None:
    foreign = [
        f"{module} imports {name}"
        for module in SOURCES
        if below(module, "hsexp.memory")
        for name in imports(module)
        if not below(name, *MEMORY_USES) and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert not foreign


def test_the_memory_core_knows_no_clock() -> None:
    assert not [
        f"{module} imports {name}"
        for module in SOURCES
        if below(module, "hsexp.memory")
        for name in imports(module)
        if below(name, *CLOCKS)
    ]


def test_the_light_install_imports_without_torch_and_vllm() -> None:
    light = sorted(module for module in SOURCES if not below(module, *INSIDE_VLLM))
    program = (
        "import importlib, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'vllm', 'transformers'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"for module in {light}:\n"
        "    importlib.import_module(module)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


HEAVY = ("numpy", "pandas", "pyarrow", "scipy", "statsmodels", "matplotlib")


def imported_by(*arguments: str) -> list[str]:
    """The heavy libraries that `python -m hsexp` with these arguments imports."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = {['hsexp', *arguments]}\n"
        "try:\n"
        "    runpy.run_module('hsexp', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print('imported', *(name for name in {HEAVY} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_waits_for_no_library_of_tables_or_figures() -> None:
    assert imported_by("--help") == []


def test_no_two_test_files_share_a_name() -> None:
    # pytest imports them by their names alone.
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert len(names) == len(set(names))


def test_no_import_leads_back_to_where_it_comes_from() -> None:
    # Also one that only a type checker follows, or that waits inside a function.
    imported = {
        module: {found for name in imports(module) if (found := _module_of(name)) is not None}
        for module in SOURCES
    }
    circle = find_circle(imported)
    assert not circle, " -> ".join(circle)


def test_a_circle_of_imports_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def _module_of(name: str) -> str | None:
    """The module of ours that `from module import name`, or `import name`, refers to."""
    if name in SOURCES:
        return name
    above = name.rpartition(".")[0]
    return above if above in SOURCES else None


def find_circle(imported: Mapping[str, Collection[str]]) -> list[str]:
    """The modules of one circle, the first one again at the end; empty where there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(imported[module]):
            if circle := walk(other, [*path, module]):
                return circle
        done.add(module)
        return []

    return next((circle for module in imported if (circle := walk(module, []))), [])
