"""Commands and snippets of the README and of the pages of docs that say what to type: each is typed
as it stands there, made smaller where it runs for long."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import commands
import pytest
from commands import ROOT
from pages import TYPED_PAGES, Said, files, said

from hsexp.config.catalog import CONF, follow
from hsexp.ledger import Ledger
from hsexp.serve import Command as ServeCommand

ALL_SAID = [each for page in TYPED_PAGES for each in said(page)]
SAID = [
    each
    for place, each in enumerate(ALL_SAID)
    if (each.is_command or each.is_python)
    and each.text not in {earlier.text for earlier in ALL_SAID[:place]}
]
"""Each once, in the order in which they are first said: a page reads ledgers that it has filled."""

COMMANDS = [each.text for each in SAID if each.is_command]
"""`make` has a test of its own (test_docs)."""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """How a command is tried."""

    more: str = ""
    """Typed behind it, so that it takes seconds."""
    instead: tuple[tuple[str, str], ...] = ()
    """Of the placeholders, what stands for them."""
    code: int = 0
    shows: str = ""


ONE_RUN = "organization=s2 admission.headroom=0 seeds=[7] workload.num_requests=4 stage=run"
SMALL = "seeds=[76400,76401] workload.num_requests=8"
MEASURED_CELL = "seeds=[42000] budget=b63 organization=s2 stage=run"
Q1_ON_VLLM = "python -m hsexp campaign=q1 engine=vllm device=cpu model=falcon_h1_mini"
SIMULATED = (
    "python -m hsexp --config-dir conf-local campaign=q1 engine=sim device=NAME "
    "model=falcon_h1_mini scale=cpu_falcon_h1_mini ledger=DIR"
)

ADVISE = (
    "python -m hsexp campaign=advise model=DIR/config.json device=h100 workload.path=requests.csv"
)

FIRST = "python -m hsexp campaign=q6 budget=b63 admission.headroom=0"
TUTORIAL_ADVISE = (
    "python -m hsexp campaign=advise model=my_model device=h100 gpu_gib=8 workload.path=chat.csv"
)

TYPED = {
    "hsexp analysis": Typed(shows="python -m analysis campaign=q6"),
    "hsexp figures": Typed(shows="python -m figures figure=2"),
    "hsexp serve": Typed(shows="python -m hsexp.serve organization=s2"),
    "hsexp replay": Typed(more="ledger=nowhere", code=2, shows="nowhere: there is no ledger"),
    "hsexp interop": Typed(code=2, shows="python -m runners.interop import=RESULT.json"),
    "hsexp probe": Typed(shows="python -m hsexp probe device=NAME"),
    "hsexp pack": Typed(shows="python -m hsexp pack campaign=q6"),
    "hsexp verify": Typed(shows="python -m hsexp verify FILE.tar"),
    "python -m hsexp campaign=q6 stage=status": Typed(
        more="workload.num_requests=8", shows="360 planned: "
    ),
    "python -m hsexp pack campaign=q6": Typed(shows="packed: q6.tar"),
    "python -m hsexp verify q6.tar": Typed(shows="bit for bit"),
    "python -m analysis": Typed(shows="python -m analysis campaign=q6"),
    "python -m figures": Typed(shows="python -m figures figure=2"),
    "python -m hsexp.serve": Typed(shows="python -m hsexp.serve organization=s2"),
    "python -m hsexp.version": Typed(shows=", core "),
    "python -m hsexp": Typed(code=2, shows="campaign=capacity"),
    "python -m hsexp --help": Typed(shows="Common commands"),
    "python -m hsexp campaign=q6": Typed(more=SMALL, shows="figure 6: "),
    "python -m hsexp campaign=q6 stage=plan": Typed(shows="360 cells"),
    "python -m hsexp campaign=q6 budget=b63 admission.headroom=0.19": Typed(
        more="seeds=[7] workload.num_requests=4 stage=run ledger=narrow", shows="narrowed to 0.19"
    ),
    "python -m hsexp campaign=q6 seeds=[1,2,3] ledger=ledgers/try": Typed(
        more="organization=s2 admission.headroom=0 workload.num_requests=4 stage=run",
        shows="9 run in",
    ),
    "python -m hsexp campaign=q6 budget=bytes budget.bytes=200000000": Typed(
        more="organization=s2 seeds=[7] workload.num_requests=4 ledger=bytes"
    ),
    "python -m hsexp campaign=q6 --cfg job": Typed(shows="num_requests: "),
    "python -m hsexp --config-dir DIR campaign=NAME": Typed(
        instead=(("DIR", "my"), ("NAME", "mine")), more=ONE_RUN, shows="3 run in"
    ),
    "python -m hsexp campaign=capacity": Typed(shows="B-2"),
    "python -m hsexp campaign=capacity model=granite_4_h": Typed(shows="10,485,760"),
    "python -m hsexp campaign=q6 model=DIR/config.json": Typed(
        instead=(("DIR", "model"),),
        more=f"{ONE_RUN} ledger=own",
        shows="3 run in",
    ),
    "python -m hsexp campaign=split_screen model=DIR/config.json": Typed(
        instead=(("DIR", "model"),), more="stage=plan", shows="d0_share90"
    ),
    "python -m hsexp campaign=trace workload.path=requests.csv": Typed(
        more="stage=run", shows="0 failed"
    ),
    "python -m hsexp trace=requests.csv": Typed(shows="requests.csv: lengths, 3 requests"),
    ADVISE: Typed(
        instead=(("DIR", "model"),),
        more="retention=off waiting=first_come ledger=advised",
        shows="vllm serve ",
    ),
    "python -m hsexp campaign=paper": Typed(
        more="stage=plan seeds=[1]", shows="paper: 19 campaigns"
    ),
    "python -m hsexp campaign=q10": Typed(more="stage=plan", shows="3780 cells"),
    "python -m hsexp -m campaign=q6 budget=b63,b83": Typed(
        more=f"{ONE_RUN} ledger=swept", shows="budget=b83  complete"
    ),
    "python -m hsexp campaign=fixed_work": Typed(shows="modelled"),
    "python -m hsexp campaign=branching": Typed(shows="counted"),
    "python -m hsexp campaign=NAME stage=plan": Typed(instead=(("NAME", "q6"),), shows="360 cells"),
    "hsexp report": Typed(shows="python -m hsexp report campaign=q6"),
    "python -m hsexp report campaign=q6": Typed(
        more="seeds=76400-76401", shows="report: ledgers/q6/sim/report.html"
    ),
    "python -m hsexp report campaign=paper": Typed(
        more="pages=false", shows="report: ledgers/report.html"
    ),
    "python -m analysis campaign=q6": Typed(more="seeds=76400-76401", shows="B-8.csv"),
    "python -m figures campaign=q6": Typed(more="seeds=76400-76401", shows="figure-6.pdf"),
    "python -m analysis campaign=q6 table=settings metric=ttft_p99_s": Typed(
        shows="is best: ttft_p99_s"
    ),
    "python -m analysis export ledger=DIR": Typed(shows="summary.json"),
    "python -m analysis table=G-7 source=paper": Typed(shows="G-7.csv"),
    "python -m analysis compare=paper": Typed(shows="compare-goals.csv"),
    "python -m analysis timeline ledger=ledgers/q7/sim run=TRACED": Typed(shows="page written: "),
    "python -m analysis perfetto ledger=ledgers/q7/sim run=TRACED": Typed(shows="trace written: "),
    "python -m analysis why ledger=ledgers/q7/sim run=TRACED request=3": Typed(
        shows="Why it waited"
    ),
    "python -m analysis calibrate ledger=DIR device=NAME": Typed(
        instead=(("NAME", "OTHER"),), shows="--config-dir conf-local device=OTHER"
    ),
    "python -m analysis calibrate ledger=ledgers/q1/vllm device=NAME": Typed(
        more="out=out/device/NAME.yaml", shows="--config-dir out device=NAME"
    ),
    SIMULATED: Typed(more=MEASURED_CELL, shows="1 already accepted, 0 to run"),
    "python -m analysis beside measured=ledgers/q1/vllm simulated=DIR": Typed(shows="beside"),
    "python -m runners.interop import=RESULT.json ledger=DIR device=NAME": Typed(
        instead=(("DIR", "imported"), ("NAME", "cpu"))
    ),
    "python -m runners.interop export=ATTEMPT ledger=DIR out=RESULT.json": Typed(
        instead=(("RESULT.json", "again.json"),)
    ),
    f".venv/bin/{Q1_ON_VLLM}": Typed(more="--cfg job", shows="name: vllm"),
    f"{Q1_ON_VLLM} engine.transport=inproc ledger=ledgers/try": Typed(
        more="--cfg job", shows="transport: inproc"
    ),
    "python -m hsexp campaign=capacity organization=s2 organization.block_size=256": Typed(
        shows="262,144"
    ),
    "python -m hsexp campaign=capacity budget=b108": Typed(shows="173,408,256"),
    f"{FIRST} stage=plan": Typed(shows="24 cells"),
    f"{FIRST} seeds=[1,2,3] ledger=ledgers/first": Typed(
        more="workload.num_requests=20", shows="P0-b63"
    ),
    "python -m hsexp trace=chat.csv": Typed(shows="chat.csv: lengths, 200 requests"),
    "python -m hsexp campaign=trace workload.path=chat.csv budget=b63 ledger=ledgers/chat": Typed(
        shows="0 failed"
    ),
    "python -m hsexp campaign=capacity model=my_model": Typed(shows="my_model"),
    f"{TUTORIAL_ADVISE} stage=plan": Typed(shows="85 cells"),
    "python -m hsexp --config-dir my campaign=question": Typed(
        more="workload.num_requests=20", shows="18 run in"
    ),
    "python -m hsexp --config-dir my campaign=question stage=run": Typed(
        more="workload.num_requests=20", shows="18 already accepted, 6 to run"
    ),
    (
        "python -m hsexp --config-dir my campaign=question organization=s3 waiting=hit_first "
        "ledger=ledgers/once"
    ): Typed(more="workload.num_requests=20", shows="0 failed"),
    "python -m hsexp --config-dir my campaign=short stage=plan": Typed(shows="8 cells"),
    "python -m hsexp --config-dir my campaign=short": Typed(shows="8 run in"),
    "python -m analysis config_dir=my campaign=short": Typed(shows="B-2.csv"),
    "python -m hsexp --config-dir my campaign=capacity organization=s2_fine": Typed(
        shows="262,144"
    ),
    "python my/tucked.py": Typed(shows="tucked "),
    "python -m hsexp --config-dir my campaign=capacity model=half_falcon": Typed(
        shows="half_falcon"
    ),
    (
        "python -m hsexp --config-dir my campaign=short device=desk_gpu organization=s2 "
        "ledger=ledgers/desk"
    ): Typed(shows="simulated, prior"),
    "python my/waits.py ledgers/short/sim": Typed(shows="b63: "),
    "python -m hsexp campaign=q1 engine=vllm device=a100_40gb stage=plan": Typed(
        more="--cfg job", shows="name: vllm"
    ),
}

PARSED = {
    "python -m hsexp.serve organization=s2 model=falcon_h1_mini",
    "python -m hsexp.serve organization=s2 model=falcon_h1_mini budget_gib=0.5 port=8000",
    "python -m hsexp.serve organization=s2 model=falcon_h1_7b stage=plan",
}
"""What needs vLLM: `tests/engine` serves, here only the arguments are read."""

RAY = (
    "python -m hsexp -m campaign=q6 budget=b63,b83 hydra/launcher=ray "
    "\"hydra.launcher.ray.init.address='10.0.0.1:6379'\" "
    "+hydra.launcher.ray.init.object_store_memory=null +hydra.launcher.ray.remote.num_cpus=1"
)
SLURM = (
    "python -m hsexp -m campaign=q6 budget=b63,b83,b108 hydra/launcher=submitit_slurm "
    "hydra.launcher.partition=cpu hydra.launcher.timeout_min=30 hydra.launcher.cpus_per_task=8"
)
LOCAL = "python -m hsexp -m campaign=q6 budget=b63,b83 hydra/launcher=submitit_local"
SKIPPED = {
    RAY: "needs a Ray cluster; two local nodes are in tests/runners/test_sweeps.py",
    SLURM: "needs Slurm; its local executor is in tests/runners/test_sweeps.py",
    LOCAL: "needs the launchers; see tests/runners/test_sweeps.py",
    "python -m hsexp probe device=NAME": "runs an engine; see tests/engine/test_real_probe.py",
    "python -m runners.replay ledger=ledgers/q1/vllm": (
        "takes minutes; one run is repeated by tests/runners/test_replay.py"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A folder with what the README's commands take up."""

    folder: Path
    attempt: str
    """An attempt of the ledger DIR."""
    traced: str
    """A traced attempt of Q7."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "model").mkdir()
    bamba = ROOT / "tests" / "models" / "configs" / "bamba_9b.json"
    shutil.copy(bamba, folder / "model" / "config.json")
    (folder / "requests.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n0.0,900,4\n0.5,40,3\n0.9,2000,5\n"
    )
    text = (ROOT / "conf" / "campaign" / "q6.yaml").read_text(encoding="utf-8")
    _write(folder / "my" / "campaign" / "mine.yaml", text.replace("name: q6", "name: mine"))
    text = (ROOT / "conf" / "device" / "cpu_falcon_h1_mini_q1.yaml").read_text(encoding="utf-8")
    device = text.replace("name: cpu_falcon_h1_mini_q1", "name: NAME")
    _write(folder / "conf-local" / "device" / "NAME.yaml", device)
    for page in TYPED_PAGES:
        for name, text in files(page).items():
            _write(folder / name, text)
    shutil.copytree(ROOT / "ledgers" / "cpu_falcon_h1_mini" / "q1", folder / "ledgers" / "q1")
    for command in (
        f"python -m hsexp campaign=q6 {SMALL} stage=run",
        f"{SIMULATED} {MEASURED_CELL} record_steps=true",
        f"python -m hsexp campaign=q7 trace=true {ONE_RUN}",
    ):
        done = commands.run(*shlex.split(command)[3:], cwd=folder)
        assert done.returncode == 0, done.stderr
    measured, simulated, traced = (
        Ledger.read(folder / path).attempts()["attempt_id"].iloc[0]
        for path in ("ledgers/q1/vllm", "DIR", "ledgers/q7/sim")
    )
    export = (f"export={measured}", "ledger=ledgers/q1/vllm", "out=RESULT.json")
    commands.run(*export, cwd=folder, module="runners.interop").check_returncode()
    return Workplace(folder=folder, attempt=simulated, traced=traced)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_command_of_a_page_is_tried_or_says_why_not() -> None:
    assert len(COMMANDS) > 60
    assert sorted(COMMANDS) == sorted([*TYPED, *PARSED, *SKIPPED])


@pytest.mark.usefixtures("loggers")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
@pytest.mark.parametrize(
    "what",
    [each for each in SAID if each.is_python or each.text in TYPED],
    ids=lambda what: f"{what.page}: {what.text.splitlines()[0]}",
)
def test_what_a_page_says_to_type_does_what_it_says(
    what: Said,
    workplace: Workplace,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workplace.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    follow([CONF])
    if what.is_python:
        exec(compile(what.text, what.page, "exec"), {})
        follow([CONF])
        return
    typed = TYPED[what.text]
    line = what.text.replace("ATTEMPT", workplace.attempt).replace("TRACED", workplace.traced)
    for placeholder, value in typed.instead:
        line = line.replace(placeholder, value)
    program, *words = shlex.split(f"{line} {typed.more}")
    code: int | str
    if words[:1] != ["-m"] and program == "python":
        done = subprocess.run(
            [sys.executable, *words],
            env=commands.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        code, printed = done.returncode, done.stdout + done.stderr
    else:
        module = "hsexp" if program == "hsexp" else words[1]
        monkeypatch.setattr(sys, "argv", [module, *(words if program == "hsexp" else words[2:])])
        code = 0
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        printed = "".join(capfd.readouterr())
    assert (code, typed.shows in printed) == (typed.code, True), printed


@pytest.mark.parametrize("command", sorted(PARSED))
def test_a_server_of_the_readme_has_arguments_that_mean_something(command: str) -> None:
    parsed = ServeCommand.parse(shlex.split(command)[3:])
    assert parsed.settings["organization"] == "s2"


@pytest.mark.parametrize(("command", "why"), SKIPPED.items())
def test_what_is_not_tried_here_is_tried_elsewhere(command: str, why: str) -> None:
    named = re.findall(r"tests/[\w/]+\.py", why)
    assert named, command
    assert all((ROOT / path).is_file() for path in named)
