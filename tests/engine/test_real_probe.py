"""`python -m hsexp probe` on the CPU: a device file that the simulator takes."""

from pathlib import Path

import pytest
import yaml

from hsexp.config.device import DeviceConfig
from runners import probe


def test_a_probe_writes_a_device_with_what_the_steps_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the lock of real runs
    small = probe.ProbeConfig(
        batches=(1, 4),
        prompt_tokens=(32, 256),
        output_tokens=12,
        gap_s=0.5,
        model="falcon_h1_mini",
        hardware="cpu",
        organizations=("d0", "s2"),
        budget_bytes=50_000_000,
    )
    monkeypatch.setattr(probe, "_config", lambda given: small)
    probe.main(["device=mine"])
    text = (tmp_path / "conf-local" / "device" / "mine.yaml").read_text(encoding="utf-8")
    device = DeviceConfig.parse(yaml.safe_load(text))
    assert device.fitted_model == "falcon_h1_mini"
    step_time = device.known_step_time
    assert step_time.base_s > 0.0
    assert step_time.prefill_token_s > 0.0
    assert "context" in text
    assert "of a step: median" in text
