"""The waiting requests, and who of them is asked for admission next."""

from abc import ABC, abstractmethod
from collections import deque

from hsexp.sim.requests import SimRequest


class WaitingOrder(ABC):
    """The waiting requests of one scheduler, by the words of vLLM's `RequestQueue`.

    Only the first one is ever asked: a refusal ends the admissions of a step. Who is first must not
    change while nothing but decoding happens, since the scheduler leaps over such steps.
    """

    @abstractmethod
    def add(self, request: SimRequest) -> None:
        """The request has arrived."""

    @abstractmethod
    def prepend(self, request: SimRequest) -> None:
        """The request has run, and has lost its memory."""

    @abstractmethod
    def peek(self) -> SimRequest | None:
        """The one to be asked next; None if nobody waits."""

    @abstractmethod
    def pop(self) -> SimRequest:
        """The one to be asked next; it is admitted."""

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
