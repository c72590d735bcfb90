"""The tables of a ledger: one Parquet file an attempt at first, a row group of a joined file later.

`encode_table` makes Parquet bytes, so that a worker can encode its own measurements. `TableFiles`
owns the files of one kind, such as "requests"::

    requests/<attempt>.parquet   loose: written before the attempt that names it
    requests-<n>.parquet         joined: one row group an attempt, with a column `attempt_id`
    set-aside/                   tables that no event names

Nothing is read unchecked: the attempt's row has the SHA-256 of its loose file, and the event that
names a joined file has those of its row groups and of its footer. (Attempts of older ledgers have
none until their tables are joined.)
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NewType

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hsexp.ledger.history import History, Place
from hsexp.ledger.journal import LedgerError, sync_directory, write_durably, write_error

EncodedTable = NewType("EncodedTable", bytes)

_FORMAT: Mapping[str, Any] = {
    "compression": "zstd",
    "write_statistics": False,
    "use_dictionary": False,
}
"""The tables are small; statistics and dictionaries would take half of their bytes."""
_MAGIC = b"PAR1"
_OWNER = "attempt_id"
"""The column of a joined file with the attempt of each row."""


def encode_table(frame: pd.DataFrame) -> EncodedTable:
    """Parquet bytes of a frame; its index is left out.

    Raises:
        pyarrow.ArrowException: a column mixes types.
    """
    return encode_arrow(pa.Table.from_pandas(frame, preserve_index=False))


def encode_arrow(table: pa.Table) -> EncodedTable:
    """Parquet bytes of a table."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, **_FORMAT)
    return EncodedTable(buffer.getvalue().to_pybytes())


class TableFiles:
    """The tables of one kind, loose or joined; callers read both the same way."""

    def __init__(self, ledger: Path, kind: str) -> None:
        self.kind = kind
        self.folder = ledger / kind
        self._ledger = ledger
        self._opened: dict[str, _JoinedFile] = {}

    # -- loose -----------------------------------------------------------------------------------

    def write(self, attempt_id: str, table: EncodedTable) -> str:
        """Keep a table durably. Returns its digest.

        Raises:
            LedgerError: the disk refused; nothing is left behind.
        """
        write_durably(self._loose(attempt_id), table)
        return hashlib.sha256(table).hexdigest()

    def loose_ids(self, history: History) -> list[str]:
        """Attempts whose tables are loose, in order of recording."""
        there = {file.stem for file in self.folder.glob("*.parquet")}
        joined = history.places[self.kind]
        return [key for key in history.rows if key in there and key not in joined]

    def schema_of_loose(self, attempt_id: str) -> pa.Schema:
        return pq.read_schema(self._loose(attempt_id))

    def _loose(self, attempt_id: str) -> Path:
        return self.folder / f"{attempt_id}.parquet"

    # -- reading ---------------------------------------------------------------------------------

    def has(self, attempt_id: str, history: History) -> bool:
        return attempt_id in history.places[self.kind] or self._loose(attempt_id).exists()

    def read(self, attempt_id: str, history: History) -> pd.DataFrame:
        """The frame that was encoded.

        Raises:
            FileNotFoundError: there is none, or it was joined after this history.
            LedgerError: it is damaged.
        """
        frame: pd.DataFrame = self.read_arrow(attempt_id, history).to_pandas()
        return frame

    def read_arrow(self, attempt_id: str, history: History) -> pa.Table:
        place = history.places[self.kind].get(attempt_id)
        if place is not None:
            return self._joined(place.file, history).read(place)
        data = self._loose_bytes(attempt_id, history)
        try:
            return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            path = self._loose(attempt_id)
            raise LedgerError(f"{path}: the table is damaged: {error}") from None

    def _loose_bytes(self, attempt_id: str, history: History) -> bytes:
        path = self._loose(attempt_id)
        data = path.read_bytes()
        digest = history.rows.get(attempt_id, {}).get("tables", {}).get(self.kind)
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise LedgerError(f"{path}: the table is damaged (its SHA-256 is not the recorded one)")
        return data

    def is_intact(self, attempt_id: str, history: History) -> bool:
        """Whether the table is readable and has the recorded digest, if there is one."""
        place = history.places[self.kind].get(attempt_id)
        try:
            if place is not None:
                self._joined(place.file, history).check(place)
            else:
                pq.read_schema(pa.BufferReader(self._loose_bytes(attempt_id, history)))
        except (LedgerError, OSError, pa.ArrowException):
            return False
        return True

    def joined_schema(self, file: str, history: History) -> pa.Schema:
        return self._joined(file, history).schema

    def _joined(self, file: str, history: History) -> "_JoinedFile":
        if file not in self._opened:
            self._opened[file] = _JoinedFile(self._ledger / file, footer=history.footers[file])
        return self._opened[file]

    # -- copying ---------------------------------------------------------------------------------

    def named(self, history: History) -> list[str]:
        """Attempts with a table in this ledger, by its journal. (The rows of older ledgers do not
        say so: what lies there counts for them.)"""
        places, there = history.places[self.kind], set(self.loose_ids(history))
        return [
            key
            for key, row in history.rows.items()
            if row["provenance"].get("reused_from") is None
            and (key in places or key in there or self.kind in row.get("tables", {}))
        ]

    def copy_to(self, ledger: Path, history: History) -> None:
        """Copy the files of all attempts that have a table to another ledger's folder.

        Raises:
            FileNotFoundError: one is missing, or was joined after this history.
        """
        places = history.places[self.kind]
        for file in sorted({place.file for place in places.values()}):
            shutil.copyfile(self._ledger / file, ledger / file)
        loose = [key for key in self.named(history) if key not in places]
        if loose:
            (ledger / self.kind).mkdir()
        for key in loose:
            shutil.copyfile(self._loose(key), ledger / self.kind / self._loose(key).name)

    # -- joining ---------------------------------------------------------------------------------

    def write_joined(self, tables: Iterable[tuple[str, pa.Table]]) -> "Joining":
        """A durable file that is not yet named: one row group a table.

        Raises:
            LedgerError: the disk refused; nothing is left behind.
        """
        path = self._unfinished()
        digests: dict[str, str] = {}
        try:
            _write_groups(path, tables, digests)
            written = _JoinedFile(path, footer=None)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise write_error(path, error) from error
        for group, attempt_id in enumerate(digests):
            digests[attempt_id] = written.digest_of(group)
        return Joining(path=path, file=written, digests=digests)

    def name_joined(self, joining: "Joining", history: History) -> str:
        """Give a joined file its name, durably, with a number that no file of this kind ever had.

        The caller holds the journal's lock and must append the event at once.
        """
        names = {*history.footers, *(path.name for path in self._numbered())}
        numbers = (re.fullmatch(rf"{self.kind}-([0-9]+)\.parquet", name) for name in names)
        last = max((int(number[1]) for number in numbers if number), default=0)
        file = f"{self.kind}-{last + 1}.parquet"
        try:
            joining.path.replace(self._ledger / file)
            sync_directory(self._ledger)
        except OSError as error:
            raise write_error(self._ledger / file, error) from error
        return file

    def remove_unfinished(self) -> None:
        _remove(self._unfinished())

    def _unfinished(self) -> Path:
        return self._ledger / f"{self.kind}.joining"

    # -- order -----------------------------------------------------------------------------------

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.folder, error) from error

    def any_table(self) -> bool:
        return any(self.folder.glob("*.parquet")) or any(self._numbered())

    def tidy(self, history: History) -> list[Path]:
        """Remove files that are also kept elsewhere; set aside tables that no event names.

        Removes half-written files, and loose tables that a joined file contains. The caller holds
        the journal's lock. Returns the new paths of tables that were set aside.
        """
        places = history.places[self.kind]
        in_use = {place.file for place in places.values()}
        kept = {file for file in in_use if (self._ledger / file).exists()}
        spare, unknown = list(self.folder.glob("*.parquet.tmp")), []
        for path in self.folder.glob("*.parquet"):
            place = places.get(path.stem)
            if place is not None and place.file in kept:
                spare.append(path)
            elif path.stem not in history.rows:
                unknown.append(path)
        for path in self._numbered():
            if path.name not in history.footers:
                unknown.append(path)
            elif path.name not in in_use and kept == in_use:
                spare.append(path)
        for path in spare:
            _remove(path)
        return [self._set_aside(path) for path in unknown]

    def _numbered(self) -> Iterator[Path]:
        return self._ledger.glob(f"{self.kind}-[0-9]*.parquet")

    def _set_aside(self, path: Path) -> Path:
        folder = self._ledger / "set-aside"
        number = 1
        while (target := folder / f"{self.kind}-{path.stem}.{number}.parquet").exists():
            number += 1
        try:
            folder.mkdir(exist_ok=True)
            path.rename(target)
        except OSError as error:
            raise write_error(target, error) from error
        return target


class Joining:
    """A joined file that no event names yet."""

    def __init__(self, *, path: Path, file: "_JoinedFile", digests: Mapping[str, str]) -> None:
        self.path = path
        self.footer = file.footer_digest
        self.digests = dict(digests)
        """Digests of the row groups, in order, by attempt."""
        self._file = file

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """The tables read back from disk, by attempt."""
        for group, (attempt_id, digest) in enumerate(self.digests.items()):
            place = Place(file=self.path.name, group=group, sha256=digest)
            yield attempt_id, self._file.read(place)


class _JoinedFile:
    """A joined file: row groups from the first byte after the magic to the footer."""

    def __init__(self, path: Path, *, footer: str | None) -> None:
        """
        Args:
            footer: the SHA-256 that the footer must have; None while the file has no event.
        """
        self._path = path
        self._file = path.open("rb")
        self.footer_digest = self._digest(*self._footer())
        if footer is not None and footer != self.footer_digest:
            raise self._damaged("footer")
        self._parquet = pq.ParquetFile(self._file)
        self._starts = [len(_MAGIC)]
        metadata = self._parquet.metadata
        for group in range(metadata.num_row_groups):
            columns = metadata.row_group(group)
            sizes = (columns.column(i).total_compressed_size for i in range(columns.num_columns))
            self._starts.append(self._starts[-1] + sum(sizes))
        if self._starts[-1] != self._footer()[0]:
            raise self._damaged("layout")

    @property
    def schema(self) -> pa.Schema:
        """The schema that the tables had before they were joined."""
        schema = self._parquet.schema_arrow
        return schema.remove(schema.get_field_index(_OWNER))

    def digest_of(self, group: int) -> str:
        return self._digest(self._starts[group], self._starts[group + 1])

    def check(self, place: Place) -> None:
        if self.digest_of(place.group) != place.sha256:
            raise self._damaged(f"row group {place.group}")

    def read(self, place: Place) -> pa.Table:
        self.check(place)
        table = self._parquet.read_row_group(place.group, use_threads=False)
        return table.drop_columns(_OWNER)

    def _footer(self) -> tuple[int, int]:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(os.pread(self._file.fileno(), 4, max(0, size - 8)), "little")
        return max(0, size - 8 - length), size

    def _digest(self, start: int, end: int) -> str:
        data = os.pread(self._file.fileno(), end - start, start)
        return hashlib.sha256(data).hexdigest()

    def _damaged(self, what: str) -> LedgerError:
        return LedgerError(
            f"{self._path}: the {what} is damaged (its SHA-256 is not the recorded one)"
        )


def schema_key(schema: pa.Schema) -> str:
    """A key that tables share if they can be joined: the same columns, types and pandas types."""
    pandas = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    return f"{schema.remove_metadata()}{pandas.get('columns')}{pandas.get('column_indexes')}"


def _write_groups(
    path: Path, tables: Iterable[tuple[str, pa.Table]], digests: dict[str, str]
) -> None:
    """Write one row group a table."""
    writer: pq.ParquetWriter | None = None
    with path.open("wb") as file:
        for attempt_id, table in tables:
            owner = pa.array([attempt_id] * len(table), pa.string())
            owned = table.add_column(0, _OWNER, owner)
            if writer is None:
                schema = owned.schema
                writer = pq.ParquetWriter(file, schema, **_FORMAT)
            writer.write_table(owned.replace_schema_metadata(schema.metadata), len(owned) or 1)
            digests[attempt_id] = ""
        assert writer is not None
        writer.close()
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
