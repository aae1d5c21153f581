"""Memory for large frames, shared fairly by all connections of a door.

A large frame is in memory more than once while it is opened and stored.  Each connection has one at
a time; here is how much all of them may have together, and who is next when that is used up.
One client may have as much as it leaves free for the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final

BYTES_MAX: Final = 256 << 20


class Reservation:
    """Memory that a frame has, or waits for."""

    __slots__ = ("_room", "granted", "owner", "run", "size")

    def __init__(self, room: Workroom, owner: Hashable, size: int, run: Callable[[], None]) -> None:
        self._room = room
        self.owner = owner
        self.size = size
        self.run = run
        self.granted = False

    def shrink(self, size: int) -> None:
        """Give back what is more than `size`."""
        spare = self.size - size
        if self.granted and spare > 0:
            self.size = size
            self._room.give_back(self.owner, spare)

    def release(self) -> None:
        """Give the memory back, or stop waiting for it."""
        size, self.size = self.size, 0
        if self.granted and size:
            self._room.give_back(self.owner, size)


class Workroom:
    """Grants reservations, one owner after the other when they have to wait."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._held: dict[Hashable, int] = {}
        self._waiting: OrderedDict[Hashable, deque[Reservation]] = OrderedDict()

    def reserve(self, owner: Hashable, size: int, run: Callable[[], None]) -> Reservation:
        """Call `run` once `size` bytes may be used; maybe before this returns."""
        reservation = Reservation(self, owner, size, run)
        self._waiting.setdefault(owner, deque()).append(reservation)
        self._grant_waiting()
        return reservation

    def give_back(self, owner: Hashable, size: int) -> None:
        self._used_bytes -= size
        held = self._held.pop(owner) - size
        if held:
            self._held[owner] = held
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        while (reservation := self._next()) is not None:
            owner = reservation.owner
            queue = self._waiting.pop(owner)
            queue.popleft()
            if queue:
                self._waiting[owner] = queue  # as the last one
            self._used_bytes += reservation.size
            self._held[owner] = self._held.get(owner, 0) + reservation.size
            reservation.granted = True
            reservation.run()

    def _next(self) -> Reservation | None:
        """Return the reservation to grant next; None if the owner whose turn it is must wait."""
        for owner, queue in list(self._waiting.items()):
            while queue and not queue[0].size:
                queue.popleft()
            if not queue:
                del self._waiting[owner]
                continue
            size = queue[0].size
            left = self._bytes_max - self._used_bytes - size
            held = self._held.get(owner, 0)
            if held and held + size > left:
                continue  # until it has given back some: others have their turn
            return queue[0] if left >= 0 or not self._used_bytes else None
        return None
