"""Pages on their way to one connection: made one at a time, in order, and only if there is memory.

A page may be as large as all answers a connection may have queued, and many requests may wait for
one: woken together, they would fill the memory.  Answers leave in order, so a page that stands
behind a request which waits for records is not read before that is answered: it would use up the
memory that the request needs in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from pentalog.protocols.cursus.errors import Refused

if TYPE_CHECKING:
    from pentalog.protocols.cursus.calls import Call
    from pentalog.runtime import Runtime
    from pentalog.session import Replies

PENDING_MAX: Final = 100
"""Well below the places a connection may keep: a full line of them would wait for itself."""


class Reads:
    def __init__(self, replies: Replies, runtime: Runtime) -> None:
        self._replies = replies
        self._runtime = runtime
        self._pending: dict[Call, None] = {}
        """Requests that are not answered, in order."""
        self._active: Call | None = None
        self._release: Callable[[], None] | None = None
        self._queue: dict[Call, tuple[int, Callable[[], None]]] = {}
        self._armed = False

    def enter(self, call: Call) -> None:
        """Count a request until it is answered; refuses one too many."""
        if len(self._pending) >= PENDING_MAX:
            raise Refused(
                f'broker_error reason="{PENDING_MAX} reads wait on this connection already"'
            )
        self._pending[call] = None
        call.finished = self._answered

    def take_turn(self, call: Call, size: int, run: Callable[[], None]) -> None:
        """Run when all reads before it are answered and there is memory, at once if that is now.

        Memory for a page of `size` bytes is reserved before, until the request is answered.
        """
        if self._active is call:
            run()
        elif self._is_next(call):
            self._begin(call, size, run)
        else:
            call.keep_place()
            self._queue[call] = (size, run)
            self._arm()

    def give_way(self, call: Call) -> None:
        """Release the memory of a request that has to wait for records."""
        if self._active is call:
            self._active = None
            release, self._release = self._release, None
            if release is not None:
                release()

    def _is_next(self, call: Call) -> bool:
        return self._active is None and next(iter(self._pending)) is call

    def _begin(self, call: Call, size: int, run: Callable[[], None]) -> None:
        self._active = call
        call.after(self._replies.reserve(size), partial(self._reserved, run))

    def _reserved(self, run: Callable[[], None], release: Callable[[], None]) -> None:
        self._release = release
        run()

    def _answered(self, call: Call) -> None:
        self._pending.pop(call, None)
        self._queue.pop(call, None)
        self.give_way(call)
        self._arm()

    def _arm(self) -> None:
        # In a later turn: a long line of pages is no deep stack of calls.
        if self._queue and not self._armed:
            self._armed = True
            self._runtime.soon(self._next)

    def _next(self) -> None:
        self._armed = False
        if self._queue:
            call = next(iter(self._pending))
            if call in self._queue and self._active is None:
                self._begin(call, *self._queue.pop(call))
