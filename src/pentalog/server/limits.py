"""What all connections together may take: how many, from where, and how much memory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from pentalog.config import Config
from pentalog.metrics import Metrics

_log = logging.getLogger("pentalog.server")

_SWEEP_INTERVAL_S: Final = 5.0
_WARNING_INTERVAL_S: Final = 10.0


class Guest(Protocol):
    """A connection, as far as its limits are concerned."""

    def sweep(self, *, pressed: bool) -> bool:
        """Give back receive memory that lies idle; `pressed`: others are waiting for it.

        True if it had to be closed for that.
        """

    def evict(self) -> None:
        """Close, so that others can go on: all memory is held by those who wait for more."""


class Limits:
    """Counts what is taken and says no; one per server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config, metrics: Metrics) -> None:
        self.grown: set[Guest] = set()
        """Connections with more than the least receive memory."""
        self._loop = loop
        self._config = config
        self._metrics = metrics
        self._connections = 0
        self._by_address: Counter[str] = Counter()
        self._receive_bytes = 0
        self._waiting: deque[tuple[Guest, Callable[[], bool]]] = deque()
        self._freed = False
        self._warned: dict[str, tuple[float, int]] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def receive_bytes(self) -> int:
        """Receive memory of all connections."""
        return self._receive_bytes

    def reconfigure(self, config: Config) -> None:
        """The broker's settings have changed; those who are connected stay."""
        self._config = config

    def admit(self, host: str, receive_bytes: int) -> bool:
        config = self._config
        if self._connections >= config.connections_max:
            flaw = f"connections_max={config.connections_max} are open"
        elif self._by_address[host] >= config.connections_per_address_max:
            flaw = f"connections_per_address_max={config.connections_per_address_max} are open"
        elif not self.take(receive_bytes):
            flaw = f"receive_bytes_max={config.receive_bytes_max} are in use"
        else:
            self._connections += 1
            self._by_address[host] += 1
            self._metrics.connections_opened += 1
            return True
        self._metrics.connections_refused += 1
        self.warn("refused", f"connection from {host} refused: {flaw}; raise the limit")
        return False

    def forget(self, guest: Guest) -> None:
        """It has gone: it waits for nothing any more."""
        self.grown.discard(guest)
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not guest)

    def dismiss(self, host: str, receive_bytes: int) -> None:
        """A connection that was admitted has gone."""
        self._connections -= 1
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]
        self._metrics.connections_closed += 1
        self.give_back(receive_bytes)

    def take(self, receive_bytes: int) -> bool:
        """Take receive memory, if there is any left."""
        if self._receive_bytes + receive_bytes > self._config.receive_bytes_max:
            return False
        self._receive_bytes += receive_bytes
        return True

    def give_back(self, receive_bytes: int) -> None:
        self._receive_bytes -= receive_bytes
        self._freed = True
        while self._waiting and self._waiting[0][1]():
            self._waiting.popleft()

    def wait(self, guest: Guest, retry: Callable[[], bool]) -> None:
        """Call `retry` when memory is given back, until it says it needs no more."""
        self._waiting.append((guest, retry))
        self.warn(
            "memory",
            f"receive_bytes_max={self._config.receive_bytes_max} are in use: reading large "
            "frames waits; raise it or lower frame_bytes_max",
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
        self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep_due)

    def stop_sweeping(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def sweep(self) -> None:
        """Take back receive memory that lies idle; done every few seconds."""
        waiting = {guest for guest, _ in self._waiting}
        pressed, self._freed = bool(waiting) and not self._freed, False
        for guest in tuple(self.grown - waiting):
            # One at a time: what it gives back may already let all the others go on.
            if guest.sweep(pressed=pressed):
                return
        if pressed and not self.grown - waiting:
            self._waiting[-1][0].evict()

    def _sweep_due(self) -> None:
        self.start_sweeping()
        self.sweep()
