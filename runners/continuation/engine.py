"""Runs continuation checks in a process of its own: `python -m runners.continuation.engine FOLDER`.

The process reads FOLDER/job-N.json as they come, N = 0, 1, ..., and answers each with
FOLDER/answer-N.json, until it is killed. vLLM is loaded once; every run has an engine of
its own, since one of a small model starts within a second.

What a run reports (`Observed`), by the name of the ask::

    tokens, logprobs           what came out
    states                     SHA-256 of recurrent, convolution and KV bytes at boundaries, as
                               reused or, the first time, as computed
    cached                     tokens reused at the first admission
    generated_when_preempted   output tokens that requests had when they were preempted
    max_running, steps, counters of the memory, pool_requests: the pool in requests
"""

import gc
import hashlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.engine.mini import SPECIAL_TOKENS, VOCABULARY, seeded_weights
from hsexp.engine.settings import EngineSettings
from hsexp.memory import Hit, Observer, SequenceMemory
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.plan.cells import content_digest
from runners.continuation.compare import Compared, Run, compare
from runners.continuation.prompts import Ask, Prompts
from runners.continuation.treatments import ROOMY, TREATMENTS, Arrival, Scenario, in_turn

_WAIT_S = 0.02
_LOGPROBS = 2
_DTYPES = {2: "bfloat16", 4: "float32"}
_BY_ASK = ("tokens", "logprobs", "states", "cached")


def main(folder: Path) -> None:
    bench, number = Bench(), 0
    while True:
        path = folder / f"job-{number}.json"
        while not path.exists():
            time.sleep(_WAIT_S)
        job = json.loads(path.read_text(encoding="utf-8"))
        try:
            answer: dict[str, Any] = {"outcome": bench.check(job)}
        except Exception as error:  # the runner records it as a failed attempt
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        half = folder / f"answer-{number}.tmp"
        half.write_text(json.dumps(answer), encoding="utf-8")
        half.rename(folder / f"answer-{number}.json")
        number += 1


class Bench:
    """Checks one arm after the other, and keeps the references of the current one."""

    def __init__(self) -> None:
        self._references: tuple[Run, Run] | None = None
        self._key: Any = None

    def check(self, job: dict[str, Any]) -> dict[str, Any]:
        """Compare every request of a treatment with its isolated recomputation."""
        settings = EngineSettings.parse(job["settings"])
        prompts = Prompts.draw(
            depth=job["depth"],
            grid=settings.layout.checkpoint_grid,
            vocabulary=range(SPECIAL_TOKENS, VOCABULARY),
            seed=job["seed"],
        )
        engines = Engines(
            settings, token_budget=job["token_budget"], prompts=prompts, seed=job["seed"]
        )
        key = {name: value for name, value in job.items() if name != "treatment"}
        if key != self._key:
            self._references, self._key = None, key
        if self._references is None:
            self._references = engines.references(prompts)
        prompts = prompts.with_turns(self._references[0]["tokens"])
        compared = []
        for scenario in TREATMENTS[job["treatment"]].scenarios(prompts):
            run, unmet = engines.run_until_it_happens(scenario)
            names = {ask.prompt: ask.name for ask in prompts.asks}
            pairs = {
                arrival.ask.name: names[arrival.ask.prompt]
                for arrival in scenario.arrivals
                if scenario.compared is None or arrival.ask.name in scenario.compared
            }
            compared.append(Compared(run=run, reference_of=pairs, unmet=unmet))
        return compare(compared, self._references) | {
            "pools_requests": [one.run["pool_requests"] for one in compared],
            "report": engines.report,
            "workload_digest": content_digest([ask.prompt for ask in prompts.asks]),
        }


class Engines:
    """Fresh engines of one arm."""

    def __init__(
        self, settings: EngineSettings, *, token_budget: int, prompts: Prompts, seed: int
    ) -> None:
        self.report: dict[str, str] = {}
        self._settings = settings
        self._token_budget = token_budget
        self._model = seeded_weights(settings.model, seed=seed)
        unanswered = prompts.with_turns({ask.name: [0] * ask.max_tokens for ask in prompts.members})
        self._max_tokens = max(len(ask.prompt) + ask.max_tokens for ask in unanswered.asks)

    def references(self, prompts: Prompts) -> tuple[Run, Run]:
        """Every request as the only one of an engine whose cache is empty, in two engines."""
        runs = []
        for order in (1, -1):
            run = self._alone(prompts.asks[::order])
            turns = self._alone(prompts.with_turns(run["tokens"]).turns[::order])
            runs.append({what: run[what] | turns[what] for what in _BY_ASK})
        return runs[0], runs[1]

    def _alone(self, asks: Sequence[Ask]) -> Run:
        return self.run(Scenario(arrivals=in_turn(asks)), ROOMY, empty_between=True)

    def run_until_it_happens(self, scenario: Scenario) -> tuple[Run, list[str]]:
        """The first run in which everything happened, or the last one and what did not."""
        run, failed = None, ["no pool was large enough for one request"]
        for pool in scenario.pools:
            try:
                run = self.run(scenario, pool)
            except _TooSmall:
                break
            failed = [text for text, holds in scenario.happened.items() if not holds(run)]
            if not failed:
                break
        if run is None:
            raise RuntimeError(failed[0])
        return run, failed

    def run(self, scenario: Scenario, pool: float, *, empty_between: bool = False) -> Run:
        """One engine from start to end."""
        from hsexp.engine.report import engine_report

        retention = parse_union(
            RetentionConfig, read_option("retention", scenario.retention), path="retention"
        )
        settings = self._settings.model_copy(
            update={"retention": retention, "budget_bytes": self._budget(pool)}
        )
        engine = start_engine(
            settings,
            model=self._model,
            max_model_len=self._max_tokens,  # no longer request needs to fit
            token_budget=self._token_budget,
        )
        self.report = engine_report(engine).labels()
        try:
            watch = _Watch(engine)
            _serve(engine, scenario, watch, empty_between=empty_between)
            return watch.run() | {"pool_requests": pool}
        finally:
            engine.engine_core.shutdown()
            del engine
            gc.collect()

    def _budget(self, pool: float) -> int:
        """Bytes of state of one layer in which `pool` of the largest requests have room."""
        layout = self._settings.layout
        nominal = self._settings.budget_bytes
        assert nominal is not None
        memory = self._settings.memory()
        limits = layout.limits(nominal)
        shares = [limits[pool.spec.name] / nominal for pool in memory.cache.pools]
        alone = max(
            need * pool.spec.page_bytes / share
            for need, pool, share in zip(
                memory.max_need(self._max_tokens), memory.cache.pools, shares, strict=True
            )
        )
        null_pages = max(
            pool.spec.page_bytes / share
            for pool, share in zip(memory.cache.pools, shares, strict=True)
        )
        return math.ceil(alone * pool + null_pages)


def start_engine(
    settings: EngineSettings, *, model: Path, max_model_len: int, token_budget: int
) -> Any:
    """An engine with its core in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`)."""
    from vllm import EngineArgs, LLMEngine

    layout, shape = settings.layout, settings.model
    assert isinstance(shape, ModelConfig), "the weights are seeded ones"
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            dtype=_DTYPES[shape.dtype_bytes],
            max_model_len=max_model_len,
            max_num_seqs=settings.admission.cap,
            max_num_batched_tokens=token_budget,
            block_size=layout.kernel_block_size,
            mamba_block_size=layout.checkpoint_grid,
            mamba_cache_mode="align",
            enable_prefix_caching=True,
            enforce_eager=True,
            async_scheduling=False,
            seed=0,
            scheduler_cls="hsexp.engine.scheduler.HybridScheduler",
            additional_config=settings.additional_config(),
        )
    )


class _TooSmall(Exception):
    """The pool has no room for one request."""


def _serve(engine: Any, scenario: Scenario, watch: "_Watch", *, empty_between: bool) -> None:
    waiting, step = list(scenario.arrivals), 0
    ended: dict[str | None, int] = {None: 0}
    while waiting or engine.has_unfinished_requests():
        for arrival in list(waiting):
            if arrival.after in ended and step >= ended[arrival.after] + arrival.step:
                waiting.remove(arrival)
                _add(engine, arrival)
        if step in scenario.preempt_at:
            watch.preempt_youngest()
        if step == scenario.reset_at:
            engine.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = step + 1
                watch.finished(output)
        if empty_between and not engine.has_unfinished_requests():
            assert engine.reset_prefix_cache()
        watch.after_step()
        step += 1


def _add(engine: Any, arrival: Arrival) -> None:
    from vllm import SamplingParams

    prompt: dict[str, Any] = {"prompt_token_ids": list(arrival.ask.prompt)}
    if arrival.salt is not None:
        prompt["cache_salt"] = arrival.salt
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=arrival.ask.max_tokens,
        ignore_eos=True,
        logprobs=_LOGPROBS,
    )
    try:
        engine.add_request(arrival.ask.name, prompt, sampling)
    except ValueError as error:
        if "can never be served" in str(error):
            raise _TooSmall(str(error)) from None
        raise


class _Watch(Observer):
    """Looks into an engine core of this process."""

    def __init__(self, engine: Any) -> None:
        core = engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._memory = core.scheduler.kv_cache_manager.memory
        runner = core.model_executor.driver_worker.worker.model_runner
        self._layers = dict(sorted(runner.compilation_config.static_forward_context.items()))
        self._memory.cache.watch(self)
        self._cached: dict[str, int] = {}
        self._states: dict[str, dict[str, str]] = {}
        self._preempted: list[int] = []
        self._tokens: dict[str, list[int]] = {}
        self._logprobs: dict[str, list[dict[str, float]]] = {}
        self._max_running = self._steps = 0

    # -- called by the memory ----------------------------------------------------------------------

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        key = _key(sequence.request_id)
        self._cached.setdefault(key, hit.tokens)
        if hit.checkpoint is not None:
            self._keep(key, hit.tokens, sequence)

    def on_release(self, sequence: SequenceMemory, num_tokens: int, *, preempted: bool) -> None:
        if preempted:
            request = self._scheduler.requests[sequence.request_id]
            self._preempted.append(request.num_output_tokens)

    # -- called by the loop ------------------------------------------------------------------------

    def preempt_youngest(self) -> None:
        """Preempt as vLLM does when memory is short."""
        scheduler = self._scheduler
        request = scheduler.running.pop()
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def after_step(self) -> None:
        running = self._scheduler.running
        self._steps += 1
        self._max_running = max(self._max_running, len(running))
        if self._steps % 10 == 0:
            self._memory.check_integrity()
        for request in running:
            computed = request.num_computed_tokens
            if computed and computed % self._memory.checkpoint_grid == 0:
                sequence = self._memory.cache.sequences[request.request_id]
                self._keep(_key(request.request_id), computed, sequence)

    def finished(self, output: Any) -> None:
        completion = output.outputs[0]
        self._tokens[output.request_id] = list(completion.token_ids)
        self._logprobs[output.request_id] = [
            {str(token): entry.logprob for token, entry in position.items()}
            for position in completion.logprobs
        ]

    def run(self) -> Run:
        self._memory.check_integrity()
        return {
            "tokens": self._tokens,
            "logprobs": self._logprobs,
            "states": self._states,
            "cached": self._cached,
            "generated_when_preempted": self._preempted,
            "max_running": self._max_running,
            "steps": self._steps,
            "counters": asdict(self._memory.cache.counters),
        }

    # -- state bytes -------------------------------------------------------------------------------

    def _keep(self, key: str, boundary: int, sequence: SequenceMemory) -> None:
        states = self._states.setdefault(key, {})
        if str(boundary) not in states:
            states[str(boundary)] = self._digest(sequence, boundary)

    def _digest(self, sequence: SequenceMemory, boundary: int) -> str:
        """SHA-256 over all layers: recurrent state, convolution state, keys and values."""
        from hsexp.engine.paged import table

        state, paged = sequence.state, table()
        assert state is not None
        attention = self._memory.cache.attention
        blocks = attention.block_ids(sequence)[: boundary // attention.kernel_block_size]
        digest = hashlib.sha256()
        for layer in self._layers.values():
            cache = layer.kv_cache
            if isinstance(cache, torch.Tensor):
                digest.update(_bytes(cache[blocks]))
            elif paged is None:
                conv, ssm = cache
                digest.update(_bytes(conv[state.pages[0]]))
                digest.update(_bytes(ssm[state.pages[0]]))
            else:
                conv, ssm = cache
                places, row = layer.hsexp_states, state.pages[0]
                digest.update(_bytes(conv[int(places.lines[row])]))
                digest.update(_bytes(ssm[places.members[:, row]]))
        return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return data


def _key(request_id: Any) -> str:
    """The id that a request was added with; vLLM appends a random part."""
    return str(request_id).rsplit("-", 1)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # the extension modules' teardown is slow and noisy
