"""engine_run.py's job on this CPU, with the GPU's kernels in Triton's interpreter.

    TRITON_INTERPRET=1 python interpreted_engine.py JOB.json RESULT.json

The rest of vLLM keeps the placeholders that its CPU build has for Triton.
"""

import json
import os
import sys
from pathlib import Path

import engine_run  # sets vLLM's environment
from triton_on_cpu import disable_triton, enable_triton, repair_interpreter

enable_triton()
repair_interpreter()

from hsexp.engine import paged  # noqa: E402
from hsexp.engine.kernels.fused import FusedOps  # noqa: E402

disable_triton()
paged.ops_for = lambda device: FusedOps()


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    engine = engine_run.build_engine(job)
    result = engine_run.run(engine, job)
    table = paged.table()
    assert table is not None
    result["kernel_path"] = table.ops.name
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)  # the extension modules' teardown is slow and noisy


if __name__ == "__main__":
    main(*sys.argv[1:])
