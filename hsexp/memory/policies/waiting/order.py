"""The seam: a scheduler hands over its waiting requests; the order decides who is asked next.

    scheduler   waiting requests ->  order  -> peek: who is asked for admission
    prospects   what the order may know about a request: its arrival, its present hit

The simulator and vLLM's scheduler use the same orders, each for requests of its own type.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from hsexp.config.fields import Choice

Request = TypeVar("Request")
Asked = TypeVar("Asked", contravariant=True)


class Prospects(Protocol[Asked]):
    """What an order may ask about a waiting request. Asking changes nothing."""

    def arrival_s(self, request: Asked) -> float:
        """When it arrived; only differences have a meaning."""
        ...

    def hit_tokens(self, request: Asked) -> int:
        """Tokens of its prompt that it would take from the cache now."""
        ...

    @property
    def stamp(self) -> Hashable:
        """Changes whenever the hit of any request may have changed."""
        ...


class WaitingOrder(ABC, Generic[Request]):
    """The waiting requests of one scheduler, by the words of vLLM's `RequestQueue`.

    Only the first one is ever asked: a refusal ends the admissions of a step. Who is first may
    depend on the waiting requests and on the cache, and on nothing else: a scheduler may leap over
    steps in which neither changes.
    """

    @abstractmethod
    def add(self, request: Request) -> None:
        """The request has arrived."""

    @abstractmethod
    def prepend(self, request: Request) -> None:
        """The request has run, and has lost its memory."""

    @abstractmethod
    def peek(self) -> Request | None:
        """The one to be asked next; None if nobody waits."""

    @abstractmethod
    def pop(self) -> Request:
        """The one that `peek` returned last; it is admitted, which may have changed the cache."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """The request is cancelled while it waits."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """Everyone who waits: first those who have run, then in the order of arrival."""


class WaitingSettings(Choice):
    """Settings of a waiting order."""

    by_arrival: ClassVar[bool] = False
    """Whether the order is that of arrival. An engine that has such a queue keeps its own."""

    @abstractmethod
    def build(self, prospects: Prospects[Any]) -> WaitingOrder[Any]:
        """The order of one scheduler, without requests.

        Args:
            prospects: of the requests that the scheduler will hand over.
        """
