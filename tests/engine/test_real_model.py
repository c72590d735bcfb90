"""Real vLLM on this CPU with small seeded Falcon-H1 models: the organizations change no output."""

import random
from collections import Counter
from typing import Any

import pytest
from engine_process import EngineProcess, settings
from small_models import VOCABULARY, save_model, tiny

from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig

# -- the same schedule: bit for bit ----------------------------------------------------------------
#
# vLLM keeps whole states in attention's pages, so that it makes its blocks as wide as a state and
# ends chunks on that grid. On this grid the organizations schedule what vLLM does, whatever their
# own blocks are. Then everything is equal: hits, batches, chunk ends, and every bit of the outputs.
# On another grid chunks end elsewhere, where states are rounded to their dtype: outputs may differ
# in the last bits then, with hits or without.


def falcon_layers() -> ModelConfig:
    """Two layers with exactly Falcon-H1-7B's states: 1 KiB of KV a token, 1,536 and 21 KiB."""
    shape = read_option("model", "falcon_h1_7b")
    return ModelConfig.parse(shape | {"num_attention_layers": 2, "num_recurrent_layers": 2})


@pytest.fixture(scope="module")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job in which prompts share 512 tokens and fit one chunk or two."""
    model = save_model(tmp_path_factory.mktemp("falcon"), falcon_layers(), dtype="bfloat16")
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
    return {
        "model": model,
        "dtype": "bfloat16",
        "block_size": 512,
        "max_model_len": 4096,
        "cap": 8,
        "token_budget": 2048,
        "requests": requests,
        "settings": None,
    }


@pytest.fixture(scope="module")
def shared_pages(falcon: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    chosen = settings(falcon_layers(), "s0", 80_000_000, block_size=512, slot_bytes=32768)
    return engines.run(falcon | {"settings": chosen})


@pytest.mark.parametrize("organization", ["s1", "s2", "s3"])
def test_paged_states_give_the_bits_of_contiguous_ones(
    organization: str,
    falcon: dict[str, Any],
    shared_pages: dict[str, Any],
    engines: EngineProcess,
) -> None:
    chosen = settings(falcon_layers(), organization, 80_000_000, block_size=512, slot_bytes=32768)
    result = engines.run(falcon | {"settings": chosen})
    assert result["outputs"] == shared_pages["outputs"]
    assert sum(output["cached"] for output in result["outputs"].values()) == 6 * 512


@pytest.fixture(scope="module")
def stock_falcon(falcon: dict[str, Any], engines: EngineProcess) -> tuple[dict[str, Any], Any]:
    """A job on the grid of unpatched vLLM, 2,048 tokens here: a miss, then a hit beside a miss."""
    rng = random.Random(4)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(2048)]
    requests = [
        {
            "id": str(i),
            "prompt": shared[:prefix] + [rng.randrange(3, VOCABULARY) for _ in range(suffix)],
            "max_tokens": 10,
            "add_at": add_at,
        }
        for i, (prefix, suffix, add_at) in enumerate([(2048, 30, 0), (2048, 45, 14), (300, 9, 14)])
    ]
    job = falcon | {"requests": requests}
    return job, engines.run(job)


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "s3", "d0"])
def test_exact_falcon_layers_give_the_bits_of_unpatched_vllm(
    organization: str, stock_falcon: tuple[dict[str, Any], Any], engines: EngineProcess
) -> None:
    job, stock = stock_falcon
    chosen = settings(
        falcon_layers(),
        organization,
        80_000_000,
        block_size=512,
        slot_bytes=32768,
        checkpoint_grid=2048,
        keep_idle_slabs=True,
    )
    result = engines.run(job | {"settings": chosen})
    assert result["schedule"] == stock["schedule"]
    assert result["outputs"] == stock["outputs"]
    assert [output["cached"] for output in stock["outputs"].values()] == [0, 2048, 0]


GRID = 96
"""vLLM's own block for the tiny model: at 32-token steps the first whose KV covers a state."""

BLOCKS = [("s0", GRID), ("s0", 32), ("s1", 32), ("s2", 32), ("s3", 32), ("d0", 16)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def stock_tiny(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engines: EngineProcess,
) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Forty requests over three shared prefixes, up to eight together, chunked and crossing
    boundaries; served by unpatched vLLM. (job, bytes an element, result)."""
    dtype, dtype_bytes = request.param, {"float32": 4, "bfloat16": 2}[request.param]
    model = save_model(tmp_path_factory.mktemp("tiny"), tiny(dtype_bytes), dtype=dtype)
    rng = random.Random(11)
    contexts = [[rng.randrange(3, VOCABULARY) for _ in range(300)] for _ in range(3)]
    requests, add_at = [], 0
    for i in range(40):
        add_at += rng.choice([0, 0, 1, 3, 8])
        prefix = contexts[rng.randrange(3)][: rng.choice([0, 96, 192, 200, 300])]
        requests.append(
            {
                "id": str(i),
                "prompt": prefix + [rng.randrange(3, VOCABULARY) for _ in range(3 + 3 * i)],
                "max_tokens": rng.randrange(2, 100),
                "add_at": add_at,
            }
        )
    job = {
        "model": model,
        "dtype": dtype,
        "block_size": 32,
        "max_model_len": 1024,
        "cap": 8,
        "token_budget": 256,
        "requests": requests,
        "settings": None,
    }
    return job, dtype_bytes, engines.run(job)


@pytest.mark.parametrize(("organization", "block_size"), BLOCKS)
def test_the_same_schedule_gives_the_bits_of_unpatched_vllm(
    organization: str,
    block_size: int,
    stock_tiny: tuple[dict[str, Any], int, dict[str, Any]],
    engines: EngineProcess,
) -> None:
    job, dtype_bytes, stock = stock_tiny
    chosen = settings(
        tiny(dtype_bytes),
        organization,
        4000 * 4096 * dtype_bytes,
        block_size=block_size,
        slot_bytes=1024 * dtype_bytes,
        checkpoint_grid=GRID,
        keep_idle_slabs=True,
    )
    result = engines.run(job | {"settings": chosen})
    assert result["schedule"] == stock["schedule"]
    assert result["outputs"] == stock["outputs"]
    assert sum(output["cached"] > 0 for output in stock["outputs"].values()) > 10


# -- other evictions: the same tokens --------------------------------------------------------------

NUM_REQUESTS = 240


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Hundreds of requests over four shared prefixes; some are cancelled in each phase."""
    model = save_model(tmp_path_factory.mktemp("stress"), tiny(4), dtype="float32")
    rng = random.Random(5)
    contexts = [[rng.randrange(3, VOCABULARY) for _ in range(320)] for _ in range(4)]
    phases = ["waiting", "prefill", "decode", "preempted"]
    requests = []
    for i in range(NUM_REQUESTS):
        prefix = contexts[rng.randrange(4)][: rng.choice([0, 64, 96, 128, 192, 320])]
        suffix = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(3, 70))]
        request = {
            "id": str(i),
            "prompt": prefix + suffix,
            "max_tokens": rng.randrange(2, 64),
            "add_at": i,
        }
        if i % 7 == 3:
            request["cancel"] = phases[i // 7 % 4]
        requests.append(request)
    return {
        "model": model,
        "dtype": "float32",
        "max_model_len": 512,
        "cap": 12,
        "token_budget": 256,
        "requests": requests,
        "poison": True,
    }


@pytest.fixture(scope="module")
def roomy(stress: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    """The same requests where nothing is evicted and nobody is cancelled."""
    chosen = settings(tiny(4), "s0", 8000 * 16384, block_size=32, slot_bytes=4096, cap=12)
    requests = [
        {key: value for key, value in request.items() if key != "cancel"}
        for request in stress["requests"]
    ]
    result = engines.run(stress | {"settings": chosen, "requests": requests})
    counters = result["memory"]["counters"]
    assert counters["lost_checkpoints"] == counters["lost_blocks"] == counters["preemptions"] == 0
    return result


PLAIN = {"reserve_fraction": 0.0}
KEEPING = PLAIN | {"retention": "k2", "pinning": "k1", "headroom": 0.03}
TIGHT: list[tuple[str, int, dict[str, Any]]] = [
    ("s0", 110, PLAIN),
    ("s1", 70, PLAIN),
    ("s2", 60, PLAIN),
    ("s3", 56, PLAIN),
    ("d0", 80, PLAIN),
    ("s1", 76, KEEPING),
    ("s2", 66, KEEPING),
    ("s3", 62, KEEPING),
    ("d0", 74, KEEPING),
]
"""Budgets in 32-token pages, too small for what twelve requests want."""


@pytest.mark.parametrize(("organization", "pages", "policies"), TIGHT)
def test_a_tight_pool_changes_no_token(
    organization: str,
    pages: int,
    policies: dict[str, Any],
    stress: dict[str, Any],
    roomy: dict[str, Any],
    engines: EngineProcess,
) -> None:
    chosen = settings(
        tiny(4), organization, pages * 16384, block_size=32, slot_bytes=4096, cap=12, **policies
    )
    result = engines.run(stress | {"settings": chosen})
    _assert_same_outputs(result, roomy)
    has_slabs = organization in ("s2", "s3")
    _assert_it_was_tight(result, keeping=policies is KEEPING, slabs=has_slabs)
    if organization == "s3":
        assert result["poisoned"]["tail slots"] > 500
    memory = result["memory"]
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert result["left"] == [0, 0, 0]  # blocks, checkpoints and slots after a reset


# -- states in place: the same tokens --------------------------------------------------------------


@pytest.fixture(scope="module")
def stock(stress: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    """The same requests, served by unpatched vLLM; nobody is cancelled."""
    requests = [
        {key: value for key, value in request.items() if key != "cancel"}
        for request in stress["requests"]
    ]
    return engines.run(stress | {"settings": None, "block_size": 32, "requests": requests})


@pytest.mark.parametrize(
    ("organization", "pages"), [("s0", 90), ("s1", 60), ("s2", 54), ("s3", 50), ("d0", 70)]
)
def test_states_in_place_give_the_tokens_of_unpatched_vllm(
    organization: str,
    pages: int,
    stress: dict[str, Any],
    stock: dict[str, Any],
    engines: EngineProcess,
) -> None:
    """The worker copies what a request hit, and copies checkpoints before they are overwritten."""
    chosen = settings(
        tiny(4),
        organization,
        pages * 16384,
        block_size=32,
        slot_bytes=4096,
        cap=12,
        placement="junction",
        states="in_place",
        **PLAIN,
    )
    result = engines.run(stress | {"settings": chosen})
    _assert_same_outputs(result, stock)
    memory, counters = result["memory"], result["memory"]["counters"]
    assert counters["lost_checkpoints"] > 100 and counters["preemptions"] > 5
    hits = sum(output["cached"] > 0 for output in result["outputs"].values())
    assert hits > 10 and memory["copies"]["state"] > 100 + hits
    assert memory["live"] == 0 and memory["free"] == memory["usable"]
    assert result["left"] == [0, 0, 0]


# -- conversations: the same tokens ----------------------------------------------------------------


@pytest.fixture(scope="module")
def talks(stress: dict[str, Any], engines: EngineProcess) -> dict[str, Any]:
    """Two turns of three conversations, one after the other, with the answers of unpatched vLLM."""
    rng = random.Random(8)

    def some(count: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(count)]

    prompts = {str(i): some(length) for i, length in enumerate((77, 40, 150))}
    job = stress | {"settings": None, "block_size": 32}
    first = engines.run(job | {"requests": [_turn(key, prompts[key]) for key in prompts]})
    answers = {key: first["outputs"][key]["tokens"] for key in prompts}
    requests = [_turn(key, prompt) for key, prompt in prompts.items()]
    requests += [
        _turn(f"{key} again", prompt + answers[key] + some(9)) for key, prompt in prompts.items()
    ]
    job |= {"requests": requests, "in_turn": len(requests)}
    return {"job": job, "expected": engines.run(job)["outputs"]}


def _turn(key: str, prompt: list[int]) -> dict[str, Any]:
    return {"id": key, "prompt": prompt, "max_tokens": 22, "add_at": 0}


@pytest.mark.parametrize("states", ["per_boundary", "in_place"])
@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_a_turn_that_goes_on_from_a_leaf_gives_the_tokens_of_unpatched_vllm(
    organization: str, states: str, talks: dict[str, Any], engines: EngineProcess
) -> None:
    chosen = settings(
        tiny(4), organization, 600 * 16384, block_size=32, slot_bytes=4096, cap=12, states=states
    )
    chosen["leaves"] = read_option("leaves", "final")
    result = engines.run(talks["job"] | {"settings": chosen})
    for key, output in result["outputs"].items():
        assert output["tokens"] == talks["expected"][key]["tokens"]
    for turn in talks["job"]["requests"][:3]:
        computed = len(turn["prompt"]) + turn["max_tokens"] - 1
        assert result["outputs"][f"{turn['id']} again"]["cached"] == computed
    assert result["left"] == [0, 0, 0]


def _assert_same_outputs(result: dict[str, Any], roomy: dict[str, Any]) -> None:
    """Finished ones have all tokens, cancelled ones the first of them."""
    cancelled, num_tokens = result["cancelled"].keys(), 0
    for key, expected in roomy["outputs"].items():
        output = result["outputs"].get(key)
        if output is None:
            assert key in cancelled
            continue
        count = len(output["tokens"])
        num_tokens += count
        assert output["finished"] or key in cancelled
        assert count == len(expected["tokens"]) or key in cancelled
        assert output["tokens"] == expected["tokens"][:count]
        for ours, theirs in zip(output["logprobs"], expected["logprobs"], strict=False):
            for token in ours.keys() & theirs.keys():
                assert ours[token] == pytest.approx(theirs[token], abs=1e-4)
    assert num_tokens > 25 * NUM_REQUESTS


def _assert_it_was_tight(result: dict[str, Any], *, keeping: bool, slabs: bool) -> None:
    """Everything that the test is about has happened."""
    counters = result["memory"]["counters"]
    assert counters["lost_checkpoints"] > 100 and counters["lost_blocks"] > 100
    assert counters["preemptions"] > 20 and counters["refusals"] > 100
    phases = Counter(result["cancelled"].values())
    assert min(phases[phase] for phase in ["waiting", "prefill", "decode", "preempted"]) > 0
    assert result["poisoned"]["pages"] > 500
    assert sum(output["cached"] > 0 for output in result["outputs"].values()) > 10
    if keeping:
        assert counters["retained_checkpoints"] > 50 and counters["pinned_checkpoints"] > 20
    if slabs:
        assert counters["reclaimed_slabs"] > 0
        # A state was lost, and its slot used again, while a request ran in the next slot.
        assert result["slabs"]["lost_beside_live"] > 50
        assert result["slabs"]["reused_beside_live"] > 50
        assert result["poisoned"]["slots"] > 500
