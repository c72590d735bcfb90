"""The advised arm and two others on real vLLM: a launch of the advice at the scale of the CPU."""

import json
from pathlib import Path

import commands

from hsexp.ledger import Ledger

ARMS = {
    "s2": "{organization: s2}",
    "d0": "{organization: d0}",
    "s2_hit": "{organization: s2, waiting: hit_first}",
}
"""An arm with a policy beside two without."""


def write_trace(path: Path, rows: int) -> None:
    """Prompts of 1,100 tokens that begin with the same two blocks of 512."""
    lines = (
        {"timestamp": 200 * i, "input_length": 1100, "output_length": 6, "hash_ids": [1, 2, 10 + i]}
        for i in range(rows)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def test_advice_runs_its_grid_on_vllm_and_ends_in_the_same_files(tmp_path: Path) -> None:
    write_trace(tmp_path / "requests.jsonl", 8)
    block = "scale.campaigns.advise.grid.arms"
    done = commands.run(
        "campaign=advise",
        "engine=vllm",
        "engine.transport=inproc",
        "engine.num_warmup_requests=1",
        "device=cpu",
        "model=falcon_h1_mini",
        "workload.path=requests.jsonl",
        *(f"~{block}.{name}" for name in ("s0", "d0_hit", "s2_p", "s3_p")),
        cwd=tmp_path,
        env=commands.environment(XDG_CACHE_HOME=str(tmp_path)),  # the lock of real runs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    frame = Ledger.read(tmp_path / "ledgers/advise/vllm").frame()
    assert len(frame) == len(ARMS)
    assert set(frame["num_finished"]) == {8}
    found = json.loads((tmp_path / "ledgers/advise/vllm/analysis/advise.json").read_text())
    assert found["data_kind"] == "measured"
    assert found["sentences"][1].startswith("How it depends on budget and device was not run")
    assert found["serve"].startswith("vllm serve falcon_h1_mini ")
