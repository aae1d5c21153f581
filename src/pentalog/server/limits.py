"""What all connections together may take: how many, from where, and how much memory."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol
from weakref import WeakValueDictionary

from pentalog.config import Config
from pentalog.metrics import Metrics
from pentalog.runtime import Slices
from pentalog.server.addresses import Addresses, block_of
from pentalog.server.fair_memory import FairMemory
from pentalog.server.reply_memory import AddressSlices, ReplyMemory

_log = logging.getLogger("pentalog.server")

_SWEEP_INTERVAL_S: Final = 5.0
_WARNING_INTERVAL_S: Final = 10.0
SPARE_FILES: Final = 256
"""Open files besides those of connections and segments."""
_FILES_PER_CONNECTION: Final = 2
_STRANGERS_SHARE: Final = 100
"""Clients that have not logged in, where they must, have a hundredth of all receive memory."""
_ASKED: Final = 64
"""Addresses that wait for memory and are asked when some is given back."""
_LOOKED_AT: Final = 64
"""Connections whose idleness is checked in one step."""


class Guest(Protocol):
    """A connection, as far as its limits are concerned."""

    def sweep(self, *, pressed: bool) -> bool:
        """Give back receive memory that lies idle; `pressed`: others are waiting for it.

        True if it had to be closed for that.
        """

    def evict(self) -> None:
        """Close, so that others can go on: all memory is held by those who wait for more."""

    @property
    def block(self) -> str:
        """The address that its memory is charged to."""

    @property
    def standing(self) -> tuple[int, float]:
        """The connection with the least is closed first: its kind, then its last request."""

    def make_way(self) -> None:
        """Close, so that a client from another address can connect."""

    def close_if_idle(self, idle_s: float) -> None:
        """Close if nothing was sent either way, or waited for, for so long."""


class Limits:
    """Counts what is taken and says no; one per server."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: Config, metrics: Metrics, slices: Slices
    ) -> None:
        self.grown: set[Guest] = set()
        """Connections with more than the least receive memory."""
        self._loop = loop
        self._config = config
        self._metrics = metrics
        self._slices = slices
        self._connections = 0
        self._possible = _possible_connections()
        self._guests: dict[Guest, str] = {}
        self._leaving = 0
        """Connections that were closed for others and are not gone yet."""
        self._addresses: Addresses[Guest] = Addresses()
        self._memory = FairMemory()
        self._strangers = FairMemory()
        self._looking = False
        self._stop_looking: Callable[[], None] = _nothing
        self._waiting: dict[str, deque[tuple[Guest, Callable[[], bool]]]] = {}
        """By address: those that wait because of their own address delay no other."""
        self._freed = False
        self._warned: dict[str, tuple[float, int]] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.replies = ReplyMemory(loop, config.reply_bytes_max, self.warn)
        self._address_slices: WeakValueDictionary[str, AddressSlices] = WeakValueDictionary()

    @property
    def receive_bytes(self) -> int:
        """Receive memory of all connections."""
        return self._memory.used_bytes

    def reconfigure(self, config: Config) -> None:
        """The broker's settings have changed; those who are connected stay."""
        self._config = config
        self.replies.resize(config.reply_bytes_max)

    def slices(self, block: str) -> Slices:
        """Return what runs the long requests of an address, for all of its connections."""
        slices = self._address_slices.get(block)
        if slices is None:
            slices = self._address_slices[block] = AddressSlices(self._slices, self.replies, block)
        return slices

    def admit(self, host: str, guest: Guest, receive_bytes: int) -> bool:
        config = self._config
        block = block_of(host)
        if self._addresses.count(block) >= config.connections_per_address_max:
            flaw = f"connections_per_address_max={config.connections_per_address_max} are open"
        elif not self._has_place(config.connections_max) and not self.make_way(host):
            flaw = f"connections_max={config.connections_max} are open"
        elif not self._has_place(self._possible) and not self.make_way(host):
            flaw = f"{self._possible} are open, for which this process may open files"
        elif not self._memory.take(block, receive_bytes, config.receive_bytes_max):
            flaw = f"receive_bytes_max={config.receive_bytes_max} are in use"
        else:
            self._connections += 1
            self._guests[guest] = block
            self._addresses.add(block, guest)
            self._metrics.connections_opened += 1
            return True
        self._metrics.connections_refused += 1
        self.warn("refused", f"connection from {host} refused: {flaw}; raise the limit")
        return False

    def make_way(self, host: str) -> bool:
        """Close a connection of the address that has the most, for one from `host`.

        False if no address has clearly more connections than that of `host`.
        """
        block = self._addresses.crowded(block_of(host))
        if block is None:
            return False
        victim = self._addresses.least(block)
        self._addresses.discard(block, victim)
        del self._guests[victim]
        self._leaving += 1
        victim.make_way()
        return True

    def _has_place(self, most: int) -> bool:
        return self._connections - self._leaving < most

    def forget(self, guest: Guest) -> None:
        """It has gone: it waits for nothing any more."""
        self.grown.discard(guest)
        waiting = self._waiting.pop(guest.block, ())
        if left := deque(entry for entry in waiting if entry[0] is not guest):
            self._waiting[guest.block] = left

    def dismiss(self, guest: Guest, receive_bytes: int) -> None:
        """A connection that was admitted has gone."""
        self._connections -= 1
        block = self._guests.pop(guest, None)
        if block is None:
            self._leaving -= 1
        else:
            self._addresses.discard(block, guest)
        self._metrics.connections_closed += 1
        self.give_back(guest, receive_bytes)

    def take_for_stranger(self, guest: Guest, receive_bytes: int, login_bytes_max: int) -> bool:
        """Take receive memory for a client that must log in first; `settle_stranger` ends it."""
        most = self._config.receive_bytes_max // _STRANGERS_SHARE
        if not self._strangers.take_fairly(guest.block, receive_bytes, most, login_bytes_max):
            return False
        if self.take(guest, receive_bytes):
            return True
        self._strangers.give_back(guest.block, receive_bytes)
        return False

    def settle_stranger(self, guest: Guest, receive_bytes: int) -> None:
        """A client has logged in or gone: what it took counts as all other receive memory."""
        self._strangers.give_back(guest.block, receive_bytes)

    def take(self, guest: Guest, receive_bytes: int) -> bool:
        """Take receive memory, if there is any left that its address may have."""
        most, frame_bytes = self._config.receive_bytes_max, self._config.frame_bytes_max
        return self._memory.take_fairly(guest.block, receive_bytes, most, frame_bytes)

    def give_back(self, guest: Guest, receive_bytes: int) -> None:
        self._memory.give_back(guest.block, receive_bytes)
        self._freed = True
        # Each address that is asked goes to the end; the others are asked when more is freed.
        for block in tuple(islice(self._waiting, _ASKED)):
            waiting = self._waiting.pop(block)
            while waiting and waiting[0][1]():
                waiting.popleft()
            if waiting:
                self._waiting[block] = waiting

    def wait(self, guest: Guest, retry: Callable[[], bool]) -> None:
        """Call `retry` when memory is given back, until it says it needs no more."""
        self._waiting.setdefault(guest.block, deque()).append((guest, retry))
        self.warn(
            "memory",
            f"of receive_bytes_max={self._config.receive_bytes_max} no more is left for "
            f"{guest.block}: reading large frames waits; raise it or lower frame_bytes_max",
        )

    def warn(self, kind: str, text: str) -> None:
        """Log `text`, but of each kind one line in ten seconds: a flood must not fill the disk."""
        now = self._loop.time()
        last, swallowed = self._warned.get(kind, (-_WARNING_INTERVAL_S, 0))
        if now - last < _WARNING_INTERVAL_S:
            self._warned[kind] = (last, swallowed + 1)
            return
        self._warned[kind] = (now, 0)
        _log.warning("%s%s", text, f" ({swallowed} more like this)" if swallowed else "")

    def start_sweeping(self) -> None:
        idle_ms = self._config.connections_max_idle_ms
        interval_s = min(_SWEEP_INTERVAL_S, idle_ms / 4_000) if idle_ms > 0 else _SWEEP_INTERVAL_S
        self._sweep_timer = self._loop.call_later(interval_s, self._sweep_due)

    def stop_sweeping(self) -> None:
        self._stop_looking()
        self._looking = False
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def sweep(self) -> None:
        """Take back receive memory that lies idle; done every few seconds."""
        waiting = {guest for queue in self._waiting.values() for guest, _ in queue}
        pressed, self._freed = bool(waiting) and not self._freed, False
        # An address that holds less than all that wait is not what they wait for.
        least = min((self._memory.held(block) for block in self._waiting), default=0)
        for guest in tuple(self.grown - waiting):
            # One at a time: what it gives back may already let all the others go on.
            if guest.sweep(pressed=pressed and self._memory.held(guest.block) >= least):
                return
        if pressed and not self.grown - waiting:
            heaviest = max(self._waiting, key=self._memory.held)
            self._waiting[heaviest][-1][0].evict()

    def _sweep_due(self) -> None:
        self.start_sweeping()
        self.sweep()
        if not self._looking:
            self._looking = True
            self._stop_looking = self._slices.run(self._look_at_all(), self._looked)

    def _look_at_all(self) -> Iterator[None]:
        yield from self.replies.sweep()
        idle_ms = self._config.connections_max_idle_ms
        if idle_ms > 0:
            yield from self._close_idle(idle_ms / 1000)

    def _close_idle(self, idle_s: float) -> Iterator[None]:
        for number, guest in enumerate(tuple(self._guests)):
            guest.close_if_idle(idle_s)
            if number % _LOOKED_AT == 0:
                yield

    def _looked(self, error: Exception | None) -> None:
        self._looking = False
        if error is not None:
            raise error


def _nothing() -> None: ...


def _possible_connections() -> int:
    """Return how many connections the open files of this process are enough for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, (soft - SPARE_FILES) // _FILES_PER_CONNECTION)
