"""A ledger as one flat frame, for notebooks and other programs: `hsexp.load("q6")`.

One row an accepted run: identity, axes, outcome, metrics and provenance as plain columns. The file
`runs.parquet` beside a ledger holds the same frame.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from hsexp.config.axes import NEUTRAL
from hsexp.ledger import Ledger, LedgerError
from hsexp.plan.cells import content_key

_DEPTHS = ("*", "*/*", "*/*/*")
"""Where ledgers lie below a root: NAME, <campaign>/<engine>, fresh/<campaign>/<engine>."""

_MAX_NAMED = 8
"""Ledgers that an error names."""


def load(ledger: str | Path, *, root: str | Path = "ledgers") -> pd.DataFrame:
    """The accepted runs of a ledger, one row each.

    Args:
        ledger: its folder, or its name below `root`: "q6", "q6/sim".
        root: folder of the ledgers.

    Raises:
        LedgerError: there is no such ledger (the nearest ones are named) or there are several; its
            rows come from more than one engine, device or time model.
    """
    return flat_runs(Ledger.read(find(ledger, root=root)))


def find(ledger: str | Path, *, root: str | Path = "ledgers") -> Path:
    """Folder of a ledger.

    Raises:
        LedgerError: there is none, or there are several.
    """
    for place in dict.fromkeys((Path(ledger), Path(root) / ledger)):
        if is_ledger(place):
            return place
        engines = engines_below(place)
        if len(engines) > 1:
            raise LedgerError(
                f"{place} has ledgers of {len(engines)} engines; "
                f"name one: {', '.join(map(str, engines))}"
            )
        if engines:
            return engines[0]
    raise LedgerError(f"there is no ledger {str(ledger)!r}; {_nearest(str(ledger), Path(root))}")


def is_ledger(folder: Path) -> bool:
    return (folder / "journal.jsonl").is_file()


def engines_below(folder: Path) -> list[Path]:
    """The ledgers of a campaign's folder, one an engine."""
    return sorted(path for path in folder.glob("*") if is_ledger(path))


def flat_runs(ledger: Ledger) -> pd.DataFrame:
    """One row an accepted run.

    An axis that a cell leaves out has its neutral value. Each package has a column, such as
    `numpy_version`. `contract_digest` names what all runs of the ledger share.

    Raises:
        LedgerError: the rows come from more than one engine, device or time model.
    """
    frame = ledger.frame()
    frame = frame.assign(**{name: axis_of(frame, name) for name in NEUTRAL if name in frame})
    contract = {part: value for part, value in ledger.contract.items() if part != "words"}
    versions = list(map(_mapping, frame.pop("versions")))
    packages = sorted({package for each in versions for package in each})
    further = {
        f"{package.replace('-', '_')}_version": pd.Series(
            [each.get(package) for each in versions], index=frame.index, dtype="string"
        )
        for package in packages
    }
    digest = pd.Series(content_key(contract), index=frame.index, dtype="string")
    return pd.concat([frame, pd.DataFrame({**further, "contract_digest": digest})], axis="columns")


def axis_of(frame: pd.DataFrame, axis: str) -> pd.Series:
    """An axis of the rows; a row that does not name it has its neutral value."""
    if axis not in NEUTRAL:
        return frame[axis]
    if axis not in frame:
        return pd.Series(NEUTRAL[axis], index=frame.index)
    return frame[axis].where(frame[axis].notna(), NEUTRAL[axis])


def _mapping(text: object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text) if isinstance(text, str) else {}
    return found


def _nearest(name: str, root: Path) -> str:
    """What there is instead, the most similar names first."""
    known = list(dict.fromkeys(_names(root)))
    if not known:
        return f"{root} has none; run `python -m hsexp campaign=NAME` first"
    near = get_close_matches(name, known, n=_MAX_NAMED, cutoff=0.5)
    if near:
        return f"the nearest below {root}: {', '.join(near)}"
    more = ", ..." if len(known) > _MAX_NAMED else ""
    return f"{root} has {', '.join(known[:_MAX_NAMED])}{more}"


def _names(root: Path) -> Iterator[str]:
    """Names of the ledgers below a root; a campaign with one engine goes without it."""
    for depth in _DEPTHS:
        for path in sorted(root.glob(depth)):
            if is_ledger(path):
                alone = path.parent != root and len(engines_below(path.parent)) == 1
                yield (path.parent if alone else path).relative_to(root).as_posix()
