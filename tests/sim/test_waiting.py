"""The waiting order: who is asked for admission next."""

from collections.abc import Hashable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import (
    SLOW_STEPS,
    falcon_memory,
    falcon_workload,
    hit_first,
    play,
    play_falcon,
    request,
    scheduler_config,
    toy_memory,
    workload_of,
)

from hsexp.memory.policies.waiting import FIRST_COME
from hsexp.memory.policies.waiting.first_come import FirstComeFirstServed
from hsexp.memory.policies.waiting.hit_first import DeepestHitFirst
from hsexp.memory.policies.waiting.order import WaitingOrder
from hsexp.sim.requests import SimRequest
from hsexp.sim.scheduler import SimScheduler
from hsexp.sim.steptime import StepClock


class ToyProspects:
    """Requests are names; the test says when each arrived and what it would hit."""

    def __init__(self, **arrivals_s: float) -> None:
        self.arrivals_s = arrivals_s
        self.hits: dict[str, int] = {}
        self.num_looks = 0

    def arrival_s(self, request: str) -> float:
        return self.arrivals_s[request]

    def hit_tokens(self, request: str) -> int:
        self.num_looks += 1
        return self.hits.get(request, 0)

    @property
    def stamp(self) -> Hashable:
        return tuple(sorted(self.hits.items()))


def in_order(order: WaitingOrder[Any]) -> list[Any]:
    """Everyone, admitted one after the other."""
    admitted = []
    while (head := order.peek()) is not None:
        assert order.pop() == head
        admitted.append(head)
    return admitted


def deepest_hit_first(prospects: ToyProspects, *, window_s: float) -> DeepestHitFirst[str]:
    order: DeepestHitFirst[str] = DeepestHitFirst(prospects, window_s=window_s)
    for name in prospects.arrivals_s:
        order.add(name)
    return order


# -- first come, first served ----------------------------------------------------------------------


def test_a_preempted_request_comes_before_those_that_arrived_earlier() -> None:
    order: FirstComeFirstServed[str] = FirstComeFirstServed()
    order.add("first")
    order.add("second")
    order.prepend("preempted")
    assert [order.pop() for _ in range(len(order))] == ["preempted", "first", "second"]


@pytest.mark.parametrize("waiting", [FIRST_COME, hit_first(1.0)])
def test_looking_at_the_first_one_leaves_it_there(waiting: Any) -> None:
    order = waiting.build(ToyProspects(only=0.0))
    assert order.peek() is None
    order.add("only")
    assert order.peek() is order.peek() == "only" and len(order) == 1


@pytest.mark.parametrize("waiting", [FIRST_COME, hit_first(1.0)])
def test_a_cancelled_request_is_not_asked_any_more(waiting: Any) -> None:
    order = waiting.build(ToyProspects(first=0.0, second=0.0, third=0.0))
    for name in ("first", "second", "third"):
        order.add(name)
    order.prepend("preempted")
    assert list(order) == ["preempted", "first", "second", "third"]
    assert order.peek() == "preempted"
    order.remove("preempted")
    assert order.peek() == "first"
    order.remove("first")
    order.remove("third")
    assert len(order) == 1 and in_order(order) == ["second"]


# -- hit first -------------------------------------------------------------------------------------


def test_the_deepest_hit_within_the_window_goes_first() -> None:
    """The picture at the head of the module."""
    prospects = ToyProspects(a=0.0, b=3.0, c=8.0, d=12.0)
    prospects.hits = {"b": 512, "c": 1024, "d": 2048}
    order = deepest_hit_first(prospects, window_s=10.0)
    assert in_order(order) == ["c", "b", "a", "d"]


def test_a_window_ends_exactly_as_long_after_the_head() -> None:
    prospects = ToyProspects(a=1.0, b=3.0, c=3.5)
    prospects.hits = {"b": 512, "c": 1024}
    assert in_order(deepest_hit_first(prospects, window_s=2.0)) == ["b", "a", "c"]


def test_equal_hits_go_in_the_order_of_arrival() -> None:
    prospects = ToyProspects(a=0.0, b=1.0, c=2.0, d=3.0)
    prospects.hits = {"b": 512, "c": 512}
    assert in_order(deepest_hit_first(prospects, window_s=10.0)) == ["b", "c", "a", "d"]


def test_a_preempted_request_is_never_passed_over() -> None:
    prospects = ToyProspects(hit=0.0)
    prospects.hits = {"hit": 4096}
    order = deepest_hit_first(prospects, window_s=10.0)
    assert order.peek() == "hit"
    order.prepend("preempted first")
    order.prepend("preempted last")
    assert in_order(order) == ["preempted last", "preempted first", "hit"]


def test_an_admission_that_loses_the_hit_admits_the_one_that_was_asked() -> None:
    prospects = ToyProspects(a=0.0, b=0.0)
    prospects.hits = {"b": 512}
    order = deepest_hit_first(prospects, window_s=1.0)
    assert order.peek() == "b"
    prospects.hits = {"a": 512}  # b's pages were taken for b itself
    assert order.pop() == "b"
    assert list(order) == ["a"]


def test_hits_are_looked_up_again_only_when_the_cache_or_the_queue_has_changed() -> None:
    prospects = ToyProspects(a=0.0, b=0.0, c=0.0)
    order = deepest_hit_first(prospects, window_s=1.0)
    assert order.peek() == "a"
    assert order.peek() == "a"
    assert prospects.num_looks == 3
    prospects.hits = {"c": 512}
    assert order.peek() == "c"
    assert prospects.num_looks == 6
    order.remove("c")
    assert order.peek() == "a"
    assert prospects.num_looks == 8


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=30),
    window_s=st.sampled_from([0.5, 1.0, 2.0, 8.0]),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_nobody_is_passed_over_by_one_that_arrived_more_than_a_window_later(
    gaps: list[float], window_s: float, data: st.DataObject
) -> None:
    """Requests arrive and are admitted in turns, and the cache changes in between."""
    hits_of_all = st.lists(st.integers(0, 3), min_size=len(gaps), max_size=len(gaps))
    caches = [data.draw(hits_of_all) for _ in range(3)]
    arrivals_s = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    prospects = ToyProspects(**{str(i): at for i, at in enumerate(arrivals_s)})
    order: DeepestHitFirst[str] = DeepestHitFirst(prospects, window_s=window_s)
    arriving, waiting = [str(i) for i in range(len(gaps))], list[str]()
    while arriving or waiting:
        if arriving and (not waiting or data.draw(st.booleans())):
            order.add(arriving[0])
            waiting.append(arriving.pop(0))
            continue
        hits = data.draw(st.sampled_from(caches))
        prospects.hits = {str(i): hit for i, hit in enumerate(hits)}
        head = order.peek()
        assert head is not None and order.pop() == head
        waiting.remove(head)
        for passed in waiting:
            assert prospects.arrivals_s[head] <= prospects.arrivals_s[passed] + window_s
        latest_s = min(prospects.arrivals_s[name] for name in (*waiting, head)) + window_s
        within = [name for name in waiting if prospects.arrivals_s[name] <= latest_s]
        assert all(prospects.hits[head] >= prospects.hits[name] for name in within)
    assert len(order) == 0


# -- in the simulator ------------------------------------------------------------------------------


class ShortestFirst(WaitingOrder[SimRequest]):
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

    def remove(self, request: SimRequest) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[SimRequest]:
        return iter(self._requests)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(
    ("order", "finished"), [(FirstComeFirstServed, [0, 1, 2]), (ShortestFirst, [1, 2, 0])]
)
def test_the_order_alone_decides_who_is_admitted_next(
    order: type[WaitingOrder[SimRequest]], finished: list[int], fast_forward: bool
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


@pytest.mark.parametrize(
    ("window_s", "order"),
    # Requests 1, 2 and 3 come while 0 runs alone, and 0 leaves the content that 2 and 3 share.
    [(0.1, [0, 2, 1, 3]), (10.0, [0, 2, 3, 1])],
)
def test_a_resident_prefix_is_served_before_the_head_if_it_arrived_within_the_window(
    window_s: float, order: list[int]
) -> None:
    requests = [
        request(13, 60, shared=12),
        request(13, 2, at=0.01, shared=12, content=1),
        request(13, 2, at=0.02, shared=12),
        request(13, 2, at=0.5, shared=12),
    ]
    record = play(requests, toy_memory("s2", 200), cap=1, waiting=hit_first(window_s))
    table = record.requests.sort_values("first_scheduled_s")
    assert table["request_id"].tolist() == order
    assert table.set_index("request_id")["adopted_tokens"].to_dict() == {0: 0, 1: 0, 2: 12, 3: 12}


def test_hit_first_adopts_more_tokens_than_first_come_under_load() -> None:
    workload = falcon_workload(1, rate=4.5, num_requests=120)
    adopted = [
        play_falcon(workload, falcon_memory("s2", "b63"), waiting=waiting)
        .requests["adopted_tokens"]
        .sum()
        for waiting in (FIRST_COME, hit_first(10.0))
    ]
    assert adopted[1] > 1.2 * adopted[0]
