"""Random small engines and workloads whose pools are so tight that requests preempt each other."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from toy_engine import (
    ORGANIZATIONS,
    eviction_of,
    hit_first,
    play,
    request,
    talk,
    toy_memory,
    workload_of,
)

from hsexp.config.catalog import standing_options
from hsexp.measure.records import RunRecord
from hsexp.memory import HybridMemory
from hsexp.memory.policies.waiting import FIRST_COME
from hsexp.trace import TraceRecorder
from hsexp.workload import Workload, isolate


@dataclass(frozen=True, kw_only=True)
class ToyCase:
    """Arguments of `toy_memory` and `play`; its repr is all that a failure needs."""

    organization: str
    num_pages: int
    memory: dict[str, Any]
    engine: dict[str, Any]
    requests: list[dict[str, Any]]
    isolated: bool
    talks: list[list[tuple[int, int, float]]] = field(default_factory=list)
    """Conversations beside the requests: tokens of each message and answer, and its arrival."""

    def new_memory(self) -> HybridMemory:
        return toy_memory(self.organization, self.num_pages, **self.memory)

    def workload(self) -> Workload:
        turns = [
            turn for content, turns in enumerate(self.talks, 2) for turn in talk(turns, content)
        ]
        workload = workload_of([*(request(**fields) for fields in self.requests), *turns])
        return isolate(workload) if self.isolated else workload

    def run(
        self,
        memory: HybridMemory,
        *,
        fast_forward: bool = True,
        trace: TraceRecorder | None = None,
    ) -> RunRecord:
        return play(self.workload(), memory, fast_forward=fast_forward, trace=trace, **self.engine)


@st.composite
def toy_requests(draw: st.DrawFn, *, max_shared: int = 28) -> list[dict[str, Any]]:
    """Up to ten requests of two contexts; most come while others run."""
    requests = []
    at = 0.0
    for _ in range(draw(st.integers(1, 10))):
        at += draw(st.sampled_from([0.0, 0.0, 0.005, 0.02, 0.1]))
        shared = draw(st.sampled_from([0, 4, 8, 10, 14, 16, 28]))
        shared = min(shared, max_shared)
        requests.append(
            {
                "prompt": shared + draw(st.integers(1, 12)),
                "output": draw(st.one_of(st.integers(1, 4), st.integers(5, 60))),
                "at": at,
                "shared": shared,
                "content": draw(st.integers(0, 1)),
            }
        )
    return requests


@st.composite
def toy_cases(draw: st.DrawFn, *, max_shared: int = 28) -> ToyCase:
    organization = draw(st.sampled_from(ORGANIZATIONS))
    states = draw(st.sampled_from(["per_boundary", "in_place"]))
    eviction = draw(st.sampled_from(standing_options("eviction")))
    prices = [0.2, 1.0, 10.0] if eviction_of(eviction).knows_prefixes else []
    return ToyCase(
        organization=organization,
        num_pages=draw(st.integers(8, 48)),
        memory={
            "num_states": draw(st.integers(1, 8)),
            "grid": draw(st.sampled_from([4, 8, 12])),
            "composites": draw(st.integers(1, 2)),
            "headroom": draw(st.sampled_from([0.0, 0.1, 0.3, 0.5])),
            "reserve": draw(st.sampled_from([0.0, 0.08])),
            "admission_states": draw(st.sampled_from([1, 2])),
            "retention": None if states == "in_place" else draw(st.sampled_from([None, 1, 2])),
            "states": states,
            "pinning": draw(st.sampled_from([None, 1, 2])),
            "protected": draw(st.sampled_from([0.5, 1.0])),
            "price": draw(st.sampled_from([None, *prices])),
            "eviction": eviction,
            "placement": draw(st.sampled_from(["chunk_ends", "junction", "every", "dense"])),
            "reservation": draw(st.sampled_from(["full_prompt", "promised"])),
        },
        engine={
            "cap": draw(st.sampled_from([1, 2, 3, 8])),
            "token_budget": draw(st.sampled_from([14, 16, 24, 40])),
            "separate": draw(st.booleans()),
            "exact": draw(st.booleans()),
            "waiting": draw(st.sampled_from([FIRST_COME, hit_first(0.05), hit_first(10.0)])),
            "stall_steps": 100,
        },
        requests=draw(toy_requests(max_shared=max_shared)),
        isolated=draw(st.booleans()),
    )


@st.composite
def talking_cases(draw: st.DrawFn) -> ToyCase:
    """Conversations beside other requests, whose last states stay."""
    case = draw(toy_cases().filter(lambda case: case.organization != "s3"))
    tokens = st.integers(1, 12)
    return replace(
        case,
        memory=case.memory | {"leaves": "final"},
        engine=case.engine | {"exact": False},
        requests=case.requests[:4],
        talks=draw(
            st.lists(
                st.lists(
                    st.tuples(tokens, tokens, st.sampled_from([0.0, 0.02, 0.3, 1.0])),
                    min_size=1,
                    max_size=4,
                ),
                min_size=1,
                max_size=3,
            )
        ),
    )
