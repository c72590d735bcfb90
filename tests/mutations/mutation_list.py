"""Mutations: small changes that make the code wrong, and the tests that should notice each.

The lists are the YAML files beside this one, by area. An entry::

    page-freed-too-early:                  its name
      file: hsexp/memory/pool.py
      old: if count == 1                   occurs exactly once in the file
      new: if count <= 2
      tests: [tests/memory/test_memory_pool.py]

A text of several lines starts with the first word of a line, and its lines are indented as among
themselves. A test is a file or one of its functions, `tests/...py::test_...`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


class StaleMutationError(Exception):
    """The code has changed under a mutation: its old text is gone, or is there twice."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of one file."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def needs_vllm(self) -> bool:
        """Its tests start vLLM, or import its scheduler."""
        return any(test.startswith("tests/engine/") for test in self.tests)

    def applied(self, source: str) -> str:
        """The file's text with the change.

        Raises:
            StaleMutationError: the old text does not occur exactly once.
        """
        places = list(re.finditer(self._pattern(), source, flags=re.MULTILINE))
        if len(places) != 1:
            raise StaleMutationError(
                f"{self.name}: {self.file} has its old text {len(places)} times"
            )
        place = places[0]
        indent = place.group(1) if "\n" in self.old else _indent_at(source, place.start())
        first, *others = self.new.split("\n")
        lines = [first, *(indent + line if line else "" for line in others)]
        kept = indent if "\n" in self.old else ""
        return source[: place.start()] + kept + "\n".join(lines) + source[place.end() :]

    def _pattern(self) -> str:
        lines = self.old.split("\n")
        if len(lines) == 1:
            return re.escape(self.old)
        first, *others = map(re.escape, lines)
        return rf"^([ ]*){first}" + "".join(rf"\n\1{line}" if line else "\n" for line in others)


def _indent_at(source: str, position: int) -> str:
    line = source[source.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def read_mutations() -> list[Mutation]:
    """Every mutation, in the order of the lists.

    Raises:
        ValueError: two have the same name.
    """
    mutations: dict[str, Mutation] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        for name, fields in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if name in mutations:
                raise ValueError(f"{path.name}: there is a mutation {name} already")
            mutations[name] = Mutation(name=name, **fields | {"tests": tuple(fields["tests"])})
    return list(mutations.values())
