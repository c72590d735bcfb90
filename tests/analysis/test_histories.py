"""Tables of traced runs: sums over their episodes, each trace read once, and what they say without
one."""

from collections import Counter
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from block_frames import block_runs
from toy_engine import play, request, toy_memory

from analysis.errors import AnalysisError
from analysis.histories import Histories, History
from analysis.runs import Runs
from analysis.tables import c2, c3, d2, g3, g4, q7_depths, q7_lineage, q8_ownership
from hsexp.ledger import NoTableError
from hsexp.trace import TraceRecorder


def toy_table(*, retention: int | None = None) -> pa.Table:
    """Requests of one prefix in little memory: some lose what they could reuse while they wait."""
    requests = [request(9, 2, shared=8), request(12, 4), request(9, 2, at=0.02, shared=8)]
    requests += [request(9, 6, at=0.03, shared=8), request(10, 6, at=0.04, shared=8)]
    record = play(
        requests,
        toy_memory("s0", 7, retention=retention),
        cap=2,
        trace=TraceRecorder(),
    )
    assert record.trace is not None
    return record.trace.table


TABLE = toy_table()
HISTORY = History.of(TABLE)


def metrics(arm, seed):
    found = {"throughput_tok_per_s": 500.0}
    if arm.trace:
        names = [metric for metric, _ in (*c2.CLASSES.values(), *g3.DEPTHS.values())]
        found |= dict.fromkeys(names, 0.25)
    return found


def traced(campaign: str, block: str, tables) -> Runs:
    """Runs of a block; `tables` reads the trace of each cell."""
    return replace(block_runs(campaign, block, metrics), traces=Histories(tables))


def q7(tables=lambda cell: TABLE) -> Runs:
    return traced("q7", "availability", tables)


def q8(tables=lambda cell: TABLE) -> Runs:
    return traced("q8", "lifetime", tables)


def no_table(cell):
    raise NoTableError(cell)


def counts(table):
    return table.rows.set_index("quantity")


def by_count(table):
    return table.rows.set_index("count")


def test_the_toy_run_has_what_the_tables_count():
    losses = [loss for lineage in HISTORY.lineages for loss in lineage.losses]
    assert losses and any(lineage.publications for lineage in HISTORY.lineages)
    assert len(HISTORY.initial) == 5


def test_every_trace_is_read_once_for_all_tables():
    reads: Counter[str] = Counter()

    def read(cell):
        reads[cell] += 1
        return TABLE

    runs = q7(read)
    for module in (c2, d2, q7_depths, q7_lineage, c2):
        module.from_runs(runs)
    assert len(reads) == 12
    assert set(reads.values()) == {1}


def test_the_lineage_adds_up_over_seeds_and_arms():
    found = counts(q7_lineage.from_runs(q7()))
    once = len(HISTORY.lineages)
    assert found["s2_f19"]["admission episodes"] == 3 * once
    assert found["total"]["admission episodes"] == 12 * once
    assert found["total"]["scalar replay and lineage end at Jadopt"] == 12 * once
    classes = ["zero to zero", "positive equal", "newly reusable", "deeper", "reduced"]
    assert found["total"][classes].sum() == 12 * once
    losses = sum(len(lineage.losses) for lineage in HISTORY.lineages)
    assert found["total"]["depth-decreasing losses"] == 12 * losses > 0
    whom = ["for another request", "for the waiting request itself", "for nobody (reset)"]
    assert found["total"][whom].sum() == 12 * losses
    assert found["total_published"]["depth-decreasing losses"] == 7476
    assert found["total"]["of these with an ambiguous producer"] == 0
    assert found["total_published"]["of these with an ambiguous producer"] == 40787


def test_an_ambiguous_publication_is_counted_from_the_events():
    rows = TABLE.to_pylist()
    step_of = Counter(row["step"] for row in rows if row["kind"] == "publish")
    step = step_of.most_common(1)[0][0]
    first = [row for row in rows if row["kind"] == "publish" and row["step"] == step]
    first[0]["request"] = None
    history = History.of(pa.Table.from_pylist(rows, schema=TABLE.schema))
    assert history.publications is not None
    pages = 1 if first[0]["entry"] == "state" else len(first[0]["pages"])
    assert history.publications.ambiguous == pages


def test_c2_counts_all_episodes_of_the_traces_by_class():
    table = c2.from_runs(q7())
    classes = Counter(episode.depth_class for episode in HISTORY.episodes)
    for row in table.rows.to_dict("records"):
        assert row["episodes"] == 3 * len(HISTORY.episodes)
        for name in c2.CLASSES:
            assert row[f"{name}_episodes"] == 3 * classes[name]
    assert len(table.views) == 3


def test_without_traces_the_metrics_are_still_there_and_the_counts_are_unknown():
    for runs in (q7(no_table), block_runs("q7", "availability", metrics)):
        table = c2.from_runs(runs)
        assert (table.rows["zero_to_zero_fraction"] == 0.25).all()
        assert table.rows["episodes"].isna().all() and len(table.views) == 2
        assert counts(q7_lineage.from_runs(runs))["total"].isna().all()
        found = by_count(d2.from_runs(runs))["here"]
        assert pd.isna(found["episodes bound"]) and pd.isna(found["end records"])
        assert found["runs accepted"] == 24
    for runs in (q8(no_table), block_runs("q8", "lifetime", metrics)):
        depths = g3.from_runs(runs)
        assert (depths.rows["m1_r_max_tokens"] == 0.25).all()
        assert depths.rows["m0_r_max_tokens"].isna().all()
        assert any("no trace" in note for note in depths.notes)
        assert g4.from_runs(runs).rows["delta_a_max_low_tokens"].isna().all()
        assert q8_ownership.from_runs(runs).rows["keeps"].isna().all()


def test_d2_counts_a_trace_without_its_end_and_says_why_it_is_refused():
    torn = TABLE.slice(0, len(TABLE) - 1)
    cell = next(iter(q7().cell_ids(c2.traced_arms(q7())[0]).values()))
    runs = q7(lambda each: torn if each == cell else TABLE)
    table = d2.from_runs(runs)
    found = by_count(table)
    assert (found["here"]["whole traces"], found["here_of"]["whole traces"]) == (11, 12)
    assert found["here"]["end records"] == 11
    assert found["here"]["episodes bound"] == 11 * len(HISTORY.episodes)
    assert any("no end record" in note for note in table.notes)
    lineage = counts(q7_lineage.from_runs(runs))
    assert pd.isna(lineage["total"]["admission episodes"])
    assert lineage["s2_f19"]["admission episodes"] == 3 * len(HISTORY.episodes)


def test_d2_counts_gaps_and_drops():
    rows = TABLE.to_pylist()
    rows[-1] |= {"dropped": 7, "write_errors": 2}
    damaged = pa.Table.from_pylist([*rows[:5], *rows[6:]], schema=TABLE.schema)
    found = by_count(d2.from_runs(q7(lambda cell: damaged)))["here"]
    assert found["gaps in sequence numbers"] == 12
    assert found["dropped events"] == 84 and found["write errors"] == 24
    assert found["whole traces"] == 0


def test_events_that_contradict_each_other_are_an_error_that_names_the_run():
    kinds = ["note" if kind == "publish" else kind for kind in TABLE["kind"].to_pylist()]
    forged = TABLE.set_column(TABLE.column_names.index("kind"), "kind", [kinds])
    with pytest.raises(AnalysisError, match=r"run .*loses a key that it does not have"):
        c2.from_runs(q7(lambda cell: forged))


def test_equal_pairs_cannot_measure_what_a_trace_costs():
    table = c3.from_runs(q7())
    assert set(table.rows["containment"]) == {"not measurable"}
    probes = d2.from_runs(q7())
    assert pd.isna(by_count(probes)["here"]["containment checks passed"])
    assert any("not measurable" in note for note in probes.notes)


def test_d2_counts_the_intervals_within_the_margin():
    def slower(arm, seed):
        factor = 0.9 if arm.organization == "s2" else 0.999
        return {"throughput_tok_per_s": 500.0 * (factor if arm.trace else 1.0)}

    found = by_count(d2.from_runs(block_runs("q7", "availability", slower)))
    row = found.loc["containment checks passed"]
    assert (row["here"], row["here_of"], row["published"]) == (2, 4, 4)


def test_depths_under_m0_are_means_over_the_first_admissions():
    computed = [episode.computed.attention for episode in HISTORY.initial]
    assert sum(computed) > 0
    rows = g3.from_runs(q8()).rows
    assert (rows["m0_a_max_tokens"] == sum(computed) / len(computed)).all()
    assert (rows["gap_r_m1_tokens"] == 0.0).all()
    low = g4.from_runs(q8()).rows["delta_a_max_low_tokens"]
    assert low.tolist() == pytest.approx([sum(computed) / len(computed) - 0.25] * 3)


def test_ownership_counts_keeps_and_adoptions_of_each_run():
    kept = toy_table(retention=1)
    runs = q8(lambda cell: kept if "k2" in cell else TABLE)
    rows = q8_ownership.from_runs(runs).rows.set_index(["seed", "arm"])
    plain, retained = rows.loc[(79010, "S2")], rows.loc[(79010, "S2+Retention")]
    assert plain["keeps"] == 0 and plain["retained"] == 0
    assert retained["keeps"] >= retained["free_skips"] > 0
    assert retained["adoptions"] == retained["own"] + retained["others"] > 0
