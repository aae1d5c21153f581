"""Connections to other machines, on the event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Final, cast

from pentalog.cluster.wire import Bytes, Receiver

_CONNECT_TIMEOUT_S: Final = 10.0
_NOBODYS: Final = memoryview(bytearray(1 << 10))
"""For what comes after the end."""


class AsyncioDialer:
    """`cluster.wire.Dialer`, for real."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None = None) -> None:
        self._loop = loop
        self._tls = tls

    def dial(self, host: str, port: int, receiver: Receiver) -> AsyncioWire:
        return AsyncioWire(self._loop, host, port, receiver, self._tls)


def tls_of(authorities: str) -> ssl.SSLContext:
    """Trusts those in this file, or those the system does; raises `OSError`."""
    return ssl.create_default_context(cafile=authorities or None)


class AsyncioCaller:
    """`broker.upstream.Caller`, for real."""

    def __init__(self, loop: asyncio.AbstractEventLoop, authorities: str) -> None:
        """`authorities`: whose certificates are trusted where a listener demands TLS."""
        self._loop = loop
        self._authorities = authorities
        self._tls: ssl.SSLContext | None = None

    def call(self, listener: str, host: str, port: int, caller: Receiver) -> AsyncioWire:
        tls = None
        if "tls" in listener.split("+"):
            tls = self._tls = self._tls or tls_of(self._authorities)
        return AsyncioWire(self._loop, host, port, caller, tls)


class AsyncioWire(asyncio.BufferedProtocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        receiver: Receiver,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._receiver: Receiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._opening = loop.create_task(self._open(loop, host, port, tls))

    async def _open(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: self, host, port, ssl=tls)
        except (OSError, TimeoutError) as error:
            why = error.strerror or str(error) or "no answer"
            self._lost(f"cannot be reached ({why})")

    def send(self, pieces: Sequence[Bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()
        else:
            self._opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._receiver is None:
            self._transport.abort()
            return
        self._transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self._receiver.opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _NOBODYS if self._receiver is None else self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._receiver is not None:
            self._receiver.received(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost("the connection was closed" if exc is None else str(exc))

    def _lost(self, why: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(why)
