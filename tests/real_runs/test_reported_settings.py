"""The engine's report and a cell's expectation spell every setting alike."""

from pathlib import Path

import pytest
from fake_runs import make_cell

from hsexp.engine.settings import EngineSettings, label_text
from hsexp.plan.run import VllmRunConfig
from runners.vllm.readback import expected


@pytest.mark.parametrize("exact", ["true", "false"])
def test_every_setting_of_the_memory_is_expected_as_the_engine_reports_it(
    exact: str, tmp_path: Path
) -> None:
    overrides = (f"engine.exact={exact}", "retention=k2", "pinning=k1", "admission.headroom=0.19")
    config = VllmRunConfig.parse(make_cell(tmp_path, *overrides).config)
    settings = EngineSettings(**config.memory_settings, budget_bytes=config.budget.bytes)
    reported = {name: label_text(value) for name, value in settings.labels.items()}
    assert reported["exact"] == exact and reported["pinning_requesters"] == "1"
    assert reported.items() <= expected(config).items()
