"""The http listener before there is a broker behind it: open first, it says how far the start is.

Its sockets are handed on to the listeners, so that whoever comes in between is not turned away.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from pentalog.config import Listen
from pentalog.server.certificates import Certificates
from pentalog.server.listener import bind
from pentalog.session import Address

Answering: TypeAlias = Callable[[memoryview], bytes | None]

_VISITORS_MAX: Final = 64
_PATIENCE_S: Final = 10.0


class Anteroom:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        certificates: Certificates | None,
        answer: Answering,
    ) -> None:
        """`answer` makes the whole answer of what was received; None if more must come."""
        self._loop = loop
        self._certificates = certificates
        self._answer = answer
        self._bound: dict[str, list[socket.socket]] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._visitors: dict[_Visitor, None] = {}

    async def open(self, listen: Sequence[Listen]) -> Mapping[str, Address]:
        """Where each of these is; raises `ListenFailed`."""
        addresses: dict[str, Address] = {}
        for wish in listen:
            self._bound[wish.name] = bind(wish)
            tls = None
            if "tls" in wish.demands:
                assert self._certificates is not None, "a TLS listener has certificates"
                tls = self._certificates.context()
            for bound in self._bound[wish.name]:
                # A copy, which is closed when we leave: the queue behind it is the same.
                server = await self._loop.create_server(self._visitor, sock=bound.dup(), ssl=tls)
                self._servers.append(server)
            port = self._bound[wish.name][0].getsockname()[1]
            addresses[wish.name] = Address(wish.host, port)
        return addresses

    def leave(self) -> Mapping[str, Sequence[socket.socket]]:
        """Let nobody in any more; the sockets, by listener, belong to the caller now.

        Whoever is in still gets an answer.
        """
        for server in self._servers:
            server.close()
        bound, self._bound = self._bound, {}
        return bound

    def close(self) -> None:
        for visitor in tuple(self._visitors):
            visitor.abort()
        for sockets in self.leave().values():
            for bound in sockets:
                bound.close()

    def _visitor(self) -> asyncio.Protocol:
        return _Visitor(self._loop, self._answer, self._visitors)


class _Visitor(asyncio.Protocol):
    """One connection: one request, one answer."""

    _transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answer: Answering, others: dict[_Visitor, None]
    ) -> None:
        self._answer = answer
        self._others = others
        self._received = bytearray()
        self._patience = loop.call_later(_PATIENCE_S, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods without being of the class.
        self._transport = cast("asyncio.Transport", transport)
        if len(self._others) >= _VISITORS_MAX:
            # The one that has been here for longest: those who send nothing keep nobody out.
            next(iter(self._others)).abort()
        self._others[self] = None

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += data
        answer = self._answer(memoryview(self._received))
        if answer is not None:
            self._transport.write(answer)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._others.pop(self, None)

    def abort(self) -> None:
        self._others.pop(self, None)
        self._transport.abort()
