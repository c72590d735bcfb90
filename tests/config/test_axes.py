"""The axes: each declared once, with fields and types of four classes that follow from it."""

import subprocess
import sys
from pathlib import Path

import pytest

from hsexp.config.arm import Arm
from hsexp.config.axes import AXES, MEMORY_AXES, Axes
from hsexp.config.base import Config, ConfigError
from hsexp.config.campaigns import Block
from hsexp.config.launch import AdmissionPins, Launch
from hsexp.engine.settings import ServingSettings
from hsexp.memory import MemoryConfig

EVERY = [axis.name for axis in AXES]


def axes_of(settings: type[Config]) -> set[str]:
    return settings.model_fields.keys() & set(EVERY)


def test_each_class_has_the_axes_that_it_can_hold() -> None:
    assert list(Axes.__annotations__) == EVERY
    assert axes_of(Block) == set(EVERY)
    assert axes_of(Arm) == Arm.model_fields.keys() == set(EVERY) - {"seeds"}
    assert axes_of(AdmissionPins) == {"cap", "headroom"}
    assert axes_of(Launch) == set(EVERY) - {"cap", "headroom", "rate_per_s", "sharing"}
    assert axes_of(ServingSettings) == {axis.name for axis in MEMORY_AXES}
    assert axes_of(ServingSettings) == axes_of(MemoryConfig)


def test_an_arm_of_an_unknown_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="headrom"):
        Arm(headrom=0.1)
    with pytest.raises(ConfigError, match="headrom is not a known setting here"):
        Arm.parse({"headrom": 0.1})


WRONG = {
    "arm.headrom": '"Arm" has no attribute "headrom"',
    "arm.seeds": 'No overload variant of "__get__" of "Repeats"',
    "block.organisation": '"Block" has no attribute "organisation"',
    "launch.cap": 'No overload variant of "__get__" of "Nested"',
    "launch.organisation": '"Launch" has no attribute "organisation"',
    "server.budget": 'No overload variant of "__get__" of "Option"',
    "launch.waiting.nam": 'has no attribute "nam"',
    "block.seeds[0].nam": '"int" has no attribute "nam"',
}

RIGHT = {
    "arm.headroom": "float | None",
    "block.seeds": "tuple[int, ...]",
    "block.organization": "tuple[str, ...]",
    "launch.budget": "BudgetConfig | None",
    "server.waiting": "str | dict[str, Any]",
}


@pytest.mark.slow
def test_a_type_checker_knows_the_axes_of_each_class(tmp_path: Path) -> None:
    lines = [
        "from hsexp.config.arm import Arm",
        "from hsexp.config.campaigns import Block",
        "from hsexp.config.launch import Launch",
        "from hsexp.engine.settings import ServingSettings",
        "def use(arm: Arm, block: Block, launch: Launch, server: ServingSettings) -> None:",
        *(f"    {expression}" for expression in WRONG),
        *(f"    reveal_type({expression})" for expression in RIGHT),
    ]
    program = tmp_path / "uses.py"
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(program)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    said = {
        int(number): message
        for line in done.stdout.splitlines()
        if line.count(":") > 2 and "Possible overload" not in line and "    def" not in line
        for _, number, message in [line.split(":", 2)]
    }
    first = len(lines) - len(WRONG) - len(RIGHT) + 1
    for number, (expression, complaint) in enumerate(WRONG.items(), start=first):
        assert complaint in said.get(number, "nothing"), (expression, done.stdout)
    for number, (expression, type_) in enumerate(RIGHT.items(), start=first + len(WRONG)):
        assert type_ in said.get(number, "nothing"), (expression, done.stdout)
