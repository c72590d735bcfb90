"""Runs requests through real vLLM engines in a process of its own: JSON jobs in, JSON results out.

    python engine_run.py JOB.json RESULT.json    one job
    python engine_run.py                         a line "JOB.json RESULT.json" for each job

A job names the model folder, dtype, an organization's settings (or none for stock vLLM) and the
requests with the engine step at which each is added. Some are cancelled: at a step, or as soon as
they are in a given phase. All can be served in several rounds with a fresh cache. Loading vLLM
takes seconds and an engine of a small model a tenth of one, so many jobs share a process, each with
an engine of its own.
"""

import gc
import json
import os
import sys
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

# vLLM lets the collector go through all objects six times an engine, which takes longer than these
# engines do. Here it sees what came after the first engine.
_freeze, gc.freeze, gc.unfreeze = gc.freeze, lambda: None, lambda: None


def main(*paths: str) -> None:
    if paths:
        _answer(*paths)
    else:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # vLLM may print
        for line in sys.stdin:
            try:
                _answer(*line.split())
                print("done", file=answers, flush=True)
            except Exception:
                traceback.print_exc()
                print("failed", file=answers, flush=True)
    sys.stderr.flush()
    os._exit(0)  # the extension modules' teardown is slow and noisy


def _answer(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    engine = build_engine(job)
    try:
        first, *others = [run(engine, job) for _ in range(job.get("rounds", 1))]
    finally:
        engine.engine_core.shutdown()
        del engine
        gc.collect()
        _freeze()
    result = first | {"repeated": [other["outputs"] for other in others]}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def build_engine(job: dict[str, Any]) -> Any:
    from served_configs import load_here
    from vllm import EngineArgs, LLMEngine

    from hsexp.engine.settings import EngineSettings

    load_here(_architecture(job["model"]))
    arguments: dict[str, Any] = {"block_size": job.get("block_size", 512)}
    if job["settings"] is not None:
        settings = EngineSettings.parse(job["settings"])
        arguments = {
            "block_size": settings.layout.kernel_block_size,
            "mamba_block_size": settings.layout.checkpoint_grid,
            "scheduler_cls": "hsexp.engine.scheduler.HybridScheduler",
            "additional_config": settings.additional_config(),
        }
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=job["model"],
            skip_tokenizer_init=True,
            dtype=job["dtype"],
            max_model_len=job["max_model_len"],
            max_num_seqs=job["cap"],
            max_num_batched_tokens=job["token_budget"],
            scheduling_policy=job.get("policy", "fcfs"),
            enforce_eager=True,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            async_scheduling=False,
            seed=0,
            **arguments,
            **job.get("arguments", {}),
        )
    )


def _architecture(model: str) -> str:
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    return str(config["architectures"][0])


def run(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Add, step, cancel, until all is done. The first `in_turn` requests are served one by one.

    With the core in another process there are outputs alone: nobody can look at the memory.
    """
    core = getattr(engine.engine_core, "engine_core", None)
    watch = None if core is None else _Watch(core, poison=bool(job.get("poison")))
    requests = sorted(job["requests"], key=lambda request: request["add_at"])
    outputs: dict[str, Any] = {}
    cancelled: dict[str, str] = {}
    step = 0
    while requests or engine.has_unfinished_requests():
        while requests and requests[0]["add_at"] <= step:
            num_added = len(job["requests"]) - len(requests)
            if num_added <= job.get("in_turn", -1) and engine.has_unfinished_requests():
                break
            _add(engine, requests.pop(0))
        for request in job["requests"]:
            phase = request.get("cancel")
            if phase is None or request["id"] in cancelled:
                continue
            if phase == step or (watch is not None and watch.phase(request["id"]) == phase):
                cancelled[request["id"]] = str(phase)
                engine.abort_request([request["id"]])
        for output in engine.step():
            _note(outputs, output)
        if watch is not None:
            watch.after_step(step)
        step += 1
    result = {"outputs": outputs, "cancelled": cancelled, "steps": step}
    return result if watch is None else result | watch.result(engine)


def _add(engine: Any, request: dict[str, Any]) -> None:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": request["prompt"]}
    if "salt" in request:
        prompt["cache_salt"] = request["salt"]
    engine.add_request(
        request["id"],
        prompt,
        SamplingParams(
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            logprobs=2,
            **({"temperature": 0} | request.get("sampling", {})),
        ),
        priority=request.get("priority", 0),
    )


def _note(outputs: dict[str, Any], output: Any) -> None:
    """Keep the latest of a request; several samples come one by one."""
    plain = outputs.setdefault(output.request_id, {"samples": {}})
    for completion in output.outputs:
        plain["samples"][str(completion.index)] = list(completion.token_ids)
    first = output.outputs[0]
    plain |= {
        "finished": output.finished,
        "cached": output.num_cached_tokens,
        "tokens": list(first.token_ids),
        "logprobs": _logprobs(first.logprobs),
    }
    if output.prompt_logprobs is not None:
        plain["prompt_logprobs"] = _logprobs(output.prompt_logprobs[1:])


def _logprobs(positions: Any) -> list[dict[str, float]]:
    return [
        {str(token): entry.logprob for token, entry in position.items()} for position in positions
    ]


class _Watch:
    """Looks into an engine core of this process: its schedule, and what its memory goes through."""

    def __init__(self, core: Any, *, poison: bool) -> None:
        self._scheduler = core.scheduler
        self._memory = getattr(core.scheduler.kv_cache_manager, "memory", None)
        self._poison = _Poison(core, self._memory) if poison and self._memory else None
        self._schedule: list[dict[str, int]] = []
        self._slabs: Counter[str] = Counter()
        schedule = self._scheduler.schedule

        def logged(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            scheduled = output.num_scheduled_tokens.items()
            self._schedule.append({_own_id(key): count for key, count in scheduled})
            return output

        self._scheduler.schedule = logged
        if self._memory is not None and hasattr(self._memory.cache.states, "slabs"):
            self._watch_slabs(self._memory.cache.states)

    def _watch_slabs(self, states: Any) -> None:
        """Count what happens in a slab while another of its slots belongs to a running request."""
        forget, allocate = states.forget, states.allocate
        used: set[tuple[int, int]] = set()

        def forget_one(checkpoint: Any) -> None:
            if checkpoint.refs == 0 and checkpoint.slab.num_active:
                self._slabs["lost_beside_live"] += 1
            forget(checkpoint)

        def allocate_one() -> Any:
            checkpoint = allocate()
            place = checkpoint.slab.serial, checkpoint.slot
            if place in used and checkpoint.slab.num_active > 1:
                self._slabs["reused_beside_live"] += 1
            used.add(place)
            return checkpoint

        states.forget, states.allocate = forget_one, allocate_one

    def phase(self, own_id: str) -> str | None:
        """Where a request is; None before it came and after it ended."""
        for key, request in self._scheduler.requests.items():
            if _own_id(key) != own_id:
                continue
            if request.status.name != "RUNNING":
                return request.status.name.lower()
            if request.num_computed_tokens < request.num_prompt_tokens:
                return "prefill"
            return "decode" if request.num_output_tokens > 2 else None
        return None

    def after_step(self, step: int) -> None:
        if self._poison is not None:
            self._poison.wipe()
        if self._memory is not None and step % 10 == 0:
            self._memory.check_integrity()

    def result(self, engine: Any) -> dict[str, Any]:
        """What was seen. The end: pages are given back."""
        found: dict[str, Any] = {"schedule": self._schedule, "slabs": dict(self._slabs)}
        memory = self._memory
        if memory is None:
            return found
        memory.check_integrity()
        found["memory"] = {
            "counters": asdict(memory.cache.counters),
            "live": len(memory.cache.sequences) + memory.pinning.num_pins,
            "free": [pool.num_free for pool in memory.cache.pools],
            "usable": [pool.spec.num_usable for pool in memory.cache.pools],
            "copies": dict(memory.branching.copies.num_done),
        }
        if self._poison is not None:
            found["poisoned"] = dict(self._poison.counts)
            self._poison = None
        assert engine.reset_prefix_cache()
        found["left"] = [
            len(memory.cache.block_index),
            len(memory.cache.checkpoint_index),
            memory.cache.states.slots()[0],
        ]
        return found


def _own_id(request_id: str) -> str:
    """The id that a request was added with; vLLM appends a random part."""
    return request_id.rsplit("-", 1)[0]


class _Poison:
    """Overwrites what holds nothing, neither referenced nor cached, with NaN: pages, and slots of
    slabs whose other slots are in use, those of tails too."""

    def __init__(self, core: Any, memory: Any) -> None:
        import torch

        self.counts: Counter[str] = Counter()
        self._memory = memory
        runner = core.model_executor.driver_worker.worker.model_runner
        shared = len(memory.cache.pools) == 1
        storages: list[dict[int, Any]] = [{}, {}]
        self._lines: list[Any] = []
        for layer in runner.compilation_config.static_forward_context.values():
            caches = getattr(layer, "kv_cache", None)
            if caches is None:
                continue  # experts
            is_mamba = isinstance(caches, tuple)
            first = caches[0] if is_mamba else caches
            storage = torch.empty(0, dtype=first.dtype).set_(first.untyped_storage())
            storages[0 if shared or not is_mamba else 1][storage.data_ptr()] = storage
            if is_mamba:
                self._lines.append(first)
        self._storages = [list(of_pool.values()) for of_pool in storages]

    def wipe(self) -> None:
        for pool, storages in zip(self._memory.cache.pools, self._storages, strict=False):
            empty = [page for page in pool.free_pages() if pool.entries[page] is None]
            self.counts["pages"] += len(empty)
            for storage in storages:
                storage.view(pool.spec.num_pages, -1)[empty] = float("nan")
        self._wipe_tails()
        lines = [
            slab.page * slab.num_slots + slot
            for slab in getattr(self._memory.cache.states, "slabs", {}).values()
            for slot, state in enumerate(slab.slots)
            if state is None
        ]
        if lines:
            self.counts["slots"] += len(lines)
            for conv_lines in self._lines:
                conv_lines[lines] = float("nan")

    def _wipe_tails(self) -> None:
        attention = self._memory.cache.attention
        if not hasattr(attention, "free_slots"):
            return
        num_slots = attention.num_slots
        ids = [
            page * num_slots + slot
            for page, mask in attention.free_slots().items()
            for slot in range(num_slots)
            if mask >> slot & 1
        ]
        self.counts["tail slots"] += len(ids)
        num_pages = self._memory.cache.pools[0].spec.num_pages
        for storage in self._storages[0]:
            storage.view(num_pages * num_slots, -1)[ids] = float("nan")


if __name__ == "__main__":
    main(*sys.argv[1:])
