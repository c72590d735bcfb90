"""Runs requests through one real vLLM engine in its own process: a JSON job in, JSON results out.

    python engine_run.py JOB.json RESULT.json

A job names the model folder, dtype, an organization's settings (or none for stock vLLM) and the
requests with the engine step at which each is added and, for some, the step at which it is aborted.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    engine = build_engine(job)
    result = run(engine, job)
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)  # the extension modules' teardown is slow and noisy


def build_engine(job: dict[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine

    from hsexp.engine.settings import EngineSettings

    arguments: dict[str, Any] = {"block_size": job.get("block_size", 512)}
    if job["settings"] is not None:
        settings = EngineSettings.parse(job["settings"])
        arguments = {
            "block_size": settings.layout.block_size,
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
            enforce_eager=True,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            async_scheduling=False,
            seed=0,
            **arguments,
        )
    )


def run(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    requests = sorted(job["requests"], key=lambda request: request["add_at"])
    outputs: dict[str, Any] = {}
    step, memory = 0, _memory(engine)
    poison = _Poison(engine, memory) if job.get("poison") and memory is not None else None
    while requests or engine.has_unfinished_requests():
        while requests and requests[0]["add_at"] <= step:
            request = requests.pop(0)
            engine.add_request(
                request["id"],
                {"prompt_token_ids": request["prompt"]},
                SamplingParams(
                    temperature=0,
                    max_tokens=request["max_tokens"],
                    ignore_eos=True,
                    logprobs=2,
                ),
            )
        gone = [r["id"] for r in job["requests"] if r.get("abort_at") == step]
        if gone:
            engine.abort_request(gone)
        for output in engine.step():
            if output.finished:
                outputs[output.request_id] = _plain(output)
        if poison is not None:
            poison.wipe()
        if memory is not None and step % 10 == 0:
            memory.check_integrity()
        step += 1
    return {"outputs": outputs, "steps": step, "memory": _state_of(memory)}


def _plain(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "cached": output.num_cached_tokens,
        "tokens": list(completion.token_ids),
        "logprobs": [
            {str(token): entry.logprob for token, entry in step.items()}
            for step in completion.logprobs
        ],
    }


def _memory(engine: Any) -> Any:
    manager = engine.engine_core.engine_core.scheduler.kv_cache_manager
    return getattr(manager, "memory", None)


def _state_of(memory: Any) -> dict[str, Any] | None:
    if memory is None:
        return None
    from dataclasses import asdict

    memory.check_integrity()
    return {
        "counters": asdict(memory.counters),
        "live": len(memory.sequences),
        "free": [pool.num_free for pool in memory.pools],
        "usable": [pool.spec.num_usable for pool in memory.pools],
    }


class _Poison:
    """Overwrites pages that hold nothing, neither referenced nor cached, with NaN."""

    def __init__(self, engine: Any, memory: Any) -> None:
        import torch

        self._nan = float("nan")
        self._memory = memory
        runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        context = runner.compilation_config.static_forward_context
        self._raw: list[list[Any]] = [[], []]
        shared = len(memory.pools) == 1
        for layer in context.values():
            caches = layer.kv_cache
            mamba = isinstance(caches, tuple)
            first = caches[0] if mamba else caches
            storage = torch.empty(0, dtype=first.dtype).set_(first.untyped_storage())
            self._raw[0 if shared or not mamba else 1].append(storage)

    def wipe(self) -> None:
        for pool, storages in zip(self._memory.pools, self._raw, strict=False):
            empty = [page for page in pool.queue if pool.entries[page] is None]
            for storage in storages:
                pages = storage.view(pool.spec.num_pages, -1)
                pages[empty] = self._nan


if __name__ == "__main__":
    main(*sys.argv[1:])
