"""The report of an engine core: complete on its way to a front end, and false about nothing."""

import logging
from pathlib import Path

import msgspec
import pytest
from vllm.v1.engine import EngineCoreReadyResponse
from vllm_scheduler import build_scheduler, settings, vllm_config

from hsexp.config.base import ConfigError
from hsexp.engine.report import (
    EngineReport,
    WorkerReport,
    engine_report,
    keep_received,
    keep_workers,
    kept_reports,
    plugin_digest,
    with_report,
)
from hsexp.engine.targets import PatchError

CHOSEN = settings("s2", "b63", headroom=0.19, retention="k2", pinning="k1", cap=40)
PLANNED_BYTES = 193 * 512 * 1024 * 44  # Table B-2; 44 layers

WORKER = WorkerReport(
    kernels="test",
    kv_dtype="bfloat16",
    conv_dtype="bfloat16",
    ssm_dtype="bfloat16",
    state_bytes=PLANNED_BYTES,
    plugin=plugin_digest(),
)
READY = EngineCoreReadyResponse(
    max_model_len=1,
    num_gpu_blocks=1,
    block_size=1,
    dp_stats_address=None,
    dtype="bfloat16",
    vllm_version="0.27.1",
    world_size=1,
    data_parallel_size=1,
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    decode_context_parallel_size=1,
    data_parallel_rank=3,
    max_num_seqs=1,
    max_num_batched_tokens=1,
    instance_id="",
)


def report_of(folder: Path) -> EngineReport:
    config = vllm_config(CHOSEN, folder)
    keep_workers(config, [WORKER, WORKER])
    build_scheduler(CHOSEN, config)
    (report,) = kept_reports(config).values()
    return report


def test_a_scheduler_reports_what_it_and_its_workers_run(tmp_path: Path) -> None:
    labels = report_of(tmp_path).labels()
    expected = {
        "organization": "s2",
        "pools": "shared=193",
        "page_bytes": "shared=524288",
        "headroom_pages": "shared=51",  # floor(0.08 * 193) + floor(0.19 * 193)
        "headroom": "0.19",
        "cap": "40",
        "retention": "k2",
        "pinning": "k1",
        "num_workers": "2",
        "state_bytes": str(PLANNED_BYTES),
    }
    assert {name: labels[name] for name in expected} == expected


@pytest.mark.parametrize(("max_model_len", "warned"), [(513, True), (514, False)])
def test_an_engine_that_can_never_reuse_a_prefix_says_so(
    max_model_len: int,
    warned: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A hit ends on the grid of 512, below the last token of a prompt, and a token is generated.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    config = vllm_config(CHOSEN, tmp_path, max_model_len=max_model_len)
    keep_workers(config, [WORKER, WORKER])
    build_scheduler(CHOSEN, config)
    assert ("none will ever be answered from the cache" in caplog.text) is warned


def test_a_front_end_receives_the_report_unchanged(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    payload = msgspec.msgpack.encode(with_report(READY, report))
    front_end = vllm_config(CHOSEN, tmp_path)
    keep_received(front_end, payload)
    assert kept_reports(front_end) == {3: report}
    # vLLM's own front end reads the rest of it.
    assert msgspec.msgpack.decode(payload, type=EngineCoreReadyResponse) == READY


def test_a_front_end_refuses_an_engine_core_without_a_report(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="the engine core runs without the hsexp plugin"):
        keep_received(vllm_config(CHOSEN, tmp_path), msgspec.msgpack.encode(READY))


def test_an_engine_without_an_organization_has_no_report(tmp_path: Path) -> None:
    class StockEngine:
        vllm_config = vllm_config(CHOSEN, tmp_path)

    with pytest.raises(ConfigError, match="runs without an hsexp organization"):
        engine_report(StockEngine())


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"state_bytes": 1}, ConfigError, "worker 1 has allocated 1 bytes of state; 4,452,253,696"),
        ({"plugin": "0" * 16}, PatchError, "worker 1 runs plugin source 0000000000000000"),
        ({"ssm_dtype": "float32"}, ConfigError, "worker 1 differs from worker 0"),
    ],
)
def test_a_worker_that_is_not_as_planned_stops_the_start(
    changes: dict[str, object], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    config = vllm_config(CHOSEN, tmp_path)
    with pytest.raises(error, match=reason):
        keep_workers(config, [WORKER, WORKER.model_copy(update=changes)])
