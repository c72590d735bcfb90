"""Step times with context: what a step reads of keys, values, states and weights."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import SLOW_STEPS, play, request, toy_memory

from hsexp.config.device import DeviceConfig, StepTimeModel
from hsexp.config.roofline import RooflineStepTime
from hsexp.sim.clocks import clock_of
from hsexp.sim.steptime import StepClock, StepContext

AFFINE = StepTimeModel(
    name="toy",
    base_s=0.010,
    decode_token_s=0.001,
    prefill_token_s=0.0001,
    context_token_s=0.0000371,
)

ROOFLINE = RooflineStepTime(
    kind="roofline",
    name="toy",
    fixed_s=0.001,
    weights_s=0.010,
    experts_s=0.0,
    expert_share=0.0,
    decode_token_s=0.0006,
    prefill_token_s=0.0005,
    state_s=0.002,
    context_token_s=0.00001,
    pair_s=0.000001,
)


def device(step_time: StepTimeModel | RooflineStepTime) -> DeviceConfig:
    return SLOW_STEPS.model_copy(update={"step_time": step_time})


def test_a_context_adds_its_tokens_to_an_affine_step() -> None:
    clock = StepClock.of(AFFINE)
    # 10 ms + 2 x 1 ms + 100 x 0.0371 ms
    assert clock.step_ns(2, 0, StepContext(decoding_tokens=100)) == 15_710_000
    assert clock.step_ns(2, 0) == 12_000_000


def test_a_device_that_knows_no_context_keeps_the_ids_of_its_cells() -> None:
    assert "context_token_s" not in SLOW_STEPS.model_dump(mode="json")["step_time"]
    assert not clock_of(SLOW_STEPS.known_step_time).reads_context


def test_a_step_with_few_tokens_takes_as_long_as_reading_the_weights() -> None:
    clock = clock_of(ROOFLINE)
    # 1 + max(10, 3 x 0.6) + 3 x 2 ms of states + 200 x 0.01 ms of keys and values
    assert clock.step_ns(3, 0, StepContext(decoding_tokens=200)) == 19_000_000


def test_a_step_with_many_tokens_takes_as_long_as_multiplying_them() -> None:
    context = StepContext.of_chunks([(50, 40)], decoding_tokens=200)
    # Each of 40 queries sees the 50 keys before the chunk, and 1 to 40 of the chunk.
    assert context.num_pairs == 40 * 50 + 820
    # 1 + max(10, 3 x 0.6 + 40 x 0.5) + (3 + 1) x 2 + (200 + 50) x 0.01 + 2,820 x 0.001 ms
    assert clock_of(ROOFLINE).step_ns(3, 40, context) == 36_120_000


def test_a_step_reads_only_the_experts_that_its_tokens_use() -> None:
    routed = ROOFLINE.model_copy(update={"experts_s": 0.100, "expert_share": 0.25})
    clock = clock_of(routed)
    # One token reads a quarter, two 1 - .75 x .75, and many read all.
    assert clock.step_ns(1, 0) == 1_000_000 + 10_000_000 + 25_000_000 + 2_000_000
    assert clock.step_ns(2, 0) == 1_000_000 + 10_000_000 + 43_750_000 + 4_000_000
    assert clock.step_ns(0, 200) == 1_000_000 + 110_000_000 + 2_000_000


def test_every_step_of_a_growing_context_has_a_time_of_its_own() -> None:
    record = play([request(prompt=5, output=4)], toy_memory("s0", 8), device=device(AFFINE))
    # Chunks of 4 tokens and of 1, then decodes over 5, 6 and 7 tokens.
    assert [round(step_s * 1e9) for step_s in record.steps["step_s"]] == [
        10_400_000,
        10_100_000,
        11_185_500,
        11_222_600,
        11_259_700,
    ]
    assert record.requests["finish_s"].item() == pytest.approx(0.0541678)


@pytest.mark.parametrize("step_time", [AFFINE, ROOFLINE], ids=["affine", "roofline"])
@given(case=toy_cases())
@settings(max_examples=100, deadline=None)
def test_leaping_and_stepping_leave_the_same_record_where_contexts_grow(
    step_time: StepTimeModel | RooflineStepTime, case: ToyCase
) -> None:
    grown = replace(case, engine=case.engine | {"device": device(step_time)})
    leaping = grown.run(grown.new_memory())
    stepping = grown.run(grown.new_memory(), fast_forward=False)
    assert leaping.requests.equals(stepping.requests)
    assert leaping.steps.equals(stepping.steps)
    assert leaping.counters == stepping.counters


def test_decodes_that_wait_read_no_context() -> None:
    record = play(
        [request(prompt=5, output=4), request(prompt=3, output=1, at=0.021)],
        toy_memory("s0", 16),
        separate=True,
        device=device(AFFINE),
    )
    # The second prefill has a step of its own, in which the first request stands still.
    prefill = record.steps[record.steps["prefill_tokens"] == 3]
    assert [round(step_s * 1e9) for step_s in prefill["step_s"]] == [10_300_000]
