"""vLLM's own scheduler without a model, driven in simulated time."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.config import ModelConfig as VllmModelConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VllmRequest
from vllm.v1.structured_output import StructuredOutputManager

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.engine.plugin import register
from hsexp.engine.scheduler import HybridScheduler
from hsexp.engine.settings import EngineSettings
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.leaves import LeavesConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import PlacementConfig
from hsexp.memory.policies.reservation import ReservationConfig
from hsexp.memory.policies.retention import RetentionConfig
from hsexp.memory.policies.states import StatesConfig
from hsexp.memory.policies.waiting import WaitingConfig
from hsexp.sim.steptime import StepClock, to_ns
from hsexp.workload import Request, Segment, Workload

register()  # as vLLM does in every process that it starts
init_none_hash(sha256)  # once: it draws the seed of all hashes

MAX_MODEL_TOKENS = 16384
TOKEN_BUDGET = 2048


def settings(
    organization: str,
    budget: str,
    *,
    headroom: float = 0.0,
    retention: str = "off",
    pinning: str = "off",
    cap: int = 63,
    exact: bool = False,
    eviction: str = "paper",
    waiting: str = "first_come",
    placement: str = "chunk_ends",
    reservation: str = "full_prompt",
    states: str = "per_boundary",
    leaves: str = "off",
) -> EngineSettings:
    return EngineSettings(
        model=ModelConfig.parse(read_option("model", "falcon_h1_7b")),
        organization=parse_union(
            OrganizationConfig, read_option("organization", organization), path=organization
        ),
        budget_bytes=read_option("budget", budget)["bytes"],
        admission=AdmissionConfig(headroom=headroom, cap=cap),
        retention=parse_union(
            RetentionConfig, read_option("retention", retention), path="retention"
        ),
        pinning=PinningConfig.parse(read_option("pinning", pinning)),
        exact=exact,
        **orders(
            eviction=eviction,
            waiting=waiting,
            placement=placement,
            reservation=reservation,
            states=states,
            leaves=leaves,
        ),
    )


PARTS: dict[str, Any] = {
    "eviction": EvictionConfig,
    "waiting": WaitingConfig,
    "placement": PlacementConfig,
    "reservation": ReservationConfig,
    "states": StatesConfig,
    "leaves": LeavesConfig,
}


def orders(**options: str) -> dict[str, Any]:
    """Options of these groups, as fields of `EngineSettings`."""
    return {
        group: parse_union(PARTS[group], read_option(group, option), path=group)
        for group, option in options.items()
    }


def vllm_config(
    chosen: EngineSettings,
    folder: Path,
    *,
    token_budget: int = TOKEN_BUDGET,
    max_model_len: int = MAX_MODEL_TOKENS,
) -> VllmConfig:
    """vLLM's configuration for a Falcon-H1 of one tiny layer stack; no weights are loaded."""
    model = chosen.model
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["FalconH1ForCausalLM"],
                "model_type": "falcon_h1",
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": model.num_kv_heads,
                "num_key_value_heads": model.num_kv_heads,
                "head_dim": model.head_dim,
                "mamba_d_ssm": model.ssm_heads * model.ssm_head_dim,
                "mamba_n_heads": model.ssm_heads,
                "mamba_d_head": model.ssm_head_dim,
                "mamba_d_state": model.d_state,
                "mamba_n_groups": model.ssm_groups,
                "mamba_d_conv": model.conv_width,
                "vocab_size": 512,
                "max_position_embeddings": MAX_MODEL_TOKENS,
                "torch_dtype": "bfloat16",
            }
        )
    )
    layout = chosen.layout
    cache = CacheConfig(
        block_size=layout.kernel_block_size, enable_prefix_caching=True, mamba_cache_mode="align"
    )
    cache.mamba_block_size = layout.checkpoint_grid
    config = VllmConfig(
        model_config=VllmModelConfig(
            model=str(folder),
            tokenizer=str(folder),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max_model_len,
        ),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=chosen.admission.cap,
            max_num_batched_tokens=token_budget,
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        parallel_config=ParallelConfig(),
        additional_config=chosen.additional_config(),
    )
    config.cache_config.num_gpu_blocks = 1024
    return config


def kv_cache_config(chosen: EngineSettings) -> KVCacheConfig:
    """One attention and one Mamba group, as vLLM makes them for Falcon-H1.

    Stock vLLM has one pool: all pages of the organization's plan.
    """
    model, layout = chosen.model, chosen.layout
    assert isinstance(model, ModelConfig)
    plan = layout.plan(chosen.budget_bytes)
    attention = FullAttentionSpec(
        block_size=layout.kernel_block_size,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_dim,
        dtype=torch.bfloat16,
    )
    mamba = MambaSpec(
        block_size=layout.checkpoint_grid,
        shapes=(
            (model.conv_width - 1, model.conv_channels),
            (model.ssm_heads, model.ssm_head_dim, model.d_state),
        ),
        dtypes=(torch.bfloat16, torch.bfloat16),
        mamba_cache_mode="align",
    )
    return KVCacheConfig(
        num_blocks=sum(pool.num_pages for pool in plan.pools),
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(["attention"], attention),
            KVCacheGroupSpec(["mamba"], mamba),
        ],
    )


def build_scheduler(
    chosen: EngineSettings,
    config: VllmConfig,
    scheduler: type[Scheduler] = HybridScheduler,
    *,
    log_stats: bool = False,
) -> Any:
    """The plugin's scheduler, or vLLM's own in the same shape."""
    return scheduler(
        vllm_config=config,
        kv_cache_config=kv_cache_config(chosen),
        structured_output_manager=StructuredOutputManager(config),
        block_size=chosen.layout.checkpoint_grid,
        hash_block_size=chosen.layout.kernel_block_size,
        log_stats=log_stats,
    )


def vllm_request(request: Request, *, hash_block_size: int) -> VllmRequest:
    """The request as token ids: equal content, equal tokens; everything else differs."""
    tokens: list[int] = []
    for segment in request.segments:
        first = _first_token(segment)
        tokens += range(first + len(tokens), first + min(segment.end_tokens, request.prompt_tokens))
    private = 1_000_000_000 + request.request_id * 1_000_000
    tokens += range(private + len(tokens), private + request.prompt_tokens)
    return VllmRequest(
        request_id=str(request.request_id),
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=request.output_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=request.arrival_s,
        block_hasher=get_request_block_hasher(hash_block_size, sha256),
        cache_salt=request.cache_salt,
    )


def _first_token(content: Segment) -> int:
    return (content.content_id + 1) * 10_000_000


@dataclass(kw_only=True)
class Drive:
    """What vLLM's scheduler did: times by request, and one row a step."""

    steps: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(decode tokens, prefill tokens, running, waiting)."""
    first_scheduled_ns: dict[int, int] = field(default_factory=dict)
    first_token_ns: dict[int, int] = field(default_factory=dict)
    finish_ns: dict[int, int] = field(default_factory=dict)
    adopted_tokens: dict[int, int] = field(default_factory=dict)
    num_preemptions: dict[int, int] = field(default_factory=dict)


def drive(
    scheduler: HybridScheduler, workload: Workload, clock: StepClock, *, exact: bool = False
) -> Drive:
    """Run the workload through the scheduler; a step takes what the clock says.

    Args:
        exact: history is computed again token by token, each at the price of a decode.
    """
    hash_block_size = scheduler.hash_block_size
    requests = [vllm_request(r, hash_block_size=hash_block_size) for r in workload.requests]
    arrivals = sorted(enumerate(workload.requests), key=lambda item: item[1].arrival_s)
    pending = [(to_ns(request.arrival_s), requests[i]) for i, request in arrivals]
    outputs = {
        request.request_id: _first_token(request.segments[-1])
        for request in workload.requests
        if request.shares_output
    }
    result, now_ns = Drive(), 0
    while pending or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now_ns = max(now_ns, pending[0][0])
        while pending and pending[0][0] <= now_ns:
            scheduler.add_request(pending.pop(0)[1])
        decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            continue
        decodes = sum(1 for request_id in scheduled if request_id in decoding)
        prefill = sum(n for request_id, n in scheduled.items() if request_id not in decoding)
        singles = exact and sum(
            request.num_computed_tokens - count >= request.num_prompt_tokens
            for request_id, count in scheduled.items()
            if request_id not in decoding and (request := scheduler.requests[request_id])
        )
        for request_id, count in scheduled.items():
            key, request = int(request_id), scheduler.requests[request_id]
            if key not in result.first_scheduled_ns:
                result.first_scheduled_ns[key] = now_ns
                result.adopted_tokens[key] = request.num_computed_tokens - count
        result.steps.append((decodes, prefill, len(scheduler.running), len(scheduler.waiting)))
        now_ns += clock.step_ns(decodes + singles, prefill - singles)
        tokens = list(_sample(scheduler, scheduled, result, now_ns, outputs))
        scheduler.update_from_output(output, _runner_output(list(scheduled), tokens))
    result.num_preemptions = {int(r.request_id): r.num_preemptions for r in requests}
    return result


def _sample(
    scheduler: HybridScheduler,
    scheduled: dict[str, int],
    result: Drive,
    now_ns: int,
    outputs: Mapping[int, int],
) -> Iterator[list[int]]:
    """One token for each request whose prompt and history are computed.

    Args:
        outputs: the content of outputs that later prompts hold; any other one is private.
    """
    for request_id in scheduled:
        request, key = scheduler.requests[request_id], int(request_id)
        if request.num_computed_tokens < request.num_tokens:
            yield []
            continue
        result.first_token_ns.setdefault(key, now_ns)
        if request.num_output_tokens + 1 == request.max_tokens:
            result.finish_ns[key] = now_ns
        yield [outputs.get(key, 2_000_000_000 + key * 100_000) + request.num_tokens]


def _runner_output(request_ids: list[str], tokens: list[list[int]]) -> Any:
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
