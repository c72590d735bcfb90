"""Every row says how much load its run carried, beside the rate that was asked for."""

from pathlib import Path

import pytest
from small_launches import carried_out

from hsexp.ledger import Ledger


def test_a_row_of_a_burst_says_that_it_carried_more_than_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("stage=run", "workers=1", "seeds=[0]", "organization=s2", "workload.num_requests=40")
    result, printed = carried_out("campaign=bursts", "engine=sim", *small)
    assert result.exit_code == 0, printed
    rows = Ledger.read(tmp_path / "ledgers" / "bursts" / "sim").frame().set_index("block")
    assert rows["rate_per_s"].tolist() == [1.7, 1.7]
    assert rows["planned_rate_per_s"].equals(rows["realised_rate_per_s"])
    # Gaps are not rescaled: this seed is slow, 1.47 per second. The burst has the same gaps at four
    # times that rate, 6.81 s of ON time, and one OFF window: 40 / 21.81 s = 1.83 per second. A rate
    # of gaps differs by less than 5 % from one of requests here.
    assert rows["realised_rate_per_s"]["poisson"] == pytest.approx(1.47, rel=0.05)
    assert rows["realised_rate_per_s"]["burst"] == pytest.approx(40 / 21.81, rel=0.05)
