"""The composition root: a configuration becomes files, a broker, and open ports."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pentalog.broker.audit import LogAudit
from pentalog.broker.bearers import LocalBearers
from pentalog.broker.credentials import TICKETLESS, TRUSTLESS, Bearers, Tickets
from pentalog.broker.local import LocalBroker
from pentalog.broker.port import Broker
from pentalog.config import Config, ConfigError, Listen
from pentalog.log.directories import StoreError
from pentalog.log.files import Files, RealFiles
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError
from pentalog.protocols import OBSERVERS, PROTOCOLS, http
from pentalog.protocols.blipmq.keys import notice as blipmq_notice
from pentalog.protocols.http import starting
from pentalog.server import module_process
from pentalog.server.anteroom import Anteroom
from pentalog.server.asyncio_runtime import AsyncioRuntime
from pentalog.server.certificates import Certificates
from pentalog.server.front import Front
from pentalog.server.kerberos import KerberosTickets
from pentalog.server.keys import fetcher_of
from pentalog.server.lifecycle import Loop, arrival, raise_file_limit, turns
from pentalog.server.limits import SPARE_FILES
from pentalog.server.listener import Listeners, ListenFailed
from pentalog.server.listening import (
    check_open_listeners,
    endpoint_of,
    warn_of_open_listeners,
)
from pentalog.server.metering import metered
from pentalog.session import Address, Endpoint

_log = logging.getLogger("pentalog.app")

_TURN_S: Final = 0.05
"""Recovery goes on for so long before others get their turn."""
_TURNS: Final = 4
"""Of the loop, at such a moment: a visitor is accepted in one of them and heard in another."""
ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    **{
        endpoint.name: endpoint if protocol.name == "kafka" else metered(endpoint)
        for protocol in PROTOCOLS
        for endpoint in protocol.endpoints
    },
    **{endpoint.name: endpoint for endpoint in OBSERVERS},
}
"""Kafka counts for the quotas by itself: its answers tell of them."""


class StartFailed(Exception):
    """The broker cannot start; the text is one line with the cause and the next step."""


class App(Front):
    """One broker with its ports, on the loop that is running."""

    def __init__(
        self,
        config: Config,
        loop: Loop,
        *,
        files: Files | None = None,
        endpoints: Mapping[str, Endpoint] | None = None,
    ) -> None:
        """Checks what can be checked without touching anything; raises `ConfigError`.

        Tests bring files and endpoints that fail.
        """
        if config.engine != "local":
            raise ConfigError(f"setting engine is {config.engine}; accepted here is local only")
        self._config = config
        self._listen = doors(config, ENDPOINTS if endpoints is None else endpoints)
        self.metrics = Metrics()
        self._runtime = AsyncioRuntime(loop)
        self._local = LocalBroker(
            config, files or RealFiles(), self._runtime, self.metrics, build=module_process.build
        )
        self._certificates = (
            Certificates(config, self._runtime.monotonic)
            if any("tls" in listen.demands for listen, _ in self._listen)
            else None
        )
        self._loop = loop
        self._anteroom = Anteroom(loop, self._certificates, self._answer_early)
        self._standing = "starting"

    async def start(self, listening: Callable[[str, Address], None] | None = None) -> None:
        """Open everything; on failure nothing stays open.

        The http listener answers first.  `listening` is told of each as it opens.
        """
        files = raise_file_limit()
        self._local.store.files_max = max(0, files - SPARE_FILES)
        told = listening or tell_nobody
        try:
            early = await self._open_store(told)
            broker = self._open_broker()
            await self._await_state()
            self._listeners = Listeners(
                self._loop,
                broker,
                self._runtime,
                self._config,
                self.metrics,
                self._certificates,
                LogAudit(self._runtime),
            )
            self._listeners.reconfigure(broker.settings.live)
            await self._listeners.open(self._listen, self._anteroom.leave())
        except (StoreError, BrokerError, ListenFailed, ConfigError) as error:
            await self._give_up()
            raise StartFailed(str(error)) from error
        except OSError as error:
            await self._give_up()
            raise StartFailed(_explain(self._config, error)) from error
        for name, address in self.addresses.items():
            if name not in early:
                told(name, address)
        warn_of_open_listeners(self._config, self._listen)
        self._local.housekeeping.start()
        if any(listen.name == "blipmq" for listen, _ in self._listen):
            said = blipmq_notice(self._config)
            if said is not None:
                _log.info("%s", said)
        if files < 2 * self._config.connections_max + SPARE_FILES:
            _log.info(
                "%d open files allowed: enough for about %d of connections_max=%d connections",
                files,
                max(0, (files - SPARE_FILES) // 2),
                self._config.connections_max,
            )

    async def _open_store(self, told: Callable[[str, Address], None]) -> Mapping[str, Address]:
        """Recover the files, and let the http listener tell of it; returns where that is."""
        steps = self._local.store.opening()
        next(steps)  # has the directory locked: whose it is not is told that before anything else
        early = await self._anteroom.open(
            [listen for listen, _ in self._listen if listen.door == http.ENDPOINT.name]
        )
        for name, address in early.items():
            told(name, address)
        turned_s = began_s = self._runtime.monotonic()
        for step in steps:
            now_s = self._runtime.monotonic()
            if now_s - turned_s > _TURN_S:
                self._standing = f"recovering, {step.done} of {step.partitions} partitions opened"
                if early and turned_s == began_s:
                    _log.info("recovering %d partitions; /ready tells how far", step.partitions)
                await turns(_TURNS)
                turned_s = self._runtime.monotonic()
        return early

    def _answer_early(self, data: memoryview) -> bytes | None:
        return starting.answer(data, self._standing, self._config.advertise)

    async def _await_state(self) -> None:
        """Wait until the corrections that recovery made to the state file are durable.

        A record appended earlier could be mistaken for a lost one after the next crash.
        """
        try:
            await arrival(self._local.settle())
        except BrokerError as error:
            _log.warning("cannot write the state file yet: %s; retrying in the background", error)

    async def _give_up(self) -> None:
        self._listeners = None
        await self.stop()

    async def stop(self) -> bool:
        """Finish what was accepted, hang up, and leave the data as a clean stop leaves it.

        False if the disk did not let it; the next start will then look for itself.
        """
        clean = True
        self._anteroom.close()
        self._local.stop_derived()
        if self._listeners is not None:
            self._local.stop_waiting()
            await self._listeners.close(timeout_ms=self._config.shutdown_timeout_ms)
            self._listeners = None
            self._local.housekeeping.stop()
        try:
            await arrival(self._local.close_broker())
        except BrokerError as error:
            _log.error("the last changes of topics may be lost: %s", error)
            clean = False
        self._runtime.close()  # first: a thread may still be writing what the store closes
        try:
            self._local.close_store()
        except OSError as error:
            _log.error("not a clean stop, the next start checks all files: %s", error)
            clean = False
        return clean

    async def abandon(self) -> None:
        """Leave everything as it is when the process is killed: nothing is finished or tidied up.

        What was handed to the disk gets there, as it would.
        """
        self._anteroom.close()
        if self._listeners is not None:
            await self._listeners.abandon()
            self._listeners = None
        self._local.housekeeping.stop()
        self._runtime.close()
        self._local.abandon()

    def _open_broker(self) -> Broker:
        return self._local.open_broker(
            bearers=self._open_bearers(),
            tickets=self._open_tickets(),
            reconfigure=self._reconfigure,
        )

    def _open_bearers(self) -> Bearers:
        if "OAUTHBEARER" not in self._config.sasl_mechanisms:
            return TRUSTLESS
        return LocalBearers(self._runtime, self._config, fetcher_of(self._config))

    def _open_tickets(self) -> Tickets:
        if "GSSAPI" not in self._config.sasl_mechanisms:
            return TICKETLESS
        return KerberosTickets(self._runtime, self._config)

    def _reconfigure(self, config: Config) -> None:
        if self._listeners is not None:
            self._listeners.reconfigure(config)


def doors(
    config: Config, endpoints: Mapping[str, Endpoint] = ENDPOINTS
) -> Sequence[tuple[Listen, Endpoint]]:
    """Which endpoint each listener opens; raises `ConfigError` for what cannot be."""
    for advertised in config.advertise.values():
        endpoint_of(config, advertised, endpoints)
    for name in config.listener_principals:
        endpoint_of(config, Listen(name, "", 0), endpoints)
    listen = config.listen or tuple(
        Listen(endpoint.name, "127.0.0.1", endpoint.port) for endpoint in endpoints.values()
    )
    found = [(wish, endpoint_of(config, wish, endpoints)) for wish in listen]
    check_open_listeners(config, found)
    return found


def tell_nobody(name: str, address: Address) -> None: ...


def _explain(config: Config, error: OSError) -> str:
    where = error.filename or config.data
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"cannot open {where}: {error.strerror}; raise the limit of open files (ulimit -Hn)"
    return f"cannot use {where}: {error.strerror or error}; correct that or choose another --data"
