"""`stage=status`: where a campaign stands, from its plan and its ledgers alone. Runs nothing.

Engines stand apart, each with its own ledger. Every planned cell is one of: accepted, running now
(its claim is locked), failed (its last attempt), or not run yet.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd
from rich.console import Console

from hsexp.ledger import Ledger
from runners.pace import Pace, clock
from runners.recorded import Recorded

_MAX_REASONS = 5
"""Reasons of failures that are printed; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The cells that a launch plans, as one ledger has them."""

    num_planned: int
    num_accepted: int
    num_running: int
    num_failed: int
    reasons: Counter[str]
    """Why the last attempts of the failed cells failed."""
    num_beyond: int
    """Accepted cells that the launch does not plan."""
    pace: Pace
    """Of the last launch."""
    num_due: int
    """Cells that a launch at work still has to try."""

    @classmethod
    def of(cls, recorded: Recorded, *, needs_steps: bool = False) -> "Status":
        """
        Args:
            needs_steps: an accepted run without a step table counts as not run yet.
        """
        ledger = recorded.ledger
        planned = {cell.cell_id for cell in recorded.plan.cells}
        recorded_ids = ledger.accepted()
        accepted = {
            cell_id
            for cell_id in planned & recorded_ids.keys()
            if not needs_steps or ledger.has_steps(cell_id)
        }
        running = (planned & ledger.running()) - accepted
        attempts = ledger.attempts()
        attempts = attempts[attempts["cell_id"].isin(planned - accepted - running)]
        last = attempts.groupby("cell_id", sort=False).tail(1)
        failed = last[last["status"] == "failed"]
        started_at = _last_launch(ledger)
        tried = _tried_since(ledger.attempts(), started_at)
        return cls(
            num_planned=len(planned),
            num_accepted=len(accepted),
            num_running=len(running),
            num_failed=len(failed),
            reasons=Counter(reason.partition("\n")[0] for reason in failed["reason"]),
            num_beyond=len(recorded_ids.keys() - planned),
            pace=_pace(tried, started_at, is_running=bool(running)),
            num_due=len(planned - accepted - set(tried["cell_id"])),
        )

    @property
    def num_open(self) -> int:
        """Cells that were not run yet."""
        return self.num_planned - self.num_accepted - self.num_running - self.num_failed

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.num_planned} planned: {self.num_accepted} accepted, {self.num_running} running "
            f"now, {self.num_failed} failed, {self.num_open} not run yet"
        )
        if rate := str(self.pace):
            left_s = self.pace.seconds_for(self.num_due)
            assert left_s is not None
            if self.num_running:
                yield f"{rate}, {clock(left_s)} left"
            elif self.num_accepted < self.num_planned:
                yield f"no launch runs; the last one made {rate}; the same command resumes"
        for reason, count in self.reasons.most_common(_MAX_REASONS):
            yield f"{count} failed: {reason}"
        if (more := len(self.reasons) - _MAX_REASONS) > 0:
            yield f"and {more} other reasons"
        if self.num_beyond:
            yield f"{self.num_beyond} more accepted runs, which this command does not plan"


def print_status(recorded: Recorded, console: Console, *, needs_steps: bool) -> None:
    campaign, ledger = recorded.plan.campaign, recorded.ledger
    console.print(f"{campaign}: engine {recorded.engine}, ledger {ledger.path}", markup=False)
    for line in Status.of(recorded, needs_steps=needs_steps).lines():
        console.print(f"  {line}", markup=False)


def _last_launch(ledger: Ledger) -> datetime | None:
    launches = ledger.launches()
    return None if launches.empty else datetime.fromisoformat(launches["started_at"].iloc[-1])


def _tried_since(attempts: pd.DataFrame, started_at: datetime | None) -> pd.DataFrame:
    """Attempts of the last launch; what it reused ran before."""
    own = attempts[attempts["reused_from"].isna()]
    if started_at is None:
        return own
    return own[[datetime.fromisoformat(start) >= started_at for start in own["started_at"]]]


def _pace(tried: pd.DataFrame, started_at: datetime | None, *, is_running: bool) -> Pace:
    if started_at is None or tried.empty:
        return Pace(num_ended=0, seconds=0.0)
    ends = [
        datetime.fromisoformat(start).timestamp() + (0.0 if pd.isna(wall_s) else wall_s)
        for start, wall_s in zip(tried["started_at"], tried["wall_s"], strict=True)
    ]
    until = datetime.now(UTC).timestamp() if is_running else max(ends)
    return Pace(num_ended=len(tried), seconds=until - started_at.timestamp())
