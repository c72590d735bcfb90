"""Continuation checks around the engine: requests, fidelity, comparison, cells and processes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from hsexp.config.base import ConfigError
from hsexp.config.campaigns import ContinuationCampaign
from hsexp.config.catalog import CONF
from hsexp.config.launch import Launch, parse_launch
from runners.continuation.compare import Compared, Run, compare, logprob_difference
from runners.continuation.execute import metrics_of
from runners.continuation.plan import make_plan
from runners.continuation.process import CheckFailed, CheckProcess
from runners.continuation.prompts import Prompts
from runners.continuation.run import ContinuationRun
from runners.continuation.treatments import TREATMENTS, Scenario
from runners.vllm.faults import EngineDied, EngineStalled

PROMPTS = Prompts.draw(depth=20, grid=8, vocabulary=range(3, 512), seed=1)
"""Boundaries at 8 and 16 inside the prefix; the first one behind it is 24."""


# -- requests --------------------------------------------------------------------------------------


def test_members_share_the_prefix_and_end_at_hard_lengths() -> None:
    assert [len(ask.prompt) for ask in PROMPTS.members] == [25, 26, 28, 26, 32, 33]
    assert {ask.prompt[:20] for ask in PROMPTS.members} == {PROMPTS.prefix}
    assert len({ask.prompt[20:] for ask in PROMPTS.members}) == 6


def test_there_is_a_consumer_for_every_boundary_inside_the_prefix() -> None:
    assert [len(ask.prompt) for ask in PROMPTS.consumers] == [8 + 10, 16 + 10]
    for boundary, (index, consumer) in zip((8, 16), enumerate(PROMPTS.consumers), strict=True):
        producer = PROMPTS.producer(index)
        assert producer.prompt[:boundary] == consumer.prompt[:boundary]
        assert producer.prompt[: boundary + 1] != consumer.prompt[: boundary + 1]


def test_a_turn_continues_the_answer_of_its_member() -> None:
    answers = {ask.name: range(100 * i, 100 * i + 16) for i, ask in enumerate(PROMPTS.members)}
    turns = PROMPTS.with_turns(answers).turns
    assert turns[2].prompt[:28] == PROMPTS.members[2].prompt
    assert turns[2].prompt[28:44] == tuple(range(200, 216))


def test_the_same_seed_draws_the_same_requests_and_another_one_does_not() -> None:
    assert Prompts.draw(depth=20, grid=8, vocabulary=range(3, 512), seed=1) == PROMPTS
    assert Prompts.draw(depth=20, grid=8, vocabulary=range(3, 512), seed=2) != PROMPTS


# -- fidelity --------------------------------------------------------------------------------------


def scenarios(treatment: str) -> list[Scenario]:
    prompts = PROMPTS.with_turns({ask.name: [0] * 16 for ask in PROMPTS.members})
    return list(TREATMENTS[treatment].scenarios(prompts))


def observed(scenario: Scenario, **changes: Any) -> dict[str, Any]:
    """A run in which nothing out of the way happened."""
    counters = dict.fromkeys(
        ("preemptions", "lost_checkpoints", "reclaimed_slabs", "retained_checkpoints"), 0
    )
    return {
        "cached": {arrival.ask.name: 0 for arrival in scenario.arrivals},
        "max_running": 1,
        "counters": counters,
        "generated_when_preempted": [],
    } | changes


def unmet(scenario: Scenario, run: dict[str, Any]) -> list[str]:
    return [text for text, holds in scenario.happened.items() if not holds(run)]


def test_a_hit_counts_only_if_every_consumer_adopted_its_own_boundary() -> None:
    (scenario,) = scenarios("hit")
    right = {"producer-1": 0, "consumer-1": 8, "producer-2": 8, "consumer-2": 16}
    assert unmet(scenario, observed(scenario, cached=right)) == []
    shallow = right | {"consumer-2": 8}
    assert unmet(scenario, observed(scenario, cached=shallow)) == [
        "every consumer adopted its boundary"
    ]


@pytest.mark.parametrize("name", sorted(TREATMENTS.keys() - {"repeat", "isolation"}))
def test_no_treatment_counts_where_nothing_happened(name: str) -> None:
    for scenario in scenarios(name):
        assert unmet(scenario, observed(scenario))


def test_isolation_counts_if_share_adopted_and_isolate_did_not() -> None:
    share, isolate = scenarios("isolation")
    assert {arrival.salt for arrival in share.arrivals} == {None}
    assert len({arrival.salt for arrival in isolate.arrivals}) == 6
    adopted = {arrival.ask.name: 8 for arrival in share.arrivals}
    assert unmet(share, observed(share, cached=adopted)) == []
    assert unmet(share, observed(share)) == ["SHARE adopted"]
    assert unmet(isolate, observed(isolate)) == []
    assert unmet(isolate, observed(isolate, cached=adopted)) == ["ISOLATE adopted nothing"]


def test_what_is_counted_makes_a_treatment_happen() -> None:
    (slabs,) = scenarios("slabs")
    counters = observed(slabs)["counters"]
    assert unmet(slabs, observed(slabs, counters=counters | {"reclaimed_slabs": 1})) == []


def test_a_request_never_waits_for_one_that_comes_later() -> None:
    for name in TREATMENTS:
        for scenario in scenarios(name):
            seen: set[str | None] = {None}
            for arrival in scenario.arrivals:
                assert arrival.after in seen
                assert arrival.ask.name not in seen
                seen.add(arrival.ask.name)


# -- comparison ------------------------------------------------------------------------------------


def alone(**changes: Any) -> Run:
    return {
        "tokens": {"a": [1, 2]},
        "logprobs": {"a": [{"1": -0.5, "9": -1.0}, {"2": -0.25}]},
        "states": {"a": {"8": "x", "16": "y"}},
        "cached": {"a": 0},
    } | changes


def treated(**changes: Any) -> Compared:
    run = alone(cached={"a": 8}) | {
        "counters": dict.fromkeys(
            ("preemptions", "lost_checkpoints", "reclaimed_slabs", "retained_checkpoints"), 2
        ),
        "generated_when_preempted": [3, 4],
    }
    return Compared(run=run | changes, reference_of={"a": "a"}, unmet=["it did not happen"])


def one_row(compared: Compared, first: Run, second: Run) -> dict[str, Any]:
    (row,) = compare([compared], (first, second))["requests"]
    found: dict[str, Any] = row
    return found


def test_equal_runs_are_equal_in_everything() -> None:
    assert one_row(treated(), alone(), alone()) == {
        "request": "a",
        "adopted_tokens": 8,
        "stable_reference": True,
        "equal_tokens": True,
        "equal_logprobs": True,
        "max_logprob_difference": 0.0,
        "num_states": 2,
        "num_equal_states": 2,
    }


def test_events_add_up_over_the_runs_of_a_treatment() -> None:
    outcome = compare([treated(), treated()], (alone(), alone()))
    assert outcome["events"]["preemptions"] == 4
    assert outcome["events"]["preempted_outputs"] == 14
    assert outcome["unmet"] == ["it did not happen"]


def test_only_states_of_a_boundary_that_both_runs_have_are_compared() -> None:
    row = one_row(treated(states={"a": {"8": "z", "24": "w"}}), alone(), alone())
    assert (row["num_states"], row["num_equal_states"]) == (1, 0)


@pytest.mark.parametrize(
    "second",
    [
        alone(tokens={"a": [1, 3]}),
        alone(states={"a": {"8": "x", "16": "q"}}),
        alone(cached={"a": 8}),
    ],
    ids=["other tokens", "other state bytes", "it adopted something"],
)
def test_a_reference_that_does_not_repeat_is_not_stable(second: Run) -> None:
    assert not one_row(treated(), alone(), second)["stable_reference"]


def test_logprobs_behind_the_first_other_token_say_nothing() -> None:
    ours = [{"1": -0.5}, {"2": -0.5}, {"7": -9.0}]
    theirs = [{"1": -0.25}, {"2": -0.5, "3": -0.4}, {"7": -1.0}]
    assert logprob_difference([1, 2, 7], ours, [1, 3, 7], theirs) == 0.25
    assert logprob_difference([1, 3, 7], ours, [1, 3, 7], theirs) == 8.0


def test_a_check_counts_only_with_all_its_references_stable() -> None:
    row = one_row(treated(), alone(), alone())
    rows = pd.DataFrame([row, row | {"stable_reference": False, "max_logprob_difference": 0.5}])
    metrics = metrics_of(rows, {"unmet": ["x"], "events": {"preemptions": 3}})
    assert (metrics["stable"], metrics["happened"]) == (0, 0)
    assert (metrics["num_equal_tokens"], metrics["num_states"]) == (2, 4)
    assert (metrics["max_logprob_difference"], metrics["num_preemptions"]) == (0.5, 3)


# -- cells -----------------------------------------------------------------------------------------


def launched(*overrides: str) -> tuple[Launch, ContinuationCampaign]:
    with initialize_config_dir(str(CONF), version_base=None):
        launch = parse_launch(
            compose("config", overrides=["campaign=continuation", "engine=vllm", *overrides])
        )
    assert isinstance(launch.campaign, ContinuationCampaign)
    return launch, launch.campaign


def test_every_arm_has_each_treatment_once_and_slabs_only_where_there_are_some() -> None:
    plan = make_plan(*launched("seeds=[5]", "campaign.depths_tokens=[2400]"))
    # Two dtypes, two modes; four organizations with eight treatments, and S2's slabs.
    assert len(plan.cells) == 2 * 2 * (4 * 8 + 1)
    assert len({cell.cell_id for cell in plan.cells}) == len(plan.cells)
    slabs = [cell for cell in plan.cells if cell.axes["treatment"] == "slabs"]
    assert {cell.axes["organization"] for cell in slabs} == {"s2"}


def test_a_prefix_shorter_than_the_grid_has_no_cell_and_a_note() -> None:
    plan = make_plan(*launched("campaign.depths_tokens=[600]"))
    assert "d0" not in {cell.axes["organization"] for cell in plan.cells}
    assert plan.notes == ("depth 600 has no boundary for d0, whose grid is 1792 tokens",)


def test_slots_of_a_slab_follow_the_size_of_an_element() -> None:
    plan = make_plan(*launched("campaign.organizations=[s2]"))
    slots = {
        cell.axes["dtype"]: ContinuationRun.parse(cell.config).organization.slot_bytes  # type: ignore[union-attr]
        for cell in plan.cells
    }
    # 512 tokens of 64 elements in K and in V: 128 KiB and 256 KiB, in sixteen slots.
    assert slots == {"bfloat16": 8192, "float32": 16384}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            "campaign.treatments=[hit,miss]",
            "campaign.treatments: miss is unknown; choose from repeat",
        ),
        ("model.checkpoint=some/weights", "model.checkpoint must be null"),
        ("device.hardware=null", "device.hardware is required"),
    ],
)
def test_what_cannot_be_checked_is_refused(override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_plan(*launched(override))


# -- processes -------------------------------------------------------------------------------------

STAND_IN = """
import json, pathlib, sys, time
folder, number = pathlib.Path(sys.argv[1]), 0
while True:
    path = folder / f"job-{number}.json"
    while not path.exists():
        time.sleep(0.01)
    job = json.loads(path.read_text())
    if job == "die":
        sys.exit("no memory left for this stand-in")
    if job == "sleep":
        time.sleep(60)
    answer = {"error": "ValueError: bad"} if job == "raise" else {"outcome": {"job": job}}
    half = folder / "half"
    half.write_text(json.dumps(answer))
    half.rename(folder / f"answer-{number}.json")
    number += 1
"""


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CheckProcess]:
    program, limit_s = (sys.executable, "-c", STAND_IN), getattr(request, "param", 60.0)
    with CheckProcess({}, log=tmp_path / "log", limit_s=limit_s, program=program) as process:
        yield process


def test_one_process_answers_many_checks(process: CheckProcess) -> None:
    jobs: list[Any] = [{"n": 1}, {"n": 2}]
    assert [process.check(job) for job in jobs] == [{"job": job} for job in jobs]


def test_a_check_that_raises_is_told_and_the_process_goes_on(process: CheckProcess) -> None:
    with pytest.raises(CheckFailed, match="ValueError: bad"):
        process.check("raise")  # type: ignore[arg-type]
    assert process.check({"n": 1}) == {"job": {"n": 1}}


def test_a_process_that_dies_is_a_fault(process: CheckProcess) -> None:
    with pytest.raises(EngineDied):
        process.check("die")  # type: ignore[arg-type]


@pytest.mark.parametrize("process", [0.5], indirect=True)
def test_a_process_that_hangs_is_a_fault(process: CheckProcess) -> None:
    with pytest.raises(EngineStalled, match=r"longer than 0.5 s"):
        process.check("sleep")  # type: ignore[arg-type]
