"""`python -m hsexp.serve`: what it makes of its arguments, without vLLM."""

import importlib.util
import json

import pytest

from hsexp.ending import EXIT_REFUSED
from hsexp.engine.settings import SCHEDULER, ServingSettings, serving_defaults
from hsexp.serve import Command, main


def test_a_command_becomes_two_flags_and_vllms_own_options() -> None:
    arguments = Command.parse(
        [
            "organization=s2",
            "model=folder/model",
            "admission.headroom=0.19",
            "retention=k2",
            "port=8000",
            "max_model_len=8192",
            "enforce_eager=true",
            "enable_log_requests=false",
        ]
    ).serve_arguments()
    settings = {
        "hsexp": {
            "organization": "s2",
            "retention": "k2",
            "admission": {"headroom": 0.19, "cap": None},
        }
    }
    assert arguments[:4] == ["folder/model", "--scheduler-cls", SCHEDULER, "--additional-config"]
    assert json.loads(arguments[4]) == settings
    assert arguments[5:] == [
        "--port",
        "8000",
        "--max-model-len",
        "8192",
        "--enforce-eager",
        "--no-enable-log-requests",
        "--host",
        "127.0.0.1",
    ]


def test_a_changed_organization_travels_whole() -> None:
    command = Command.parse(["organization=s2", "organization.block_size=256", "model=m"])
    assert command.settings["organization"]["block_size"] == 256
    assert command.settings["organization"]["num_admission_states"] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["model=m"], "organization is required, such as organization=s2"),
        (["organization=s2"], "model is required, such as model=falcon_h1_mini"),
        (["organization=s9", "model=m"], "organization 's9' does not exist; choose from d0"),
        (["organization=s2", "model=m", "stage=all"], "stage must be plan or serve, got 'all'"),
        (["organization=s2", "model=m", "--port"], "arguments are key=value, got '--port'"),
        (["organization=s2", "model=m", "retention=k7"], "retention 'k7' does not exist"),
        (["organization=s2", "model=m", "admission.hedroom=0"], "admission.hedroom"),
    ],
)
def test_a_command_that_means_nothing_is_refused_in_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("error: ") and reason in said


@pytest.mark.parametrize(
    ("arguments", "is_open"),
    [
        ([], False),
        (["host=localhost"], False),
        (["host=127.3.0.9"], False),
        (["host=::1"], False),
        (["host=0.0.0.0"], True),
        (["host=::"], True),
        (["host=10.0.0.7"], True),
        (["host=somewhere.example"], True),
        (["host=0.0.0.0", "api_key=k"], False),
        (["host=0.0.0.0", "uds=/tmp/socket"], False),
    ],
)
def test_a_server_is_open_where_others_reach_it_and_need_no_key(
    arguments: list[str], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert Command.parse(["organization=s2", "model=m", *arguments]).is_open is is_open


def test_a_key_in_the_environment_closes_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert not Command.parse(["organization=s2", "model=m", "host=0.0.0.0"]).is_open


@pytest.mark.parametrize("name", ["api_key", "api-key"])
def test_a_key_is_in_no_argument_of_vllm_and_in_no_text_about_the_command(name: str) -> None:
    command = Command.parse(["organization=s2", "model=m", f"{name}=a,b=secret"])
    assert command.api_key == "a,b=secret"
    assert "secret" not in " ".join([*command.serve_arguments(), repr(command)])


def test_the_defaults_of_the_command_are_those_of_the_two_flags() -> None:
    command = Command.parse(["organization=s2", "model=m"])
    assert command.settings == {"organization": "s2"}
    defaults = serving_defaults()
    assert (defaults["retention"], defaults["pinning"]) == ("off", "off")
    assert ServingSettings.of({"organization": "s2"}).admission.headroom == 0.0


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_command_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["organization=s2", "model=m"]) == EXIT_REFUSED
    assert "vllm is not installed here: make setup-cpu" in capsys.readouterr().err
