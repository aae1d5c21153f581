"""What the server knows of its connections and doors, for those who ask."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import count as counting
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.broker.security import ANONYMOUS
from pentalog.metrics import Metrics, Traffic
from pentalog.model.later import Later
from pentalog.observation import (
    ConnectionView,
    DoorView,
    Health,
    NotInspected,
    Watching,
)
from pentalog.runtime import Runtime, Timer
from pentalog.server.tap import Tap
from pentalog.session import Address, Endpoint

if TYPE_CHECKING:
    from pentalog.server.connection import Connection

_DELAY_INTERVAL_MS: Final = 250
"""How often it is looked how late the loop is."""
_WATCHERS_MAX: Final = 8
"""Of one connection: each of its frames is written once for each of them."""
_PROBE_BYTES: Final = 4096
_LANE: Final = "health"


class LocalObservation:
    """`observation.Observation` of one server."""

    def __init__(
        self, runtime: Runtime, metrics: Metrics, data: Path, connections: set[Connection]
    ) -> None:
        self.console_url: str | None = None
        self.console_key = secrets.token_urlsafe(32)
        self.ready = False
        self.probe: Callable[[], Later[Health]] | None = None
        """Who is asked whether all is well; None: the disk."""
        self.started_ms = runtime.now_ms()
        self._runtime = runtime
        self._metrics = metrics
        self._data = data
        self._connections = connections
        self._numbers = counting(1)
        self._listeners: dict[str, list[tuple[str, str]]] = {}
        self._gone: dict[str, Traffic] = {}
        self._probing: Later[Health] | None = None
        self._timer: Timer | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Every listener is open."""
        self.ready = True
        self._expect()

    def stop(self) -> None:
        self.ready = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def next_number(self) -> int:
        """For a connection; none had it before."""
        return next(self._numbers)

    def opened(self, listener: str, endpoint: Endpoint, address: Address) -> None:
        door = endpoint.door or endpoint.name
        self._listeners.setdefault(door, []).append((listener, str(address)))
        self._gone.setdefault(door, Traffic())

    def gone(self, connection: Connection) -> None:
        """A connection has ended: what it counted stays."""
        self._gone.setdefault(_door_of(connection), Traffic()).add(connection.traffic)
        self._metrics.add(connection.traffic)
        if connection.tap is not None:
            connection.tap.ended()

    def connections(self, *, after: int, count: int) -> tuple[Sequence[ConnectionView], int]:
        ahead = [one for one in self._connections if one.number > after]
        first = nsmallest(count, ahead, key=attrgetter("number"))
        return [_view(one) for one in first], len(ahead) - len(first)

    def connection(self, number: int) -> ConnectionView | None:
        found = self._find(number)
        return None if found is None else _view(found)

    def doors(self) -> Sequence[DoorView]:
        sums: dict[str, Traffic] = {}
        open_now: dict[str, int] = {}
        for door, gone in self._gone.items():
            sums[door] = Traffic()
            sums[door].add(gone)
        for connection in self._connections:
            door = _door_of(connection)
            sums.setdefault(door, Traffic()).add(connection.traffic)
            open_now[door] = open_now.get(door, 0) + 1
        return [
            DoorView(door, self._listeners.get(door, ()), open_now.get(door, 0), traffic)
            for door, traffic in sums.items()
        ]

    def health(self) -> Later[Health]:
        if self.probe is not None:
            return self.probe()
        if self._probing is None:
            self._probing = Later()
            self._runtime.offload(_LANE, partial(_probe, self._data), self._probed)
        return self._probing

    def watch(self, number: int, watching: Watching) -> Callable[[], None]:
        connection = self._find(number)
        if connection is None:
            raise NotInspected(
                f"there is no connection {number}; /api/v1/connections lists those there are"
            )
        if connection.tap is None:
            connection.tap = self._new_tap(connection)
        tap = connection.tap
        if len(tap.watchers) >= _WATCHERS_MAX:
            raise NotInspected(
                f"connection {number} is watched by {_WATCHERS_MAX} others; close one of them"
            )
        tap.watchers.append(watching)

        def end() -> None:
            if watching in tap.watchers:
                tap.watchers.remove(watching)
            if not tap.watchers and connection.tap is tap:
                connection.tap = None

        return end

    def _find(self, number: int) -> Connection | None:
        return next((one for one in self._connections if one.number == number), None)

    def _new_tap(self, connection: Connection) -> Tap:
        inspector = connection.known.inspector or connection.endpoint.inspector
        if inspector is None:
            raise NotInspected(
                f"connection {connection.number} speaks {_door_of(connection)}, which is not "
                "decoded; choose one of another door"
            )
        return Tap(inspector(), self._runtime.now_ms)

    def _probed(self, _: None, error: BaseException | None) -> None:
        probing, self._probing = self._probing, None
        assert probing is not None
        probing.fill(Health("" if error is None else f"cannot write to {self._data}: {error}"))

    def _expect(self) -> None:
        self._due_s = self._runtime.monotonic() + _DELAY_INTERVAL_MS / 1000
        self._timer = self._runtime.after(_DELAY_INTERVAL_MS, self._arrived)

    def _arrived(self) -> None:
        self._metrics.loop_delay_seconds.observe(max(0.0, self._runtime.monotonic() - self._due_s))
        self._expect()


def _door_of(connection: Connection) -> str:
    endpoint = connection.endpoint
    return connection.known.door or endpoint.door or endpoint.name


def _view(connection: Connection) -> ConnectionView:
    who = ANONYMOUS if connection.who is None else connection.who.who
    return ConnectionView(
        connection.number,
        _door_of(connection),
        connection.listener.name,
        connection.peer,
        connection.since_ms,
        connection.traffic,
        connection.known.client,
        "" if who == ANONYMOUS else str(who),
    )


def _probe(data: Path) -> None:
    with tempfile.TemporaryFile(dir=data, buffering=0) as file:
        file.write(bytes(_PROBE_BYTES))
