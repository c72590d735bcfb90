"""Distinct requesters: what is counted, and what a server that runs for ever forgets."""

import pytest

from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.memory.policies.demand import DistinctRequesters
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import DemandedRetention


def test_a_requester_counts_once_for_a_key() -> None:
    demand = DistinctRequesters(2, max_keys=10)
    demand.register("prompt", 1)
    demand.register("prompt", 1)
    assert not demand.reached("prompt")
    demand.register("prompt", 2)
    assert demand.reached("prompt")


def test_the_key_that_was_asked_for_longest_ago_is_forgotten_first() -> None:
    demand = DistinctRequesters(1, max_keys=2)
    for key in ("a", "b", "a", "c"):  # a was asked for after b
        demand.register(key, 1)
    assert [key for key in "abc" if demand.reached(key)] == ["a", "c"]


def test_a_repeated_question_keeps_a_key_alive() -> None:
    demand = DistinctRequesters(2, max_keys=2)
    for key, request in [("system", 1), ("x", 1), ("system", 1), ("y", 1), ("system", 2)]:
        demand.register(key, request)
    assert demand.reached("system")


def test_a_forgotten_key_needs_all_its_requesters_again() -> None:
    demand = DistinctRequesters(2, max_keys=1)
    demand.register("a", 1)
    demand.register("b", 1)
    demand.register("a", 2)
    assert not demand.reached("a")
    demand.register("a", 1)
    assert demand.reached("a")


def test_no_more_is_kept_than_keys_times_threshold() -> None:
    demand = DistinctRequesters(2, max_keys=8)
    for request in range(1_000):
        demand.register("shared", request)
        demand.register(f"private {request}", request)
    assert len(demand) == 8
    assert sum(map(len, demand._requesters.values())) == 2 + 7


def test_within_the_bound_nothing_differs_from_a_table_that_never_forgets() -> None:
    bounded, unbounded = DistinctRequesters(2, max_keys=50), DistinctRequesters(2)
    for request in range(500):
        key = request * 7919 % 50  # 7,919 is prime: all 50 keys come up
        bounded.register(key, request % 3)
        unbounded.register(key, request % 3)
        assert bounded.reached(key) == unbounded.reached(key)
    assert len(bounded) == len(unbounded) == 50


@pytest.mark.parametrize(
    ("group", "option"),
    [("retention", "k2"), ("pinning", "k1"), ("pinning", "k2"), ("pinning", "k3")],
)
def test_every_policy_that_counts_demand_is_bounded_above_a_run_of_the_paper(
    group: str, option: str
) -> None:
    # 300 requests of at most 16,384 tokens with a boundary each 512: 300 * 32 = 9,600 keys.
    assert read_option(group, option)["demand_keys"] >= 9_600


def test_a_bound_of_no_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="demand_keys"):
        DemandedRetention.parse({"name": "k2", "requesters": 2, "demand_keys": 0})
    with pytest.raises(ConfigError, match="demand_keys"):
        PinningConfig.parse(
            {"name": "k1", "requesters": 1, "protected_fraction": 0.5, "demand_keys": -1}
        )
