"""Imports what a bundle's engine imports, as if this machine had a GPU and nothing of vLLM
compiled.

    python bare_imports.py BUNDLE RESULT.json

Python finds the bundle first, and beside it only distributions that the bundle's machine has. NVML
is a stub that shows one H100. The result tells what was imported from where and what the plugins
made of engine arguments.
"""

import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NVML = """

class _Memory:
    total = 80 * 2**30


nvmlInit = nvmlShutdown = lambda *args: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetCudaComputeCapability = lambda handle: (9, 0)
nvmlDeviceGetName = lambda handle: "NVIDIA H100 80GB HBM3"
nvmlDeviceGetUUID = lambda handle: "GPU-0"
nvmlDeviceGetMemoryInfo = lambda handle: _Memory
"""
"""Appended to the bundle's copy."""

MODULES = (
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.model_executor.models.falcon_h1",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.mamba2_attn",
    "vllm.v1.attention.backends.fa_utils",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "hsexp.engine.plugin",
    "hsexp.engine.scheduler",
    "hsexp.engine.recording",
    "hsexp.engine.kernels.fused",
    "runners.vllm.inproc_engine",
    "runners.probe",
    "runners.replay",
    "analysis.calibration.command",
)


def closure(names: Sequence[str]) -> set[str]:
    """Distributions, with those that they need unconditionally."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [
            re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need
        ]
    return found


class Hidden:
    """Stands for the finder of files: nothing in site-packages that the machine would not have."""

    def __init__(self, allowed: set[str]) -> None:
        owners = importlib.metadata.packages_distributions()
        self._allowed, self.refused = allowed, set()
        self._owners = {
            module: {re.sub(r"[-_.]+", "-", name).lower() for name in names}
            for module, names in owners.items()
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if "." in name or spec is None or spec.origin is None:
            return spec
        if "site-packages" not in [folder.name for folder in Path(spec.origin).parents][:2]:
            return spec  # of Python, of the bundle, or of a package that brings others
        if self._owners.get(name, set()) & self._allowed:
            return spec
        self.refused.add(name)
        return None

    find_distributions = staticmethod(PathFinder.find_distributions)


def show_a_gpu(site: Path) -> None:
    """Let the bundle's NVML tell of one, which vLLM asks for as soon as it is imported."""
    path = site / "vllm" / "third_party" / "pynvml.py"
    text = path.read_text(encoding="utf-8")
    if NVML not in text:
        path.write_text(text + NVML, encoding="utf-8")


def configured(bundle: Path) -> dict[str, Any]:
    """What the plugins make of the arguments of an engine with seeded weights of full width."""
    from vllm import EngineArgs

    from hsexp.config.catalog import read_option
    from hsexp.engine.full_width import LOAD_FORMAT, config_folder
    from hsexp.memory.geometry import ModelConfig

    shape = ModelConfig.parse(read_option("model", "falcon_h1_7b_seeded"))
    assert shape.seeded_width is not None
    folder = config_folder(shape, shape.seeded_width)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "load_format": LOAD_FORMAT,
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "scheduler_cls": "hsexp.engine.scheduler.HybridScheduler",
        "additional_config": {"hsexp": {"organization": "s2"}},
    }
    config = EngineArgs(**arguments).create_engine_config()
    refused = None
    try:
        EngineArgs(**arguments, compilation_config={"mode": 3}).create_engine_config()
    except ValueError as error:
        refused = str(error)
    return {
        "mode": config.compilation_config.mode.name,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "attention": config.attention_config.backend.name,
        "load_format": config.load_config.load_format,
        "device": config.device_config.device_type,
        "refused": refused,
    }


def main(bundle: Path, result: Path) -> None:
    sys.path.append(str(bundle / "tests" / "gpu"))
    from make_bundle import THERE

    importlib.import_module("torch")
    hidden = Hidden(closure(THERE))
    sys.meta_path[sys.meta_path.index(PathFinder)] = hidden  # type: ignore[call-overload]
    show_a_gpu(bundle / "site")
    from vllm.platforms import current_platform

    for name in MODULES:
        importlib.import_module(name)
    from hsexp.engine import plugin, targets

    plugin.register()
    import hsexp_bare
    import vllm

    hsexp_bare.register()
    found = {
        "platform": type(current_platform).__name__,
        "vllm": vllm.__version__,
        "vllm_file": vllm.__file__,
        "hsexp_file": targets.__file__,
        "active": targets.active,
        "refused": sorted(hidden.refused),
        "compiled": sorted(
            name
            for name, module in sys.modules.items()
            if name.startswith("vllm") and str(getattr(module, "__file__", "")).endswith(".so")
        ),
        "configured": configured(bundle),
    }
    result.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
