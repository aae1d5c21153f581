"""What a request is to the code that serves it: the registry entry, and the call.

Every module in `api/` defines `API = Api(...)` and a function that takes a `Call`.  A served
function answers once: by `call.answer`, or later by `call.place()` and `place.answer`.
One whose work grows with what a request names is a generator (`Steps`): it yields after each
bounded piece, so that others are served meanwhile (`serving.py`), or yields a `Later` to wait for
it, and answers by `yield from call.reply(...)`.
It may raise a `BrokerError` only where the message has no field for an error: the connection is
then closed, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.codec import Fields
from pentalog.session import Context, Place

if TYPE_CHECKING:
    from pentalog.broker.port import Waiting
    from pentalog.broker.security import Access
    from pentalog.model.later import Later
    from pentalog.model.types import Piece
    from pentalog.protocols.kafka.door import Door
    from pentalog.protocols.kafka.entities import Budget
    from pentalog.protocols.kafka.throttling import Allowance

S = TypeVar("S")
T = TypeVar("T")

Steps: TypeAlias = Generator["Later[Any] | None", None, T]
"""Work in pieces: None lets others be served, a `Later` is waited for."""

STEP_COST: Final = 64
_KEY_COST: Final = 2
"""What `Call.each` does before it lets others be served, in items that take a few microseconds."""


_SORTED_AT_ONCE: Final = 512
"""Items that `Call.sort` sorts in one step: about 0.5 ms."""
COMMITS_AT_ONCE: Final = 100
"""Offsets that are handed to the broker in one step."""


def portions(items: Sequence[S], size: int = COMMITS_AT_ONCE) -> Iterator[Sequence[S]]:
    """Cut a long list; what is short is given as it is."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]


@dataclass(frozen=True, slots=True)
class Api:
    """One request of Kafka's protocol, and the versions of it that are served."""

    key: int
    name: str
    version_min: int
    version_max: int
    serve: Callable[[Call], Steps[None] | None]
    advertised_min: int | None = None
    """The lowest version ApiVersions names, where that is not the lowest one served."""
    decode: Callable[[int, memoryview], Any] | None = None
    """Version and body to what `Call.body` shall be, where that is not kio's entity."""
    decode_steps: Callable[[int, bytes, Budget], Generator[None, None, Any]] | None = None
    """The same in steps, from a copy of the body."""
    finishes: bool = False
    """Steps run to their end although the client has gone: they change what others see."""


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
    answered: Callable[[Fields], Iterator[None]] | None = None
    """Is shown the answer, in steps, also if nobody is there any more to get it."""
    spent: int = 0
    """Cost of what was done in this step."""

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
            for _ in self.answered(fields):
                pass
        return codec.encode(self.key, self.version, self.correlation_id, fields)

    def reply(self, fields: Fields) -> Steps[None]:
        """Send the response, encoded in steps."""
        if self.answered is not None:
            yield from self.answered(fields)
        self.send(
            (yield from codec.encode_steps(self.key, self.version, self.correlation_id, fields))
        )

    def send(self, *pieces: Piece) -> None:
        """Send a response that is encoded already.

        The line is looked up here, after the last step of encoding: it is another one as soon as
        a request takes more than a step.
        """
        self.line.send(*pieces)

    def each(self, items: Iterable[S], do: Callable[[S], T], *, cost: int = 1) -> Steps[list[T]]:
        """Do something with each item, in steps; returns the results.

        `STEP_COST` items of cost 1 are one step; an item that takes longer costs more.
        """
        found = []
        for item in items:
            found.append(do(item))
            self.spent += cost
            if self.spent >= STEP_COST:
                self.spent = 0
                yield None
        return found

    def sort(self, items: Sequence[S], key: Callable[[S], Any]) -> Steps[list[S]]:
        """Sort items in steps; returns them in the order of their keys."""
        ranks = yield from self.each(
            range(len(items)), lambda number: (key(items[number]), number), cost=_KEY_COST
        )
        parts = []
        for part in portions(ranks, _SORTED_AT_ONCE):
            parts.append(sorted(part))
            yield None
        return (yield from self.each(merge(*parts), lambda rank: items[rank[1]]))

    def spend(self, cost: int) -> Steps[None]:
        """Count work that was done; lets others be served once it was enough for a step."""
        self.spent += cost
        if self.spent >= STEP_COST:
            self.spent = 0
            yield None

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


class SteppedLine:
    """The line of a request that is served in steps: its place is kept once that takes turns."""

    __slots__ = ("_answered", "_line", "_place")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._place: Place | None = None
        self._answered = False

    @property
    def waits(self) -> set[Waiting]:
        return self._line.waits

    def send(self, *pieces: Piece) -> None:
        self._answered = True
        if self._place is None:
            self._line.send(*pieces)
        else:
            self._place.fill(*pieces)

    def place(self) -> Place:
        """Return the place of this answer, whether it is kept already or not."""
        if self._place is None:
            self._place = self._line.place()
        self._answered = True
        return self._place

    def keep(self) -> None:
        """Keep the place, because the answer comes in a later turn."""
        if not self._answered and self._place is None:
            self._place = self._line.place()

    def give_up(self) -> None:
        """Let what stands behind this answer leave, although there is none."""
        if self._place is not None and not self._answered:
            self._place.fill()

    def hang_up(self) -> None:
        self._line.hang_up()

    def hold(self) -> Callable[[], None]:
        return self._line.hold()


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


def hold_line(line: Line, *, answers: bool) -> Callable[[], None]:
    """Let later requests wait until the returned function is called.

    A request that `answers` keeps a place itself; the others get one, for a clean stop to wait for.
    """
    let_go = line.hold()
    if answers:
        return let_go
    place = line.place()

    def release() -> None:
        place.fill()
        let_go()

    return release


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A kept place that knows how to write the answer."""

    call: Call
    kept: Place

    def answer(self, fields: Fields) -> None:
        self.kept.fill(self.call.encoded(fields))
