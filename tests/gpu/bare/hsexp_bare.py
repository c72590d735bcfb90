"""A plugin of vLLM for a machine with PyTorch, Triton and nothing of vLLM that was compiled.

Attention is Triton's, nothing is compiled by Inductor, and CUDA graphs are those of decodes.
Whoever asks for something else is refused.
"""

import functools
from typing import Any

BACKEND = "TRITON_ATTN"
GRAPHS = "FULL_DECODE_ONLY"


def register() -> None:
    """Replace how engine arguments become a configuration. Safe to call more than once."""
    from vllm.engine.arg_utils import EngineArgs

    stock = EngineArgs.create_engine_config
    if getattr(stock, "is_bare", False):
        return

    @functools.wraps(stock)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        _restrict(self)
        config = stock(self, *args, **kwargs)
        _require(config)
        return config

    create_engine_config.is_bare = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config


def _restrict(arguments: Any) -> None:
    from vllm.config.compilation import CompilationMode, CUDAGraphMode
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if arguments.attention_backend is None:
        arguments.attention_backend = AttentionBackendEnum[BACKEND]
    compilation = arguments.compilation_config
    if compilation.mode is None:
        compilation.mode = CompilationMode.NONE
    if compilation.cudagraph_mode is None and not arguments.enforce_eager:
        compilation.cudagraph_mode = CUDAGraphMode[GRAPHS]


def _require(config: Any) -> None:
    """Refuse what cannot run here.

    Raises:
        ValueError: names it.
    """
    compilation = config.compilation_config
    if compilation.mode.name != "NONE":
        raise ValueError(f"nothing can be compiled here: compilation mode {compilation.mode.name}")
    if compilation.cudagraph_mode.name not in ("NONE", GRAPHS):
        raise ValueError(f"graphs here are {GRAPHS} or none, got {compilation.cudagraph_mode.name}")
    backend = config.attention_config.backend
    if backend is not None and backend.name != BACKEND:
        raise ValueError(f"attention here is {BACKEND}, got {backend.name}")
