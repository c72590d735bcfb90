"""The other side of `inproc`: `python -m runners.vllm.inproc_engine FOLDER` in a guarded process.

Boots an engine with the arguments of engine.json, reports it, waits for load.json, drives the
engine step by step, and ends. Events are JSON lists, one a line of events.jsonl, as they happen.
"""

import json
import os
import sys
import time
from bisect import insort
from pathlib import Path
from typing import IO, Any

from runners.vllm.clock import at, now_ns, seconds_until
from runners.vllm.load import WARMUP_TOKENS, engine_request_id
from runners.vllm.tokens import bias_to

_WAIT_S = 0.05
_LEAD_S = 0.2


def main(folder: Path) -> None:
    """Serve one load."""
    from vllm import EngineArgs, LLMEngine

    from hsexp.engine.report import engine_report

    arguments = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    with (folder / "events.jsonl").open("w", encoding="utf-8") as events:
        driver = _Driver(engine, events)
        driver.emit("ready", engine_report(engine).labels())
        load = _wait_for(folder / "load.json")
        driver.warm_up(load["warmup"])
        driver.run(load["requests"])
        driver.emit("done")
    engine.engine_core.shutdown()


def _arrival_s(pending: tuple[int, dict[str, Any]]) -> float:
    arrival_s: float = pending[1]["arrival_s"]
    return arrival_s


class _Driver:
    """Drives one engine and writes its events."""

    def __init__(self, engine: Any, events: IO[str]) -> None:
        self._engine = engine
        self._events = events

    def emit(self, *event: Any) -> None:
        self._events.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._events.flush()

    def warm_up(self, prompts: list[list[int]]) -> None:
        for index, prompt in enumerate(prompts):
            self._add(f"hsexp-warmup-{index}", {"prompt": prompt, "max_tokens": WARMUP_TOKENS})
            while self._engine.has_unfinished_requests():
                self._engine.step()
        self._engine.reset_prefix_cache()

    def run(self, requests: list[dict[str, Any]]) -> None:
        """Add every request at its time, and step while there is work."""
        engine = self._engine
        indexes = {engine_request_id(index, 0): index for index, _ in enumerate(requests)}
        pending = [each for each in enumerate(requests) if each[1].get("after") is None]
        next_turns: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for index, request in enumerate(requests):
            if (before := request.get("after")) is not None:
                next_turns.setdefault(before, []).append((index, request))
        seen = dict.fromkeys(indexes, 0)
        begin_ns = now_ns()
        start_ns = at(begin_ns, _LEAD_S)
        self.emit("begin", begin_ns, start_ns)
        second = 0
        while pending or engine.has_unfinished_requests():
            while pending and seconds_until(at(start_ns, pending[0][1]["arrival_s"])) <= 0.0:
                index, request = pending.pop(0)
                self.emit("sent", index, now_ns())
                self._add(engine_request_id(index, 0), request)
            if seconds_until(at(start_ns, second)) <= 0.0:
                self._sample()
                second += 1
            if not engine.has_unfinished_requests():
                time.sleep(0.001)
                continue
            for output in engine.step():
                stamp_ns, tokens = now_ns(), output.outputs[0].token_ids
                name = output.request_id
                self.emit("tokens", indexes[name], stamp_ns, list(tokens[seen[name] :]))
                seen[name] = len(tokens)
                if output.finished:
                    self.emit("finished", indexes[name])
                    ended_s = (stamp_ns - start_ns) / 1e9
                    for index, request in next_turns.pop(indexes[name], ()):
                        request["arrival_s"] = ended_s + request["think_s"]
                        insort(pending, (index, request), key=_arrival_s)
        self._sample()

    def _add(self, name: str, request: dict[str, Any]) -> None:
        from vllm import SamplingParams

        prompt = {"prompt_token_ids": request["prompt"]}
        if request.get("cache_salt") is not None:
            prompt["cache_salt"] = request["cache_salt"]
        only_token = request.get("only_token")
        self._engine.add_request(
            name,
            prompt,
            SamplingParams(
                temperature=0.0,
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                logit_bias=None if only_token is None else bias_to(only_token),
            ),
        )

    def _sample(self) -> None:
        scheduler = self._engine.engine_core.engine_core.scheduler
        memory = scheduler.kv_cache_manager.memory
        self.emit(
            "sample",
            now_ns(),
            len(scheduler.running),
            len(scheduler.waiting),
            sum(pool.num_free for pool in memory.cache.pools),
            memory.cache.counters.preemptions,
        )


def _wait_for(path: Path) -> dict[str, Any]:
    while not path.exists():
        time.sleep(_WAIT_S)
    load: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return load


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # the extension modules' teardown is slow and noisy
