"""OMP_NUM_THREADS=2 .venv/bin/python benchmarks/exact_parts.py [dtype=float32]

What each part of `engine.exact` is for: the treatments of the continuation campaign on a small
model, with all parts, with one of them taken out, and with none. A cell says how many of the
requests have the bits of their isolated recomputation; a part that no treatment misses would be
superfluous (docs/continuation.md).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the checks look into the engine core
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from typing import Any

from rich.table import Table

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.console import make_console
from hsexp.engine import alone
from hsexp.engine.settings import EngineSettings
from hsexp.memory.chunking import CanonicalChunking, Chunking
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from runners.continuation.engine import Bench
from runners.continuation.treatments import TREATMENTS

GRID, DEPTH, TOKEN_BUDGET = 64, 600, 256

MODEL = {
    "name": "small",
    "num_attention_layers": 2,
    "num_recurrent_layers": 2,
    "num_kv_heads": 1,
    "head_dim": 64,
    "ssm_heads": 4,
    "ssm_head_dim": 32,
    "d_state": 128,  # at two bytes: 32 KiB of state in pages of 64 tokens, 16 KiB
    "ssm_groups": 1,
    "conv_width": 4,
    "max_model_tokens": 2048,
    "d0_attention_fraction": 0.6,
}


def settings(organization: str, dtype: str, *, exact: bool) -> dict[str, Any]:
    layout = read_option("organization", organization)
    sizes = {"block_size": 16 if organization == "d0" else GRID, "checkpoint_grid": GRID}
    if organization == "s2":
        sizes["slot_bytes"] = 4096
    return EngineSettings.without_policies(
        model=ModelConfig.parse(MODEL | {"dtype_bytes": {"bfloat16": 2, "float32": 4}[dtype]}),
        organization=parse_union(OrganizationConfig, layout | sizes, path="organization"),
        cap=8,
        budget_bytes=1 << 24,
        exact=exact,
    ).model_dump(mode="json")


def _stock_chunks(
    self: CanonicalChunking, computed: int, num_prompt_tokens: int, num_tokens: int, left: int
) -> int:
    """Chunks that the budget cuts; what was generated still goes token by token."""
    if self.one_by_one(computed, num_prompt_tokens):
        return min(1, left)
    return Chunking.tokens(self, computed, num_prompt_tokens, num_prompt_tokens, left)


_canonical_chunks = CanonicalChunking.tokens


def _outputs_in_chunks(
    self: CanonicalChunking, computed: int, num_prompt_tokens: int, num_tokens: int, left: int
) -> int:
    """Canonical chunks of the prompt; what was generated is prefilled as in stock vLLM."""
    if computed >= num_prompt_tokens:
        return Chunking.tokens(self, computed, num_prompt_tokens, num_tokens, left)
    return _canonical_chunks(self, computed, num_prompt_tokens, num_tokens, left)


@contextmanager
def without(part: str) -> Iterator[None]:
    """Take one part out of the plugin while an engine runs."""
    match part:
        case "canonical chunks":
            replaced = patch.object(CanonicalChunking, "tokens", _stock_chunks)
        case "outputs again as decodes":
            replaced = patch.object(CanonicalChunking, "tokens", _outputs_in_chunks)
        case "keys with the length":
            replaced = patch.object(CanonicalChunking, "keys", Chunking.keys)
        case "requests alone":
            replaced = patch.object(alone, "run_alone", lambda runner: None)
        case _:
            yield
            return
    with replaced:
        yield


PARTS = ("canonical chunks", "outputs again as decodes", "keys with the length", "requests alone")


def main(organization: str = "s2", dtype: str = "bfloat16") -> None:
    treatments = [t for t in TREATMENTS.values() if t.applies_to(organization)]
    table = Table(title=f"{organization}, {dtype}: requests with the bits of their recomputation")
    for heading in ("", *(treatment.name for treatment in treatments)):
        table.add_column(heading)
    for name in ("exact", *(f"without {part}" for part in PARTS), "stock"):
        bench, cells = Bench(), []
        with without(name.removeprefix("without ")):
            for treatment in treatments:
                found = bench.check(
                    {
                        "settings": settings(organization, dtype, exact=name != "stock"),
                        "token_budget": TOKEN_BUDGET,
                        "depth": DEPTH,
                        "seed": 1,
                        "treatment": treatment.name,
                    }
                )
                requests, unmet = found["requests"], "*" * bool(found["unmet"])
                equal = sum(request["equal_logprobs"] for request in requests)
                cells.append(f"{equal}/{len(requests)}{unmet}")
        table.add_row(name, *cells)
    make_console().print(table, "*: the treatment did not happen", sep="\n")


if __name__ == "__main__":
    main(**dict(argument.split("=") for argument in sys.argv[1:]))
