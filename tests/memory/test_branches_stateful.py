"""Any sequence of forks, beams, leaves, cancellations and copies, tenants in every order.

After every action the memory is recounted, the rule of `Ownership` has to agree with it reference
by reference and copy by copy, and every branch has to hold the words of a replay of its own tokens.
"""

import pytest
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
from toy_branches import BranchEngine, ToyBranch, next_token
from toy_memory import WHOLE_PAGES, all_free, snapshot, toy_memory

CONTEXTS = tuple(tuple(range(100 * start, 100 * start + 21)) for start in (1, 2))
TENANTS = (None, "one", "two")
NUM_PAGES = {"s0": (10, 30), "s1": (24, 60), "s2": (20, 50), "d0": (20, 60)}
NUM_STATES = (4, 14)
MAX_LIVE = 7

index = st.integers(min_value=0, max_value=MAX_LIVE - 1)
forced = st.integers(min_value=1000, max_value=1003)
"""Few tokens, so that branches meet again in equal continuations."""


class BranchMachine(RuleBasedStateMachine):
    """One memory, an engine on physical pages, and searches that do what they like."""

    organization: str

    def __init__(self) -> None:
        super().__init__()
        self.engine: BranchEngine

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.engine = BranchEngine(
            toy_memory(
                self.organization,
                data.draw(st.integers(*NUM_PAGES[self.organization]), "pages"),
                num_states=data.draw(st.integers(*NUM_STATES), "states"),
                grid=data.draw(st.sampled_from([8, 16]), "grid"),
                headroom=data.draw(st.sampled_from([0.0, 0.2]), "headroom"),
                max_leaves=data.draw(st.sampled_from([0, 1, 3]), "leaves"),
                max_drafts=data.draw(st.sampled_from([0, 1, 3]), "drafts"),
            )
        )
        self.start(CONTEXTS[0], data.draw(st.integers(1, 21), "first prompt"), None, True)

    # -- choices ---------------------------------------------------------------------------------

    def idle(self) -> list[ToyBranch]:
        """Branches without a part in the step that is being scheduled."""
        return [branch for branch in self.engine.branches if not branch.end]

    def computed(self) -> list[ToyBranch]:
        """Of these, what can be forked or kept."""
        return [branch for branch in self.idle() if branch.computed]

    def writable(self) -> list[ToyBranch]:
        copying = {name for name, _ in self.engine.in_flight.values()}
        return [branch for branch in self.idle() if branch.name not in copying]

    def sharing(self) -> list[ToyBranch]:
        """Branches whose next token copies something."""
        return [branch for branch in self.writable() if self.engine.owes(branch)]

    # -- actions ---------------------------------------------------------------------------------

    @precondition(lambda self: len(self.engine.branches) < MAX_LIVE)
    @rule(
        context=st.sampled_from(CONTEXTS),
        num_tokens=st.integers(min_value=1, max_value=21),
        salt=st.sampled_from(TENANTS),
        at_once=st.booleans(),
    )
    def start(
        self, context: tuple[int, ...], num_tokens: int, salt: str | None, at_once: bool
    ) -> None:
        branch = self.engine.start(context[:num_tokens], salt=salt, must_fit=False)
        if branch is not None:
            assert self.engine.grow(branch, num_tokens), "admission counts the prompt"
        if at_once:
            self.engine.step()

    @precondition(lambda self: self.writable())
    @rule(which=index, num_tokens=st.sampled_from([1, 1, 1, 2, 5, 9]), victim=index)
    def grow(self, which: int, num_tokens: int, victim: int) -> None:
        branch = self.writable()[which % len(self.writable())]
        while not self.engine.grow(branch, num_tokens):
            other = self.engine.branches[victim % len(self.engine.branches)]
            self.engine.preempt(other)
            if other is branch:
                return

    @precondition(lambda self: self.writable())
    @rule(which=index, num_right=st.integers(min_value=0, max_value=3), at_once=st.booleans())
    def speculate(self, which: int, num_right: int, at_once: bool) -> None:
        """Three drafts, the first ones being what the model will say."""
        branch = self.writable()[which % len(self.writable())]
        said = list(branch.tokens)
        while len(said) < len(branch.tokens) + num_right:
            said.append(next_token(said))
        drafts = [*said[len(branch.tokens) :], *[5] * (3 - num_right)]
        self.engine.speculate(branch, drafts)
        if at_once:
            self.engine.check()
            self.engine.step()

    @rule(reverse=st.booleans(), num_steps=st.integers(min_value=1, max_value=3))
    def grow_all(self, reverse: bool, num_steps: int) -> None:
        """Several writers at once, in or against order."""
        for _ in range(num_steps):
            branches = self.writable()
            for branch in reversed(branches) if reverse else branches:
                self.engine.grow(branch)
            self.engine.check()
            self.engine.step(reverse=reverse)

    @precondition(lambda self: self.computed() and len(self.engine.branches) < MAX_LIVE)
    @rule(
        which=index,
        tokens=st.lists(forced, min_size=1, max_size=3),
        how=st.sampled_from(["share", "share", "own", "copy"]),
    )
    def fork(self, which: int, tokens: list[int], how: str) -> None:
        parent = self.computed()[which % len(self.computed())]
        for token in tokens[: MAX_LIVE - len(self.engine.branches)]:
            before = snapshot(self.engine.memory)
            child = self.engine.fork(parent, token, must_fit=False, by_copying=how == "copy")
            if child is None:
                assert snapshot(self.engine.memory) == before
            elif how == "own":
                self.engine.make_private(child)

    @precondition(lambda self: len(self.computed()) > 1)
    @rule(parents=st.lists(index, min_size=2, max_size=3), token=forced)
    def reorder(self, parents: list[int], token: int) -> None:
        """The idle branches become what these of them were: more of one, none of another."""
        beams = self.computed()
        chosen = [beams[parent % len(beams)] for parent in parents]
        for place, parent in enumerate(chosen):
            if parent in chosen[:place] and len(self.engine.branches) < MAX_LIVE:
                self.engine.fork(parent, token + place, must_fit=False)
        for beam in beams:
            if beam not in chosen:
                self.engine.drop(beam)

    @precondition(lambda self: self.engine.branches)
    @rule(which=index)
    def cancel(self, which: int) -> None:
        self.engine.drop(self.engine.branches[which % len(self.engine.branches)])

    @precondition(lambda self: self.computed())
    @rule(
        which=index,
        goes_on=st.booleans(),
        tokens=st.lists(forced, max_size=3),
        grow=st.booleans(),
    )
    def keep_leaf(self, which: int, goes_on: bool, tokens: list[int], grow: bool) -> None:
        """A step of a search whose beams are requests of their own."""
        engine, branch = self.engine, self.computed()[which % len(self.computed())]
        known, salt = tuple(branch.tokens[: branch.computed]), branch.salt
        if goes_on:
            engine.keep_leaf(branch)
        else:
            engine.drop(branch, leaf=True)
        if tokens:
            engine.step()
        for token in tokens[: MAX_LIVE - len(engine.branches)]:
            engine.check()
            child = engine.start_from_leaf(known, token, salt=salt)
            if child is not None and grow:
                engine.grow(child)

    @precondition(lambda self: self.engine.leaves and len(self.engine.branches) < MAX_LIVE)
    @rule(which=st.integers(min_value=0, max_value=9), token=forced)
    def start_from_leaf(self, which: int, token: int) -> None:
        leaves = self.engine.leaves[-4:]
        tokens, salt = leaves[which % len(leaves)]
        self.engine.start_from_leaf(tokens, token, salt=salt)

    @precondition(lambda self: self.sharing())
    @rule(which=index)
    def begin_copy(self, which: int) -> None:
        self.engine.begin_copy(self.sharing()[which % len(self.sharing())])

    @precondition(lambda self: self.engine.in_flight)
    @rule(which=index)
    def complete_copy(self, which: int) -> None:
        copies = list(self.engine.in_flight)
        self.engine.complete_copy(copies[which % len(copies)])

    @rule(really=st.integers(min_value=0, max_value=4))
    def reset_cache(self, really: int) -> None:
        if really == 4:  # seldom, or there would be nothing to hit
            self.engine.memory.cache.reset()

    @rule(reverse=st.booleans())
    def step(self, reverse: bool) -> None:
        self.engine.step(reverse=reverse)

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def everything_adds_up(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        engine = self.engine
        engine.step()
        for branch in list(engine.branches):
            engine.drop(branch)
        for copy in list(engine.in_flight):
            engine.complete_copy(copy)
        engine.check()
        assert all_free(engine.memory) and not engine.memory.cache.sequences
        assert engine.num_copies == engine.rule.num_due == engine.memory.branching.copies.num_done
        engine.memory.cache.reset()
        for pool in engine.memory.cache.pools:
            assert not any(pool.entries) and sum(pool.refs) == 0


@pytest.mark.parametrize("organization", WHOLE_PAGES)
def test_no_sequence_of_forks_breaks_a_branch(organization: str) -> None:
    machine = type(
        f"{organization.upper()}Branches", (BranchMachine,), {"organization": organization}
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(__import__("os").environ.get("EX", "60")),
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
