"""A process that serves jobs with real vLLM engines (`engine_run.py`), started on demand."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelShape

RUN = Path(__file__).parent / "engine_run.py"


class EngineProcess:
    """One process for many engines, one after the other: vLLM is loaded once."""

    def __init__(self, **environment: str) -> None:
        self._environment = os.environ | environment
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="engines-")
        self._num_jobs = 0

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Serve a job's requests with an engine of its own.

        Raises:
            RuntimeError: the engine did not start or failed; carries what it wrote.
        """
        folder = Path(self._folder.name)
        if self._process is None:
            self._process = self._start(folder)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        source = folder / f"{self._num_jobs}.job.json"
        target = folder / f"{self._num_jobs}.json"
        self._num_jobs += 1
        source.write_text(json.dumps(job), encoding="utf-8")
        process.stdin.write(f"{source} {target}\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if answer != "done":
            if not answer:  # it has died
                self.close()
            raise RuntimeError((folder / "errors").read_text(encoding="utf-8")[-2000:])
        result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return result

    def _start(self, folder: Path) -> "subprocess.Popen[str]":
        with (folder / "errors").open("w", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, str(RUN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
            )

    def close(self) -> None:
        """End the process; the next job starts another."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process = None


def settings(
    model: ModelShape,
    organization: str,
    budget_bytes: int,
    *,
    block_size: int,
    slot_bytes: int | None = None,
    checkpoint_grid: int | None = None,
    headroom: float = 0.0,
    cap: int = 8,
    retention: str = "off",
    pinning: str = "off",
    placement: str = "chunk_ends",
    states: str = "per_boundary",
    keep_idle_slabs: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Settings as a job carries them: an option of `conf/organization` in other sizes.

    Args:
        slot_bytes: None is the smallest power of two.
        checkpoint_grid: tokens; None is one block (D0: what its rule gives).
        keep_idle_slabs: to the tail of the queue. In its own order S2 may lose an idle slab in a
            pool that is nearly empty, where the other organizations lose nothing.
        changes: further fields of the organization.
    """
    layout = read_option("organization", organization)
    if organization != "d0":
        layout |= {"block_size": block_size, "checkpoint_grid": checkpoint_grid or block_size}
    else:
        layout |= {"checkpoint_grid": checkpoint_grid}
        if block_size < 512:
            layout |= {"checkpoint_multiple": block_size}
    if organization in ("s2", "s3"):
        layout |= {"slot_bytes": slot_bytes}
    if keep_idle_slabs:
        layout["release_order"] |= {"idle_slab": "tail"}
    return {
        "model": model.model_dump(mode="json"),
        "organization": layout | changes,
        "budget_bytes": budget_bytes,
        "admission": {"headroom": headroom, "cap": cap},
        "retention": read_option("retention", retention),
        "pinning": read_option("pinning", pinning),
        "placement": read_option("placement", placement),
        "states": read_option("states", states),
    }
