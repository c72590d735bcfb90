"""V1 scheduling of simulated requests: chunked prefill, admission in order, preemption.

One step:   running requests grow, in order -> waiting ones are admitted, in order -> time passes
            (a failed growth preempts the youngest running request, and then none is admitted)

With `separate` (experiment 10a, Appendix C.1) no step mixes the two kinds of work: while anything
can be prefilled, running or waiting, the step is that prefill and decodes stand still.

    mixed       | P D | P D | D | P D | D |       decode steps = steps
    separated   | P | P | D | P | D | D |...|     decode steps: those marked D

A decoding request needs the memory only now and then. The scheduler keeps a calendar of those
decode steps (`hsexp.sim.leap`) and leaps over the steps in between, which all take the same time,
or a time each where the clock reads the context.
With `fast_forward` off every request comes up in every step and every refused admission is tried
again; the results are the same to the nanosecond.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from hsexp.memory.chunking import chunking
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.policies.waiting import FIRST_COME, WaitingConfig
from hsexp.memory.policies.waiting.order import WaitingOrder
from hsexp.memory.sequence import Hit, Refusal, SequenceMemory
from hsexp.memory.standing import StandingRefusal
from hsexp.memory.stretches import StepStretch
from hsexp.memory.sums import StepSums
from hsexp.sim.config import SchedulerConfig
from hsexp.sim.faults import NoProgress
from hsexp.sim.keys import KeyMaker
from hsexp.sim.leap import DecodeCalendar
from hsexp.sim.requests import SimRequest
from hsexp.sim.steptime import StepContext, StepTimes, to_ns
from hsexp.workload.request import Request


def _arrival_ns(request: SimRequest) -> int:
    return request.arrival_ns


def _serial(request: SimRequest) -> int:
    return request.serial


class SimScheduler:
    """Runs requests to completion over one memory.

    Everything that can happen in a step has a short method, hence more than twenty of them.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        memory: HybridMemory,
        config: SchedulerConfig,
        clock: StepTimes,
        *,
        cap: int,
        max_model_tokens: int,
        exact: bool = False,
        waiting: WaitingConfig = FIRST_COME,
    ) -> None:
        self.memory = memory
        self.config = config
        self.clock = clock
        self.cap = cap
        self.max_model_tokens = max_model_tokens
        self.requests = [SimRequest(request=r, arrival_ns=to_ns(r.arrival_s)) for r in requests]
        self.stretches: list[StepStretch] = []
        self.sums = StepSums()
        self._exact = exact
        self._chunking = chunking(
            block_size=memory.block_size, checkpoint_grid=memory.checkpoint_grid, exact=exact
        )
        self._keys = KeyMaker(block_size=memory.block_size, checkpoint_grid=memory.checkpoint_grid)
        self._next_turns: dict[int, list[SimRequest]] = {}
        """Requests that wait for the end of another one, by its id."""
        for request in self.requests:
            if (before := request.request.after) is not None:
                self._next_turns.setdefault(before, []).append(request)
        # A stable sort: requests of the same instant keep their order.
        known = [request for request in self.requests if request.request.after is None]
        self._pending = deque(sorted(known, key=_arrival_ns))
        self._waiting: WaitingOrder[SimRequest] = waiting.build(self)
        self._running: dict[int, SimRequest] = {}
        """By serial, which is also their order."""
        self._prefilling: dict[int, SimRequest] = {}
        self._calendar = DecodeCalendar(
            block_size=memory.cache.attention.kernel_block_size,
            checkpoint_grid=memory.checkpoint_grid,
            every_step=not config.fast_forward,
        )
        self._now_ns = 0
        self._step = 0
        self._decode_step = 0
        """Steps in which decodes went on: all of them, unless prefill has steps of its own."""
        self._serial = 0
        self._preempted = False
        """A request was preempted in the step that is being scheduled."""
        self._refused: StandingRefusal | None = None
        """The last admission that was refused."""
        self.num_scheduled_steps = 0
        """Steps in which it did more than let time pass."""
        self._steps_without_progress = 0
        self._furthest: dict[int, int] = {}
        """Most tokens that a request ever prefilled, by request id."""

    def run(self) -> None:
        """Run until every request finished or was refused.

        Raises:
            NoProgress: names the request that is stuck and reports the pools.
        """
        while True:
            self._take_arrivals()
            if not self._running and not self._waiting:
                if not self._pending:
                    return
                self._now_ns = self._pending[0].arrival_ns
                continue
            num_steps = self._quiet_steps()
            if num_steps:
                self._refuse_again(num_steps)
                self._pass_time(num_steps, prefill_tokens=0)
                self.memory.cache.step = self._step - 1
                self._finish_due()
                continue
            self._schedule_step()

    @property
    def now_ns(self) -> int:
        return self._now_ns

    # -- one step ----------------------------------------------------------------------------

    def _schedule_step(self) -> None:
        self.num_scheduled_steps += 1
        self.memory.cache.step = self._step
        self._preempted = False
        separate = self.config.separate
        due = [] if separate else [*self._calendar.growth.pop(self._decode_step)]
        prefill_tokens = self._schedule_running([*due, *self._prefilling.values()])
        if not self._preempted:
            prefill_tokens += self._admit(prefill_tokens)
        decodes_wait = separate and prefill_tokens > 0
        if separate and not decodes_wait:
            self._schedule_running([*self._calendar.growth.pop(self._decode_step)])
        self.memory.take_copies()  # they cost no time
        if not prefill_tokens and len(self._running) == len(self._prefilling):
            self._report_idle_step()
            if not self._running:
                return
        self._pass_time(1, prefill_tokens=prefill_tokens, decodes_wait=decodes_wait)
        self._end_prefills()
        self._finish_due()

    def _grow_decode(self, request: SimRequest) -> None:
        computed = request.computed_at(self._decode_step)
        if self._grow(request, computed, computed + 1):
            self._calendar.add_growth(request, self._decode_step + 1)

    def _schedule_running(self, due: list[SimRequest]) -> int:
        """Grow decodes that are due and give prefills their chunks, in running order.

        Returns the prefill tokens. The token of every decode that shares the step is set aside
        before chunks are cut.
        """
        prefill_tokens = 0
        due.sort(key=_serial)
        for request in due:
            if request.serial not in self._running:
                continue  # preempted in this very step
            if request.decoding:
                self._grow_decode(request)
            else:
                prefill_tokens += self._schedule_chunk(request, prefill_tokens)
        return prefill_tokens

    def _schedule_chunk(self, request: SimRequest, prefill_tokens: int) -> int:
        assert request.memory is not None
        chunk = self._chunking.tokens(
            request.computed,
            request.request.prompt_tokens,
            request.num_tokens,
            self._token_budget_left(prefill_tokens),
            request.memory.stops,
        )
        if not chunk or not self._grow(request, request.computed, request.computed + chunk):
            return 0
        request.chunk = chunk
        return chunk

    def _admit(self, prefill_tokens: int) -> int:
        """Admit waiting requests in order until one is refused. Returns their prefill tokens."""
        admitted_tokens = 0
        while (
            len(self._running) < self.cap
            and (left := self._token_budget_left(prefill_tokens + admitted_tokens)) > 0
            and (head := self._waiting.peek()) is not None
        ):
            if self._still_refused(head):
                self._count_refusals(head, 1)
                break
            chunk = self._try_admit(head, left)
            if not chunk:
                break
            admitted_tokens += chunk
        return admitted_tokens

    def _try_admit(self, head: SimRequest, left: int) -> int:
        """Admit the head of the queue if it fits. Returns its first chunk, 0 if it stays."""
        memory = self.memory
        sequence = self._sequence(head)
        hit = self._find(head, memory.lookup)
        if not hit.ready:
            return 0
        chunk = self._chunking.tokens(
            hit.tokens, head.request.prompt_tokens, head.num_tokens, left, hit.stops
        )
        if not chunk:
            return 0
        nothing_runs = not self._running
        refusal = memory.refusal(sequence, hit, head.num_tokens, nothing_runs=nothing_runs)
        if refusal is not None:
            if not nothing_runs:
                if self.config.fast_forward:
                    self._remember(refusal, sequence, hit, head.num_tokens, left)
                return 0
            if not memory.give_way():
                raise NoProgress(self._report(head, refusal))
            return self._try_admit(head, left)
        memory.admit(sequence, hit, head.num_tokens)
        extended = memory.extend(sequence, hit.tokens, hit.tokens + chunk)
        assert extended, "admission counts at least what the first chunk needs"
        self._waiting.pop()
        self._start(head, hit.tokens, chunk)
        return chunk

    def _start(self, request: SimRequest, adopted_tokens: int, chunk: int) -> None:
        self._serial += 1
        request.serial = self._serial
        request.computed = adopted_tokens
        request.chunk = chunk
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = self._now_ns
            request.adopted_tokens = adopted_tokens
        self._running[request.serial] = request
        self._prefilling[request.serial] = request

    def _grow(self, request: SimRequest, computed: int, end: int) -> bool:
        """Extend the request's memory, preempting the youngest while there is no room.

        A request that runs alone first takes the room of entries kept beyond execution.
        """
        sequence = request.memory
        assert sequence is not None
        while not self.memory.extend(sequence, computed, end):
            if len(self._running) == 1 and self.memory.give_way(sequence):
                continue
            victim = self._running.popitem()[1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: SimRequest) -> None:
        assert victim.memory is not None
        self.memory.preempt(victim.memory, victim.computed_at(self._decode_step))
        victim.generated = victim.generated_at(self._decode_step)
        self._prefilling.pop(victim.serial, None)
        victim.decoding = False
        victim.computed = 0
        victim.chunk = 0
        victim.num_preemptions += 1
        self._waiting.prepend(victim)
        if self.memory.counts_arrivals:
            self.memory.enter(victim.memory, victim.num_tokens)
        self._preempted = True
        self._steps_without_progress += 1
        if self._steps_without_progress > self.config.stall_steps:
            raise NoProgress(self._report(victim, None))

    # -- after the step ----------------------------------------------------------------------

    def _pass_time(
        self, num_steps: int, *, prefill_tokens: int, decodes_wait: bool = False
    ) -> None:
        decode_tokens = 0 if decodes_wait else len(self._running) - len(self._prefilling)
        singles = self._num_one_by_one() if self._exact and prefill_tokens else 0
        costs = decode_tokens + singles, prefill_tokens - singles
        if not self.clock.reads_context:
            step_ns = self.clock.step_ns(*costs)
            self._extend_stretch(num_steps, step_ns, decode_tokens, prefill_tokens)
        else:
            context = self._context(decodes_wait=decodes_wait)
            for _ in range(num_steps):
                step_ns = self.clock.step_ns(*costs, context)
                self._extend_stretch(1, step_ns, decode_tokens, prefill_tokens)
                context = context.grown(decode_tokens)
        if decode_tokens:
            self._steps_without_progress = 0
        self.sums.add(self.memory.cache, num_steps)
        if not decodes_wait:
            self._decode_step += num_steps

    def _extend_stretch(
        self, num_steps: int, step_ns: int, decode_tokens: int, prefill_tokens: int
    ) -> None:
        """Let the clock pass equal steps; they join the last stretch if they are like its own."""
        running, waiting = len(self._running), len(self._waiting)
        last = self.stretches[-1] if self.stretches else None
        if (
            last is not None
            and last.prefill_tokens == prefill_tokens
            and last.decode_tokens == decode_tokens
            and last.running == running
            and last.waiting == waiting
            and last.step_ns == step_ns
            and last.end_ns == self._now_ns
        ):
            last.num_steps += num_steps
        else:
            stretch = StepStretch(
                first_step=self._step,
                num_steps=num_steps,
                start_ns=self._now_ns,
                step_ns=step_ns,
                decode_tokens=decode_tokens,
                prefill_tokens=prefill_tokens,
                running=running,
                waiting=waiting,
            )
            self.stretches.append(stretch)
            if self.memory.cache.observer is not None:
                self.memory.cache.observer.on_steps(stretch)
        self._now_ns += num_steps * step_ns
        self._step += num_steps

    def _context(self, *, decodes_wait: bool = False) -> StepContext:
        """What the requests of this step have in memory before it."""
        step = self._decode_step
        decoding_tokens = 0
        if not decodes_wait:
            decoding = (request for request in self._running.values() if request.decoding)
            decoding_tokens = sum(request.computed_at(step) for request in decoding)
        prefilling = self._prefilling.values()
        return StepContext.of_chunks(
            [(request.computed, request.chunk) for request in prefilling if request.chunk],
            decoding_tokens=decoding_tokens,
        )

    def _num_one_by_one(self) -> int:
        """Prefill tokens of this step that cost what a decode token costs."""
        return sum(
            request.chunk > 0
            and self._chunking.one_by_one(request.computed, request.request.prompt_tokens)
            for request in self._prefilling.values()
        )

    def _end_prefills(self) -> None:
        """Count the chunks of the step that just ended; the last one yields a token."""
        observer = self.memory.cache.observer
        for request in list(self._prefilling.values()):
            chunk = request.chunk
            if not chunk:
                continue
            request.chunk = 0
            if observer is not None:
                observer.on_chunk(
                    request.request.request_id, self._step - 1, request.computed, chunk
                )
            request.computed += chunk
            if request.computed > self._furthest.get(request.request.request_id, 0):
                self._furthest[request.request.request_id] = request.computed
                self._steps_without_progress = 0
            if request.num_preemptions:
                request.replayed_tokens += chunk
                beyond_prompt = request.computed - request.request.prompt_tokens
                request.replayed_output_tokens += min(max(beyond_prompt, 0), chunk)
            else:
                request.prefill_tokens += chunk
            if request.computed == request.num_tokens:
                self._start_decoding(request)

    def _start_decoding(self, request: SimRequest) -> None:
        del self._prefilling[request.serial]
        request.generated += 1
        request.anchor = self._decode_step
        request.decoding = True
        if request.first_token_ns is None:
            request.first_token_ns = self._now_ns
        # A request whose last token this was finishes with the step that just ended.
        self._calendar.finish.add(request.finish_step, request)
        if request.finish_step >= self._decode_step:
            self._calendar.add_growth(request, self._decode_step)

    def _finish_due(self) -> None:
        """Finish the requests whose last token came with the step that just ended."""
        for request in self._calendar.finish.pop(self._decode_step - 1):
            assert request.memory is not None
            computed = request.computed_at(self._decode_step)
            leaf = None
            if self.memory.branching.leaves.keeps_final:
                leaf = self._keys.exact(request.request, computed)
            self.memory.release(request.memory, computed, leaf=leaf)
            request.memory = None
            request.generated = request.request.output_tokens
            request.decoding = False
            request.finish_ns = self._now_ns
            del self._running[request.serial]
            self._let_next_turns_follow(request)

    # -- leaping -----------------------------------------------------------------------------

    def _quiet_steps(self) -> int:
        """Number of coming steps that only decode; 0 if the next step must be scheduled."""
        if self._prefilling or not self._running or not self.config.fast_forward:
            return 0
        if (
            len(self._running) < self.cap
            and self._token_budget_left(0) > 0
            and (head := self._waiting.peek()) is not None
            and not self._still_refused(head)
        ):
            return 0
        quiet = self._calendar.quiet_steps(self._decode_step)
        if self._pending and quiet:
            quiet = min(quiet, self._steps_until(self._pending[0].arrival_ns, most=quiet))
        return quiet

    def _steps_until(self, time_ns: int, *, most: int) -> int:
        """Decode steps that begin before a time; `most` if there are more."""
        decode_tokens = len(self._running)
        if not self.clock.reads_context:
            return -(-(time_ns - self._now_ns) // self.clock.step_ns(decode_tokens, 0))
        context, now_ns = self._context(), self._now_ns
        for num_steps in range(most):
            if now_ns >= time_ns:
                return num_steps
            now_ns += self.clock.step_ns(decode_tokens, 0, context)
            context = context.grown(decode_tokens)
        return most

    def _refuse_again(self, num_steps: int) -> None:
        """Count the refusals that the head would have met in the steps that are leaped over."""
        if len(self._running) < self.cap and self._token_budget_left(0) > 0:
            head = self._waiting.peek()
            if head is not None:
                self._count_refusals(head, num_steps)

    def _count_refusals(self, head: SimRequest, count: int) -> None:
        """Count refusals of the head that were not tried: nothing has changed."""
        cache = self.memory.cache
        cache.counters.refusals += count
        if cache.observer is not None:
            cache.observer.on_refuse_again(self._sequence(head), count)

    def _remember(
        self, refusal: Refusal, sequence: SequenceMemory, hit: Hit, num_tokens: int, left: int
    ) -> None:
        """Keep a refusal, with the changes that could end it.

        Losing the hit can matter in two cases: the request fits once its hit need not leave the
        queue, or the token budget has no chunk for it without the hit, so that it is not asked.
        Any loss can matter where promises count: their states may find a slot that it frees. So it
        can where the hit is a leaf, of which the request copies the state and the last block.
        """
        cache = self.memory.cache
        held = 0 if hit.checkpoint is None else cache.states.pages_to_hold(hit.checkpoint)
        fits_without_hit = refusal.need - held + refusal.headroom <= refusal.free
        self._refused = StandingRefusal(
            cache,
            sequence,
            hit,
            num_tokens,
            losses_matter=fits_without_hit
            or left < cache.checkpoint_grid
            or hit.tokens % cache.checkpoint_grid > 0
            or self.memory.reservation.makes_promises,
            by_price=refusal.by_price,
        )

    def _still_refused(self, head: SimRequest) -> bool:
        refused = self._refused
        return refused is not None and refused.stands(head.memory)

    # -- what a waiting order asks -----------------------------------------------------------

    def arrival_s(self, request: SimRequest) -> float:
        return request.arrival_s

    def hit_tokens(self, request: SimRequest) -> int:
        return self._find(request, self.memory.peek).tokens

    @property
    def stamp(self) -> Hashable:
        return self.memory.cache.stamp

    # -- details -----------------------------------------------------------------------------

    def _take_arrivals(self) -> None:
        while self._pending and self._pending[0].arrival_ns <= self._now_ns:
            arrived = self._pending.popleft()
            arrived.refused = self._why_refused(arrived.request)
            if arrived.refused is None:
                self._waiting.add(arrived)
                if self.memory.counts_arrivals:
                    self.memory.enter(self._sequence(arrived), arrived.num_tokens)
            else:
                self._let_next_turns_follow(arrived)

    def _let_next_turns_follow(self, ended: SimRequest) -> None:
        """Plan the turns that waited for a request to end."""
        for request in self._next_turns.pop(ended.request.request_id, ()):
            request.arrival_ns = self._now_ns + to_ns(request.request.think_s)
            insort(self._pending, request, key=_arrival_ns)

    def _why_refused(self, request: Request) -> str | None:
        """Why this request can never be served, or None."""
        num_tokens = request.prompt_tokens + request.output_tokens
        if num_tokens > self.max_model_tokens:
            return f"{num_tokens} tokens exceed the model's {self.max_model_tokens}"
        return self.memory.never_fits(num_tokens - 1)

    def _sequence(self, arrived: SimRequest) -> SequenceMemory:
        """The request's memory, created at its first use, so that a long queue holds no keys."""
        if arrived.memory is None:
            arrived.memory = SequenceMemory(
                request_id=arrived.request.request_id,
                keys=self._chunking.keys(
                    self._keys.keys(arrived.request), arrived.request.prompt_tokens
                ),
                num_prompt_tokens=arrived.request.prompt_tokens,
            )
        return arrived.memory

    def _find(self, request: SimRequest, look: Callable[[SequenceMemory, int], Hit]) -> Hit:
        """The deeper one of a leaf and a boundary.

        Args:
            look: `lookup` or `peek` of the memory.
        """
        sequence, leaves = self._sequence(request), self.memory.branching.leaves
        hit = look(sequence, request.num_tokens)
        if not leaves.keeps_final:
            return hit
        exact = partial(self._keys.exact, request.request)
        return hit.or_deeper(leaves.deepest(sequence, exact, num_tokens=request.num_tokens - 1))

    def _token_budget_left(self, prefill_tokens: int) -> int:
        decodes = 0 if self.config.separate else len(self._running) - len(self._prefilling)
        return self.config.token_budget - decodes - prefill_tokens

    def _report_idle_step(self) -> None:
        """Count a step without a token: fine once (all were preempted), an error if it repeats."""
        self._steps_without_progress += 1
        if self._steps_without_progress > self.config.stall_steps:
            raise NoProgress(self._report(self._waiting.peek(), None))

    def _report(self, stuck: SimRequest | None, refusal: Refusal | None) -> str:
        lines = [
            f"no progress at step {self._step}, {self._now_ns / 1e9:.3f} s: "
            f"{len(self._running)} running, {len(self._waiting)} waiting"
        ]
        if stuck is not None:
            lines.append(
                f"stuck: request {stuck.request.request_id} with {stuck.num_tokens} tokens, "
                f"{stuck.num_preemptions} preemptions"
            )
        if refusal is not None:
            lines.append(str(refusal))
        return "\n".join([*lines, self.memory.describe()])
