"""Tables are joined into few files; nothing is lost, doubled or changed by it, whatever happens."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_ledger import CONTRACT, toy_attempt, toy_cell, toy_requests

from hsexp.ledger import Ledger, LedgerError, NoTableError, encode_table
from hsexp.ledger.journal import Journal

STEPS = pd.DataFrame({"first_step": [0, 5], "num_steps": [5, 1]})


def table_of(seed: int) -> pd.DataFrame:
    """Every seed's table is another one."""
    return toy_requests().assign(request_id=[seed, seed + 1])


def opened(path: Path) -> Ledger:
    return Ledger.open(path, contract=CONTRACT)


def record(ledger: Ledger, *seeds: int, steps: bool = False) -> None:
    for seed in seeds:
        ledger.record(
            toy_attempt(seed),
            requests=encode_table(table_of(seed)),
            steps=encode_table(STEPS) if steps else None,
        )


def cell_id(seed: int) -> str:
    return toy_cell(seed).cell_id


def files(path: Path) -> list[str]:
    """Parquet files, with names of attempts as their numbers."""
    names = [file.relative_to(path).as_posix() for file in path.rglob("*.parquet")]
    known = {cell_id(seed): str(seed) for seed in range(40)}
    for key, seed in known.items():
        names = [name.replace(key, seed) for name in names]
    return sorted(names)


def require_tables(ledger: Ledger, *seeds: int) -> None:
    """Exactly these cells count, and each has the table that was recorded."""
    assert ledger.accepted().keys() == {cell_id(seed) for seed in seeds}
    for seed in seeds:
        pd.testing.assert_frame_equal(ledger.request_table(cell_id(seed)), table_of(seed))


# -- what joining does -----------------------------------------------------------------------------


def test_joined_tables_come_back_as_they_were_and_are_one_file(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2, 3, steps=True)
    ledger.join_tables()
    assert files(tmp_path) == ["requests-1.parquet", "steps-1.parquet"]
    for each in (ledger, opened(tmp_path), Ledger.read(tmp_path)):
        require_tables(each, 1, 2, 3)
        pd.testing.assert_frame_equal(each.step_table(f"{cell_id(2)}-1"), STEPS)
    assert len(ledger.requests()) == 6


def test_a_joined_file_is_parquet_that_says_whose_rows_it_has(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    ledger.join_tables()
    frame = pd.read_parquet(tmp_path / "requests-1.parquet")
    assert frame["attempt_id"].tolist() == [f"{cell_id(seed)}-1" for seed in (1, 1, 2, 2)]
    assert frame["request_id"].tolist() == [1, 2, 2, 3]


def test_one_table_is_left_as_it_is(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1)
    ledger.join_tables()
    ledger.join_tables()
    assert files(tmp_path) == ["requests/1-1.parquet"]


def test_files_stay_few_over_many_launches(tmp_path: Path) -> None:
    for seed in range(20):
        ledger = opened(tmp_path)
        record(ledger, seed)
        ledger.join_tables()
        # A table is alone, or in a file that is larger than all that came after it.
        assert len(files(tmp_path)) <= 6
    require_tables(ledger, *range(20))


def test_tables_of_other_columns_are_joined_apart(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    wide = {seed: table_of(seed).assign(depth=seed) for seed in (3, 4)}
    for seed, table in wide.items():
        ledger.record(toy_attempt(seed), requests=encode_table(table))
    ledger.join_tables()
    assert len(files(tmp_path)) == 2
    for seed, table in wide.items():
        pd.testing.assert_frame_equal(ledger.request_table(cell_id(seed)), table)


def test_tables_without_rows_and_failed_and_excluded_attempts_are_joined_too(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path)
    ledger.record(toy_attempt(1), requests=encode_table(table_of(1).iloc[:0]))
    ledger.record(toy_attempt(2, status="failed"))
    record(ledger, 3, 2)
    ledger.exclude(cell_id(3), f"{cell_id(3)}-1", reason="a test")
    ledger.join_tables()
    assert files(tmp_path) == ["requests-1.parquet"]
    assert ledger.request_table(cell_id(1)).empty
    assert ledger.request_table(cell_id(1)).dtypes.equals(table_of(1).dtypes)
    pd.testing.assert_frame_equal(ledger.request_table(f"{cell_id(3)}-1"), table_of(3))


def test_a_ledger_from_before_there_were_digests_opens_and_is_joined(tmp_path: Path) -> None:
    source = tmp_path / "source"
    record(opened(source), 1, 2)
    path = tmp_path / "older"
    shutil.copytree(source / "requests", path / "requests")
    journal = Journal(path / "journal.jsonl")
    events = Journal(source / "journal.jsonl").read_new()
    for event in events:
        if event["kind"] == "attempt":
            del event["row"]["tables"]
    with journal.exclusive():
        journal.append(events)
    require_tables(Ledger.read(path), 1, 2)
    opened(path).join_tables()
    assert files(path) == ["requests-1.parquet"]
    require_tables(Ledger.read(path), 1, 2)


# -- who has the ledger open meanwhile -------------------------------------------------------------


def test_whoever_has_the_ledger_open_keeps_reading_and_recording(tmp_path: Path) -> None:
    ours, theirs = opened(tmp_path), opened(tmp_path)
    record(ours, 1, 2)
    snapshot = Ledger.read(tmp_path)
    ours.join_tables()
    require_tables(snapshot, 1, 2)
    record(theirs, 3, 4, 5, 6)
    theirs.join_tables()  # the first file goes into the second
    assert files(tmp_path) == ["requests-2.parquet"]
    require_tables(snapshot, 1, 2)
    require_tables(ours, 1, 2, 3, 4, 5, 6)


def test_a_run_that_another_ledger_refers_to_is_read_where_it_was_joined(tmp_path: Path) -> None:
    source, user = opened(tmp_path / "q1"), opened(tmp_path / "q4")
    record(source, 1, 2)
    user.refer(toy_cell(1), source)
    reader = Ledger.read(tmp_path / "q4")
    pd.testing.assert_frame_equal(reader.request_table(cell_id(1)), table_of(1))
    source.join_tables()
    for each in (user, reader, Ledger.read(tmp_path / "q4")):
        pd.testing.assert_frame_equal(each.request_table(cell_id(1)), table_of(1))
    assert not user.has_steps(cell_id(1))


RECORD_AND_JOIN = """
import sys
from test_joined import opened, record
from pathlib import Path
ledger = opened(Path(sys.argv[1]))
print("opened", flush=True)
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    record(ledger, seed)
    if seed % 3 == 0:
        ledger.join_tables()
"""


def start(path: Path, program: str, *arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path), *map(str, arguments)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
    )


def test_processes_that_record_and_join_at_once_lose_nothing(tmp_path: Path) -> None:
    opened(tmp_path)
    bounds = [(0, 10), (10, 20), (20, 30)]
    processes = [start(tmp_path, RECORD_AND_JOIN, *each) for each in bounds]
    assert [process.wait() for process in processes] == [0, 0, 0]
    ledger = opened(tmp_path)
    assert ledger.notices == ()
    ledger.join_tables()
    require_tables(ledger, *range(30))
    assert len(ledger.attempts()) == 30


# -- kills -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """No code of ours catches it, as none runs after a SIGKILL."""


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise before (even numbers) or after (odd ones) the n-th change of the disk."""
    calls = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number // 2 + 1 and number % 2 == 0:
                raise Killed
            result = change(*arguments, **options)
            if calls == number // 2 + 1:
                raise Killed
            return result

        return call

    for name in ("fsync", "replace", "rename", "unlink", "write"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


def test_a_kill_at_any_change_of_the_disk_loses_and_doubles_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ledger = opened(source)
    record(ledger, 1, 2)
    ledger.join_tables()
    record(ledger, 3, 4, steps=True)
    number, killed = 0, True
    while killed:
        path = tmp_path / str(number)
        shutil.copytree(source, path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            ledger = opened(path)
            kill_at(number, monkeypatch)
            try:
                ledger.join_tables()
                killed = False
            except Killed:
                pass
        require_tables(Ledger.read(path), 1, 2, 3, 4)
        again = opened(path)
        require_tables(again, 1, 2, 3, 4)
        again.join_tables()
        require_tables(again, 1, 2, 3, 4)
        named = [file for file in files(path) if not file.startswith("set-aside/")]
        assert [file.rpartition("-")[0] for file in named] == ["requests", "steps"]
        assert not list(path.glob("*.joining"))
        number += 1
    assert number > 20  # a file each of requests and steps: fsyncs, renames, lines, removals


def changes_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by what is done to which file, as it happens."""
    done: list[str] = []

    def noted(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *others: Any, **options: Any) -> Any:
            path = Path(f"/proc/self/fd/{target}").resolve() if isinstance(target, int) else target
            done.append(f"{name} {Path(path).name}")
            return change(target, *others, **options)

        return call

    for name in ("fsync", "replace", "unlink", "write"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    return done


def test_a_table_is_durable_before_the_journal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    table, cell = encode_table(table_of(1)), cell_id(1)
    with monkeypatch.context() as patch:
        done = changes_of_the_disk(patch)
        ledger.record(toy_attempt(1), requests=table)
    assert done == [
        f"fsync {cell}-1.parquet.tmp",
        f"replace {cell}-1.parquet.tmp",
        "fsync requests",
        "write journal.jsonl",
        "fsync journal.jsonl",
    ]


def test_a_joined_file_is_durable_before_the_journal_names_it_and_only_then_loose_tables_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    with monkeypatch.context() as patch:
        done = changes_of_the_disk(patch)
        ledger.join_tables()
    *first, one, other = done
    assert first == [
        "fsync requests.joining",
        "replace requests.joining",
        f"fsync {tmp_path.name}",
        "write journal.jsonl",
        "fsync journal.jsonl",
    ]
    assert {one, other} == {f"unlink {cell_id(seed)}-1.parquet" for seed in (1, 2)}


@pytest.mark.slow
def test_random_kills_of_processes_that_record_and_join_lose_nothing(tmp_path: Path) -> None:
    opened(tmp_path)
    for round_number in range(40):
        seeds = range(round_number * 40, round_number * 40 + 40)
        process = start(tmp_path, RECORD_AND_JOIN, seeds.start, seeds.stop)
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        time.sleep(0.017 * round_number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        snapshot = Ledger.read(tmp_path)
        for attempt_id in snapshot.accepted().values():
            assert len(snapshot.request_table(attempt_id)) == 2
    ledger = opened(tmp_path)
    ledger.join_tables()
    recorded = [seed for seed in range(1600) if cell_id(seed) in ledger.accepted()]
    require_tables(ledger, *recorded)
    assert len(ledger.attempts()) == len(recorded) > 40


JOIN_ON_FULL_DISK = """
import resource, sys
from pathlib import Path
from test_joined import opened
from hsexp.ledger import LedgerError

ledger = opened(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    ledger.join_tables()
except LedgerError as error:
    sys.exit(0 if "cannot be written: File too large" in str(error) else 1)
sys.exit(2)
"""


@pytest.mark.parametrize("full", ["joined file", "journal"])
def test_a_full_disk_leaves_the_tables_where_they_are(tmp_path: Path, full: str) -> None:
    record(opened(tmp_path), *range(6))
    journal = (tmp_path / "journal.jsonl").stat().st_size
    before = files(tmp_path)
    limit = {"joined file": 1000, "journal": journal + 100}[full]
    assert start(tmp_path, JOIN_ON_FULL_DISK, limit).wait() == 0
    loose = [name for name in files(tmp_path) if name.startswith("requests/")]
    assert loose == before
    require_tables(opened(tmp_path), *range(6))


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_no_flipped_bit_of_a_table_goes_unnoticed(tmp_path: Path, joined: bool) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    if joined:
        ledger.join_tables()
    (path, *_) = sorted(tmp_path.rglob("*.parquet"))
    data = path.read_bytes()
    noticed = 0
    places = range(4 if joined else 0, len(data), 37)  # the magic of a joined file says nothing
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        reader = Ledger.read(tmp_path)
        try:
            require_tables(reader, 1, 2)
        except LedgerError as error:
            noticed += "damaged" in str(error)
    # In a joined file each flip is in a group or in the footer.
    assert noticed == len(places)


def test_a_damaged_table_is_not_joined_and_stops_no_other(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2, 3)
    (tmp_path / "requests" / f"{cell_id(2)}-1.parquet").write_bytes(b"damaged")
    ledger.join_tables()
    assert files(tmp_path) == ["requests-1.parquet", "requests/2-1.parquet"]
    with pytest.raises(LedgerError, match=r"-1\.parquet: the table is damaged"):
        ledger.request_table(cell_id(2))
    pd.testing.assert_frame_equal(ledger.request_table(cell_id(3)), table_of(3))


def test_a_table_that_was_never_kept_is_not_one_that_is_damaged(tmp_path: Path) -> None:
    """Whoever passes over runs without steps must not pass over damaged ones."""
    ledger = opened(tmp_path)
    record(ledger, 1)
    record(ledger, 2, steps=True)
    with pytest.raises(NoTableError, match=r"steps: attempt .*-1 has no such table"):
        ledger.step_table(cell_id(1))
    (tmp_path / "steps" / f"{cell_id(2)}-1.parquet").write_bytes(b"damaged")
    with pytest.raises(LedgerError, match="damaged") as refused:
        ledger.step_table(cell_id(2))
    assert not isinstance(refused.value, NoTableError)


def test_a_damaged_joined_file_is_kept_beside_later_ones(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    ledger.join_tables()
    joined = tmp_path / "requests-1.parquet"
    joined.write_bytes(joined.read_bytes()[:100] + b"?" + joined.read_bytes()[101:])
    ledger = opened(tmp_path)
    record(ledger, 3, 4, 5)
    ledger.join_tables()
    assert files(tmp_path) == ["requests-1.parquet", "requests-2.parquet"]
    pd.testing.assert_frame_equal(ledger.request_table(cell_id(3)), table_of(3))


# -- what no event names ---------------------------------------------------------------------------


def test_tables_are_set_aside_and_not_deleted_when_the_journal_is_an_older_copy(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1)
    older = (tmp_path / "journal.jsonl").read_bytes()
    record(ledger, 2, 3)
    (tmp_path / "journal.jsonl").write_bytes(older)
    ledger = opened(tmp_path)
    assert files(tmp_path) == [
        "requests/1-1.parquet",
        *sorted(f"set-aside/requests-{seed}-1.1.parquet" for seed in (2, 3)),
    ]
    assert [notice.partition(";")[0] for notice in ledger.notices] == [
        "no attempt names a table that was here"
    ] * 2
    record(ledger, 2)
    require_tables(ledger, 1, 2)
    assert opened(tmp_path).notices == ()


def test_a_joined_file_that_the_journal_does_not_name_is_set_aside(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    older = (tmp_path / "journal.jsonl").read_bytes()
    ledger.join_tables()
    (tmp_path / "journal.jsonl").write_bytes(older)
    opened(tmp_path)
    assert files(tmp_path) == ["set-aside/requests-requests-1.1.parquet"]


def test_joined_tables_without_a_journal_stop_a_new_ledger(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    ledger.join_tables()
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(LedgerError, match=r"request tables without journal\.jsonl"):
        opened(tmp_path)
    assert files(tmp_path) == ["requests-1.parquet"]


def test_the_run_of_a_line_that_was_removed_is_repeated_under_another_id(tmp_path: Path) -> None:
    """The advice for a damaged line: remove it by hand, and the run will be repeated."""
    ledger = opened(tmp_path)
    record(ledger, 1, 2)
    ledger.join_tables()
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    gone = next(line for line in lines if b'"attempt_id":"' + cell_id(1).encode() in line)
    assert b'"kind":"attempt"' in gone
    journal.write_bytes(b"".join(line for line in lines if line != gone))
    ledger = opened(tmp_path)
    require_tables(ledger, 2)
    assert len(ledger.frame()) == 1
    record(ledger, 1)
    assert ledger.accepted()[cell_id(1)] == f"{cell_id(1)}-2"
    require_tables(ledger, 1, 2)
