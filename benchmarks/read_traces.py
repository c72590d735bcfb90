"""python benchmarks/read_traces.py [--rows N] [--repeats N]

Reads a trace of 100,000 requests in several formats, and makes its statistics; seconds of CPU time,
best of the repeats. The rows are made up: 60 blocks of 16 tokens a hashed prompt, half of them
shared, and sessions of four turns.
"""

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from hsexp.console import make_console
from hsexp.workload import read_trace
from hsexp.workload.traces.config import TraceColumns, TraceWorkload
from hsexp.workload.traces.statistics import TraceStatistics

T = TypeVar("T")

BLOCKS = 60


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table = Table(title=f"{options.rows:,} requests, s, best of {options.repeats}")
    for column in ("file", "MB", "read", "statistics"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for path, columns in files(Path(folder), options.rows):
            spec = spec_of(path, columns)
            read_s, trace = best(options.repeats, lambda spec=spec: read_trace(spec))
            count_s, statistics = best(
                options.repeats, lambda trace=trace: TraceStatistics.of(trace)
            )
            assert statistics.num_requests == options.rows
            size = path.stat().st_size / 1e6
            table.add_row(path.name, f"{size:.1f}", f"{read_s:.2f}", f"{count_s:.2f}")
    make_console().print(table)


def best(repeats: int, do: Callable[[], T]) -> tuple[float, T]:
    tried = []
    for _ in range(repeats):
        start = time.process_time()
        done = do()
        tried.append(time.process_time() - start)
    return min(tried), done


def files(folder: Path, num_rows: int) -> list[tuple[Path, dict[str, str]]]:
    """Each file, and its columns of other names."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.5, num_rows)).round(3)
    prompts = rng.integers(100, 4_000, num_rows)
    outputs = rng.integers(1, 800, num_rows)
    users = rng.integers(0, num_rows // 4, num_rows)
    columns: dict[str, Any] = {
        "arrival_s": times,
        "input_tokens": prompts,
        "output_tokens": outputs,
        "user": users,
    }
    plain, packed, arrow, hashed = (
        folder / name for name in ("a.csv", "a.csv.gz", "a.parquet", "hashed.jsonl")
    )
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    text = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)])
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    pq.write_table(pa.table(columns), arrow)
    with hashed.open("w") as file:
        for i in range(num_rows):
            shared = int(rng.integers(0, 50)) * BLOCKS
            hashes = [*range(shared, shared + BLOCKS // 2)]
            hashes += range((i + 50) * BLOCKS, (i + 50) * BLOCKS + BLOCKS // 2)
            record = {
                "chat_id": i,
                "parent_chat_id": -1,
                "timestamp": float(times[i]),
                "input_length": 16 * BLOCKS,
                "output_length": int(outputs[i]),
                "hash_ids": hashes,
            }
            file.write(f"{json.dumps(record)}\n")
    session = {"session": "user"}
    return [(plain, {}), (plain, session), (packed, {}), (arrow, {}), (hashed, {})]


def spec_of(path: Path, columns: dict[str, str]) -> TraceWorkload:
    return TraceWorkload(
        kind="trace",
        name="trace",
        path=str(path),
        format="auto",
        max_requests=None,
        tokenizer=None,
        keep_arrivals=True,
        content_digest=None,
        columns=TraceColumns(**columns),
    )


if __name__ == "__main__":
    main()
