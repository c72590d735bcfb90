"""What an observer sees of a countable scenario, and that nobody looking costs nothing."""

import sys
from collections.abc import Hashable, Sequence
from typing import Any

from toy_memory import (
    admit,
    compute,
    free_last,
    leave_cached,
    run_steps,
    snapshot,
    toy_memory,
    toy_sequence,
)

from hsexp.memory import Hit, HybridMemory, Observer, Refusal, SequenceMemory, observer
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.observer import Act, LossCause
from hsexp.memory.pool import PageUse


class Recorder(Observer):
    """Every event as a tuple of plain values."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.act: tuple[int | str | None, Act] = (None, "reset")

    def on_enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        self.events.append(("enter", sequence.request_id, num_tokens))

    def on_lookup(self, sequence: SequenceMemory, hit: Hit) -> None:
        self.events.append(("lookup", sequence.request_id, hit.tokens))

    def on_refuse(self, sequence: SequenceMemory, refusal: Refusal, need: Sequence[int]) -> None:
        self.events.append(("refuse", sequence.request_id, refusal.pool, *need))

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        self.events.append(("adopt", sequence.request_id, hit.tokens))

    def on_act(self, request_id: int | str | None, act: Act) -> None:
        self.act = (request_id, act)

    def on_take(self, pool: int, pages: Sequence[int], use: PageUse) -> None:
        self.events.append(("take", *self.act, use, *pages))

    def on_hold(self, pool: int, pages: Sequence[int]) -> None:
        self.events.append(("hold", *self.act, *pages))

    def on_free(self, pool: int, pages: Sequence[int]) -> None:
        self.events.append(("free", *self.act, *pages))

    def on_short(self, sequence: SequenceMemory, need: Sequence[int]) -> None:
        self.events.append(("short", sequence.request_id, *need))

    def on_publish_blocks(
        self,
        sequence: SequenceMemory,
        first: int,
        keys: Sequence[Hashable],
        pages: Sequence[int],
        *,
        ahead: bool,
    ) -> None:
        self.events.append(("publish", sequence.request_id, "attention", first, *pages))

    def on_publish_state(self, sequence: SequenceMemory, state: Checkpoint, *, ahead: bool) -> None:
        self.events.append(("publish", sequence.request_id, "checkpoint", state.tokens))

    def on_lose_blocks(self, pool: int, pages: Sequence[int], cause: LossCause) -> None:
        self.events += [("lose", "attention", page, cause) for page in pages]

    def on_lose_state(self, state: Checkpoint, cause: LossCause) -> None:
        self.events.append(("lose", "checkpoint", state.tokens, cause))

    def on_keep(self, request_id: int | str, state: Checkpoint, reason: str) -> None:
        self.events.append(("keep", request_id, state.tokens, reason))

    def on_release(self, sequence: SequenceMemory, num_tokens: int, *, preempted: bool) -> None:
        self.events.append(("release", sequence.request_id, num_tokens, preempted))


def seen(recorder: Recorder) -> list[tuple[Any, ...]]:
    events, recorder.events = recorder.events, []
    return events


def test_the_life_of_a_request_is_seen_event_by_event() -> None:
    recorder = Recorder()
    memory = toy_memory("s0", 4, observer=recorder)

    first = toy_sequence(memory, 1, 12)
    memory.enter(first, 12)
    assert admit(memory, first, 12) == 0
    run_steps(memory, first, 8, 12)
    memory.release(first, 12)
    assert seen(recorder) == [
        ("enter", 1, 12),
        ("lookup", 1, 0),
        ("adopt", 1, 0),
        ("take", 1, "extend", "attention", 1),
        ("take", 1, "extend", "state", 2),
        ("publish", 1, "attention", 0, 1),
        ("publish", 1, "checkpoint", 8),
        ("take", 1, "extend", "attention", 3),
        ("take", 1, "extend", "state", 4),
        ("free", 1, "release", 3, 1),
        ("free", 1, "release", 4),
        ("free", 1, "release", 2),
        ("release", 1, 12, False),
    ]

    # 32 tokens: 4 blocks, one of them a hit that leaves the queue, a state, and the hit's state.
    second = toy_sequence(memory, 2, 32)
    memory.enter(second, 32)
    hit = memory.lookup(second, 32)
    assert memory.refusal(second, hit, 32, nothing_runs=True) is not None
    assert seen(recorder) == [("enter", 2, 32), ("lookup", 2, 8), ("refuse", 2, "shared", 6)]

    # Free pages from the head: 4, 3 (plain), 1 (block), 2 (state). All four are in use at 9 tokens.
    third = toy_sequence(memory, 3, 9)
    assert admit(memory, third, 9) == 8
    run_steps(memory, third, 9, 10, start=8)
    memory.preempt(third, 10)
    assert seen(recorder) == [
        ("lookup", 3, 8),
        ("hold", 3, "admit", 1),
        ("hold", 3, "admit", 2),
        ("adopt", 3, 8),
        ("take", 3, "extend", "attention", 4),
        ("take", 3, "extend", "state", 3),
        ("free", 3, "extend", 2),
        ("free", 3, "preempt", 4, 1),
        ("free", 3, "preempt", 3),
        ("release", 3, 10, True),
    ]

    # Free pages from the head: 3, 4 (plain), 2 (state of 8 tokens), 1 (their block).
    fourth = toy_sequence(memory, 4, 16, content="Y")
    assert admit(memory, fourth, 16) == 0
    run_steps(memory, fourth, 16)
    assert seen(recorder) == [
        ("lookup", 4, 0),
        ("adopt", 4, 0),
        ("take", 4, "extend", "attention", 3, 4),
        ("lose", "checkpoint", 8, "reassigned"),
        ("take", 4, "extend", "state", 2),
        ("publish", 4, "attention", 0, 3, 4),
        ("publish", 4, "checkpoint", 16),
    ]


def test_a_step_without_room_is_seen_before_anybody_is_preempted_for_it() -> None:
    recorder = Recorder()
    memory = toy_memory("s0", 4, observer=recorder)
    sequence = toy_sequence(memory, 1, 24)
    admit(memory, sequence, 24)
    run_steps(memory, sequence, 8, 16)
    seen(recorder)
    assert not memory.extend(sequence, 16, 24)
    assert seen(recorder)[-1] == ("short", 1, 2)


def test_a_loss_names_its_cause() -> None:
    recorder = Recorder()
    memory = toy_memory("s2", 60, observer=recorder)
    leave_cached(memory, 1, 16)
    taken_back = toy_sequence(memory, 2, content="Y")
    seen(recorder)

    admit(memory, taken_back, 64)
    assert seen(recorder)[1:] == [("adopt", 2, 0)]
    pool = memory.cache.attention_pool
    free_last(pool, pool.take(1))
    assert seen(recorder)[:2] == [  # the idle slab's page was the next to go
        ("lose", "checkpoint", 8, "slab"),
        ("lose", "checkpoint", 16, "slab"),
    ]
    memory.extend(taken_back, 0, 8)
    memory.preempt(taken_back, 0)
    assert [event for event in seen(recorder) if event[0] == "lose"] == [
        ("lose", "attention", 10, "withdrawn"),
        ("lose", "checkpoint", 8, "withdrawn"),
    ]
    memory.cache.reset()
    assert sorted(seen(recorder)) == [
        ("lose", "attention", 1, "reset"),
        ("lose", "attention", 6, "reset"),
    ]


def test_holds_beyond_execution_name_their_policy() -> None:
    recorder = Recorder()
    memory = toy_memory("s1", 60, retention=1, pinning=1, observer=recorder)
    memory.preempt(compute(memory, 1, 17), 17)
    assert [event for event in seen(recorder) if event[0] == "keep"] == [
        ("keep", 1, 8, "retained"),
        ("keep", 1, 16, "pinned"),
    ]


def play(memory: HybridMemory) -> None:
    """Six requests that share two prompts, in a pool that does not hold all they leave."""
    for request_id in range(6):
        sequence = toy_sequence(memory, request_id, 20, content=request_id % 2)
        hit = memory.lookup(sequence, 20)
        memory.refusal(sequence, hit, 200, nothing_runs=True)
        memory.admit(sequence, hit)
        run_steps(memory, sequence, *range(hit.tokens + 8, 25, 8), start=hit.tokens)
        if request_id % 2:
            memory.preempt(sequence, 24)
        else:
            memory.release(sequence, 24)
    memory.unpin_all()
    memory.cache.reset()


def plain(view: dict[str, Any]) -> str:
    """A snapshot without the identities of objects."""
    return str({key: view[key] for key in ("blocks", "sequences", "supply", "step")}) + str(
        [(pool["queue"], pool["refs"]) for pool in view["pools"]]
    )


def test_being_watched_changes_nothing(organization: str) -> None:
    watched, alone = (
        toy_memory(organization, 30, num_states=6, retention=1, pinning=1, observer=watcher)
        for watcher in (Recorder(), None)
    )
    play(watched)
    play(alone)
    assert plain(snapshot(watched)) == plain(snapshot(alone))
    assert watched.cache.counters == alone.cache.counters


def test_every_loss_is_counted_whatever_its_cause(organization: str) -> None:
    recorder = Recorder()
    num_pages = 14 if organization == "s0" else 30
    memory = toy_memory(
        organization, num_pages, num_states=6, retention=1, pinning=1, observer=recorder
    )
    play(memory)
    sequence = toy_sequence(memory, "withdrawn", content="Z")
    admit(memory, sequence, 64)
    memory.extend(sequence, 0, 16)
    memory.preempt(sequence, 8)
    losses = [event for event in recorder.events if event[0] == "lose"]
    assert {event[3] for event in losses} >= {"reassigned", "withdrawn", "reset"}
    kinds = [event[1] for event in losses]
    assert memory.cache.counters.lost_blocks == kinds.count("attention")
    assert memory.cache.counters.lost_checkpoints == kinds.count("checkpoint")
    assert memory.cache.num_losses == len(losses)


def test_without_an_observer_no_event_is_made(organization: str) -> None:
    called: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename == observer.__file__:
                called.append(code.co_name)

    def calls(memory: HybridMemory) -> list[str]:
        called.clear()
        sys.setprofile(note)
        try:
            play(memory)
        finally:
            sys.setprofile(None)
        return list(called)

    policies: dict[str, Any] = {"num_states": 6, "retention": 1, "pinning": 1}
    assert calls(toy_memory(organization, 30, **policies)) == []
    assert "on_take" in calls(toy_memory(organization, 30, observer=Observer(), **policies))
