"""Pools and slabs replayed from a trace are those of the memory, at every step."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import falcon_memory, falcon_workload, play, play_falcon, request, toy_memory

from hsexp.measure.records import RunRecord
from hsexp.memory import HybridMemory
from hsexp.memory.checkpoint import Slab
from hsexp.memory.observer import Observer
from hsexp.trace import Trace, TraceError, TraceRecorder
from hsexp.trace.pools import MOVES, PoolReplay, at_each_step, free_pages_agree
from hsexp.trace.schema import SCHEMA


class Photographed(TraceRecorder):
    """A recorder that also looks at the pools themselves, whenever nothing is half done."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[Any]] = {}
        """By number of the event that follows."""

    def start(self, memory: HybridMemory) -> None:
        super().start(memory)
        self.memory = memory

    def finish(self) -> pa.Table:
        self._look()
        return super().finish()

    def _look(self) -> None:
        pools = self.memory.cache.pools
        self.seen[len(self._rows)] = [
            [(pool.num_free, pool.num_cached, list(pool.refs)) for pool in pools],
            sorted(
                (slab.page, slot, state.pages[0])
                for pool in pools
                for slab in pool.entries
                if isinstance(slab, Slab)
                for slot, state in enumerate(slab.slots)
                if state is not None
            ),
        ]


def _looking_first(name: str) -> Any:
    def method(self: Photographed, *args: Any, **kwargs: Any) -> None:
        self._look()
        getattr(TraceRecorder, name)(self, *args, **kwargs)

    return method


for _name in ("on_enter", "on_lookup", "on_refuse", "on_short", "on_adopt", "on_release"):
    assert hasattr(Observer, _name)
    setattr(Photographed, _name, _looking_first(_name))


def look(replay: PoolReplay) -> list[Any]:
    """The same picture of a replay."""
    pools = range(len(replay.memory.pools))
    slabs = {} if replay.slabs is None else replay.slabs.states
    return [
        [(replay.num_free[i], replay.count(i)["cached"], replay.refs[i]) for i in pools],
        sorted(
            (slab, slot, state) for slab, states in slabs.items() for slot, state in states.items()
        ),
    ]


@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_the_replayed_pools_are_those_of_the_memory(case: ToyCase) -> None:
    recorder = Photographed()
    trace = case.run(case.new_memory(), trace=recorder).trace
    assert trace is not None
    replay = PoolReplay(trace.memory)
    kinds = trace.table["kind"].to_pylist()
    rows = {event.seq: event for event in trace.rows(*MOVES)}
    for seq in range(len(kinds)):
        if seq in recorder.seen:
            assert look(replay) == recorder.seen[seq]
        if seq in rows:
            replay.apply(rows[seq])
        for pool, spec in enumerate(trace.memory.pools):
            owners = Counter(replay.owner(pool, page) for page in range(1, spec.num_pages))
            counted = replay.count(pool)
            assert {owner: number for owner, number in counted.items() if number} == owners
    agreement = free_pages_agree(trace)
    assert agreement.num_equal == agreement.num_all


def step_sums(trace: Trace) -> dict[str, int]:
    """The sums of `hsexp.memory.sums.StepSums`, from a trace."""
    pools, sums = trace.memory.pools, Counter[str]()
    for num_steps, replay in at_each_step(trace):
        if len(pools) > 1:
            free = replay.num_free
            is_short = 0 in free
            stranded = sum(n * pool.page_bytes for n, pool in zip(free, pools, strict=True))
            sums["stranded_byte_steps"] += num_steps * stranded * is_short
            usable = sum((pool.num_pages - 1) * pool.page_bytes for pool in pools)
            sums["pool_byte_steps"] += num_steps * usable
        if replay.slabs is not None:
            sums["used_slot_steps"] += num_steps * replay.slabs.num_used
            num_slots = sum(replay.slabs.by_used) * replay.slabs.num_slots
            sums["slab_slot_steps"] += num_steps * num_slots
    return {name: total for name, total in sums.items() if total or name == "stranded_byte_steps"}


def counted(record: RunRecord) -> dict[str, Any]:
    """The same sums, as the scheduler counted them."""
    names = ("stranded_byte_steps", "pool_byte_steps", "used_slot_steps", "slab_slot_steps")
    return {name: record.counters[name] for name in names if name in record.counters}


@given(toy_cases())
@settings(max_examples=200, deadline=None)
def test_pools_and_slabs_are_seen_at_every_step_as_the_scheduler_saw_them(case: ToyCase) -> None:
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.trace is not None
    assert step_sums(record.trace) == counted(record)
    seen = sum(num_steps for num_steps, _ in at_each_step(record.trace))
    assert seen == record.steps["num_steps"].sum()


@pytest.mark.parametrize("organization", ["d0", "s2"])
def test_a_whole_run_of_the_paper_is_seen_as_the_scheduler_saw_it(organization: str) -> None:
    memory = falcon_memory(organization, "b63", pinning="k2")
    record = play_falcon(falcon_workload(42000), memory, trace=TraceRecorder())
    assert record.trace is not None
    assert record.counters["refusals"] and step_sums(record.trace) == counted(record)
    agreement = free_pages_agree(record.trace)
    assert agreement.num_equal == agreement.num_all > 100


def test_a_replay_of_one_request_has_the_owner_of_each_page() -> None:
    """A prompt of 9 tokens and 4 outputs, on a grid of 4: chunks of 8 and 1, then three decodes.

    The state at 8 is read by the step that writes the next one, and is cached after it.
    """
    trace = play([request(9, 4)], toy_memory("s2", 20), trace=TraceRecorder()).trace
    assert trace is not None
    seen = []
    for num_steps, replay in at_each_step(trace):
        counted = {owner: number for owner, number in replay.count(0).items() if number}
        assert replay.slabs is not None
        seen.append((num_steps, counted, list(replay.slabs.by_used)))
    last = {"attention": 3, "state": 3, "slab": 1, "cached": 3, "free": 10}
    assert seen == [
        (1, {"attention": 2, "state": 3, "slab": 1, "free": 14}, [0, 1, 0, 0, 0]),
        (1, {"attention": 3, "state": 6, "slab": 1, "free": 10}, [0, 0, 1, 0, 0]),
        (2, last, [0, 0, 1, 0, 0]),
        (1, last, [0, 0, 1, 0, 0]),  # publishes the block and the state at 12
    ]


TAKEN = {"kind": "take", "step": 1, "pool": 0, "use": "attention", "pages": [3]}
PUBLISHED = {"kind": "publish", "step": 1, "entry": "attention", "keys": [7], "pages": [3]}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([TAKEN, TAKEN], "page 3 of pool 0 is taken, and is attention already"),
        ([TAKEN, TAKEN | {"kind": "free"}, TAKEN | {"kind": "free"}], "is freed, and is not held"),
        ([TAKEN | {"kind": "hold"}], "page 3 of pool 0 is held, and was never taken"),
        ([TAKEN, PUBLISHED, PUBLISHED], "page 3 of pool 0 is published twice"),
        ([TAKEN, PUBLISHED | {"kind": "lose", "pool": 0}], "is lost, and was never published"),
    ],
)
def test_events_that_contradict_each_other_are_refused(
    events: list[dict[str, Any]], message: str
) -> None:
    start = play([request(9, 4)], toy_memory("s2", 20), trace=TraceRecorder()).trace
    assert start is not None
    rows = [
        start.table.to_pylist()[0],
        *events,
        {"kind": "end", "step": 1, "count": len(events) + 1},
    ]
    rows[-1] |= {"dropped": 0, "write_errors": 0}
    table = pa.Table.from_pylist(
        [row | {"seq": seq} for seq, row in enumerate(rows)], schema=SCHEMA
    )
    trace = Trace(table)
    replay = PoolReplay(trace.memory)
    with pytest.raises(TraceError, match=message):
        for event in trace.rows(*MOVES):
            replay.apply(event)
