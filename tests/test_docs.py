"""What the documentation names exists: make targets, campaigns, options, files, links, metrics."""

import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from commands import ROOT
from pages import DOCS, TYPED_PAGES, files, heading_anchors, said

from analysis.config import campaigns as analysed
from hsexp.config.axes import AXES
from hsexp.config.base import parse_union
from hsexp.config.catalog import CONF, options, read_option, standing_options
from hsexp.measure.metrics import metric_names, summarize
from hsexp.measure.records import (
    DEPTH_COLUMNS,
    MEASURED_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    RunRecord,
)
from hsexp.memory.cache import MemoryCounters
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig, StateMix, create
from hsexp.memory.sums import StepSums
from hsexp.trace.schema import COLUMNS

PAGES = [ROOT / "README.md", *DOCS]
CODE = [each.text for page in PAGES for each in said(page) if not each.is_python]

MAKE = sorted({target for code in CODE for target in re.findall(r"^make ([a-z-]+)", code)})
CHOICES = sorted(
    {
        (group, name)
        for code in CODE
        if code.startswith("python -m hsexp")
        for group, name in re.findall(r"(?<=\s)(\w+)=(\w+)(?=[\s,]|$)", code)
        if (CONF / group).is_dir() and name not in ("NAME", "DIR")
    }
)
PATHS = sorted(
    {
        code
        for code in CODE
        if re.fullmatch(r"[\w./-]+/[\w./-]*", code)
        and not re.match(r"\.venv/|dist/|hsexp/_compiled/|ledgers/(?!cpu_falcon_h1_mini)", code)
        and not re.search("NAME|DIR", code)
        and (ROOT / code.split("/")[0]).is_dir()
    }
)
"""Below the folders of this checkout; installs, builds and runs make the others."""


def test_the_pages_name_commands_to_check() -> None:
    assert {"demo", "test"} <= set(MAKE)
    assert {("campaign", "q6"), ("campaign", "capacity"), ("budget", "b63")} <= set(CHOICES)
    assert "conf/device/a100_40gb.yaml" in PATHS


@pytest.mark.parametrize("target", MAKE)
def test_make_knows_a_target_of_a_page(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


OWN = {path for page in DOCS for path in files(page)}
"""Files that a page has its reader write."""


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_an_option_of_a_page_exists(group: str, name: str) -> None:
    assert name in options(group) or OWN & {f"my/{group}/{name}.yaml", f"{name}/config.json"}


def test_campaigns_that_a_page_analyses_can_be_analysed() -> None:
    named = {
        name
        for code in CODE
        for name in re.findall(r"^python -m (?:analysis|figures) campaign=(\w+)", code)
    }
    assert named
    assert named <= set(analysed())


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_a_page_exists(path: str) -> None:
    assert (ROOT / path).exists()


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in heading_anchors(path)):
            broken.append(target)
    assert broken == []


def test_the_index_has_one_line_for_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[([\w.-]+\.md)\]\(\1\): \S", index, flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS if page.name != "README.md")


def test_the_readme_is_short_and_leads_to_the_index() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 120
    assert "(docs/README.md)" in readme and "(docs/tutorial.md)" in readme
    assert {page.name for page in TYPED_PAGES} >= {"README.md", "tutorial.md", "extending.md"}


# -- names of code -------------------------------------------------------------------------------

LIFE, _, _ = (ROOT / "docs" / "life_of_a_request.md").read_text("utf-8").partition("## Layout")
FILES = dict.fromkeys(re.findall(r"`((?:hsexp|runners|analysis|tests)/[\w/]+\.py)`", LIFE))
DEFINED = re.findall(r"`(\w+)`s?[,\s]+\(?`([\w/]+\.py)`\)", LIFE)


def defines(path: str, name: str) -> bool:
    text = (ROOT / path).read_text(encoding="utf-8")
    return bool(re.search(rf"^\s*(?:def|class) {name}\b", text, flags=re.MULTILINE))


def test_the_life_of_a_request_has_eight_steps() -> None:
    steps = re.findall(r"^## (\d)\. ", LIFE, flags=re.MULTILINE)
    assert steps == list("12345678")
    assert len(DEFINED) > 25


@pytest.mark.parametrize("path", FILES)
def test_a_file_in_the_life_of_a_request_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(("name", "path"), DEFINED)
def test_a_name_in_the_life_of_a_request_is_defined_in_its_file(name: str, path: str) -> None:
    assert defines(path, name)


def test_every_name_in_the_life_of_a_request_is_defined_in_one_of_its_files() -> None:
    names = set(re.findall(r"`([A-Za-z_]\w+)`", LIFE))
    assert {name for name in names if not any(defines(path, name) for path in FILES)} == set()


# -- metrics -------------------------------------------------------------------------------------

METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def columns_of_a_run() -> set[str]:
    """Every column that some run has: of all runs, of traced and of measured ones, counters."""
    requests, steps = (
        pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})
        for columns in (REQUEST_COLUMNS | DEPTH_COLUMNS | MEASURED_COLUMNS, STEP_COLUMNS)
    )
    fullest = summarize(RunRecord(requests=requests, steps=steps, episode_s=1.0))
    sums = StepSums(stranded_byte_steps=1, pool_byte_steps=1, used_slot_steps=1, slab_slot_steps=1)
    counters = asdict(MemoryCounters()) | sums.counters()
    in_place = {"state_copies"}
    return {*metric_names(), *fullest, *counters, *in_place}


def test_docs_metrics_has_every_column_of_a_run_and_no_other() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", METRICS, flags=re.MULTILINE)
    documented = [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]
    assert len(documented) == len(set(documented))
    assert set(documented) == columns_of_a_run()


def test_docs_metrics_names_no_time_that_the_request_table_lacks() -> None:
    times = re.findall(r"^\| [\w ]+ \| `(\w+_s)` \|", METRICS, flags=re.MULTILINE)
    assert len(times) == 5
    assert set(times) <= {*REQUEST_COLUMNS, *MEASURED_COLUMNS}


# -- glossary, budgets ---------------------------------------------------------------------------

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"`([\w.]+=[\w.]+)`", GLOSSARY))))
def test_a_setting_of_the_glossary_is_one(setting: str) -> None:
    name, _, value = setting.partition("=")
    if (CONF / name).is_dir():
        assert value in options(name)
    else:
        assert [axis for axis in AXES if name in (axis.spelling, axis.name)]


def test_the_glossary_has_every_rule_of_every_policy() -> None:
    for group in ("eviction", "waiting", "placement", "reservation", "states", "leaves"):
        named = set(re.findall(rf"`{group}=(\w+)`", GLOSSARY))
        assert named == set(standing_options(group)), group


def test_the_budgets_in_gib_are_those_that_the_page_computes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ROOT / "docs" / "budgets.md"
    (snippet,) = [each.text for each in said(page) if each.is_python]
    exec(compile(snippet, page.name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(options("model"))
    text = page.read_text(encoding="utf-8")
    assert printed == re.findall(r"^\| (?:bytes of a layer|`\w+`) \|.*$", text, flags=re.M)


# -- install -----------------------------------------------------------------------------------

INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["vllm", "torch", "llguidance"])
def test_the_install_page_names_the_version_that_the_lock_has(package: str) -> None:
    lock = (ROOT / "requirements" / "gpu.lock").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)$", lock, flags=re.M)
    named = re.findall(rf"\b{package}`? (\d+\.\d+\.\d+)", INSTALL, flags=re.I)
    assert set(named) == {version}


def test_every_lock_has_a_make_target_that_installs_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert f"install --quiet -r {lock.relative_to(ROOT)}" in makefile or (
            f"install --quiet --no-deps -r {lock.relative_to(ROOT)}" in makefile
        )
        assert f"-o {lock.relative_to(ROOT)}" in makefile


FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", FAULTS)))


def test_every_fault_names_a_test() -> None:
    kinds = [line for line in FAULTS.splitlines() if "#" in line and line.startswith("|")]
    assert len(kinds) > 30
    assert not [line for line in kinds if "::test_" not in line]


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_a_test_that_keeps_a_fault_out_exists(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


TRACES = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def test_docs_traces_has_every_kind_of_event_with_its_columns() -> None:
    found: dict[str, set[str]] = {}
    events = TRACES.partition("## Events")[2].partition("## ")[0]
    for line in re.findall(r"^\| (`\w+`.*) \|$", events, flags=re.M):
        kinds, _, columns = (re.findall(r"`([^`]*)`", cell) for cell in line.split(" | "))
        for kind in kinds:
            # In brackets: a kind of the row, and the columns that only this one has.
            own = columns[2:] if kind in columns[1:2] else []
            found[kind] = {*columns[0].split(), *own}
    assert found == {kind: set(columns) for kind, columns in COLUMNS.items()}


# -- organizations, trust ------------------------------------------------------------------------

ORGANIZATIONS = ("s0", "s1", "s2", "s3", "d0")


def row_of(page: str, title: str) -> list[str]:
    line: str
    (line,) = re.findall(rf"^\| {title} \| (.*) \|$", page, flags=re.MULTILINE)
    return line.split(" | ")


def test_the_sizes_in_docs_organizations_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "organizations.md").read_text(encoding="utf-8")
    model = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
    layouts = [
        create(parse_union(OrganizationConfig, read_option("organization", name), path=name), model)
        for name in ORGANIZATIONS
    ]
    grids = [f"{layout.checkpoint_grid:,}" for layout in layouts]
    assert row_of(page, "checkpoint grid, tokens") == grids
    blocks = [layout.mix_bytes(StateMix(attention_tokens=1, checkpoints=0)) for layout in layouts]
    assert row_of(page, "bytes of a block") == [f"{num_bytes:,}" for num_bytes in blocks]
    pools = [str(len(layout.plan(101_154_816).pools)) for layout in layouts]
    assert row_of(page, "pools") == pools
    configs = [layout.config for layout in layouts]
    assert row_of(page, "states admission reserves") == [
        str(config.num_admission_states) for config in configs
    ]
    holds = {"yes": True, "no": False}
    pages = [holds[word] for word in row_of(page, "a decode token reads states page by page")]
    assert pages == [config.pages_states for config in configs]
    branches = [holds[word] for word in row_of(page, "forks, leaves, drafts")]
    assert branches == [config.allows_branches for config in configs]


def test_the_readme_and_docs_trust_give_the_same_headline_numbers() -> None:
    readme, trust = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/trust.md")
    )
    for title in ("32 fresh seeds, 5000 to 5031", "the 12 published seeds"):
        assert row_of(readme, title) == row_of(trust, title)
    assert "Nothing here ran on a GPU" in readme and "Nothing in this project ran on a GPU" in trust
