"""Joining: many loose tables become row groups of one file, as safely as they were recorded.

The order makes a kill harmless at any instant: the joined file is written durably, then it gets its
name, then the journal records its contents, and only then the loose tables are removed. Before the
event the loose tables count, after it the joined file does; `TableFiles.tidy` removes the rest.

A joined file with no more tables than the new ones is joined with them, so that n launches leave
about log n files and each table is written about log n times.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from filelock import FileLock, Timeout

from hsexp.ledger.history import History
from hsexp.ledger.journal import LedgerError, write_error
from hsexp.ledger.log import Log
from hsexp.ledger.tables import TableFiles, schema_key


def join_tables(log: Log, files: TableFiles) -> list[Path]:
    """Join the loose tables of one kind. Other processes may record, read and join meanwhile.

    Damaged tables stay as they are; reading them reports the damage. Returns the files that
    `TableFiles.tidy` set aside.

    Raises:
        LedgerError: the disk refused; every table is where it was.
    """
    set_aside: list[Path] = []
    with _alone(log, files) as alone:
        if alone:
            for attempt_ids in _batches(files, log.current()):
                set_aside += _join(log, files, attempt_ids)
    return set_aside


def remove_unfinished(log: Log, files: TableFiles) -> None:
    """Remove what a killed join left behind, unless a join is under way."""
    with _alone(log, files) as alone:
        if alone:
            files.remove_unfinished()


@contextmanager
def _alone(log: Log, files: TableFiles) -> Iterator[bool]:
    """Keep other processes from joining; False where one already does."""
    lock = FileLock(log.path / f"{files.kind}.join.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise write_error(Path(lock.lock_file), error) from error
    try:
        yield True
    finally:
        lock.release()


def _batches(files: TableFiles, history: History) -> list[list[str]]:
    """Attempts whose tables become one file each, in order of recording."""
    batches: dict[str, set[str]] = defaultdict(set)
    for attempt_id in files.loose_ids(history):
        if files.is_intact(attempt_id, history):
            batches[schema_key(files.schema_of_loose(attempt_id))].add(attempt_id)
    joined: dict[str, set[str]] = defaultdict(set)
    for attempt_id, place in history.places[files.kind].items():
        joined[place.file].add(attempt_id)
    for file, members in sorted(joined.items(), key=lambda item: len(item[1])):
        if members <= history.rows.keys() and all(
            files.is_intact(attempt_id, history) for attempt_id in members
        ):
            batch = batches.get(schema_key(files.joined_schema(file, history)), set())
            if len(members) <= len(batch):
                batch |= members
    return [
        [attempt_id for attempt_id in history.rows if attempt_id in batch]
        for batch in batches.values()
        if len(batch) > 1
    ]


def _join(log: Log, files: TableFiles, attempt_ids: list[str]) -> list[Path]:
    history = log.history
    joining = files.write_joined(
        (attempt_id, files.read_arrow(attempt_id, history)) for attempt_id in attempt_ids
    )
    for attempt_id, table in joining.tables():
        _require_equal(table, files.read_arrow(attempt_id, history), attempt_id)
    with log.writing():
        file = files.name_joined(joining, log.history)
        event = {"kind": "join", "table": files.kind, "file": file, "footer": joining.footer}
        log.append([event | {"attempts": joining.digests}])
        return files.tidy(log.history)


def _require_equal(written: pa.Table, table: pa.Table, attempt_id: str) -> None:
    """Refuse if the written table differs from the one to be removed. NaN equals NaN here."""
    if not (written.equals(table) or written.to_pandas().equals(table.to_pandas())):
        raise LedgerError(f"attempt {attempt_id}: its table changes when it is joined")
