"""Lets vLLM's CPU build load Triton kernels: for Triton's interpreter, or to compile for a GPU.

The build replaces Triton by placeholders. Call these before any module that defines kernels.
"""

import importlib
import os
from typing import Any
from unittest.mock import patch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton itself reads it when it is first imported."""


def enable_triton() -> None:
    """Real Triton in the modules that are imported from here on."""
    import vllm.triton_utils.importing

    vllm.triton_utils.importing.HAS_TRITON = True
    importlib.reload(vllm.triton_utils)


def repair_interpreter() -> None:
    """Triton 3.9's interpreter spreads a scalar comparison over a block as integers, and then
    refuses them as a mask; a compiler sees one bit."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def bits(mask: Any) -> Any:
        return TensorHandle(mask.data.astype(bool), mask.dtype)

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, bits(mask), *rest)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, ptrs, value, bits(mask), *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


def disable_triton() -> None:
    """Placeholders again in the modules that are imported from here on."""
    import vllm.triton_utils.importing

    vllm.triton_utils.importing.HAS_TRITON = False
    importlib.reload(vllm.triton_utils)


def load_stock_kernels() -> None:
    """vLLM's Triton kernels of Mamba2, whose names the CPU build gives to its own operations."""
    from vllm.platforms import current_platform

    with patch.object(type(current_platform), "is_cpu", lambda self: False):
        importlib.import_module("vllm.model_executor.layers.mamba.ops.mamba_ssm")
        importlib.import_module("vllm.model_executor.layers.mamba.ops.causal_conv1d")
