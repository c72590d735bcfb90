"""The waiting requests, and which of them is asked for admission next."""

from abc import ABC, abstractmethod
from collections import deque

from hsexp.sim.requests import SimRequest


class WaitingOrder(ABC):
    """The waiting requests of one scheduler. Its methods are named after vLLM's `RequestQueue`.

    Only the first request is ever asked: a refusal ends the admissions of a step. Which one is
    first must not change in steps that only decode, since the scheduler leaps over them.
    """

    @abstractmethod
    def add(self, request: SimRequest) -> None:
        """Take in a request that has arrived."""

    @abstractmethod
    def prepend(self, request: SimRequest) -> None:
        """Take back a request that was preempted."""

    @abstractmethod
    def peek(self) -> SimRequest | None:
        """The request to ask next; None if none waits."""

    @abstractmethod
    def pop(self) -> SimRequest:
        """Remove and return the request to ask next, which is admitted."""

    @abstractmethod
    def __len__(self) -> int: ...


class FirstComeFirstServed(WaitingOrder):
    """In the order of arrival; a preempted request comes before all of them."""

    def __init__(self) -> None:
        self._queue: deque[SimRequest] = deque()

    def add(self, request: SimRequest) -> None:
        self._queue.append(request)

    def prepend(self, request: SimRequest) -> None:
        self._queue.appendleft(request)

    def peek(self) -> SimRequest | None:
        return self._queue[0] if self._queue else None

    def pop(self) -> SimRequest:
        return self._queue.popleft()

    def __len__(self) -> int:
        return len(self._queue)
