"""How long a browser may take to send a request or to read an answer, and how many may try.

uvicorn waits for a head without end, however long it grows.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_BYTES_MAX: Final = 64 << 10
HEAD_S: Final = 10.0
ANSWER_S: Final = 120.0
CONNECTIONS_MAX: Final = 500
"""Besides the sockets of pages."""


class _Patient(asyncio.Protocol):
    """Around uvicorn's protocol, whichever of the two is installed."""

    cycle: Any = None
    """The request that is served, if its head is complete."""
    transport: Any
    connections: set[Any]
    since_s = 0.0
    _due: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _answering = False
    """What is expected is the end of an answer, not of a head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.since_s = asyncio.get_running_loop().time()
        super().connection_made(transport)
        self._expect(HEAD_S)
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [one for one in self.connections if not one.busy]
            min(waiting, key=lambda one: float(one.since_s), default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            self._expect(None)  # a socket of a page now
        elif self.busy:
            self._head_bytes = 0
            if self.cycle is not before:
                self._expect(ANSWER_S)
        else:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.transport.abort()
            elif self._due is None or self._answering:
                self._expect(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self, within_s: float | None) -> None:
        """Hang up after so long, unless what is expected comes before that; None: never."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._answering = self.busy
        if within_s is not None:
            self._due = asyncio.get_running_loop().call_later(within_s, self._give_up)

    def _give_up(self) -> None:
        self._due = None
        if self.busy == self._answering and self.transport.get_protocol() is self:
            self.transport.abort()


PatientProtocol: Final = cast(
    "type[asyncio.Protocol]", type("PatientProtocol", (_Patient, AutoHTTPProtocol), {})
)
