"""`python -m hsexp.serve stage=plan`: pools and refusals before anything is loaded."""

import shlex
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from fastapi import FastAPI
from hydra import compose, initialize_config_dir
from served_configs import FALCON_H1_7B, GRANITE_4_H, write_config

from hsexp import serve
from hsexp.config.catalog import CONF
from hsexp.config.launch import parse_launch
from hsexp.ending import EXIT_REFUSED
from hsexp.plan.planner import make_plan
from hsexp.plan.run import VllmRunConfig
from hsexp.serve import Command, main
from runners.vllm.api_server import with_reset
from runners.vllm.command import environment_of


def test_a_plan_shows_pools_and_the_same_command_without_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, FALCON_H1_7B)
    arguments = ["stage=plan", "organization=d0", f"model={tmp_path}", "budget_bytes=101154816"]
    arguments += ["max_model_len=8192", "skip_tokenizer_init=true", "max_num_seqs=63"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    # 0.527383 of the budget in units of 16 KiB, the rest in composites of 1,557 KiB; 44 layers
    assert ["attention", "3,256", "0", "16,384", "53,346,304", f"{53_346_304 * 44:,}"] in rows
    assert ["recurrent", "29", "0", "1,594,368", "46,236,672", f"{46_236_672 * 44:,}"] in rows
    shown = shlex.split(printed[printed.index("vllm serve") :])
    assert shown[2:] == Command.parse(arguments).serve_arguments()


def test_a_plan_counts_no_recurrent_pool_for_a_group_without_recurrent_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["mamba", "attention"] * 3 + ["attention", "mamba", "mamba"]  # groups of 2, 2, 1 and 0
    write_config(tmp_path, GRANITE_4_H | {"num_hidden_layers": len(kinds), "layer_types": kinds})
    arguments = ["stage=plan", "organization=d0", f"model={tmp_path}", "budget_bytes=173015040"]
    assert main([*arguments, "max_model_len=4096", "skip_tokenizer_init=true"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (attention,) = (row for row in rows if row[:1] == ["attention"])
    (recurrent,) = (row for row in rows if row[:1] == ["recurrent"])
    a_layer, in_all = (int(number.replace(",", "")) for number in attention[-2:])
    assert in_all == 4 * a_layer
    a_layer, in_all = (int(number.replace(",", "")) for number in recurrent[-2:])
    assert in_all == 3 * a_layer


def test_a_server_of_a_measured_cell_has_one_route_of_the_developer_mode() -> None:
    def paths(app: FastAPI) -> set[str]:
        return {getattr(route, "path", "") for route in app.routes}

    own = paths(with_reset(FastAPI)()) - paths(FastAPI())
    assert own == {"/reset_prefix_cache"}
    (config,) = {environment["VLLM_SERVER_DEV_MODE"] for environment in environments()}
    assert config == "0"


def environments() -> list[dict[str, str]]:
    """Of measured cells under S2 and D0."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(
            compose("config", ["campaign=q1", "engine=vllm", "device=cpu", "model=falcon_h1_mini"])
        )
    cells = make_plan(launch, engine="vllm").cells
    return [environment_of(VllmRunConfig.parse(cell.config)) for cell in cells]


def test_a_key_leaves_the_list_of_processes_and_opens_nothing(tmp_path: Path) -> None:
    """The program starts again without it; what it would start then reports."""
    program = (
        "import os, sys, hsexp.serve as serve\n"
        "def start(arguments):\n"
        "    print('vllm', arguments[-2:], os.environ['VLLM_API_KEY'])\n"
        "    print(open('/proc/self/cmdline').read().replace(chr(0), ' '))\n"
        "serve._serve = start\n"
        "sys.exit(serve.main(sys.argv[1:]))\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), "organization=s2", "model=m",
         "api_key=a,secret", "host=0.0.0.0"],
        env=commands.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown, listed, *_ = done.stdout.splitlines()
    assert shown == "vllm ['--host', '0.0.0.0'] a,secret"
    assert "secret" not in listed and "host=0.0.0.0" in listed
    assert (done.returncode, done.stderr) == (0, "")


def test_an_open_server_is_warned_of_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setattr(serve, "_serve", lambda arguments: None)
    assert main(["organization=s2", "model=m", "host=0.0.0.0"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 0.0.0.0 is open to other machines, and nobody needs a key")
    assert main(["organization=s2", "model=m"]) == 0
    assert capsys.readouterr().err == ""


def test_a_contradiction_is_told_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, FALCON_H1_7B)
    arguments = ["stage=plan", "organization=s2", f"model={tmp_path}", "block_size=64"]
    assert main([*arguments, "skip_tokenizer_init=true"]) == EXIT_REFUSED
    assert "block_size 64 contradicts hsexp, which makes it 512" in capsys.readouterr().err


@pytest.mark.parametrize("refused", ["model=nobody/[1]", "max_num_seqs=-1", "admission=null"])
def test_what_vllm_refuses_is_one_line(
    refused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, FALCON_H1_7B)
    own = {"model": str(tmp_path), "organization": "s2", "stage": "plan"}
    own |= {"skip_tokenizer_init": "true"} | dict([refused.split("=")])
    assert main([f"{name}={value}" for name, value in own.items()]) == EXIT_REFUSED
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("error: ")]) == 1
    assert not any("Traceback" in line for line in said)
