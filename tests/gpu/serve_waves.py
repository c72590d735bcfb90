"""Serves waves of prompts with one real engine on a GPU: a JSON job in, JSON results out.

    python serve_waves.py JOB.json RESULT.json

A wave is submitted as a whole when the one before it has ended, so every organization schedules
the same steps.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the table is looked at below

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from hsexp.engine import paged
from hsexp.engine.settings import EngineSettings


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    settings = EngineSettings.parse(job["settings"])
    engine = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.3,
        enforce_eager=job["eager"],
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        async_scheduling=False,
        seed=0,
        block_size=settings.layout.block_size,
        mamba_block_size=settings.layout.checkpoint_grid,
        scheduler_cls="hsexp.engine.scheduler.HybridScheduler",
        additional_config=settings.additional_config(),
    )
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
    outputs = []
    for wave in job["waves"]:
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in wave]
        for request in engine.generate(prompts, sampling, use_tqdm=False):
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
    table = paged.table()
    result = {"outputs": outputs, "kernel_path": None if table is None else table.ops.name}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
