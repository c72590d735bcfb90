"""The table of a campaign's runs says how many of the planned ones it stands on."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from toy_campaign import CONTRACT, execute, toy_cell

from hsexp.ledger import Ledger, Provenance
from hsexp.plan.cells import Cell, content_key
from runners.run_view import print_runs
from runners.trial import Outcome, try_cell


def cell(organization: str, seed: int, action: str = "ok") -> Cell:
    made = toy_cell(seed, action)
    axes = made.axes | {"organization": organization}
    return replace(made, axes=axes, cell_id=content_key(axes))


def run(cell: Cell) -> Outcome:
    """Serves as many requests as the seed says."""
    outcome = execute(cell)
    return replace(
        outcome,
        metrics={"num_finished": cell.axes["seed"], "num_refused": 0, "ttft_p99_s": None},
    )


def printed(folder: Path, *cells: Cell) -> list[list[str]]:
    """Lines of the table, by words."""
    ledger = Ledger.open(folder, contract=CONTRACT)
    for planned in cells:
        trial = try_cell(run, Provenance.collect(), planned)
        ledger.record(trial.attempt, requests=trial.requests)
    console = Console(file=io.StringIO(), width=200)
    print_runs("toy", {each.cell_id: each.axes for each in cells}, ledger.frame(), console)
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_a_campaign_that_is_complete_counts_its_seeds(tmp_path: Path) -> None:
    lines = printed(tmp_path, *[cell("s2", seed) for seed in (1, 2, 6)])
    assert lines[0] == ["toy:", "3", "runs,", "simulated;", "means", "over", "seeds"]
    assert ["s2", "3", "3", "0"] in [line[:4] for line in lines]  # (1 + 2 + 6) / 3 finished


def test_a_mean_over_survivors_says_how_many_of_how_many(tmp_path: Path) -> None:
    lines = printed(tmp_path, cell("s2", 1, "fail"), cell("s2", 2, "fail"), cell("s2", 6))
    title = "toy: 1 of 3 runs, simulated; means over the seeds that have one"
    assert lines[0] == title.split()
    assert ["s2", "1", "of", "3", "6", "0"] in [line[:6] for line in lines]


def test_a_setting_without_survivors_has_a_row_in_its_place(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        cell("s0", 1),
        *(cell("s1", seed, "fail") for seed in (1, 2)),
        cell("s2", 2),
    )
    rows = [line for line in lines if line and line[0] in ("s0", "s1", "s2")]
    assert [line[0] for line in rows] == ["s0", "s1", "s2"]
    assert rows[1] == ["s1", "0", "of", "2", *["-"] * 9]


def test_a_campaign_of_which_every_run_failed_says_so(tmp_path: Path) -> None:
    lines = printed(tmp_path, cell("s2", 1, "fail"), cell("s2", 2, "fail"))
    title = "toy: 0 of 2 runs; means over the seeds that have one"
    assert lines[0] == title.split()
    assert ["s2", "0", "of", "2", *["-"] * 9] in lines
