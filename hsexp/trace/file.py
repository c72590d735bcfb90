"""The trace of a running engine as a file: an Arrow stream that grows by batches.

A killed engine leaves a stream without the end record, or with half a batch: reading it is an
error. A full disk loses batches and counts them; the end record, if it can be written at all, has
the counts.
"""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from hsexp.trace.schema import SCHEMA, TraceError


class TraceFile:
    """Writes tables of `SCHEMA`. A failed write loses its events, never the serving (`Sink`)."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the file cannot be created.
        """
        self._file = path.open("wb")
        self._stream = pa.ipc.new_stream(self._file, SCHEMA)
        self.dropped = 0
        self.write_errors = 0

    def write(self, table: pa.Table) -> None:
        try:
            self._stream.write_table(table)
            self._file.flush()
        except OSError:
            self.write_errors += 1
            self.dropped += len(table)

    def close(self) -> None:
        """End the stream. Its last table has the end record."""
        with suppress(OSError):
            self._stream.close()
            self._file.close()


def read_trace_file(path: Path) -> pa.Table:
    """The events of a file, unverified (`Trace`).

    Raises:
        TraceError: there is none, or it is torn.
    """
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all()
    except FileNotFoundError:
        raise TraceError(f"{path.name}: the engine has written no trace") from None
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path.name}: the trace is torn: {error}") from None
