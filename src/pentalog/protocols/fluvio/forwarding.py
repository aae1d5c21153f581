"""A request that only the gateway which owns the state may serve, taken there and answered here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from pentalog.broker.upstream import Upstream
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.session import Answer, Call
from pentalog.runtime import Timer

FORWARDED: Final = "pentalog gateway"
"""Client id by which gateways know each other: nothing is forwarded twice."""

_TIMEOUT_MS: Final = 40_000
"""Longer than anything the other gateway waits for."""
_ANSWER_BYTES_MAX: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")


class Errand:
    """One request on its way; implements `upstream.Downstream`."""

    def __init__(self, call: Call, body: bytes, refusal: Callable[[str], Writer]) -> None:
        """`refusal` makes an answer of why there is none."""
        self._call = call
        self._refusal = refusal
        head = Writer(0).u16(call.head.key).i16(call.version).i32(call.head.correlation_id)
        head.text(FORWARDED)
        self._request = [_LENGTH.pack(len(head.out) + len(body)), bytes(head.out), body]
        self._incoming = bytearray(_LENGTH.size)
        self._filled = 0
        self._wire: Upstream | None = None
        self._answer: Answer | None = None
        self._release: Callable[[], None] = lambda: None
        self._timer: Timer | None = None

    def start(self) -> None:
        """Nothing else of the client is served meanwhile: such requests may be large."""
        self._answer = self._call.place()
        self._release = self._call.session.replies.hold()
        context = self._call.context
        self._timer = context.runtime.after(
            _TIMEOUT_MS, lambda: self._fail(f"no answer in {_TIMEOUT_MS} ms")
        )
        council = context.broker.council
        owner = council.owner
        if owner is None or owner == council.me:
            self._fail("no gateway owns the state at the moment")
            return
        self._wire = council.call(owner, context.listener, self)
        if self._wire is None:
            self._fail(f"gateway {owner.number}, which keeps them, has no listener for this door")

    # The wire's side

    def opened(self) -> None:
        if self._wire is not None:
            self._wire.send(self._request)

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
            # Who has changed something shall see it here too.
            self._hang_up()
            frame = bytes(self._incoming)
            self._call.context.broker.knowledge.state().then(lambda _: self._finish(frame))

    def lost(self, why: str) -> None:
        self._wire = None
        self._fail(why)

    # Our side

    def _fail(self, why: str) -> None:
        body = self._refusal(f"another gateway keeps SmartModules: {why}; try again")
        length = _LENGTH.pack(len(body.out) + 4)
        self._call.context.metrics.request_errors += 1
        self._finish(length + struct.pack(">i", self._call.head.correlation_id) + bytes(body.out))

    def _finish(self, frame: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()
        answer.place.fill(frame)
        self._release()

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
