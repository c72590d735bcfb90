"""Any sequence of arrivals, admissions, chunks, decodes, preemptions, cancellations and resets.

After every action the memory is recounted and every cached word compared with a replay; in the end
nothing is left: no page, no pin, no reference.
"""

from typing import Any

import pytest
from cores import require_physical
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from toy_memory import (
    EVICTIONS,
    NATIVE_ORDER,
    ORGANIZATIONS,
    PLACEMENTS,
    PRICES,
    RANKED,
    RESERVATIONS,
    STATES,
    WHOLE_PAGES,
    all_free,
    check_price,
    snapshot,
    toy_memory,
)
from toy_model import ToyEngine, ToyRequest

CONTEXTS = tuple(tuple(range(100 * start, 100 * start + 24)) for start in (1, 2))
SUFFIXES = ((7,), (8, 9), (7, 7, 7, 7, 7), tuple(range(50, 59)))
NUM_PAGES = {"s0": (8, 20), "s1": (16, 40), "s2": (14, 36), "s3": (14, 36), "d0": (16, 44)}
NUM_STATES = (2, 8)
IDLE_SLAB = ("head", "tail", "like_state")
MAX_LIVE = 6

index = st.integers(min_value=0, max_value=MAX_LIVE - 1)
chunks = st.integers(min_value=1, max_value=20)


class MemoryMachine(RuleBasedStateMachine):
    """One memory, an engine on physical pages, and a client that does what it likes."""

    organization: str
    composites: int = 1

    def __init__(self) -> None:
        super().__init__()
        self.engine: ToyEngine

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        threshold = st.sampled_from([None, 1, 1, 2])
        policies: dict[str, Any] = {
            "num_states": data.draw(st.integers(*NUM_STATES), "states") * self.composites,
            "composites": self.composites,
            "grid": data.draw(st.sampled_from([8, 16]), "grid"),
            "headroom": data.draw(st.sampled_from([0.0, 0.1, 0.3]), "headroom"),
            "retention": data.draw(threshold, "retention"),
            "pinning": data.draw(threshold, "pinning"),
            "protected": data.draw(st.sampled_from([0.25, 1.0]), "protected"),
            "release_order": NATIVE_ORDER.model_copy(
                update={"idle_slab": data.draw(st.sampled_from(IDLE_SLAB), "idle slab")}
            ),
            "eviction": data.draw(st.sampled_from(sorted(EVICTIONS)), "eviction"),
            "placement": data.draw(st.sampled_from(sorted(PLACEMENTS)), "placement"),
            "states": data.draw(st.sampled_from(sorted(STATES)), "states"),
            "reservation": data.draw(st.sampled_from(sorted(RESERVATIONS)), "reservation"),
            "num_admission_states": data.draw(st.sampled_from([1, 2]), "admission states"),
        }
        if self.organization in WHOLE_PAGES:
            policies["max_final"] = data.draw(st.sampled_from([0, 1, 8]), "final leaves")
        if policies["eviction"] in RANKED:
            policies["price"] = data.draw(st.sampled_from([None, *PRICES]), "price")
        few, many = NUM_PAGES[self.organization]
        num_pages = data.draw(st.integers(few * self.composites, many * self.composites), "pages")
        if STATES[policies["states"]].refusal(retention=True, branches=False):
            policies["retention"] = None
        memory = toy_memory(self.organization, num_pages, **policies)
        self.engine = ToyEngine(memory, composites=self.composites)

    # -- choices ---------------------------------------------------------------------------------

    @property
    def running(self) -> list[ToyRequest]:
        return self.engine.running

    @property
    def waiting(self) -> list[ToyRequest]:
        return self.engine.waiting

    def chosen(self, requests: list[ToyRequest], which: int) -> ToyRequest:
        return requests[which % len(requests)]

    def idle(self) -> list[ToyRequest]:
        """Running requests without a part in the step that is being scheduled."""
        return [request for request in self.running if not request.end]

    # -- actions ---------------------------------------------------------------------------------

    @precondition(lambda self: len(self.waiting) + len(self.running) < MAX_LIVE)
    @rule(
        context=st.sampled_from(CONTEXTS),
        prefix=st.sampled_from([0, 5, 8, 16, 24]),
        suffix=st.sampled_from(SUFFIXES),
        num_output=st.integers(min_value=1, max_value=18),
        salt=st.sampled_from([None, None, None, "salt"]),
    )
    def arrive(
        self,
        context: tuple[int, ...],
        prefix: int,
        suffix: tuple[int, ...],
        num_output: int,
        salt: str | None,
    ) -> None:
        prompt = context[:prefix] + suffix
        if self.engine.memory.never_fits(len(prompt) + num_output - 1) is None:
            self.engine.arrive(prompt, num_output, salt=salt)

    @precondition(lambda self: len(self.waiting) + len(self.running) < MAX_LIVE)
    @precondition(lambda self: self.engine.finished)
    @rule(
        which=index,
        message=st.sampled_from(SUFFIXES),
        num_output=st.integers(min_value=1, max_value=18),
    )
    def answer(self, which: int, message: tuple[int, ...], num_output: int) -> None:
        """The next turn of a conversation: it extends prompt and output."""
        former = self.chosen(self.engine.finished, -1 - which)
        prompt = (*former.tokens, *message)
        if self.engine.memory.never_fits(len(prompt) + num_output - 1) is None:
            self.engine.arrive(prompt, num_output, salt=former.salt)

    @precondition(lambda self: self.waiting)
    @rule(which=index, num_tokens=chunks)
    def admit(self, which: int, num_tokens: int) -> None:
        engine, request = self.engine, self.chosen(self.waiting, which)
        before = snapshot(engine.memory)
        hit = engine.lookup(request)
        assert hit.tokens < request.num_tokens
        check_price(engine.memory, hit, engine.memory.admission_need(hit, request.num_tokens))
        refused = engine.refuses(request, hit)
        assert snapshot(engine.memory) == before
        if hit.ready and not refused:
            engine.admit(request, hit, min(num_tokens, request.num_tokens - hit.tokens))
        elif not self.running:
            # Alone and refused: making way must help in the end.
            assert not hit.ready or engine.memory.give_way()

    @precondition(lambda self: self.idle())
    @rule(which=index, num_tokens=chunks, victim=index)
    def grow(self, which: int, num_tokens: int, victim: int) -> None:
        engine, request = self.engine, self.chosen(self.idle(), which)
        num_tokens = min(num_tokens, request.num_tokens - request.computed)
        while not engine.grow(request, num_tokens):
            if len(self.running) == 1 and engine.memory.give_way(request.sequence):
                continue
            preempted = self.chosen(self.running, victim)
            engine.preempt(preempted)
            if preempted is request:
                return

    @precondition(lambda self: self.running)
    @rule(which=index)
    def preempt(self, which: int) -> None:
        self.engine.preempt(self.chosen(self.running, which))

    @precondition(lambda self: self.running or self.waiting)
    @rule(which=index)
    def cancel(self, which: int) -> None:
        self.engine.cancel(self.chosen(self.running + self.waiting, which))

    @rule(really=st.integers(min_value=0, max_value=3))
    def reset_cache(self, really: int) -> None:
        if really == 3:  # seldom, or there would be nothing to hit
            self.engine.memory.cache.reset()

    @rule(reverse=st.booleans())
    def step(self, reverse: bool) -> None:
        self.engine.step(reverse=reverse)

    @rule(token_budget=st.integers(min_value=1, max_value=40), reverse=st.booleans())
    def scheduled_step(self, token_budget: int, reverse: bool) -> None:
        """What is left of the step goes by the rules of a scheduler."""
        self.engine.schedule(token_budget)
        self.engine.check()
        self.engine.step(reverse=reverse)

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def everything_adds_up(self) -> None:
        engine = self.engine
        engine.check()
        assert engine.memory.cache.counters.preemptions == engine.num_preemptions
        assert set(engine.memory.cache.sequences) == {
            request.request_id for request in self.running
        }
        # Whoever is pinned waits.
        assert set(engine.memory.pinning.pins()) <= {r.request_id for r in self.waiting}

    def teardown(self) -> None:
        engine = self.engine
        engine.step()
        engine.run(token_budget=64)
        memory = engine.memory
        assert all_free(memory)
        assert memory.pinning.num_pins == 0 and not memory.cache.sequences
        for pool in memory.cache.pools:
            assert sum(pool.refs) == 0
        memory.cache.reset()
        assert len(memory.cache.block_index) == len(memory.cache.checkpoint_index) == 0
        for pool in memory.cache.pools:
            assert not any(pool.entries)
        engine.check()


@pytest.mark.parametrize("composites", [1, 3])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_no_sequence_of_actions_breaks_the_memory(organization: str, composites: int) -> None:
    require_physical(organization)
    machine = type(
        f"{organization.upper()}Machine",
        (MemoryMachine,),
        {"organization": organization, "composites": composites},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80 // composites,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
