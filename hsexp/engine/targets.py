"""Every vLLM symbol that the plugin replaces or relies on, why, and the source it was written for.

A missing target, or one with another source, stops the start: an engine never serves unpatched
under a patched name.
"""

import hashlib
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

VLLM_VERSION = "0.27.1"

active = False
"""Whether vLLM has been patched in this process (`hsexp.engine.plugin.register`)."""


class PatchError(RuntimeError):
    """vLLM is not the one that the plugin was written against."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One symbol of vLLM."""

    module: str
    name: str
    """Dotted inside the module."""
    source: str
    """First 16 hex digits of the SHA-256 of its source."""
    reason: str

    def resolve(self) -> Any:
        """The object.

        Raises:
            PatchError: it is missing.
        """
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            if not hasattr(found, part):
                raise PatchError(f"vLLM {VLLM_VERSION}: {self.module} has no {self.name}")
            found = getattr(found, part)
        return found

    def verify(self) -> None:
        """Compare the source.

        Raises:
            PatchError: it is missing or has another source.
        """
        digest = source_digest(self.resolve())
        if digest != self.source:
            raise PatchError(
                f"{self.module}.{self.name} has changed: source {digest}, written against "
                f"{self.source} (vLLM {VLLM_VERSION}); needed because {self.reason}"
            )


TARGETS = (
    Target(
        module="vllm.engine.arg_utils",
        name="EngineArgs.create_engine_config",
        source="f8ccc2392c5e83ee",
        reason="two flags become a whole configuration, or are refused",
    ),
    Target(
        module="vllm.v1.engine.core",
        name="EngineCore._initialize_kv_caches",
        source="071552a93cab0233",
        reason="the engine core asks its workers what they run",
    ),
    Target(
        module="vllm.v1.engine.core",
        name="EngineCoreProc._make_ready_response",
        source="e7a683c889c8a40f",
        reason="the message that an engine core is ready carries its report",
    ),
    Target(
        module="vllm.v1.engine.core_client",
        name="MPClient._apply_ready_response",
        source="a877f9ef3b29d897",
        reason="a front end keeps the report, and refuses a core that sends none",
    ),
    Target(
        module="vllm.v1.engine",
        name="EngineCoreOutputs",
        source="94766a2ae9b0cc0c",
        reason="scheduler statistics are decoded with the memory's own",
    ),
    Target(
        module="vllm.v1.engine.input_processor",
        name="InputProcessor.process_inputs",
        source="f99853486527779f",
        reason="each of several samples is marked as one, since vLLM sends them one by one",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler.make_stats",
        source="9b0dd57a5ea0c59b",
        reason="scheduler statistics gain the memory's own",
    ),
    Target(
        module="vllm.v1.metrics.loggers",
        name="StatLoggerManager.__init__",
        source="6e75cf036af8369b",
        reason="/metrics gains the memory's own gauges and counters",
    ),
    Target(
        module="vllm.v1.core.kv_cache_utils",
        name="get_kv_cache_configs",
        source="61133158d9547e50",
        reason="each organization has its own pools, sized from its budget",
    ),
    Target(
        module="vllm.v1.core.kv_cache_utils",
        name="resolve_kv_cache_block_sizes",
        source="469eaaf1263a0d92",
        reason="D0 hashes 16-token blocks although its checkpoint grid is wider",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler.schedule",
        source="185eb7ae0ab611b4",
        reason="the manager answers exactly the questions that this method asks",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler._preempt_request",
        source="1be81e04f8ff2c9f",
        reason="a request that is freed while it runs is a preempted one",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler._try_promote_blocked_waiting_request",
        source="c48120690486216d",
        reason="a request that waits for another one's prefix is skipped as a blocked one",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler._is_blocked_waiting_status",
        source="cb0b1f6343cfb1e6",
        reason="every waiting request may be blocked where requests fork",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler._enqueue_waiting_request",
        source="05e82d2d351a677d",
        reason="a request that is new is not blocked yet",
    ),
    Target(
        module="vllm.v1.core.sched.scheduler",
        name="Scheduler._select_waiting_queue_for_scheduling",
        source="36e0e42a71132227",
        reason="a waiting order is asked behind the requests that were skipped, and by no priority",
    ),
    Target(
        module="vllm.v1.core.sched.request_queue",
        name="RequestQueue",
        source="1018a64881f8b7ce",
        reason="a waiting order stands in for the waiting queue",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner._update_states",
        source="2e7098333b0c1537",
        reason="a step's forks change tables before it and copy pages after it",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner._sample",
        source="5cb5c1da02cfdc68",
        reason="a seeded request's discarded draws are taken back, on a CPU as well",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner._bookkeeping_sync",
        source="bcb19ca311c03c6c",
        reason="it would set back the offset that a CPU's generator does not have",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner.initialize_kv_cache",
        source="eb8ee8b7b7582912",
        reason="a worker opens its table of composites before its buffers are made",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner._reshape_kv_cache_tensors",
        source="d5f88147e6c498f8",
        reason="paged states are views of member pages and convolution lines",
    ),
    Target(
        module="vllm.v1.worker.mamba_utils",
        name="preprocess_mamba",
        source="4c5400ccdec9b996",
        reason="paged states are written out of place, so nothing is copied before a step",
    ),
    Target(
        module="vllm.model_executor.layers.mamba.mamba_mixer2",
        name="MambaMixer2.conv_ssm_forward",
        source="f2d9b21b73e3928a",
        reason="paged states are read and written through member page ids and lines",
    ),
    Target(
        module="vllm.v1.attention.backends.mamba_attn",
        name="BaseMambaAttentionMetadataBuilder._compute_common_metadata",
        source="9ebae78998e03b1c",
        reason="the state that a step reads is found in the same block table",
    ),
    Target(
        module="vllm.v1.attention.backends.mamba_attn",
        name="BaseMambaAttentionMetadataBuilder._update_metadata_for_cudagraph_capture",
        source="b832bc605c1ae7fd",
        reason="rows of paged states are staged for CUDA graphs as vLLM stages its own",
    ),
    Target(
        module="vllm.v1.worker.gpu_model_runner",
        name="GPUModelRunner._is_uniform_decode",
        source="6dbc57ed67619208",
        reason="a full graph is picked by shape alone, so rows are staged by shape alone",
    ),
)


def source_digest(symbol: Any) -> str:
    """16 hex digits that change with the source of a function, method or class."""
    return hashlib.sha256(inspect.getsource(symbol).encode()).hexdigest()[:16]


def verify_targets() -> None:
    """Check the version and every target.

    Raises:
        PatchError: names the first one that differs.
    """
    import vllm

    if vllm.__version__.partition("+")[0] != VLLM_VERSION:  # a build's label: digests decide
        raise PatchError(f"vLLM must be {VLLM_VERSION}, got {vllm.__version__}")
    for target in TARGETS:
        target.verify()


def require_active() -> None:
    """Refuse to serve in a process whose vLLM was not patched, as under VLLM_PLUGINS=other.

    Raises:
        PatchError: the plugin was not loaded here.
    """
    if not active:
        raise PatchError(
            "the hsexp plugin is not active in this process: vLLM has not loaded its entry point "
            "(vllm.general_plugins, name hsexp; see VLLM_PLUGINS)"
        )
