"""Per-request and per-step tables as Parquet bytes: a worker can encode what it measured."""

from pathlib import Path
from typing import NewType

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

EncodedTable = NewType("EncodedTable", bytes)

_COMPRESSION = "zstd"


def encode_table(frame: pd.DataFrame) -> EncodedTable:
    """Parquet bytes of a frame; its index is left out.

    Raises:
        pyarrow.ArrowException: a column mixes types.
    """
    buffer = pa.BufferOutputStream()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, buffer, compression=_COMPRESSION)
    return EncodedTable(buffer.getvalue().to_pybytes())


def decode_table(path: Path) -> pd.DataFrame:
    """The frame that was encoded into a file."""
    frame: pd.DataFrame = pq.read_table(path, partitioning=None).to_pandas()
    return frame
