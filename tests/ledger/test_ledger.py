"""The ledger: one contract, every attempt kept, one attempt of a cell that counts."""

import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pandas as pd
import pytest
from toy_ledger import CONTRACT, PROVENANCE, TOY, toy_attempt, toy_cell, toy_requests

from hsexp.ledger import EngineFacts, Ledger, LedgerError, encode_table, require_comparable
from hsexp.ledger.journal import Journal

TABLE = encode_table(toy_requests())


def open_ledger(path: Path) -> Ledger:
    return Ledger.open(path, contract=CONTRACT)


def record_ok(ledger: Ledger, seed: int) -> str:
    return ledger.record(toy_attempt(seed), requests=TABLE)


def cell_id(seed: int) -> str:
    return toy_cell(seed).cell_id


# -- the contract ----------------------------------------------------------------------------------


def test_another_contract_is_refused_by_field_and_both_values(tmp_path: Path) -> None:
    open_ledger(tmp_path)
    other = {"workload": {"num_requests": 100, "q": 0.5}, "device": "a100"}
    with pytest.raises(LedgerError) as refused:
        Ledger.open(tmp_path, contract=other)
    assert str(refused.value).splitlines() == [
        f"{tmp_path} holds runs of another configuration:",
        '  device: ledger has nothing, this run has "a100"',
        '  engine.name: ledger has "toy", this run has nothing',
        "  workload.num_requests: ledger has 300, this run has 100",
    ]


def test_a_refused_contract_changes_no_file(tmp_path: Path) -> None:
    record_ok(open_ledger(tmp_path), 1)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path, contract={"workload": 1})
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_an_equal_contract_is_accepted_whatever_its_key_order_and_sequences(tmp_path: Path) -> None:
    Ledger.open(tmp_path, contract={"a": (1, 2), "b": {"c": None, "d": 1}})
    ledger = Ledger.open(tmp_path, contract={"b": {"d": 1, "c": None}, "a": [1, 2]})
    assert ledger.contract == {"a": [1, 2], "b": {"c": None, "d": 1}}


def test_without_a_contract_an_existing_ledger_opens_and_a_missing_one_is_refused(
    tmp_path: Path,
) -> None:
    open_ledger(tmp_path / "here")
    assert Ledger.open(tmp_path / "here").contract == CONTRACT
    with pytest.raises(LedgerError, match="there is no ledger here"):
        Ledger.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_ledger_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with journal.exclusive():
        journal.append([{"kind": "header", "schema": 2, "contract": CONTRACT}])
    with pytest.raises(
        LedgerError, match=r"journal\.jsonl: schema must be 1, got 2; a newer hsexp"
    ):
        Ledger.read(tmp_path)


def test_a_path_that_cannot_hold_a_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"file.*: cannot be"):
        open_ledger(tmp_path / "file")


# -- which attempt counts --------------------------------------------------------------------------


def test_the_first_ok_attempt_counts_and_a_second_stays_visible_beside_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first, second = record_ok(ledger, 1), record_ok(ledger, 1)
    assert (first, second) == (f"{cell_id(1)}-1", f"{cell_id(1)}-2")
    assert ledger.accepted() == {cell_id(1): first}
    assert ledger.attempts()[["attempt_id", "adopted"]].to_numpy().tolist() == [
        [first, True],
        [second, False],
    ]
    assert ledger.frame()["attempt_id"].tolist() == [first]


def test_a_failed_attempt_is_a_row_and_never_counts(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(toy_attempt(1, status="failed"))
    assert ledger.accepted() == {}
    row = ledger.attempts().iloc[0]
    assert (row["status"], row["reason"], row["adopted"]) == (
        "failed",
        "ValueError: unlucky",
        False,
    )
    assert record_ok(ledger, 1) == ledger.accepted()[cell_id(1)] == f"{cell_id(1)}-2"


def test_the_analysis_frame_does_not_depend_on_the_order_of_runs(tmp_path: Path) -> None:
    frames = []
    for order in permutations([1, 2, 3]):
        ledger = open_ledger(tmp_path / "".join(map(str, order)))
        for seed in order:
            record_ok(ledger, seed)
        frames.append(ledger.frame())
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])


def test_an_ok_attempt_parted_from_its_adoption_by_a_kill_counts_once(tmp_path: Path) -> None:
    first = record_ok(open_ledger(tmp_path), 1)
    journal = tmp_path / "journal.jsonl"
    *lines, adoption = journal.read_bytes().splitlines(keepends=True)
    assert b'"kind":"adopt"' in adoption
    for cut in (0, 1, len(adoption) - 1):
        journal.write_bytes(b"".join(lines) + adoption[:cut])
        assert Ledger.read(tmp_path).accepted() == {cell_id(1): first}
        ledger = open_ledger(tmp_path)
        record_ok(ledger, 1)
        assert ledger.accepted() == {cell_id(1): first}
        assert journal.read_bytes().count(b'"kind":"adopt"') == 1


def test_no_cut_of_the_journal_counts_a_cell_twice_or_loses_an_earlier_one(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ledger = open_ledger(source)
    record_ok(ledger, 1)
    before = (source / "journal.jsonl").stat().st_size
    record_ok(ledger, 2)
    data = (source / "journal.jsonl").read_bytes()
    for cut in range(before, len(data), 61):
        path = tmp_path / str(cut)
        shutil.copytree(source, path)
        (path / "journal.jsonl").write_bytes(data[:cut])
        again = open_ledger(path)
        if cell_id(2) not in again.accepted():
            record_ok(again, 2)
        assert again.accepted().keys() == {cell_id(1), cell_id(2)}
        assert len(again.attempts()) == 2
        assert len(again.requests()) == 4


def test_an_excluded_attempt_stays_visible_with_its_reason_and_its_cell_runs_again(
    tmp_path: Path,
) -> None:
    ledger = open_ledger(tmp_path)
    first = record_ok(ledger, 1)
    ledger.exclude(cell_id(1), first, reason="power cut")
    assert ledger.accepted() == {}
    second = record_ok(ledger, 1)
    assert ledger.accepted() == {cell_id(1): second}
    attempts = Ledger.read(tmp_path).attempts().set_index("attempt_id")
    assert attempts["exclusion_reason"].fillna("-").to_dict() == {first: "power cut", second: "-"}


def test_excluding_an_attempt_does_not_adopt_another_behind_the_users_back(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first, second = record_ok(ledger, 1), record_ok(ledger, 1)
    ledger.exclude(cell_id(1), first, reason="wrong driver")
    assert open_ledger(tmp_path).accepted() == {}
    ledger.adopt(cell_id(1), second, reason="same driver as the rest")
    assert open_ledger(tmp_path).accepted() == {cell_id(1): second}
    adopted = ledger.frame().iloc[0]
    assert adopted["adoption_reason"] == "same driver as the rest"


def test_an_excluded_attempt_can_be_adopted_again(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first = record_ok(ledger, 1)
    ledger.exclude(cell_id(1), first, reason="looked wrong")
    ledger.adopt(cell_id(1), first, reason="was right")
    assert ledger.accepted() == {cell_id(1): first}
    assert ledger.attempts()["exclusion_reason"].isna().all()


@pytest.mark.parametrize(
    ("attempt", "reason", "message"),
    [
        ("{cell}-1", "why", "failed and cannot be adopted"),
        ("{cell}-9", "why", "has no attempt"),
        ("{other}-1", "why", "has no attempt"),
        ("{cell}-2", " ", "reason must say why"),
    ],
)
def test_an_adoption_that_makes_no_sense_is_refused(
    tmp_path: Path, attempt: str, reason: str, message: str
) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(toy_attempt(1, status="failed"))
    record_ok(ledger, 1)
    record_ok(ledger, 2)
    name = attempt.format(cell=cell_id(1), other=cell_id(2))
    with pytest.raises(LedgerError, match=message):
        ledger.adopt(cell_id(1), name, reason=reason)


# -- rows ------------------------------------------------------------------------------------------


def test_unknown_metrics_are_nan_and_whole_known_ones_stay_whole(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    metrics: dict[str, Any] = {
        "count": np.int64(3),
        "mean_s": float("nan"),
        "median_s": None,
        "p99_s": 2.5,
    }
    ledger.record(toy_attempt(1, metrics=metrics), requests=TABLE)
    ledger.record(toy_attempt(2, status="failed", metrics={}))
    row = ledger.frame()[list(metrics)]
    assert row.dtypes.astype(str).tolist() == ["int64", "float64", "float64", "float64"]
    assert row.iloc[0].isna().tolist() == [False, True, True, False]
    assert ledger.attempts()["count"].isna().tolist() == [False, True]


def test_an_infinite_metric_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="metric ratio must be finite or unknown, got -inf"):
        toy_attempt(1, metrics={"ratio": float("-inf")})


@pytest.mark.parametrize(
    ("name", "message"),
    [("status", "status cannot be an axis or a metric"), ("seed", "seed is both an axis and")],
)
def test_two_columns_of_one_name_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy_attempt(1, metrics={name: 1.0})


@pytest.mark.parametrize("field", ["engine", "device", "time_model"])
def test_rows_that_cannot_be_compared_do_not_share_a_frame(tmp_path: Path, field: str) -> None:
    facts = {"engine": "toy", "device": "none", "time_model": "fixed", field: "other"}
    ledger = open_ledger(tmp_path)
    record_ok(ledger, 1)
    other = EngineFacts(**facts, data_kind="simulated")  # type: ignore[arg-type]
    ledger.record(toy_attempt(2, engine=other), requests=TABLE)
    with pytest.raises(LedgerError, match=f"share their {field}, got .*'other' in 1 rows"):
        ledger.frame()
    assert len(ledger.attempts()) == 2


def test_frames_of_two_engines_are_refused_when_they_are_put_together(tmp_path: Path) -> None:
    frames = []
    for engine in ("sim", "vllm"):
        facts = EngineFacts(engine=engine, device="d", time_model="t", data_kind="measured")
        ledger = open_ledger(tmp_path / engine)
        ledger.record(toy_attempt(1, engine=facts), requests=TABLE)
        frames.append(ledger.frame())
    with pytest.raises(LedgerError, match="'sim' in 1 rows and 'vllm' in 1 rows"):
        require_comparable(pd.concat(frames), source="both")


def test_an_empty_ledger_has_an_empty_frame(tmp_path: Path) -> None:
    assert open_ledger(tmp_path).frame().empty


def test_a_launch_is_noted_with_its_overrides(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.launch(overrides=["budget=b63"], notes=["narrowed to b63"], provenance=PROVENANCE)
    launch = Ledger.read(tmp_path).launches().iloc[0]
    assert (launch["overrides"], launch["notes"]) == (["budget=b63"], ["narrowed to b63"])


# -- tables ----------------------------------------------------------------------------------------


def test_a_request_table_comes_back_as_it_was_by_cell_and_by_attempt(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    attempt_id = record_ok(ledger, 1)
    for key in (cell_id(1), attempt_id):
        pd.testing.assert_frame_equal(ledger.request_table(key), toy_requests())


def test_the_stacked_table_holds_the_adopted_attempts_alone(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first = [record_ok(ledger, 1), record_ok(ledger, 2)]
    record_ok(ledger, 2)
    table = ledger.requests()
    assert len(table) == 4  # two cells of two requests
    assert set(table["attempt_id"]) == set(first)
    assert ledger.requests([cell_id(2)])["cell_id"].unique().tolist() == [cell_id(2)]


def test_a_step_table_is_kept_where_the_run_gave_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    steps = pd.DataFrame({"first_step": [0, 5], "num_steps": [5, 1]})
    ledger.record(toy_attempt(1), requests=TABLE, steps=encode_table(steps))
    record_ok(ledger, 2)
    pd.testing.assert_frame_equal(ledger.step_table(cell_id(1)), steps)
    with pytest.raises(LedgerError, match="has no such table"):
        ledger.step_table(cell_id(2))


def test_a_table_of_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no attempt and no accepted cell is called 'abc'"):
        open_ledger(tmp_path).request_table("abc")


def test_tables_of_a_killed_writer_are_removed_and_recorded_ones_stay(tmp_path: Path) -> None:
    attempt_id = record_ok(open_ledger(tmp_path), 1)
    for name in ("feed-1.parquet", "feed-2.parquet.tmp", "notes.txt"):
        (tmp_path / "requests" / name).write_bytes(b"half")
    open_ledger(tmp_path)
    left = sorted(file.name for file in (tmp_path / "requests").iterdir())
    assert left == [f"{attempt_id}.parquet", "notes.txt"]


def test_tables_without_a_journal_are_never_removed(tmp_path: Path) -> None:
    record_ok(open_ledger(tmp_path), 1)
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(LedgerError, match=r"request tables without journal\.jsonl"):
        open_ledger(tmp_path)
    assert len(list((tmp_path / "requests").iterdir())) == 1


# -- a full disk -----------------------------------------------------------------------------------

RECORD_ON_FULL_DISK = """
import resource, sys
from pathlib import Path
from toy_ledger import CONTRACT, toy_attempt, toy_requests
from hsexp.ledger import Ledger, LedgerError, encode_table

path, full_file = Path(sys.argv[1]), sys.argv[2]
table = encode_table(toy_requests())
ledger = Ledger.open(path, contract=CONTRACT)
journal_size = (path / "journal.jsonl").stat().st_size
assert len(table) < journal_size
limits = {"requests": len(table) - 1, "journal": journal_size + 300}
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limits[full_file], hard))
try:
    ledger.record(toy_attempt(1), requests=table)
except LedgerError as error:
    print(error)
assert toy_attempt(1).cell.cell_id not in ledger.accepted()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
ledger.record(toy_attempt(1), requests=table)
"""


@pytest.mark.parametrize("full_file", ["requests", "journal"])
def test_a_full_disk_is_named_and_adopts_nothing(tmp_path: Path, full_file: str) -> None:
    ledger = open_ledger(tmp_path)
    while (tmp_path / "journal.jsonl").stat().st_size <= len(TABLE):
        ledger.record(toy_attempt(2, status="failed"))
    done = subprocess.run(
        [sys.executable, "-c", RECORD_ON_FULL_DISK, str(tmp_path), full_file],
        capture_output=True,
        text=True,
        check=True,
        env=commands.environment(Path(__file__).parent),
    )
    assert f"{tmp_path}/{full_file}" in done.stdout
    assert "cannot be written: File too large" in done.stdout
    assert Ledger.read(tmp_path).accepted() == {cell_id(1): f"{cell_id(1)}-1"}


# -- claims and readers ----------------------------------------------------------------------------

HOLD_CLAIM = """
import sys, time
from hsexp.ledger import Ledger
claim = Ledger.open(sys.argv[1]).claim(sys.argv[2])
print(claim is not None, flush=True)
time.sleep(60)
"""


def test_a_claimed_cell_is_free_again_when_its_process_is_killed(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_CLAIM, str(tmp_path), cell_id(1)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert ledger.claim(cell_id(1)) is None
    other = ledger.claim(cell_id(2))
    assert other is not None
    other.release()
    holder.kill()
    holder.wait()
    claim = ledger.claim(cell_id(1))
    assert claim is not None
    with claim:
        assert ledger.claim(cell_id(1)) is None


def test_reading_writes_nothing_and_refuses_to_write(tmp_path: Path) -> None:
    record_ok(open_ledger(tmp_path), 1)
    before = sorted(tmp_path.rglob("*"))
    ledger = Ledger.read(tmp_path)
    with pytest.raises(LedgerError, match="opened for reading"):
        record_ok(ledger, 2)
    with pytest.raises(LedgerError, match="opened for reading"):
        ledger.claim(cell_id(2))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_reader_keeps_the_snapshot_that_it_opened(tmp_path: Path) -> None:
    writer = open_ledger(tmp_path)
    record_ok(writer, 1)
    reader = Ledger.read(tmp_path)
    record_ok(writer, 2)
    assert len(reader.frame()) == 1
    assert len(writer.frame()) == 2


def test_reading_where_there_is_no_ledger_says_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger here; run the campaign first"):
        Ledger.read(tmp_path)


def test_two_open_ledgers_of_one_folder_are_one(tmp_path: Path) -> None:
    ours, theirs = open_ledger(tmp_path), open_ledger(tmp_path)
    first = record_ok(ours, 1)
    second = record_ok(theirs, 1)
    assert ours.accepted() == theirs.accepted() == {cell_id(1): first}
    assert second == f"{cell_id(1)}-2"


def test_an_ok_attempt_needs_its_request_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a request table belongs to ok attempts"):
        open_ledger(tmp_path).record(toy_attempt(1, engine=TOY))
