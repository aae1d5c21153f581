"""A broker inside another Python program, for tests and tools."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pentalog.app import ENDPOINTS, App
from pentalog.config import Listen, load
from pentalog.server import lifecycle
from pentalog.session import Address

_JOIN_MARGIN_S: Final = 30.0


class Broker:
    """A whole broker on a thread of its own.

    with pentalog.Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.address("kafka")})

    Every port is a free one unless `listen` says otherwise.  Without `data` the records live in
    a temporary directory that is removed at the end.  Settings are those of `pentalog start`,
    but a group's first members do not wait for others.
    """

    def __init__(self, data: str | PathLike[str] | None = None, **settings: object) -> None:
        self._temporary = data is None
        directory = Path(tempfile.mkdtemp(prefix="pentalog-")) if data is None else Path(data)
        settings.setdefault("listen", tuple(Listen(name, "127.0.0.1", 0) for name in ENDPOINTS))
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        try:
            self.config = load(flags={**settings, "data": directory}).config
        except Exception:
            self._remove(directory)
            raise
        self._addresses: dict[str, Address] = {}
        self._thread: threading.Thread | None = None
        self._loop: lifecycle.Loop | None = None
        self._asked_to_stop: asyncio.Event | None = None
        self._up = threading.Event()
        self._failure: BaseException | None = None

    @property
    def data(self) -> Path:
        return self.config.data

    def start(self) -> Self:
        """Returns when the ports are open; raises here what kept them from it."""
        assert self._thread is None, "started already"
        self._up.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="pentalog-broker", daemon=True)
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            failure = self._failure
            self.stop()
            raise failure
        return self

    def stop(self) -> None:
        """Stop as SIGTERM would.  May be started again, if the directory is not a temporary one."""
        self._end()
        self._remove(self.config.data)

    def address(self, name: str = "kafka") -> str:
        """`HOST:PORT` of a listener."""
        try:
            return str(self._addresses[name])
        except KeyError:
            listening = ", ".join(self._addresses) or "nothing: it is not started"
            raise KeyError(f"no listener {name!r}; listening: {listening}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def _end(self) -> None:
        """Have the thread leave, and wait until it has."""
        thread, self._thread = self._thread, None
        if thread is not None:
            loop, asked = self._loop, self._asked_to_stop
            if loop is not None and asked is not None and not loop.is_closed():
                loop.call_soon_threadsafe(asked.set)
            thread.join(self.config.shutdown_timeout_ms / 1000 + _JOIN_MARGIN_S)

    def _run(self) -> None:
        try:
            lifecycle.run(self._serve)
        except BaseException as error:
            self._failure = error
        finally:
            self._addresses = {}
            self._up.set()

    async def _serve(self, loop: lifecycle.Loop) -> None:
        self._loop = loop
        self._asked_to_stop = asyncio.Event()
        app = self._new_app(loop)
        await app.start()
        self._addresses = dict(app.addresses)
        self._up.set()
        await self._asked_to_stop.wait()
        await self._leave(app)

    def _new_app(self, loop: lifecycle.Loop) -> App:
        return App(self.config, loop)

    async def _leave(self, app: App) -> None:
        await app.stop()

    def _remove(self, directory: Path) -> None:
        if self._temporary:
            shutil.rmtree(directory, ignore_errors=True)
