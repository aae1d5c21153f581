"""A broker in the process of a test: real ports, real files, and trouble on demand."""

from __future__ import annotations

import difflib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from pentalog import embedded
from pentalog.app import ENDPOINTS, App
from pentalog.server.lifecycle import Loop
from pentalog.server.listener import ListenFailed, bind
from pentalog.testing.disk import FillableFiles
from pentalog.testing.faults import Fault, Faults
from pentalog.testing.refusals import REFUSALS
from pentalog.testing.sessions import faulty

_ANSWER_TIMEOUT_S: Final = 30.0
_SETTINGS: Final = {"flush_interval_ms": 0, "group_session_timeout_ms_min": 100}
"""Nothing waits for the disk, and members of groups may be declared dead quickly."""


class Broker(embedded.Broker):
    """Every door on a free port, until the end of the block; settings as `pentalog start` has them.

    with pentalog.testing.Broker() as broker:
        broker.fail("kafka", "Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)
        producer = Producer({"bootstrap.servers": broker.address("kafka")})
    """

    def __init__(self, data: str | Path | None = None, **settings: object) -> None:
        super().__init__(data, **{**_SETTINGS, **settings})
        self._faults = Faults()
        self._files = FillableFiles()
        self._crashing = False
        self._wished = self.config.listen
        self._reserved: list[socket.socket] = []
        """Bound, never listening: no other process gets a port while the broker is down."""

    def start(self) -> Self:
        """Returns when the ports are open; raises here what kept them from it."""
        if not self._reserved:
            try:
                self._reserve_ports()
            except ListenFailed:
                self.stop()
                raise
        return super().start()

    def fail(self, door: str, request: str, *, error: str | int, times: int | None = None) -> Fault:
        """Refuse requests of this name with an error, in the terms of the door's protocol."""
        _check(door, request)
        known = REFUSALS[door]
        if request not in known.refusable:
            raise ValueError(
                f"{request} of {door} cannot be refused with an error, only delayed or dropped; "
                f"these can: {', '.join(sorted(known.refusable))}"
            )
        known.check(error)
        return self._faults.add(Fault(door, request, error=error, times=times))

    def delay(
        self,
        door: str | None = None,
        request: str | None = None,
        *,
        delay_ms: float,
        times: int | None = None,
    ) -> Fault:
        """Serve requests only after a while: of all doors, one, or one kind of request."""
        _check(door, request)
        if delay_ms <= 0:
            raise ValueError(f"a delay of {delay_ms} ms; give more than 0")
        return self._faults.add(Fault(door, request, delay_ms=delay_ms, times=times))

    def drop(
        self,
        door: str,
        request: str | None = None,
        *,
        times: int | None = 1,
        served: bool = False,
    ) -> Fault:
        """Hang up on the next requests of this name, unserved.

        With `served` the request takes effect and only its answer is lost.
        """
        _check(door, request)
        return self._faults.add(Fault(door, request, hangs_up=True, serves=served, times=times))

    def drop_connections(self, door: str | None = None) -> int:
        """Hang up on everybody who is connected now; returns how many that were."""
        _check(door, None)

        def drop() -> int:
            sessions = [one for one in self._faults.sessions if door in (None, one.door)]
            for session in sessions:
                session.drop()
            return len(sessions)

        return self._on_loop(drop)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """No space is left on the disk until the end of the block."""
        self._files.full = True
        try:
            yield
        finally:
            self._files.full = False

    def heal(self) -> None:
        """Cancel every fault."""
        self._faults.clear()
        self._files.full = False

    def crash(self) -> None:
        """End as a killed process would: nobody is answered any more, nothing is tidied up."""
        self._crashing = True
        self._end()

    def restart(self, *, crash: bool = True) -> None:
        """Crash, or stop in order, and start again with the same data on the same ports."""
        if self.running:
            self._crashing = crash
            self._end()
        self.start()

    def stop(self) -> None:
        """Stop in order; at once if the data is a temporary directory, which nobody needs tidy."""
        self.heal()
        self._crashing = self._temporary
        super().stop()
        for holder in self._reserved:
            holder.close()
        self._reserved.clear()
        self.config = replace(self.config, listen=self._wished)

    def _new_app(self, loop: Loop) -> App:
        endpoints = {name: faulty(one, self._faults) for name, one in ENDPOINTS.items()}
        return App(self.config, loop, files=self._files, endpoints=endpoints)

    async def _leave(self, app: App) -> None:
        crashing, self._crashing = self._crashing, False
        if crashing:
            await app.abandon()
        else:
            await app.stop()

    def _reserve_ports(self) -> None:
        """Choose the free ports that were asked for now, so that restarts can keep them."""
        chosen = []
        for wish in self._wished:
            if wish.port == 0:
                holders = bind(wish)
                self._reserved += holders
                wish = replace(wish, port=holders[0].getsockname()[1])
            chosen.append(wish)
        self.config = replace(self.config, listen=tuple(chosen))

    def _on_loop(self, run: Callable[[], int]) -> int:
        """Run on the thread that owns the connections; its result."""
        if self._loop is None or not self.running:
            return 0
        done = threading.Event()
        found: list[int] = []

        def act() -> None:
            try:
                found.append(run())
            finally:
                done.set()

        self._loop.call_soon_threadsafe(act)
        if not done.wait(_ANSWER_TIMEOUT_S):
            raise TimeoutError("the broker does not answer")
        return sum(found)


def _check(door: str | None, request: str | None) -> None:
    """Refuse names that no fault could ever meet."""
    if door is None:
        if request is not None:
            raise ValueError(f"say of which door {request} is a request")
        return
    if door not in REFUSALS:
        raise ValueError(f"there is no door {door!r}; there are {', '.join(REFUSALS)}")
    requests = sorted(REFUSALS[door].requests)
    if request is not None and request not in requests:
        near = partial(difflib.get_close_matches, request, requests, 3, 0.4)
        known = ", ".join(near() or requests)
        raise ValueError(f"{door} has no request {request!r}; did you mean {known}?")
