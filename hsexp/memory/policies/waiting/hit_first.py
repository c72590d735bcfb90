"""Hit first within a window: who finds most of the prompt in the cache is asked first.

    queue     A 0 s, no hit | B 3 s, 512 tokens | C 8 s, 1,024 tokens | D 12 s, 2,048 tokens
    window    10 s after the arrival of A, the head: A, B and C
    next      C; then B; then A if the cache is still the same; D not before A has gone

Nobody is passed over by a request that arrived more than a window later: whoever goes first
arrived at most a window after the head, and the head arrived first. So a request waits for at most
those that arrived before it and within a window after it.

A preempted request is never passed over. Those that have run and wait again go before all others,
the last one to be preempted first, as without a window.
"""

from collections.abc import Hashable, Iterator
from typing import Any, Literal

from pydantic import PositiveFloat

from hsexp.memory.policies.waiting.order import Prospects, Request, WaitingOrder, WaitingSettings


class HitFirst(WaitingSettings):
    """The deepest hit within a window of arrivals."""

    kind: Literal["hit_first"]
    window_s: PositiveFloat
    """Longest time by which a request may have arrived behind one that it passes over."""

    def build(self, prospects: Prospects[Any]) -> WaitingOrder[Any]:
        return DeepestHitFirst(prospects, window_s=self.window_s)


class DeepestHitFirst(WaitingOrder[Request]):
    """The deepest hit among those that arrived within the window of the head; of equal hits the
    earliest arrival."""

    def __init__(self, prospects: Prospects[Request], *, window_s: float) -> None:
        self._prospects = prospects
        self._window_s = window_s
        self._preempted: list[Request] = []
        """The next one last."""
        self._arrived: dict[Request, None] = {}
        """In the order of arrival."""
        self._chosen: Request | None = None
        """Result of the last look at those that arrived, while it holds."""
        self._stamp: Hashable = None
        """The cache's stamp at that look."""

    def add(self, request: Request) -> None:
        self._arrived[request] = None
        self._chosen = None

    def prepend(self, request: Request) -> None:
        self._preempted.append(request)

    def peek(self) -> Request | None:
        if self._preempted:
            return self._preempted[-1]
        stamp = self._prospects.stamp
        if self._chosen is None or stamp != self._stamp:
            self._chosen, self._stamp = self._choose(), stamp
        return self._chosen

    def pop(self) -> Request:
        if self._preempted:
            return self._preempted.pop()
        chosen = self._chosen
        if chosen is None:
            raise IndexError("pop without a peek before it")
        self._chosen = None
        del self._arrived[chosen]
        return chosen

    def remove(self, request: Request) -> None:
        if request in self._arrived:
            del self._arrived[request]
            self._chosen = None
        else:
            self._preempted.remove(request)

    def __len__(self) -> int:
        return len(self._preempted) + len(self._arrived)

    def __iter__(self) -> Iterator[Request]:
        yield from reversed(self._preempted)
        yield from self._arrived

    def _choose(self) -> Request | None:
        prospects, chosen, deepest, latest_s = self._prospects, None, -1, 0.0
        for request in self._arrived:
            if chosen is None:
                latest_s = prospects.arrival_s(request) + self._window_s
            elif prospects.arrival_s(request) > latest_s:
                break
            hit_tokens = prospects.hit_tokens(request)
            if hit_tokens > deepest:
                chosen, deepest = request, hit_tokens
        return chosen
