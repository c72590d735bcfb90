"""What a GPU's first start would meet, found before weights are loaded: graphs, blocks, backends.

No GPU is here: vLLM's configuration is made on a CPU as if its steps ran in graphs.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from served_configs import FALCON_H1_7B, GRANITE_4_H, layers_of, served_config, write_config
from vllm import EngineArgs
from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backend import AttentionCGSupport, MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm.v1.worker.gpu.attn_utils import _reshape_attention_kv_cache

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, options, read_option
from hsexp.config.launch import parse_launch
from hsexp.engine import refusals
from hsexp.engine.plugin import register
from hsexp.engine.pools import PlannedCacheConfig, plan_pools
from hsexp.engine.settings import EngineSettings
from hsexp.memory.geometry import ModelConfig
from hsexp.plan.devices import budget_beside_weights
from hsexp.plan.planner import make_plan
from hsexp.plan.run import VllmRunConfig
from runners.vllm.command import engine_arguments

register()  # as vLLM does in every process that it starts

GRAPHS = {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
S0 = {"organization": "s0", "budget_bytes": 101_154_816}
"""The paper's smallest budget: 63 pages of S0."""
FALCON = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
GIB = 2**30


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this platform had graphs; the CPU's build would switch them off."""
    monkeypatch.setattr(CpuPlatform, "support_static_graph_mode", classmethod(lambda cls: True))


def check_graphs(config: VllmConfig, plan: PlannedCacheConfig) -> None:
    """vLLM's own check, which a worker makes after it has loaded the weights."""
    config.compilation_config.resolve_cudagraph_mode_and_sizes(
        AttentionCGSupport.ALWAYS,
        None,
        kv_cache_config=plan,
        max_num_reqs=config.scheduler_config.max_num_seqs,
    )


# -- graphs ----------------------------------------------------------------------------------------


def test_an_open_cap_follows_the_number_of_blocks(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S0, **GRAPHS)
    assert config.scheduler_config.max_num_seqs == 63
    assert EngineSettings.of(config.additional_config).admission.cap == 63
    (plan,) = plan_pools(config, [layers_of(FALCON)], [20 * GIB])
    check_graphs(config, plan)


def test_without_graphs_an_open_cap_stays_vllms(tmp_path: Path) -> None:
    eager = served_config(tmp_path, FALCON_H1_7B, S0, enforce_eager=True)
    assert eager.scheduler_config.max_num_seqs > 63


def test_enough_blocks_leave_an_open_cap_as_it_is(tmp_path: Path) -> None:
    stock = served_config(tmp_path, FALCON_H1_7B, S0, enforce_eager=True)
    roomy = {"organization": "s0", "budget_bytes": 1_000_000_000}
    config = served_config(tmp_path, FALCON_H1_7B, roomy, **GRAPHS)
    assert config.scheduler_config.max_num_seqs == stock.scheduler_config.max_num_seqs


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [({}, {"max_num_seqs": 64}), ({"admission": {"cap": 64}}, {})],
    ids=["max_num_seqs", "cap"],
)
def test_a_cap_that_exceeds_the_blocks_is_refused_before_weights_are_loaded(
    settings: dict[str, Any], arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        served_config(tmp_path, FALCON_H1_7B, S0 | settings, **arguments, **GRAPHS)
    assert str(refused.value) == (
        "max_num_seqs 64 (admission.cap) exceeds the 63 blocks that organization s0 has under this "
        "budget, and graphs want a block for each running request: 63 is the most, and "
        "enforce_eager=true runs without graphs"
    )
    served_config(tmp_path, FALCON_H1_7B, S0 | settings, **arguments, enforce_eager=True)


def test_a_budget_that_vllm_measures_is_checked_when_it_is_known(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, {"organization": "s0"}, **GRAPHS)
    with pytest.raises(ConfigError, match=r"exceeds the \d+ blocks that organization s0 has"):
        plan_pools(config, [layers_of(FALCON)], [4 * GIB])


# -- attention backends that split blocks ----------------------------------------------------------


class SplittingBackend(CPUAttentionBackend):
    """Kernels for blocks of 64 tokens at most, as FlashInfer's on a GPU before Blackwell."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [16, 32, 64]

    @staticmethod
    def get_name() -> str:
        return "FLASHINFER"


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "get_attn_backend", lambda *args, **kwargs: SplittingBackend)


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("budget", [{"budget_bytes": 101_154_816}, {}], ids=["given", "open"])
def test_a_backend_that_splits_padded_blocks_is_refused_by_name(
    budget: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        served_config(tmp_path, FALCON_H1_7B, {"organization": "s0"} | budget)
    assert str(refused.value) == (
        "attention backend FLASHINFER splits blocks of 512 tokens into blocks of 64, and those of "
        "organization s0 are padded, which vLLM cannot split: attention_backend=FLASH_ATTN and "
        "attention_backend=TRITON_ATTN split none, and organizations s1, s2 and d0 have no padding"
    )


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("organization", ["s1", "s2", "s3", "d0"])
def test_blocks_without_padding_may_be_split(organization: str, tmp_path: Path) -> None:
    max_leaves = {"max_leaves": 0} if organization == "s3" else {}
    chosen = {"organization": organization, "budget_bytes": 101_154_816} | max_leaves
    served_config(tmp_path, FALCON_H1_7B, chosen)


def test_padded_blocks_are_served_by_a_backend_that_splits_none(tmp_path: Path) -> None:
    served_config(tmp_path, FALCON_H1_7B, S0)


def test_the_backend_that_is_asked_is_the_one_that_layers_choose(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S0)
    assert refusals._attention_backend(config) is CPUAttentionBackend


@pytest.mark.parametrize("part", [512, 64])
def test_vllm_itself_cannot_split_padded_blocks(part: int, tmp_path: Path) -> None:
    """Why the backend is refused. If this fails for 64, a newer vLLM can, and it need not be."""
    config = served_config(tmp_path, FALCON_H1_7B, S0)
    (plan,) = plan_pools(config, [layers_of(FALCON)], [20 * GIB])
    attention = plan.kv_cache_groups[0].kv_cache_spec
    assert isinstance(attention, AttentionSpec)
    if part == 512:
        assert make_view(plan, attention, part).shape[0] == plan.num_blocks
    else:
        with pytest.raises(RuntimeError, match="out of bounds"):
            make_view(plan, attention, part)


def make_view(plan: PlannedCacheConfig, spec: AttentionSpec, part: int) -> torch.Tensor:
    """The cache of the first attention layer, in kernels' blocks of `part` tokens."""
    num_blocks = plan.num_blocks * spec.block_size // part
    shape = TritonAttentionBackend.get_kv_cache_shape(
        num_blocks, part, spec.num_kv_heads, spec.head_size
    )
    order = tuple(range(len(shape)))
    raw = torch.empty(plan.kv_cache_tensors[0].size, dtype=torch.int8)
    return _reshape_attention_kv_cache(raw, spec, shape, order, num_blocks, None)


# -- every campaign --------------------------------------------------------------------------------


CAMPAIGNS = [
    name
    for name in options("campaign")
    if read_option("campaign", name)["campaign"]["kind"] == "serving"
]
GPUS = [
    name
    for name in options("device")
    if (read_option("device", name).get("hardware") or {}).get("platform") == "cuda"
]
LAUNCHES = [
    *[(f"campaign={name}", "device=a100_40gb") for name in CAMPAIGNS],
    *[("campaign=q1", f"device={name}") for name in GPUS if name != "a100_40gb"],
    ("campaign=q1", "model=granite_4_h", "device=h100"),
    ("campaign=q1", "organization=s3", "device=a100_40gb"),
    # Fewer blocks than the cap: S0 has 56.
    ("campaign=q1", "budget=bytes", "budget.bytes=90000000", "admission.cap=63"),
]
REFUSED = {
    "live_separation": "scheduler.separate must be false unless engine is sim",
    "q10": "budget boundless of 8,589,934,592 bytes does not fit on device a100_40gb",
    "trace": "budget b320 of 513,802,240 bytes does not fit on device a100_40gb",
}
"""Campaigns that vLLM cannot run on an A100 with 40 GB, and why."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The configuration of each model that campaigns serve, without weights."""
    found = {}
    for name, config in {"falcon_h1_7b": FALCON_H1_7B, "granite_4_h": GRANITE_4_H}.items():
        found[name] = tmp_path_factory.mktemp(name)
        write_config(found[name], config)
    return found


@pytest.mark.parametrize("launch", LAUNCHES, ids=" ".join)
def test_every_served_plan_passes_vllms_own_check_of_sizes(
    launch: tuple[str, ...], folders: dict[str, Path], tmp_path: Path
) -> None:
    trace = tmp_path / "requests.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.0,600,20\n")
    needs_trace = launch[0].partition("=")[2] in ("advise", "trace")
    given = (*launch, *([f"workload.path={trace}"] if needs_trace else ["seeds=[7]"]))
    reason = REFUSED.get(launch[0].partition("=")[2])
    if reason is not None:
        with pytest.raises(ConfigError) as refused:
            served_cells(*given)
        assert str(refused.value).startswith(reason)
        assert "\n" not in str(refused.value)
        return
    cells, free_bytes = served_cells(*given)
    settings = {serving_key(config): config for config in cells}
    assert settings
    for config in settings.values():
        check_start(config, folders[config.model.name], free_bytes)


def served_cells(*overrides: str) -> tuple[list[VllmRunConfig], int]:
    """The cells of a real launch, and what the GPU has for states beside the weights."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", [*overrides, "engine=vllm"]))
        plan = make_plan(launch, engine="vllm")
    free_bytes = budget_beside_weights(launch.device, launch.model).num_bytes
    return [VllmRunConfig.parse(cell.config) for cell in plan.cells], free_bytes


def serving_key(config: VllmRunConfig) -> str:
    """All that vLLM is started with."""
    arguments = engine_arguments(config, record=Path("record"), trace=Path("trace"))
    return json.dumps([config.model.name, arguments])


def check_start(config: VllmRunConfig, folder: Path, free_bytes: int) -> None:
    """What a server checks from its arguments to its cache, without weights."""
    arguments = engine_arguments(config, record=Path("record"), trace=Path("trace"))
    graphs = {} if arguments["enforce_eager"] else GRAPHS
    started = EngineArgs(model=str(folder), **arguments, **graphs).create_engine_config()
    assert isinstance(config.model, ModelConfig)
    (plan,) = plan_pools(started, [layers_of(config.model)], [free_bytes])
    check_graphs(started, plan)
    for group in plan.kv_cache_groups:
        page_bytes = group.kv_cache_spec.page_size_bytes
        for tensor in plan.kv_cache_tensors:
            if set(tensor.shared_by) & set(group.layer_names):
                assert tensor.size % page_bytes == 0  # vLLM asserts it when it makes the cache
                assert tensor.size // page_bytes <= plan.num_blocks
    (attention, *_) = plan.kv_cache_groups
    assert TritonAttentionBackend.supports_block_size(attention.kv_cache_spec.block_size)


def test_vllms_own_check_finds_a_cap_that_is_too_high(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    config = served_config(tmp_path, FALCON_H1_7B, S0, **GRAPHS)
    (plan,) = plan_pools(config, [layers_of(FALCON)], [20 * GIB])
    config.scheduler_config.max_num_seqs = plan.num_blocks + 1
    with pytest.raises(ValueError, match="exceeds available Mamba cache blocks"):
        check_graphs(config, plan)
