"""A request that only the gateway which owns the state may serve, taken there and answered here.

Owners change, and die: until it is done, or its time is over, the request goes to whoever is the
owner then, which may be this gateway.  Twice the same does no harm to SmartModules.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import Final

from pentalog.broker.council import Council, Peer
from pentalog.broker.port import Broker
from pentalog.broker.upstream import Upstream
from pentalog.model.errors import BrokerError, Overloaded, SmartModuleNotFound
from pentalog.model.later import Later
from pentalog.protocols.fluvio import errors, frames
from pentalog.protocols.fluvio.codec import Reader, Undecodable, Writer
from pentalog.protocols.fluvio.session import Answer, Call
from pentalog.runtime import Timer

_FORWARDED: Final = "pentalog gateway "
"""How the client id of one gateway begins at another; the owner's secret follows."""

_TIMEOUT_MS: Final = 40_000
"""For all tries together: longer than it takes to elect an owner, shorter than clients wait."""
_PAUSE_MS: Final = 100
_ANSWER_BYTES_MAX: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")
_BODY_AT: Final = 8
"""Behind the length and the correlation id."""


def is_forwarded(call: Call) -> bool:
    """Does another gateway ask?  Nothing is forwarded twice."""
    current = call.context.broker.knowledge.current
    return not current and call.head.client_id.startswith(_FORWARDED)


def is_trusted(call: Call) -> bool:
    """Is it really a gateway?  Then the rules have been asked about the client there."""
    council = call.context.broker.council
    said, expected = call.head.client_id.encode(), name_among(council).encode()
    return bool(council.secret) and hmac.compare_digest(said, expected)


def name_among(council: Council) -> str:
    """What a gateway calls itself when it asks another."""
    return _FORWARDED + council.secret


def owned(broker: Broker) -> bool:
    """Can this gateway change what the owner keeps, now?"""
    return broker.council.owned and broker.knowledge.owner().ready


class Errand:
    """One request on its way; implements `upstream.Downstream`."""

    def __init__(
        self,
        call: Call,
        body: bytes,
        act: Callable[[], Later[None]],
        status: Callable[[BrokerError | None], Writer],
    ) -> None:
        """`act` does it here, `status` makes an answer of what came of that."""
        self._call = call
        self._act = act
        self._status = status
        self._body = body
        self._incoming = bytearray(_LENGTH.size)
        self._filled = 0
        self._wire: Upstream | None = None
        self._peer: Peer | None = None
        self._sent = False
        self._maybe_done = False
        """An owner was asked, and could not say what came of it."""
        self._why = ""
        self._answer: Answer | None = None
        self._release: Callable[[], None] = lambda: None
        self._timer: Timer | None = None
        self._stop_watching: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Nothing else of the client is served meanwhile: such requests may be large."""
        self._answer = self._call.place()
        self._release = self._call.session.replies.hold()
        context = self._call.context
        self._timer = context.runtime.after(_TIMEOUT_MS, self._give_up)
        self._stop_watching = context.broker.council.watch(self._council_changed)
        self._look()

    # One try

    def _look(self) -> None:
        if self._call.session.ended:
            self._finish(b"")
        elif self._answer is not None:
            self._call.context.broker.knowledge.owner().then(self._found)

    def _found(self, found: Later[None]) -> None:
        if self._answer is None:
            return
        council = self._call.context.broker.council
        try:
            _ = found.value
        except BrokerError as refusal:
            self._postpone(str(refusal))
            return
        owner = council.owner
        if council.owned:
            self._try_here()
        elif owner is None or owner == council.me:
            self._postpone("no gateway owns the state at the moment")
        else:
            self._try_at(owner)

    def _try_here(self) -> None:
        try:
            settled = self._act()
        except BrokerError as refusal:
            self._refused(refusal)
            return
        settled.then(self._settled)

    def _settled(self, settled: Later[None]) -> None:
        try:
            _ = settled.value
        except BrokerError as refusal:
            self._refused(refusal)
            self._maybe_done = True
        else:
            self._conclude(None)

    def _refused(self, refusal: BrokerError) -> None:
        if isinstance(refusal, Overloaded) and not owned(self._call.context.broker):
            self._postpone(str(refusal))
        elif isinstance(refusal, SmartModuleNotFound) and self._maybe_done:
            self._conclude(None)
        else:
            self._conclude(refusal)

    def _try_at(self, owner: Peer) -> None:
        context = self._call.context
        self._peer = owner
        self._sent = False
        self._incoming, self._filled = bytearray(_LENGTH.size), 0
        self._wire = context.broker.council.call(owner, context.listener, self)
        if self._wire is None:
            self._fail(f"gateway {owner.number}, which keeps them, has no listener for this door")

    def _council_changed(self) -> None:
        """Do not wait for one who owns nothing any more: it may never answer."""
        owner = self._call.context.broker.council.owner
        if self._wire is None or self._peer is None or owner is None:
            return
        if owner.gateway_id != self._peer.gateway_id:
            self._hang_up()
            self.lost("it owns the state no more")

    def _postpone(self, why: str) -> None:
        self._why = why
        self._call.context.runtime.after(_PAUSE_MS, self._look)

    # The wire's side

    def opened(self) -> None:
        if self._wire is None:
            return
        self._sent = True
        call, body = self._call, self._body
        head = Writer(0).u16(call.head.key).i16(call.version).i32(call.head.correlation_id)
        head.text(name_among(call.context.broker.council))
        self._wire.send((_LENGTH.pack(len(head.out) + len(body)), bytes(head.out), body))

    def buffer(self) -> memoryview:
        return memoryview(self._incoming)[self._filled :]

    def received(self, size: int) -> None:
        self._filled += size
        if self._filled < len(self._incoming):
            return
        (length,) = _LENGTH.unpack_from(self._incoming)
        if length > _ANSWER_BYTES_MAX:
            self._fail(f"an answer of {length} bytes")
        elif self._filled < _LENGTH.size + length:
            # A new one: views of the old may be held.
            self._incoming = self._incoming + bytes(length)
        else:
            self._hang_up()
            self._answered(bytes(self._incoming))

    def lost(self, why: str) -> None:
        self._wire = None
        self._maybe_done = self._maybe_done or self._sent
        self._postpone(f"gateway {self._peer.number if self._peer else 0}: {why}")

    def _answered(self, frame: bytes) -> None:
        code = _code_of(frame, self._call.version)
        if code == errors.NOT_LEADER:
            # It may have begun before it was the owner no more.
            self._maybe_done = True
            self._postpone(f"gateway {self._peer.number if self._peer else 0} is not the owner")
        elif code == errors.MODULE_NOT_FOUND and self._maybe_done:
            self._conclude(None)
        else:
            # Who has changed something shall see it here too.
            self._call.context.broker.knowledge.state().then(lambda _: self._finish(frame))

    # Our side

    def _give_up(self) -> None:
        self._fail(f"not done in {_TIMEOUT_MS} ms ({self._why or 'it does not answer'})")

    def _fail(self, why: str) -> None:
        if self._answer is not None:
            self._call.context.metrics.request_errors += 1
        self._conclude(Overloaded(f"one gateway keeps SmartModules for all: {why}; try again"))

    def _conclude(self, refusal: BrokerError | None) -> None:
        self._finish(frames.answer(self._call.head.correlation_id, self._status(refusal)))

    def _finish(self, frame: bytes | bytearray) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()
        answer.place.fill(frame)
        self._release()

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def _code_of(frame: bytes, version: int) -> int:
    """What the status in an answer says."""
    reader = Reader(memoryview(frame), _BODY_AT, len(frame), version)
    try:
        reader.text()
        return reader.i16()
    except Undecodable:
        return errors.UNKNOWN
