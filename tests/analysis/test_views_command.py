"""`python -m analysis timeline|perfetto|why` on a ledger, and what they answer to bad arguments."""

import json
from pathlib import Path

import commands
import pytest

from analysis.__main__ import main
from analysis.command import run
from analysis.views.timeline import read_data
from hsexp.ledger import Ledger

SMALL = ("campaign=q7", "seeds=[1]", "workload.num_requests=12", "stage=run", "workers=1")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """S2 at two headrooms, without a trace and with one."""
    folder = tmp_path_factory.mktemp("q7")
    done = commands.run(*SMALL, "organization=s2", "ledger=ledger", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "ledger"


def attempt(ledger: Path, *, trace: bool, headroom: float = 0.0) -> str:
    rows = Ledger.read(ledger).attempts()
    rows = rows[(rows["trace"] == trace) & (rows["headroom"] == headroom)]
    return str(rows["attempt_id"].iloc[0])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(main, list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_page_is_written_beside_the_ledgers_tables(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = attempt(ledger, trace=True)
    code, out, _ = answer(capsys, "timeline", f"ledger={ledger}", f"run={name}")
    path = ledger / "analysis" / f"timeline-{name}.html"
    assert (code, out) == (0, f"page written: {path}\n")
    page = path.read_text(encoding="utf-8")
    assert len(read_data(page)["lanes"]["id"]) == 12
    assert "simulated (engine sim" in page
    assert "q7: organization s2, budget b83, rate_per_s 3" in page


def test_a_run_is_also_known_by_its_cell(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = attempt(ledger, trace=True)
    for run_name in (name, name.rpartition("-")[0]):
        out = tmp_path / "deep" / f"{run_name}.json"
        answer(capsys, "perfetto", f"ledger={ledger}", f"run={run_name}", f"out={out}")
    first, second = (tmp_path / "deep").iterdir()
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(first.read_text())["otherData"]["run"] == name


def test_why_answers_for_one_request_and_lists_those_to_ask_about(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = attempt(ledger, trace=True)
    code, out, _ = answer(capsys, "why", f"ledger={ledger}", f"run={name}")
    assert code == 0
    assert "Waited longest" in out
    assert f"python -m analysis why ledger={ledger} run={name} request=ID" in out
    code, out, _ = answer(capsys, "why", f"ledger={ledger}", f"run={name}", "request=3")
    assert code == 0
    assert out.startswith(f"Request 3 of run {name}\n")
    assert "What it could have reused" in out


def test_several_traced_runs_are_never_chosen_between(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, "why", f"ledger={ledger}")
    assert (code, out) == (2, "")
    assert f"run= is required, because ledger={ledger} has 2 traced runs" in err
    assert f"run={attempt(ledger, trace=True, headroom=0.19)}  headroom 0.19" in err


def test_a_run_without_a_trace_says_how_to_get_one(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = attempt(ledger, trace=False)
    code, _, err = answer(capsys, "timeline", f"ledger={ledger}", f"run={name}")
    assert code == 2
    assert f"run={name}: it has no trace; trace=true traces runs: `python -m hsexp" in err
    assert not (ledger / "analysis" / f"timeline-{name}.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["why"], "ledger= is required: the folder of a ledger with a traced run"),
        (["why", "ledger=nowhere"], "ledger=nowhere: there is no ledger here"),
        (["timeline", "ledger=LEDGER", "run=abc"], "run=abc: LEDGER has no such attempt"),
        (["timeline", "ledger=LEDGER", "runs=abc"], "argument runs=abc is unknown"),
        (["perfetto", "ledger=LEDGER", "run="], "run must have a value"),
        (["why", "ledger=LEDGER", "run=RUN", "request=99"], "request=99: run RUN traced no such"),
        (["why", "ledger=LEDGER", "run=RUN", "out=a"], "argument out=a is unknown"),
        (["timeline", "ledger=LEDGER", "run=RUN", "out=LEDGER/journal.jsonl/a"], "out=LEDGER/jour"),
    ],
)
def test_bad_arguments_name_the_field_and_its_value(
    ledger: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    def real(text: str) -> str:
        return text.replace("LEDGER", str(ledger)).replace("RUN", attempt(ledger, trace=True))

    code, out, err = answer(capsys, *map(real, arguments))
    assert (code, out) == (2, "")
    assert real(message) in err
