"""How vLLM is started for a cell: arguments and environment."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from hsexp.engine.full_width import load_arguments
from hsexp.engine.settings import EngineSettings
from hsexp.memory.geometry import ModelConfig, ModelShape
from hsexp.plan.run import VllmRunConfig

SCHEDULER = "hsexp.engine.recording.RecordingScheduler"
SERVER = (sys.executable, "-m", "runners.vllm.api_server")

_GIB = 2**30
_DTYPES = {2: "bfloat16", 4: "float32"}


def settings_of(config: VllmRunConfig) -> EngineSettings:
    """What the plugin is told.

    The cap is at most the number of blocks where steps run in graphs: vLLM wants a block for each
    request that may run. A request has one at least, so that a cap of all blocks admits the same
    requests.
    """
    told = EngineSettings(
        **config.memory_settings,
        budget_bytes=config.budget.bytes,
        max_leaves=0,  # requests of a campaign have one continuation each
    )
    if is_eager(config) or told.admission.cap <= told.num_blocks:
        return told
    lowered = told.admission.model_copy(update={"cap": told.num_blocks})
    return told.model_copy(update={"admission": lowered})


def is_eager(config: VllmRunConfig) -> bool:
    """Whether steps run without graphs. A graph takes padded batches, and exact runs send every
    request through the model alone."""
    return config.hardware.eager or config.exact


def engine_arguments(config: VllmRunConfig, *, record: Path, trace: Path) -> dict[str, Any]:
    """Fields of vLLM's EngineArgs, without the model.

    Args:
        record: where the scheduler writes down what it does.
        trace: where it writes its trace, if the cell is traced.
    """
    organization, settings = config.layout, settings_of(config)
    return {
        "dtype": _dtype(config.model),
        "max_model_len": config.model.max_model_tokens,
        "max_num_seqs": settings.admission.cap,
        "max_num_batched_tokens": config.scheduler.token_budget,
        "block_size": organization.kernel_block_size,
        "mamba_block_size": organization.checkpoint_grid,
        "mamba_cache_mode": "align",
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "enforce_eager": is_eager(config),
        "skip_tokenizer_init": True,  # requests are token ids, and so are outputs
        "seed": 0,
        **load_arguments(config.checkpoint, config.seeded_width),
        "scheduler_cls": SCHEDULER,
        "additional_config": {
            **settings.additional_config(),
            "hsexp_record": str(record),
            **({"hsexp_trace": str(trace)} if config.trace else {}),
        },
    }


def _dtype(model: ModelShape) -> str:
    """vLLM's name of the type; that of the weights where only the bytes of states are known."""
    return _DTYPES[model.dtype_bytes] if isinstance(model, ModelConfig) else "auto"


def server_flags(arguments: dict[str, Any], *, model: Path, port: int, grace_s: float) -> list[str]:
    """The engine arguments as flags of vLLM's server.

    Args:
        grace_s: time that the engine has to end; without it the end of its record is lost.
    """
    flags = ["--model", str(model), "--served-model-name", "hsexp"]
    flags += ["--host", "127.0.0.1", "--port", str(port)]
    flags += ["--shutdown-timeout", str(math.ceil(grace_s)), "--disable-uvicorn-access-log"]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def environment_of(config: VllmRunConfig) -> dict[str, str]:
    """Environment variables for vLLM."""
    environment = {
        "VLLM_SERVER_DEV_MODE": "0",  # whatever the user's shell says
        "VLLM_API_KEY": "",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the weights are on this machine by now
    }
    if config.hardware.threads is not None:
        environment["OMP_NUM_THREADS"] = str(config.hardware.threads)
    if config.hardware.platform == "cpu":
        plan = config.layout.plan(config.budget.bytes)
        state_bytes = plan.total_bytes * config.model.num_attention_layers
        environment |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": str(math.ceil(state_bytes / _GIB)),
        }
    return environment
