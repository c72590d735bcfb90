"""python benchmarks/forks_on_vllm.py [--quick] [--organization s2]

Samples, beams and drafts on real vLLM: what stock vLLM computes again, and what forks save. Needs
vLLM's CPU build (make setup-cpu).

The model has two layers with exactly Falcon-H1-7B's states and a hidden width of 128, so that the
scan weighs more, and everything else less, than in the real one: tokens are the measure, and
seconds show that saved tokens are saved time. Every engine runs in a process of its own with one
core, 1 GiB of state and 512-token blocks; a warm-up comes first, and an empty cache. Stock vLLM is
measured as it is and with prefix_match_unit 32, its finest way to share a prompt.

Drafts are verified where states fork; the other engines decode the same prompts token by token, one
after the other. The drafter knows the greedy output and is wrong at random places; that it costs
nothing makes the seconds a bound, not a promise.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

if importlib.util.find_spec("vllm") is None:
    sys.exit("forks_on_vllm.py needs vLLM's CPU build: make setup-cpu")
os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine"))

from fork_run import PlannedDrafter
from small_models import VOCABULARY, save_model, save_tokenizer

from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.memory.geometry import ModelConfig

STOCK, FINE, PLAIN, FORKS = "stock", "stock, unit 32", "{}", "{}, forks"
BLOCK, SEED, CAP, MAX_LEAVES = 512, 7, 32, 64
STATE_BYTES = 1 << 30
WIDTH = 4
NUM_DRAFTS, ACCEPTANCE = 4, 0.8


@dataclass(frozen=True, kw_only=True)
class Work:
    """Prompts, and what is asked of each."""

    prompt_lengths: tuple[int, ...]
    num_tokens: int
    """Tokens of a sample or a beam."""
    kind: Literal["samples", "beams", "drafts"]

    @property
    def name(self) -> str:
        kind = {
            "samples": f"n = {WIDTH} samples",
            "beams": f"beam search, width {WIDTH}",
            "drafts": f"{NUM_DRAFTS} drafts a pass, {ACCEPTANCE:.0%} of them right",
        }[self.kind]
        lengths = f"{min(self.prompt_lengths)} to {max(self.prompt_lengths):,}"
        return (
            f"{kind}: {len(self.prompt_lengths)} prompts of {lengths} tokens, "
            f"{self.num_tokens} tokens each"
        )

    @property
    def prompts(self) -> list[dict[str, list[int]]]:
        rng = random.Random(SEED)
        return [
            {"prompt_token_ids": [rng.randrange(3, VOCABULARY) for _ in range(length)]}
            for length in self.prompt_lengths
        ]


WORKS = (
    Work(prompt_lengths=(180, 330, 480, 690, 900, 1200), num_tokens=64, kind="samples"),
    Work(prompt_lengths=(330, 900), num_tokens=32, kind="beams"),
    Work(prompt_lengths=(330, 900), num_tokens=128, kind="drafts"),
)
QUICK = (
    Work(prompt_lengths=(180, 690), num_tokens=8, kind="samples"),
    Work(prompt_lengths=(180, 690), num_tokens=6, kind="beams"),
    Work(prompt_lengths=(180, 690), num_tokens=20, kind="drafts"),
)


@dataclass(kw_only=True)
class Measured:
    """What one engine did for one work."""

    seconds: float
    cpu_seconds: float
    steps: int = 0
    scheduled: int = 0
    """Tokens that went through the model."""
    reused: int = 0
    """Tokens of hits."""
    copied_pages: int = 0
    """Stock vLLM copies whole blocks of both kinds, which count here."""
    copied_states: int = 0
    passes: int = 0
    """Verifications of drafts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, and nothing to quote")
    parser.add_argument("--organization", default="s2", help="an option of conf/organization")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    works = QUICK if options.quick else WORKS
    if options.engine is not None:
        print(json.dumps(measure(options.engine, options.organization, options.model, works)))
        sys.stdout.flush()
        os._exit(0)  # the extension modules' teardown is slow and noisy
    engines = (STOCK, FINE, PLAIN, FORKS)
    console = make_console()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), shape(), dtype="bfloat16")
        save_tokenizer(Path(folder))
        found = {}
        for engine in engines:
            with console.status(f"{engine.format(options.organization.upper())}"):
                found[engine] = in_its_own_process(engine, folder, options)
    for index, work in enumerate(works):
        table = Table("engine", title=work.name, title_justify="left")
        for column in ("steps", "passes", "scheduled", "reused", "pages", "states", "s", "core s"):
            table.add_column(column, justify="right")
        for engine in engines:
            row = Measured(**found[engine][index])
            table.add_row(
                engine.format(options.organization.upper()),
                f"{row.steps:,}",
                f"{row.passes:,}" if row.passes else "",
                f"{row.scheduled:,}",
                f"{row.reused:,}",
                f"{row.copied_pages:,}",
                f"{row.copied_states:,}",
                f"{row.seconds:.1f}",
                f"{row.cpu_seconds:.1f}",
            )
        console.print(table)


def shape() -> ModelConfig:
    """Two of Falcon-H1-7B's layers."""
    layers = {"num_attention_layers": 2, "num_recurrent_layers": 2, "checkpoint": None}
    return ModelConfig.parse(read_option("model", "falcon_h1_7b") | layers)


def in_its_own_process(engine: str, model: str, options: argparse.Namespace) -> Any:
    command = [sys.executable, __file__, "--engine", engine, "--model", model]
    command += ["--organization", options.organization, *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


# -- one engine ------------------------------------------------------------------------------------


def measure(
    engine: str, organization: str, model: str, works: tuple[Work, ...]
) -> list[dict[str, Any]]:
    llm = build(engine, organization, model)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    memory = getattr(scheduler.kv_cache_manager, "memory", None)
    counts: Counter[str] = Counter()
    stock = scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        output = stock(*args, **kwargs)
        counts["steps"] += output.total_num_scheduled_tokens > 0
        counts["scheduled"] += output.total_num_scheduled_tokens
        counts["reused"] += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        counts["copied_pages"] += len(output.kv_cache_block_copies or ())
        return output

    scheduler.schedule = schedule
    found = []
    for work in QUICK:
        run(llm, work, drafters(llm, work, engine))
    for work in works:
        known = drafters(llm, work, engine)
        llm.llm_engine.reset_prefix_cache()
        counts.clear()
        before = Counter() if memory is None else Counter(memory.branching.copies.num_done)
        start, cpu_start = time.perf_counter(), time.process_time()
        passes = run(llm, work, known)
        measured = Measured(
            seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - cpu_start,
            passes=passes,
            **counts,
        )
        if memory is not None:
            copies = Counter(memory.branching.copies.num_done) - before
            measured.copied_pages, measured.copied_states = copies["attention"], copies["state"]
        found.append(asdict(measured))
    return found


def drafters(llm: Any, work: Work, engine: str) -> list[PlannedDrafter]:
    """One a prompt, that knows what greedy decoding says; none where nothing is drafted."""
    if work.kind != "drafts" or engine != FORKS:
        return []
    rng, known = random.Random(SEED), []
    for prompt, output in zip(work.prompts, decode(llm, work), strict=True):
        wrong = [place for place in range(work.num_tokens) if rng.random() >= ACCEPTANCE]
        known.append(PlannedDrafter(prompt["prompt_token_ids"], output, wrong))
    return known


def run(llm: Any, work: Work, known: list[PlannedDrafter]) -> int:
    """Do the work; how many times drafts were verified."""
    from vllm import SamplingParams
    from vllm.sampling_params import BeamSearchParams

    if work.kind == "beams":
        llm.beam_search(
            work.prompts,
            BeamSearchParams(beam_width=WIDTH, max_tokens=work.num_tokens, ignore_eos=True),
        )
    elif work.kind == "samples":
        params = SamplingParams(n=WIDTH, max_tokens=work.num_tokens, ignore_eos=True, seed=None)
        llm.generate(work.prompts, params, use_tqdm=False)
    elif not known:
        decode(llm, work)
    return sum(
        speculate(llm, prompt["prompt_token_ids"], work.num_tokens, drafter)
        for prompt, drafter in zip(work.prompts, known, strict=False)
    )


def decode(llm: Any, work: Work) -> list[list[int]]:
    """What greedy decoding says after each prompt, one after the other."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=work.num_tokens, ignore_eos=True, temperature=0.0)
    done = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in work.prompts]
    return [list(one.outputs[0].token_ids) for one in done]


def speculate(llm: Any, prompt: list[int], num_tokens: int, drafter: PlannedDrafter) -> int:
    """Passes that make so many tokens."""
    import numpy as np

    from hsexp.engine.speculation import EngineDecoder, EngineTarget

    target = EngineTarget(llm.llm_engine, temperature=0.0)
    decoder = EngineDecoder(target, drafter, np.random.default_rng(SEED))
    tokens, passes = list(prompt), 0
    while (left := len(prompt) + num_tokens - len(tokens)) > 0:
        tokens += decoder.run_pass(tokens, min(NUM_DRAFTS, left - 1)).tokens
        passes += 1
    return passes


def build(engine: str, organization: str, model: str) -> Any:
    from vllm import LLM

    arguments: dict[str, Any] = {"block_size": BLOCK}
    if engine == FINE:
        arguments["prefix_match_unit"] = 32
    if engine in (PLAIN, FORKS):
        arguments = {
            "scheduler_cls": "hsexp.engine.scheduler.HybridScheduler",
            "additional_config": {
                "hsexp": {
                    "organization": organization,
                    "budget_gib": STATE_BYTES * 0.95 / 2**30,
                    "max_leaves": MAX_LEAVES if engine == FORKS else 0,
                }
            },
        }
    return LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=CAP,
        max_num_batched_tokens=2048,
        max_logprobs=-1,
        enforce_eager=True,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        async_scheduling=False,
        seed=0,
        **arguments,
    )


if __name__ == "__main__":
    main()
