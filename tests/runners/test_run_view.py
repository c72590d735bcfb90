"""The table of a campaign's runs says how many of the planned ones it stands on."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from toy_campaign import CONTRACT, execute, toy_cell

from hsexp.ledger import Ledger, Provenance
from hsexp.measure.load import is_overloaded
from hsexp.plan.cells import Cell, content_key
from runners.run_view import print_refusals, print_runs
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
    print_runs("toy", {each.cell_id: each.axes for each in cells}, ledger, console)
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


# -- refusals and overload -------------------------------------------------------------------------


def test_the_screen_says_why_requests_were_refused(tmp_path: Path) -> None:
    def refusing(cell: Cell) -> Outcome:
        """Refuses both requests, for lengths of their own."""
        outcome = execute(cell)
        reasons = [f"{9_000 + i} tokens exceed the model's 8192" for i in range(2)]
        requests = outcome.requests.assign(status="refused", reason=reasons)
        metrics = {"num_refused": 2, "num_requests": 2}
        return replace(outcome, requests=requests, metrics=metrics)

    ledger = Ledger.open(tmp_path, contract=CONTRACT)
    cells = [cell("s2", 1), cell("s2", 2), cell("d0", 1)]
    for planned, serve in zip(cells, (refusing, refusing, run), strict=True):
        trial = try_cell(serve, Provenance.collect(), planned)
        ledger.record(trial.attempt, requests=trial.requests)
    console = Console(file=io.StringIO(), width=200)
    print_refusals("toy", {each.cell_id: each.axes for each in cells}, ledger, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == (
        "toy: s2 refused 4 of 4 requests: 9000 tokens exceed the model's 8192 "
        "(request 0 of seed 1)\n"
    )


def test_an_overloaded_setting_is_named_and_a_short_run_is_not(tmp_path: Path) -> None:
    def loaded(cell: Cell) -> Outcome:
        """Offers 4 requests/s and serves 1; those of s2 wait for most of their 10 s."""
        queue_s = 9.0 if cell.axes["organization"] == "s2" else 1.0
        metrics = {"planned_rate_per_s": 4.0, "requests_per_s": 1.0, "queue_mean_s": queue_s}
        return replace(execute(cell), metrics=metrics | {"e2e_mean_s": 10.0, "ttft_p99_s": 1189.0})

    ledger = Ledger.open(tmp_path, contract=CONTRACT)
    cells = [cell("s2", 1), cell("d0", 1)]
    for planned in cells:
        trial = try_cell(loaded, Provenance.collect(), planned)
        ledger.record(trial.attempt, requests=trial.requests)
    console = Console(file=io.StringIO(), width=200)
    print_runs("toy", {each.cell_id: each.axes for each in cells}, ledger, console)
    assert isinstance(console.file, io.StringIO)
    said = [line for line in console.file.getvalue().splitlines() if "overloaded" in line]
    assert said == [
        "toy: s2 is overloaded: 4.00 requests/s arrive and 1.00 are served, so its latencies "
        "measure the length of the run (TTFT p99 1,189 s)"
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"requests_per_s": 4.0}, False),  # all that arrives is served
        ({"queue_mean_s": 5.0}, False),  # half of the time is no longer than the other half
        ({"queue_mean_s": None}, None),
        ({"planned_rate_per_s": float("nan")}, None),
    ],
)
def test_overload_is_a_queue_that_lasts_longer_than_the_service(
    changes: dict[str, float | None], expected: bool | None
) -> None:
    row = {"planned_rate_per_s": 4.0, "requests_per_s": 1.0, "queue_mean_s": 6.0}
    assert is_overloaded(row | {"e2e_mean_s": 10.0} | changes) is expected
