"""Memory for large frames, shared fairly by all connections of a door.

A large frame is in memory more than once while it is opened and stored.  Each connection has one at
a time; here is how much all of them may have together, and who is next when that is used up.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final

BYTES_MAX: Final = 256 << 20


class Reservation:
    """Memory that a frame has, or waits for."""

    __slots__ = ("_room", "granted", "run", "size")

    def __init__(self, room: Workroom, size: int, run: Callable[[], None]) -> None:
        self._room = room
        self.size = size
        self.run = run
        self.granted = False

    def shrink(self, size: int) -> None:
        """Give back what is more than `size`."""
        spare = self.size - size
        if self.granted and spare > 0:
            self.size = size
            self._room.give_back(spare)

    def release(self) -> None:
        """Give the memory back, or stop waiting for it."""
        size, self.size = self.size, 0
        if self.granted and size:
            self._room.give_back(size)


class Workroom:
    """Grants reservations, one owner after the other when they have to wait."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: OrderedDict[Hashable, deque[Reservation]] = OrderedDict()

    def reserve(self, owner: Hashable, size: int, run: Callable[[], None]) -> Reservation:
        """Call `run` once `size` bytes may be used; maybe before this returns."""
        reservation = Reservation(self, size, run)
        if not self._waiting and self._fits(size):
            self._grant(reservation)
        else:
            self._waiting.setdefault(owner, deque()).append(reservation)
        return reservation

    def give_back(self, size: int) -> None:
        self._used_bytes -= size
        while self._waiting:
            owner, queue = self._waiting.popitem(last=False)
            while queue and not queue[0].size:
                queue.popleft()
            if queue and not self._fits(queue[0].size):
                self._waiting[owner] = queue
                self._waiting.move_to_end(owner, last=False)
                return
            following = queue.popleft() if queue else None
            if queue:
                self._waiting[owner] = queue
            if following is not None:
                self._grant(following)

    def _fits(self, size: int) -> bool:
        return not self._used_bytes or self._used_bytes + size <= self._bytes_max

    def _grant(self, reservation: Reservation) -> None:
        self._used_bytes += reservation.size
        reservation.granted = True
        reservation.run()
