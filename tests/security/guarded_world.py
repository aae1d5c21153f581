"""A broker that asks who somebody is and what he may do, on a thread, and raw ways to reach it."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import trustme

from pentalog import embedded
from pentalog.app import App
from pentalog.broker.port import Broker as Facade
from pentalog.broker.port import TopicSpec
from pentalog.broker.security import Rule
from pentalog.config import Listen
from pentalog.model.later import Later

T = TypeVar("T")

TIMEOUT_S = 180.0
MAPPING = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
"""The common name of a certificate is the name of a user."""


class _App(App):
    """Lets the test at what the broker is made of."""

    def _open_broker(self) -> Facade:
        self.facade = super()._open_broker()
        _opened.append(self.facade)
        return self.facade


_opened: list[Facade] = []


class GuardedBroker:
    def __init__(self, broker: embedded.Broker, facade: Facade) -> None:
        self.broker = broker
        self.facade = facade
        self._wires: list[Wire] = []

    def call(self, run: Callable[[], T]) -> T:
        """Run something on the broker's own thread; of a `Later`, its value."""
        loop = self.broker._loop
        assert loop is not None

        async def once() -> Any:
            found = run()
            if isinstance(found, Later):
                there: asyncio.Future[Any] = loop.create_future()
                found.then(lambda later: _pass_on(there, later))
                return await there
            return found

        done: T = asyncio.run_coroutine_threadsafe(once(), loop).result(TIMEOUT_S)
        return done

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """These and no others."""
        book = self.facade.rules

        def change() -> None:
            wanted = set(rules)
            book.remove([rule for rule in book.all() if rule not in wanted])
            book.add(list(wanted))

        self.call(change)

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        spec = TopicSpec(name=name, partitions=partitions, settings=named)
        self.call(lambda: self.facade.topics.create(spec) and None)

    def key_of(self, user: str) -> str:
        return self.call(lambda: self.facade.users.add_key(user, "test"))

    def connect(self, listener: str, trust: ssl.SSLContext | None = None) -> Wire:
        host, _, port = self.broker.address(listener).rpartition(":")
        wire = Wire(host, int(port), trust)
        self._wires.append(wire)
        return wire

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        return Later.now(lambda: None)

    def hang_up(self) -> None:
        """Close every connection that was made."""
        wires, self._wires = self._wires, []
        for wire in wires:
            wire.close()


def _pass_on(there: asyncio.Future[Any], later: Later[Any]) -> None:
    try:
        there.set_result(later.value)
    except Exception as refusal:
        there.set_exception(refusal)


@contextmanager
def guarded(data: Path, listeners: Iterable[str], **settings: Any) -> Iterator[GuardedBroker]:
    _opened.clear()
    listen = tuple(Listen(name, "127.0.0.1", 0) for name in listeners)
    with (
        patch.object(embedded, "App", _App),
        embedded.Broker(data, listen=listen, **settings) as broker,
    ):
        started = GuardedBroker(broker, _opened[-1])
        try:
            yield started
        finally:
            started.hang_up()


class Authority:
    """Whoever signs certificates."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.file = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def server(self) -> Path:
        return self._write(self._authority.issue_cert("localhost", "127.0.0.1"), "server")

    def trust(self) -> ssl.SSLContext:
        """Somebody who trusts this authority and says nothing of himself."""
        return ssl.create_default_context(cafile=str(self.file))

    def client(
        self,
        name: str,
        trusting: Authority | None = None,
        not_after: datetime.datetime | None = None,
    ) -> ssl.SSLContext:
        """Somebody with a certificate."""
        context = (trusting or self).trust()
        address = f"{name}@example.org"
        path = self._write(
            self._authority.issue_cert(address, common_name=name, not_after=not_after), name
        )
        context.load_cert_chain(path)
        return context

    def _write(self, issued: trustme.LeafCert, name: str) -> Path:
        path = self._directory / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path


class Wire:
    """A connection of frames that begin with their length."""

    def __init__(self, host: str, port: int, trust: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_hostname="localhost")

    def send(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">I", len(payload)) + payload)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def ask(self, payload: bytes) -> bytes:
        self.send(payload)
        return self.receive()

    @property
    def closed(self) -> bool:
        """Waits until the broker has hung up, or says that it sent something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise ConnectionError("the broker has hung up")
            found += more
        return found
