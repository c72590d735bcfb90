"""Continuation tables: which checks count, what a verdict says, and where rows come from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from block_frames import block_runs

from analysis.config import block_design
from analysis.errors import NoRunsError
from analysis.ledgers import Ledgers
from analysis.tables import continuation, exact_cost
from hsexp.ledger import Attempt, EngineFacts, Ledger, Provenance, encode_table
from hsexp.plan.cells import Cell, content_key

EQUAL = {
    "num_requests": 6,
    "num_adopted": 5,
    "num_equal_tokens": 6,
    "num_equal_logprobs": 6,
    "num_states": 10,
    "num_equal_states": 10,
    "max_logprob_difference": 0.0,
    "happened": 1,
    "stable": 1,
    "num_preemptions": 2,
    "num_preempted_outputs": 9,
    "num_lost_checkpoints": 4,
    "num_reclaimed_slabs": 1,
    "num_retained_checkpoints": 3,
}
"""A check in which nothing differs."""

ROUNDED = EQUAL | {
    "num_equal_logprobs": 2,
    "num_equal_states": 3,
    "max_logprob_difference": 0.02,
}

Outcome = Callable[[dict[str, Any]], dict[str, Any] | str]
"""Metrics of a cell, or why it failed."""


def ledgers(root: Path, outcome: Outcome, *, seeds: tuple[int, ...] = (0, 1)) -> Ledgers:
    """A ledger of S2's checks: two depths, stock and exact, three treatments."""
    ledger = Ledger.open(root / "continuation" / "vllm", contract={"engine": "vllm"})
    provenance = Provenance.collect()
    for seed in seeds:
        for exact in (False, True):
            for depth in (600, 2400):
                for treatment in ("hit", "batch", "eviction"):
                    axes = {
                        "organization": "s2",
                        "dtype": "bfloat16",
                        "exact": exact,
                        "depth_tokens": depth,
                        "treatment": treatment,
                        "seed": seed,
                    }
                    found = outcome(axes)
                    failed = isinstance(found, str)
                    attempt = Attempt(
                        cell=Cell(
                            campaign="continuation",
                            block="checks",
                            axes=axes,
                            config=axes,
                            cell_id=content_key(axes),
                            pair_id=str(seed),
                        ),
                        status="failed" if failed else "ok",
                        reason=found if failed else None,
                        metrics={} if failed else found,
                        workload_digest="toy",
                        engine=EngineFacts(
                            engine="vllm",
                            device="cpu",
                            time_model="wall clock",
                            data_kind="measured",
                        ),
                        provenance=provenance,
                        started_at="2026-01-01T00:00:00.000+00:00",
                        wall_s=0.1,
                    )
                    table = None if failed else encode_table(pd.DataFrame({"request": ["a"]}))
                    ledger.record(attempt, requests=table)
    return Ledgers(root)


def by_mode(axes: dict[str, Any]) -> dict[str, Any]:
    return EQUAL if axes["exact"] else ROUNDED


def row(table: pd.DataFrame, **setting: Any) -> pd.Series:
    for name, value in setting.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_a_setting_sums_its_depths_and_seeds(tmp_path: Path) -> None:
    rows = continuation.verdicts(ledgers(tmp_path, by_mode)).rows
    assert len(rows) == 2 * 3
    exact, stock = (row(rows, exact=mode, treatment="hit") for mode in (True, False))
    assert (exact["num_checks"], exact["num_counted"], exact["num_requests"]) == (4, 4, 24)
    assert (exact["verdict"], stock["verdict"]) == ("bit-identical", "equal tokens")
    assert stock["max_logprob_difference"] == 0.02


def test_a_check_whose_treatment_did_not_happen_does_not_count(tmp_path: Path) -> None:
    def outcome(axes: dict[str, Any]) -> dict[str, Any]:
        missed = axes["depth_tokens"] == 600
        # Were it counted, tokens would differ.
        return EQUAL | ({"happened": 0, "num_equal_tokens": 0} if missed else {})

    found = row(continuation.verdicts(ledgers(tmp_path, outcome)).rows, exact=True, treatment="hit")
    assert (found["num_checks"], found["num_counted"], found["num_requests"]) == (4, 2, 12)
    assert found["verdict"] == "bit-identical"


def test_without_a_stable_reference_there_is_no_verdict(tmp_path: Path) -> None:
    found = row(
        continuation.verdicts(ledgers(tmp_path, lambda axes: EQUAL | {"stable": 0})).rows,
        exact=True,
        treatment="hit",
    )
    assert (found["num_counted"], found["num_unstable"]) == (0, 4)
    assert found["verdict"] == "not evaluated"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "bit-identical"),
        ({"num_equal_logprobs": 5}, "equal tokens"),
        ({"num_equal_states": 9}, "equal tokens"),
        ({"num_equal_tokens": 5}, "tokens differ"),
    ],
)
def test_one_difference_changes_the_verdict(changes: dict[str, int], verdict: str) -> None:
    assert continuation.verdict(EQUAL | {"num_counted": 1} | changes) == verdict


def test_rows_stand_in_the_order_of_the_campaign(tmp_path: Path) -> None:
    rows = continuation.verdicts(ledgers(tmp_path, by_mode)).rows
    assert rows["mode"].tolist() == ["stock"] * 3 + ["exact"] * 3
    assert rows["treatment"].tolist() == ["hit", "batch", "eviction"] * 2


def test_a_check_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    def outcome(axes: dict[str, Any]) -> dict[str, Any] | str:
        gone = (axes["exact"], axes["depth_tokens"], axes["treatment"], axes["seed"])
        return "EngineDied: killed" if gone == (True, 2400, "batch", 1) else by_mode(axes)

    found = ledgers(tmp_path, outcome)
    table = continuation.verdicts(found)
    for each in (table, continuation.d1(found), continuation.d3(found)):
        assert each.missing == table.missing
    assert table.missing == ("s2 bfloat16 exact batch depth 2400 seed 1: EngineDied: killed",)
    assert row(table.rows, exact=True, treatment="batch")["num_checks"] == 3


def test_a_launch_in_which_every_check_failed_has_no_table(tmp_path: Path) -> None:
    failed = ledgers(tmp_path, lambda axes: "broken")
    with pytest.raises(NoRunsError, match="no check has a result"):
        continuation.verdicts(Ledgers(failed.root, seeds=(0,)))


def test_invariants_rest_on_exact_checks_alone(tmp_path: Path) -> None:
    rows = continuation.d1(ledgers(tmp_path, by_mode)).rows.set_index("invariant")
    reuse = rows.loc["Invalidate before reuse"]
    # One treatment of three has runs: two depths and two seeds.
    assert (reuse["num_checks"], reuse["verdict"]) == (4, "bit-identical")
    assert reuse["happened"] == "16 lost checkpoints, 4 reclaimed slabs, 8 preemptions"
    assert rows.loc["Valid location or absence", "verdict"] == "not evaluated"
    assert pd.isna(rows.loc["Valid location or absence", "happened"])


def test_printed_checks_stand_beside_ours(tmp_path: Path) -> None:
    def outcome(axes: dict[str, Any]) -> dict[str, Any]:
        return by_mode(axes) if axes["depth_tokens"] == 2400 else EQUAL

    rows = continuation.d3(ledgers(tmp_path, outcome)).rows
    deep = row(rows, ours="hits at every boundary, depth 2,400: logprobs")
    assert (deep["stock_equal"], deep["stock_of"], deep["exact_equal"]) == (4, 12, 12)
    assert deep["published"] == "6 of 6 hashes and 4 of 6 tokens differ at depth 2,400"
    shallow = row(rows, ours="hits at every boundary, depth 600: logprobs")
    assert (shallow["stock_equal"], shallow["stock_of"]) == (12, 12)
    states = row(rows, ours="hits in changing batches: state bytes")
    assert states["published"] == "6 of 16 requests agree in state bytes"
    assert (states["stock_equal"], states["stock_of"]) == (2 * (10 + 3), 40)


def test_seeds_can_be_narrowed_and_none_is_no_table(tmp_path: Path) -> None:
    known = ledgers(tmp_path, by_mode)
    narrow = continuation.verdicts(Ledgers(known.root, seeds=(1,))).rows
    assert row(narrow, exact=True, treatment="hit")["num_checks"] == 2
    with pytest.raises(NoRunsError, match="no check has a result"):
        continuation.verdicts(Ledgers(known.root, seeds=(7,)))


# -- the schedule's cost ---------------------------------------------------------------------------


def test_the_cost_is_a_change_paired_by_seed() -> None:
    def of_block(block: str, seed: int) -> dict[str, float]:
        speed = 100.0 + seed % 10
        return {
            "throughput_tok_per_s": speed * (0.9 if block == "exact" else 1.0),
            "adopted_tokens_mean": 1000.0,
            "lost_checkpoints": 500.0,
            "num_preemptions": 0.0,
            "num_steps": 4000.0,
        }

    stock, exact = (
        block_runs("exact_cost", block, lambda arm, seed, block=block: of_block(block, seed))
        for block in ("stock", "exact")
    )
    rows = exact_cost.from_runs(stock, exact).rows
    assert len(rows) == 5 * 3 * 2
    assert rows["change_pct"].tolist() == pytest.approx([-10.0] * 30)
    assert (rows["n"] == 12).all()


def test_exact_and_stock_runs_are_never_mixed() -> None:
    assert block_design("exact_cost", "stock").same_law == ("stock",)
    assert block_design("exact_cost", "exact").same_law == ("exact",)
