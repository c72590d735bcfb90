"""vLLM's scheduler over a worker that computes exactly, on words of pages: an engine in toy size.

What a request computes is the toy model of `tests/memory/toy_model.py`: its state is a hash of all
tokens before, its next token a hash of state and of all KV. The worker knows only what vLLM's own
worker is told: block tables that grow by what a step brings, pages to zero, places of new states,
copies. To read a word that its owner has not written since it got the page is an error. Steps run
one at a time, or with two in flight as under asynchronous scheduling.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toy_memory import TINY, TINY_D0, toy_config
from toy_model import PARTS, START, WINDOW, ModelState, Replay, StaleRead
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm_scheduler import build_scheduler, orders, vllm_config

from hsexp.engine.forks import MAX_HIT, TableChange, announce_samples
from hsexp.engine.scheduler import AsyncHybridScheduler, HybridScheduler
from hsexp.engine.settings import EngineSettings
from hsexp.memory import Copy
from hsexp.memory.branching.leaves import LeafKey
from hsexp.memory.checkpoint import NO_LINE
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import DemandedRetention
from hsexp.memory.slab import SlabStateStore

Word = int | None

STALL_STEPS = 50
"""Steps without any progress after which nothing will ever come."""


def toy_settings(
    organization: str,
    num_pages: int,
    *,
    num_states: int = 20,
    headroom: float = 0.0,
    retention: int | None = None,
    pinning: int | None = None,
    cap: int = 8,
    max_leaves: int = 0,
    eviction: str = "paper",
    waiting: str = "first_come",
    placement: str = "chunk_ends",
    reservation: str = "full_prompt",
    states: str = "per_boundary",
    leaves: str = "off",
    **changes: Any,
) -> EngineSettings:
    """`num_pages` usable pages; in D0 those are attention units, beside `num_states` composites.

    Args:
        retention: K of S2+Retention, or None.
        pinning: K of pinning at preemption, or None.
        max_leaves: 0 forks nothing.
        eviction, waiting, placement, reservation, states, leaves: options of these groups.
        changes: fields of the organization's configuration.
    """
    config, model = toy_config(organization, **changes), TINY
    if isinstance(config, D0Config):
        # Half a unit above the whole one, so that both pools round down to what was asked for.
        total = num_pages + num_states + 3
        config = config.model_copy(update={"attention_fraction": (num_pages + 1.5) / total})
        model, budget_bytes = TINY_D0, total * 256
    settings = EngineSettings(
        model=model,
        organization=config,
        budget_bytes=1 << 20,
        admission=AdmissionConfig(headroom=headroom, cap=cap),
        retention=DemandedRetention(name="toy", requesters=retention),
        pinning=PinningConfig(name="toy", requesters=pinning, protected_fraction=1.0),
        max_leaves=max_leaves,
        **orders(
            eviction=eviction,
            waiting=waiting,
            placement=placement,
            reservation=reservation,
            states=states,
            leaves=leaves,
        ),
    )
    if not isinstance(config, D0Config):
        budget_bytes = (num_pages + 1) * settings.plan.pools[0].page_bytes
    return settings.model_copy(update={"budget_bytes": budget_bytes})


# -- the worker ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Row:
    """What the worker keeps of a request."""

    tokens: list[int]
    """Prompt, and what was sampled here."""
    blocks: list[int]
    states: list[int]
    """Composite ids by checkpoint position."""


class ToyWorker:
    """Pages of words, and the requests' tables as the scheduler's outputs tell them."""

    def __init__(self, settings: EngineSettings) -> None:
        memory = settings.memory()
        attention = memory.cache.attention
        self.block_size, self.grid = memory.block_size, memory.checkpoint_grid
        self.kernel_block_size = attention.kernel_block_size
        self.blocks_per_page = attention.blocks_per_page
        store = memory.cache.states
        self.num_slots = store.num_slots if isinstance(store, SlabStateStore) else 0
        self._words = max(self.block_size, PARTS + WINDOW, self.num_slots * WINDOW)
        pools = [[self._wiped() for _ in range(p.spec.num_pages)] for p in memory.cache.pools]
        self.attention, self.recurrent = pools[0], pools[-1]
        self.rows: dict[str, _Row] = {}
        self.num_steps = 0
        self._places: dict[int, list[tuple[int, int]]] = {}
        """(page, word) of every word of a state, by composite id."""
        self._copied: dict[int, list[tuple[int, int]]] = {}
        """Likewise of the copies: a checkpoint that is one has no composite, and no request reads
        it."""

    def _wiped(self) -> list[Word]:
        return [None] * self._words

    def execute(self, output: Any) -> dict[str, list[int]]:
        """One step: the token that each scheduled request samples, if it samples one."""
        for request_id in output.finished_req_ids:
            self.rows.pop(request_id, None)
        if output.hsexp_forks is not None:
            self._change_tables(output.hsexp_forks.changes)
        for block_id in output.new_block_ids_to_zero or ():
            page, word = self._place([block_id], 0)
            size = self._words if self.blocks_per_page == 1 else self.kernel_block_size
            self.attention[page][word : word + size] = [None] * size
        if not output.total_num_scheduled_tokens:
            return {}  # vLLM's worker does not come to the composites either
        for new in output.hsexp_composites:
            self._enter(new.composite_id, new.pages, new.line)
        if output.hsexp_forks is not None:
            for copy in output.hsexp_forks.copies:
                self._carry_out(copy)
        starts = self._update_rows(output)
        self.num_steps += 1
        order = list(output.num_scheduled_tokens.items())
        if self.num_steps % 2:
            order.reverse()  # requests of a step do not see each other
        sampled = {
            request_id: self._compute(self.rows[request_id], starts[request_id], count)
            for request_id, count in order
        }
        return {request_id: sampled[request_id] for request_id in output.num_scheduled_tokens}

    def _change_tables(self, changes: Sequence[TableChange]) -> None:
        for change in changes:
            row = self.rows[change.request_id]
            table = row.blocks if change.group == 0 else row.states
            table[change.position] = change.page

    def _carry_out(self, copy: Copy) -> None:
        if copy.kind == "attention":
            self.attention[copy.target[0]] = list(self.attention[copy.source[0]])
            return
        sources = self._places_of(copy.source, copy.source_line)
        targets = self._places_of(copy.target, copy.target_line)
        self._copied[copy.target[0]] = targets
        for (page, word), (new_page, new_word) in zip(sources, targets, strict=True):
            self.recurrent[new_page][new_word] = self.recurrent[page][word]

    def _enter(self, composite_id: int, pages: Sequence[int], line: int) -> None:
        places = self._places[composite_id] = self._places_of(pages, line)
        self._copied.pop(composite_id, None)
        for page, word in places:
            self.recurrent[page][word] = None

    def _places_of(self, pages: Sequence[int], line: int) -> list[tuple[int, int]]:
        if len(pages) == 1:
            places = [(pages[0], word) for word in range(PARTS + WINDOW)]
        else:
            places = [(page, 0) for page in pages[:PARTS]]
            if line == NO_LINE:  # the convolution has the last page to itself
                places += [(pages[PARTS], word) for word in range(WINDOW)]
            else:
                page, slot = divmod(line, self.num_slots)
                places += [(page, slot * WINDOW + word) for word in range(WINDOW)]
        return places

    def _update_rows(self, output: Any) -> dict[str, int]:
        """Bring the tables up to date; how many tokens each scheduled request has computed."""
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            blocks, states = new.block_ids
            self.rows[new.req_id] = _Row(
                tokens=list(new.prompt_token_ids), blocks=list(blocks), states=list(states)
            )
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            row, ids = self.rows[request_id], cached.new_block_ids[i]
            if request_id in cached.resumed_req_ids:
                row.blocks, row.states = (list(group) for group in ids)
            elif ids is not None:
                row.blocks += ids[0]
                row.states += ids[1]
            if request_id in cached.all_token_ids:  # it had no part in the step before
                row.tokens = list(cached.all_token_ids[request_id])
            starts[request_id] = cached.num_computed_tokens[i]
        return starts

    def _compute(self, row: _Row, start: int, count: int) -> list[int]:
        end = start + count
        source = row.states[(start - 1) // self.grid] if start else None
        state = START if source is None else self.read_state(source)
        for position in range(start, end):
            token = row.tokens[position]
            state = state.after(token)
            page, word = self._place(row.blocks, position)
            self.attention[page][word] = state.kv(token, position)
        for (page, word), value in zip(
            self._places[row.states[(end - 1) // self.grid]],
            (*state.parts, *state.window),
            strict=True,
        ):
            self.recurrent[page][word] = value
        if end < len(row.tokens):
            return []
        kv = [
            self._read(self.attention, *self._place(row.blocks, position))
            for position in range(end)
        ]
        row.tokens.append(state.next_token(kv))
        return row.tokens[-1:]

    def _place(self, blocks: Sequence[int], position: int) -> tuple[int, int]:
        """Page and word of a token's KV, by the ids of its request's blocks."""
        block, offset = divmod(position, self.kernel_block_size)
        page, part = divmod(blocks[block], self.blocks_per_page)
        return page, part * self.kernel_block_size + offset

    def read_state(self, composite_id: int) -> ModelState:
        return self._state_at(self._places[composite_id])

    def read_checkpoint(self, first_page: int) -> ModelState:
        """A cached state, whether a request computed it or it is a copy."""
        copied = self._copied.get(first_page)
        return self.read_state(first_page) if copied is None else self._state_at(copied)

    def _state_at(self, places: Sequence[tuple[int, int]]) -> ModelState:
        words = [self._read(self.recurrent, page, word) for page, word in places]
        return ModelState(parts=tuple(words[:PARTS]), window=tuple(words[PARTS:]))

    def read_block(self, page: int) -> list[Word]:
        return self.attention[page][: self.block_size]

    def _read(self, pool: list[list[Word]], page: int, word: int) -> int:
        value = pool[page][word]
        if value is None:
            raise StaleRead(f"word {word} of page {page} was not written by its owner")
        return value


# -- the engine core -------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ToyRequest:
    """A request, what it must yield, and what has come of it."""

    request: Request
    truth: Replay
    num_output: int
    """Tokens that it generates if it is left alone."""
    delivered: list[int] = field(default_factory=list)

    @property
    def expected(self) -> list[int]:
        first = self.request.num_prompt_tokens
        return list(self.truth.tokens[first : first + self.num_output])


class ToyCore:
    """One engine: add, abort and step it, or run it to the end. Every step is checked."""

    def __init__(
        self,
        settings: EngineSettings,
        folder: Path,
        *,
        token_budget: int = 32,
        asynchronous: bool = False,
        policy: Literal["fcfs", "priority"] = "fcfs",
        max_model_len: int | None = None,
    ) -> None:
        config = vllm_config(settings, folder, token_budget=token_budget)
        # vLLM's CPU platform switches it off; here nothing runs on a device.
        config.scheduler_config.async_scheduling = asynchronous
        config.scheduler_config.policy = policy
        if max_model_len is not None:
            config.model_config.max_model_len = max_model_len
        cls = AsyncHybridScheduler if asynchronous else HybridScheduler
        self.scheduler = build_scheduler(settings, config, cls)
        self.memory = self.scheduler.kv_cache_manager.memory
        self.worker = ToyWorker(settings)
        self.requests: dict[str, ToyRequest] = {}
        self.num_steps = 0
        self.num_steps_ahead = 0
        """Steps that were scheduled while another one was in flight."""
        self.num_scheduled_tokens = 0
        self.last_scheduled: dict[str, int] = {}
        """Tokens of each request in the last step that had any."""
        self._unchecked: list[ToyRequest] = []
        self._in_flight: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self._max_in_flight = 2 if asynchronous else 1
        self._hasher = get_request_block_hasher(self.scheduler.hash_block_size, sha256)
        self._truths: dict[bytes, tuple[Replay, int]] = {}
        """What a cached entry must hold: by its key, a request and a length."""

    def add(
        self,
        prompt: Sequence[int],
        num_output: int,
        *,
        salt: str | None = None,
        priority: int = 0,
        stop_after: int | None = None,
        skip_reading: bool = False,
        num_samples: int = 1,
        max_hit: int | None = None,
    ) -> str:
        """A new request.

        Args:
            num_output: its max_tokens.
            stop_after: tokens after which a stop token ends it, which the scheduler cannot foresee.
            skip_reading: it reads no cache, as one that wants logprobs of its prompt.
            num_samples: it is one of so many samples of its prompt.
            max_hit: tokens of which it may read what others have computed.
        """
        request_id = str(len(self.requests))
        truth = Replay.of(prompt, num_output)
        stops = [] if stop_after is None else [truth.tokens[len(prompt) + stop_after - 1]]
        params = SamplingParams(max_tokens=num_output, ignore_eos=True, stop_token_ids=stops)
        params.skip_reading_prefix_cache = skip_reading
        params.extra_args = None if max_hit is None else {MAX_HIT: max_hit}
        params.n = num_samples
        announce_samples(params)
        params.n = 1
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(len(self.requests)),
            block_hasher=self._hasher,
            cache_salt=salt,
            priority=priority,
        )
        generated = truth.tokens[len(prompt) :]
        if stops:
            num_output = generated.index(stops[0]) + 1
        self.scheduler.add_request(request)
        toy = ToyRequest(request=request, truth=truth, num_output=num_output)
        self.requests[request_id] = toy
        self._unchecked.append(toy)
        return request_id

    def abort(self, *request_ids: str) -> None:
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight) or self.scheduler.has_requests()

    def step(self, *aborted: str) -> int:
        """One call of vLLM's engine core; how many tokens were scheduled.

        Args:
            aborted: requests that are cancelled while the step runs.
        """
        scheduled = 0
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._in_flight.append((output, self.worker.execute(output)))
            scheduled = output.total_num_scheduled_tokens
            if scheduled:
                self.last_scheduled = dict(output.num_scheduled_tokens)
                self.num_steps += 1
                self.num_steps_ahead += len(self._in_flight) > 1
            self.num_scheduled_tokens += scheduled
            self.check()
            if len(self._in_flight) < self._max_in_flight and scheduled:
                self.abort(*aborted)
                return scheduled
        output, sampled = self._in_flight.popleft()
        self.abort(*aborted)
        self._deliver(output, sampled)
        self.check()
        return scheduled

    def _deliver(self, output: Any, sampled: dict[str, list[int]]) -> None:
        ids = list(sampled)
        updates = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=list(sampled.values()),
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for update in updates.values():
            for one in update.outputs:
                self.requests[one.request_id].delivered += one.new_token_ids

    def run(self, *, max_steps: int = 20_000) -> None:
        """Step until all is done.

        Raises:
            AssertionError: nothing is computed any more although something is left to do.
        """
        idle = 0
        for _ in range(max_steps):
            if not self.is_busy:
                return
            idle = 0 if self.step() else idle + 1
            waits = self.scheduler.get_num_unfinished_requests()
            assert not waits or idle < STALL_STEPS, "stalled: " + self.memory.describe()
        raise AssertionError("no end: " + self.memory.describe())

    # -- what must hold at every step --------------------------------------------------------------

    def check(self) -> None:
        """The memory's books balance; every cached entry and every output is as a replay's."""
        self.memory.check_integrity()
        size = self.scheduler.hash_block_size
        for toy in self._unchecked:
            for i, key in enumerate(toy.request.block_hashes, 1):
                self._truths[key] = toy.truth, i * size
            assert toy.delivered == toy.expected[: len(toy.delivered)]
        self._unchecked = [toy for toy in self._unchecked if not toy.request.is_finished()]
        for key, page in self.memory.cache.block_index:
            truth, end = self._truth_of(key)
            valid = truth.kv[(end - 1) // self.worker.block_size * self.worker.block_size : end]
            assert tuple(self.worker.read_block(page)[: len(valid)]) == valid
        for key, checkpoint in self.memory.cache.checkpoint_index:
            truth, end = self._truth_of(key)
            assert self.worker.read_checkpoint(checkpoint.pages[0]) == truth.states[end]

    def _truth_of(self, key: Any) -> tuple[Replay, int]:
        """What an entry must hold: a request that has it, and the tokens that it stands at."""
        above, tail = key.key if isinstance(key, LeafKey) else (key, ())
        truth, end = self._truths.get(above, (None, 0))
        if truth is not None and not tail and end < len(truth.states):
            return truth, end
        tokens = [*(truth.tokens[:end] if truth else ()), *tail]
        return Replay.of(tokens, 1), len(tokens)

    def assert_drained(self) -> None:
        """Everything ended as it should, and after a reset nothing is left in any pool."""
        assert not self.memory.cache.sequences and not self.memory.pinning.num_pins
        assert all(pool.num_free == pool.spec.num_usable for pool in self.memory.cache.pools)
        assert self.scheduler.reset_prefix_cache()
        assert not len(self.memory.cache.block_index) and not len(
            self.memory.cache.checkpoint_index
        )
        assert self.memory.cache.states.slots() == (0, 0)
