"""Ledgers of short simulated runs: every cell of the campaigns that feed tables, made small."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from frozen_form import digest_of_data
from frozen_project import (
    Cell,
    Ledger,
    Outcome,
    Plan,
    Provenance,
    composed_data,
    execute,
    planned,
    try_cell,
)

CAMPAIGNS: dict[str, tuple[str, ...]] = {
    "q1": (),
    "q2": (),
    "q3": (),
    "q4": (),
    "q5": (),
    "q6": (),
    "q7": (),
    "q8": (),
    "q9": (),
    "submitted_work": (),
    "cap_ladder": (),
    "bursts": (),
    "split_sweep": (),
    "pinning": (),
    "matched_boundary": (),
    "isolation_pilot": (),
    "live_separation": (),
    "granite_b160": (),
    "exact_cost": ("seeds=[42000,42001]", "budget=b63"),
    "q10": ("seeds=[91000,91001]",),
}
"""Overrides by campaign. Those without run whole, so that their tables miss nothing."""

STEPS = ("submitted_work",)
"""Campaigns whose tables read the steps of their runs."""

NUM_REQUESTS = 24
NUM_CONVERSATIONS = 7
"""About as many requests."""

MEMORY = 0.5
"""Fraction of the budget: so few requests would not fill all of it."""


def plan_of(campaign: str, *overrides: str) -> Plan:
    return planned(composed_data(f"campaign={campaign}", *overrides, "engine=sim"), "sim")


def shortened(cell: Cell) -> Cell:
    """The cell with fewer requests in less memory, under its own name."""
    config = copy.deepcopy(cell.config)
    workload = config["workload"]
    if "num_requests" in workload:
        workload["num_requests"] = NUM_REQUESTS
    else:
        workload["num_conversations"] = NUM_CONVERSATIONS
    config["budget"]["bytes"] = int(MEMORY * config["budget"]["bytes"])
    return replace(cell, config=config)


class Runner:
    """Runs cells in this process; equal ones once."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        self._provenance = Provenance.collect()

    def write(
        self, folder: Path, plan: Plan, cells: Sequence[Cell], *, record_steps: bool = False
    ) -> None:
        """A ledger with one attempt for each cell."""
        ledger = Ledger.open(folder, contract=plan.contract)
        run = partial(self._run, record_steps=record_steps)
        for cell in cells:
            trial = try_cell(run, self._provenance, cell)
            ledger.record(
                trial.attempt, requests=trial.requests, steps=trial.steps, trace=trial.trace
            )

    def _run(self, cell: Cell, *, record_steps: bool) -> Outcome:
        key = digest_of_data([cell.config, record_steps])
        if key not in self._outcomes:
            self._outcomes[key] = execute(cell, record_steps=record_steps)
        return self._outcomes[key]


def write_short_ledgers(root: Path, campaigns: Iterable[str] = CAMPAIGNS) -> None:
    """<root>/<campaign>/sim for each of the campaigns."""
    runner = Runner()
    for campaign in campaigns:
        plan = plan_of(campaign, *CAMPAIGNS[campaign])
        runner.write(
            root / campaign / "sim",
            plan,
            [shortened(cell) for cell in plan.cells],
            record_steps=campaign in STEPS,
        )
