"""Every vLLM symbol that the plugin replaces or relies on, why, and the source it was written for.

A target that is missing, or whose source is another one, stops the start: an engine never serves
unpatched under a patched name.
"""

import hashlib
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

VLLM_VERSION = "0.27.1"


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
            PatchError: it is missing or another one.
        """
        digest = source_digest(self.resolve())
        if digest != self.source:
            raise PatchError(
                f"{self.module}.{self.name} has changed: source {digest}, written against "
                f"{self.source} (vLLM {VLLM_VERSION}); needed because {self.reason}"
            )


TARGETS = (
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

    if vllm.__version__ != VLLM_VERSION:
        raise PatchError(f"vLLM must be {VLLM_VERSION}, got {vllm.__version__}")
    for target in TARGETS:
        target.verify()
