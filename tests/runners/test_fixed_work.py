"""Fixed work by the step-time model, against sums that fit in the head."""

from pathlib import Path

import pytest
from small_launches import carried_out

from hsexp.config.campaigns import FixedWorkCampaign, MixedChunkConfig
from hsexp.labs.fixed_work import mixing, width
from hsexp.sim.steptime import StepClock

CLOCK = StepClock(base_ns=10_000_000, decode_token_ns=1_000_000, prefill_token_ns=100_000)
"""10 ms a step, 1 ms a decode, 0.1 ms a prefill token."""

CAMPAIGN = FixedWorkCampaign(
    kind="fixed_work",
    name="toy",
    title="Toy",
    section="-",
    num_wide=6,
    num_narrow=2,
    num_mixed_decodes=5,
    chunks=(MixedChunkConfig(prefill_tokens=20, published="-"),),
)


def test_narrow_steps_do_the_wide_step_s_work_and_pay_their_base_each() -> None:
    pair = width(CLOCK, CAMPAIGN)
    assert (pair.joined.total_s, pair.split.total_s) == (0.016, 0.036)  # 10 + 6; 3 x (10 + 2)
    assert (pair.joined.token_s, pair.split.token_s) == pytest.approx((0.016 / 6, 0.006))


def test_separated_work_costs_one_base_more_than_mixed_work() -> None:
    pair = mixing(CLOCK, CAMPAIGN)[20]
    assert (pair.joined.total_s, pair.split.total_s) == (0.017, 0.027)  # 10 + 5 + 2; 12 + 15
    assert pair.saving_s == pytest.approx(-0.010)
    assert str(pair.split) == "20 prefill | 5 decode"


def test_the_campaign_prints_modelled_times_beside_what_the_paper_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = "device.step_time.base_s=0.010"
    result, printed = carried_out("campaign=fixed_work", base)
    assert result.exit_code == 0
    origin = "modelled (device a100_40gb, time model affine-a100-v2), not measured"
    assert " ".join(printed.split()).count(origin) == 2  # titles wrap
    line = next(line for line in printed.splitlines() if "512 prefill | 15 decode" in line)
    assert "-10.000" in line and "about +7" in line
    assert not any(tmp_path.iterdir())
