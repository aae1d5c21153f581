"""What a broker tells of itself: its connections, its doors, their frames, its health.

The server fills `Observation` in; whoever shows it (the http door) only asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pentalog.metrics import Traffic
from pentalog.model.later import Later

START_BYTES_MAX: Final = 1024
"""Of a frame, shown to those who watch."""


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connection, for those who list them."""

    number: int
    door: str
    """The protocol it speaks."""
    listener: str
    peer: str
    since_ms: int
    traffic: Traffic
    client: str
    principal: str


@dataclass(frozen=True, slots=True)
class DoorView:
    """A protocol and everything that has passed through it since the start."""

    door: str
    listeners: Sequence[tuple[str, str]]
    """Name and address of each."""
    connections: int
    traffic: Traffic


class Told(NamedTuple):
    """What a frame is, as its protocol reads it."""

    name: str
    correlation: int | None = None
    version: int | None = None
    topic: str | None = None
    client: str | None = None
    secret: bool = False
    """Its bytes are nobody's business: a password or a key may be among them."""


class Inspector(Protocol):
    """Reads the frames of one connection for somebody who watches it.

    It is given the first bytes of each frame, behind the length, and must read anything.
    """

    def request(self, head: memoryview, size: int) -> Told: ...
    def reply(self, head: memoryview, size: int) -> Told: ...


@dataclass(slots=True)
class Peer:
    """Who is at the other end, as far as its session has been told; sessions write it."""

    client: str = ""
    """The name the client gives itself."""
    door: str = ""
    """The protocol it has chosen, on a port that several share."""
    inspector: Callable[[], Inspector] | None = None
    """Reads its frames, on a port that several share."""
    closes_idle: bool | None = None
    """`session.Endpoint.closes_idle` of the protocol it has chosen, on such a port."""
    pushed_to: bool = False
    """Something is sent to it without a request: it may be silent for as long as it likes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that passed."""

    time_ms: int
    received: bool
    """Else it was sent."""
    size_bytes: int
    """Behind its length."""
    told: Told
    start: bytes
    """Its first bytes, behind the length, at most `START_BYTES_MAX`; none if they are secret."""


class Watching(Protocol):
    """Told what passes a connection; must not block."""

    def frame(self, frame: Frame) -> None: ...
    def ended(self) -> None:
        """The connection is gone, or its frames cannot be told apart any more."""


class Health(NamedTuple):
    flaw: str
    """Empty if there is none."""


class NotInspected(Exception):
    """This connection cannot be watched; the text says why and what can."""


class Observation(Protocol):
    @property
    def console_url(self) -> str | None:
        """Where the web console is, if one runs."""

    @property
    def console_key(self) -> str:
        """What the broker's own console shows in place of a name."""

    @property
    def ready(self) -> bool:
        """Every listener is open and recovery is over."""

    @property
    def started_ms(self) -> int: ...

    def connections(self, *, after: int, count: int) -> tuple[Sequence[ConnectionView], int]:
        """The first `count` with numbers above `after`, and how many more there are."""

    def connection(self, number: int) -> ConnectionView | None: ...
    def doors(self) -> Sequence[DoorView]: ...
    def health(self) -> Later[Health]:
        """Can the disk be written to?  That this is answered shows that the loop turns."""

    def watch(self, number: int, watching: Watching) -> Callable[[], None]:
        """Tell of every frame of a connection from now on; returns what ends that.

        Raises `NotInspected`.
        """
