"""Q10: predictions are judged as declared, and every arm and cell of the declaration exists."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from block_frames import block_runs

from analysis.config import block_design
from analysis.ledgers import Ledgers
from analysis.q10 import CAMPAIGN, Cell, cell_of, declaration
from analysis.runs import Runs
from analysis.tables import q10
from analysis.tables.table import ABSENT
from hsexp.config.arm import Arm

CONFIG = declaration()
BLOCKS = {
    *CONFIG.grid,
    *CONFIG.stress,
    CONFIG.ladder.block,
    CONFIG.bounds.fine.block,
    CONFIG.bounds.boundless.block,
}


UNSAID = ("Holm p", "q")
"""Controls are not adjusted, and conversations have no q."""


class MadeUp:
    """Ledgers in which an arm has a speed of its own; seeds differ by a few percent."""

    def __init__(self, speeds: Mapping[str, float], lacks: tuple[str, ...] = ()) -> None:
        self._speeds = speeds
        self._lacks = lacks
        self._runs: dict[str, Runs] = {}

    def runs(self, campaign: str, block: str) -> Runs:
        assert campaign == CAMPAIGN
        if block not in self._runs:
            names = {
                tuple(sorted(block_design(campaign, block).arm(name).axes.items())): name
                for name in block_design(campaign, block).arms
            }

            def name_of(arm: Arm) -> str:
                return next(
                    name for axes, name in names.items() if set(axes) <= set(arm.axes.items())
                )

            def metrics(arm: Arm, seed: int) -> dict[str, float]:
                noise = 1.0 + 0.001 * (seed % 5) * (1.0 if arm.organization == "s2" else 1.1)
                speed = self._speeds.get(name_of(arm), 100.0) * noise
                return {"throughput_tok_per_s": speed, "ttft_p99_s": 1e4 / speed}

            self._runs[block] = block_runs(
                campaign, block, metrics, left_out=lambda arm, seed: name_of(arm) in self._lacks
            )
        return self._runs[block]


def made_up(speeds: Mapping[str, float], *, lacks: tuple[str, ...] = ()) -> Ledgers:
    return cast(Ledgers, MadeUp(speeds, lacks))


def found(speeds: Mapping[str, float], **how: Any) -> dict[str, Any]:
    rows = q10.predictions(made_up(speeds, **how)).rows
    return dict(zip(rows["id"], rows["found"], strict=True))


def test_every_arm_and_cell_of_the_declaration_exists() -> None:
    for contrast in (*CONFIG.primaries, *CONFIG.controls):
        design = block_design(CAMPAIGN, contrast.block)
        assert {contrast.numerator, contrast.denominator} <= design.arms.keys(), contrast.id
        assert cell_of(made_up({}), contrast).place.axes.items() >= contrast.at.axes.items()
    for block in CONFIG.grid:
        assert {*CONFIG.candidates} <= block_design(CAMPAIGN, block).arms.keys()
    ladder = CONFIG.ladder
    assert {*ladder.steps, *ladder.others} == block_design(CAMPAIGN, ladder.block).arms.keys()
    for bound in (CONFIG.bounds.fine, CONFIG.bounds.boundless):
        assert bound.arm in block_design(CAMPAIGN, bound.block).arms


def test_the_grid_has_each_cell_once() -> None:
    cells = [cell for block in CONFIG.grid for cell in Cell.of(made_up({}), block)]
    places = [(c.place.budget, c.place.rate_per_s, c.place.sharing) for c in cells]
    assert len(places) == len(set(places)) == 3 * 2 * 3


@pytest.mark.parametrize(
    ("s2_p", "verdict"),
    [
        (103.9, "confirmed"),
        (108.0, "confirmed, larger"),
        (101.0, "confirmed, smaller"),
        (95.0, "refuted: the other sign"),
    ],
)
def test_a_prediction_is_judged_by_its_range_and_its_sign(s2_p: float, verdict: str) -> None:
    assert found({"s2_p": s2_p, "s3_p": 103.0 / 100.0 * s2_p, "s2_hit": 115.5})["P1"] == verdict


def test_arms_that_are_equal_show_nothing() -> None:
    assert found({})["P1"] == "not shown"


def test_a_control_holds_above_its_margin_and_fails_below() -> None:
    assert found({"s2_p": 99.0})["no sharing"] == "holds"
    assert found({"s2_p": 97.0})["no sharing"] == "fails"


def test_a_missing_arm_leaves_its_decision_open_and_is_named() -> None:
    table = q10.predictions(made_up({}, lacks=("s3_p",)))
    rows = table.rows.set_index("id")
    assert rows["found"].isna().to_dict()["P2"] and np.isnan(rows.loc["P2", "change_percent"])
    assert any("S3" in line for line in table.missing)


def test_the_best_baseline_is_one_that_the_cell_has() -> None:
    rows = q10.grid(made_up({"s2_f": 110.0, "s2_hit": 105.0, "s3_p": 121.0})).rows
    full = rows[rows["sharing"] == 1.0]
    assert set(full["best"]) == {"s2_f"} and set(full["best_fair"]) == {"s2_f"}
    assert full["s3_p_percent"].to_numpy() == pytest.approx(10.0, abs=0.2)
    half = rows[(rows["sharing"] < 1.0) & (rows["budget"] != "b108")]  # f = 0 was chosen there
    assert set(half["best_fair"]) == {"s2_hit"}


def test_a_ladder_step_is_the_mean_change_over_the_first_one() -> None:
    rows = q10.ladder(made_up({"s2_restart_point": 120.0})).rows.set_index("arm")
    assert rows.loc["s2_restart_point"].to_numpy() == pytest.approx(20.0)
    assert rows.loc["s2_priced"].to_numpy() == pytest.approx(0.0)


def test_a_share_of_a_bound_is_taken_in_the_same_cell() -> None:
    rows = q10.bounds(made_up({"fine_p": 125.0, "s2_p": 100.0, "s2_hit": 200.0})).rows
    assert rows["s2_p_of_fine_percent"].to_numpy() == pytest.approx(80.0, abs=0.1)
    assert rows["s2_p_of_boundless_percent"].to_numpy() == pytest.approx(50.0, abs=0.1)


def test_a_slower_first_token_is_said() -> None:
    rows = q10.latency(made_up({"d0_p": 80.0})).rows
    assert set(rows["worse"]) == {"d0_p"}


def test_other_workloads_have_rows_of_their_own() -> None:
    rows = q10.stress(made_up({"s3_p": 104.0})).rows
    assert list(dict.fromkeys(rows["workload"])) == list(CONFIG.stress)
    assert rows["s3_p_percent"].to_numpy() == pytest.approx(4.0, abs=0.2)


@pytest.mark.parametrize(
    "make", [q10.predictions, q10.grid, q10.latency, q10.ladder, q10.bounds, q10.stress]
)
def test_every_number_that_is_known_is_printed(make: Any) -> None:
    table = make(made_up({"s3_p": 104.0}))
    assert not table.missing
    for view in table.views:
        for line in table.cells(view):
            both = zip(view, line, strict=True)
            known = [text for column, text in both if column.heading not in UNSAID]
            assert ABSENT not in known, line
