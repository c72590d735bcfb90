"""What the pages of the documentation say to type, in the order in which they say it."""

import re
from dataclasses import dataclass
from pathlib import Path

from commands import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
TYPED_PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            *("commands", "tutorial", "extending", "organizations", "budgets"),
            *("clusters", "real_runs", "trust", "statistics", "metrics", "glossary"),
        )
    ),
]
"""Pages whose every command `test_readme` tries; pages of one subject have tests of their own."""

_FILE = re.compile(r"^`([\w/]+\.\w+)`:\n\n```\w+\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n.*?^```$", flags=re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`|^    (\S.*)$", flags=re.MULTILINE)
"""Inline code, and indented blocks."""


@dataclass(frozen=True)
class Said:
    """A line to type, or a snippet of Python."""

    page: str
    text: str
    is_python: bool = False

    @property
    def is_command(self) -> bool:
        return bool(re.match(r"(\.venv/bin/)?(python|hsexp) ", self.text))


def files(page: Path) -> dict[str, str]:
    """Files that a page tells its reader to write, by path."""
    return dict(_FILE.findall(page.read_text(encoding="utf-8")))


def said(page: Path) -> list[Said]:
    """Inline code, indented lines, commands in fences, and snippets, in the order of the page."""
    text = _FILE.sub("", page.read_text(encoding="utf-8"))
    found = [(match.start(), match[1], True) for match in _PYTHON.finditer(text)]
    fences = [(match.start(), match[0]) for match in _FENCE.finditer(text)]
    for start, fence in fences:
        joined = re.sub(r" \\\n\s*", " ", fence)
        lines = re.findall(r"^(?:python|hsexp) .*$", joined, flags=re.MULTILINE)
        if not fence.startswith("```python"):
            found += [(start, line, False) for line in lines]
    blanked = _FENCE.sub(lambda match: " " * len(match[0]), text)
    for match in _CODE.finditer(blanked):
        found.append((match.start(), match[1] or match[2], False))
    found.sort(key=lambda item: item[0])
    return [Said(page.name, what, is_python) for _, what, is_python in found]


def heading_anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
