"""The ports of a broker: opened together, closed together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

from pentalog.broker.attempts import LocalAttempts
from pentalog.broker.port import Broker
from pentalog.broker.security import UNAUDITED, Audit
from pentalog.config import Config, Listen
from pentalog.metrics import Metrics
from pentalog.runtime import TURN_BUDGET_S, Runtime, Slices, Turns
from pentalog.server.certificates import Certificates
from pentalog.server.connection import Connection
from pentalog.server.door import COSTLY_BUDGET_S, COSTLY_PER_TURN, SERVED_PER_TURN, Door
from pentalog.server.limits import Limits
from pentalog.server.observation import LocalObservation
from pentalog.server.tls import connections_with_tls
from pentalog.session import Address, Endpoint

_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 32
_POLL_S: Final = 0.005
_FAREWELL_S: Final = 1.5


class ListenFailed(Exception):
    """A port cannot be opened; the text says why and what to do."""


class Listeners:
    """Every door of one broker, and the connections that came through them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        runtime: Runtime,
        config: Config,
        metrics: Metrics,
        certificates: Certificates | None = None,
        audit: Audit = UNAUDITED,
    ) -> None:
        """`certificates` are needed where a listener demands TLS."""
        self._certificates = certificates
        self._audit = audit
        self._attempts = LocalAttempts(runtime)
        self._listen: list[Listen] = []
        self._loop = loop
        self._broker = broker
        self._runtime = runtime
        self._config = config
        self._metrics = metrics
        self._slices = Slices(runtime)
        self._limits = Limits(loop, config, metrics, self._slices)
        self._connections: set[Connection] = set()
        self._turns = Turns(runtime, SERVED_PER_TURN, TURN_BUDGET_S)
        self._costly_turns = Turns(runtime, COSTLY_PER_TURN, COSTLY_BUDGET_S)
        self._addresses: dict[str, Address] = {}
        self.observation = LocalObservation(runtime, metrics, config.data, self._connections)
        self._servers: list[asyncio.AbstractServer] = []

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Where each listener is, by its name, in the order they were opened."""
        return self._addresses

    def reconfigure(self, config: Config) -> None:
        """The broker's settings have changed."""
        self._limits.reconfigure(config)

    async def open(
        self,
        listen: Sequence[tuple[Listen, Endpoint]],
        bound_before: Mapping[str, Sequence[socket.socket]] = MappingProxyType({}),
    ) -> None:
        """Open all of them or none; some may have their sockets already, by name."""
        opened: list[tuple[Listen, Endpoint, socket.socket]] = []
        try:
            for wish, endpoint in listen:
                sockets = bound_before.get(wish.name) or bind(wish)
                opened.extend((wish, endpoint, bound) for bound in sockets)
                port = sockets[0].getsockname()[1]
                self._addresses[wish.name] = Address(wish.host, port)
                self._listen.append(wish)
        except ListenFailed:
            for bound in (*(one for _, _, one in opened), *chain(*bound_before.values())):
                bound.close()
            raise
        for wish, endpoint, bound in opened:
            self._servers.append(
                await self._loop.create_server(
                    self._connections_of(self._door(wish, endpoint)),
                    sock=bound,
                    backlog=_ACCEPTED_AT_ONCE,
                )
            )
            # The loop takes its number for how many to accept in one turn too.
            bound.listen(_BACKLOG)
        for wish, endpoint in listen:
            self.observation.opened(wish.name, endpoint, self._addresses[wish.name])
        self.observation.start()
        self._limits.start_sweeping()

    def stop_accepting(self) -> None:
        """Take no more connections, and no more requests from those there are."""
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.stop()

    async def close(self, *, timeout_ms: int) -> None:
        """Let the answers leave, then hang up; cut off whoever takes longer than `timeout_ms`."""
        self.observation.stop()
        self.stop_accepting()
        self._limits.stop_sweeping()
        deadline = self._loop.time() + timeout_ms / 1000
        await self._until(self._idle, deadline)
        for connection in tuple(self._connections):
            connection.finish()
        deadline = min(deadline, self._loop.time() + _FAREWELL_S)
        await self._until(self._empty, deadline)
        for connection in tuple(self._connections):
            connection.abort()
        await self._until(self._empty, self._loop.time() + _FAREWELL_S)
        self._audit.close()

    async def abandon(self) -> None:
        """Cut everybody off, unanswered."""
        self.observation.stop()
        self._limits.stop_sweeping()
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.abort()
        await self._until(self._empty, self._loop.time() + _FAREWELL_S)

    async def _until(self, met: Callable[[], bool], deadline: float) -> None:
        while True:
            if met() or self._loop.time() >= deadline:
                return
            await asyncio.sleep(_POLL_S)

    def _idle(self) -> bool:
        return all(connection.idle for connection in self._connections)

    def _empty(self) -> bool:
        return not self._connections

    def _connections_of(self, door: Door) -> Callable[[], Connection]:
        if "tls" not in door.listener.demands:
            return lambda: Connection(door)
        assert self._certificates is not None, "a TLS listener has certificates"
        plain_allowed = door.endpoint.name == "cursus" and self._config.cursus_tls_accepts_plaintext
        return connections_with_tls(door, self._certificates, plain_allowed=plain_allowed)

    def _door(self, wish: Listen, endpoint: Endpoint) -> Door:
        return Door(
            loop=self._loop,
            endpoint=endpoint,
            listener=wish,
            broker=self._broker,
            runtime=self._runtime,
            config=self._config,
            metrics=self._metrics,
            limits=self._limits,
            advertised=self._advertised,
            audit=self._audit,
            attempts=self._attempts,
            connections=self._connections,
            turns=self._turns,
            costly_turns=self._costly_turns,
            slices=self._slices,
            observation=self.observation,
        )

    def _advertised(self, door: str, came_through: Listen, reached_at: str) -> Address:
        name = self._like(door, came_through)
        told = self._config.advertise.get(name)
        if told is not None:
            return Address(told.host, told.port or self._addresses[name].port)
        return Address(reached_at, self._addresses[name].port)

    def _like(self, door: str, came_through: Listen) -> str:
        """The listener of a door that demands what the one a client came through does."""
        if door == came_through.door:
            return came_through.name
        of_door = [listen for listen in self._listen if listen.door == door]
        same = [listen for listen in of_door if listen.demands == came_through.demands]
        return (same or of_door)[0].name


def bind(wish: Listen) -> list[socket.socket]:
    """A socket for every address the host has; all on one port."""
    port = wish.port
    bound: list[socket.socket] = []
    try:
        for family, address in _resolve(wish):
            listening = socket.socket(family, socket.SOCK_STREAM)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                everywhere = address == "::"
                with contextlib.suppress(OSError):
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not everywhere)
            listening.bind((address, port))
            listening.setblocking(False)
            port = listening.getsockname()[1]
    except OSError as error:
        for listening in bound:
            listening.close()
        raise ListenFailed(_explain(wish, error)) from error
    return bound


def _resolve(wish: Listen) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(
        wish.host or None, wish.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # A name may have several addresses (localhost: ::1 and 127.0.0.1), each perhaps twice.
    unique = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
    if not wish.host and (socket.AF_INET6, "::") in unique and socket.has_dualstack_ipv6():
        return [(socket.AF_INET6, "::")]
    return [(int(family), address) for family, address in unique]


def _explain(wish: Listen, error: OSError) -> str:
    where = f"{wish.name}={Address(wish.host, wish.port)}"
    if isinstance(error, socket.gaierror):
        return (
            f"cannot listen on {where}: the host is unknown here; name an address of this machine"
        )
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {where}: the port is taken; stop the program that has it, or choose "
            f"another one (--listen {wish.name}={Address(wish.host, 0)} picks a free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot listen on {where}: this machine does not have that address; "
            f"0.0.0.0 stands for all it has"
        )
    if error.errno == errno.EACCES:
        return f"cannot listen on {where}: not permitted; choose a port above 1023"
    return f"cannot listen on {where}: {error.strerror}"
