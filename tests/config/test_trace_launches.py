"""Launches that serve a request trace: its content is part of a run, and no axis is idle."""

from pathlib import Path

import pytest
from launches import Command, planned

from hsexp.config.base import ConfigError
from hsexp.ledger import Ledger
from hsexp.plan.cells import Plan
from hsexp.plan.run import parse_run
from hsexp.workload import TraceError
from runners.sim import execute, workload_of

S2 = ("campaign=trace", "organization=s2", "stage=run", "workers=1", "ledger=ledger")


def plan_of(path: Path, *overrides: str) -> Plan:
    return planned("campaign=trace", f"workload.path={path}", *overrides)


def change(path: Path) -> None:
    path.write_text(path.read_text().replace("900", "901"))


# -- placement -------------------------------------------------------------------------------------


def test_a_trace_leaves_checkpoints_at_junctions_unless_it_is_told_otherwise(lengths: Path) -> None:
    for cell in plan_of(lengths).cells:
        assert cell.axes["placement"] == parse_run(cell.config).placement.name == "junction"
    for cell in plan_of(lengths, "placement=chunk_ends").cells:
        assert "placement" not in cell.axes
        assert parse_run(cell.config).placement.name == "chunk_ends"


# -- content ---------------------------------------------------------------------------------------


def test_a_trace_that_changed_is_never_answered_with_its_old_numbers(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    assert command(*S2, f"workload.path={lengths}")[0] == 0
    journal = (tmp_path / "ledger" / "journal.jsonl").read_bytes()
    change(lengths)
    code, printed = command(*S2, f"workload.path={lengths}")
    assert code == 2
    assert "blocks.replay.workload.content_digest: ledger has" in printed
    assert (tmp_path / "ledger" / "journal.jsonl").read_bytes() == journal


def test_organizations_of_one_ledger_serve_the_same_requests(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    assert command(*S2, f"workload.path={lengths}")[0] == 0
    change(lengths)
    code, _ = command(*S2, f"workload.path={lengths}", "organization=d0")
    assert code == 2
    assert Ledger.read(tmp_path / "ledger").frame()["organization"].tolist() == ["s2"]


def test_a_trace_that_moved_is_the_same_trace(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    assert command(*S2, f"workload.path={lengths}")[0] == 0
    moved = lengths.rename(tmp_path / "moved.csv")
    code, printed = command(*S2, f"workload.path={moved}")
    assert code == 0
    assert "1 cells, 1 already accepted, 0 to run" in printed


def test_content_is_part_of_cell_pair_and_contract_and_the_path_is_not(
    lengths: Path, tmp_path: Path
) -> None:
    before = plan_of(lengths)
    moved = lengths.rename(tmp_path / "moved.csv")
    after = plan_of(moved)
    assert [cell.cell_id for cell in after.cells] == [cell.cell_id for cell in before.cells]
    assert [cell.pair_id for cell in after.cells] == [cell.pair_id for cell in before.cells]
    assert (after.contract, after.digest) == (before.contract, before.digest)
    change(moved)
    changed = plan_of(moved)
    assert not {cell.cell_id for cell in changed.cells} & {cell.cell_id for cell in before.cells}
    assert not {cell.pair_id for cell in changed.cells} & {cell.pair_id for cell in before.cells}
    assert changed.contract != before.contract
    assert changed.digest != before.digest


def test_a_run_refuses_a_trace_that_changed_after_the_plan(lengths: Path) -> None:
    cell = plan_of(lengths).cells[0]
    change(lengths)
    with pytest.raises(TraceError, match=r"lengths\.csv: the file has changed"):
        execute(cell)


def test_every_block_of_a_campaign_has_its_trace_read_by_the_plan(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: No such file"):
        plan_of(tmp_path / "absent.csv")


# -- seeds that draw nothing -----------------------------------------------------------------------


def test_seeds_of_a_replayed_trace_are_refused_because_they_draw_nothing(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    code, printed = command(*S2, f"workload.path={lengths}", "seeds=[3,4,5]")
    assert code == 2
    assert "error: seeds must be one seed, got 3-5: " in printed
    assert "workload.keep_arrivals=false draws arrivals" in printed
    assert not (tmp_path / "ledger").exists()


def test_seeds_that_draw_arrivals_give_other_requests(lengths: Path) -> None:
    plan = plan_of(
        lengths,
        "workload.keep_arrivals=false",
        "arrivals.rate_per_s=10",
        "organization=s2",
        "seeds=[3,4,5]",
    )
    digests = {workload_of(parse_run(cell.config))[1] for cell in plan.cells}
    assert len(digests) == len(plan.cells) == 3


def test_seeds_draw_the_arrivals_of_a_trace_without_times(tmp_path: Path) -> None:
    path = tmp_path / "untimed.csv"
    path.write_text("input_tokens,output_tokens\n100,10\n200,20\n")
    plan = plan_of(path, "arrivals.rate_per_s=2", "organization=s2", "seeds=[3,4]")
    assert len({workload_of(parse_run(cell.config))[1] for cell in plan.cells}) == 2


def test_q6_on_a_replayed_trace_is_refused_in_its_seeds_and_in_its_rate(lengths: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned("campaign=q6", "workload=trace", f"workload.path={lengths}")
    rate, seeds = str(refusal.value).splitlines()
    assert rate.startswith("arrivals.rate_per_s must be null, got 3.0: ")
    assert seeds.startswith("seeds must be one seed, got 76400-76411: ")


# -- rates and sharing that are not applied --------------------------------------------------------


def test_a_rate_is_refused_where_a_trace_keeps_its_own_times(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    code, printed = command(*S2, f"workload.path={lengths}", "arrivals.rate_per_s=10")
    assert code == 2
    assert "error: arrivals.rate_per_s must be null, got 10.0: " in printed
    assert "workload.keep_arrivals=false draws arrivals at the rate instead" in printed
    assert not (tmp_path / "ledger").exists()


def test_a_law_of_arrivals_is_refused_where_a_trace_keeps_its_own_times(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    code, printed = command(*S2, f"workload.path={lengths}", "arrivals=burst")
    assert code == 2
    assert "error: arrivals burst draws nothing: the trace is replayed" in printed
    assert not (tmp_path / "ledger").exists()
    assert command(*S2, f"workload.path={lengths}", "arrivals.rate_per_s=null")[0] == 0


def test_the_rate_of_a_row_is_that_of_its_requests(
    command: Command, lengths: Path, tmp_path: Path
) -> None:
    drawn = ("workload.keep_arrivals=false", "arrivals.rate_per_s=10")
    assert command(*S2, f"workload.path={lengths}", *drawn)[0] == 0
    (row,) = Ledger.read(tmp_path / "ledger").frame().to_dict("records")
    times = Ledger.read(tmp_path / "ledger").request_table(row["cell_id"])["arrival_s"]
    assert row["rate_per_s"] == 10.0
    assert times.iloc[-1] == 0.3  # three requests at ten a second
    assert row["realised_rate_per_s"] == pytest.approx(2 / (times.iloc[-1] - times.iloc[0]))


def test_a_trace_that_is_not_replayed_needs_a_rate(lengths: Path) -> None:
    with pytest.raises(ConfigError, match=r"arrivals\.rate_per_s is required: .*lengths\.csv is n"):
        plan_of(lengths, "workload.keep_arrivals=false")


def test_a_fraction_of_sharing_is_refused_by_a_trace(lengths: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.sharing must be null, got 0\.5: a trace fix"):
        plan_of(lengths, "+workload.sharing=0.5")


def test_a_campaign_that_varies_its_sharing_cannot_serve_a_trace(lengths: Path) -> None:
    drawn = ("workload=trace", f"workload.path={lengths}", "workload.keep_arrivals=false")
    with pytest.raises(ConfigError, match=r"workload\.sharing must be one value, got "):
        planned("campaign=q3", *drawn)
    assert any(
        note == "sharing 1.0 of the campaign is not applied: a trace fixes its own"
        for note in planned("campaign=q6", *drawn).notes
    )
