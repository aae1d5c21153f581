"""What clients share: one connection, made when it is needed, and again when it was lost.

What failed for the connection or the broker is tried again after growing waits, unless so much has
failed that it is not even tried for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from pentalog.clients.patience import CircuitBreaker, Patience

T = TypeVar("T")


class ConnectionLost(Exception):
    """There is no connection, it broke, or it took too long."""


class Trouble(Exception):
    """The broker has trouble: it may help to send it again."""


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, brackets around an IPv6 host."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()):
        raise ValueError(f"address {text!r}; give HOST:PORT, for example 127.0.0.1:5555")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Reconnecting:
    """Base of blocking clients."""

    def __init__(
        self,
        address: str,
        timeout_s: float,
        patience: Patience | None,
        breaker: CircuitBreaker | None,
    ) -> None:
        self._address = parse_address(address)
        self._timeout_s = timeout_s
        self._patience = patience or Patience()
        self._breaker = breaker or CircuitBreaker()
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _persist(self, attempt: Callable[[], T]) -> T:
        delays_ms = self._patience.delays_ms()
        while True:
            self._breaker.check(time.monotonic())
            try:
                answer = attempt()
            except (ConnectionLost, Trouble) as trouble:
                if isinstance(trouble, ConnectionLost):
                    self.close()
                self._breaker.failed(time.monotonic())
                delay_ms = next(delays_ms, None)
                if delay_ms is None:
                    raise
                time.sleep(delay_ms / 1000)
            else:
                self._breaker.succeeded()
                return answer

    def _connect(self) -> socket.socket:
        self._socket = socket.create_connection(self._address, self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _lost(self, error: Exception) -> ConnectionLost:
        host, port = self._address
        return ConnectionLost(f"{host}:{port}: {str(error) or 'timed out'}")


class AsyncReconnecting:
    """Base of clients for asyncio: one exchange at a time, callers wait in line."""

    def __init__(
        self,
        address: str,
        timeout_s: float,
        patience: Patience | None,
        breaker: CircuitBreaker | None,
    ) -> None:
        self._address = parse_address(address)
        self._timeout_s = timeout_s
        self._patience = patience or Patience()
        self._breaker = breaker or CircuitBreaker()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        delays_ms = self._patience.delays_ms()
        while True:
            self._breaker.check(loop.time())
            try:
                async with self._turn:
                    answer = await self._attempt(attempt)
            except (ConnectionLost, Trouble):
                self._breaker.failed(loop.time())
                delay_ms = next(delays_ms, None)
                if delay_ms is None:
                    raise
                await asyncio.sleep(delay_ms / 1000)
            else:
                self._breaker.succeeded()
                return answer

    async def _attempt(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """In line: later, the next caller may have a connection of its own already."""
        try:
            return await attempt()
        except ConnectionLost:
            await self.close()
            raise

    def _abandon(self) -> None:
        """Answers that may still come must not be taken for those of the next exchange."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    def _lost(self, error: Exception) -> ConnectionLost:
        host, port = self._address
        return ConnectionLost(f"{host}:{port}: {str(error) or 'timed out'}")
