"""Which rows of a ledger an analysis uses, and which it refuses."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from q6_frames import q6_attempts

from analysis.errors import AnalysisError
from analysis.ledgers import Ledgers
from analysis.runs import Runs
from analysis.tables import make
from hsexp.config.arm import Arm
from hsexp.plan.cells import format_seeds

D0 = Arm(organization="d0", budget="b63", headroom=0.10)


def select(attempts, q6, **options):
    return Runs.select(attempts, campaign="q6", design=q6.design, **options)


def is_cell(attempts, arm, seed):
    mask = attempts["seed"] == seed
    for axis, value in arm.axes.items():
        mask &= attempts[axis] == value
    return mask


def test_only_adopted_runs_count(attempts, q6):
    rerun = attempts[is_cell(attempts, D0, 76400)].assign(
        adopted=False, requests_per_s=99.0, exclusion_reason="superseded"
    )
    before = select(attempts, q6).values(D0, "requests_per_s")
    attempts.loc[len(attempts)] = rerun.iloc[0]
    assert select(attempts, q6).values(D0, "requests_per_s").equals(before)


def test_a_missing_cell_is_named_with_its_reason(attempts, q6):
    attempts = attempts[~is_cell(attempts, D0, 76401)].copy()
    failed, excluded = is_cell(attempts, D0, 76402), is_cell(attempts, D0, 76403)
    attempts.loc[failed, ["adopted", "status", "reason"]] = [False, "failed", "MemoryError: full"]
    attempts.loc[excluded, ["adopted", "exclusion_reason"]] = [False, "wrong driver"]
    assert select(attempts, q6).missing([D0]) == [
        "D0(0.10) b63 seed 76401: not run",
        "D0(0.10) b63 seed 76402: failed (MemoryError: full)",
        "D0(0.10) b63 seed 76403: excluded (wrong driver)",
    ]


def test_a_run_without_the_metric_is_named(attempts, q6):
    attempts.loc[is_cell(attempts, D0, 76405), "ttft_p99_s"] = float("nan")
    runs = select(attempts, q6)
    assert runs.missing([D0], ["ttft_p99_s"]) == ["D0(0.10) b63 seed 76405: no ttft_p99_s"]


@pytest.mark.parametrize("column", ["engine", "device", "time_model", "data_kind"])
def test_rows_of_two_origins_are_never_mixed(attempts, q6, column):
    attempts.loc[3, column] = "other"
    with pytest.raises(AnalysisError, match=rf"mixes rows of {column} .* and .*analyse them apart"):
        select(attempts, q6)


def test_two_runs_of_one_seed_are_refused_with_the_axis_that_tells_them_apart(attempts, q6):
    other = attempts[is_cell(attempts, D0, 76400)].iloc[0].copy()
    other["pinning"] = "off"
    attempts.loc[len(attempts)] = other
    design = q6.design.model_copy(update={"pinning": ("k1", "off")})
    runs = Runs.select(attempts, campaign="q6", design=design)
    with pytest.raises(AnalysisError, match=r"seed 76400 has two runs .* they differ in pinning"):
        runs.values(D0, "requests_per_s")


def test_runs_outside_the_design_are_left_out_and_counted(attempts, q6):
    other = attempts[attempts["budget"] == "b63"].assign(rate_per_s=0.8)
    both = select(pd.concat([attempts, other], ignore_index=True), q6)
    assert len(both.adopted) == 360
    assert both.notes == (f"{len(other)} attempts outside the design left out",)


def test_runs_of_another_campaign_are_left_out(attempts, q6):
    other = attempts[attempts["budget"] == "b63"].assign(campaign="q5")
    assert len(select(pd.concat([attempts, other], ignore_index=True), q6).adopted) == 360


def test_a_null_of_the_design_finds_its_rows_in_a_column_of_numbers(attempts, q6):
    own = attempts.assign(sharing=float("nan"))  # as beside rows with a number
    design = q6.design.model_copy(update={"sharing": (None,)})
    both = pd.concat([own, attempts.assign(sharing=1.0)])
    found = Runs.select(both, campaign="q6", design=design)
    assert len(found.adopted) == len(attempts) and found.adopted["sharing"].isna().all()


def test_arms_that_served_different_requests_are_no_pair(attempts, q6):
    attempts.loc[is_cell(attempts, D0, 76404), "workload_digest"] = "something else"
    base = D0.model_copy(update={"headroom": 0.0})
    with pytest.raises(AnalysisError, match=r"seed 76404: .* served different requests"):
        select(attempts, q6).pairs(D0, base, "requests_per_s")


def test_seeds_are_the_designs_and_any_other_the_ledger_has(q6):
    runs = select(q6_attempts(range(76400, 76414)), q6)
    assert format_seeds(runs.seeds) == "76400-76413"


def test_asked_for_seeds_replace_the_designs(attempts, q6):
    assert select(attempts, q6, seeds=[76400, 76405]).seeds == (76400, 76405)


def test_a_ledger_without_such_runs_is_refused(attempts, q6):
    with pytest.raises(AnalysisError, match=r"no adopted run of campaign q6 for seeds 5, 6"):
        select(attempts, q6, seeds=[5, 6])


def test_seeds_are_spelled_short():
    assert format_seeds([1, 2, 3]) == "1-3"
    assert format_seeds([1, 2]) == "1, 2"
    assert format_seeds([1, 3, 9]) == "1, 3, 9"


def replayed(attempts):
    """All seeds served the requests of the first, with its results: they drew nothing."""
    first = attempts[attempts["seed"] == attempts["seed"].min()]
    return pd.concat(
        [
            first.assign(seed=seed, cell_id=first["cell_id"] + f"/{seed}")
            for seed in range(76400, 76412)
        ],
        ignore_index=True,
    )


def test_seeds_that_repeat_one_run_are_one_pair(attempts, q6):
    # Twelve copies of one run gave p = 0.00049.
    runs = select(replayed(attempts), q6)
    pairs = runs.pairs(D0, D0.model_copy(update={"headroom": 0.0}), "throughput_tok_per_s")
    assert (runs.seeds, pairs.num_pairs) == ((76400,), 1)
    assert runs.missing([D0]) == []
    assert runs.repeats == (
        "Campaign q6: seed 76401-76411 served the requests of seed 76400 with the same results, so "
        "they count as one.",
    )


def test_a_table_says_which_seeds_count_once(attempts, q6, monkeypatch):
    ledgers = Ledgers(Path("unused"))
    monkeypatch.setattr(
        ledgers, "_campaign", lambda campaign: SimpleNamespace(attempts=replayed(attempts))
    )
    table = make("B-7", ledgers)
    assert set(table.rows["n"]) == {1}
    assert sum("so they count as one" in note for note in table.remarks) == 1


def test_two_measurements_of_the_same_requests_are_two_pairs(attempts, q6):
    repeated = attempts.assign(workload_digest="the same requests")
    runs = select(repeated, q6)
    assert (len(runs.seeds), runs.repeats) == (12, ())


def test_a_seed_counts_if_one_of_its_runs_is_its_own(attempts, q6):
    repeated = replayed(attempts)
    repeated.loc[is_cell(repeated, D0, 76404), "throughput_tok_per_s"] += 1.0
    assert select(repeated, q6).seeds == (76400, 76404)


def test_a_seed_that_completes_two_halves_is_kept(attempts, q6):
    # Seed 76400 has one arm and 76401 the other; 76402 repeats both and alone has the pair.
    base = D0.model_copy(update={"headroom": 0.0})
    repeated = replayed(attempts)
    halves = [is_cell(repeated, D0, 76400), is_cell(repeated, base, 76401)]
    halves += [is_cell(repeated, arm, 76402) for arm in (D0, base)]
    runs = select(repeated[sum(halves) > 0], q6, seeds=[76400, 76401, 76402])
    pairs = runs.pairs(D0, base, "throughput_tok_per_s")
    assert len(pairs.numerator) == 1
