"""What `engine=auto` and `exact` do on a machine with a GPU. No cell runs here."""

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from small_launches import carried_out

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from hsexp.plan.cells import Plan
from hsexp.plan.planner import make_plan
from hsexp.plan.run import VllmRunConfig
from runners import engines
from runners.vllm.command import engine_arguments, settings_of
from runners.vllm.readback import expected
from runners.vllm.weights import weights_of


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vllm, torch and a GPU were here."""
    monkeypatch.setattr(engines, "_is_installed", lambda package: True)
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    monkeypatch.setattr(engines, "_gpu_name", lambda: "NVIDIA A100-PCIE-40GB")
    monkeypatch.setattr(engines, "plugin_fault", lambda: None)
    monkeypatch.chdir(tmp_path)


def test_the_fixture_makes_auto_use_the_gpu() -> None:
    _, printed = carried_out("campaign=q6", "stage=plan")
    assert "q6: engine vllm (engine=auto: vllm and a GPU are present)" in printed


def test_the_demo_is_simulated_on_any_machine() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    (command,) = [
        line.strip()
        for line in makefile.read_text().splitlines()
        if line.startswith("\t$(RUN) -m hsexp campaign=")
    ]
    _, printed = carried_out(*command.split()[3:], "stage=plan")
    assert "q6: engine sim (engine=sim was asked for)" in printed


def test_the_whole_paper_is_simulated_unless_vllm_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, printed = carried_out("campaign=paper", "stage=plan")
    assert result.exit_code == 0
    assert capsys.readouterr().err == ""
    assert "engine=auto simulates a collection; engine=vllm runs it for real" in printed
    assert "engine vllm" not in printed
    named, printed = carried_out(
        "campaign=paper", "campaign.campaigns=[q9]", "engine=vllm", "stage=plan"
    )
    assert named.exit_code == 0
    assert "q9: engine vllm (engine=vllm was asked for)" in printed


def test_auto_simulates_what_vllm_cannot_run_and_says_why() -> None:
    _, printed = carried_out("campaign=live_separation", "stage=plan")
    assert "live_separation: engine sim (engine=auto: vllm cannot run this campaign:" in printed
    assert "scheduler.separate must be false unless engine is sim" in printed
    with pytest.raises(ConfigError, match="separate must be false unless engine is sim"):
        carried_out("campaign=live_separation", "engine=vllm", "stage=plan")


def test_a_budget_that_does_not_fit_beside_the_weights_is_refused_in_the_plan(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "requests.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.0,600,20\n")
    command = ("campaign=trace", f"workload.path={trace}", "stage=plan")
    with pytest.raises(ConfigError) as refused:
        carried_out(*command, "engine=vllm")
    assert "budget b320 of 513,802,240 bytes does not fit on device a100_40gb" in str(refused.value)
    assert "the smallest that is large enough is device=l40s" in str(refused.value)
    (most,) = re.findall(r"budget=bytes budget.bytes=(\d+)", str(refused.value))
    _, printed = carried_out(*command, "engine=vllm", "budget=bytes", f"budget.bytes={most}")
    assert "engine vllm (engine=vllm was asked for)" in printed
    _, printed = carried_out(*command)
    assert "engine sim (engine=auto: vllm cannot run this campaign: budget b320 of" in printed


def test_exact_runs_are_eager_and_others_use_the_devices_graphs() -> None:
    eager = {True: set[bool](), False: set[bool]()}
    for cell in planned("campaign=exact_cost").cells:
        config = VllmRunConfig.parse(cell.config)
        arguments = engine_arguments(config, record=Path("record"), trace=Path("trace"))
        eager[config.exact].add(arguments["enforce_eager"])
    assert eager == {True: {True}, False: {False}}


def test_graphs_never_have_more_requests_than_blocks() -> None:
    """vLLM refuses such a start after the weights are loaded (max_num_seqs exceeds the blocks)."""
    lowered = {}
    small = ("budget=bytes", "budget.bytes=90000000", "admission.cap=63")
    for cell in planned("campaign=q1", *small).cells + planned("campaign=q1").cells:
        config = VllmRunConfig.parse(cell.config)
        arguments = engine_arguments(config, record=Path("record"), trace=Path("trace"))
        num_blocks = settings_of(config).num_blocks
        assert arguments["max_num_seqs"] == min(config.admission.cap, num_blocks)
        # The plugin is told the same number, or it would refuse the other one.
        assert settings_of(config).admission.cap == arguments["max_num_seqs"]
        if num_blocks < config.admission.cap:
            assert expected(config)["cap"] == str(num_blocks)
            lowered[config.organization.name, config.budget.name] = num_blocks
            eager = config.model_copy(
                update={"hardware": config.hardware.model_copy(update={"eager": True})}
            )
            assert expected(eager)["cap"] == str(config.admission.cap)
    assert lowered == {("s0", "bytes_90000000"): 56}  # the paper's caps are S0's pages, or fewer


def planned(*overrides: str) -> Plan:
    """The plan of a real launch."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        chosen = parse_launch(compose("config", [*overrides, "engine=vllm"]))
        return make_plan(chosen, engine="vllm")


def q9_cell() -> dict[str, Any]:
    """The configuration of one real cell of Q9."""
    return dict(planned("campaign=q9").cells[0].config)


def offer(snapshot_download: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a hub in the place of the real one."""
    hub = ModuleType("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_weights_that_cannot_be_had_are_refused_before_the_ledger_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def snapshot_download(checkpoint: str, *, revision: str | None) -> str:
        asked.append((checkpoint, revision))
        raise OSError("the model is gated: 401\nlong explanation")

    offer(snapshot_download, monkeypatch)
    with pytest.raises(ConfigError) as refused:
        carried_out("campaign=q9", "engine=vllm", "stage=run")
    assert str(refused.value) == (
        "model.checkpoint tiiuae/Falcon-H1-7B-Instruct cannot be used: the model is gated: 401; "
        "model.checkpoint=DIR names a folder with the weights, and model.checkpoint=null uses "
        "seeded ones"
    )
    # Once, however many cells there are.
    assert asked == [("tiiuae/Falcon-H1-7B-Instruct", None)]
    assert not list(Path.cwd().iterdir())


def test_other_weights_than_the_pinned_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 8}')
    digest = hashlib.sha256(b'{"vocab_size": 8}').hexdigest()
    revisions = []

    def snapshot_download(checkpoint: str, *, revision: str | None) -> str:
        revisions.append(revision)
        return str(folder)

    offer(snapshot_download, monkeypatch)
    pinned = {"checkpoint_revision": "abc", "checkpoint_sha256": {"config.json": digest}}
    config = VllmRunConfig.parse(q9_cell() | pinned)
    assert weights_of(config).vocabulary == 8
    assert revisions == ["abc"]
    for name, said in (("config.json", digest), ("model.safetensors", "no such file")):
        other = pinned | {"checkpoint_sha256": {name: "0" * 64}}
        with pytest.raises(ConfigError, match=f"checkpoint_sha256.{name} must be 0+, got {said}"):
            weights_of(VllmRunConfig.parse(q9_cell() | other))
