"""One real server for all tests: it serves, says what it runs, counts, and ends cleanly.

`python -m hsexp.serve` is `vllm serve` with two flags, which `test_serve_command.py` looks at.
"""

import random
import urllib.error
from collections.abc import Iterator

import pytest
from served import Server, free_port
from small_models import VOCABULARY, save_model, tiny

from hsexp.engine.report import plugin_digest

BUDGET_BYTES = 60 * 16384


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    save_model(folder / "model", tiny(4), dtype="float32")
    port = free_port()
    arguments = ["organization=s2", f"model={folder / 'model'}", f"budget_bytes={BUDGET_BYTES}"]
    arguments += [f"organization.{name}=32" for name in ("block_size", "checkpoint_grid")]
    arguments += ["organization.slot_bytes=4096", "retention=k2", "pinning=k1"]
    arguments += ["admission.headroom=0.05", "admission.cap=6"]
    arguments += ["served_model_name=tiny", "dtype=float32", "max_model_len=512"]
    arguments += ["enforce_eager=true", "skip_tokenizer_init=true"]
    arguments += ["host=127.0.0.1", f"port={port}"]
    running = Server("hsexp.serve", arguments, folder, port)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.kill()


def prompt(num_tokens: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(num_tokens)]


def test_the_engine_reports_what_was_asked_for(server: Server) -> None:
    ((labels, value),) = server.samples("hsexp:engine_info")
    assert value == 1
    expected = {
        "organization": "s2",
        "kind": "s2",
        "model": "tiny",
        "num_layers": "2",
        "budget_bytes": str(BUDGET_BYTES),
        "block_size": "32",
        "checkpoint_grid": "32",
        "pools": "shared=60",
        "page_bytes": "shared=16384",
        "headroom_pages": "shared=7",  # floor(0.08 * 60) + floor(0.05 * 60)
        "headroom": "0.05",
        "cap": "6",
        "retention": "k2",
        "retention_requesters": "2",
        "pinning": "k1",
        "pinning_requesters": "1",
        "exact": "false",
        "max_model_len": "512",
        "async_scheduling": "false",
        "num_workers": "1",
        "state_bytes": str(2 * BUDGET_BYTES),
        "kv_dtype": "float32",
        "conv_dtype": "float32",
        "ssm_dtype": "float32",
        "scheduler": "HybridScheduler",
        "plugin": plugin_digest(),
        "vllm": "0.27.1",
    }
    assert {name: labels[name] for name in expected} == expected
    assert labels["kernels"] != "stock"
    assert "hsexp organization s2 is active" in server.log


def test_a_prompt_is_answered_from_the_cache_with_the_same_tokens(server: Server) -> None:
    server.post("/reset_prefix_cache", {})
    tokens = prompt(70, seed=1)
    hits = server.value("vllm:prefix_cache_hits_total")
    first = server.complete("tiny", tokens, 12)
    assert server.complete("tiny", tokens, 12) == first
    assert server.value("vllm:prefix_cache_hits_total") - hits == 64


def test_gauges_and_counters_can_be_counted_by_hand(server: Server) -> None:
    server.post("/reset_prefix_cache", {})
    server.complete("tiny", prompt(3, seed=0), 2)  # steps, which tell what the reset has lost
    names = ("published_checkpoints", "lost_blocks", "preemptions", "refusals")
    before = {name: server.value(f"hsexp:{name}_total") for name in names}
    server.complete("tiny", prompt(70, seed=2), 4)
    # Two whole blocks are cached, and the checkpoint at 64 tokens: two members and a slot.
    assert server.value("hsexp:cached_pages", pool="shared") == 2 + 2 + 1
    assert server.value("hsexp:free_pages", pool="shared") == 59
    assert server.value("hsexp:referenced_pages", pool="shared") == 0
    assert server.value("hsexp:slabs") == 1
    assert server.value("hsexp:slab_slots") == 4
    assert server.value("hsexp:used_slab_slots") == 1
    assert server.value("hsexp:pinned") == 0
    after = {name: server.value(f"hsexp:{name}_total") for name in names}
    grown = {name: after[name] - before[name] for name in names}
    assert grown == {"published_checkpoints": 1, "lost_blocks": 0, "preemptions": 0, "refusals": 0}
    assert server.samples("hsexp:stranded_bytes") == []  # one pool strands nothing


def test_a_prompt_longer_than_the_model_is_refused_and_the_server_goes_on(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.complete("tiny", prompt(600, seed=3), 4)
    assert refused.value.code == 400
    assert len(server.complete("tiny", prompt(400, seed=4), 100)) == 100


def test_a_server_that_is_asked_to_end_leaves_no_process_behind(server: Server) -> None:
    code, left = server.end()
    assert code == 0, server.log[-3000:]
    assert not left
