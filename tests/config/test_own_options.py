"""A user's folder of options: whatever names one of them finds it, as Hydra does."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import commands
import pytest
from launches import Command

import analysis.__main__ as analysis_command
import hsexp.serve as serve
from analysis import config as configs
from analysis.command import run as run_analysis
from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, folders, follow, options, read_option
from hsexp.config.overrides import refuse_several_options
from hsexp.ledger import Ledger
from runners.sweep_folder import SweepFolder

FILES = {
    "organization/s2_fine.yaml": "defaults: [s2, _self_]\nname: s2_fine\nblock_size: 256\n",
    "budget/b40.yaml": "name: b40\nbytes: 60000000\n",
    "workload/few.yaml": "defaults: [extension, _self_]\nname: few\nnum_requests: 4\n",
    "campaign/mine.yaml": """\
# @package _global_
defaults:
  - override /arrivals: poisson
campaign:
  kind: serving
  name: mine
  title: Fine blocks
  section: "5.2"
  blocks:
    main:
      workload: few
      organization: [s2, s2_fine]
      budget: [b40]
      rate_per_s: [3.0]
      cap: [63]
      sharing: [1.0]
      headroom: [0.0]
      retention: ["off"]
      pinning: [k2]
      isolation: [share]
      seeds: [7]
""",
    "campaign/ours.yaml": """\
# @package _global_
campaign:
  kind: collection
  name: ours
  title: All of ours
  section: "5"
  campaigns: [mine]
  compare: null
""",
    "analysis/mine.yaml": "campaign: mine\ntitle: Mine\ntables: [B-2]\nfigures: []\n",
    "analysis/families/own.yaml": "name: own\nsource: mine\nalpha: 0.05\n",
}


def write_options(folder: Path) -> None:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def my(tmp_path: Path) -> Iterator[Path]:
    """`tmp_path/my`, beside which the command works."""
    write_options(tmp_path / "my")
    yield tmp_path / "my"
    SweepFolder.path = None


def organizations(ledger: Path) -> list[str]:
    return sorted(Ledger.read(ledger).frame()["organization"])


# -- launches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "searched",
    [
        pytest.param(["--config-dir", "my"], id="config-dir"),
        pytest.param(["hydra.searchpath=[file://my]"], id="searchpath"),
        pytest.param(["hydra.searchpath=[pkg://my]"], id="package"),
    ],
)
def test_a_campaign_of_a_users_folder_plans_with_the_options_that_lie_there(
    searched: list[str], my: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (my / "__init__.py").touch()
    monkeypatch.syspath_prepend(my.parent)
    code, printed = command(*searched, "campaign=mine", "stage=plan")
    assert code == 0, printed
    assert "mine: 2 cells" in printed
    assert my in folders()


def test_a_campaign_of_a_users_folder_runs_and_makes_its_tables(my: Path) -> None:
    done = commands.run("--config-dir", "my", "campaign=mine", cwd=my.parent)
    assert done.returncode == 0, done.stderr
    ledger = my.parent / "ledgers" / "mine" / "sim"
    assert organizations(ledger) == ["s2", "s2_fine"]
    assert (ledger / "analysis" / "B-2.csv").is_file()


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_finds_a_users_options_in_its_jobs_and_at_its_end(launcher: str, my: Path) -> None:
    if find_spec("hydra_plugins") is None and launcher == "joblib":
        pytest.skip("hydra_joblib_launcher is not installed: pip install -e .[sweep]")
    done = commands.run(
        *("-m", "--config-dir", "my", "campaign=mine", "seeds=[7],[8]"),
        f"hydra/launcher={launcher}",
        cwd=my.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = my.parent / "ledgers" / "mine" / "sim"
    assert organizations(ledger) == ["s2", "s2", "s2_fine", "s2_fine"]
    assert (ledger / "analysis" / "B-2.csv").is_file()


@pytest.mark.parametrize("searched", [["--config-dir", "my"], ["hydra.searchpath=[file://my]"]])
def test_a_collection_finds_the_options_of_its_members(
    searched: list[str], my: Path, command: Command
) -> None:
    code, printed = command(*searched, "campaign=ours", "stage=plan")
    assert code == 0, printed
    assert "mine: 2 cells" in printed


def test_an_option_of_a_users_folder_narrows_a_campaign_of_ours(my: Path, command: Command) -> None:
    arguments = ["campaign=q6", "organization=s2_fine", "budget=b40", "stage=plan"]
    code, printed = command("--config-dir", "my", *arguments)
    assert code == 0, printed
    assert "organization set to s2_fine, which the campaign does not plan" in printed


def test_what_is_to_be_typed_names_a_users_campaigns_too(my: Path, command: Command) -> None:
    assert "python -m hsexp campaign=mine\n" in command("--config-dir", "my")[1]
    assert "campaign=mine" not in command()[1]


def test_a_launch_forgets_the_folder_of_the_one_before(my: Path, command: Command) -> None:
    assert command("--config-dir", "my", "campaign=mine", "stage=plan")[0] == 0
    assert command("campaign=q6", "stage=plan")[0] == 0
    assert folders() == (CONF,)


# -- look-ups --------------------------------------------------------------------------------------


def test_a_process_that_is_started_looks_into_the_same_folders(my: Path) -> None:
    follow([CONF, my])
    program = "from hsexp.config.catalog import read_option; print(read_option('budget', 'b40'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'name': 'b40', 'bytes': 60000000}\n"


ONE_NAME = "conf/budget/b63.yaml and my/budget/b63.yaml have one name; rename yours"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--config-dir", "my", "campaign=mine"], id="config-dir"),
        pytest.param(["hydra.searchpath=[file://my]", "campaign=mine"], id="searchpath"),
        pytest.param(["-m", "--config-dir", "my", "campaign=mine", "seeds=[7],[8]"], id="sweep"),
        pytest.param(["analysis", "config_dir=my", "campaign=q6"], id="analysis"),
        pytest.param(["serve", "config_dir=my", "organization=s2", "model=m"], id="serve"),
    ],
)
def test_a_name_that_conf_has_is_refused_before_any_work(arguments: list[str], my: Path) -> None:
    (my / "budget" / "b63.yaml").write_text("name: b63\nbytes: 1\n")
    done = commands.run(*arguments, cwd=my.parent)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr == f"error: {ONE_NAME}\n"
    assert done.stdout == "" and not (my.parent / "ledgers").exists()


def test_a_name_that_two_folders_have_is_refused_in_every_group(my: Path, tmp_path: Path) -> None:
    write_options(tmp_path / "twin")
    with pytest.raises(ConfigError) as refused:
        follow([CONF, my, tmp_path / "twin"])
    assert len(str(refused.value).splitlines()) == len(FILES)
    assert f"{my}/analysis/families/own.yaml and {tmp_path}/twin/analysis/fam" in str(refused.value)
    assert folders() == (CONF,)


def test_a_folder_that_is_named_twice_is_one_folder(my: Path) -> None:
    follow([CONF, my, CONF, my])
    assert options("budget").count("b40") == 1


def test_a_group_of_the_users_takes_one_option_too(my: Path) -> None:
    (my / "taste").mkdir()
    (my / "taste" / "sweet.yaml").touch()
    refuse_several_options(["taste=[sweet,sour]"])  # an axis or a value, as far as it knows
    follow([CONF, my])
    with pytest.raises(ConfigError, match="taste takes one option"):
        refuse_several_options(["taste=[sweet,sour]"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"budget/b40\.yaml must be a mapping, got None"),
        ("name: [", r"budget/b40\.yaml: while parsing"),
    ],
)
def test_a_broken_file_of_the_users_is_refused_by_its_name(text: str, why: str, my: Path) -> None:
    (my / "budget" / "b40.yaml").write_text(text)
    follow([CONF, my])
    with pytest.raises(ConfigError, match=why):
        read_option("budget", "b40")


def test_what_was_read_of_one_search_path_is_not_taken_for_another(my: Path) -> None:
    with pytest.raises(Exception, match="campaign mine does not exist"):
        configs.block_design("mine", "main")
    follow([CONF, my])
    assert configs.block_design("mine", "main").seeds == (7,)
    assert configs.family("own").source == "mine"
    follow([CONF])
    with pytest.raises(Exception, match="family own is unknown"):
        configs.family("own")


# -- other commands --------------------------------------------------------------------------------


def test_tables_of_a_users_campaign_are_made_with_its_folder(
    my: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["campaign=mine", f"ledgers={my.parent}", f"out={my.parent / 'out'}"]
    assert run_analysis(analysis_command.main, arguments) == 2
    assert "campaign mine has no analysis" in capsys.readouterr().err
    assert run_analysis(analysis_command.main, [*arguments, f"config_dir={my}"]) == 0
    assert (my.parent / "out" / "B-2.csv").is_file()


def test_a_config_dir_that_is_no_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("nowhere", ""):
        assert run_analysis(analysis_command.main, ["campaign=q6", f"config_dir={folder}"]) == 2
        said = capsys.readouterr().err
        assert said == f"error: config_dir must be a folder, got {folder!r}\n"


def test_a_server_is_told_what_a_users_option_holds(my: Path) -> None:
    command = serve.Command.parse(["organization=s2_fine", "model=m", f"config_dir={my}"])
    organization = command.settings["organization"]
    assert (organization["name"], organization["block_size"]) == ("s2_fine", 256)
    assert command.vllm_options == {}
