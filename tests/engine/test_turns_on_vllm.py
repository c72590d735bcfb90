"""Sessions on real vLLM: a turn arrives a think time after the answer before it has ended."""

from pathlib import Path

import commands
import pytest

from hsexp.ledger import Ledger

SESSIONS, TURNS = 8, 3


def write_sessions(path: Path) -> None:
    """Turns of lengths that differ, so that requests change places in the batch."""
    rows = ["arrival_s,input_tokens,output_tokens,user"]
    for turn in range(TURNS):
        for user in range(SESSIONS):
            prompt = (turn + 1) * (150 + 40 * user)
            rows.append(f"{0.1 * user + turn},{prompt},{16 + 5 * ((user + turn) % 4)},u{user}")
    path.write_text("\n".join([*rows, ""]), encoding="utf-8")


@pytest.mark.parametrize("transport", ["inproc", pytest.param("http", marks=pytest.mark.slow)])
def test_every_answer_is_the_one_that_the_next_turn_holds(transport: str, tmp_path: Path) -> None:
    write_sessions(tmp_path / "talk.csv")
    done = commands.run(
        "campaign=trace",
        "campaign.blocks.replay.organization=[s2]",
        "engine=vllm",
        f"engine.transport={transport}",
        "engine.num_warmup_requests=1",
        "device=cpu",
        "~scale",
        "model=falcon_h1_mini",
        "model.max_model_tokens=8192",
        "budget=bytes",
        "budget.bytes=100000000",
        "admission.cap=16",
        "workload.path=talk.csv",
        "workload.columns.session=user",
        "workload.turns=closed",
        "workload.think_s=0.2",
        "ledger=turns",
        cwd=tmp_path,
        env=commands.environment(XDG_CACHE_HOME=str(tmp_path)),  # the lock of real runs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = Ledger.read(tmp_path / "turns")
    assert ledger.frame()["num_finished"].tolist() == [SESSIONS * TURNS]
    (attempt,) = ledger.accepted().values()
    table = ledger.request_table(attempt)
    assert (table["sent_s"] >= table["arrival_s"]).all()
