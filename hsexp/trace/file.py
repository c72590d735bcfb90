"""The trace of a running engine as a file: an Arrow stream that grows by batches.

A killed engine leaves a stream without the end record, or with half a batch: reading it is an
error. A full disk loses batches and counts them; the end record, if it can be written at all, has
the counts.
"""

from contextlib import suppress
from io import BytesIO
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
        self._buffer = BytesIO()
        self._stream = pa.ipc.new_stream(self._buffer, SCHEMA)
        self._file = path.open("wb", buffering=0)
        self._length = 0
        """Bytes of whole batches; a batch that only fits in part is cut off again."""
        self.dropped = 0
        self.write_errors = 0
        # The stream's head goes first, so that no lost batch takes it along.
        self._stream.write_batch(pa.RecordBatch.from_pylist([], schema=SCHEMA))
        self._append()

    def write(self, table: pa.Table) -> None:
        self._stream.write_table(table)
        try:
            self._append()
        except OSError:
            self.write_errors += 1
            self.dropped += len(table)

    def close(self, last: pa.Table) -> None:
        """Write the table that has the end record, and end the stream."""
        self._stream.write_table(last)
        self._stream.close()
        with suppress(OSError):  # without its end the file is no trace
            self._append()
        self._file.close()

    def _append(self) -> None:
        """Move what the stream has written to the file, all of it or nothing.

        Raises:
            OSError: the disk refuses.
        """
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            written = 0
            while written < len(data):
                written += self._file.write(memoryview(data)[written:])
        except OSError:
            with suppress(OSError):  # what cannot be cut off tears the stream
                self._file.truncate(self._length)
                self._file.seek(self._length)
            raise
        self._length += len(data)


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
