"""Sweeps: one ledger keyed by content, whatever the launcher, the order and the accidents."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import commands
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from small_launches import SPILL, carried_out, start_sweep, swept, write_trace

from hsexp.ledger import Ledger
from runners.launch import Analysis
from runners.sweep import merged

TRACE = ("campaign=trace", "workload.path=three.csv", "organization=s2", "workers=1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where sweeps run: a trace of three requests, and one whose requests outgrow the memory."""
    write_trace(tmp_path / "three.csv", "0.0,900,4", "0.5,40,3", "0.9,2000,5")
    write_trace(tmp_path / "spill.csv", *["0.0,500,1500"] * 16)
    return tmp_path


def ledger(folder: Path) -> Ledger:
    return Ledger.read(folder / "ledgers" / "trace" / "sim")


def outcomes(folder: Path) -> dict[int, list[str]]:
    """Statuses of all attempts by cap, the one that counts in capitals."""
    found: dict[int, list[str]] = {}
    columns = ["cap", "status", "adopted"]
    for cap, status, adopted in ledger(folder).attempts()[columns].to_numpy():
        found.setdefault(cap, []).append(status.upper() if adopted else status)
    return dict(sorted(found.items()))


# -- one ledger ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_stopped(folder: Path) -> None:
    arguments = [*TRACE, "admission.cap=1,2,3,4,5"]
    process = start_sweep(folder, *arguments)
    commands.wait_for_attempts(folder / "ledgers" / "trace" / "sim", 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = ledger(folder).accepted()
    assert 2 <= len(before) < 5
    code, printed = swept(folder, *arguments)
    assert code == 0, printed
    assert outcomes(folder) == {cap: ["OK"] for cap in range(1, 6)}
    assert before.items() <= ledger(folder).accepted().items()


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_cells_and_overwrite_nothing(folder: Path) -> None:
    both = [start_sweep(folder, *TRACE, f"admission.cap={caps}") for caps in ("1,2,3", "3,2,1")]
    ended = [(process.communicate()[0], process.returncode) for process in both]
    assert [code for _, code in ended] == [0, 0], ended
    assert outcomes(folder) == {cap: ["OK"] for cap in (1, 2, 3)}
    assert len(ledger(folder).launches()) == 6
    assert len(list((folder / "sweeps").iterdir())) == 2


@pytest.mark.slow
def test_the_same_cell_in_four_processes_gives_the_same_row(folder: Path) -> None:
    code, printed = swept(folder, *TRACE, "ledger=one,two,three,four")
    assert code == 0, printed
    rows = [Ledger.read(folder / name).frame() for name in ("one", "two", "three", "four")]
    when = ["started_at", "wall_s"]
    for row in rows[1:]:
        pd.testing.assert_frame_equal(row.drop(columns=when), rows[0].drop(columns=when))


# -- failures --------------------------------------------------------------------------------------


def needs(package: str) -> pytest.MarkDecorator:
    plugins = find_spec("hydra_plugins")
    return pytest.mark.skipif(
        plugins is None or find_spec(f"hydra_plugins.{package}") is None,
        reason=f"{package} is not installed: pip install -e .[sweep]",
    )


IN_BATCHES = ["hydra.sweeper.max_batch_size=1"]
"""Hydra would stop at the first failed batch, so that it is not told."""

LAUNCHERS = [
    pytest.param([], id="basic"),
    pytest.param(IN_BATCHES, id="basic in batches"),
    pytest.param(["hydra/launcher=joblib"], id="joblib", marks=needs("hydra_joblib_launcher")),
    pytest.param(
        ["hydra/launcher=submitit_local"],
        id="submitit_local",
        marks=[needs("hydra_submitit_launcher"), pytest.mark.slow],
    ),
    pytest.param(
        ["hydra/launcher=ray"],
        id="ray",
        marks=[needs("hydra_ray_launcher"), pytest.mark.slow],
    ),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failed_job_is_a_row_and_an_exit_code_and_the_others_run(
    folder: Path, launcher: list[str]
) -> None:
    code, printed = swept(folder, *SPILL, "admission.cap=1,63,2", *launcher)
    assert code == 1, printed
    assert outcomes(folder) == {1: ["OK"], 2: ["OK"], 63: ["failed"]}
    failed = ledger(folder).attempts().set_index("cap").loc[63]
    assert failed["reason"].startswith("NoProgress: no progress at step")
    assert "no progress at step" in failed["traceback"]
    assert re.search(r"1 +admission\.cap=63 +has failed cells", printed)
    assert re.search(r"2 +admission\.cap=2 +complete", printed)
    told_by_hydra = "job 1 of the sweep ended with 1" in printed
    assert told_by_hydra == (launcher != IN_BATCHES)


@pytest.mark.parametrize("launcher", LAUNCHERS[2:4])
def test_the_scripts_jobs_in_other_processes_take_no_folder_of_the_users_for_ours(
    folder: Path, launcher: list[str]
) -> None:
    for package in ("analysis", "figures", "runners", "hsexp"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("raise ImportError('the user\\'s')\n")
    script = "import sys; from hsexp.__main__ import script; sys.exit(script())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "-m", *TRACE, "admission.cap=1,2", *launcher],
        cwd=folder,
        env=commands.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcomes(folder) == {1: ["OK"], 2: ["OK"]}


def test_a_refused_job_says_why_and_the_others_run(folder: Path) -> None:
    code, printed = swept(folder, *TRACE, "admission.headroom=1.5,0.1")
    assert code == 2, printed
    assert "error: admission.headroom must be less than 1, got 1.5" in printed
    assert ledger(folder).frame()["headroom"].tolist() == [0.1]
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"ledgers", "sweeps"}
    (sweep,) = (folder / "sweeps").iterdir()
    assert {path.name for path in sweep.iterdir()} == {"multirun.yaml", "job-0.json", "job-1.json"}


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("budget=glob(z*)", r"matches nothing; choose from b108, .*, bytes"),
        ("admission.cap=glob(*)", "names no group"),
        ("admission.cap=range(3,3)", "is empty"),
        ("admission.headroom=range(0.2,0.1,0.05)", "is empty"),
        ("admission.cap=shuffle(range(5,1))", "is empty"),
    ],
)
def test_a_sweep_without_jobs_is_refused_by_its_override(
    folder: Path, override: str, why: str
) -> None:
    code, printed = swept(folder, *TRACE, "seeds=[1],[2]", override)
    assert code == 2, printed
    (line,) = printed.strip().splitlines()
    assert re.fullmatch(f"error: the sweep has no jobs: {re.escape(override)} {why}", line)
    assert not (folder / "ledgers").exists()


def test_an_empty_sweep_of_a_configuration_file_is_refused_too(folder: Path) -> None:
    own = folder / "own" / "caps" / "none.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "# @package _global_\nhydra: {sweeper: {params: {admission.cap: 'range(3,3)'}}}\n"
    )
    code, printed = swept(folder, "--config-dir", "own", *TRACE, "+caps=none")
    assert code == 2, printed
    assert printed == "error: the sweep has no jobs: admission.cap=range(3,3) is empty\n"


def test_a_refused_sweep_leaves_the_accounts_of_the_last_one(folder: Path) -> None:
    again = "hydra.sweep.dir=sweeps/one"
    assert swept(folder, *TRACE, "admission.cap=1,2", again)[0] == 0
    before = sorted((folder / "sweeps" / "one").iterdir())
    assert swept(folder, *TRACE, "admission.cap=range(3,3)", again)[0] == 2
    assert sorted((folder / "sweeps" / "one").iterdir()) == before


# -- values ----------------------------------------------------------------------------------------

TEXTS = ["a,b", "a|b", "a=b", "", "1e-3", "null", "2023-09-16", "no", "Größe 1,5", "it's", "#x"]


def quoted(text: str) -> str:
    return "'" + text.replace("'", r"\'") + "'"


def test_texts_come_back_from_a_sweep_as_they_were_typed(folder: Path) -> None:
    write_trace(folder / "a,b=c|Größe.csv", "0.0,900,4")
    texts = ",".join(["null", *map(quoted, TEXTS)])
    path = f"workload.path={quoted('a,b=c|Größe.csv')}"
    code, printed = swept(folder, *TRACE, "stage=run", path, f"note={texts}")
    assert code == 0, printed
    launches = ledger(folder).launches()
    assert [None if pd.isna(note) else note for note in launches["note"]] == [None, *TEXTS]
    assert "path" not in ledger(folder).contract["blocks"]["replay"]["workload"]
    parser = OverridesParser.create()
    for overrides, text in zip(launches["overrides"], [None, *TEXTS], strict=True):
        values = {item.key_or_group: item.value() for item in parser.parse_overrides(overrides)}
        assert (values["note"], values["workload.path"]) == (text, "a,b=c|Größe.csv")


def test_a_number_where_a_text_belongs_is_refused_and_never_rewritten(folder: Path) -> None:
    code, printed = swept(folder, *TRACE, "note=1e-3,plain")
    assert code == 2, printed
    assert "note must be text; a second pair of quotes keeps it one" in printed
    assert ledger(folder).launches()["note"].tolist() == ["plain"]


# -- tables ----------------------------------------------------------------------------------------


def test_a_job_leaves_tables_and_figures_to_the_end_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("budget=b63", "organization=s2", "admission.headroom=0", "workload.num_requests=4")
    result, _ = carried_out("campaign=q6", "seeds=[7]", "workers=1", *small)
    (analysis,) = result.analyses
    assert (analysis.campaign, analysis.seeds) == ("q6", (7,))
    assert not (analysis.ledger / "analysis").exists()


def of_ledger(ledger: str, *seeds: int) -> Analysis:
    return Analysis(campaign="q6", ledger=Path(ledger), seeds=seeds or None)


def test_tables_are_made_once_for_each_ledger_over_the_seeds_of_all_jobs() -> None:
    jobs = [of_ledger("a", 2), of_ledger("b", 5), of_ledger("a", 1)]
    assert merged(jobs) == [of_ledger("a", 1, 2), of_ledger("b", 5)]
    assert merged([of_ledger("a", 2), of_ledger("a"), of_ledger("a", 1)]) == [of_ledger("a")]


@pytest.mark.slow
def test_the_tables_of_a_narrowed_sweep_name_what_they_lack(folder: Path) -> None:
    code, printed = swept(
        folder,
        *("campaign=q6", "budget=b63", "organization=s2", "workload.num_requests=4", "workers=1"),
        *("admission.headroom=0,0.19", "seeds=[1],[2]"),
    )
    assert code == 0, printed
    assert printed.count("B-7.csv") == 1
    assert printed.rindex("1 run in") < printed.index("B-7.csv")
    assert "campaign q6: no run of D0, nor of b83, b108, nor of headroom 0.1, 0.27, 0.35" in printed
    assert "figure 6: " in printed and "no figure" not in printed


# -- machines --------------------------------------------------------------------------------------


@pytest.mark.slow
@needs("hydra_ray_launcher")
def test_the_jobs_of_two_ray_nodes_share_a_ledger(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    cluster = Cluster()
    cluster.add_node(num_cpus=1, object_store_memory=memory, resources={"first": 1})
    cluster.add_node(num_cpus=1, object_store_memory=memory, resources={"second": 1})
    try:
        for node, caps in (("first", "1,2"), ("second", "2,3")):
            code, printed = swept(
                folder,
                *TRACE,
                f"admission.cap={caps}",
                "hydra/launcher=ray",
                f"hydra.launcher.ray.init.address={cluster.address!r}",
                "+hydra.launcher.ray.init.object_store_memory=null",
                f"+hydra.launcher.ray.remote.resources.{node}=1",
            )
            assert code == 0, printed
    finally:
        cluster.shutdown()
    assert outcomes(folder) == {cap: ["OK"] for cap in (1, 2, 3)}
    assert len(ledger(folder).launches()) == 4


@needs("hydra_submitit_launcher")
@pytest.mark.skipif(shutil.which("srun") is not None, reason="Slurm is here")
def test_a_sweep_for_slurm_without_slurm_fails_and_runs_nothing(folder: Path) -> None:
    code, printed = swept(folder, *TRACE, "admission.cap=1,2", "hydra/launcher=submitit_slurm")
    assert code == 1
    assert "are you indeed on a slurm cluster?" in printed
    assert not (folder / "ledgers").exists()
