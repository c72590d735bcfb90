"""Tables of the submitted-work diagnostic that need the traces of its runs."""

import commands
import numpy as np
import pandas as pd
import pytest

from analysis.ledgers import Ledgers
from analysis.tables import make
from analysis.tables.traced_work import agreements, traced_runs
from hsexp.config.arm import Arm

D0 = Arm(organization="d0")


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """One seed of point L, with a trace and without; of point M without only."""
    root = tmp_path_factory.mktemp("traced_work")
    arguments = ["campaign=submitted_work", "engine=sim", "stage=run", "seeds=[0]"]
    arguments += ["workload.num_requests=60"]
    arguments += [f"ledger={root / 'submitted_work' / 'sim'}"]
    commands.run(*arguments, "budget=b63", cwd=root).check_returncode()
    m = ["budget=b108", "arrivals.rate_per_s=3.0", "trace=false"]
    commands.run(*arguments, *m, cwd=root).check_returncode()
    return Ledgers(root, seeds=[0])


def at(table, point):
    (found,) = table.rows[table.rows["point"] == point].to_dict("records")
    return found


def test_causes_and_labels_of_e10_count_the_same_calls(ledgers):
    found = at(make("E-10", ledgers), "L")
    causes = ("attention_short", "attention_empty", "recurrent_short", "other")
    assert sum(found[cause] for cause in causes) == found["defer_label"] + found["preempt_label"]
    assert found["attention_short"] > 0


def test_e10_names_the_traces_that_it_lacks(ledgers):
    table = make("E-10", ledgers)
    found = pd.Series(at(table, "M"))
    assert np.isnan(found["attention_short"]) and not np.isnan(found["defer_label"])
    assert any("M_trace" in line for line in table.missing)


def test_planned_replay_of_e9_is_at_least_what_was_replayed(ledgers):
    rows = make("E-9", ledgers).rows
    found = rows[(rows["point"] == "L") & (rows["organization"] == "D0")].iloc[0]
    planned = found["planned_prompt_tokens"] + found["planned_output_tokens"]
    assert planned >= found["replayed_tokens"] >= found["recomputed_tokens"] >= 0


def test_e6_says_how_far_traces_and_runs_agree(ledgers):
    notes = make("E-6", ledgers).notes
    assert any("agree in" in note and "120 of 120 requests" in note for note in notes)
    found = agreements(ledgers, ["L"], [D0])
    assert found.totals.num_equal == found.totals.num_all >= 15
    assert len(traced_runs(ledgers, "L").histories(D0)) == 1


def test_the_central_window_has_a_part_of_the_work(ledgers):
    def of(table, organization):
        rows = make(table, ledgers).rows
        return rows[(rows["point"] == "L") & (rows["organization"] == organization)].iloc[0]

    for organization in ("D0", "S2"):
        central, whole = of("submitted-work-central", organization), of("E-6", organization)
        inside = central[["initial_tokens", "resume_tokens", "decode_tokens"]].sum()
        assert 0 < inside < whole["submitted_tokens"]
        assert 0 < central["event_time_s"] <= central["window_s"] + 1.0


def test_what_does_not_apply_to_an_organization_is_empty(ledgers):
    rows = make("submitted-work-pools", ledgers).rows.set_index(["point", "organization"])
    d0, s2 = rows.loc[("L", "D0")], rows.loc[("L", "S2")]
    assert d0[["slot_percent", "max_slabs", "reclaimed_slabs"]].isna().all()
    assert s2[["stranded_percent"]].isna().all() and s2["max_slabs"] >= 1
    assert 0 < d0["padding_percent"] < s2["padding_percent"]


def test_b1_has_every_value_that_the_runs_recorded_with_how_many_have_it(ledgers):
    rows = make("B-1", ledgers).rows
    attempts = ledgers.attempts("submitted_work")
    for item in ("engine", "CPU", "python", "numpy"):
        assert rows[rows["item"] == item]["num_runs"].sum() == len(attempts)
    assert rows[rows["item"] == "data"]["value"].tolist() == ["simulated"]


def test_c1_counts_what_each_campaign_plans_and_what_its_ledger_has(ledgers):
    rows = make("C-1", ledgers).rows.set_index("campaign")
    assert rows.loc["q6", "num_planned"] == 360
    assert pd.isna(rows.loc["q6", "num_accepted"])
    accepted = len(ledgers.frame("submitted_work"))
    assert rows.loc["submitted_work", "num_accepted"] == accepted > 0
    assert "q10" not in rows.index
