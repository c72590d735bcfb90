"""How the program of a phase ends: its facts as JSON, and an exit status that fits them."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments(description: str | None, given: Sequence[str]) -> argparse.Namespace:
    """`[--tiny] [--out DIR] FACTS.json`"""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("facts", type=Path)
    return parser.parse_args(given)


def end(path: Path, facts: dict[str, Any], *, faults: Sequence[str]) -> int:
    """Write the facts. Returns the exit status: 1 if there is a fault."""
    reason = {"reason": "; ".join(faults)} if faults else {}
    path.write_text(json.dumps(reason | facts, indent=2, default=str), encoding="utf-8")
    return 1 if faults else os.EX_OK


def skip(path: Path, reason: str, facts: dict[str, Any] | None = None) -> int:
    """Write why nothing was tried. Returns the exit status."""
    path.write_text(json.dumps({"reason": reason} | (facts or {}), default=str), encoding="utf-8")
    return os.EX_UNAVAILABLE
