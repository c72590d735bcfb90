"""python tests/gpu/phase_device.py [--tiny] --out DIR FACTS.json

Phase 5: a device file from the steps of phase 4, fitted as `python -m hsexp probe` does.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import said
from phase_campaign import LEDGER

sys.path.insert(0, str(Path(__file__).parents[2]))

NAME = "tested_gpu"


def main(arguments: Sequence[str]) -> int:
    given = said.arguments(__doc__, arguments)
    ledger = given.out / LEDGER
    if not ledger.is_dir():
        return said.skip(given.facts, f"phase 4 has left no ledger in {given.out}")
    try:
        import yaml

        from analysis.calibration.command import calibrate
        from analysis.errors import AnalysisError, NoRunsError
        from hsexp.config.device import DeviceConfig, StepTimeModel
    except ImportError as error:
        return said.skip(given.facts, f"cannot be imported: {error}")
    out = given.out / "device" / f"{NAME}.yaml"
    wanted = [f"ledger={ledger}", f"device={NAME}", f"out={out}", "overwrite=true"]
    try:
        calibrate([*wanted, "context=true", "errors=relative"])
    except NoRunsError as error:
        return said.skip(given.facts, str(error))
    except AnalysisError as error:
        return said.end(given.facts, {}, faults=[str(error)])
    device = DeviceConfig.parse(yaml.safe_load(out.read_text(encoding="utf-8")))
    step_time = device.step_time
    assert isinstance(step_time, StepTimeModel)
    facts = {"device_file": str(out), "step_time": step_time.model_dump(mode="json")}
    return said.end(given.facts, facts | {"fitted_model": device.fitted_model}, faults=[])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
