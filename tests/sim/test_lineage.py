"""A lineage names every event that changed the depth of a waiting request, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from toy_cases import ToyCase, toy_cases
from toy_engine import play, request, toy_memory

from hsexp.trace import Trace, TraceError, TraceRecorder
from hsexp.trace.episodes import DEPTH_CLASSES, Episode, episodes
from hsexp.trace.lineage import Change, Lineage, PageLife, lineages
from hsexp.trace.supply import Depths, Supply


def traced(case: ToyCase) -> Trace:
    record = case.run(case.new_memory(), trace=TraceRecorder())
    assert record.trace is not None
    return record.trace


def joints(trace: Trace) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Place and joint depth after every event of each episode's wait, all asked anew."""
    supply, waiting = Supply(trace.memory), dict[int, Any]()
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace.rows("enter", "publish", "lose", "adopt"):
        if event.kind == "enter":
            waiting[event.request] = event
            found[event.request, event.episode] = []
        elif event.kind == "adopt":
            del waiting[event.request]
        else:
            supply.apply(event)
        for enter in waiting.values():
            depths = supply.depths(enter.keys, enter.boundary_keys, "M1", step=event.step)
            found[enter.request, enter.episode].append((event.seq, depths.joint))
    return found


@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_a_lineage_has_the_depth_of_its_episode_after_every_event(case: ToyCase) -> None:
    trace = traced(case)
    asked = joints(trace)
    for lineage in lineages(trace):
        episode = lineage.episode
        for seq, joint in asked[episode.request, episode.episode]:
            past = [change.after for change in lineage.changes if change.seq <= seq]
            assert (past or [episode.entry.joint])[-1] == joint


@given(toy_cases())
@settings(max_examples=150, deadline=None)
def test_every_lineage_ends_where_the_scheduler_did(case: ToyCase) -> None:
    trace = traced(case)
    found = lineages(trace)
    assert [lineage.episode for lineage in found] == episodes(trace)
    assert all(lineage.is_replayed for lineage in found)
    assert all(lineage.end == lineage.episode.adopted_tokens for lineage in found)


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_a_change_names_the_life_and_the_producer_of_its_page(case: ToyCase) -> None:
    trace = traced(case)
    takes, publications = trace.rows("take"), trace.rows("publish")
    for lineage in lineages(trace):
        for change in lineage.changes:
            pool, page, life = change.page
            before = [take for take in takes if take.seq < change.seq and take.pool == pool]
            assert sum(page in take.pages for take in before) == life
            ours = [
                event.request
                for event in publications
                if event.seq <= change.seq and event.entry == change.entry and page in event.pages
            ]
            assert ours[-1] == change.producer


@given(toy_cases())
@settings(max_examples=100, deadline=None)
def test_an_episode_got_shallower_by_losses_that_somebody_caused(case: ToyCase) -> None:
    for lineage in lineages(traced(case)):
        if lineage.episode.depth_class != "shallower":
            continue
        losses = lineage.losses
        assert losses
        # What is not lost to an allocation was withdrawn by a request that had published it ahead,
        # or freed for the last request that has no room.
        others = [loss for loss in losses if loss not in lineage.lost_to_others]
        assert {loss.cause for loss in others} <= {"withdrawn", "reset"}


def test_a_loss_names_its_page_its_producer_and_for_whom_it_was_lost() -> None:
    """Seven pages of S0, each for 4 tokens or a state. The first request leaves blocks and states
    of 8 shared tokens. The second one takes the deeper state's page while the third one waits."""
    record = play(
        [
            request(9, 2, at=0.0, shared=8),
            request(12, 4, at=0.0),
            request(9, 2, at=0.02, shared=8),
        ],
        toy_memory("s0", 7),
        cap=1,
        trace=TraceRecorder(),
    )
    assert record.trace is not None
    last = lineages(record.trace)[-1]
    assert last.episode.id == "2"
    assert last.episode.depth_class == "shallower"
    assert (last.episode.entry.joint, last.end) == (8, 0)
    assert [change.kind for change in last.changes] == ["lose"]
    assert last.changes == last.lost_to_others
    (loss,) = last.changes
    assert (loss.entry, loss.page) == ("state", PageLife(pool=0, page=3, life=1))
    assert (loss.producer, loss.request, loss.act, loss.cause) == (0, 1, "extend", "reassigned")
    assert last.beneficiary(loss) == "other"


def depths(joint: int, recurrent: int | None = None) -> Depths:
    return Depths(attention=joint, recurrent=joint if recurrent is None else recurrent, joint=joint)


def episode(entry: int, adopted: int) -> Episode:
    return Episode(
        request=3,
        id="3",
        episode=0,
        entry_step=0,
        entry=depths(entry),
        adopted_step=9,
        adopted_tokens=adopted,
        computed=depths(adopted),
        visible=depths(adopted, recurrent=adopted + 512),
    )


def test_five_classes_hold_every_pair_of_depths() -> None:
    pairs = [(0, 0), (512, 512), (0, 512), (512, 1024), (1024, 512)]
    assert tuple(episode(*pair).depth_class for pair in pairs) == DEPTH_CLASSES
    assert episode(512, 0).depth_class == "shallower"


def test_the_two_masks_bracket_the_gap_below_the_recurrent_depth() -> None:
    assert episode(512, 512).gap_r == (0, 512)


def loss(before: int, after: int, *, request: int | None = 7) -> Change:
    return Change(
        seq=5,
        step=4,
        kind="lose",
        entry="state",
        before=before,
        after=after,
        page=PageLife(0, 4, 1),
        producer=1,
        request=request,
        act="extend",
        cause="reassigned",
    )


def test_a_lineage_with_a_hole_is_not_replayed() -> None:
    whole = Lineage(episode=episode(1024, 0), changes=(loss(1024, 512), loss(512, 0)))
    assert whole.is_replayed
    for changes in (
        (),
        whole.changes[:1],
        whole.changes[1:],
        (loss(1024, 512), replace(loss(512, 0), kind="publish")),
        (loss(1024, 1024), loss(1024, 0)),
        (*whole.changes, loss(0, 512)),
    ):
        assert not Lineage(episode=episode(1024, 0), changes=changes).is_replayed


@pytest.mark.parametrize(("request_id", "whom"), [(3, "own"), (7, "other"), (None, "none")])
def test_a_loss_is_for_the_waiting_request_for_another_one_or_for_nobody(
    request_id: int | None, whom: str
) -> None:
    lost = loss(512, 0, request=request_id)
    lineage = Lineage(episode=episode(512, 0), changes=(lost,))
    assert lineage.beneficiary(lost) == whom
    assert lineage.lost_to_others == ((lost,) if whom == "other" else ())


def test_a_page_that_nobody_took_cannot_be_published() -> None:
    record = play([request(9, 5)], toy_memory("s2", 40), trace=TraceRecorder())
    assert record.trace is not None
    table = record.trace.table
    kinds = ["note" if kind == "take" else kind for kind in table["kind"].to_pylist()]
    forged = table.set_column(table.column_names.index("kind"), "kind", [kinds])
    with pytest.raises(TraceError, match="has a key without a take"):
        lineages(Trace(forged))
