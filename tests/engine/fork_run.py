"""Samples and beams through real vLLM engines in a process of its own: a JSON job in, results out.

    python fork_run.py JOB.json RESULT.json

A job names a model folder, engines, and tasks that each engine does, one after the other, each with
an empty cache. An engine forks states ("shared"), forks them and copies every block besides
("copied"), or finds nothing of what others have computed ("separate"). Pages that hold nothing are
filled with NaN after every step.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    results = {}
    try:
        for name, engine in job["engines"].items():
            run = EngineRun(job, engine)
            results[name] = [run.do(job["tasks"][task]) for task in engine["tasks"]]
            run.close()
        Path(result_path).write_text(json.dumps(results), encoding="utf-8")
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)  # the extension modules' teardown is slow and noisy


class EngineRun:
    """One engine, and what can be seen of its steps."""

    def __init__(self, job: dict[str, Any], engine: dict[str, Any]) -> None:
        self.llm = build_llm(job, engine["settings"])
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.memory = core.scheduler.kv_cache_manager.memory
        self.schedule: list[list[int]] = []
        if engine["forks"] == "separate":
            core.scheduler.kv_cache_manager.enable_caching = False
        if engine["forks"] == "copied":
            copy_every_block(self.memory)
        self._log_schedule()
        self._poison_after_steps(core.model_executor.driver_worker.worker.model_runner)

    def _log_schedule(self) -> None:
        stock: Callable[..., Any] = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = stock(*args, **kwargs)
            if output.num_scheduled_tokens:
                self.schedule.append(list(output.num_scheduled_tokens.values()))
            return output

        self.scheduler.schedule = schedule

    def _poison_after_steps(self, runner: Any) -> None:
        from hsexp.engine.copies import Places

        places, memory = Places.of(runner), self.memory
        stock = self.llm.llm_engine.step
        kinds = ("attention", "state")[-len(memory.pools) :]

        def step() -> Any:
            outputs = stock()
            memory.check_integrity()
            for kind, pool in zip(kinds, memory.pools, strict=True):
                empty = [page for page in pool.queue if pool.entries[page] is None]
                for buffer in places.pages[kind]:
                    buffer[empty] = -1  # all bits set is NaN in every float type
            return outputs

        self.llm.llm_engine.step = step

    def do(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self.llm.llm_engine.reset_prefix_cache()
        self.schedule.clear()
        copies, preemptions = dict(self.num_copies), self.memory.counters.preemptions
        kinds = {"n": self.samples, "width": self.beams, "num_drafts": self.speculation}
        outputs = next(kind for field, kind in kinds.items() if field in task)(task)
        return {
            "outputs": outputs,
            "schedule": list(self.schedule),
            "copies": [
                self.num_copies[kind] - copies.get(kind, 0) for kind in ("attention", "state")
            ],
            "preemptions": self.memory.counters.preemptions - preemptions,
            "live": len(self.memory.sequences),
            "held": [pool.spec.num_usable - pool.num_free for pool in self.memory.pools],
        }

    @property
    def num_copies(self) -> Any:
        return self.memory.branching.copies.num_done

    def samples(self, task: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine, outputs = self.llm.llm_engine, {}
        for i, prompt in enumerate(task["prompts"]):
            params = SamplingParams(
                n=task["n"],
                max_tokens=task["max_tokens"],
                ignore_eos=True,
                logprobs=2,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **task["sampling"],
            )
            engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
        step = 0
        while engine.has_unfinished_requests():
            if step == task.get("cancel_at"):
                engine.abort_request([str(i) for i in range(len(task["prompts"]))])
            for output in engine.step():
                if output.finished:
                    outputs[int(output.request_id)] = [
                        {
                            "tokens": list(each.token_ids),
                            "logprobs": [
                                sorted(entry.logprob for entry in position.values())
                                for position in each.logprobs
                            ],
                        }
                        for each in output.outputs
                    ]
            step += 1
        return [outputs.get(i) for i in range(len(task["prompts"]))]

    def beams(self, task: dict[str, Any]) -> Any:
        from vllm.sampling_params import BeamSearchParams

        # Engines share the tokenizer, and vLLM's ranking knows its end token even if it is ignored.
        self.llm.renderer.get_tokenizer().eos_token = f"t{task.get('eos', 2)}"
        found = self.llm.beam_search(
            [{"prompt_token_ids": prompt} for prompt in task["prompts"]],
            BeamSearchParams(
                beam_width=task["width"],
                max_tokens=task["max_tokens"],
                ignore_eos=task.get("eos") is None,
                length_penalty=task.get("length_penalty", 1.0),
            ),
        )
        return [
            [
                {"tokens": beam.tokens[len(prompt) :], "score": beam.cum_logprob}
                for beam in one.sequences
            ]
            for one, prompt in zip(found, task["prompts"], strict=True)
        ]

    def speculation(self, task: dict[str, Any]) -> Any:
        """Passes behind a prompt, with a drafter that knows most of the greedy output."""
        import numpy as np
        from small_models import VOCABULARY

        from hsexp.engine.speculation import EngineDecoder, EngineTarget
        from hsexp.speculation.decoding import SpeculativeDecoder

        target = EngineTarget(
            self.llm.llm_engine, vocabulary=VOCABULARY, temperature=task["temperature"]
        )
        plain = {"prompts": [task["prompt"]], "n": 1, "max_tokens": task["num_tokens"]}
        greedy = self.samples(plain | {"sampling": {"temperature": 0}})[0][0]["tokens"]
        assert self.llm.llm_engine.reset_prefix_cache()
        planned = [token + (place in task["wrong"]) for place, token in enumerate(greedy)]
        drafter = PlannedDrafter(len(task["prompt"]), planned, task["certainty"])
        forks = self.scheduler.kv_cache_manager.forks is not None
        kind = EngineDecoder if forks else SpeculativeDecoder
        decoder = kind(target, drafter, np.random.default_rng(task["seed"]))
        output: list[int] = []
        passes = []
        while len(output) < task["num_tokens"]:
            before = target.num_steps
            left = task["num_tokens"] - len(output)
            made = decoder.run_pass([*task["prompt"], *output], min(task["num_drafts"], left - 1))
            output += made.tokens
            passes.append([made.num_accepted, len(made.drafts), target.num_steps - before])
        return {"greedy": greedy, "tokens": output, "passes": passes}

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


class PlannedDrafter:
    """Says what is planned for a place with some certainty, and else any token."""

    def __init__(self, prompt_length: int, planned: list[int], certainty: float) -> None:
        self.prompt_length = prompt_length
        self.planned = planned
        self.certainty = certainty

    def distribution(self, tokens: Any) -> Any:
        import numpy as np
        from small_models import VOCABULARY

        token = self.planned[len(tokens) - self.prompt_length] % VOCABULARY
        probabilities = np.full(VOCABULARY, (1.0 - self.certainty) / VOCABULARY)
        probabilities[token] += self.certainty
        return probabilities


def build_llm(job: dict[str, Any], settings_data: dict[str, Any]) -> Any:
    from vllm import LLM

    from hsexp.engine.settings import EngineSettings

    settings = EngineSettings.parse(settings_data)
    return LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=256,
        max_num_seqs=settings.admission.cap,
        max_num_batched_tokens=256,
        max_logprobs=512,
        enforce_eager=True,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        async_scheduling=False,
        seed=0,
        block_size=settings.layout.block_size,
        mamba_block_size=settings.layout.checkpoint_grid,
        scheduler_cls="hsexp.engine.scheduler.HybridScheduler",
        additional_config=settings.additional_config(),
    )


def copy_every_block(memory: Any) -> None:
    """Forks share nothing: a child gets copies of all blocks, as it gets one of the state."""
    admit, copies = memory.admit, memory.branching.copies

    def admit_apart(sequence: Any, hit: Any) -> None:
        admit(sequence, hit)
        if hit.tokens % memory.checkpoint_grid:
            for block in range(hit.tokens // memory.block_size):
                copies.list_page(sequence, block, hit.tokens)

    memory.admit = admit_apart


if __name__ == "__main__":
    main(*sys.argv[1:])
