"""`python -m analysis` on a real ledger, and what it answers to bad arguments."""

import shutil

import commands
import pandas as pd
import pytest
from q6_frames import q6_attempts
from toy_ledgers import by_organization, original_five, write_block

from analysis.__main__ import main
from analysis.command import run
from hsexp.ledger import Attempt, EngineFacts, Ledger, Provenance, encode_table
from hsexp.plan.cells import Cell, content_key

AXES = ["organization", "budget", "rate_per_s", "cap", "sharing", "headroom"]
AXES += ["retention", "pinning", "isolation", "seed"]
METRICS = ["num_finished", "output_tokens", "throughput_tok_per_s", "requests_per_s"]
METRICS += ["ttft_p99_s", "e2e_p99_s", "tpot_p99_s"]


def write_ledger(path, frame, *, engine="sim"):
    """A ledger with one ok attempt for each row of a frame."""
    ledger = Ledger.open(path, contract={"engine": engine})
    provenance = Provenance.collect()
    requests = encode_table(pd.DataFrame({"request_id": [0]}))
    for row in frame.to_dict("records"):
        axes = {name: row[name] for name in AXES}
        cell = Cell(
            campaign="q6",
            block="confirmation",
            axes=axes,
            config=axes,
            cell_id=content_key(axes),
            pair_id=str(row["seed"]),
        )
        attempt = Attempt(
            cell=cell,
            status="ok",
            reason=None,
            metrics={name: row[name] for name in METRICS},
            workload_digest=row["workload_digest"],
            engine=EngineFacts(
                engine=engine, device="a100_40gb", time_model="linear", data_kind="simulated"
            ),
            provenance=provenance,
            started_at="2026-01-01T00:00:00.000+00:00",
            wall_s=0.1,
        )
        ledger.record(attempt, requests=requests)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A working directory with a Q6 ledger of two seeds."""
    folder = tmp_path_factory.mktemp("project")
    write_ledger(folder / "ledgers" / "q6" / "sim", q6_attempts(range(76400, 76402)))
    return folder


@pytest.fixture
def inside(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


def answer(capsys, *arguments):
    code = run(main, list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_campaigns_tables_are_printed_and_written_beside_the_ledger(inside, capsys):
    code, out, _ = answer(capsys, "campaign=q6", "seeds=76400-76401")
    assert code == 0
    written = {path.name for path in (inside / "ledgers/q6/sim/analysis").iterdir()}
    names = ["B-7", "B-8", "headroom-effects", "q6-summary"]
    assert written >= {f"{name}.{suffix}" for name in names for suffix in ("csv", "tex", "md")}
    assert "simulated" in out and "PT-b108-b63" in out
    assert "Missing" not in out


def test_one_table_goes_where_it_is_told_and_needs_no_campaign(inside, capsys, tmp_path):
    code, _, _ = answer(capsys, "table=B-8", "seeds=[76400]", f"out={tmp_path / 'deep' / 'out'}")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == [
        "B-8.csv",
        "B-8.md",
        "B-8.tex",
    ]


def test_the_same_ledger_gives_the_same_bytes(inside, capsys, tmp_path):
    for name in ("one", "two"):
        answer(capsys, "table=B-7", "seeds=76400,76401", f"out={tmp_path / name}")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_published_seeds_are_expected_unless_told_otherwise(inside, capsys, tmp_path):
    code, out, _ = answer(capsys, "table=B-7", f"out={tmp_path}")
    assert code == 0
    assert "Missing: campaign q6: no run of seed 76402-76411." in " ".join(out.split())


def test_without_arguments_it_tells_what_to_type(capsys):
    code, out, _ = answer(capsys)
    assert code == 0
    assert "python -m analysis campaign=q6" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["campaign=q66"], "campaign q66 has no analysis; choose from advise, branching, bursts, "),
        (["campaign=q6", "table=B-9"], "table B-9 is unknown; choose from A-1, A-2"),
        (["campaign=q6", "ledger=nowhere"], "nowhere: there is no ledger here"),
        (["campaign=q6", "tabel=B-7"], "argument tabel=B-7 is unknown"),
        (["q6"], "argument q6 is unknown; choose from campaign="),
        (["campaign=q6", "campaign=q6"], "campaign is given twice"),
        (["campaign="], "campaign must have a value"),
        (["ledger=x"], "campaign is required; choose from advise, branching, bursts, "),
        (["campaign=q6", "seeds=a-b"], "seeds must be FIRST-LAST or a list"),
        (["campaign=q6", "seeds=1,1"], "seeds must be FIRST-LAST or a list"),
        (["campaign=q6", "seeds=9-3"], "seeds must be FIRST-LAST or a list"),
        (["campaign=q6", "seeds=5"], "no adopted run of campaign q6 for seeds 5"),
        (
            ["table=E-5", "ledger=ledgers/q5/sim"],
            "ledger= needs campaign=, because table E-5 draws",
        ),
        (["table=E-5", "source=runs"], "source must be ledger or paper, got runs"),
        (["table=B-5", "adoption=none"], "adoption must be current or complete_case or invalid"),
        (["table=B-8", "adoption=invalid"], "adoption=invalid concerns B-5, E-12, extension-22"),
        (["campaign=q6", "table=E-5"], "campaign q6 has no table E-5"),
        (["table=E-5"], "run `python -m hsexp campaign=cap_ladder` first"),
        (["table=E-4", "source=paper"], "the paper does not print run-level counters"),
    ],
)
def test_bad_arguments_end_with_a_message_and_exit_code_2(inside, capsys, arguments, message):
    code, out, err = answer(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err


def test_without_any_ledger_it_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = answer(capsys, "campaign=q6")
    assert code == 2
    assert "run `python -m hsexp campaign=q6` first" in err


def test_ledgers_of_two_engines_are_never_chosen_between(inside, capsys):
    other = inside / "ledgers" / "q6" / "vllm"
    write_ledger(other, q6_attempts(range(76400, 76401)).head(1), engine="vllm")
    try:
        code, _, err = answer(capsys, "campaign=q6")
    finally:
        (other / "journal.jsonl").unlink()
    assert code == 2
    assert "ledger=ledgers/q6/sim, ledger=ledgers/q6/vllm" in err


def test_an_output_folder_that_cannot_be_written_is_named(inside, capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, _, err = answer(capsys, "table=B-8", "seeds=76400", f"out={blocked}")
    assert code == 2
    assert f"{blocked}: cannot be written" in err


def test_a_table_follows_from_published_values_without_any_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = answer(capsys, "table=E-5", "source=paper")
    assert code == 0
    assert out.count("equal to print") == 10
    written = {path.name for path in (tmp_path / "ledgers" / "analysis" / "paper").iterdir()}
    assert written == {"E-5.csv", "E-5.md", "E-5.tex"}


def test_all_of_a_campaign_that_published_values_give_is_shown_and_the_rest_named(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code, out, _ = answer(capsys, "campaign=q1", "source=paper")
    assert code == 0
    assert "table E-4 cannot be derived from published values" in out
    written = {path.stem for path in (tmp_path / "ledgers" / "analysis" / "paper").glob("*.csv")}
    assert written == {"B-5", "B-6", "E-3", "E-17"}


def test_a_campaign_of_which_one_block_ran_shows_its_tables_and_names_the_others(tmp_path, capsys):
    write_block(tmp_path, "q1", "low_b63", by_organization(dict.fromkeys(["s0", "s1", "s2"], 1.0)))
    code, out, _ = answer(capsys, "campaign=q1", f"ledgers={tmp_path}")
    assert code == 0
    assert "B-5: campaign q1: no adopted run of block main for seeds 42000-42011" in out
    written = {path.stem for path in (tmp_path / "q1" / "sim" / "analysis").glob("*.csv")}
    assert written == {"E-3"}


def test_a_table_of_storage_needs_neither_ledger_nor_campaign(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = answer(capsys, "table=A-1", "out=tables")
    assert code == 0
    assert "computed from the configured sizes" in out
    assert (tmp_path / "tables" / "A-1.csv").is_file()


def test_a_table_over_campaigns_lies_below_their_root_and_is_never_cropped(tmp_path, capsys):
    root = tmp_path / "elsewhere"
    original_five(root)
    code, out, _ = answer(capsys, "table=E-5", f"ledgers={root}")
    assert code == 0
    assert (root / "analysis" / "E-5.csv").is_file()
    assert "D0/S0 b160_granite, 8/s, cap 136" in out
    assert "…" not in out


def test_a_ledger_elsewhere_stands_for_its_campaign_and_the_root_for_the_others(tmp_path, capsys):
    original_five(tmp_path / "root")
    shutil.move(tmp_path / "root" / "q5", tmp_path / "moved")
    code, out, _ = answer(
        capsys,
        "campaign=q5",
        "table=E-5",
        f"ledger={tmp_path / 'moved' / 'sim'}",
        f"ledgers={tmp_path / 'root'}",
    )
    assert code == 0
    assert "Missing" not in out
    assert (tmp_path / "moved" / "sim" / "analysis" / "E-5.csv").is_file()


def test_tables_of_a_simulated_campaign_are_whole(tmp_path, capsys):
    # The real way through: two arms and one seed of one operating point are simulated.
    ledgers = tmp_path / "ledgers"
    arguments = ["campaign=submitted_work", "budget=b63", "seeds=[0]", "stage=run"]
    arguments += [f"ledger={ledgers / 'submitted_work' / 'sim'}"]
    commands.run("engine=sim", *arguments, cwd=tmp_path).check_returncode()
    for name in ("E-6", "E-8"):
        code, _, _ = answer(capsys, f"table={name}", f"ledgers={ledgers}", "seeds=0")
        assert code == 0
    folder = ledgers / "submitted_work" / "sim" / "analysis"
    work = pd.read_csv(folder / "E-6.csv").set_index(["point", "organization"])
    assert work.loc[[("L", "D0"), ("L", "S2")], "event_time_s"].between(50, 500).all()
    assert work.loc[[("M", "D0"), ("H", "S2")], "event_time_s"].isna().all()
    phases = pd.read_csv(folder / "E-8.csv").set_index("phase")["L"]
    parts = phases[["Prefill-only", "Decode-only", "Mixed"]]
    assert parts.sum() == pytest.approx(phases["ALL"])
    gap = work.loc[("L", "D0"), "event_time_s"] - work.loc[("L", "S2"), "event_time_s"]
    assert phases["ALL"] == pytest.approx(gap)
