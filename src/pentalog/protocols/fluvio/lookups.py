"""What the broker must know before a request of Fluvio can be served.

A request says so by `Call.know`, before it has done anything.  If that must be asked of others, the
connection's line is held, and the same frame is served once more when the answers are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pentalog.broker.knowledge import Knowledge
from pentalog.broker.port import Broker
from pentalog.model.later import Later, all_of
from pentalog.session import Replies

Look = Callable[[Knowledge], Iterable[Later[None]]]


class Asked(Exception):
    """What was to be known is on its way: the request is to come again."""


class Asking:
    """What the request at the head of one connection has asked for so far."""

    __slots__ = ("_asked", "_known", "_position", "_replies")

    def __init__(self, broker: Broker, replies: Replies) -> None:
        self._known = broker.knowledge
        self._replies = replies
        self._asked: list[Sequence[Later[None]]] = []
        self._position = 0

    def know(self, look: Look) -> None:
        """Go on only with these answers; raises `Asked`, or what stood against knowing them."""
        if self._known.current:
            return
        if self._position == len(self._asked):
            self._asked.append(tuple(look(self._known)))
            self._hold(self._asked[-1])
        asked = self._asked[self._position]
        self._position += 1
        for later in asked:
            later.check()

    def again(self) -> None:
        """The request will be served from its beginning."""
        self._position = 0

    def forget(self) -> None:
        """The request has been served."""
        if self._asked:
            self._asked = []
            self._position = 0

    def _hold(self, asked: Sequence[Later[None]]) -> None:
        if all(later.ready for later in asked):
            return
        release = self._replies.hold()
        all_of(asked).then(lambda _: release())
        raise Asked


def marks(known: Knowledge, indexes: Mapping[str, Collection[int]]) -> Iterable[Later[None]]:
    """Where these partitions begin and end."""
    return [known.partitions(topic, chosen) for topic, chosen in indexes.items() if chosen]
