"""One Kafka connection: frames to broker calls and back, in the order they came.

Any bytes give answers or a hang-up.  Produce goes by runs, found by one kernel call per read;
everything else is decoded, looked up in the registry and served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pentalog import kernels
from pentalog.broker.port import Waiting
from pentalog.kernels import Frames, ProduceRun
from pentalog.model.errors import BrokerError
from pentalog.model.types import FilePiece, Piece
from pentalog.protocols.kafka import codec, frames, login, produce_runs
from pentalog.protocols.kafka.actions import ACTIONS, record, watch
from pentalog.protocols.kafka.api import APIS, k00_produce, k18_api_versions
from pentalog.protocols.kafka.codec import AnswerTooLarge
from pentalog.protocols.kafka.door import door_of
from pentalog.protocols.kafka.entities import (
    ELEMENTS_MAX,
    Budget,
    TooManyElements,
    Undecodable,
    exhaust,
)
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.login import Login
from pentalog.protocols.kafka.login import Session as LoggedIn
from pentalog.protocols.kafka.messages import Api, Call, Line, SteppedLine, Steps
from pentalog.protocols.kafka.serving import Serving
from pentalog.protocols.kafka.throttling import Allowance, ThrottledLine
from pentalog.runtime import Timer
from pentalog.session import Context, Place, Replies

_log: Final = logging.getLogger(__name__)

_QUEUE_BYTES_MAX: Final = 64 << 10
"""Answers gathered before they are handed on: enough to join those of a read, no more."""
_DECODED_BYTES_MAX: Final = 4 << 20
"""Largest request that is turned into objects; only Produce may be larger."""
_DECODED_AT_ONCE_BYTES: Final = 2 << 10
"""A larger request is decoded in steps."""
_BEFORE_LOGIN: Final = 100
"""Before a login the limits are this many times lower."""

_FAREWELL_MS: Final = 250
"""For the last answer to leave, before a connection is closed whose login was taken back."""


@dataclass(slots=True)
class _Left:
    """What a read was split into, as far as it is not served.

    Thousands of requests may be interrupted thousands of times: none is copied for that.
    """

    split: Frames
    next: int = 0
    """The item to go on with."""
    moved: int = 0
    """By so many bytes the buffer has moved on since it was split."""


class KafkaSession:
    """Serves one connection."""

    apis: ClassVar[Mapping[int, Api]] = APIS

    def __init__(self, context: Context, replies: Replies) -> None:
        self.waits: set[Waiting] = set()
        self.wanted = 0
        self._context = context
        self._replies = replies
        self._door = door_of(context.broker)
        self._quotas = context.broker.quotas
        self._allowance = Allowance(context, replies)
        self._serving = Serving(
            context, replies, self._door.large_requests, self._failed, self._worked
        )
        self._queue: list[Piece] = []
        self._queue_bytes = 0
        self._ended = False
        self._receiving = False
        """Answers are gathered until what was read is served."""
        self._holds = 0
        """Requests under way that those after them must wait for."""
        # What was already split but not served: runs are moved together in the buffer, so it
        # cannot be split a second time.
        self._left: _Left | None = None
        self._leave: Callable[[], None] | None = None
        """Takes back that this login ends with what it was made by."""
        self._farewell: Timer | None = None
        self._login: Login | None = None
        self._logged_in: LoggedIn | None = None
        self._expires_s = 0.0
        """When the login is good no more, by the clock that never goes back; 0: never."""
        if login.DEMAND in context.demands:
            self._login = self._new_login()

    def receive(self, data: memoryview) -> int:
        self._receiving = True
        try:
            return self._receive_all(data)
        finally:
            self._receiving = False

    def _receive_all(self, data: memoryview) -> int:
        used = 0
        if self._login is not None:
            used = self._log_in(data)
            if self._login is not None or self._ended or used == len(data):
                return used
            data = data[used:]
        if self._expires_s and self._left is None and not self._still_good(data):
            return used + (len(data) if self._ended else 0)
        return used + self._receive_metered(data)

    def _receive_metered(self, data: memoryview) -> int:
        if not self._quotas.active:
            return self._receive(data)
        if self._left is None:
            self._allowance.identify(data)
        start_s = self._context.runtime.monotonic()
        used = self._receive(data)
        self._allowance.meter.worked(self._context.runtime.monotonic() - start_s)
        return used

    def _receive(self, data: memoryview) -> int:
        used = 0
        while not self._ended:
            left, self._left = self._left, None
            again = left is not None
            if left is None:
                left = _Left(self._split(data, used))
            stopped = self._serve(data, left)
            if stopped >= 0:
                used = stopped
                break
            used = left.split.used - left.moved
            if not again:
                break
        self._flush()
        return len(data) if self._ended else used

    def _split(self, data: memoryview, start: int) -> Frames:
        size_max = self._context.config.frame_bytes_max
        return kernels.split_produce(data, start, len(data), frame_bytes_max=size_max)

    def close(self) -> None:
        self._ended = True
        self._left = None
        if self._login is not None:
            self._login.close()
        if self._leave is not None:
            self._leave()
        if self._farewell is not None:
            self._farewell.cancel()
        self._serving.close()
        waits = list(self.waits)
        self.waits.clear()
        for waiting in waits:
            waiting.cancel()

    def send(self, *pieces: Piece) -> None:
        self._queue.extend(pieces)
        for piece in pieces:
            self._queue_bytes += piece.length if isinstance(piece, FilePiece) else len(piece)
        # In a later turn nothing else would flush it: perhaps nothing more is received.
        if self._queue_bytes >= _QUEUE_BYTES_MAX or not self._receiving:
            self._flush()

    def place(self) -> Place:
        self._flush()
        return self._replies.place()

    def hang_up(self) -> None:
        self._flush()
        self._ended = True
        self._replies.hang_up()

    def hold(self) -> Callable[[], None]:
        """Keep later requests waiting, for one whose batches are opened elsewhere."""
        self._flush()
        self._holds += 1
        release = self._replies.hold()

        def let_go() -> None:
            self._holds -= 1
            release()

        return let_go

    def _flush(self) -> None:
        if self._queue:
            queue, self._queue, self._queue_bytes = self._queue, [], 0
            self._replies.send(*queue)

    def _serve(self, data: memoryview, left: _Left) -> int:
        """Serve what was split; returns -1, or where it stopped because the replies are full."""
        context = self._context
        metered = self._quotas.active
        split, first = left.split, left.next
        self.wanted = split.wanted
        for number in range(first, len(split.items)):
            left.next = number
            item = split.items[number]
            if isinstance(item, ProduceRun):
                start = item.start - left.moved
                line: Line = self
                if self._serving.busy or self._holds:
                    return self._keep(left, start)
                if (metered or number > first) and self._replies.full:
                    return self._keep(left, start)
                if metered:
                    line = self._metered(item)
                context.metrics.requests += len(item.requests) >> 3
                run = item._replace(start=start, end=item.end - left.moved) if left.moved else item
                if not produce_runs.serve_run(run, data, context, self._door, line):
                    self._violation("a Produce without acks was refused")
            else:
                start, end = item[0] - left.moved, item[1] - left.moved
                if (
                    self._holds
                    or self._replies.full
                    or self._serving.busy
                    or not self._serving.admit(end - start)
                ):
                    return self._keep(left, start - 4)
                context.metrics.requests += 1
                self._serve_frame(data, start, end)
                self._serving.served()
                if self._login is not None and number + 1 < len(split.items):
                    self._violation("requests behind the beginning of a login")
            if self._ended:
                return -1
        if split.refused:
            size_max = context.config.frame_bytes_max
            self._violation(f"a frame of {split.refused} bytes; accepted are 0..{size_max}")
        return -1

    def _metered(self, run: ProduceRun) -> Line:
        """Count a run; the line for its answers."""
        key = k00_produce.API.key
        delay_ms = self._allowance.received(key, run.end - run.start)
        return ThrottledLine(self, key, run.version, delay_ms) if delay_ms else self

    def _keep(self, left: _Left, used: int) -> int:
        """Remember what is left from its next item on; so much of the buffer is used."""
        left.moved += used
        self._left = left
        return used

    def _serve_frame(self, data: memoryview, start: int, end: int) -> None:
        try:
            header = frames.read_header(data, start, end)
            key, version, correlation_id, client_id, position = header
            self._context.known.client = client_id or ""
            if key == login.HANDSHAKE and self._logged_in is not None:
                self._log_in_again(data, start, end)
                return
            api = self.apis.get(key)
            if api is None:
                self._violation(f"request {key}; it is not served")
                return
            if not api.version_min <= version <= api.version_max:
                if key == k18_api_versions.API.key:
                    self.send(k18_api_versions.unsupported(correlation_id))
                else:
                    self._violation(
                        f"{api.name} {version}; served are {api.version_min}..{api.version_max}"
                    )
                return
            if frames.flexible_header(key, version):
                position = frames.skip_tags(data, position, end)
        except Undecodable as flaw:
            self._violation(str(flaw))
            return
        call = Call(key, version, correlation_id, client_id, None, self._context, self._door, self)
        if self._quotas.active:
            call.allowance = self._allowance
            call.throttle_ms = self._allowance.received(key, end - start)
            if call.throttle_ms:
                call.line = ThrottledLine(self, key, version, call.throttle_ms)
        try:
            self._serve_body(api, call, data[position:end])
        except (BrokerError, Undecodable, AnswerTooLarge) as refusal:
            self._failed(call, refusal)

    def _serve_body(self, api: Api, call: Call, body: memoryview) -> None:
        """Decode and serve; a long request in steps, of which the first ones are done now."""
        if api.decode is not None:
            call.body = api.decode(call.version, body)
            steps = self._begin(api, call)
        elif len(body) > _DECODED_BYTES_MAX:
            raise Undecodable(f"{len(body)} bytes; at most {_DECODED_BYTES_MAX} are accepted")
        elif len(body) > _DECODED_AT_ONCE_BYTES:
            steps = self._decode_and_serve(api, call, bytes(body))
        else:
            call.body = exhaust(self._decoding(api, call.version, bytes(body), sliced=False))
            steps = self._begin(api, call)
        if steps is not None:
            self._serving.run(call, steps, finishes=api.finishes)

    def _decode_and_serve(self, api: Api, call: Call, data: bytes) -> Steps[None]:
        call.body = yield from self._decoding(api, call.version, data, sliced=True)
        steps = self._begin(api, call)
        if steps is not None:
            yield from steps

    def _decoding(
        self, api: Api, version: int, data: bytes, *, sliced: bool
    ) -> Generator[None, None, Any]:
        budget = Budget(ELEMENTS_MAX if self._login is None else ELEMENTS_MAX // _BEFORE_LOGIN)
        if api.decode_steps is not None:
            return api.decode_steps(version, data, budget)
        return codec.decode_steps(api.key, version, data, budget, sliced=sliced)

    def _begin(self, api: Api, call: Call) -> Steps[None] | None:
        if call.key in ACTIONS:
            watch(call)
        return api.serve(call)

    def _failed(self, call: Call, error: Exception) -> None:
        """Refuse a request that could not be served: by its own error if it has a place for one."""
        name = self.apis[call.key].name
        if isinstance(error, TooManyElements):
            fields = codec.refusal(
                call.key, call.version, int(ErrorCode.invalid_request), str(error)
            )
            if fields is not None:
                _log.info("%s: %s: %s", self._context.peer, name, error)
                self._context.metrics.request_errors += 1
                call.answer(fields)
                return
        if not isinstance(error, BrokerError | Undecodable | AnswerTooLarge):
            raise error
        if call.answered is not None:
            record(call, f"refused: {error}")
        if isinstance(call.line, SteppedLine):
            call.line.give_up()
        self._violation(f"{name}: {error}")

    def _worked(self, spent_s: float) -> None:
        if self._quotas.active:
            self._allowance.meter.worked(spent_s)

    def _new_login(self) -> Login:
        return Login(self._context, self._replies, self._known, self._serve_open, self._logged_in)

    def _log_in(self, data: memoryview) -> int:
        """Bytes of a connection that nothing else may be served to; how many were used."""
        under_way = self._login
        assert under_way is not None
        used = under_way.receive(data)
        self.wanted = under_way.wanted
        self._flush()
        if under_way.over and self._login is under_way:
            # It ended badly.
            self._ended = True
            return len(data)
        return used

    def _serve_open(self, data: memoryview, start: int, end: int) -> None:
        """The one request that is served to everybody."""
        self._serve_frame(data, start, end)
        self._flush()
        if self._ended and self._login is not None:
            self._login.close()

    def _log_in_again(self, data: memoryview, start: int, end: int) -> None:
        self._flush()
        self._login = self._new_login()
        self._login.serve(data, start, end)
        if self._login is not None and self._login.over:
            self._ended = True

    def _known(self, session: LoggedIn) -> None:
        """A login went well: from now on everything is served."""
        who, proof = session.known.who, session.known.proof
        self._login = None
        if self._leave is not None:
            self._leave()
        self._leave = None
        if proof is not None:
            broker = self._context.broker
            logins = broker.tokens.logins if session.known.by_token else broker.users.logins
            self._leave = logins.enter(proof, self._shut)
        self._logged_in = session
        self._context.access.become(who, session.mechanism, by_token=session.known.by_token)
        self._allowance.become(who.name)
        self._expires_s = 0.0
        if session.lifetime_ms:
            now_s = self._context.runtime.monotonic()
            self._expires_s = now_s + session.lifetime_ms / 1000

    def _still_good(self, data: memoryview) -> bool:
        """A login whose time is over lets only those in who begin another one."""
        if self._context.runtime.monotonic() < self._expires_s:
            return True
        if len(data) < frames.KEY_END:
            return False
        if frames.key_of(data) == login.HANDSHAKE:
            return True
        self._violation("its login is good no more")
        return False

    def _shut(self) -> None:
        """What it logged in by was taken back; what waits is refused when it looks again.

        Nothing more is heard, but whoever took it back himself gets his answer.
        """
        self._leave = None
        self._ended = True
        context = self._context
        context.access.shut()
        _log.info("%s: its login was taken back; the connection is closed", context.peer)
        self._farewell = context.runtime.after(_FAREWELL_MS, self._replies.hang_up)

    def _violation(self, text: str) -> None:
        self._context.metrics.request_errors += 1
        _log.info("%s: %s; the connection is closed", self._context.peer, text)
        self.hang_up()
