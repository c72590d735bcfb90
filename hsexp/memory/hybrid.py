"""The memory of a hybrid model: joint lookup, admission, growth, publication and release.

One class serves all organizations; they differ in `Organization` (sizes) and `StateStore` (places
of states). The life of a request:

    lookup -> refusal? -> admit -> extend, extend, ... -> release (finished) or preempt
              (nothing moved)      one call a step

`extend` is called when a step is scheduled, before anything is computed: entries published by it
are usable by others from the next step on, and are withdrawn if the request is preempted or
cancelled within the step. This module depends on no clock, configuration framework or engine.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, replace

from hsexp.memory.branching.drafting import Drafting
from hsexp.memory.branching.forks import Branching
from hsexp.memory.cache import Cache
from hsexp.memory.faults import MemoryFault
from hsexp.memory.policies.admission import Admission
from hsexp.memory.policies.pinning import Pinning
from hsexp.memory.policies.placement.rule import Placement
from hsexp.memory.policies.reservation.rule import Reservation
from hsexp.memory.policies.retention import Retention
from hsexp.memory.policies.states.rule import StateRule
from hsexp.memory.recount import check_cache
from hsexp.memory.sequence import Copy, Hit, Refusal, SequenceMemory


class HybridMemory:
    """Serves requests from one cache; policies decide on admission, retention, pins and placement.

    It has a method for each event in the life of a request.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        branching: Branching,
        reservation: Reservation,
        admission: Admission,
        retention: Retention,
        states: StateRule,
        pinning: Pinning,
        placement: Placement,
        max_drafts: int = 0,
    ) -> None:
        self.cache = cache
        self.block_size = cache.block_size
        self.checkpoint_grid = cache.checkpoint_grid
        self.reservation = reservation
        self.admission = admission
        self.retention = retention
        self.states = states
        self.pinning = pinning
        self.placement = placement
        self.branching = branching
        self._sharers = self.branching.sharers
        self.drafting = Drafting(cache, max_drafts=max_drafts)

    # -- lookup and admission ----------------------------------------------------------------

    @property
    def counts_arrivals(self) -> bool:
        """Whether requests must `enter`, which costs them their keys while they wait."""
        return self.cache.observer is not None or self.cache.prefixes is not None

    def enter(self, sequence: SequenceMemory, num_tokens: int) -> None:
        """A request joins the queue, or joins it again after a preemption: count what it asks for,
        and notify the observer."""
        self.ask(sequence)
        if self.cache.observer is not None:
            self.cache.observer.on_enter(sequence, num_tokens)

    def lookup(self, sequence: SequenceMemory, num_tokens: int) -> Hit:
        """The deepest joint restart point below `num_tokens`, without touching anything.

        The last token is always computed, so a boundary is at most num_tokens - 1.
        """
        cache, hit = self.cache, self.peek(sequence, num_tokens)
        num_tokens = cache.attention.reach(sequence, num_tokens)
        stops = self.placement.stops(sequence.keys, hit, num_tokens)
        if stops:
            hit = replace(hit, stops=stops)
        if cache.observer is not None:
            cache.observer.on_lookup(sequence, hit)
        return hit

    def peek(self, sequence: SequenceMemory, num_tokens: int) -> Hit:
        """The hit of a `lookup` now, without its stops; no observer is notified."""
        cache = self.cache
        return cache.deepest_joint(sequence.keys, cache.attention.reach(sequence, num_tokens))

    def admission_need(
        self,
        hit: Hit,
        num_tokens: int,
        *,
        num_prompt_tokens: int | None = None,
        with_drafts: bool = True,
    ) -> list[int]:
        """Pages of each pool needed to admit `num_tokens` with this hit (rule 9).

        They are the missing blocks of the full prompt, the hit's unreferenced pages, the request's
        own states, the copies that running branches still owe, and room for drafts. Beside other
        requests (`with_drafts`) they are also what the reservation adds.

        Args:
            num_prompt_tokens: of the request as it arrived; None means all of them.
        """
        cache, reservation = self.cache, self.reservation
        max_drafts = self.drafting.max_drafts if with_drafts else 0
        blocks, slots = cache.attention.to_admit(
            num_tokens + max_drafts,
            num_prompt_tokens=num_tokens if num_prompt_tokens is None else num_prompt_tokens,
            hit_tokens=hit.tokens,
        )
        num_planned = self.states.num_planned(hit, num_tokens) if with_drafts else 0
        num_states = reservation.num_states(num_planned) + (max_drafts > 0)
        spare_pages = reservation.spare_pages if with_drafts else 0
        if reservation.makes_promises:
            promised = reservation.outstanding(cache.sequences.values())
            blocks += promised.blocks
            slots += promised.slots
            num_states += promised.states
        if self._sharers:
            owed_blocks, owed_states = self.branching.owed()
            blocks += owed_blocks
            num_states += owed_states
        state_pages = cache.states.pages_needed(num_states)
        if hit.checkpoint is not None:
            blocks += cache.attention_pool.count_unreferenced(hit.blocks)
            state_pages += cache.states.pages_to_hold(hit.checkpoint)
        attention_pages = cache.attention.pages_for(blocks, slots)
        return [pages + spare_pages for pages in cache.by_pool(attention_pages, state_pages)]

    def refusal(
        self, sequence: SequenceMemory, hit: Hit, num_tokens: int, *, nothing_runs: bool
    ) -> Refusal | None:
        """Why the request cannot be admitted now; None if it can. Changes only the counters.

        Drafts are optional: a request that would run alone is admitted without room for them.
        """
        need = self.admission_need(
            hit,
            num_tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            with_drafts=not nothing_runs,
        )
        refusal = self.admission.refusal(need, nothing_runs=nothing_runs)
        if refusal is None and not nothing_runs:
            headroom = self.admission.headroom_pages
            refusal = self.retention.refusal(sequence.request_id, hit, need, headroom)
        if refusal is not None:
            self.cache.counters.refusals += 1
            if self.cache.observer is not None:
                self.cache.observer.on_refuse(sequence, refusal, need)
        return refusal

    def admit(self, sequence: SequenceMemory, hit: Hit, num_tokens: int = 0) -> None:
        """Start the request: take references on its hit first, then drop its pin (B.2).

        Args:
            num_tokens: tokens of the admission, which are promised to it; 0 promises nothing.
        """
        cache = self.cache
        assert sequence.request_id not in cache.sequences and not sequence.blocks
        if cache.observer is not None:
            cache.observer.on_act(sequence.request_id, "admit")
        cache.sequences[sequence.request_id] = sequence
        sequence.stops = hit.stops
        sequence.num_admitted_tokens = num_tokens
        if self.reservation.makes_promises and num_tokens:
            sequence.num_planned = self.states.num_planned(hit, num_tokens)
        self.ask(sequence)
        self.retention.on_admission(sequence.request_id, self._asked_for(sequence))
        if hit.checkpoint is not None:
            cache.attention_pool.hold(hit.blocks)
            cache.states.hold(hit.checkpoint)
            if cache.prefixes is not None:
                cache.prefixes.use(hit.checkpoint)
            sequence.blocks = list(hit.blocks)
            sequence.num_published_blocks = hit.tokens // self.block_size
            sequence.state = hit.checkpoint
            sequence.state_index = (hit.tokens - 1) // self.checkpoint_grid
            if hit.tokens % self.checkpoint_grid:
                self.branching.share(sequence, hit.tokens)
            else:
                self.pinning.on_adopt(
                    sequence.request_id, sequence.keys.checkpoints[sequence.state_index]
                )
        self.unpin(sequence.request_id)
        if cache.observer is not None:
            cache.observer.on_adopt(sequence, hit)

    def ask(self, sequence: SequenceMemory) -> None:
        """Count a request in the demand for its prefix, once."""
        prefixes = self.cache.prefixes
        if prefixes is not None and not sequence.has_asked:
            sequence.has_asked = True
            prefixes.ask(self._asked_for(sequence))

    def _asked_for(self, sequence: SequenceMemory) -> Sequence[Hashable]:
        """The boundaries that a request can reuse."""
        num_boundaries = (sequence.num_prompt_tokens - 1) // self.checkpoint_grid
        return sequence.keys.checkpoints[:num_boundaries]

    def max_need(self, num_tokens: int) -> list[int]:
        """Most pages of each pool that a request needs at once when it runs alone.

        It computes `num_tokens` in all.
        """
        blocks = self.cache.attention.pages_alone(num_tokens)
        crosses = num_tokens > self.checkpoint_grid
        num_states = max(self.states.max_states(crosses=crosses), self.reservation.num_states(0))
        return self.cache.by_pool(blocks, self.cache.states.pages_alone(num_states))

    def never_fits(self, num_tokens: int) -> str | None:
        """Why a request that computes `num_tokens` in all can never finish; None if it can."""
        need = self.max_need(num_tokens)
        for pool, pages in zip(self.cache.pools, need, strict=True):
            if pages > pool.spec.num_usable:
                return (
                    f"needs {pages} pages of pool {pool.spec.name} alone, "
                    f"which has {pool.spec.num_usable}"
                )
        return None

    # -- branches ----------------------------------------------------------------------------

    def fork(self, parent: SequenceMemory, child: SequenceMemory, num_tokens: int) -> None:
        """Start `child` from the `num_tokens` tokens that `parent` has computed. Takes no page.

        Fork a sequence before it is extended in a step: afterwards its state is about to be
        overwritten.

        Raises:
            MemoryFault: the parent does not run, or its state is not at `num_tokens`.
        """
        self._start_at(parent, child, self.branching.fork_point(parent, num_tokens))
        self.branching.share(parent, num_tokens)

    def fork_by_copying(
        self, parent: SequenceMemory, child: SequenceMemory, num_tokens: int
    ) -> bool:
        """Like `fork`, but `child` gets copies of every block and of the state and shares nothing.

        False means that there is not enough room; nothing has moved.
        """
        point = self.branching.fork_point(parent, num_tokens)
        if not self.cache.has_room(len(point.blocks), True):
            return False
        self._start_at(parent, child, point)
        self.branching.copy_all(child, num_tokens)
        return True

    def _start_at(self, parent: SequenceMemory, child: SequenceMemory, point: Hit) -> None:
        if not self.states.lets_branch:
            raise MemoryFault(
                f"request {parent.request_id} cannot be forked: its state is overwritten in place"
            )
        # Publish full blocks before the child counts them as published.
        self.cache.publish_computed(parent, point.tokens)
        child.has_asked = True  # the branches of a request are one requester
        self.admit(child, point)

    def take_copies(self) -> list[Copy]:
        """Copies to carry out before the step that was scheduled (`Copies.take`)."""
        if self.cache.observer is not None:
            self.cache.observer.on_act(None, "copies")
        return self.branching.copies.take()

    # -- growth and publication --------------------------------------------------------------

    def extend(self, sequence: SequenceMemory, computed: int, end: int) -> bool:
        """Make room for a step over tokens [computed, end), and publish the entries it completes.

        False means that there is not enough room: the superseded state is released (the test for
        room comes after that), and nothing else has changed.
        """
        if end <= sequence.quiet_end:  # most decode steps
            return True
        cache, states, sharers = self.cache, self.states, self._sharers
        attention = cache.attention
        with_states = end > sequence.idle_end or bool(sharers)
        if cache.observer is not None:
            cache.observer.on_act(sequence.request_id, "extend")
        cache.publish_computed(sequence, computed)
        new_state = False
        if with_states:
            states.begin(sequence, computed)
            new_state = states.needs_state(sequence, end)
        blocks, slots = attention.missing(sequence, end)
        new_blocks = blocks + slots
        if sharers and not self.branching.own(
            sequence, computed, new_blocks=max(new_blocks, 0), new_state=new_state
        ):
            self._report_short(sequence, blocks, slots, new_state)
            return False
        if new_blocks > 0 or new_state:
            cache.num_kept_promises += computed < sequence.num_admitted_tokens
            while not cache.has_room(attention.pages_for(blocks, slots), new_state):
                if not states.make_room():
                    self._report_short(sequence, blocks, slots, new_state)
                    return False
            if new_blocks > 0:
                attention.take(sequence, end)
            if new_state:
                states.take_state(sequence, computed)
                if cache.observer is not None and sequence.state is not None:
                    cache.observer.on_state(sequence, sequence.state)
        if sequence.num_planned:
            self._plan(sequence, computed, end)
        num_full = attention.num_full(sequence, end)
        if num_full > sequence.num_published_blocks:
            cache.publish_ahead(sequence, num_full)
        if with_states:
            states.publish(sequence, computed, end)
            sequence.idle_end = states.idle_end(sequence, end)
        is_quiet = sequence.superseded is None
        sequence.quiet_end = attention.quiet_end(sequence, end) if is_quiet else 0
        return True

    def _report_short(
        self, sequence: SequenceMemory, blocks: int, slots: int, new_state: bool
    ) -> None:
        """Notify the observer that a step of a running request has no room."""
        cache = self.cache
        if cache.observer is None:
            return
        pages = max(cache.attention.pages_for(blocks, slots), 0)
        need = cache.by_pool(pages, cache.states.pages_needed(1) if new_state else 0)
        cache.observer.on_short(sequence, need)

    def _plan(self, sequence: SequenceMemory, computed: int, end: int) -> None:
        """Promise the request only the states that are still to come."""
        num_planned = self.states.num_left(sequence, computed, end)
        if num_planned != sequence.num_planned:
            sequence.num_planned = num_planned
            self.cache.supply += 1

    # -- release -----------------------------------------------------------------------------

    def release(
        self, sequence: SequenceMemory, computed: int, *, leaf: Hashable | None = None
    ) -> None:
        """Drop the references of a request that finished or was cancelled after `computed` tokens.

        Entries published beyond them will not be computed and are withdrawn.

        Args:
            leaf: key under which the computed tokens stay as a restart point
                (`Branching.keep_leaf`); None keeps none.
        """
        if self.cache.observer is not None:
            self.cache.observer.on_act(sequence.request_id, "release")
        self.states.leave(sequence, computed)
        if computed >= sequence.num_prompt_tokens:
            # Nobody computes the last token.
            self.retention.on_finish(computed + 1 - sequence.num_prompt_tokens)
        if leaf is not None:
            self.branching.keep_leaf(sequence, computed, leaf)
        self._release(sequence)
        self.unpin(sequence.request_id)
        if self.cache.observer is not None:
            self.cache.observer.on_release(sequence, computed, preempted=False)

    def preempt(self, sequence: SequenceMemory, computed: int) -> None:
        """Take the request's memory away; it will be recomputed from a new lookup.

        `computed` counts the tokens of earlier steps. Entries that it published in this step will
        not be computed and are withdrawn.
        """
        if self.cache.observer is not None:
            self.cache.observer.on_act(sequence.request_id, "preempt")
        self.states.leave(sequence, computed)
        self._pin_rightmost(sequence, computed)
        self._release(sequence)
        self.cache.counters.preemptions += 1
        if self.cache.observer is not None:
            self.cache.observer.on_release(sequence, computed, preempted=True)

    def unpin(self, request_id: int | str) -> None:
        """Drop the pin of a request that runs again or will not come back."""
        if self.pinning.num_pins:
            if self.cache.observer is not None:
                self.cache.observer.on_act(request_id, "unpin")
            self.pinning.unpin(request_id)
            self.cache.supply += 1

    def unpin_all(self) -> None:
        """Drop all pins: nothing else can run, and they must not keep the last request out."""
        if self.cache.observer is not None:
            self.cache.observer.on_act(None, "unpin")
        self.pinning.unpin_all()
        self.cache.supply += 1

    def give_way(self, sequence: SequenceMemory | None = None) -> bool:
        """Free memory that is kept beyond execution: the last resort while nothing else runs.

        Each call frees one kind: pins first, then copies that the request no longer needs, then
        its own retained states, then the cache. After all of them any request that `never_fits`
        allows has room, except one whose tail is scattered over more slabs than it would take
        alone (`hsexp.memory.tails`): it has to be preempted and come back. Returns False when
        nothing was left to free.

        Args:
            sequence: the only running request; None if nothing runs.
        """
        if self.pinning.num_pins:
            self.unpin_all()
            return True
        if self.cache.observer is not None:
            request_id = None if sequence is None else sequence.request_id
            self.cache.observer.on_act(request_id, "give_way")
        if sequence is not None and self.branching.forgo_copies(sequence):
            return True
        if sequence is not None and sequence.retained:
            for checkpoint in sequence.retained:
                self.cache.release_state(checkpoint)
            sequence.retained = []
            return True
        return self.cache.reset() > 0

    def _release(self, sequence: SequenceMemory) -> None:
        cache = self.cache
        if cache.sequences.pop(sequence.request_id, None) is not sequence:
            raise MemoryFault(f"request {sequence.request_id} is released but does not run")
        cache.release_attention(sequence)
        for checkpoint in sequence.states:
            cache.release_state(checkpoint)
        sequence.clear()
        self.branching.on_released(sequence)

    def _pin_rightmost(self, sequence: SequenceMemory, computed: int) -> None:
        """Request a pin on the deepest resident checkpoint of the request's own history."""
        cache = self.cache
        keys, index_of = sequence.keys.checkpoints, cache.checkpoint_index
        for index in range(computed // self.checkpoint_grid, 0, -1):
            # A checkpoint published ahead is not resident yet, and may never be.
            resident = filter(cache.is_computed, index_of.entries(keys[index - 1]))
            checkpoint = next(resident, None)
            if checkpoint is None:
                continue
            if self.pinning.pin(sequence.request_id, checkpoint):
                cache.counters.pinned_checkpoints += 1
                if cache.observer is not None:
                    cache.observer.on_keep(sequence.request_id, checkpoint, "pinned")
            return

    # -- reports -----------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Totals since the start, with those that only the rule of states has."""
        return asdict(self.cache.counters) | self.states.counters()

    def describe(self) -> str:
        """One line a pool, for reports of a stalled run."""
        lines = []
        for pool in self.cache.pools:
            lines.append(
                f"pool {pool.spec.name}: {pool.spec.num_usable} pages, {pool.num_free} free "
                f"({pool.num_cached} of them cached), "
                f"{pool.spec.num_usable - pool.num_free} referenced"
            )
        lines.append(f"pins: {self.pinning.num_pins}")
        return "\n".join(lines)

    def check_integrity(self) -> None:
        """Recount references and indexes from the sequences, copies and pins."""
        copied, pinned = self.branching.copies.held(), self.pinning.pins().values()
        check_cache(self.cache, others=[*copied, *pinned])
        self.branching.check_integrity()
        if self.cache.prefixes is not None:
            self.cache.prefixes.check_integrity()
