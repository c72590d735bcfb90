"""OMP_NUM_THREADS=1 .venv/bin/python benchmarks/exact_speed.py

What exact continuation costs real vLLM on CPU cores: the same requests with and without it. Time is
that of this process on its cores, so that other programs disturb it little; a model of four layers
spends much of it in Python, which one pass a request does not share (docs/continuation.md).
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, whose time is measured
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import random
import time
from typing import Any

from rich.table import Table

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.engine.mini import SPECIAL_TOKENS, VOCABULARY, seeded_weights
from hsexp.engine.settings import EngineSettings
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from runners.continuation.engine import start_engine

MAX_MODEL_LEN, TOKEN_BUDGET, OUTPUT_TOKENS = 4096, 2048, 48
LOADS = {
    "one request": (1, 1000),
    "eight, short prompts": (8, 100),
    "eight, 1,000 tokens": (8, 1000),
    "eight, 3,000 tokens": (8, 3000),
}
"""Requests at once, and tokens of their prompts."""


def settings(organization: str, *, exact: bool) -> EngineSettings:
    layout = read_option("organization", organization)
    if organization == "s2":
        layout |= {"slot_bytes": 8192}  # a sixteenth of this model's page
    return EngineSettings.without_policies(
        model=ModelConfig.parse(read_option("model", "falcon_h1_mini")),
        organization=parse_union(OrganizationConfig, layout, path="organization"),
        cap=8,
        budget_bytes=64 << 20,
        exact=exact,
    )


def serve(engine: Any, num_requests: int, prompt_tokens: int, seed: int) -> tuple[float, float]:
    """Seconds of CPU until every request has its first token, and from then on."""
    from vllm import SamplingParams

    rng = random.Random(seed)
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for index in range(num_requests):
        prompt = rng.choices(range(SPECIAL_TOKENS, VOCABULARY), k=prompt_tokens)
        engine.add_request(f"{seed}-{index}", {"prompt_token_ids": prompt}, sampling)
    start, begun, first = time.process_time(), set(), None
    while engine.has_unfinished_requests():
        begun |= {output.request_id for output in engine.step()}
        if first is None and len(begun) == num_requests:
            first = time.process_time()
    assert first is not None
    return first - start, time.process_time() - first


def main() -> None:
    table = Table(title="Seconds of CPU, stock and exact; the ratio of tokens a second")
    for heading in ("org.", "load", "prefill", "", "ratio", "decode", "", "ratio"):
        table.add_column(heading)
    for organization in ("s0", "s2", "d0"):
        found: dict[bool, dict[str, tuple[float, float]]] = {}
        for exact in (False, True):
            chosen = settings(organization, exact=exact)
            engine = start_engine(
                chosen,
                model=seeded_weights(chosen.model),
                max_model_len=MAX_MODEL_LEN,
                token_budget=TOKEN_BUDGET,
            )
            serve(engine, 2, 600, seed=0)  # what is set up lazily
            found[exact] = {
                name: serve(engine, *load, seed=number)
                for number, (name, load) in enumerate(LOADS.items(), 1)
            }
            engine.engine_core.shutdown()
        for name in LOADS:
            row = []
            for stock, exact_s in zip(found[False][name], found[True][name], strict=True):
                row += [f"{stock:.2f}", f"{exact_s:.2f}", f"{stock / exact_s:.2f}"]
            table.add_row(organization, name, *row)
    make_console().print(table)


if __name__ == "__main__":
    main()
