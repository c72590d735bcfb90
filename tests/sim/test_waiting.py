"""The waiting order: who is asked for admission next."""

import pytest
from toy_engine import SLOW_STEPS, request, scheduler_config, toy_memory, workload_of

from hsexp.sim.requests import SimRequest
from hsexp.sim.scheduler import SimScheduler
from hsexp.sim.steptime import StepClock
from hsexp.sim.waiting import FirstComeFirstServed, WaitingOrder


def waiting(count: int) -> list[SimRequest]:
    requests = workload_of([request(4, 1)] * count).requests
    return [SimRequest(request=each, arrival_ns=0) for each in requests]


def test_a_preempted_request_comes_before_those_that_arrived_earlier() -> None:
    first, second, preempted = waiting(3)
    order = FirstComeFirstServed()
    order.add(first)
    order.add(second)
    order.prepend(preempted)
    assert [order.pop() for _ in range(len(order))] == [preempted, first, second]


def test_looking_at_the_first_one_leaves_it_there() -> None:
    (only,) = waiting(1)
    order = FirstComeFirstServed()
    assert order.peek() is None
    order.add(only)
    assert order.peek() is order.peek() is only and len(order) == 1


class ShortestFirst(WaitingOrder):
    """By the length of the prompt, whoever came first."""

    def __init__(self) -> None:
        self._requests: list[SimRequest] = []

    def add(self, request: SimRequest) -> None:
        self._requests.append(request)
        self._requests.sort(key=lambda each: each.request.prompt_tokens)

    prepend = add

    def peek(self) -> SimRequest | None:
        return self._requests[0] if self._requests else None

    def pop(self) -> SimRequest:
        return self._requests.pop(0)

    def __len__(self) -> int:
        return len(self._requests)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(
    ("order", "finished"), [(FirstComeFirstServed, [0, 1, 2]), (ShortestFirst, [1, 2, 0])]
)
def test_the_order_alone_decides_who_is_admitted_next(
    order: type[WaitingOrder], finished: list[int], fast_forward: bool
) -> None:
    workload = workload_of([request(12, 5), request(4, 5), request(8, 5)])
    scheduler = SimScheduler(
        workload.requests,
        toy_memory("s0", 20),
        scheduler_config(token_budget=16, fast_forward=fast_forward, stall_steps=50),
        StepClock.of(SLOW_STEPS.known_step_time),
        cap=1,
        max_model_tokens=100,
    )
    scheduler._waiting = order()
    scheduler.run()
    ends = {each.request.request_id: each.finish_ns or 0 for each in scheduler.requests}
    assert sorted(ends, key=lambda request_id: ends[request_id]) == finished
