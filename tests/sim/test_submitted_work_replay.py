"""Work, calls for pages and use of the pools, as a trace has them, are those of the run itself."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cores import pure_only, replace_method
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import (
    falcon_memory,
    falcon_workload,
    hit_first,
    play,
    play_falcon,
    request,
    toy_memory,
)

from hsexp.measure.metrics import summarize
from hsexp.memory import HybridMemory, SequenceMemory
from hsexp.memory.cache import Cache
from hsexp.memory.pool import PageUse
from hsexp.memory.sums import StepSums
from hsexp.trace import Trace, TraceRecorder
from hsexp.trace.agreement import counts, requests_agree, steps_agree
from hsexp.trace.shortages import checks
from hsexp.trace.usage import padding, slab_losses, usage
from hsexp.trace.work import lives, realised_window_ns, work


def trace_of(case: ToyCase, *, fast_forward: bool = True) -> Trace:
    trace = case.run(case.new_memory(), fast_forward=fast_forward, trace=TraceRecorder()).trace
    assert trace is not None
    return trace


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_a_trace_counts_what_the_run_counted(case: ToyCase) -> None:
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.trace is not None
    found = counts(record.trace, summarize(record))
    assert len(found) >= 14
    assert all(count.agrees for count in found), [each for each in found if not each.agrees]
    for agreement in (requests_agree(record.trace, record.requests), steps_agree(record.trace)):
        assert agreement.num_equal == agreement.num_all


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_steps_that_are_leaped_over_count_as_if_they_had_been_scheduled(case: ToyCase) -> None:
    leaped, single = (trace_of(case, fast_forward=fast) for fast in (True, False))
    calls, called = checks(leaped), checks(single)
    if case.organization in ("s2", "s3") or case.memory["reservation"] == "promised":
        # Slots and promises of others change what a refused request needs.
        assert calls.failed.total() == called.failed.total()
        calls.failed = called.failed
    assert calls == called
    assert work(leaped) == work(single)
    assert usage(leaped) == usage(single)
    assert padding(leaped) == padding(single)
    assert slab_losses(leaped) == slab_losses(single)
    window = realised_window_ns(leaped)
    if window is not None:
        assert work(leaped, window) == work(single, window)


class Called(TraceRecorder):
    """A recorder that also counts calls of running requests that pass at a pool without a free
    page. Let it see every step (`fast_forward=False`)."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: Counter[int] = Counter()

    def start(self, memory: HybridMemory) -> None:
        super().start(memory)
        extend, admit = memory.extend, memory.admit
        admitted: list[int | str] = []

        def watched_extend(sequence: SequenceMemory, computed: int, end: int) -> bool:
            self.took: set[int] = set()
            passed = extend(sequence, computed, end)
            if sequence.request_id in admitted:
                admitted.remove(sequence.request_id)
            elif passed:
                pools = memory.cache.pools
                self.passed.update(
                    i for i, pool in enumerate(pools) if not pool.num_free and i not in self.took
                )
            return passed

        def watched_admit(sequence: SequenceMemory, *args: Any) -> None:
            admitted.append(sequence.request_id)
            admit(sequence, *args)

        replace_method(memory, "extend", watched_extend)
        replace_method(memory, "admit", watched_admit)

    def on_take(self, pool: int, pages: Sequence[int], use: PageUse) -> None:
        super().on_take(pool, pages, use)
        self.took.add(pool)


@pure_only
@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_calls_that_pass_without_a_free_page_are_counted_in_their_order(case: ToyCase) -> None:
    case = replace(case, engine=case.engine | {"separate": False})  # running order is not theirs
    recorder = Called()
    trace = case.run(case.new_memory(), fast_forward=False, trace=recorder).trace
    assert trace is not None
    assert +checks(trace).passed_at_zero == recorder.passed


@pure_only
@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_padding_is_beside_the_blocks_that_requests_really_had(case: ToyCase) -> None:
    block_tokens: list[int] = []

    class Padded(StepSums):
        """Sums that also count the blocks of running requests."""

        def add(self, cache: Cache, num_steps: int) -> None:
            super().add(cache, num_steps)
            small = cache.attention.kernel_block_size
            blocks = sum(map(cache.attention.num_blocks, cache.sequences.values()))
            block_tokens.append(num_steps * blocks * small)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hsexp.sim.scheduler.StepSums", Padded)
        trace = trace_of(case)
    found = padding(trace)
    assert found.block_token_steps == sum(block_tokens)
    assert 0 <= found.padding_token_steps <= found.block_token_steps


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_slabs_and_their_slots_are_conserved_at_every_step(case: ToyCase) -> None:
    used = usage(trace_of(case))
    if used.slabs is not None:
        assert used.slabs.conserved.num_equal == used.slabs.conserved.num_all == used.num_steps
        assert used.slabs.slab_steps[0] == 0


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_work_of_two_halves_is_the_work_of_the_whole(case: ToyCase) -> None:
    trace = trace_of(case)
    ends = [event.time_ns + event.count * event.duration_ns for event in trace.rows("step")]
    if not ends:
        return  # the memory is too small for any request
    middle = ends[len(ends) // 2] - 3_000_000  # inside a step or between two
    first, second, whole = (
        work(trace, window) for window in ((-1, middle), (middle, ends[-1]), (-1, ends[-1]))
    )
    for name in ("initial_tokens", "resume_tokens", "prefill_tokens", "decode_tokens",
                 "num_forwards", "event_time_ns"):  # fmt: skip
        assert getattr(first, name) + getattr(second, name) == getattr(whole, name)
        assert getattr(whole, name) == getattr(work(trace), name)
    assert whole.prefill_tokens == whole.initial_tokens + whole.resume_tokens


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_recomputed_tokens_are_those_that_a_request_had_computed_before(case: ToyCase) -> None:
    reached: dict[int, int] = {}
    for life in lives(trace_of(case)):
        start, before = life.adopted_tokens, reached.get(life.request, 0)
        positions = range(start, start + life.prefill_tokens)
        assert life.recomputed_tokens == sum(position < before for position in positions)
        reached[life.request] = max(before, life.computed or 0)
        assert 0 <= life.recomputed_tokens <= life.prefill_tokens
        planned = life.planned_prompt_replay + life.planned_output_replay
        assert planned == (life.end - life.adopted_tokens if life.episode else 0)
        assert life.episode or life.recomputed_tokens == life.output_tokens == 0
        assert life.prefill_tokens <= life.end - life.adopted_tokens
        if life.cause == "finished":
            assert life.prefilled_to == life.end


# -- by hand -------------------------------------------------------------------------------------


def preempting() -> Trace:
    """Prompts of 6 and 5 tokens, 9 outputs each, in 9 pages of 2 tokens.

    Request 0 takes the last page for its token 9, in step 3. In step 4 request 1 is short for its
    own token 9, and is the youngest. It comes back when request 0 has left.
    """
    memory = toy_memory("d0", 9)
    trace = play([request(6, 9), request(5, 9)], memory, trace=TraceRecorder()).trace
    assert trace is not None
    return trace


def test_a_call_is_counted_by_what_it_found_and_by_what_followed() -> None:
    found = checks(preempting())
    # The admission that needs 5 of 3 pages is refused in steps 5 to 7, and of 2 pages in step 8.
    assert found.failed == {(0, "free = 0"): 1, (0, "need > free > 0"): 4}
    assert +found.labels == {"preempt": 1, "defer": 4}
    (preemption,) = found.preemptions
    assert (preemption.step, preemption.victim, preemption.beneficiary) == (4, 1, 1)
    # Request 1 behind request 0 in step 3, and request 0 itself in step 4.
    assert +found.passed_at_zero == {0: 2}


def test_a_refusal_that_stands_is_counted_by_the_pages_that_are_free_then() -> None:
    """Request 1 needs 4 of 6 pages from step 2 on. Request 0 leaves 3, 2, 2, 1, 1, 0, 0."""
    memory = toy_memory("d0", 6)
    trace = play([request(4, 9), request(7, 2, at=0.02)], memory, trace=TraceRecorder()).trace
    assert trace is not None
    refusals = trace.events("refuse")
    assert set(refusals["cause"]) == {"memory", "standing"}
    assert checks(trace).failed == {(0, "need > free > 0"): 5, (0, "free = 0"): 2}


def test_prefill_of_a_resume_is_split_into_prompt_and_outputs() -> None:
    first, second, resumed = lives(preempting())
    assert [life.episode for life in (first, second, resumed)] == [0, 0, 1]
    assert [life.decode_tokens for life in (first, second, resumed)] == [8, 3, 4]
    # 5 prompt tokens and 4 outputs; the last output was never computed before.
    assert (resumed.planned_prompt_replay, resumed.planned_output_replay) == (5, 4)
    assert (resumed.prefill_tokens, resumed.recomputed_tokens, resumed.output_tokens) == (9, 8, 4)
    assert first.planned_prompt_replay == second.planned_output_replay == 0


def test_work_is_split_by_phase_and_by_what_a_step_carries() -> None:
    found = work(preempting())
    assert (found.initial_tokens, found.resume_tokens, found.decode_tokens) == (11, 9, 15)
    assert found.forwards == {"prefill": 2, "mixed": 0, "decode": 12}
    # 10 ms a step, 1 ms a decode token, 0.1 ms a prefill token.
    assert found.time_ns == {"prefill": 22_000_000, "mixed": 0, "decode": 135_000_000}
    assert (found.submitted_tokens, found.num_forwards) == (35, 14)
    # Two steps end in the window, the second one at its end: 3 and 4, of 2 and 1 decode tokens.
    late = work(preempting(), (35_100_000, 58_100_000))
    assert (late.decode_tokens, late.num_forwards, late.event_time_ns) == (3, 2, 23_000_000)


def test_a_slab_takes_the_checkpoints_of_others_with_it() -> None:
    requests = [  # prompt, outputs, arrival, shared tokens, content
        (8, 3, 0.0, 4, 1), (30, 58, 0.0, 28, 1), (20, 3, 0.0, 10, 1), (24, 20, 0.0, 14, 0),
        (20, 43, 0.0, 8, 0), (14, 16, 0.02, 10, 1), (7, 3, 0.12, 4, 1), (18, 3, 0.14, 16, 1),
        (15, 15, 0.24, 10, 0),
    ]  # fmt: skip
    memory = toy_memory(
        "s2", 40, composites=2, headroom=0.3, reserve=0.08, retention=1, placement="junction"
    )
    record = play(
        [request(p, o, at=at, shared=shared, content=c) for p, o, at, shared, c in requests],
        memory,
        cap=2,
        token_budget=24,
        separate=True,
        stall_steps=100,
        waiting=hit_first(10.0),
        trace=TraceRecorder(),
    )
    assert record.trace is not None
    found = slab_losses(record.trace)
    assert found.reclaimed_slabs == record.counters["reclaimed_slabs"] == 2
    lost = [event for event in record.trace.rows("lose") if event.cause == "slab"]
    assert found.lost_checkpoints == len(lost) == 2
    assert found.of_others == 2


@pytest.mark.parametrize("organization", ["d0", "s2"])
def test_a_whole_run_of_the_paper_agrees_with_its_trace(organization: str) -> None:
    memory = falcon_memory(organization, "b63", pinning="k2")
    record = play_falcon(falcon_workload(42000), memory, trace=TraceRecorder())
    assert record.trace is not None
    assert all(count.agrees for count in counts(record.trace, summarize(record)))
    assert requests_agree(record.trace, record.requests).num_equal == 300
    assert checks(record.trace).labels.total() >= record.counters["refusals"] > 0


def test_checkpoints_of_one_slab_are_lost_together() -> None:
    memory = falcon_memory("s2", "b108", pinning="k2")
    record = play_falcon(falcon_workload(42001), memory, cap=109, trace=TraceRecorder())
    assert record.trace is not None
    found = slab_losses(record.trace)
    assert found.reclaimed_slabs == record.counters["reclaimed_slabs"] == 5
    assert (found.lost_checkpoints, found.of_others) == (22, 21)
