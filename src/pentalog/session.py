"""What a protocol is: bytes in, broker operations, bytes out; no socket and no loop.

`server/connection.py` drives every session the same way.  A test feeds one by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pentalog.broker.security import Access
from pentalog.metrics import Metrics, Traffic
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Piece
from pentalog.observation import Inspector, Observation, Peer
from pentalog.runtime import Slices

if TYPE_CHECKING:
    from pentalog.broker.port import Broker
    from pentalog.config import Config
    from pentalog.runtime import Runtime


class Place(Protocol):
    """An answer's place in line, kept until it is filled."""

    def fill(self, *pieces: Piece) -> None:
        """Give the answer, or nothing at all if it is a silent one.  Once only.

        Does nothing if the connection has gone meanwhile.
        """


class Replies(Protocol):
    """The way out of one connection, given to its session."""

    @property
    def full(self) -> bool:
        """More is queued than this connection may hold: stop serving frames and return.

        `receive` is called again with the rest when there is room.
        """

    def send(self, *pieces: Piece) -> None:
        """Next in line, now.  The pieces are kept, not copied: never views of what came in."""

    def place(self) -> Place:
        """Keep the next place in line for an answer that comes later, maybe with nothing."""

    def hang_up(self) -> None:
        """Close the connection after what is queued before this."""

    def when_room(self, run: Callable[[], None]) -> None:
        """Call `run` once, in a later turn, as soon as this is not full: for pushed streams.

        Never, if the connection goes first.
        """

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        """Reserve memory for an answer of about `size` bytes before it is read or made.

        Ready when the memory is there; until then this is full.  Call the value when the answer
        has been given, or there is none: the memory is then counted by what is queued.  Never
        ready if the connection goes first.
        """

    def mute(self, delay_ms: int) -> None:
        """Be full for a while, whatever is queued: the peer is over its quota.  Answers leave."""

    def hold(self) -> Callable[[], None]:
        """Be full, whatever is queued, until the function returned is called; answers leave.

        For what must be known before anything else is served: whether a password is right.
        """


class Session(Protocol):
    """One connection's protocol state."""

    def receive(self, data: memoryview) -> int:
        """Serve every whole frame in `data`; returns how many bytes were used up.

        `data` is writable, is the connection's own buffer and is only valid during the call:
        batches are patched and written from where they lie, and no view of it may be kept.
        Called again with the unused rest in front once more has come, or there is room.
        """

    @property
    def wanted(self) -> int:
        """Size of the frame whose head has arrived, so the buffer can grow once; 0 if unknown."""

    def close(self) -> None:
        """The connection is gone: stop streams and waits."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Usage(Protocol):
    """Quotas of one connection, for what its protocol alone knows."""

    def check_change(self) -> None:
        """Raise `Overloaded` if partitions may not be made or deleted now."""

    def changed(self, partitions: int) -> None:
        """So many were made or deleted."""

    def write_delay_ms(self, size_bytes: int) -> int:
        """How long the peer will not be read from, for a request that writes."""

    def read_delay_ms(self, size_bytes: int) -> int:
        """The same for an answer that is about to leave."""


class Unmetered:
    """Nothing is counted."""

    def check_change(self) -> None: ...

    def changed(self, partitions: int) -> None: ...

    def write_delay_ms(self, size_bytes: int) -> int:
        return 0

    def read_delay_ms(self, size_bytes: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Context:
    """What a session may know of the world it was opened in."""

    broker: Broker
    runtime: Runtime
    config: Config
    metrics: Traffic
    """What passes through this connection."""
    peer: str
    listener: str
    """Name of the listener, as in `--listen NAME=HOST:PORT`."""
    advertised: Callable[[str], Address]
    """Endpoint name to the address that metadata tells this client."""
    totals: Metrics = field(default_factory=Metrics)
    """What the whole broker counts."""
    known: Peer = field(default_factory=Peer)
    """Who is at the other end; the session writes it."""
    observation: Observation | None = None
    """What the server knows of all connections."""
    demands: frozenset[str] = frozenset()
    """What the listener's name says is demanded there: `tls`, `sasl`, ..."""
    access: Access = field(default_factory=Access)
    """Who the peer is, and what it may do."""
    usage: Usage = field(default_factory=Unmetered)
    """How much it may use, where that is counted around its protocol and not by it."""
    slices: Slices = None  # type: ignore[assignment]  # set below if not given
    """Runs requests that take long, together with those of all other connections."""

    def __post_init__(self) -> None:
        if self.slices is None:
            object.__setattr__(self, "slices", Slices(self.runtime))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One port of a protocol."""

    name: str
    port: int
    open: Callable[[Context, Replies], Session]
    in_order: bool = True
    """Answers leave in the order of their requests."""
    in_flight_max: int = 1000
    """Places a connection may keep open before reading from it stops."""
    recognises: Callable[[bytes], bool] | None = None
    """Are these first bytes, a length and one more, a conversation of this protocol?

    Given where the protocol can share the port of another one.
    """
    costly: Callable[[memoryview], bool] | None = None
    """Does what was received begin with a request that takes long, and that may wait a little?"""
    door: str = ""
    """Name of the protocol, where that is not the endpoint's name."""
    inspector: Callable[[], Inspector] | None = None
    """Reads the frames of a connection for those who watch it; they begin with a u32 length."""
    demands: frozenset[str] = frozenset()
    """What listeners may demand by their name, besides `tls`, which every one may."""
    asks_first: bool = False
    """Its sessions look at nothing `broker.knowledge` was not asked for: any engine will do."""
    authenticates: bool = False
    """Nobody is served before he has logged in, whatever the listener demands."""
    login_bytes_max: int = 72 << 10
    """Size of the largest frame of a client that has not logged in, where it must."""
    closes_idle: bool = False
    """Clients expect that a connection without requests is closed after a while."""


@dataclass(frozen=True, slots=True)
class WireProtocol:
    name: str
    endpoints: tuple[Endpoint, ...]
    error_codes: Mapping[type[BrokerError], int | str]
