"""How golden values are spelled and kept: digests, JSON files, and what tells two of them apart."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

FOLDER = Path(__file__).parent

REGENERATE = "python tests/golden/freeze.py"

DIGITS = 16
"""Hexadecimal digits that are kept of a SHA-256."""


def digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def digest_of_data(data: object) -> str:
    """Digest of plain data, whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_of_text(text)


def digest_of_frame(frame: pd.DataFrame) -> str:
    """Digest of every column's name and values, in order; floats to the last bit."""
    columns = [f"{name} {column.tolist()!r}" for name, column in frame.items()]
    return digest_of_text("\n".join(columns))


def read(name: str) -> dict[str, Any]:
    """The golden values of one file."""
    data: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return data


def write(name: str, data: dict[str, Any]) -> None:
    """Replace the golden values of one file: one line an entry, so that diffs name what moved."""
    lines = [
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in data.items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / name).write_text(text, encoding="utf-8")


def as_stored(data: Any) -> Any:
    """The data as it comes back from a file: tuples are lists."""
    return json.loads(json.dumps(data))


def differences(golden: Any, found: Any, path: str = "") -> Iterator[str]:
    """One line for each value that differs, with the way to it."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*golden, *found]):
            where = f"{path}.{key}" if path else str(key)
            if key not in found:
                yield f"{where}: gone, was {golden[key]!r}"
            elif key not in golden:
                yield f"{where}: new, {found[key]!r}"
            else:
                yield from differences(golden[key], found[key], where)
    elif golden != found:
        yield f"{path}: was {golden!r}, is {found!r}"


def require_equal(what: str, golden: Any, found: Any) -> None:
    """Raise AssertionError unless both are equal; it names what differs and the way out."""
    lines = list(differences(golden, as_stored(found)))
    if lines:
        hint = f"If the change is intended: {REGENERATE}"
        raise AssertionError("\n  ".join([f"{what} differs from tests/golden:", *lines, hint]))
