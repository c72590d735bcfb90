"""The bundle of `make gpu-bundle`: its size, what it imports, what its stubs compute."""

import importlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parents[0] / "gpu"
MAKE = FOLDER / "make_bundle.py"


@pytest.fixture
def make_bundle(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("make_bundle")


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle for this Python, unpacked."""
    folder = tmp_path_factory.mktemp("bundle")
    archive = folder / "hsexp-gpu.tar.gz"
    done = run(str(MAKE), "--installed", "--out", str(archive))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["bytes"] == archive.stat().st_size <= said["most"] == 64 * 2**20
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "hsexp-gpu"


def inside(bundle: Path) -> dict[str, str]:
    """The environment that its command gives to every process."""
    done = run(
        "-c",
        "import json, sys; sys.path.insert(0, sys.argv[1]); import run; "
        "print(json.dumps(run.environment()))",
        str(bundle),
    )
    variables: dict[str, str] = json.loads(done.stdout)
    return variables


def test_the_bundle_has_sources_stubs_and_no_compiled_module_of_vllm(bundle: Path) -> None:
    site = bundle / "site"
    assert (site / "vllm" / "__init__.py").is_file()
    assert (site / "vllm" / "_C_stable_libtorch.py").is_file()
    assert (site / "vllm" / "vllm_flash_attn" / "_vllm_fa2_C.py").is_file()
    assert list((site / "vllm").rglob("*.so")) == []
    assert (bundle / "conf" / "model" / "falcon_h1_7b_seeded.yaml").is_file()


@pytest.fixture(scope="module")
def imported(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("imported")
    result = folder / "result.json"
    done = run(
        str(HERE / "bare_imports.py"),
        str(bundle),
        str(result),
        **inside(bundle),
        VLLM_LOGGING_LEVEL="ERROR",
        XDG_CACHE_HOME=str(folder),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def test_an_engine_for_cuda_imports_with_what_the_bundle_and_the_machine_have(
    bundle: Path, imported: dict[str, Any]
) -> None:
    """Every digest of vLLM's sources is compared as the plugin becomes active."""
    assert imported["active"] and imported["vllm"] == "0.27.1"
    assert "Cuda" in imported["platform"]
    assert imported["compiled"] == []
    for name in ("vllm_file", "hsexp_file"):
        assert Path(imported[name]).is_relative_to(bundle)


def test_engine_arguments_become_triton_attention_without_compilation_and_decode_graphs(
    imported: dict[str, Any],
) -> None:
    assert imported["configured"] == {
        "mode": "NONE",
        "graphs": "FULL_DECODE_ONLY",
        "attention": "TRITON_ATTN",
        "load_format": "hsexp_seeded",
        "device": "cuda",
        "refused": "nothing can be compiled here: compilation mode VLLM_COMPILE",
    }


STUBS = """
import torch
import vllm._C_stable_libtorch
ops, nan = torch.ops._C, float("nan")
generator = torch.Generator().manual_seed(1)
def random(*shape): return torch.randn(shape, generator=generator, dtype=torch.float64)
close = torch.testing.assert_close

x, weight = random(5, 8).float(), random(8).float()
out = torch.full_like(x, nan)
ops.rms_norm(out, x, weight, 1e-5)
close(out, torch.nn.functional.rms_norm(x, (8,), weight, 1e-5))

residual, both = random(5, 8).float(), x.clone()
total = x + residual
ops.fused_add_rms_norm(both, residual, weight, 1e-5)
close(residual, total)
close(both, torch.nn.functional.rms_norm(total, (8,), weight, 1e-5))

out = torch.full((5, 4), nan)
ops.silu_and_mul(out, x)
close(out, torch.nn.functional.silu(x[:, :4]) * x[:, 4:])

# A complex number for each pair of a head's two halves, turned by its angle.
angles = random(10, 2)
cache = torch.cat([angles.cos(), angles.sin()], 1).float()
positions = torch.tensor([3, 0, 9])
query, key = random(3, 2 * 4).float(), random(3, 1 * 4).float()
def turned(rows):
    heads = rows.view(3, -1, 4)
    numbers = torch.complex(heads[..., :2].double(), heads[..., 2:].double())
    numbers = numbers * torch.polar(torch.ones(3, 1, 2).double(), angles[positions][:, None])
    return torch.cat([numbers.real, numbers.imag], -1).float().view(rows.shape)
expected = turned(query), turned(key)
ops.rotary_embedding(positions, query, key, 4, cache, True)
close((query, key), expected)
kept = ops.weak_ref_tensor(x)
assert kept.data_ptr() == x.data_ptr()
print("held")
"""


def test_the_stubs_compute_what_the_compiled_operations_do(bundle: Path) -> None:
    # Without a platform, so that no compiled module of another build defines the same operations.
    stub = bundle / "site" / "vllm" / "_C_stable_libtorch.py"
    text = STUBS.replace(
        "import vllm._C_stable_libtorch",
        f"exec(open({str(stub)!r}).read(), {{'__name__': 'stub'}})",
    )
    done = run("-c", text)
    assert done.stdout == "held\n", done.stderr[-3000:]


def test_a_bundle_that_is_too_large_is_not_made(
    make_bundle: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(make_bundle, "MAX_BYTES", 1000)
    folder, out = tmp_path / "folder", tmp_path / "bundle.tar.gz"
    folder.mkdir()
    (folder / "noise").write_bytes(os.urandom(2000))
    with pytest.raises(make_bundle.BundleError, match=r"bytes, more than 1,000"):
        make_bundle.pack(folder, out)
    assert not out.exists()


def test_every_wheel_is_pinned_by_the_lock_for_gpus(make_bundle: Any) -> None:
    pins = make_bundle.pins()
    assert len(pins) == len(make_bundle.WHEELS)
    assert "msgspec==" in " ".join(pins)
    assert set(make_bundle.WHEELS).isdisjoint(make_bundle.THERE)


def test_a_folder_that_lacks_a_wheel_is_refused_by_its_name(tmp_path: Path) -> None:
    done = run(str(MAKE), "--wheels", str(tmp_path), "--out", str(tmp_path / "out.tar.gz"))
    assert done.returncode == 1
    assert "has no wheel of annotated-types" in done.stderr
