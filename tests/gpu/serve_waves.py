"""Serves waves of prompts with one real engine: a JSON job in, JSON results out.

    python serve_waves.py JOB.json RESULT.json

A wave is submitted as a whole when the one before it has ended, so every organization schedules
the same steps as long as everything fits. A job without settings is served by stock vLLM.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the table is looked at below

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from hsexp.engine import paged
from hsexp.engine.settings import EngineSettings

OUTPUT_TOKENS = 24


def engine_of(job: dict[str, Any]) -> LLM:
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.3,
    }
    if job["settings"] is not None:
        settings = EngineSettings.parse(job["settings"])
        arguments |= {
            "block_size": settings.layout.kernel_block_size,
            "mamba_block_size": settings.layout.checkpoint_grid,
            "scheduler_cls": "hsexp.engine.scheduler.HybridScheduler",
            "additional_config": settings.additional_config(),
        }
    return LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        enforce_eager=job["eager"],
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        async_scheduling=False,
        seed=0,
        **arguments | job.get("arguments", {}),
    )


class Watch:
    """What the scheduler does, and how much its memory went through."""

    def __init__(self, engine: LLM) -> None:
        scheduler: Any = engine.llm_engine.engine_core.engine_core.scheduler
        self._memory = getattr(scheduler.kv_cache_manager, "memory", None)
        self._steps: list[dict[str, int]] = []
        self._first = 0
        schedule = scheduler.schedule

        def logged(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._steps.append(
                {key.rpartition("-")[0]: n for key, n in output.num_scheduled_tokens.items()}
            )
            return output

        scheduler.schedule = logged

    def wave(self) -> dict[str, Any]:
        """Of the wave that has just ended."""
        steps, self._steps = self._steps, []
        counters = None if self._memory is None else asdict(self._memory.cache.counters)
        return {"schedule": steps, "counters": counters}


def serve(engine: LLM, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    given = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
    outputs = []
    for request in engine.generate(given, sampling, use_tqdm=False):
        completion = request.outputs[0]
        outputs.append(
            {
                "cached": request.num_cached_tokens,
                "tokens": list(completion.token_ids),
                "logprobs": [
                    {str(token): entry.logprob for token, entry in position.items()}
                    for position in completion.logprobs
                ],
            }
        )
    return outputs


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    engine = engine_of(job)
    watch = Watch(engine)
    lengths = job.get("max_tokens", [OUTPUT_TOKENS] * len(job["waves"]))
    waves = [
        {"outputs": serve(engine, wave, max_tokens)} | watch.wave()
        for wave, max_tokens in zip(job["waves"], lengths, strict=True)
    ]
    table = paged.table()
    result = {
        "outputs": [output for wave in waves for output in wave["outputs"]],
        "waves": waves,
        "kernel_path": None if table is None else table.ops.name,
    }
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the extension modules' teardown is slow and noisy
