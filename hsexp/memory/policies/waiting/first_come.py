"""First come, first served: the order of vLLM, and of the paper."""

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from hsexp.memory.policies.waiting.order import Prospects, Request, WaitingOrder, WaitingSettings


class FirstCome(WaitingSettings):
    """By arrival; it has no settings."""

    by_arrival: ClassVar[bool] = True

    kind: Literal["first_come"]

    def build(self, prospects: Prospects[Any]) -> WaitingOrder[Any]:
        return FirstComeFirstServed()


class FirstComeFirstServed(WaitingOrder[Request]):
    """In the order of arrival; a preempted request comes before all of them."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def prepend(self, request: Request) -> None:
        self._queue.appendleft(request)

    def peek(self) -> Request | None:
        return self._queue[0] if self._queue else None

    def pop(self) -> Request:
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)
