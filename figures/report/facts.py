"""What a ledger says of a campaign besides its numbers: design, attempts, adoption, provenance."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.runs import ORIGIN
from analysis.settings import text_of
from figures.report.grid import Grid
from hsexp.config.axes import NEUTRAL
from hsexp.ledger import Ledger
from hsexp.ledger.attempt import IDENTITY_COLUMNS, is_simulated
from hsexp.ledger.history import FIRST_OK
from hsexp.plan.cells import content_key, format_seeds
from hsexp.runs import axis_of

_SEED, _BLOCK = "seed", "block"

_MOST_ROWS = 60
"""Rows of a list of attempts; the ledger has all of them."""

_MOST_VALUES = 12
"""Values of an axis that a cell of the design lists."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One ledger, read for its page."""

    ledger: Ledger

    # -- design ----------------------------------------------------------------------------------

    @cached_property
    def attempts(self) -> pd.DataFrame:
        return self.ledger.attempts()

    @cached_property
    def accepted(self) -> pd.DataFrame:
        return self.attempts[self.attempts["adopted"]]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes of the cells, without their repeat."""
        names = [str(name) for name in self.attempts.columns]
        own = names[len(IDENTITY_COLUMNS) : names.index("status")]
        return tuple(name for name in own if name != _SEED)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """Axes in which cells differ."""
        return tuple(name for name in self.axes if len(self._values(self.attempts, name)) > 1)

    @property
    def design(self) -> Grid:
        """One row a block: the values of the axes that vary, its seeds, its cells."""
        rows = []
        for block, of_block in self.attempts.groupby(_BLOCK, sort=False):
            cells = of_block["cell_id"].nunique()
            values = (_listed(self._values(of_block, name)) for name in self.varied)
            rows.append((str(block), *values, self._seeds(of_block), f"{cells:,}"))
        return Grid(headings=("block", *self.varied, "seeds", "cells"), rows=tuple(rows))

    @property
    def fixed(self) -> Pairs:
        """Axes on which all cells agree."""
        return tuple(
            (name, _listed(self._values(self.attempts, name)))
            for name in self.axes
            if name not in self.varied
        )

    @property
    def shared(self) -> Pairs:
        """What all runs share, and what their names mean: the contract, flat."""
        return tuple(_flat(self._contract))

    @property
    def seeds(self) -> str:
        return self._seeds(self.attempts)

    @property
    def num_seeds(self) -> int:
        return self.attempts[_SEED].nunique() if _SEED in self.attempts else 0

    def own_seeds(self, planned: Mapping[str, Sequence[int]]) -> tuple[int, ...] | None:
        """The seeds of a ledger that was run on other seeds than its campaign's, the same in all of
        its blocks; None if a block has those of the campaign.

        Args:
            planned: the campaign's seeds by block, which its tables expect. Those of a scale, which
                the ledger has registered, are others.
        """
        if _SEED not in self.accepted or self.accepted.empty or not planned:
            return None
        run = {
            str(block): tuple(sorted({int(seed) for seed in rows[_SEED]}))
            for block, rows in self.accepted.groupby(_BLOCK)
        }
        if any(seeds == tuple(sorted(planned.get(block, ()))) for block, seeds in run.items()):
            return None
        seeds, *others = set(run.values())
        return None if others else seeds

    # -- what ran --------------------------------------------------------------------------------

    @property
    def num_cells(self) -> int:
        return self.attempts["cell_id"].nunique()

    @property
    def num_accepted(self) -> int:
        return len(self.accepted)

    @property
    def failed(self) -> pd.DataFrame:
        return self.attempts[self.attempts["status"] != "ok"]

    @property
    def failures(self) -> Grid:
        """One row a failed attempt: its cell, why, and whether the cell has run since."""
        done = set(self.accepted["cell_id"])
        rows = [
            (
                *self._place(row),
                _said(row["reason"]),
                "yes" if row["cell_id"] in done else "no",
            )
            for row in _records(self.failed.head(_MOST_ROWS))
        ]
        return Grid(
            headings=("attempt", *self.varied, "seed", "reason", "accepted since"), rows=tuple(rows)
        )

    @property
    def num_failures_left_out(self) -> int:
        return max(0, len(self.failed) - _MOST_ROWS)

    @property
    def reasons(self) -> Pairs:
        """Kinds of failure, most frequent first, with their counts."""
        counts = Counter(_said(reason) for reason in self.failed["reason"])
        return tuple((reason, f"{count:,}") for reason, count in counts.most_common())

    @property
    def num_open(self) -> int:
        """Cells that were tried and have no accepted run."""
        return self.num_cells - self.num_accepted

    @property
    def num_requests(self) -> int | None:
        return self._sum("num_requests")

    @property
    def num_refused(self) -> int | None:
        return self._sum("num_refused")

    @property
    def wall_s(self) -> float | None:
        """Seconds that all attempts took together; None where none says."""
        known = self.attempts["wall_s"].dropna()
        return None if known.empty else float(known.sum())

    # -- adoption and deviations -----------------------------------------------------------------

    @property
    def adoptions(self) -> Grid:
        """Attempts that count, or do not, for another reason than being the first that ended."""
        every = self.attempts
        adopted_otherwise = every["adopted"] & (every["adoption_reason"] != FIRST_OK)
        reused = every["reused_from"].notna()
        shown = every[(adopted_otherwise & ~reused) | every["exclusion_reason"].notna()]
        rows = [
            (
                *self._place(row),
                "adopted" if row["adopted"] else "excluded",
                _said(row["adoption_reason"] if row["adopted"] else row["exclusion_reason"]),
            )
            for row in _records(shown.head(_MOST_ROWS))
        ]
        return Grid(
            headings=("attempt", *self.varied, "seed", "decision", "reason"), rows=tuple(rows)
        )

    @property
    def num_first(self) -> int:
        """Cells whose first attempt that ended well counts."""
        return int((self.accepted["adoption_reason"] == FIRST_OK).sum())

    @property
    def reused(self) -> Pairs:
        """Ledgers whose runs are reused by reference, and how many of them."""
        texts = self.accepted["reused_from"].dropna()
        counts = Counter(str(json.loads(text)["ledger"]) for text in texts)
        return tuple((folder, f"{count:,}") for folder, count in counts.items())

    @property
    def deviations(self) -> tuple[str, ...]:
        """Where the runs are not what the campaign declares, a sentence each."""
        return (
            *self.ledger.registration_notes,
            *self._seed_deviations(),
            *self._launch_notes(),
        )

    def _seed_deviations(self) -> Iterator[str]:
        """Seeds that were registered and have no run, and the other way round."""
        registered: Mapping[str, Sequence[int]] = (self.ledger.registration or {}).get("seeds", {})
        if not registered or _SEED not in self.attempts:
            return
        planned = {seed for seeds in registered.values() for seed in seeds}
        run = set(map(int, self.accepted[_SEED]))
        if lacking := sorted(planned - run):
            yield f"Registered seeds without an accepted run: {format_seeds(lacking)}."
        if others := sorted(run - planned):
            yield f"Seeds that are not the registered ones: {format_seeds(others)}."

    def _launch_notes(self) -> Iterator[str]:
        """Notes of the planner, each once."""
        launches = _records(self.ledger.launches())
        yield from dict.fromkeys(str(note) for launch in launches for note in launch["notes"])

    # -- provenance ------------------------------------------------------------------------------

    @property
    def origin(self) -> Pairs:
        """Data kind, engine, device and time model: one value each, since rows are never mixed."""
        return tuple((name.replace("_", " "), _listed(self._known(name))) for name in ORIGIN)

    @property
    def data_kind(self) -> str:
        return _listed(self._known("data_kind")) or "no accepted run"

    @property
    def is_simulated(self) -> bool:
        return all(map(is_simulated, self._known("data_kind")))

    @property
    def provenance(self) -> Pairs:
        """Versions, machine and digests."""
        contract = self._contract
        versions = [json.loads(text) for text in self._known("versions")]
        packages = sorted({f"{name} {each[name]}" for each in versions for name in each})
        hosts = (json.loads(text) for text in self._known("host"))
        return (
            *self.origin,
            ("model", str(_named(contract.get("model")))),
            ("hsexp", _listed(self._known("code_version"))),
            ("packages", ", ".join(packages)),
            ("machine", "; ".join(map(_machine, hosts))),
            ("plan digest", ", ".join(self.ledger.plan_digests) or "not registered"),
            ("contract digest", content_key(contract)),
            ("ledger digest", self.ledger.digest),
        )

    @property
    def launches(self) -> Grid:
        """One row a launch: when, with what, and its note."""
        rows = [
            (
                str(launch["started_at"])[:19].replace("T", " "),
                self._typed(launch["overrides"]),
                _said(launch["note"]),
            )
            for launch in _records(self.ledger.launches())[-_MOST_ROWS:]
        ]
        return Grid(headings=("started (UTC)", "command", "note"), rows=tuple(rows))

    @property
    def commands(self) -> tuple[str, ...]:
        """What was typed to fill the ledger, each once, in order."""
        launches = _records(self.ledger.launches())
        return tuple(dict.fromkeys(self._typed(launch["overrides"]) for launch in launches))

    def _typed(self, overrides: Iterable[str]) -> str:
        return " ".join(["python -m hsexp", *map(shlex.quote, overrides)])

    # -- inside ----------------------------------------------------------------------------------

    @cached_property
    def _contract(self) -> dict[str, Any]:
        """The contract without its free texts."""
        return {part: value for part, value in self.ledger.contract.items() if part != "words"}

    def _values(self, rows: pd.DataFrame, axis: str) -> list[Any]:
        """Values of an axis in the order of their first run; None is the value of a null."""
        column = axis_of(rows, axis) if axis in NEUTRAL else rows[axis]
        return list(dict.fromkeys(None if _is_null(value) else value for value in column))

    def _known(self, column: str) -> list[str]:
        return list(dict.fromkeys(str(value) for value in self.accepted[column].dropna()))

    def _seeds(self, rows: pd.DataFrame) -> str:
        return format_seeds(sorted({int(seed) for seed in rows[_SEED]})) if _SEED in rows else ""

    def _sum(self, column: str) -> int | None:
        if column not in self.accepted or self.accepted[column].isna().all():
            return None
        return int(self.accepted[column].sum())

    def _place(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Attempt, varied axes and seed."""
        values = (text_of(None if _is_null(row[name]) else row[name]) for name in self.varied)
        return (str(row["attempt_id"]), *values, str(row.get(_SEED, "")))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _is_null(value: Any) -> bool:
    return not isinstance(value, list | tuple | dict) and bool(pd.isna(value))


def _said(value: Any) -> str:
    return "" if _is_null(value) else str(value)


def _listed(values: Sequence[Any]) -> str:
    texts = [text_of(value) for value in values]
    more = len(texts) - _MOST_VALUES
    return ", ".join(texts[:_MOST_VALUES]) + (f" and {more} more" if more > 0 else "")


def _named(value: Any) -> Any:
    return value.get("name", "") if isinstance(value, Mapping) else value or ""


def _machine(host: Mapping[str, Any]) -> str:
    parts = (host.get("cpu"), host.get("num_cores") and f"{host['num_cores']} cores")
    return ", ".join(map(str, filter(None, (*parts, host.get("platform")))))


def _flat(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every value of nested data, by its dotted name."""
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _flat(part, f"{above}.{name}" if above else str(name))
    elif isinstance(value, list):
        parts = (json.dumps(each) if isinstance(each, Mapping) else text_of(each) for each in value)
        yield above, ", ".join(parts)
    else:
        yield above, text_of(value)
