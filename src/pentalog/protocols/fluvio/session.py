"""One Fluvio connection, on either port: frames to requests, any bytes to answers or a hang-up.

Answers carry the correlation id of their request and leave in any order; a stream's frames all
carry that of the request that opened it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from pentalog.model.errors import BrokerError
from pentalog.protocols.fluvio import frames
from pentalog.protocols.fluvio.codec import Reader, Undecodable, Writer
from pentalog.protocols.fluvio.door import Door, door_of
from pentalog.protocols.fluvio.frames import Head
from pentalog.protocols.fluvio.lookups import Asked, Asking, Look
from pentalog.session import Context, Place, Replies

if TYPE_CHECKING:
    from pentalog.broker.port import Waiting
    from pentalog.protocols.fluvio.streams import Stream

_log: Final = logging.getLogger(__name__)

CHANGE_WORK: Final = 32
"""A topic that is made or deleted: it is a directory and some files."""
WORK_BYTES: Final = 16 << 10
"""Records that are translated for one unit of work."""
_TURN_WORK: Final = 128
API_VERSIONS: Final = 18
_API_VERSIONS_MAX: Final = 2


class Api(NamedTuple):
    """One request: what it is called, its versions, and who serves it."""

    name: str
    version_min: int
    version_max: int
    serve: Callable[[Call], None]
    advertised: bool = True


class Call(NamedTuple):
    """One request being served."""

    session: FluvioSession
    head: Head
    reader: Reader

    @property
    def context(self) -> Context:
        return self.session.context

    @property
    def version(self) -> int:
        return self.head.version

    def writer(self) -> Writer:
        return Writer(self.head.version)

    def know(self, look: Look) -> None:
        """Ask the engine for what is about to be looked at; what raises is not to be caught."""
        self.session.asking.know(look)

    def answer(self, body: Writer) -> None:
        self.session.send(frames.answer(self.head.correlation_id, body))

    def slice(self, steps: Iterator[None]) -> None:
        """Serve the rest of a long request in steps, between which others are served."""
        self.session.slice(self, steps)

    def place(self) -> Answer:
        """Keep a place for an answer that comes later."""
        return Answer(self.head.correlation_id, self.session.replies.place())


class Answer(NamedTuple):
    """An answer that is waited for."""

    correlation_id: int
    place: Place

    def fill(self, body: Writer) -> None:
        self.place.fill(frames.answer(self.correlation_id, body))


class Turns:
    """Lets one stream of a connection at a time use SmartModules: their output takes memory."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, run: Callable[[], None]) -> bool:
        """It is one's turn, until `give_back`; or not, then `run` is called when it may be."""
        if self._taken:
            self._waiting.append(run)
            return False
        self._taken = True
        return True

    def give_back(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            self._waiting.popleft()()


def _once(run: Callable[[], None]) -> Iterator[None]:
    run()
    yield


def raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error


class FluvioSession:
    """Splits and dispatches; the two ports differ in what they serve."""

    apis: ClassVar[Mapping[int, Api]] = {}
    platform_version: ClassVar[str] = ""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.context = context
        self.replies = replies
        self.door: Door = door_of(context.broker, context.slices)
        self.streams: dict[int, Stream] = {}
        self.stream_ids = 0
        self.turns = Turns()
        self.asking = Asking(context.broker, replies)
        self.waits: set[Waiting] = set()
        self.wanted = 0
        self.ended = False
        self.work = 0
        """What was done in this turn: requests, and more for what takes longer."""
        self._abandon: Callable[[], None] | None = None
        """Ends the request that is served in slices."""

    def receive(self, data: memoryview) -> int:
        used = 0
        size = len(data)
        frame_bytes_max = self.context.config.frame_bytes_max
        self.wanted = 0
        self.work = 0
        while not self.ended and not self.replies.full:
            if self.work >= _TURN_WORK:
                # The rest is served in the next turn, when others have had theirs.
                self.context.runtime.soon(self.replies.hold())
                break
            self.work += 1
            left = size - used
            if left < frames.LENGTH_BYTES:
                break
            length = frames.length_at(data, used)
            if not frames.HEAD_BYTES_MIN <= length <= frame_bytes_max:
                accepted = f"{frames.HEAD_BYTES_MIN}..{frame_bytes_max}"
                self.violation(f"a frame of {length} bytes; accepted are {accepted}")
                break
            if left - frames.LENGTH_BYTES < length:
                self.wanted = length + frames.LENGTH_BYTES
                break
            start = used + frames.LENGTH_BYTES
            try:
                self._serve(data, start, start + length)
            except Asked:
                self.asking.again()
                break
            self.asking.forget()
            self.context.metrics.requests += 1
            used = start + length
        return size if self.ended else used

    def send(self, *pieces: bytes | bytearray | memoryview) -> None:
        self.replies.send(*pieces)

    def slice(self, call: Call, steps: Iterator[None]) -> None:
        """Serve a request in slices; nothing else of this connection is served meanwhile."""
        release: Callable[[], None] | None = None
        is_done = False

        def done(error: Exception | None) -> None:
            nonlocal is_done
            is_done = True
            self._abandon = None
            if release is not None:
                release()
            if isinstance(error, Undecodable | BrokerError):
                self.violation(f"{self.apis[call.head.key].name}: {error}")
            elif error is not None:
                self.replies.hang_up()
                raise error

        abandon = self.context.slices.run(steps, done)
        if not is_done:
            self._abandon = abandon
            release = self.replies.hold()

    def soon(self, run: Callable[[], None]) -> None:
        """Do a piece of work now, or in a later turn if this one has done enough of them.

        For what many connections are woken up for together.
        """
        self.context.slices.run(_once(run), raise_error)

    def close(self) -> None:
        self.ended = True
        abandon, self._abandon = self._abandon, None
        if abandon is not None:
            abandon()

    def violation(self, text: str) -> None:
        """The peer broke the protocol: there is no answer to that but hanging up."""
        self.context.metrics.request_errors += 1
        _log.info("%s: %s; the connection is closed", self.context.peer, text)
        self.ended = True
        self.replies.hang_up()

    def _serve(self, data: memoryview, start: int, end: int) -> None:
        name = "a request"
        try:
            head, reader = frames.read_head(data, start, end)
            self.context.known.client = head.client_id
            call = Call(self, head, reader)
            if head.key == API_VERSIONS:
                name = "ApiVersions"
                self._tell_versions(call)
                return
            api = self.apis.get(head.key)
            if api is None:
                raise Undecodable(f"request {head.key} is not served here")
            name = api.name
            if not api.version_min <= head.version <= api.version_max:
                raise Undecodable(
                    f"version {head.version}; served are {api.version_min}..{api.version_max}"
                )
            api.serve(call)
        except Undecodable as flaw:
            self.violation(f"{name}: {flaw}")
        except BrokerError as refusal:
            self.violation(f"{name}: {refusal}")

    def _tell_versions(self, call: Call) -> None:
        version = call.version
        if not 0 <= version <= _API_VERSIONS_MAX:
            raise Undecodable(f"version {version}; served are 0..{_API_VERSIONS_MAX}")
        if version >= 1:
            for _ in range(3):
                call.reader.text()
        call.reader.finish()
        body = call.writer().i16(0)
        body.many(
            [(key, api) for key, api in self.apis.items() if api.advertised],
            lambda entry: body.i16(entry[0]).i16(entry[1].version_min).i16(entry[1].version_max),
        )
        call.answer(body.text(self.platform_version))
