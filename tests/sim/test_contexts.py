"""Context of each step, read from a trace, against the scheduler's own count."""

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import SLOW_STEPS, play, request, toy_memory

from hsexp.trace import TraceError, TraceRecorder
from hsexp.trace.contexts import decode_contexts

READING = SLOW_STEPS.model_copy(
    update={
        # 1 ms for each token of context and nothing else but a base: the time says the context.
        "step_time": SLOW_STEPS.known_step_time.model_copy(
            update={
                "base_s": 0.010,
                "decode_token_s": 0.0,
                "prefill_token_s": 0.0,
                "context_token_s": 0.001,
            }
        )
    }
)


def test_a_request_reads_its_prompt_and_what_it_has_generated() -> None:
    trace = TraceRecorder()
    record = play([request(prompt=5, output=4)], toy_memory("s0", 8), trace=trace)
    assert record.trace is not None
    # Two chunks, then three equal decodes over 5, 6 and 7 tokens.
    assert decode_contexts(record.trace).tolist() == [0.0, 0.0, 6.0]


@given(case=toy_cases().filter(lambda case: not case.engine["separate"]))
@settings(max_examples=60, deadline=None)
def test_a_trace_gives_the_context_that_each_step_took_time_for(case: ToyCase) -> None:
    case.engine["device"] = READING
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.trace is not None
    context_ms = (record.steps["step_s"] * 1e3 - 10.0).round(6)
    assert decode_contexts(record.trace).tolist() == context_ms.tolist()


def test_decodes_that_stand_still_are_refused() -> None:
    requests = [request(prompt=5, output=4), request(prompt=4, output=4, at=0.011)]
    record = play(requests, toy_memory("s0", 16), separate=True, trace=TraceRecorder())
    assert record.trace is not None
    with pytest.raises(TraceError, match="between their last chunk and their end"):
        decode_contexts(record.trace)
