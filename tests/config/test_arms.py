"""Arms of a block: axes that vary together, beside those that vary freely."""

from typing import Any

import pytest
from launches import planned_blocks

from hsexp.config.arm import Arm
from hsexp.config.axes import AXES
from hsexp.config.base import ConfigError
from hsexp.config.campaigns import Block

PLACE: dict[str, Any] = {
    "organization": ["s2"],
    "budget": ["b63", "b83"],
    "rate_per_s": [3.0],
    "cap": [63],
    "sharing": [1.0],
    "seeds": [7, 8],
}
ARMS: dict[str, Any] = {
    "plain": {},
    "kept": {"retention": "k2", "headroom": 0.19},
    "split": {"organization": "d0"},
}


def axis(name: str) -> Any:
    return next(each for each in AXES if each.name == name)


def block(**changes: Any) -> Block:
    return Block.parse(PLACE | {"arms": ARMS} | changes)


def settings(of: Block) -> list[tuple[Any, ...]]:
    names = ("budget", "organization", "retention", "headroom")
    return [tuple(axes[name] for name in names) for axes in of.combinations()]


def test_a_block_has_every_combination_of_the_other_axes_with_each_arm() -> None:
    arms = [("s2", "off", 0.0), ("s2", "k2", 0.19), ("d0", "off", 0.0)]
    assert settings(block()) == [(budget, *arm) for budget in ("b63", "b83") for arm in arms]


def test_an_arm_is_whole_with_the_blocks_values_of_what_others_set() -> None:
    assert block().arm("plain") == Arm(organization="s2", retention="off", headroom=0.0)
    assert block().arm("split") == Arm(organization="d0", retention="off", headroom=0.0)


def test_the_values_of_an_axis_are_those_of_the_arms() -> None:
    assert block().values(axis("headroom")) == (0.0, 0.19)
    assert block().values(axis("organization")) == ("s2", "d0")
    assert block().values(axis("budget")) == ("b63", "b83")


def test_a_pin_keeps_the_arms_that_have_the_value() -> None:
    assert list(block().pinned(axis("organization"), ("d0",)).arms) == ["split"]
    assert list(block().pinned(axis("organization"), ("s2",)).arms) == ["plain", "kept"]
    pinned = block(budget=["b63"]).pinned(axis("headroom"), (0.19,))
    assert settings(pinned) == [("b63", "s2", "k2", 0.19)]


def test_a_pin_that_no_arm_has_holds_for_all_of_them_and_equal_arms_are_one() -> None:
    pinned = block(budget=["b63"]).pinned(axis("headroom"), (0.3,))
    expected = [("s2", "off", 0.3), ("s2", "k2", 0.3), ("d0", "off", 0.3)]
    assert settings(pinned) == [("b63", *arm) for arm in expected]
    arms = {"a": {"headroom": 0.1}, "b": {"headroom": 0.2}}
    assert settings(block(arms=arms).pinned(axis("headroom"), (0.3,))) == [
        ("b63", "s2", "off", 0.3),
        ("b83", "s2", "off", 0.3),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {"a": {"budget": "b63"}}}, "arm a sets budget, which the block varies: b63, b83"),
        ({"arms": {"a": {}, "b": {"headroom": 0.0}}}, "arms a and b are equal"),
        ({"arms": {"a": {"headrom": 0.1}}}, r"arms\.a\.headrom is not a known setting"),
    ],
)
def test_arms_that_cannot_be_told_apart_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        block(**changes)


def test_a_plan_has_the_cells_of_the_arms() -> None:
    plan = planned_blocks({"grid": PLACE | {"headroom": [0.0], "arms": ARMS}})
    assert len(plan.cells) == 2 * 3 * 2
    assert {cell.axes["organization"] for cell in plan.cells} == {"s2", "d0"}
    assert {cell.config["retention"]["name"] for cell in plan.cells} == {"off", "k2"}
