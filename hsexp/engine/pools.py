"""From an organization's pool plan to vLLM's KV-cache configuration: groups, pages, tensors."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)

from hsexp.config.base import ConfigError
from hsexp.engine.paged import PagedLayout
from hsexp.engine.settings import KEY, EngineSettings
from hsexp.geometry import StateGeometry
from hsexp.memory.organizations.base import PoolPlan


def kv_cache_config(
    settings: EngineSettings, specs: Mapping[str, Any], available_bytes: int
) -> KVCacheConfig:
    """One attention and one Mamba group over tensors of exactly the planned size.

    Layers are paired in order: attention layer i and Mamba layer i share a tensor where the
    organization shares pages, and have one each where it does not.

    Raises:
        ConfigError: the model's layers are not what the settings say, or memory is short.
    """
    attention = {n: spec for n, spec in specs.items() if isinstance(spec, FullAttentionSpec)}
    mamba = {n: spec for n, spec in specs.items() if isinstance(spec, MambaSpec)}
    others = specs.keys() - attention.keys() - mamba.keys()
    if others or not attention or len(attention) != len(mamba):
        raise ConfigError(
            f"the model must have as many attention as Mamba2 layers and nothing else, got "
            f"{len(attention)} and {len(mamba)}, others: {sorted(others) or 'none'}"
        )
    for name, spec in [*attention.items(), *mamba.items()]:
        _require_geometry(settings, name, spec)
    layout, plan = settings.layout, settings.layout.plan(settings.budget_bytes)
    pages = [pool.page_bytes for pool in plan.pools]
    attention_spec = replace(
        next(iter(attention.values())),
        block_size=layout.block_size,
        page_size_padded=_padded(pages[0], layout.block_size * _token_bytes(settings)),
    )
    mamba_spec = _mamba_spec(settings, next(iter(mamba.values())), pages[-1])
    tensors = _tensors(plan, list(attention), list(mamba))
    needed = sum(tensor.size for tensor in tensors)
    if needed > available_bytes:
        raise ConfigError(
            f"budget_bytes {settings.budget_bytes} a layer makes {needed:,} bytes for "
            f"{len(attention)} layers, and {available_bytes:,} are free"
        )
    return KVCacheConfig(
        num_blocks=max(pool.num_pages for pool in plan.pools),
        kv_cache_tensors=tensors,
        kv_cache_groups=[
            KVCacheGroupSpec(list(attention), attention_spec),
            KVCacheGroupSpec(list(mamba), mamba_spec),
        ],
    )


def settings_of(vllm_config: VllmConfig) -> EngineSettings | None:
    """The settings, or None where vLLM runs without an organization."""
    if KEY not in (vllm_config.additional_config or {}):
        return None
    return EngineSettings.of(vllm_config.additional_config)


def _mamba_spec(settings: EngineSettings, spec: MambaSpec, page_bytes: int) -> MambaSpec:
    """The group's spec. Where a state takes several pages vLLM is told of one member, so that its
    own page arithmetic holds; the layers' views are made from the real layout."""
    grid = settings.layout.checkpoint_grid
    paged = PagedLayout.of(settings)
    if paged is None:
        return replace(spec, block_size=grid, page_size_padded=page_bytes)
    member = (paged.heads_per_member, paged.head_dim, paged.d_state)
    return replace(
        spec, block_size=grid, shapes=(member,), dtypes=spec.dtypes[1:], page_size_padded=None
    )


def _tensors(plan: PoolPlan, attention: list[str], mamba: list[str]) -> list[KVCacheTensor]:
    pairs = zip(attention, mamba, strict=True)
    if len(plan.pools) == 1:
        size = plan.pools[0].total_bytes
        return [KVCacheTensor(size=size, shared_by=list(pair)) for pair in pairs]
    return [
        KVCacheTensor(size=pool.total_bytes, shared_by=[name])
        for pair in pairs
        for pool, name in zip(plan.pools, pair, strict=True)
    ]


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
                f"layer {name} has {field} {value}, but model {settings.model.name} says "
                f"{planned[field]}: another model, or another state dtype"
            )


def _token_bytes(settings: EngineSettings) -> int:
    return StateGeometry.of(settings.model).kv_token_bytes


def _padded(page_bytes: int, payload_bytes: int) -> int | None:
    return page_bytes if page_bytes > payload_bytes else None
