"""Pages on their way to one connection: made one at a time, and only while there is room.

A page may be as large as all answers a connection may have queued, and many requests may wait for
one: woken together, they would fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pentalog.protocols.cursus.errors import Refused

if TYPE_CHECKING:
    from pentalog.protocols.cursus.calls import Call
    from pentalog.session import Replies

PENDING_MAX: Final = 100
"""Well below the places a connection may keep: a full line of them would wait for itself."""


class Reads:
    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._pending = 0
        self._active: Call | None = None
        self._queue: deque[tuple[Call, Callable[[], None]]] = deque()
        self._armed = False

    def enter(self, call: Call) -> None:
        """Count a request until it is answered; refuses one too many."""
        if self._pending >= PENDING_MAX:
            raise Refused(
                f'broker_error reason="{PENDING_MAX} reads wait on this connection already"'
            )
        self._pending += 1
        call.finished = self._answered

    def take_turn(self, call: Call, run: Callable[[], None]) -> None:
        """Run at once if nobody else is at it and there is room, else in its turn."""
        if self._active is call:
            run()
        elif self._active is None and not self._queue and not self._replies.full:
            self._active = call
            run()
        else:
            call.keep_place()
            self._queue.append((call, run))
            self._arm()

    def give_way(self, call: Call) -> None:
        """The request has to wait for something: others may go on."""
        if self._active is call:
            self._active = None
            self._arm()

    def _answered(self, call: Call) -> None:
        self._pending -= 1
        self.give_way(call)

    def _arm(self) -> None:
        if self._queue and self._active is None and not self._armed:
            self._armed = True
            self._replies.when_room(self._next)

    def _next(self) -> None:
        self._armed = False
        if self._queue and self._active is None:
            self._active, run = self._queue.popleft()
            self._active.attempt(run)
