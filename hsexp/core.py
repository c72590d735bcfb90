"""The core: the modules of the memory and of the simulator that can be compiled.

    hsexp/memory/pool.py ........................ the only source
    hsexp/_compiled/PYTHON/hsexp/memory/pool.so . made from it by `make core` (`hsexp.compiling`)
    hsexp/_compiled/PYTHON/manifest.json ........ the digest of each source

A compiled module does not notice that its source has changed. So Python's own search never sees the
folder: a finder gives the compiled modules, all of them or none, and only while every digest is
that of the source. Results are equal to the byte. HSEXP_CORE chooses:

    auto        compiled where it fits the sources, else pure; also where nothing is chosen
    pure        never compiled
    compiled    an error where it does not fit
"""

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "HSEXP_CORE"
CHOICES = ("auto", "pure", "compiled")

MODULES = (
    "hsexp.memory.attention",
    "hsexp.memory.branching.copies",
    "hsexp.memory.branching.drafting",
    "hsexp.memory.branching.forks",
    "hsexp.memory.branching.leaves",
    "hsexp.memory.cache",
    "hsexp.memory.checkpoint",
    "hsexp.memory.chunking",
    "hsexp.memory.hybrid",
    "hsexp.memory.index",
    "hsexp.memory.pool",
    "hsexp.memory.recount",
    "hsexp.memory.sequence",
    "hsexp.memory.slab",
    "hsexp.memory.standing",
    "hsexp.memory.stretches",
    "hsexp.memory.sums",
    "hsexp.memory.tails",
    "hsexp.sim.keys",
    "hsexp.sim.leap",
    "hsexp.sim.requests",
    "hsexp.sim.scheduler",
    "hsexp.sim.steptime",
)
"""What is compiled. The others have settings (pydantic's classes cannot be compiled), are meant to
be subclassed by users, or take no time."""

LIBRARY = "hsexp_core__mypyc"
"""The library behind the compiled modules, which holds all of their code."""

_SUFFIX = EXTENSION_SUFFIXES[0]
"""Of a file that only this Python can load, such as `.cpython-311-x86_64-linux-gnu.so`."""
_PYTHON = _SUFFIX.split(".")[1]


class CoreError(ImportError):
    """HSEXP_CORE asks for what there is not."""


class Core:
    """Finds the modules of the core (a meta path finder)."""

    def __init__(
        self,
        package: Path,
        *,
        choice: str = "auto",
        modules: Sequence[str] = MODULES,
        library: str = LIBRARY,
    ) -> None:
        """
        Args:
            package: the folder of the package `hsexp`.
        """
        self.root = package.parent
        self.folder = package / "_compiled" / _PYTHON
        self.modules = modules
        self._choice = choice
        self._library = library
        self._names = frozenset(modules)

    @property
    def name(self) -> str:
        """The core that runs: `compiled` or `pure`.

        Raises:
            CoreError: the compiled core is asked for and cannot run.
        """
        return "compiled" if self.fault is None else "pure"

    @cached_property
    def fault(self) -> str | None:
        """Why the compiled core does not run; None if it does. Decided once in a process, when the
        first module of the core is imported.

        Raises:
            CoreError: the compiled core is asked for and cannot run.
        """
        if self._choice not in CHOICES:
            raise CoreError(f"{VARIABLE} must be {', '.join(CHOICES)}, got {self._choice!r}")
        if self._choice == "pure":
            return f"{VARIABLE}=pure"
        fault = self.misfit() or self._load_library()
        if fault is not None and self._choice == "compiled":
            raise CoreError(f"{VARIABLE}=compiled: {fault}; `make core` compiles it")
        return fault

    def misfit(self) -> str | None:
        """Why the compiled core is not that of the sources; None if it is."""
        import json

        try:
            sources: dict[str, str] = json.loads(self.manifest.read_bytes())["sources"]
        except FileNotFoundError:
            return f"there is no compiled core for {_PYTHON}"
        except (ValueError, KeyError):
            return f"{self.manifest} cannot be read"
        try:
            now = self.digests()
        except FileNotFoundError as error:
            return f"{error.filename} is missing"
        if sources == now:
            return None
        changed = [name for name in {**now, **sources} if now.get(name) != sources.get(name)]
        return f"{changed[0]} has changed since it was compiled"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.json"

    def digests(self) -> dict[str, str]:
        """SHA-256 of the source of each module."""
        from hashlib import sha256

        return {name: sha256(self.source(name).read_bytes()).hexdigest() for name in self.modules}

    def source(self, module: str) -> Path:
        return self.root.joinpath(*module.split(".")).with_suffix(".py")

    def compiled(self, module: str) -> Path:
        """The file of a compiled module, or of the library."""
        *packages, name = module.split(".")
        return self.folder.joinpath(*packages, f"{name}{_SUFFIX}")

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by Python for every import; None lets it go on to the pure module."""
        if fullname not in self._names or self.fault is not None:
            return None
        return self._spec(fullname)

    def _spec(self, module: str) -> ModuleSpec:
        file = str(self.compiled(module))
        spec = ModuleSpec(module, ExtensionFileLoader(module, file), origin=file)
        spec.has_location = True
        return spec

    def _load_library(self) -> str | None:
        """Load the library, in which the compiled modules find each other. Returns why not."""
        from importlib.util import module_from_spec

        spec = self._spec(self._library)
        try:
            library = module_from_spec(spec)
            assert spec.loader is not None
            sys.modules[self._library] = library
            spec.loader.exec_module(library)
        except ImportError as error:
            sys.modules.pop(self._library, None)
            return f"the compiled core cannot be loaded: {error}"
        return None


CORE = Core(Path(__file__).parent, choice=os.environ.get(VARIABLE) or "auto")


def install() -> None:
    """Let Python look for the modules of the core here first."""
    if CORE not in sys.meta_path:
        sys.meta_path.insert(0, CORE)
