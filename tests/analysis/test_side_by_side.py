"""Simulated runs beside measured ones: matched by cell, averaged by side, compared by arm."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.errors import AnalysisError, NoRunsError
from analysis.side_by_side import compare
from hsexp.ledger import Attempt, EngineFacts, Ledger, Provenance, encode_table
from hsexp.plan.cells import Cell, content_key

MEASURED = {"data_kind": "measured", "engine": "vllm", "device": "cpu", "time_model": "wall clock"}
SIMULATED = {"data_kind": "simulated", "engine": "sim", "device": "fit", "time_model": "affine"}


def frame(origin: dict[str, str], *cells: tuple[str, int, float, float]) -> pd.DataFrame:
    """Cells of (organization, seed, throughput, lost checkpoints)."""
    return pd.DataFrame(
        [
            {
                "organization": organization,
                "budget": "b63",
                "seed": seed,
                "throughput_tok_per_s": throughput,
                "prefill_tokens": 100,
                "num_steps": 10,
                "lost_checkpoints": lost,
                "workload_digest": f"requests of {seed}",
            }
            | origin
            for organization, seed, throughput, lost in cells
        ]
    )


def rows(measured: pd.DataFrame, simulated: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By organization, and by quantity."""
    arms, quantities = compare(measured, simulated)
    return arms.rows.set_index("organization"), quantities.rows.set_index("quantity")


def test_arms_are_compared_by_their_means_over_seeds() -> None:
    arms, quantities = rows(
        frame(MEASURED, ("s0", 1, 90, 4), ("s0", 2, 110, 8), ("s2", 1, 200, 5)),
        frame(SIMULATED, ("s0", 1, 120, 6), ("s0", 2, 100, 6), ("s2", 1, 190, 5)),
    )
    assert arms.loc["s0", "throughput_tok_per_s_measured"] == 100
    assert arms.loc["s0", "throughput_tok_per_s_simulated"] == 110
    assert arms.loc["s0", "throughput_tok_per_s_difference_pct"] == pytest.approx(10)
    throughput = quantities.loc["throughput, tokens/s"]
    assert throughput["mean_size_pct"] == pytest.approx((10 + 5) / 2)
    assert (throughput["farthest"], throughput["num_within"]) == ("s0", 2)
    assert throughput["pooled_pct"] == pytest.approx(0)  # 300 and 300
    assert quantities.loc["lost checkpoints", "num_within"] == 2


def test_a_mean_over_fewer_seeds_than_the_others_says_so() -> None:
    cells = [("s0", 1, 90, 4), ("s0", 2, 110, 8), ("s2", 1, 200, 5)]
    both = compare(frame(MEASURED, *cells), frame(SIMULATED, *cells))
    assert "Means over fewer seeds: s2 (1 of 2)." in both[0].notes
    whole = compare(frame(MEASURED, *cells[:2]), frame(SIMULATED, *cells[:2]))
    assert not any("fewer" in note for note in whole[0].notes)


def test_more_than_the_limit_is_not_within_it() -> None:
    _, quantities = rows(
        frame(MEASURED, ("s0", 1, 100, 100), ("s2", 1, 100, 100)),
        frame(SIMULATED, ("s0", 1, 89, 106), ("s2", 1, 91, 96)),
    )
    assert quantities.loc["throughput, tokens/s", "num_within"] == 1
    assert quantities.loc["throughput, tokens/s", "largest_pct"] == pytest.approx(-11)
    assert quantities.loc["lost checkpoints", "num_within"] == 1


def test_from_nothing_to_something_is_no_ratio_and_from_nothing_to_nothing_is_none() -> None:
    arms, quantities = rows(
        frame(MEASURED, ("s0", 1, 100, 0), ("s2", 1, 100, 0)),
        frame(SIMULATED, ("s0", 1, 100, 0), ("s2", 1, 100, 3)),
    )
    lost = quantities.loc["lost checkpoints"]
    assert (lost["num_arms"], lost["num_without_ratio"], lost["num_within"]) == (2, 1, 1)
    assert pd.isna(lost["pooled_pct"])
    assert arms.loc["s0", "lost_checkpoints_difference_pct"] == 0
    assert pd.isna(arms.loc["s2", "lost_checkpoints_difference_pct"])


def test_a_cell_without_a_counterpart_is_counted_and_left_out() -> None:
    arms, _ = compare(
        frame(MEASURED, ("s0", 1, 100, 1), ("s0", 2, 500, 1)),
        frame(SIMULATED, ("s0", 1, 100, 1), ("s1", 1, 1, 1), ("d0", 1, 1, 1)),
    )
    assert arms.rows["organization"].tolist() == ["s0"]
    assert arms.rows["throughput_tok_per_s_measured"].tolist() == [100]
    assert arms.notes[1:] == (
        "1 measured cells have no counterpart.",
        "2 simulated cells have no counterpart.",
    )


def test_both_origins_are_named() -> None:
    arms, quantities = compare(
        frame(MEASURED, ("s0", 1, 100, 1)), frame(SIMULATED, ("s0", 1, 100, 1))
    )
    for table in (arms, quantities):
        assert "measured (engine vllm" in table.caption
        assert "beside simulated (engine sim" in table.caption


def test_other_requests_under_the_same_name_are_refused() -> None:
    simulated = frame(SIMULATED, ("s0", 1, 100, 1)).assign(workload_digest="others")
    with pytest.raises(
        AnalysisError, match="s0 b63 seed 1: the two sides served different requests"
    ):
        compare(frame(MEASURED, ("s0", 1, 100, 1)), simulated)


def test_ledgers_without_a_common_cell_have_nothing_to_compare() -> None:
    with pytest.raises(NoRunsError, match="no cell in common"):
        compare(frame(MEASURED, ("s0", 1, 100, 1)), frame(SIMULATED, ("s0", 2, 100, 1)))


# -- the command -----------------------------------------------------------------------------------


def ledger(path: Path, origin: dict[str, str], throughput: float) -> Path:
    axes: dict[str, Any] = {"organization": "s0", "budget": "b63", "seed": 1}
    attempt = Attempt(
        cell=Cell(
            campaign="q1",
            block="main",
            axes=axes,
            config=axes,
            cell_id=content_key(axes),
            pair_id="1",
        ),
        status="ok",
        reason=None,
        metrics={
            "throughput_tok_per_s": throughput,
            "prefill_tokens": 1,
            "num_steps": 1,
            "lost_checkpoints": 0,
        },
        workload_digest="toy",
        engine=EngineFacts(**origin),
        provenance=Provenance.collect(),
        started_at="2026-01-01T00:00:00.000+00:00",
        wall_s=0.1,
    )
    table = encode_table(pd.DataFrame({"request": ["a"]}))
    Ledger.open(path, contract={"engine": origin["engine"]}).record(attempt, requests=table)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {
        "measured": ledger(tmp_path / "vllm", MEASURED, 100.0),
        "simulated": ledger(tmp_path / "sim", SIMULATED, 95.0),
    }


def test_the_command_prints_both_tables_and_writes_them_beside_the_measured_runs(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["beside", *(f"{side}={path}" for side, path in folders.items())])
    assert "-5.0" in capsys.readouterr().out
    written = {path.name for path in (folders["measured"] / "analysis").iterdir()}
    assert "simulated-beside-measured.csv" in written
    assert "simulated-beside-measured-summary.md" in written


def test_a_side_that_is_missing_or_of_the_other_kind_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(AnalysisError, match="simulated= is required"):
        main(["beside", f"measured={folders['measured']}"])
    with pytest.raises(AnalysisError, match="its runs are measured"):
        main(["beside", f"measured={folders['measured']}", f"simulated={folders['measured']}"])
