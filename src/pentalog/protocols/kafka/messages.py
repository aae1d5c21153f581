"""What a request is to the code that serves it: the registry entry, and the call.

Every module in `api/` defines `API = Api(...)` and a function that takes a `Call`.  A served
function answers once: by `call.answer`, or later by `call.place()` and `place.answer`.
It may raise a `BrokerError` only where the message has no field for an error: the connection is
then closed, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.codec import Fields
from pentalog.session import Context, Place

if TYPE_CHECKING:
    from pentalog.broker.port import Waiting
    from pentalog.broker.security import Access
    from pentalog.model.later import Later
    from pentalog.model.types import Piece
    from pentalog.protocols.kafka.door import Door
    from pentalog.protocols.kafka.throttling import Allowance


@dataclass(frozen=True, slots=True)
class Api:
    """One request of Kafka's protocol, and the versions of it that are served."""

    key: int
    name: str
    version_min: int
    version_max: int
    serve: Callable[[Call], None]
    advertised_min: int | None = None
    """The lowest version ApiVersions names, where that is not the lowest one served."""
    decode: Callable[[int, memoryview], Any] | None = None
    """Version and body to what `Call.body` shall be, where that is not kio's entity."""


class Line(Protocol):
    """The way out of one connection, seen by what serves its requests."""

    def send(self, *pieces: Piece) -> None:
        """Next in line.  The pieces are kept, not copied."""

    def place(self) -> Place:
        """Keep the next place in line."""

    def hang_up(self) -> None:
        """Close after what was sent before this."""

    def hold(self) -> Callable[[], None]:
        """Serve no further request of the connection until the function returned is called."""

    @property
    def waits(self) -> set[Waiting]:
        """Waits to be given up when the connection goes; whoever adds one takes it out."""


@dataclass(slots=True)
class Call:
    """One request, decoded, with the means to answer it."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    """kio's entity of this key and version."""
    context: Context
    door: Door
    """What all Kafka connections of this broker share."""
    line: Line
    allowance: Allowance | None = None
    """What the client may use; None while nobody has a quota."""
    throttle_ms: int = 0
    """How long it is muted for what it used before, or to send this request."""
    answered: Callable[[Fields], None] | None = None
    """Is shown the answer, also if nobody is there any more to get it."""

    @property
    def access(self) -> Access:
        """Who asks, and what he may do."""
        return self.context.access

    def field(self, name: str, default: Any) -> Any:
        """A field of the request that some versions lack."""
        return getattr(self.body, name, default)

    def answer(self, fields: Fields) -> None:
        """Send the response.

        `fields` are plain nested dicts with all fields of the newest version, by kio's names;
        what this version lacks is left out.  Times are milliseconds (kio's `throttle_time`),
        error codes ints, ids UUIDs.  `throttle_time`, `error_code` and what has a default in the
        schema may be missing.
        """
        self.line.send(self.encoded(fields))

    def encoded(self, fields: Fields) -> bytearray:
        """The response as it is sent; for those who answer."""
        if self.answered is not None:
            self.answered(fields)
        return codec.encode(self.key, self.version, self.correlation_id, fields)

    def place(self) -> CallPlace:
        """Keep the place in line for an answer that comes later."""
        return CallPlace(self, self.line.place())

    def throttle(self, delay_ms: int) -> None:
        """Mute the client for at least this long, and tell it so in the answer."""
        assert self.allowance is not None, "nobody is throttled without a quota"
        self.throttle_ms = max(self.throttle_ms, delay_ms)
        self.line = self.allowance.throttle(self.line, self.key, self.version, self.throttle_ms)

    def when_all(self, laters: Iterable[Later[Any]], go_on: Callable[[Call], None]) -> None:
        """Go on with this call when all of these are there, with a value or a refusal."""
        left = [later for later in laters if not later.ready]
        if not left:
            go_on(self)
            return
        kept = replace(self, line=KeptLine(self.line.place(), self.line))
        count = len(left)

        def arrived(_: Later[Any]) -> None:
            nonlocal count
            count -= 1
            if not count:
                go_on(kept)

        for later in left:
            later.then(arrived)


class KeptLine:
    """A line for one answer, whose place is kept already."""

    __slots__ = ("_line", "_place")

    def __init__(self, place: Place, line: Line) -> None:
        self._place = place
        self._line = line

    @property
    def waits(self) -> set[Waiting]:
        return self._line.waits

    def send(self, *pieces: Piece) -> None:
        self._place.fill(*pieces)

    def place(self) -> Place:
        return self._place

    def hang_up(self) -> None:
        self._line.hang_up()

    def hold(self) -> Callable[[], None]:
        return self._line.hold()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A kept place that knows how to write the answer."""

    call: Call
    kept: Place

    def answer(self, fields: Fields) -> None:
        self.kept.fill(self.call.encoded(fields))
