"""The composition root of a gateway: ports in front of an Apache Kafka cluster, and no files."""

from __future__ import annotations

import socket
import ssl
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pentalog.app import ENDPOINTS, StartFailed, doors, tell_nobody
from pentalog.broker.audit import LogAudit
from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.cluster.engine import Engine
from pentalog.cluster.link import Login
from pentalog.config import Config, ConfigError
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.observation import Health
from pentalog.protocols import http, kafka
from pentalog.protocols.http import starting
from pentalog.server.anteroom import Anteroom
from pentalog.server.asyncio_runtime import AsyncioRuntime
from pentalog.server.certificates import Certificates
from pentalog.server.dialing import AsyncioCaller, AsyncioDialer, tls_of
from pentalog.server.front import Front
from pentalog.server.lifecycle import Loop, arrival, raise_file_limit
from pentalog.server.listener import Listeners, ListenFailed
from pentalog.session import Address, Endpoint

_EVERYWHERE: Final = ("", "0.0.0.0", "::")


class Gateway(Front):
    """Ports in front of a cluster, on the loop that is running."""

    def __init__(self, config: Config, loop: Loop) -> None:
        """Checks what can be checked without touching anything; raises `ConfigError`."""
        self._config = config
        self._listen = doors(config, _endpoints(config))
        self.metrics = Metrics()
        self._runtime = AsyncioRuntime(loop)
        self._certificates = (
            Certificates(config, self._runtime.monotonic)
            if any("tls" in listen.demands for listen, _ in self._listen)
            else None
        )
        scheme, _, servers = config.engine.partition("://")
        demands = scheme.split("+")[1:]
        dialer = AsyncioDialer(loop, _tls(config) if "tls" in demands else None)
        login = _login(config) if "sasl" in demands else None
        self._engine = Engine(dialer, self._runtime, self.metrics, _servers(servers), login, config)
        self._engine.council.caller = AsyncioCaller(loop, config.engine_ca)
        self._loop = loop
        standing = f"reaching {config.engine}"
        answer = partial(starting.answer, standing=standing, advertised=config.advertise)
        self._anteroom = Anteroom(loop, self._certificates, answer)

    async def start(self, listening: Callable[[str, Address], None] | None = None) -> None:
        """Reach the cluster and open the ports; on failure nothing stays open.

        The http listener answers first.  `listening` is told of each as it opens.
        """
        raise_file_limit()
        told = listening or tell_nobody
        try:
            early = await self._anteroom.open(
                [listen for listen, _ in self._listen if listen.door == http.ENDPOINT.name]
            )
            for name, address in early.items():
                told(name, address)
            broker = await arrival(self._engine.open())
            self._listeners = Listeners(
                self._loop,
                broker,
                self._runtime,
                self._config,
                self.metrics,
                self._certificates,
                LogAudit(self._runtime),
            )
            self._listeners.observation.probe = self._probe
            await self._listeners.open(self._listen, self._anteroom.leave())
            self._engine.council.open(uuid.uuid4().hex, self._reached_at())
        except (BrokerError, ListenFailed, ConfigError) as error:
            self._listeners = None
            await self.stop()
            raise StartFailed(f"engine {self._config.engine}: {error}") from error
        for name, address in self.addresses.items():
            if name not in early:
                told(name, address)

    def _reached_at(self) -> Mapping[str, tuple[str, int]]:
        """Where clients, and other gateways, find each listener."""
        found: dict[str, tuple[str, int]] = {}
        for name, address in self.addresses.items():
            told = self._config.advertise.get(name)
            host = address.host if told is None else told.host
            port = address.port if told is None or not told.port else told.port
            found[name] = (socket.gethostname() if host in _EVERYWHERE else host, port)
        return found

    def _probe(self) -> Later[Health]:
        health: Later[Health] = Later()
        self._engine.probe().then(lambda flaw: health.fill(Health(flaw.value)))
        return health

    async def stop(self) -> bool:
        """Finish what was accepted, and hang up."""
        self._anteroom.close()
        if self._listeners is not None:
            self._engine.log.stop_waiting()
            await self._listeners.close(timeout_ms=self._config.shutdown_timeout_ms)
            self._listeners = None
        await arrival(self._engine.leave())
        self._engine.close()
        self._runtime.close()
        return True

    async def abandon(self) -> None:
        """Leave everything as it is when the process is killed."""
        self._anteroom.close()
        if self._listeners is not None:
            await self._listeners.abandon()
            self._listeners = None
        self._engine.close()
        self._runtime.close()


def _endpoints(config: Config) -> Mapping[str, Endpoint]:
    """The doors that can be opened here."""
    offered = {name: endpoint for name, endpoint in ENDPOINTS.items() if endpoint.asks_first}
    if any(listen.door == kafka.SIGNPOST.name for listen in config.listen):
        # Only for those who ask for it: the usual port may be that of a node beside it.
        offered[kafka.SIGNPOST.name] = kafka.SIGNPOST
    return offered


def _tls(config: Config) -> ssl.SSLContext:
    try:
        return tls_of(config.engine_ca)
    except OSError as error:
        raise ConfigError(
            f"setting engine_ca is {config.engine_ca!r}, which cannot be used: "
            f"{error.strerror or error}; accepted is a PEM file with certificates"
        ) from error


def _login(config: Config) -> Login:
    if config.engine_mechanism not in MECHANISMS:
        raise ConfigError(
            f"setting engine_mechanism is {config.engine_mechanism!r}; "
            f"accepted are {', '.join(MECHANISMS)}"
        )
    if not config.engine_user or not config.engine_password:
        raise ConfigError(
            f"setting engine is {config.engine}, which needs engine_user and engine_password"
        )
    return Login(config.engine_mechanism, config.engine_user, ",".join(config.engine_password))


def _servers(text: str) -> list[tuple[str, int]]:
    found = []
    for server in text.split(","):
        host, _, port = server.rpartition(":")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return found
