"""`model=PATH` on the command line."""

import shutil
from pathlib import Path

import pytest
import yaml
from commands import run

from hsexp.config.base import ConfigError
from hsexp.models.option import with_options

BAMBA = Path(__file__).parent / "configs" / "bamba_9b.json"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_path_becomes_an_option_on_the_search_path(tmp_path: Path) -> None:
    model, searchpath = with_options([f"model={BAMBA}"])
    assert model == "model=bamba_9b"
    (option,) = (tmp_path / "cache").rglob("model/bamba_9b.yaml")
    assert searchpath == f"hydra.searchpath=['file://{option.parent.parent}']"
    assert yaml.safe_load(option.read_text(encoding="utf-8"))["num_recurrent_layers"] == 29


def test_the_search_path_stands_beside_the_model_in_front_of_flags() -> None:
    words = with_options(["campaign=q6", f"model={BAMBA}", "--cfg", "job"])
    assert words[0] == "campaign=q6" and words[1].startswith("model=")
    assert words[2].startswith("hydra.searchpath=") and words[3:] == ["--cfg", "job"]


def test_the_same_model_is_the_same_option_and_a_changed_one_another(tmp_path: Path) -> None:
    first = with_options([f"model={BAMBA}"])
    assert with_options([f"model={BAMBA}"]) == first
    folder = tmp_path / "bamba_9b"
    folder.mkdir()
    text = BAMBA.read_text(encoding="utf-8").replace('"mamba_d_state": 128', '"mamba_d_state": 256')
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert with_options([f"model={folder}"])[1] != first[1]


def test_other_arguments_stay_as_they_are() -> None:
    given = ["campaign=q6", "model=falcon_h1_mini", "-m", "budget=b63,b83", "model.d_state=128"]
    assert with_options(given) == given


def test_a_search_path_of_ones_own_is_refused_beside_a_path() -> None:
    with pytest.raises(ConfigError, match=r"cannot be combined with hydra\.searchpath"):
        with_options([f"model={BAMBA}", "hydra.searchpath=[file://mine]"])


def test_the_name_of_a_shipped_option_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "falcon_h1_mini"
    folder.mkdir()
    shutil.copy(BAMBA, folder / "config.json")
    with pytest.raises(ConfigError, match=r"has the name of conf/model/falcon_h1_mini\.yaml"):
        with_options([f"model={folder}"])


def test_a_campaign_runs_with_a_model_of_its_users(tmp_path: Path) -> None:
    done = run(
        "campaign=q6", f"model={BAMBA}", "seeds=[1]", "budget=b108", "stage=plan",
        "admission.headroom=0", "model.max_model_tokens=8192", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 cells" in done.stdout
    assert "no split was screened for model bamba_9b" in done.stdout
    missing = run("campaign=q6", "model=no/such", "stage=plan", cwd=tmp_path)
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: model: there is no no/such, and the local cache")
