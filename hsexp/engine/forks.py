"""Requests that continue the same tokens: one computes them, the others fork its state.

    three samples of 500 tokens    step 1          step 2               step 3
    first                          [0 ... 499)     copies, [499]        decodes
    second, third                  wait            fork, copy, [499]    decode

A request's PREFIX is all its tokens but the last. A request that starts from the state there
computes one token, and has logits of its own. While others wait for the same prefix, the request
that computes it ends a chunk there and leaves a leaf for them (`hsexp.memory.branching`). A request
for a single token leaves one where it ends: the next step of a beam search resumes from there, or
the next pass of drafts (`hsexp.engine.speculation`). With `leaves=final` every finished request
leaves one: the next turn of a conversation resumes from there. Without a leaf at the end of its
prefix a request starts from the deepest one within it, or from a deeper boundary.

Prefixes are compared by content. A request waits beside the queue, not in it, and only while
another one is computing its prefix. If that one is preempted or cancelled, or if the leaf has been
evicted since, the request is looked up like any other and computes the prefix itself.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import Request, RequestStatus

from hsexp.memory import Copy, HybridMemory, SequenceMemory, exact_prefix
from hsexp.memory.sequence import Hit

_SAMPLES = "hsexp_samples"
"""Extra argument of a request that is one of several samples: their number."""
MAX_HIT = "hsexp_max_hit"
"""Extra argument of a request: most tokens that it may take from the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableChange:
    """Replaces a page or state in a running request's table."""

    request_id: str
    group: int
    """KV-cache group of the table."""
    position: int
    page: int
    """Attention page, or composite id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkWork:
    """What the worker does for forks in a step: tables first, copies before its kernels."""

    changes: Sequence[TableChange]
    copies: Sequence[Copy]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prefix:
    """All tokens of a request but the last."""

    key: Hashable
    num_tokens: int
    announced: bool
    """The request is one of several samples, and the others may still be on their way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Leader:
    """A running request on its way to the end of its prefix."""

    sequence: SequenceMemory
    prefix: _Prefix
    end: int
    """Tokens that it will have computed after what is scheduled."""
    step: int
    """Step in which it gets there."""


class Forks:
    """Requests that wait for a prefix, and those that are computing it."""

    def __init__(self, memory: HybridMemory) -> None:
        self.memory = memory
        self.lets_fork = memory.branching.leaves.lets_fork
        """Whether requests wait for a prefix that another one is computing."""
        self._prefixes: dict[str, _Prefix] = {}
        """By request, until it has passed its prefix."""
        self._waiting: dict[Hashable, set[str]] = {}
        """Queued requests by prefix."""
        self._leaders: dict[Hashable, _Leader] = {}
        """By prefix; the latest one if there are several."""

    # -- a request's way -----------------------------------------------------------------------

    def enter(self, request: Request, sequence: SequenceMemory) -> None:
        """The request joins the queue, for the first time or preempted."""
        num_tokens = request.num_tokens - 1
        if not self.lets_fork or num_tokens < 1:
            return
        if max_hit(request) < num_tokens or not _is_plain(request):
            return
        prefix = _Prefix(
            key=self._key(request, sequence, num_tokens),
            num_tokens=num_tokens,
            announced=not request.num_output_tokens
            and _SAMPLES in (request.sampling_params.extra_args or {}),
        )
        self._prefixes[request.request_id] = prefix
        self._waiting.setdefault(prefix.key, set()).add(request.request_id)

    def must_wait(self, request: Request) -> bool:
        """Whether another request will stand at the end of its prefix after this step or later."""
        prefix = self._prefixes.get(request.request_id)
        leader = None if prefix is None else self._leaders.get(prefix.key)
        return leader is not None and (
            leader.end < leader.prefix.num_tokens or leader.step == self.memory.cache.step
        )

    def find(self, request: Request, sequence: SequenceMemory) -> Hit | None:
        """The leaf at the end of its prefix, or else the deepest one within it."""
        branching, prefix = self.memory.branching, self._prefixes.get(request.request_id)
        leaf = None if prefix is None else branching.leaves.find(sequence, prefix.key)
        if leaf is not None or not _is_plain(request):
            return leaf
        return branching.leaves.find_deepest(
            sequence, request.all_token_ids, num_tokens=max_hit(request), salt=_salt(request)
        )

    def stop(self, request: Request, computed: int) -> int | None:
        """Token at which its next chunk must end because others wait for it; None is anywhere."""
        prefix = self._prefixes.get(request.request_id)
        if prefix is None or computed >= prefix.num_tokens:
            return None
        others = self._waiting.get(prefix.key, set()) - {request.request_id}
        return prefix.num_tokens if others or prefix.announced else None

    def advance(self, sequence: SequenceMemory, end: int) -> None:
        """The request runs, and a step is scheduled up to `end`."""
        request_id = str(sequence.request_id)
        prefix = self._prefixes.get(request_id)
        if prefix is None:
            return
        if end > prefix.num_tokens:
            self.leave(request_id)
            return
        self._leave_queue(request_id, prefix)
        self._leaders[prefix.key] = _Leader(
            sequence=sequence, prefix=prefix, end=end, step=self.memory.cache.step
        )
        sequence.quiet_end = 0  # the step that passes the end is seen here as well

    def leave(self, request_id: str) -> None:
        """The request has passed its prefix, or has lost its memory."""
        prefix = self._prefixes.pop(request_id, None)
        if prefix is None:
            return
        self._leave_queue(request_id, prefix)
        leader = self._leaders.get(prefix.key)
        if leader is not None and leader.sequence.request_id == request_id:
            del self._leaders[prefix.key]

    def _leave_queue(self, request_id: str, prefix: _Prefix) -> None:
        waiting = self._waiting.get(prefix.key, set())
        waiting.discard(request_id)
        if not waiting:
            self._waiting.pop(prefix.key, None)

    # -- leaves --------------------------------------------------------------------------------

    def keep(self) -> None:
        """Before a step: keep a leaf at the end of every prefix that others wait for."""
        for key, leader in self._leaders.items():
            prefix = leader.prefix
            if leader.end == prefix.num_tokens and (prefix.announced or key in self._waiting):
                self.memory.branching.keep_leaf(leader.sequence, leader.end, key)

    def leaf_at_end(
        self, request: Request, sequence: SequenceMemory, computed: int
    ) -> Hashable | None:
        """Key of the leaf that a finished request leaves; None if it leaves none.

        The next step of a beam search may resume from a request for a single token, the next turn
        of a conversation from any request.
        """
        over = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
        is_wanted = self.memory.branching.leaves.keeps_final or request.max_tokens == 1
        if not is_wanted or request.status not in over or not _is_plain(request):
            return None
        if computed != request.num_computed_tokens:
            return None  # a step in flight goes on with a token that nobody will know
        return self._key(request, sequence, computed)

    def _key(self, request: Request, sequence: SequenceMemory, num_tokens: int) -> Hashable:
        return exact_prefix(
            sequence.keys,
            self.memory.block_size,
            request.all_token_ids,
            num_tokens=num_tokens,
            salt=_salt(request),
        )


def announce_samples(params: Any) -> None:
    """Mark a request as one of several samples: vLLM sends them one by one, and the engine may
    start the first before the second arrives."""
    if getattr(params, "n", 1) > 1:
        params.extra_args = (params.extra_args or {}) | {_SAMPLES: params.n}


def check_max_hit(params: Any) -> None:
    """Check a request's `MAX_HIT`.

    Raises:
        ValueError: it is not a number of tokens.
    """
    limit = (getattr(params, "extra_args", None) or {}).get(MAX_HIT, 0)
    if type(limit) is not int or limit < 0:
        raise ValueError(f"{MAX_HIT} must be a number of tokens, got {limit!r}")


def max_hit(request: Request) -> int:
    """Most tokens that the request may take from the cache: it always computes its last one, and
    those whose logits are asked for."""
    params, last = request.sampling_params, int(request.num_tokens) - 1
    limit = None if params is None else (params.extra_args or {}).get(MAX_HIT)
    return last if limit is None else min(limit, last)


def _salt(request: Request) -> Hashable:
    """What vLLM joins to the hash of a block beside its tokens."""
    lora = request.lora_request
    return request.cache_salt, None if lora is None else lora.lora_name


def _is_plain(request: Request) -> bool:
    """Whether its tokens are its whole content, and it may read the cache."""
    return not (
        request.skip_reading_prefix_cache
        or request.mm_features
        or request.prompt_embeds is not None
        or request.pooling_params is not None
        or request.resumable
    )
