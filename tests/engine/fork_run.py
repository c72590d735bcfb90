"""Samples, beams and drafts through real vLLM in a process of its own: a JSON job in, results out.

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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


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
        kinds = ("attention", "state")[-len(memory.cache.pools) :]

        def step() -> Any:
            outputs = stock()
            memory.check_integrity()
            for kind, pool in zip(kinds, memory.cache.pools, strict=True):
                empty = [page for page in pool.free_pages() if pool.entries[page] is None]
                for buffer in places.pages[kind]:
                    buffer[empty] = -1  # all bits set is NaN in every float type
            return outputs

        self.llm.llm_engine.step = step

    def do(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self.llm.llm_engine.reset_prefix_cache()
        self.schedule.clear()
        copies, preemptions = dict(self.num_copies), self.memory.cache.counters.preemptions
        kind: Callable[..., Any] = getattr(self, task["kind"])
        outputs = kind(task)
        return {
            "outputs": outputs,
            "schedule": list(self.schedule),
            "copies": [
                self.num_copies[kind] - copies.get(kind, 0) for kind in ("attention", "state")
            ],
            "preemptions": self.memory.cache.counters.preemptions - preemptions,
            "live": len(self.memory.cache.sequences),
            "held": [pool.spec.num_usable - pool.num_free for pool in self.memory.cache.pools],
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

    def drafts(self, task: dict[str, Any]) -> Any:
        """Speculative decoding, and what each pass took."""
        prompt, num_tokens = task["prompt"], task["num_tokens"]
        greedy = self.greedy(prompt, num_tokens)
        assert self.llm.llm_engine.reset_prefix_cache()
        run_pass = self.decoder(task, PlannedDrafter(prompt, greedy, task["wrong"]))
        output: list[int] = []
        passes = []
        while len(output) < num_tokens:
            self.schedule.clear()
            before = Counter(self.num_copies)
            made = run_pass(
                [*prompt, *output], min(task["num_drafts"], num_tokens - 1 - len(output))
            )
            output += made.tokens
            copies = Counter(self.num_copies) - before
            passes.append(
                {
                    "accepted": made.num_accepted,
                    "drafted": len(made.drafts),
                    "steps": len(self.schedule),
                    "tokens": sum(map(sum, self.schedule)),
                    "copies": [copies["attention"], copies["state"]],
                }
            )
        return {"greedy": greedy, "tokens": output, "passes": passes}

    def rollbacks(self, task: dict[str, Any]) -> Any:
        """Single passes that accept so many drafts and so come to a length, and a pass behind each,
        in a cache that knows what follows as well."""
        text = task["prompt"] + self.greedy(task["prompt"], task["num_tokens"])
        found = []
        for accepted, length in task["cases"]:
            known, num_accepted = text[: length - accepted], []
            for wrong in ([accepted], []):
                drafter = PlannedDrafter(known, text[len(known) :], wrong)
                made = self.decoder(task, drafter)(known, task["num_drafts"])
                num_accepted.append(made.num_accepted)
                known = [*known, *made.tokens]
            found.append({"accepted": num_accepted, "tokens": known})
        return {"text": text, "found": found}

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """What plain decoding says."""
        plain = {"prompts": [prompt], "n": 1, "max_tokens": num_tokens}
        tokens: list[int] = self.samples(plain | {"sampling": {"temperature": 0}})[0][0]["tokens"]
        return tokens

    def decoder(self, task: dict[str, Any], drafter: Any) -> Any:
        """Passes of speculative decoding. Where nothing is found of what was computed before, the
        target is asked for every distribution by itself, from the first token on."""
        import numpy as np

        from hsexp.engine.speculation import EngineDecoder, EngineTarget
        from hsexp.speculation.decoding import SpeculativeDecoder

        forks = self.scheduler.kv_cache_manager.forks is not None
        target = EngineTarget(self.llm.llm_engine, temperature=task["temperature"])
        kind = EngineDecoder if forks else SpeculativeDecoder
        return kind(target, drafter, np.random.default_rng(task["seed"])).run_pass

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


class PlannedDrafter:
    """Drafts what follows a prompt, but something else at the wrong places; if none are named, any
    token."""

    def __init__(self, prompt: list[int], text: list[int], wrong: Sequence[int] | None) -> None:
        self.start = len(prompt)
        self.text = text
        self.wrong = wrong

    def distribution(self, tokens: Sequence[int]) -> Any:
        import numpy as np
        from small_models import VOCABULARY

        if self.wrong is None:
            return np.full(VOCABULARY, 1 / VOCABULARY)
        place = len(tokens) - self.start
        probabilities = np.zeros(VOCABULARY)
        probabilities[(self.text[place] + (place in self.wrong)) % VOCABULARY] = 1.0
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
        max_logprobs=-1,
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

    def admit_apart(sequence: Any, hit: Any, num_tokens: int = 0) -> None:
        admit(sequence, hit, num_tokens)
        if hit.tokens % memory.checkpoint_grid:
            for block in range(hit.tokens // memory.block_size):
                copies.list_page(sequence, block, hit.tokens)

    memory.admit = admit_apart


if __name__ == "__main__":
    main(*sys.argv[1:])
