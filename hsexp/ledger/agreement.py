"""Whether a ledger accepts runs: compares its contract with that of a launch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hsexp.ledger.contract import Contract
from hsexp.ledger.history import Row
from hsexp.ledger.journal import LedgerError
from hsexp.ledger.log import Log
from hsexp.plan.cells import Cell, canonical_json


class Agreement:
    """What names mean to one process and to the ledger."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._agreed: Contract | None = None
        """The contract that this process gave for its runs."""
        self._num_extensions = 0
        """Extensions of the ledger's contract that `_agreed` was compared with."""

    def require(self, contract: Mapping[str, Any]) -> None:
        """See `Ledger.require_contract`."""
        self._log.require_header()
        history = self._log.current()
        ours = history.contract
        self._refuse(ours.conflicts(Contract.of(contract), fixed=history.terms_with_runs(ours)))

    def make(self, contract: Mapping[str, Any], *, now: str) -> None:
        """Under the lock: refuse a contract, or extend the ledger's by it."""
        self.require(contract)
        agreed = Contract.of(contract)
        if news := self._log.history.contract.news(agreed).to_data():
            self._log.append([{"kind": "extend", "contract": news, "recorded_at": now}])
        self._agreed, self._num_extensions = agreed, len(self._log.history.extensions)

    def keep(self) -> None:
        """Under the lock: refuse if another process has changed the meaning of our names."""
        history = self._log.history
        if self._agreed is None or len(history.extensions) == self._num_extensions:
            return
        ours = history.contract
        self._refuse(ours.conflicts(self._agreed, fixed=ours.terms))
        self._num_extensions = len(history.extensions)

    def require_cells(self, cells: Iterable[Cell]) -> None:
        """See `Ledger.require_cells`."""
        rows = self._log.current().rows.values()
        runs = {_setting(row): row["cell_id"] for row in rows if row["status"] == "ok"}
        for cell in cells:
            setting = canonical_json([cell.block, cell.axes])
            if runs.get(setting, cell.cell_id) != cell.cell_id:
                axes = " ".join(f"{axis}={value}" for axis, value in cell.axes.items())
                self._refuse(
                    [
                        f"block {cell.block}, {axes}: ledger has cell {runs[setting]}, "
                        f"this run has {cell.cell_id}"
                    ]
                )

    def _refuse(self, differing: Sequence[str]) -> None:
        if differing:
            lines = [f"{self._log.path} holds runs of another configuration:", *differing]
            raise LedgerError("\n  ".join(lines))


def _setting(row: Row) -> str:
    """The key by which the analysis distinguishes rows."""
    return canonical_json([row["block"], row["axes"]])
