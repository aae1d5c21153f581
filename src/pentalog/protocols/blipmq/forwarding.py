"""Frames about subscriptions, taken to the gateway that keeps them, and its answers brought back.

One connection of ours for each connection of a client, opened when it is first needed, with the
key the client came with.  A PING behind every run marks the end of its answers.  Nothing else of
the client is served meanwhile.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final

from pentalog.broker.port import Peer
from pentalog.broker.upstream import Upstream
from pentalog.protocols.blipmq import frames
from pentalog.protocols.blipmq.frames import FRAME_BYTES_MAX, FrameType
from pentalog.protocols.blipmq.messages import PROTOCOL_VERSION
from pentalog.runtime import Timer
from pentalog.session import Context, Replies

FORWARDED: Final = b"pentalog"
"""Correlation id of a HELLO by which gateways know each other: nothing is forwarded twice."""

_PORTION_BYTES: Final = 64 << 10
"""Answers are passed on when so much has come, or all of them."""
_TIMEOUT_MS: Final = 40_000
"""Longer than anything the other gateway waits for."""
_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">IB8s")
_HELLO: Final = struct.Struct(">IB8sH")
_LENGTH_MIN: Final = 9


class Forwarding:
    """Implements `upstream.Downstream`."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.busy = False
        self._context = context
        self._replies = replies
        self._peer: Peer | None = None
        self._wire: Upstream | None = None
        self._opened = False
        self._greetings = 0
        """Answers to come before those that are passed on: to HELLO and AUTH."""
        self._waiting: list[bytes] = []
        self._correlations = b""
        self._size = 0
        self._served = 0
        self._pong = b""
        self._release: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._incoming = bytearray()
        self._filled = 0

    def forward(self, data: bytes, correlations: bytes, key: bytes) -> None:
        """Take whole frames to the owner; `served` says when they are done with."""
        self.busy = True
        self._release = self._replies.hold()
        self._correlations, self._size = correlations, len(data)
        marker = uuid.uuid4().bytes[: frames.ID_BYTES]
        self._pong = frames.pong(marker)
        self._timer = self._context.runtime.after(_TIMEOUT_MS, self._give_up)
        self._send(self._call(key), data + _HEAD.pack(9, FrameType.PING, marker))

    def room(self) -> None:
        """What was passed on has left: go on."""
        if self._release is None:
            self._release = self._replies.hold()
            if self._wire is not None:
                self._wire.resume()

    def served(self) -> int:
        """Bytes at the front of what was received that have been answered already."""
        served, self._served = self._served, 0
        return served

    def close(self) -> None:
        self.busy = False
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()

    # The wire's side

    def opened(self) -> None:
        self._opened = True
        waiting, self._waiting = self._waiting, []
        if self._wire is not None:
            self._wire.send(waiting)

    def buffer(self) -> memoryview:
        return memoryview(self._incoming)[self._filled :]

    def received(self, size: int) -> None:
        self._filled += size
        while self._greetings:
            if not self._greeted():
                return
        if not self.busy:
            if self._filled:
                self._hang_up()  # it says what nobody asked for
            return
        incoming, filled = self._incoming, self._filled
        if incoming.endswith(self._pong, 0, filled):
            self._relay(filled - len(self._pong))
            self._done()
        elif filled == len(incoming):
            self._relay_whole()

    def lost(self, why: str) -> None:
        self._wire = None
        self._hang_up()
        self._fail(why)

    # Our side

    def _call(self, key: bytes) -> str | None:
        """See to a connection to whoever is the owner now; what stands against one."""
        council = self._context.broker.council
        owner = council.owner
        if owner is None or owner == council.me:
            self._hang_up()
            return "no gateway owns them at the moment"
        if self._wire is not None and self._peer is not None:
            if self._peer.gateway_id == owner.gateway_id:
                return None
            self._hang_up()
        self._peer = owner
        self._incoming = bytearray(_PORTION_BYTES)
        self._wire = council.call(owner, self._context.listener, self)
        if self._wire is None:
            return f"gateway {owner.number}, which keeps them, has no listener for this door"
        self._greetings = 2
        hello = _HELLO.pack(11, FrameType.HELLO, FORWARDED, PROTOCOL_VERSION)
        auth = _HEAD.pack(11 + len(key), FrameType.AUTH, FORWARDED)
        self._waiting = [hello + auth + len(key).to_bytes(2, "big") + key]
        return None

    def _send(self, flaw: str | None, data: bytes) -> None:
        if flaw is not None:
            self._fail(flaw)
        elif self._opened:
            assert self._wire is not None
            self._wire.send((data,))
        else:
            self._waiting.append(data)

    def _greeted(self) -> bool:
        """Take one answer to a greeting, if it is there and says yes."""
        end = self._frame_end(0)
        if end == 0 or end > self._filled:
            return False
        if self._incoming[4] != FrameType.ACK:
            text = str(self._incoming[17:end], "utf-8", "replace")
            number = self._peer.number if self._peer else 0
            self._hang_up()
            self._fail(f"gateway {number} does not let this one in: {text}")
            return False
        self._greetings -= 1
        self._drop(end)
        return True

    def _frame_end(self, start: int) -> int:
        """Where the frame that begins here ends; 0 if its length is not there or no length."""
        if self._filled - start < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._incoming, start)
        if not _LENGTH_MIN <= length <= FRAME_BYTES_MAX:
            self._hang_up()
            self._fail("an answer that is no frame of BlipMQ")
            return 0
        return start + _LENGTH.size + int(length)

    def _relay_whole(self) -> None:
        """Pass on the frames that are whole."""
        end = 0
        while True:
            following = self._frame_end(end)
            if following == 0 or following > self._filled:
                break
            end = following
        if self._wire is None:
            return
        if end:
            self._relay(end)
            self._look_for_room()
        elif following > len(self._incoming):
            self._make_room(0, following)

    def _relay(self, size: int) -> None:
        if size:
            self._replies.send(bytes(memoryview(self._incoming)[:size]))
            self._drop(size)

    def _drop(self, size: int) -> None:
        """What is left moves to the front."""
        self._make_room(size, self._filled - size + _PORTION_BYTES)

    def _make_room(self, start: int, size: int) -> None:
        """What has come from `start` on in a buffer of this size.

        A new one, since whoever fills the old one may hold a view of it.
        """
        left = self._incoming[start : self._filled]
        self._incoming = bytearray(size)
        self._incoming[: len(left)] = left
        self._filled = len(left)

    def _look_for_room(self) -> None:
        """Stop reading the owner's answers while the client does not read ours."""
        assert self._release is not None
        self._release()
        if self._replies.full:
            self._release = None
            if self._wire is not None:
                self._wire.pause()
        else:
            self._release = self._replies.hold()

    def _give_up(self) -> None:
        self._hang_up()
        self._fail(f"no answer in {_TIMEOUT_MS} ms")

    def _fail(self, why: str) -> None:
        if self.busy:
            text = f"subscriptions are kept by another gateway: {why}; try again"
            self._context.metrics.request_errors += len(self._correlations) // frames.ID_BYTES
            self._replies.send(frames.nacks(self._correlations, 500, text))
            self._done()

    def _done(self) -> None:
        self.busy = False
        self._served = self._size
        self._filled = 0
        if self._timer is not None:
            self._timer.cancel()
        release, self._release = self._release, None
        if release is not None:
            release()

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._peer = None
        self._opened = False
        self._greetings = 0
        self._waiting = []
        self._incoming = bytearray()
        self._filled = 0
