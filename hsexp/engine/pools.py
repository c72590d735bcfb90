"""From an organization's pool plan to vLLM's KV-cache configuration: groups, pages, tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)

from hsexp.config.base import ConfigError
from hsexp.engine.paged import PagedLayout
from hsexp.engine.refusals import refuse_more_than_blocks
from hsexp.engine.settings import KEY, EngineSettings
from hsexp.engine.targets import PatchError
from hsexp.memory.geometry import SizedModel, StateGeometry


@dataclass
class PlannedCacheConfig(KVCacheConfig):
    """vLLM's KV-cache configuration, and the settings that it was planned from, budget included.

    Workers receive it with their pages, and serve no other configuration as ours.
    """

    settings: EngineSettings

    @property
    def composites(self) -> dict[str, int]:
        """Which of its attention layer's composites each recurrent layer has, where one table finds
        them all."""
        _, mamba = self.kv_cache_groups
        num_composites = self.settings.model.composites_per_checkpoint
        return {name: i % num_composites for i, name in enumerate(mamba.layer_names)}


def plan_pools(
    vllm_config: VllmConfig,
    specs: Sequence[Mapping[str, Any]],
    available_bytes: Sequence[int],
) -> list[PlannedCacheConfig]:
    """The pools of every worker. A budget that was left open becomes what the tightest worker has.

    The engine core keeps the settled budget in its own configuration.

    Args:
        specs: KV-cache specs by layer, one mapping a worker.
        available_bytes: what each worker has for state.

    Raises:
        ConfigError: the model's layers differ from the settings, memory is short, or a request of
            max_model_len tokens would never fit.
    """
    settings = settings_of(vllm_config)
    assert settings is not None
    if settings.budget_bytes is None:
        settings = settings.within(min(available_bytes))
        vllm_config.additional_config |= settings.additional_config()
    max_tokens = vllm_config.model_config.max_model_len
    refuse_more_than_blocks(vllm_config, settings)
    reason = settings.memory().never_fits(max_tokens - 1)
    if reason is not None:
        raise ConfigError(
            f"max_model_len {max_tokens}: such a request {reason}; "
            f"budget_bytes is {settings.budget_bytes} a layer"
        )
    return [
        kv_cache_config(settings, layers, free)
        for layers, free in zip(specs, available_bytes, strict=True)
    ]


def kv_cache_config(
    settings: EngineSettings, specs: Mapping[str, Any], available_bytes: int
) -> PlannedCacheConfig:
    """One attention group, and the Mamba groups, over tensors of exactly the planned size.

    Layers belong together in order: attention layer i and Mamba layers c i to c i + c - 1, where
    there are c for each. The last of them may not exist. They share a tensor where the organization
    shares pages; where it does not, the Mamba layers share one. Pages have the same ids in the
    tensors of all attention layers.

    Raises:
        ConfigError: the model's layers differ from the settings, or memory is short.
    """
    attention = {n: spec for n, spec in specs.items() if isinstance(spec, AttentionSpec)}
    mamba = {n: spec for n, spec in specs.items() if isinstance(spec, MambaSpec)}
    _require_layers(settings, specs, attention, mamba)
    layout, plan = settings.layout, settings.plan
    # vLLM's unit of attention is a kernel's block: a page, or one of several in it.
    attention_spec = replace(
        next(iter(attention.values())),
        block_size=layout.kernel_block_size,
        page_size_padded=settings.padded_block_bytes,
    )
    mamba_spec = _mamba_spec(settings, next(iter(mamba.values())), plan.pools[-1].page_bytes)
    tensors = _tensors(settings, list(attention), list(mamba))
    needed = sum(tensor.size for tensor in tensors)
    if needed > available_bytes:
        raise ConfigError(
            f"budget_bytes {settings.budget_bytes} a layer makes {needed:,} bytes for "
            f"{len(attention)} layers, and {available_bytes:,} are free"
        )
    return PlannedCacheConfig(
        num_blocks=settings.num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=[
            KVCacheGroupSpec(list(attention), attention_spec),
            *(
                KVCacheGroupSpec(group, mamba_spec)
                for group in _state_groups(settings, list(mamba))
            ),
        ],
        settings=settings,
    )


def settings_of(vllm_config: VllmConfig) -> EngineSettings | None:
    """The settings, or None where vLLM runs without an organization."""
    if KEY not in (vllm_config.additional_config or {}):
        return None
    return EngineSettings.of(vllm_config.additional_config)


def planned_settings(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, is_profiling: bool = False
) -> EngineSettings | None:
    """The settings that a worker serves with its pages; None for stock vLLM.

    The block sizes of its configuration become the planned ones. vLLM may have enlarged them, so
    that a page of KV would hold a whole recurrent state.

    Raises:
        PatchError: there are settings, but the pages were not planned from them.
    """
    if settings_of(vllm_config) is None or is_profiling:
        return None
    if not isinstance(kv_cache_config, PlannedCacheConfig):
        raise PatchError("the hsexp plugin is active in this worker and not in its engine core")
    layout = kv_cache_config.settings.layout
    vllm_config.cache_config.block_size = layout.kernel_block_size
    vllm_config.cache_config.mamba_block_size = layout.checkpoint_grid
    return kv_cache_config.settings


def _mamba_spec(settings: EngineSettings, spec: MambaSpec, page_bytes: int) -> MambaSpec:
    """The group's spec. Where a state takes several pages the spec describes one member, so that
    vLLM's page arithmetic holds; the layers' views are made from the real layout."""
    grid = settings.layout.checkpoint_grid
    paged = PagedLayout.of(settings)
    if paged is None:
        return replace(spec, block_size=grid, page_size_padded=page_bytes)
    member = replace(
        spec,
        block_size=grid,
        shapes=((paged.heads_per_member, paged.head_dim, paged.d_state),),
        dtypes=spec.dtypes[1:],
        page_size_padded=None,
    )
    return replace(member, page_size_padded=_padded(page_bytes, member.page_size_bytes))


def _state_groups(settings: EngineSettings, mamba: list[str]) -> list[list[str]]:
    """Recurrent layers by vLLM's groups, each of which has a table of states.

    Our own table finds the pages of all layers by one id. Without it a page is a composite, and an
    id finds one page: the first recurrent layers of all attention layers have a table, the second
    ones another.
    """
    if PagedLayout.of(settings) is not None:
        return [mamba]
    num_composites = settings.model.composites_per_checkpoint
    return [mamba[place::num_composites] for place in range(num_composites)]


def _tensors(
    settings: EngineSettings, attention: list[str], mamba: list[str]
) -> list[KVCacheTensor]:
    plan, num_composites = settings.plan, settings.model.composites_per_checkpoint
    tensors = []
    for i, name in enumerate(attention):
        states = mamba[i * num_composites : (i + 1) * num_composites]
        owners = [[name, *states]] if len(plan.pools) == 1 else [[name], states]
        tensors += [
            KVCacheTensor(size=pool.total_bytes, shared_by=shared_by)
            for pool, shared_by in zip(plan.pools, owners, strict=True)
            if shared_by
        ]
    return tensors


def _require_layers(
    settings: EngineSettings,
    specs: Mapping[str, Any],
    attention: Mapping[str, AttentionSpec],
    mamba: Mapping[str, MambaSpec],
) -> None:
    """The loaded layers must be those that the pools are planned for."""
    model = settings.model
    family, mamba_type = "Mamba2", MambaAttentionBackendEnum.MAMBA2
    if isinstance(model, SizedModel):
        family, mamba_type = model.family, MambaAttentionBackendEnum.GDN_ATTN
    for name, spec in specs.items():
        kind = type(spec).__name__
        if isinstance(spec, MambaSpec):
            if spec.mamba_type != mamba_type:
                raise ConfigError(f"layer {name} is {spec.mamba_type.name}, which is not {family}")
        elif type(spec) is not FullAttentionSpec or spec.sliding_window is not None:
            raise ConfigError(f"layer {name} has a {kind}, which is not full attention")
    for kind, layers, planned in (
        ("attention", attention, model.num_attention_layers),
        (family, mamba, model.num_recurrent_layers),
    ):
        if len(layers) != planned:
            raise ConfigError(
                f"the model has {len(layers)} {kind} layers, and the pools are planned for "
                f"{planned}"
            )
    for name, spec in [*attention.items(), *mamba.items()]:
        _require_geometry(settings, name, spec)


def _require_geometry(settings: EngineSettings, name: str, spec: Any) -> None:
    """The layer's sizes must be those that the pools are planned with."""
    geometry = StateGeometry.of(settings.model)
    if isinstance(spec, FullAttentionSpec):
        element = torch.empty((), dtype=spec.dtype).element_size()
        found = {
            "kv_token_bytes": spec.num_kv_heads * (spec.head_size + spec.head_size_v) * element
        }
        planned = {"kv_token_bytes": geometry.kv_token_bytes}
    else:
        conv, ssm = (
            prod(shape) * torch.empty((), dtype=dtype).element_size()
            for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
        found = {"conv_bytes": conv, "ssm_bytes": ssm}
        planned = {"conv_bytes": geometry.conv_bytes, "ssm_bytes": geometry.ssm_bytes}
    for field, value in found.items():
        if value != planned[field]:
            raise ConfigError(
                f"layer {name} has {field} {value}, but model {settings.model.name} has "
                f"{planned[field]}: another model, or another state dtype"
            )


def _padded(page_bytes: int, payload_bytes: int) -> int | None:
    return page_bytes if page_bytes > payload_bytes else None
