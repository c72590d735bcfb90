"""A waiting order of ours as the waiting queue of vLLM's scheduler.

vLLM keeps a second queue, of requests that it skipped because they were blocked. It is asked first,
by arrival, under every order: who is in it has been first already.
"""

from collections.abc import Hashable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from hsexp.engine.manager import HybridCacheManager
from hsexp.memory.policies.waiting import WaitingConfig


class EngineProspects:
    """What an order may ask about vLLM's waiting requests."""

    def __init__(self, manager: HybridCacheManager) -> None:
        self._manager = manager

    def arrival_s(self, request: Request) -> float:
        return float(request.arrival_time)

    def hit_tokens(self, request: Request) -> int:
        return self._manager.hit_tokens(request)

    @property
    def stamp(self) -> Hashable:
        return self._manager.memory.cache.stamp


class OrderedQueue(RequestQueue):
    """vLLM's waiting requests in one of our orders."""

    def __init__(self, waiting: WaitingConfig, manager: HybridCacheManager) -> None:
        self._order = waiting.build(EngineProspects(manager))

    def add_request(self, request: Request) -> None:
        self._order.add(request)

    def peek_request(self) -> Request:
        request = self._order.peek()
        if request is None:
            raise IndexError("peek from an empty queue")
        return request

    def pop_request(self) -> Request:
        return self._order.pop()

    def prepend_request(self, request: Request) -> None:
        self._order.prepend(request)

    def prepend_requests(self, requests: RequestQueue) -> None:
        """As vLLM's own queue: the last one of `requests` becomes the first."""
        for request in requests:
            self._order.prepend(request)

    def remove_request(self, request: Request) -> None:
        self._order.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of the requests that are here."""
        here = set(self._order)
        for request in requests:
            if request in here:
                self._order.remove(request)

    def __bool__(self) -> bool:
        return len(self._order) > 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._order)
