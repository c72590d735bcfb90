"""Real vLLM on this CPU with small seeded Falcon-H1 models: the organizations change no output."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_models import VOCABULARY, save_model, tiny

from hsexp.config.catalog import read_option
from hsexp.config.schema import ModelConfig

RUN = Path(__file__).parent / "engine_run.py"


def run_job(folder: Path, name: str, job: dict[str, Any]) -> dict[str, Any]:
    """One engine in a process of its own."""
    source, target = folder / f"{name}.job.json", folder / f"{name}.json"
    source.write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(RUN), str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


def settings(
    model: ModelConfig,
    organization: str,
    budget_bytes: int,
    *,
    block_size: int,
    slot_bytes: int,
    headroom: float = 0.0,
    retention: str = "off",
    pinning: str = "off",
) -> dict[str, Any]:
    layout = read_option("organization", organization)
    if organization != "d0":
        layout |= {"block_size": block_size, "checkpoint_grid": block_size}
    elif block_size < 512:
        layout |= {"checkpoint_multiple": block_size}
    if organization == "s2":
        layout |= {"slot_bytes": slot_bytes}
    return {
        "model": model.model_dump(mode="json"),
        "organization": layout,
        "budget_bytes": budget_bytes,
        "admission": {"headroom": headroom, "cap": 8},
        "retention": read_option("retention", retention),
        "pinning": read_option("pinning", pinning),
    }


# -- the same schedule: bit for bit ----------------------------------------------------------------


def falcon_layers() -> ModelConfig:
    """Two layers with exactly Falcon-H1-7B's states: 1 KiB of KV a token, 1,536 and 21 KiB."""
    shape = read_option("model", "falcon_h1_7b")
    return ModelConfig.parse(shape | {"num_attention_layers": 2, "num_recurrent_layers": 2})


@pytest.fixture(scope="module")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkpoint, and a job in which prompts share 512 tokens and fit one chunk or two."""
    folder = tmp_path_factory.mktemp("falcon")
    save_model(folder / "model", falcon_layers(), dtype="bfloat16")
    rng = random.Random(3)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(512)]
    requests = [
        {
            "id": str(i),
            "prompt": shared + [rng.randrange(3, VOCABULARY) for _ in range(20 + 9 * i)],
            "max_tokens": 10,
            # Alone at first, then two and three together.
            "add_at": [0, 20, 40, 40, 60, 60, 60][i],
        }
        for i in range(7)
    ]
    job = {
        "model": str(folder / "model"),
        "dtype": "bfloat16",
        "block_size": 512,
        "max_model_len": 4096,
        "cap": 8,
        "token_budget": 2048,
        "requests": requests,
        "settings": None,
    }
    return folder, job


@pytest.fixture(scope="module")
def shared_pages(falcon: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    folder, job = falcon
    chosen = settings(falcon_layers(), "s0", 80_000_000, block_size=512, slot_bytes=32768)
    return run_job(folder, "s0", job | {"settings": chosen})


@pytest.mark.parametrize("organization", ["s1", "s2"])
def test_paged_states_give_the_bits_of_contiguous_ones(
    organization: str, falcon: tuple[Path, dict[str, Any]], shared_pages: dict[str, Any]
) -> None:
    folder, job = falcon
    chosen = settings(falcon_layers(), organization, 80_000_000, block_size=512, slot_bytes=32768)
    result = run_job(folder, organization, job | {"settings": chosen})
    assert result["outputs"] == shared_pages["outputs"]
    assert sum(output["cached"] for output in result["outputs"].values()) == 6 * 512


def test_stock_vllm_gives_the_same_tokens(
    falcon: tuple[Path, dict[str, Any]], shared_pages: dict[str, Any]
) -> None:
    folder, job = falcon
    stock = run_job(folder, "stock", job)["outputs"]
    tokens = {key: output["tokens"] for key, output in shared_pages["outputs"].items()}
    assert {key: output["tokens"] for key, output in stock.items()} == tokens


# -- other evictions: the same tokens --------------------------------------------------------------


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Sixty requests over three shared prefixes; every eleventh is cancelled, early or late."""
    folder = tmp_path_factory.mktemp("stress")
    save_model(folder / "model", tiny(4), dtype="float32")
    rng = random.Random(5)
    contexts = [[rng.randrange(3, VOCABULARY) for _ in range(200)] for _ in range(3)]
    requests = []
    for i in range(60):
        prefix = contexts[rng.randrange(3)][: rng.choice([0, 64, 96, 128, 160, 200])]
        suffix = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(3, 70))]
        request = {
            "id": str(i),
            "prompt": prefix + suffix,
            "max_tokens": rng.randrange(2, 50),
            "add_at": int(i * 2.5),
        }
        if i % 11 == 7:
            request["abort_at"] = request["add_at"] + rng.randrange(1, 12)
        requests.append(request)
    job = {
        "model": str(folder / "model"),
        "dtype": "float32",
        "max_model_len": 1024,
        "cap": 8,
        "token_budget": 256,
        "requests": requests,
        "poison": True,
    }
    return folder, job


@pytest.fixture(scope="module")
def roomy(stress: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """The same requests where nothing is ever evicted."""
    folder, job = stress
    chosen = settings(tiny(4), "s0", 4000 * 16384, block_size=32, slot_bytes=4096)
    result = run_job(folder, "roomy", job | {"settings": chosen})
    assert result["memory"]["counters"]["lost_checkpoints"] == 0
    return result


TIGHT: list[tuple[str, int, dict[str, Any]]] = [
    ("s0", 60, {}),
    ("s1", 44, {}),
    ("s2", 40, {}),
    ("s2", 44, {"retention": "k2", "pinning": "k1"}),
    ("d0", 40, {}),
    ("d0", 44, {"pinning": "k1", "headroom": 0.1}),
]


@pytest.mark.parametrize(("organization", "pages", "policies"), TIGHT)
def test_evictions_preemptions_and_cancellations_change_no_token(
    organization: str,
    pages: int,
    policies: dict[str, Any],
    stress: tuple[Path, dict[str, Any]],
    roomy: dict[str, Any],
) -> None:
    folder, job = stress
    chosen = settings(
        tiny(4), organization, pages * 16384, block_size=32, slot_bytes=4096, **policies
    )
    result = run_job(folder, f"{organization}-{pages}", job | {"settings": chosen})
    counters, memory = result["memory"]["counters"], result["memory"]
    assert counters["lost_checkpoints"] > 20  # the pool was tight
    expected, outputs = roomy["outputs"], result["outputs"]
    both = expected.keys() & outputs.keys()  # a cancelled one may have finished in either
    assert len(both) >= 54
    for key in both:
        assert outputs[key]["tokens"] == expected[key]["tokens"]
        for ours, theirs in zip(outputs[key]["logprobs"], expected[key]["logprobs"], strict=True):
            for token in ours.keys() & theirs.keys():
                assert ours[token] == pytest.approx(theirs[token], abs=1e-4)
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
