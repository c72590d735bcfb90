"""Bad input at the real entry: exit code not 0, the field and its value named, no ledger made."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from launches import Command, composed_data, planned

from hsexp.__main__ import main
from hsexp.config.base import ConfigError
from hsexp.config.catalog import groups, options
from hsexp.config.launch import parse_launch
from hsexp.config.overrides import refuse_unknown_options
from hsexp.ledger import Ledger
from hsexp.plan.planner import make_plan

REFUSED: list[tuple[list[str], str]] = [
    # Out of range.
    (["admission.headroom=1.2"], "admission.headroom must be less than 1, got 1.2"),
    (["admission.headroom=-0.1"], "admission.headroom must be greater than or equal to 0, got"),
    (["admission.headroom=nan"], "admission.headroom must be a finite number, got nan"),
    (["admission.cap=0"], "admission.cap must be greater than 0, got 0"),
    (["arrivals.rate_per_s=0"], "arrivals.rate_per_s must be greater than 0, got 0"),
    (["workload.sharing=2"], "workload.sharing must be less than or equal to 1, got 2"),
    (["workload.num_requests=0"], "workload.num_requests must be greater than 0, got 0"),
    (["budget=bytes", "budget.bytes=-5"], "budget.bytes must be greater than 0, got -5"),
    (["workers=0"], "workers must be greater than 0, got 0"),
    (["seeds=[-1]"], "seeds.0 must be greater than or equal to 0, got -1"),
    # Wrong type.
    (["model.num_recurrent_layers=many"], "model.num_recurrent_layers must be a valid integer"),
    (["model.num_recurrent_layers=1.5"], "model.num_recurrent_layers must be a valid integer"),
    (["admission.cap=[63]"], "admission.cap must be a valid integer, got [63]"),
    (["seeds=76400"], "seeds must be a list, got 76400"),
    (["arrivals.rate_per_s=[1,2]"], "arrivals.rate_per_s must be a valid number, got [1, 2]"),
    (["arrivals.rate_per_s={a: 1}"], "arrivals.rate_per_s must be a valid number"),
    (["workload.sharing=[0.5]"], "workload.sharing must be a valid number, got [0.5]"),
    (["seeds=[1"], "no viable alternative at input '[1'"),
    (["stage=draw"], "stage must be 'plan', 'status', 'run' or 'all', got 'draw'"),
    # Sets that are none.
    (["seeds=[]"], "seeds must not be empty, got []"),
    (["seeds=[1,1]"], "seeds names a value twice: (1, 1)"),
    (
        ["campaign.blocks.confirmation.cap=[63,63]"],
        "campaign.blocks.confirmation axis cap names a value twice: (63, 63)",
    ),
    # A key that nobody reads, or another organization's knob.
    (["+headroom=1"], "headroom is not a known setting here (got 1)"),
    (["headroom=0.5"], "headroom is not a field of this launch; nearest is admission.headroom"),
    (["+model.layers=3"], "model.layers is not a known setting here (got 3)"),
    (
        ["organization=s0", "+organization.slot_bytes=32768"],
        "organization.slot_bytes is not a known setting here (got 32768)",
    ),
    (
        ["organization=s2", "+organization.attention_fraction=0.5"],
        "organization.attention_fraction is not a known setting here (got 0.5)",
    ),
    # One option where several are named.
    (
        ["organization=[s0,s2]"],
        "organization takes one option, got [s0,s2]; a sweep takes several: -m organization=s0,s2",
    ),
    (["budget=[b63]"], "budget takes one option, got [b63]"),
    # Settings that do not fit together.
    (
        ["workload.suffix_min_tokens=5000"],
        "workload suffix_min_tokens must not exceed suffix_max_tokens",
    ),
    (
        ["budget=bytes", "budget.bytes=1000"],
        "organization d0 under budget bytes_1000: pool attention needs at least 2 pages, got 0",
    ),
    (
        ["organization=s2", "organization.slot_bytes=64"],
        "organization s2 for model falcon_h1_7b: slot_bytes 64 must hold",
    ),
    # Something is missing.
    (["budget=bytes"], "budget.bytes is required"),
    (["workload=trace"], "workload.path is required"),
    (["~model.head_dim"], "model.head_dim is required"),
    # An engine that cannot run.
    (["engine=vllm"], "engine vllm cannot run: "),
    # Arithmetic that does not add up.
    (
        ["campaign=fixed_work", "campaign.num_narrow=5"],
        "campaign num_wide 16 must be a multiple of num_narrow 5",
    ),
]

BAD_TRACES: list[tuple[str, str]] = [
    ("", "line 1: the file is empty"),
    ("arrival_s,input_tokens,output_tokens\n", "no requests"),
    ("arrival_s,input_tokens,output_tokens\n0.0,12,3\n0.5,1", "line 3: "),
    ("arrival_s,input_tokens,output_tokens\n0.0,12,3\n0.5,-1,4\n", "line 3: "),
]
"""Content, and what the message says beside the file's name."""


def refused_by(value: object) -> str:
    """A test's id: its overrides, without the message."""
    return " ".join(value) if isinstance(value, list) else ""


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=refused_by)
def test_bad_input_is_refused_before_anything_runs(
    overrides: list[str], message: str, command: Command, tmp_path: Path
) -> None:
    has_campaign = overrides[0].startswith("campaign=")
    arguments = overrides if has_campaign else ["campaign=q6", *overrides]
    code, printed = command(*arguments, "ledger=ledger")
    assert code == 2
    assert message in printed
    assert "Traceback" not in printed
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("group", groups())
def test_an_option_that_does_not_exist_is_refused_in_one_line_with_the_nearest(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = [] if group == "campaign" else ["campaign=q6"]
    monkeypatch.setattr(sys, "argv", ["hsexp", *campaign, f"{group}=nope", "ledger=ledger"])
    assert main() == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: {group} 'nope' does not exist; choose from ")
    nearest = line.partition("; the nearest are ")[2].split(", ")
    assert set(nearest) <= set(options(group)) and nearest != [""]
    assert said.out == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["campaign=q66"], "campaign 'q66' does not exist; .*; the nearest are q6, "),
        (["campaign=q6", "organization=s4"], "organization 's4' does not exist"),
        (["campaign=q6", "budget=b0"], "budget 'b0' does not exist"),
        (["campaign=q6", "retention=k9"], "retention 'k9' does not exist"),
        (["-m", "campaign=q6", "budget=b63,b36"], "budget 'b36' does not exist; .* are b83, b63, "),
    ],
)
def test_an_option_that_does_not_exist_is_refused_before_hydra_composes(
    arguments: list[str], message: str, command: Command, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        command(*arguments, "ledger=ledger")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["null", "glob(b6*)", "choice(b63,b83)", "'b63'"])
def test_what_is_no_name_is_left_to_hydra(value: str) -> None:
    refuse_unknown_options(["campaign=q6", f"budget={value}"])


def test_a_folder_is_a_model_and_no_option(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nope").mkdir()
    with pytest.raises(ConfigError, match=r"there is no nope/config\.json"):
        command("campaign=q6", "model=nope")


def settings_of(data: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in data.items():
        yield f"{above}{name}"
        if isinstance(value, dict) and name != "campaign":
            yield from settings_of(value, f"{above}{name}.")


def replaced(data: dict[str, Any], setting: str, value: object) -> dict[str, Any]:
    name, _, rest = setting.partition(".")
    return data | {name: replaced(data[name], rest, value) if rest else value}


@pytest.mark.slow
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}], ids=str)
@pytest.mark.parametrize(
    "launch",
    [
        ("campaign=q6", "seeds=[76400]", "organization=s2", "budget=b63"),
        ("campaign=q6", "seeds=[76400]", "device=cpu", "model=falcon_h1_mini", "retention=k2"),
    ],
    ids=" ".join,
)
def test_a_list_or_a_mapping_for_any_setting_is_refused_in_words(
    launch: tuple[str, ...], value: object
) -> None:
    """Never with another error than a refusal. A list of seeds is none."""
    data = composed_data(*launch)
    for setting in settings_of(data):
        try:
            make_plan(parse_launch(replaced(data, setting, value)), engine="sim")
        except ConfigError as refusal:
            assert str(refusal), setting
        except Exception as error:
            raise AssertionError(f"{setting}={value} ends in {error!r}") from error


def test_every_refused_setting_is_named_at_once(command: Command) -> None:
    _, printed = command("campaign=q6", "admission.cap=0", "workers=0", "admission.headroom=2")
    for message in ("admission.cap must", "workers must", "admission.headroom must"):
        assert message in printed


def test_a_seed_that_is_refused_does_not_also_make_the_list_empty(command: Command) -> None:
    _, printed = command("campaign=q6", "seeds=[-1]")
    assert printed == "error: seeds.0 must be greater than or equal to 0, got -1\n"


def test_a_trace_that_does_not_exist_is_refused(command: Command, tmp_path: Path) -> None:
    code, printed = command("campaign=trace", "workload.path=absent.csv", "ledger=ledger")
    assert code == 2
    assert "error: absent.csv: No such file or directory" in printed
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("content", "message"), BAD_TRACES)
def test_a_bad_trace_is_refused_with_file_line_and_reason(
    content: str, message: str, command: Command, tmp_path: Path
) -> None:
    trace = tmp_path / "cut.csv"
    trace.write_text(content)
    code, printed = command("campaign=trace", f"workload.path={trace}", "ledger=ledger")
    assert code == 2
    assert f"error: {trace}" in printed
    assert message in printed
    assert list(tmp_path.iterdir()) == [trace]


def test_a_ledger_of_another_configuration_is_refused_and_stays_as_it_is(
    command: Command, tmp_path: Path
) -> None:
    Ledger.open(tmp_path / "ledger", contract=planned("campaign=q6").contract)
    journal = tmp_path / "ledger" / "journal.jsonl"
    before = journal.read_bytes()
    code, printed = command("campaign=q6", "model.max_model_tokens=4096", "ledger=ledger")
    assert code == 2
    assert "ledger holds runs of another configuration" in printed
    assert "model.max_model_tokens: ledger has 8192, this run has 4096" in printed
    assert journal.read_bytes() == before


def test_a_refusal_reaches_the_shell(tmp_path: Path) -> None:
    done = commands.run("campaign=q6", "admission.headroom=1.2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: admission.headroom must be less than 1, got 1.2\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("cap=16", "cap is not a field of this launch; nearest is admission.cap"),
        ("cap=16,32", "cap is not a field of this launch; nearest is admission.cap"),
        (
            "arrival.rate_per_s=3",
            "arrival.rate_per_s is not a field of this launch; nearest is arrivals.rate_per_s",
        ),
        (
            "workload.path=x.csv",
            "workload.path is not a field of this launch; it belongs to workload=trace",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_one_line_with_the_nearest_ones(
    typed: str, message: str, command: Command, tmp_path: Path
) -> None:
    sweep = ("-m",) if "," in typed else ()
    assert command(*sweep, "campaign=q6", typed) == (2, f"error: {message}\n")
    assert not any(tmp_path.iterdir())


def test_a_field_of_an_option_that_a_campaign_chooses_is_known(command: Command) -> None:
    code, printed = command(
        "campaign=trace", "workload.path=absent.csv", "workload.speed=2", "stage=plan"
    )
    assert (code, printed) == (2, "error: absent.csv: No such file or directory\n")
