"""Two flags make a whole configuration, and what does not agree with them stops the start."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm.v1.engine.core
from served_configs import FALCON_H1_7B, GRANITE_4_H, served_config, stock_config
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec
from vllm_scheduler import build_scheduler, kv_cache_config, settings, vllm_config

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.engine import plugin, targets
from hsexp.engine.pools import PlannedCacheConfig, plan_pools, planned_settings, settings_of
from hsexp.engine.settings import EngineSettings
from hsexp.engine.targets import PatchError

ASYNC_SCHEDULER = "hsexp.engine.scheduler.AsyncHybridScheduler"
S2 = {"organization": "s2", "budget_bytes": 101_154_816}


# -- what follows from two flags -------------------------------------------------------------------


def test_everything_else_follows_from_the_two_flags(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    cache = config.cache_config
    assert (cache.block_size, cache.mamba_block_size) == (512, 512)
    assert (cache.mamba_cache_mode, cache.enable_prefix_caching) == ("align", True)
    assert config.scheduler_config.async_scheduling is False
    chosen = EngineSettings.of(config.additional_config)
    assert chosen.organization.model_dump(mode="json") == read_option("organization", "s2")
    assert chosen.admission.cap == config.scheduler_config.max_num_seqs
    assert (chosen.admission.headroom, chosen.exact) == (0.0, False)
    assert (chosen.retention.requesters, chosen.pinning.requesters) == (None, None)
    assert [pool.num_pages for pool in chosen.plan.pools] == [193]  # Table B-2


def test_options_of_conf_are_named_and_whole_mappings_are_taken_as_they_are(
    tmp_path: Path,
) -> None:
    chosen = EngineSettings.of(
        served_config(
            tmp_path,
            FALCON_H1_7B,
            {
                "organization": read_option("organization", "d0") | {"attention_fraction": 0.25},
                "admission": {"headroom": 0.19, "cap": 63},
                "retention": "k2",
                "pinning": {"name": "mine", "requesters": 2, "protected_fraction": 0.1},
            },
        ).additional_config
    )
    assert chosen.layout.checkpoint_grid == 1792
    assert chosen.organization.attention_fraction == 0.25
    assert chosen.admission.model_dump() == {"headroom": 0.19, "cap": 63}
    assert (chosen.retention.requesters, chosen.pinning.protected_fraction) == (2, 0.1)
    assert chosen.budget_bytes is None  # what vLLM has is known when it has loaded the model


def test_a_budget_in_gib_is_shared_by_all_layers_and_never_exceeded(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, {"organization": "s2", "budget_gib": 4.01})
    chosen = EngineSettings.of(config.additional_config)
    # 4.01 GiB / 44 layers / 512 KiB = 186.6 pages
    assert [pool.num_pages for pool in chosen.plan.pools] == [186]


def test_a_cpu_is_asked_for_the_memory_of_the_budget_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it vLLM wants 92 % of the machine's memory to be free, whatever the budget."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    given = served_config(tmp_path, FALCON_H1_7B, S2).cache_config.kv_cache_memory_bytes
    assert given == 193 * 512 * 1024 * 44  # pages, bytes of a page, attention layers
    unlimited = served_config(tmp_path, FALCON_H1_7B, {"organization": "s2"})
    assert unlimited.cache_config.kv_cache_memory_bytes is None


def test_memory_that_the_user_gives_to_a_cpu_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    assert config.cache_config.kv_cache_memory_bytes == 7 << 30


def test_resolved_settings_resolve_to_themselves(tmp_path: Path) -> None:
    first = served_config(tmp_path, FALCON_H1_7B, S2).additional_config
    second = served_config(tmp_path, FALCON_H1_7B, first["hsexp"]).additional_config
    assert json.dumps(second, sort_keys=True) == json.dumps(first, sort_keys=True)


def test_without_the_flags_vllm_configures_itself(tmp_path: Path) -> None:
    config = stock_config(tmp_path, FALCON_H1_7B)
    assert config.additional_config == {}
    assert settings_of(config) is None


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"block_size": 1024}, "block_size 1024 contradicts hsexp, which makes it 512"),
        ({"mamba_block_size": 1024}, "mamba_block_size 1024 contradicts hsexp"),
        ({"mamba_cache_mode": "all"}, "mamba_cache_mode all contradicts hsexp"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching False contradicts"),
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill False contradicts"),
        ({"async_scheduling": True}, "async_scheduling True contradicts hsexp"),
        ({"watermark": 0.1}, "watermark 0.1 contradicts hsexp: admission.headroom decides"),
        ({"scheduler_reserve_full_isl": False}, "scheduler_reserve_full_isl False contradicts"),
        ({"num_gpu_blocks_override": 9}, "num_gpu_blocks_override 9 contradicts"),
        ({"prefix_match_unit": 64}, "prefix_match_unit 64 contradicts"),
        ({"disable_hybrid_kv_cache_manager": True}, "disable_hybrid_kv_cache_manager True"),
        (
            {"max_num_batched_tokens": 256, "max_num_seqs": 8},
            r"max_num_batched_tokens 256 must hold a chunk of one checkpoint grid \(512 tokens\)",
        ),
        ({"long_prefill_token_threshold": 100}, "long_prefill_token_threshold 100 must hold"),
        ({"scheduler_cls": None}, r"additional_config\.hsexp needs scheduler_cls"),
        ({"scheduler_cls": ASYNC_SCHEDULER}, "vLLM has made async_scheduling False"),
    ],
)
def test_a_value_that_contradicts_is_refused_by_name_and_never_overwritten(
    arguments: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        served_config(tmp_path, FALCON_H1_7B, S2, **arguments)


@pytest.mark.parametrize(
    ("changes", "arguments", "reason"),
    [
        ({"admission": {"cap": 7}}, {"max_num_seqs": 8}, "max_num_seqs 8 contradicts hsexp"),
        ({"budget_gib": 1}, {}, "budget_bytes 101154816 and budget_gib 1.0 are two budgets"),
        ({"organization": "s4"}, {}, "organization 's4' does not exist; choose from d0"),
        ({"retention": "k9"}, {}, "retention 'k9' does not exist"),
        ({"admission": {"headroom": 1.0}}, {}, r"hsexp\.admission\.headroom must be less than 1"),
        ({"headroom": 0.1}, {}, r"hsexp\.headroom is not a known setting here"),
        (
            {"budget_bytes": 1000},
            {},
            "budget_bytes 1000 a layer: pool shared needs at least 2 pages, got 0",
        ),
        (
            {"model": read_option("model", "falcon_h1_mini")},
            {},
            "model.head_dim 64 contradicts the served model",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Any], arguments: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        served_config(tmp_path, FALCON_H1_7B, S2 | changes, **arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "prompt_lookup_max": 3,
                }
            },
            "speculative decoding",
        ),
        (
            {
                "kv_transfer_config": KVTransferConfig(
                    kv_connector="ExampleConnector", kv_role="kv_both"
                )
            },
            "a KV connector",
        ),
        ({"kv_events_config": KVEventsConfig(enable_kv_cache_events=True)}, "KV-cache events"),
        ({"kv_cache_metrics": True}, "KV-cache residency metrics"),
        ({"kv_cache_dtype": "fp8"}, "KV-cache quantization"),
        ({"tensor_parallel_size": 2}, "tensor parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
    ],
)
def test_a_feature_without_memory_rules_is_refused_by_name(
    arguments: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"hsexp organizations do not support {reason}"):
        served_config(tmp_path, FALCON_H1_7B, S2, **arguments)


def test_a_scheduler_refuses_what_its_configuration_was_given_by_hand(tmp_path: Path) -> None:
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path)
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True)
    with pytest.raises(ConfigError, match="do not support KV-cache events"):
        build_scheduler(chosen, config)


@pytest.mark.parametrize("tokens", ["0", "4096"])
def test_stock_retention_is_refused_and_not_ignored(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM checks it, also for us, and its own manager then keeps fewer states; ours keeps them all.
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path)
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", tokens)
    named = "do not support VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    with pytest.raises(ConfigError, match=named):
        build_scheduler(chosen, config)
    with pytest.raises(ConfigError, match=named):
        served_config(tmp_path, FALCON_H1_7B, S2)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("scheduler_config", "watermark", 0.1),
        ("scheduler_config", "scheduler_reserve_full_isl", False),
        ("scheduler_config", "disable_hybrid_kv_cache_manager", True),
        ("cache_config", "num_gpu_blocks_override", 9),
        ("cache_config", "prefix_match_unit", 64),
    ],
)
def test_a_scheduler_refuses_values_that_its_memory_would_ignore(
    part: str, field: str, value: Any, tmp_path: Path
) -> None:
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path)
    setattr(getattr(config, part), field, value)
    with pytest.raises(ConfigError, match=f"{field} {value} contradicts hsexp"):
        build_scheduler(chosen, config)


def test_a_slot_that_holds_one_of_nine_convolution_states_is_refused(tmp_path: Path) -> None:
    small = read_option("organization", "s2") | {"slot_bytes": 32768}
    with pytest.raises(ConfigError, match=r"slot_bytes 32768 must hold 9 .* 262144 makes 4 slots"):
        served_config(tmp_path, GRANITE_4_H, S2 | {"organization": small})


def test_a_page_that_does_not_divide_into_whole_lines_is_refused(tmp_path: Path) -> None:
    # 7 slots of 74,898 bytes and a rest of 2: lines would drift into other pages.
    odd = read_option("organization", "s2") | {"slot_bytes": 74_898}
    with pytest.raises(ConfigError, match="524288 bytes does not divide into 7 convolution lines"):
        served_config(tmp_path, FALCON_H1_7B, S2 | {"organization": odd})


def test_states_that_do_not_divide_into_whole_heads_a_page_are_refused(tmp_path: Path) -> None:
    # 22 heads of 64 KiB in pages of 512 KiB
    uneven = FALCON_H1_7B | {"mamba_n_heads": 22, "mamba_d_ssm": 22 * 128}
    with pytest.raises(ConfigError, match="does not divide into head-aligned members of 524288"):
        served_config(tmp_path, uneven, S2)
    served_config(tmp_path, uneven, S2 | {"organization": "s0"})


# -- pools for the loaded layers -------------------------------------------------------------------


ATTENTION = FullAttentionSpec(block_size=512, num_kv_heads=2, head_size=128, dtype=torch.bfloat16)
MAMBA = MambaSpec(
    block_size=512,
    shapes=((3, 3584), (24, 128, 256)),
    dtypes=(torch.bfloat16, torch.bfloat16),
    mamba_cache_mode="align",
)
GIB = 2**30


def falcon_layers(
    attention: Any = ATTENTION, mamba: Any = MAMBA, num_layers: int = 44
) -> dict[str, Any]:
    return {f"attention.{i}": attention for i in range(num_layers)} | {
        f"mamba.{i}": mamba for i in range(num_layers)
    }


GRANITE_ATTENTION = replace(ATTENTION, num_kv_heads=4)
GRANITE_MAMBA = replace(MAMBA, shapes=((3, 4352), (64, 64, 128)))


def granite_layers(*, num_mamba: int = 36) -> dict[str, Any]:
    return {f"attention.{i}": GRANITE_ATTENTION for i in range(4)} | {
        f"mamba.{i}": GRANITE_MAMBA for i in range(num_mamba)
    }


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "d0"])
def test_nine_recurrent_layers_share_what_their_attention_layer_has(
    organization: str, tmp_path: Path
) -> None:
    budget = {"organization": organization, "budget_bytes": 173_015_040}
    config = served_config(tmp_path, GRANITE_4_H, budget)
    (plan,) = plan_pools(config, [granite_layers()], [GIB])
    attention, mamba = plan.kv_cache_groups
    owners = [tensor.shared_by for tensor in plan.kv_cache_tensors]
    second = [f"mamba.{i}" for i in range(9, 18)]
    if organization == "d0":
        assert (len(owners), owners[2:4]) == (8, [["attention.1"], second])
    else:
        assert (len(owners), owners[1]) == (4, ["attention.1", *second])
    # vLLM's own arithmetic over a tensor: as many pages as the plan has.
    pools = plan.settings.plan.pools
    for group, pool in ((attention, pools[0]), (mamba, pools[-1])):
        assert group.kv_cache_spec.page_size_bytes == pool.page_bytes
    assert [plan.composites[f"mamba.{i}"] for i in (0, 8, 9, 35)] == [0, 8, 0, 8]


def test_another_number_of_recurrent_layers_stops_the_start(tmp_path: Path) -> None:
    budget = {"organization": "s0", "budget_bytes": 173_015_040}
    config = served_config(tmp_path, GRANITE_4_H, budget)
    with pytest.raises(ConfigError, match="has 35 Mamba2 layers, and the pools are planned for 36"):
        plan_pools(config, [granite_layers(num_mamba=35)], [GIB])


def test_a_budget_left_open_becomes_what_the_tightest_worker_has(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, {"organization": "s2"})
    plans = plan_pools(config, [falcon_layers()] * 2, [5 * GIB, 4 * GIB])
    assert [plan.num_blocks for plan in plans] == [186, 186]  # 2**32 / 44 / 512 KiB
    assert all(sum(t.size for t in plan.kv_cache_tensors) <= 4 * GIB for plan in plans)
    settled = settings_of(config)
    assert settled is not None and settled == plans[0].settings
    assert [pool.num_pages for pool in settled.plan.pools] == [186]


def test_pools_are_planned_for_no_other_scheduler(tmp_path: Path) -> None:
    plugin.register()
    plan = vllm.v1.engine.core.get_kv_cache_configs  # as the plugin has replaced it
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    (pools,) = plan(config, [falcon_layers()], [20 * GIB])
    assert isinstance(pools, PlannedCacheConfig)
    config.scheduler_config.scheduler_cls = Scheduler
    with pytest.raises(ConfigError, match=r"HybridScheduler, got vllm\.v1.*\.Scheduler"):
        plan(config, [falcon_layers()], [20 * GIB])


def test_a_worker_learns_the_planned_block_sizes_with_its_pages(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    (plan,) = plan_pools(config, [falcon_layers()], [20 * GIB])
    config.cache_config.block_size = config.cache_config.mamba_block_size = 2048  # vLLM's choice
    assert planned_settings(config, plan) == plan.settings
    assert (config.cache_config.block_size, config.cache_config.mamba_block_size) == (512, 512)


def test_a_worker_refuses_pages_that_were_not_planned_for_its_settings(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    stock = kv_cache_config(settings("s2", "b63"))
    assert not isinstance(stock, PlannedCacheConfig)
    with pytest.raises(PatchError, match="active in this worker and not in its engine core"):
        planned_settings(config, stock)
    assert planned_settings(config, stock, is_profiling=True) is None


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (
            falcon_layers(mamba=replace(MAMBA, mamba_type=MambaAttentionBackendEnum.GDN_ATTN)),
            "layer mamba.0 is GDN_ATTN, which is not Mamba2",
        ),
        (
            falcon_layers(replace(ATTENTION, sliding_window=4096)),
            "layer attention.0 has a FullAttentionSpec, which is not full attention",
        ),
        (
            falcon_layers(
                MLAAttentionSpec(
                    block_size=512, num_kv_heads=1, head_size=512, dtype=torch.bfloat16
                )
            ),
            "layer attention.0 has a MLAAttentionSpec",
        ),
        (
            falcon_layers(num_layers=43),
            "the model has 43 attention layers, and the pools are planned for 44",
        ),
        (
            falcon_layers(mamba=replace(MAMBA, dtypes=(torch.bfloat16, torch.float32))),
            "layer mamba.0 has ssm_bytes 3145728, but model .* has 1572864",
        ),
    ],
)
def test_loaded_layers_that_are_not_the_planned_ones_stop_the_start(
    layers: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S2)
    with pytest.raises(ConfigError, match=reason):
        plan_pools(config, [layers], [20 * GIB])


def test_a_longest_request_that_never_fits_stops_the_start(tmp_path: Path) -> None:
    config = served_config(tmp_path, FALCON_H1_7B, S2, max_model_len=100_000)
    # 196 blocks and two states of three members, and their slab; 192 pages are usable.
    with pytest.raises(ConfigError, match="max_model_len 100000: such a request needs 203 pages"):
        plan_pools(config, [falcon_layers()], [20 * GIB])


# -- the plugin is active, for the vLLM it was written for -----------------------------------------


def test_a_scheduler_does_not_run_in_an_unpatched_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("s2", "b63")
    config = vllm_config(chosen, tmp_path)
    monkeypatch.setattr(targets, "active", False)
    with pytest.raises(PatchError, match="plugin is not active in this process"):
        build_scheduler(chosen, config)


def test_a_target_with_another_source_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core import kv_cache_utils

    target = next(t for t in targets.TARGETS if t.name == "get_kv_cache_configs")
    target.verify()

    def get_kv_cache_configs(vllm_config: Any, kv_cache_specs: Any, available_memory: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(kv_cache_utils, "get_kv_cache_configs", get_kv_cache_configs)
    with pytest.raises(PatchError, match=r"get_kv_cache_configs has changed: source [0-9a-f]{16}"):
        target.verify()


def test_a_missing_target_stops_the_start() -> None:
    target = replace(targets.TARGETS[0], name="EngineArgs.create_configuration")
    with pytest.raises(PatchError, match=r"arg_utils has no EngineArgs\.create_configuration"):
        target.verify()


def test_another_version_of_vllm_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.28.0")
    monkeypatch.setattr(targets, "active", False)
    with pytest.raises(PatchError, match=r"vLLM must be 0\.27\.1, got 0\.28\.0"):
        plugin.register()


def test_the_label_of_a_build_is_not_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.27.1+cu129")
    monkeypatch.setattr(targets, "TARGETS", ())  # the sources of this build are checked above
    targets.verify_targets()


def test_each_target_has_a_reason_and_is_listed_once() -> None:
    names = [(target.module, target.name) for target in targets.TARGETS]
    assert len(set(names)) == len(names)
    assert all(target.reason for target in targets.TARGETS)
