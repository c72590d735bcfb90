"""The files around the code agree with each other: versions, Pythons, and what CI runs."""

import re
import tomllib
from pathlib import Path

import wheel_on_pythons
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def commands(job: str) -> list[str]:
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_does_what_ci_run_does_and_the_light_tests_on_every_supported_python() -> None:
    assert commands("test") == [".ci/run"]
    assert commands("light")[0] == "make test-light"
    pythons = WORKFLOW["jobs"]["light"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    classified = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if prefix in name]
    assert pythons == classified == list(wheel_on_pythons.SUPPORTED)
    assert PROJECT["requires-python"] == f">={pythons[0]}"


def test_the_citation_and_the_changelog_have_the_version_and_the_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_of_the_light_install_is_in_its_lock_and_every_lock_has_it() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        pinned = set(re.findall(r"^([\w-]+)==", lock.read_text(encoding="utf-8"), re.M))
        for requirement in PROJECT["dependencies"]:
            assert re.split(r"[<>=]", requirement)[0] in pinned, (lock.name, requirement)


def test_plugins_of_hydra_are_bounded_above_as_hydra_is() -> None:
    extras = PROJECT["optional-dependencies"]
    plugins = [each for name in ("sweep", "search") for each in extras[name] if "hydra" in each]
    assert len(plugins) == 4
    assert all("<" in each for each in plugins)
