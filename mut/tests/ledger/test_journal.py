"""The journal: what a kill, a full disk, a neighbour or a flipped bit can do to its lines."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hsexp.ledger.journal import Event, Journal, LedgerError

WRITE_FOREVER = """
import sys
from pathlib import Path
from hsexp.ledger.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = len(journal.repair())
while True:
    number += 1
    with journal.exclusive():
        journal.repair()
        journal.append([{"number": number}])
    print(number, flush=True)
"""

WRITE_HUNDRED = """
import sys
from pathlib import Path
from hsexp.ledger.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(100):
    with journal.exclusive():
        journal.repair()
        journal.append([{"writer": sys.argv[2], "number": number}])
"""

WRITE_TO_FULL_DISK = """
import resource, sys
from pathlib import Path
from hsexp.ledger.journal import Journal, LedgerError
path = Path(sys.argv[1])
journal = Journal(path)
with journal.exclusive():
    journal.repair()
    # 40 bytes are left: the write of 1,000 is cut short, the next one is refused.
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
    try:
        journal.append([{"text": "x" * 1000}])
    except LedgerError as error:
        print(error)
"""


def append(path: Path, *events: Event) -> None:
    journal = Journal(path)
    with journal.exclusive():
        journal.repair()
        journal.append(events)


def read(path: Path) -> list[Event]:
    return Journal(path).read_new()


def test_events_come_back_in_the_order_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1}, {"n": 2})
    append(path, {"n": 3, "text": 'q"\n\r\u2028é'})
    assert read(path) == [{"n": 1}, {"n": 2}, {"n": 3, "text": 'q"\n\r\u2028é'}]


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1}, {"n": 2})
    assert [json.loads(line)["event"] for line in path.open()] == [{"n": 1}, {"n": 2}]


def test_whole_lines_survive_a_cut_at_any_byte_and_appending_goes_on(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    append(whole, {"n": 1}, {"n": 2})
    data = whole.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data) + 1):
        path = tmp_path / f"cut-{cut}.jsonl"
        path.write_bytes(data[:cut])
        survivors = [{"n": 1}, {"n": 2}][: sum(end <= cut for end in ends)]
        torn = data[max([0, *(end for end in ends if end <= cut)]) : cut]

        assert read(path) == survivors
        append(path, {"n": 3})

        assert read(path) == [*survivors, {"n": 3}]
        aside = [file.read_bytes() for file in tmp_path.glob(f"cut-{cut}.torn-*")]
        assert aside == ([torn] if torn else [])


def test_a_second_torn_end_does_not_overwrite_the_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for torn in (b"first", b"second"):
        append(path, {"n": 1})
        path.write_bytes(path.read_bytes() + torn)
        Journal(path).repair()
    assert (tmp_path / "journal.torn-1").read_bytes() == b"first"
    assert (tmp_path / "journal.torn-2").read_bytes() == b"second"


def test_a_flipped_byte_in_the_last_line_is_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1}, {"n": 2})
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":7'))
    assert read(path) == [{"n": 1}]


def test_a_damaged_line_before_a_whole_one_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1}, {"n": 2}, {"n": 3})
    damaged = path.read_bytes().replace(b'"n":2', b'"n":7')
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match=r"journal\.jsonl, line 2: the line is damaged"):
        append(path, {"n": 4})
    assert path.read_bytes() == damaged


def test_a_reader_leaves_a_torn_end_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1})
    path.write_bytes(path.read_bytes() + b"torn")
    before = path.read_bytes()
    assert read(path) == [{"n": 1}]
    assert path.read_bytes() == before


def test_the_torn_end_of_a_neighbour_is_set_aside_by_whoever_appends_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with journal.exclusive():
        journal.repair()
        journal.append([{"n": 1}])
    path.write_bytes(path.read_bytes() + b'{"crc":"0')  # the neighbour was killed here
    with journal.exclusive():
        journal.repair()
        journal.append([{"n": 2}])
    assert read(path) == [{"n": 1}, {"n": 2}]


def test_a_file_that_shrinks_under_a_reader_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1})
    journal = Journal(path)
    journal.read_new()
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="has shrunk"):
        journal.read_new()


def test_a_killed_writer_loses_nothing_that_append_returned_from(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    generator = random.Random(0)
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(generator.randrange(1, 20)):
            writer.stdout.readline()
        writer.kill()
        rest = writer.stdout.read().split()
        writer.wait()
        numbers = [event["number"] for event in read(path)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert not rest or len(numbers) >= int(rest[-1])


def test_two_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_HUNDRED, str(path), name]) for name in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    events = read(path)
    for name in "ab":
        numbers = [event["number"] for event in events if event["writer"] == name]
        assert numbers == list(range(100))


def test_a_full_disk_is_named_and_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, {"n": 1})
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", WRITE_TO_FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{path}: cannot be written: File too large" in done.stdout
    assert path.read_bytes() == before
