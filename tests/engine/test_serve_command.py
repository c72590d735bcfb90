"""`python -m hsexp.serve stage=plan`: pools and refusals before anything is loaded."""

import shlex
from pathlib import Path

import pytest
from served_configs import FALCON_H1_7B, write_config

from hsexp.serve import EXIT_REFUSED, Command, main


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
