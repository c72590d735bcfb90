"""python tests/gpu/phase_engines.py [--tiny] --out DIR FACTS.json

Phase 3: stock vLLM, S0, S1, S2 and D0 with decode graphs, and S2 eager, serve the same waves:
shared prefixes, prompts of one token, then more than the pools hold, so that they evict and
preempt. Where schedules are the same, bits have to be; else tokens.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import said

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "engine")]

from compare_waves import compare  # noqa: E402

ENGINES = {
    "stock": (None, False),
    "s0": ("s0", False),
    "s1": ("s1", False),
    "s2": ("s2", False),
    "d0": ("d0", False),
    "s2 eager": ("s2", True),
}
"""Organization, and whether it runs without graphs."""

ROOMY = (0, 1, 2, 3)
"""Waves that every organization holds whole, so that all have one schedule."""

GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""Nothing is compiled: a compiler may add up in another order, and takes a minute."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything."""

    block: int
    budget_bytes: int
    slot_bytes: int
    num_tight: int
    """Requests of the last wave."""
    tight_tokens: int
    max_tokens: int
    """Of a request."""
    dtype: str
    graphs: bool
    cap: int = 24
    engine_s: float = 60.0
    """Longest time for one engine."""


FULL = Sizes(
    block=512,
    budget_bytes=60_000_000,
    slot_bytes=32768,
    num_tight=24,
    tight_tokens=1100,
    max_tokens=4096,
    dtype="bfloat16",
    graphs=True,
)
"""Two layers with Falcon-H1-7B's states: a pool of about 110 pages of 512 KiB."""
TINY = Sizes(
    block=32,
    budget_bytes=72 * 16384,
    slot_bytes=4096,
    num_tight=12,
    tight_tokens=60,
    max_tokens=256,
    dtype="float32",
    graphs=False,
    cap=12,
    engine_s=200.0,
)


def waves_of(sizes: Sizes, vocabulary: int) -> tuple[list[list[list[int]]], list[int]]:
    """Prompts by wave, and the tokens that each is answered with.

    The first three waves share a block of tokens; two requests cross a boundary while they decode.
    """
    rng, block = random.Random(3), sizes.block

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    shared = tokens(block)
    near = block - 12
    suffixes = [20, 29, 38, near, near + 5, 56, 65, 74]
    prompts = [shared + tokens(suffix) for suffix in suffixes]
    contexts = [tokens(2 * block) for _ in range(3)]
    tight = [contexts[i % 3] + tokens(20 + 7 * i % 50) for i in range(sizes.num_tight)]
    single = [tokens(1) for _ in range(4)]
    waves = [prompts[:1], prompts[1:3], prompts[3:], single, tight]
    return waves, [24, 24, 24, 24, sizes.tight_tokens]


def settings_of(sizes: Sizes, organization: str) -> dict[str, Any]:
    """The settings of an organization, as a job carries them."""
    from engine_process import settings

    return settings(
        model_of(sizes),
        organization,
        sizes.budget_bytes,
        block_size=sizes.block,
        slot_bytes=sizes.slot_bytes,
        cap=sizes.cap,
        keep_idle_slabs=True,  # S2 may lose one early, and then has another schedule than S0
    )


def model_of(sizes: Sizes) -> Any:
    """The shape that is served: two layers."""
    from small_models import tiny

    from hsexp.config.catalog import read_option
    from hsexp.memory.geometry import ModelConfig

    if sizes is TINY:
        return tiny(4)
    shape = read_option("model", "falcon_h1_7b")
    return ModelConfig.parse(shape | {"num_attention_layers": 2, "num_recurrent_layers": 2})


def jobs(sizes: Sizes, folder: Path) -> dict[str, dict[str, Any]]:
    """A job for `serve_waves.py` by engine."""
    from small_models import VOCABULARY, save_model

    waves, max_tokens = waves_of(sizes, VOCABULARY)
    common = {
        "model": save_model(folder / "model", model_of(sizes), dtype=sizes.dtype),
        "waves": waves,
        "max_tokens": max_tokens,
    }
    found = {}
    for name, (organization, is_eager) in ENGINES.items():
        without_graphs = is_eager or not sizes.graphs
        arguments: dict[str, Any] = {
            "dtype": sizes.dtype,
            "max_num_seqs": sizes.cap,
            "max_model_len": sizes.max_tokens,
        }
        if not without_graphs:
            arguments["compilation_config"] = GRAPHS
        found[name] = common | {
            "eager": without_graphs,
            "arguments": arguments,
            "settings": None if organization is None else settings_of(sizes, organization),
        }
    return found


def serve(
    name: str, job: dict[str, Any], folder: Path, limit_s: float
) -> tuple[dict[str, Any] | None, str | None]:
    """One engine in a process of its own: its result, or what is wrong."""
    stem = name.replace(" ", "-")
    source, target = folder / f"{stem}.job.json", folder / f"{stem}.json"
    source.write_text(json.dumps(job), encoding="utf-8")
    log = folder / f"{stem}.log"
    with log.open("w", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / "serve_waves.py"), str(source), str(target)],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"{name}: not done within {limit_s:.0f} s"
    if done.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-600:].strip()
        return None, f"{name}: exit status {done.returncode}: {tail}"
    result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result, None


def judge(results: dict[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The comparisons of those engines that have served, and all faults."""
    last = len(ROOMY)
    pairs = [
        ("s1", "s0", ROOMY),
        ("s2", "s0", ROOMY),
        ("s2 eager", "s2", (*ROOMY, last)),  # one organization: one schedule also under pressure
        ("d0", "s0", ()),
        ("s0", "stock", ()),
    ]
    comparisons = [
        compare(f"{ours} as {theirs}", results[ours], results[theirs], bits_in=waves)
        for ours, theirs, waves in pairs
        if ours in results and theirs in results
    ]
    faults = [f"{each.what}: {each.faults[0]}" for each in comparisons if each.faults]
    for name, result in results.items():
        if name == "stock":
            continue
        counters = result["waves"][-1]["counters"]
        if not counters["preemptions"]:
            faults.append(f"{name}: nothing was preempted")
        if not counters["lost_checkpoints"] + counters["lost_blocks"]:
            faults.append(f"{name}: nothing was evicted")
    for name in ("s1", "s2", "s2 eager"):
        if name in results and results[name]["kernel_path"] is None:
            faults.append(f"{name}: its states are not paged")
    return [asdict(each) for each in comparisons], faults


def main(arguments: Sequence[str]) -> int:
    given = said.arguments(__doc__, arguments)
    folder = given.out / "engines"
    folder.mkdir(parents=True, exist_ok=True)
    reason = _missing(given.tiny)
    if reason is not None:
        return said.skip(given.facts, reason)
    results: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {}
    sizes = TINY if given.tiny else FULL
    for name, job in jobs(sizes, folder).items():
        start = time.monotonic()
        result, fault = serve(name, job, folder, sizes.engine_s)
        seconds[name] = round(time.monotonic() - start, 1)
        if result is not None:
            results[name] = result
        faults += [] if fault is None else [fault]
        comparisons, differences = judge(results)
        facts = {
            "served": list(results),
            "seconds": seconds,
            "comparisons": comparisons,
            "kernel_paths": {name: each["kernel_path"] for name, each in results.items()},
            "counters": {name: each["waves"][-1]["counters"] for name, each in results.items()},
        }
        # Already now: a phase that is killed at its deadline has said what it had found.
        said.end(given.facts, facts, faults=[*faults, *differences])
    return said.end(given.facts, facts, faults=[*faults, *differences])


def _missing(tiny: bool) -> str | None:
    try:
        import torch
        import vllm  # noqa: F401
    except ImportError as error:
        return f"vLLM cannot be imported: {error}"
    return None if tiny or torch.cuda.is_available() else "there is no CUDA device"


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    sys.exit(main(sys.argv[1:]))
