"""`hsexp.load("q6")` gives a ledger as a frame, and `runs.parquet` beside it is the same frame."""

import json
import subprocess
import sys
from pathlib import Path

import commands
import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parent / "analysis"))
from own_ledgers import Run, speeds, write

import hsexp
from analysis.__main__ import main
from analysis.command import run as run_command
from analysis.export import RUNS, SUMMARY, export
from hsexp.ledger import Ledger, LedgerError

TWO = (*speeds([100.0, 100.0]), *speeds([110.0, 121.0], organization="d0", waiting="hit_first"))


# -- hsexp.load ------------------------------------------------------------------------------------


def test_a_ledger_is_found_by_campaign_by_engine_and_by_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine" / "sim", *TWO)
    for name in ("mine", "mine/sim", folder):
        runs = hsexp.load(name, root=tmp_path)
        assert sorted(runs["throughput_tok_per_s"]) == [100.0, 100.0, 110.0, 121.0]


def test_the_root_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "ledgers" / "mine" / "sim", *TWO)
    monkeypatch.chdir(tmp_path)
    assert len(hsexp.load("mine")) == 4


def test_columns_are_flat_and_a_left_out_axis_has_its_neutral_value(tmp_path: Path) -> None:
    runs = hsexp.load(write(tmp_path, *TWO)).set_index("organization")
    assert set(runs.loc["s2", "waiting"]) == {"first_come"}
    assert "versions" not in runs
    assert set(runs["numpy_version"]) == {__import__("numpy").__version__}
    assert len(set(runs["contract_digest"])) == 1


def test_a_name_that_is_not_there_names_the_nearest_ledger(tmp_path: Path) -> None:
    write(tmp_path / "mine" / "sim", *TWO)
    write(tmp_path / "fresh" / "other" / "sim", *TWO)
    with pytest.raises(LedgerError, match=r"no ledger 'minne'; the nearest below \S+: mine$"):
        hsexp.load("minne", root=tmp_path)
    with pytest.raises(LedgerError, match=r"no ledger 'zzz'; \S+ has mine, fresh/other$"):
        hsexp.load("zzz", root=tmp_path)


def test_a_root_without_ledgers_tells_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has none; run `python -m hsexp campaign=NAME` first"):
        hsexp.load("q6", root=tmp_path)


def test_ledgers_of_two_engines_are_named(tmp_path: Path) -> None:
    for engine in ("sim", "vllm"):
        write(tmp_path / "mine" / engine, *TWO)
    with pytest.raises(LedgerError, match=r"of 2 engines; name one: \S+mine/sim, \S+mine/vllm"):
        hsexp.load("mine", root=tmp_path)


def test_the_package_is_imported_without_pandas() -> None:
    program = "import sys, hsexp; sys.exit('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=commands.environment(), check=False)
    assert done.returncode == 0


# -- files beside a ledger -------------------------------------------------------------------------


def test_the_file_of_runs_has_the_numbers_of_the_ledger(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", *TWO)
    runs, _ = export(folder)
    read = pd.read_parquet(runs)
    pd.testing.assert_frame_equal(read, hsexp.load(folder), check_dtype=False)
    rows = Ledger.read(folder).frame()
    assert read["throughput_tok_per_s"].tolist() == rows["throughput_tok_per_s"].tolist()
    assert read["cell_id"].tolist() == rows["cell_id"].tolist()


def test_deleted_files_come_back_byte_for_byte(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", *TWO)
    before = {path.name: path.read_bytes() for path in export(folder)}
    for name in before:
        (folder / name).unlink()
    assert run_command(main, ["export", f"ledger={folder}"]) == 0
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert before.keys() == {RUNS, SUMMARY}


def test_the_ledger_is_the_same_with_the_files_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", *TWO)
    before = Ledger.read(folder).digest
    export(folder)
    ledger = Ledger.open(folder)
    assert (ledger.digest, ledger.notices) == (before, ())


def test_the_summary_has_every_setting_and_the_answer(tmp_path: Path) -> None:
    _, path = export(write(tmp_path / "own", *TWO))
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["campaign"], found["num_runs"], found["seeds"]) == ("mine", 4, [1, 2])
    (place,) = found["places"]
    assert place["answer"].startswith("d0, waiting hit_first is best: throughput_tok_per_s 115.5")
    best, other = place["settings"]
    assert best["means"] | {"e2e_p99_s": 0} == {
        "throughput_tok_per_s": 115.5,
        **dict.fromkeys(
            ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "num_preemptions", "num_refused")
        ),
        "e2e_p99_s": 0,
    }
    assert (best["best_over_percent"], other["num_pairs"], other["level"]) == (None, 2, 0.95)


def test_a_ledger_without_an_accepted_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "own", Run(axes={}, metrics={}, error="ValueError: no"))
    assert run_command(main, ["export", f"ledger={folder}"]) == 2
    assert capsys.readouterr().err == f"error: {folder}: the ledger has no accepted run\n"
    assert not (folder / RUNS).exists()


def test_files_may_go_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write(tmp_path / "own", *TWO), tmp_path / "out"
    assert run_command(main, ["export", f"ledger={folder}", f"out={out}"]) == 0
    assert capsys.readouterr().out == f"written: {out / RUNS}\nwritten: {out / SUMMARY}\n"
    assert not (folder / RUNS).exists()


def test_export_needs_a_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(main, ["export"]) == 2
    assert "ledger is required" in capsys.readouterr().err
