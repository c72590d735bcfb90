"""python digest_of_runs.py ORGANIZATION... : runs one cell each, prints a digest of its tables."""

import hashlib
import sys

from toy_engine import falcon_memory, falcon_workload, play_falcon


def digest_of_run(organization: str, seed: int = 7) -> str:
    """SHA-256 over every cell of both tables (floats to the last bit) and the counters."""
    memory = falcon_memory(organization, "b63", headroom=0.1, retention="k2", pinning="k1")
    record = play_falcon(falcon_workload(seed, num_requests=120), memory)
    sha = hashlib.sha256()
    for table in (record.requests, record.steps):
        for name, column in table.items():
            sha.update(f"{name} {[repr(value) for value in column.tolist()]}".encode())
    sha.update(repr(record.counters).encode())
    return sha.hexdigest()


if __name__ == "__main__":
    for organization in sys.argv[1:]:
        print(organization, digest_of_run(organization))  # noqa: T201 - its output is its result
