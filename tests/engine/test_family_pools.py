"""Pools and tables of models whose last groups lack layers, and of gated delta net."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from served_configs import BAMBA_LIKE, GRANITE_4_H, QWEN3_NEXT, served_config
from toy_core import toy_settings
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.request import Request

from hsexp.config.base import ConfigError
from hsexp.engine.fresh import clear_fresh_states
from hsexp.engine.manager import HybridCacheManager
from hsexp.engine.pools import PlannedCacheConfig, plan_pools
from hsexp.memory.geometry import ModelConfig

GIB = 2**30


def planned(
    tmp_path: Path,
    config: dict[str, Any],
    organization: str,
    *,
    attention: FullAttentionSpec,
    mamba: MambaSpec,
    num_layers: tuple[int, int],
) -> PlannedCacheConfig:
    """The pools of a model with so many attention and recurrent layers."""
    budget = {"organization": organization, "budget_bytes": 173_015_040}
    layers: dict[str, Any] = {f"attention.{i}": attention for i in range(num_layers[0])}
    layers |= {f"mamba.{i}": mamba for i in range(num_layers[1])}
    (plan,) = plan_pools(served_config(tmp_path, config, budget), [layers], [GIB])
    return plan


GRANITE: dict[str, Any] = {
    "attention": FullAttentionSpec(
        block_size=512, num_kv_heads=4, head_size=128, dtype=torch.bfloat16
    ),
    "mamba": MambaSpec(
        block_size=512,
        shapes=((3, 4352), (64, 64, 128)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        mamba_cache_mode="align",
    ),
}


# -- short groups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_the_last_of_three_groups_of_ten_has_nine_layers(organization: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, BAMBA_LIKE, organization, num_layers=(3, 29), **GRANITE)
    owners = [tensor.shared_by for tensor in plan.kv_cache_tensors]
    last = [f"mamba.{i}" for i in range(20, 29)]
    if organization == "d0":
        assert owners[4:] == [["attention.2"], last]
    else:
        assert owners[2:] == [["attention.2", *last]]
    assert [plan.composites[f"mamba.{i}"] for i in (0, 9, 10, 28)] == [0, 9, 0, 8]
    assert sum(tensor.size for tensor in plan.kv_cache_tensors) == plan.settings.state_bytes
    assert plan.settings.state_bytes == 3 * plan.settings.plan.total_bytes


def test_a_group_without_recurrent_layers_has_no_pool_for_their_states(tmp_path: Path) -> None:
    kinds = ["mamba", "attention"] * 3 + ["attention", "mamba", "mamba"]
    uneven = GRANITE_4_H | {"num_hidden_layers": len(kinds), "layer_types": kinds}
    plan = planned(tmp_path, uneven, "d0", num_layers=(4, 5), **GRANITE)  # 2, 2, 1 and 0
    owners = [tensor.shared_by for tensor in plan.kv_cache_tensors]
    assert owners[4:] == [["attention.2"], ["mamba.4"], ["attention.3"]]
    attention, recurrent = plan.settings.plan.pools
    assert plan.settings.state_bytes == 4 * attention.total_bytes + 3 * recurrent.total_bytes
    assert sum(tensor.size for tensor in plan.kv_cache_tensors) == plan.settings.state_bytes


# -- gated delta net -------------------------------------------------------------------------------


DELTA_NET: dict[str, Any] = {
    "attention": FullAttentionSpec(
        block_size=512, num_kv_heads=2, head_size=64, dtype=torch.bfloat16
    ),
    "mamba": MambaSpec(
        block_size=512,
        shapes=((3, 512), (4, 64, 64)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
        mamba_cache_mode="align",
    ),
}


@pytest.mark.parametrize("organization", ["s0", "d0"])
def test_each_recurrent_layer_of_an_attention_layer_has_a_table_of_its_own(
    organization: str, tmp_path: Path
) -> None:
    plan = planned(tmp_path, QWEN3_NEXT, organization, num_layers=(2, 6), **DELTA_NET)
    attention, *states = plan.kv_cache_groups
    assert [group.layer_names for group in states] == [
        ["mamba.0", "mamba.3"],
        ["mamba.1", "mamba.4"],
        ["mamba.2", "mamba.5"],
    ]
    pools = plan.settings.plan.pools
    assert attention.kv_cache_spec.page_size_bytes == pools[0].page_bytes
    assert {group.kv_cache_spec.page_size_bytes for group in states} == {pools[-1].page_bytes}


@pytest.mark.parametrize("organization", ["s1", "s2", "s3"])
def test_gated_delta_net_is_refused_where_a_state_takes_several_pages(
    organization: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"organization {organization} keeps a state in several"):
        served_config(tmp_path, QWEN3_NEXT, {"organization": organization})


def test_mamba_layers_in_a_plan_for_gated_delta_net_stop_the_start(tmp_path: Path) -> None:
    mamba = MambaSpec(
        block_size=512,
        shapes=((3, 512), (4, 64, 64)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        mamba_cache_mode="align",
    )
    with pytest.raises(ConfigError, match=r"mamba\.0 is MAMBA2, which is not gated delta net"):
        planned(tmp_path, QWEN3_NEXT, "s0", num_layers=(2, 6), **DELTA_NET | {"mamba": mamba})


def test_every_group_has_its_own_pages_of_one_state() -> None:
    chosen = toy_settings("s0", 30)
    assert isinstance(chosen.model, ModelConfig)
    layers = {"num_attention_layers": 1, "num_recurrent_layers": 3}
    chosen = chosen.model_copy(update={"model": chosen.model.model_copy(update=layers)})
    manager = HybridCacheManager(
        chosen.memory(),
        chosen.chunking,
        hash_block_size=8,
        attention_group=0,
        num_state_groups=3,
        enable_caching=True,
        log_stats=False,
    )
    manager.new_step_starts()
    init_none_hash(sha256)
    request = Request(
        request_id="a",
        prompt_token_ids=list(range(20)),
        sampling_params=SamplingParams(max_tokens=10),
        pooling_params=None,
        block_hasher=get_request_block_hasher(8, sha256),
    )
    manager.get_computed_blocks(request)
    first = manager.allocate_slots(request, 16, has_scheduled_reqs=False)
    assert first is not None
    attention, *tables = first.get_block_ids()
    assert [table[:-1] for table in tables] == [[0]] * 3  # no state at 8
    states = [table[-1] for table in tables]
    assert len({*attention, *states}) == 2 + 3
    manager.new_step_starts()
    request.num_computed_tokens = 16
    second = manager.allocate_slots(request, 4)
    assert second is not None
    _, *news = second.get_block_ids()
    assert [len(new) for new in news] == [1, 1, 1]
    assert manager.get_block_ids("a")[1:] == tuple(
        [*table, *new] for table, new in zip(tables, news, strict=True)
    )


def test_only_a_state_that_has_seen_no_token_is_cleared_before_a_decode() -> None:
    def group(kind: Any, name: str) -> SimpleNamespace:
        return SimpleNamespace(kv_cache_spec=SimpleNamespace(mamba_type=kind), layer_names=[name])

    layers = {
        name: SimpleNamespace(kv_cache=(torch.ones(6, 2), torch.ones(6, 3)))
        for name in ("mamba", "delta")
    }
    requests = {
        "fresh": SimpleNamespace(num_computed_tokens=0, block_ids=([9], [1], [2])),
        "decodes": SimpleNamespace(num_computed_tokens=7, block_ids=([9], [3], [4])),
        "long": SimpleNamespace(num_computed_tokens=0, block_ids=([9], [5], [5])),
    }
    clear_fresh_states(
        SimpleNamespace(num_scheduled_tokens={"fresh": 1, "decodes": 1, "long": 2}),
        SimpleNamespace(
            kv_cache_groups=[
                SimpleNamespace(kv_cache_spec=object(), layer_names=["attention"]),
                group(MambaAttentionBackendEnum.MAMBA2, "mamba"),
                group(MambaAttentionBackendEnum.GDN_ATTN, "delta"),
            ]
        ),
        {"fresh": 0, "decodes": 0, "long": 0},
        requests,
        layers,
    )
    for states in layers["mamba"].kv_cache:
        assert states.eq(1).all()
    for states in layers["delta"].kv_cache:
        assert states.eq(0).all(dim=1).tolist() == [False, False, True, False, False, False]
