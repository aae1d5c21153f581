"""Frames about subscriptions, taken to the gateway that keeps them, and its answers brought back.

One connection of ours for each connection of a client, opened when it is first needed, with the
key the client came with.  A PING behind every run marks the end of its answers.  Nothing else of
the client is served meanwhile.  Where nobody answers, the frames come again, for as long as
`holding` has patience.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final

from pentalog.broker.port import Peer
from pentalog.broker.upstream import Upstream
from pentalog.protocols.blipmq import frames
from pentalog.protocols.blipmq.door import door_of
from pentalog.protocols.blipmq.frames import FRAME_BYTES_MAX, FrameType
from pentalog.protocols.blipmq.holding import Holding
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


class _NoFrame(ValueError):
    """What came is no frame of BlipMQ."""


class Forwarding:
    """Implements `upstream.Downstream`."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.busy = False
        self._context = context
        self._replies = replies
        self._holding = Holding(context, self._again)
        self._unreached = door_of(context.broker).unreached
        self._peer: Peer | None = None
        self._wire: Upstream | None = None
        self._opened = False
        self._greetings = 0
        """Answers to come before those that are passed on: to HELLO and AUTH."""
        self._waiting: list[bytes] = []
        self._correlations = b""
        self._size = 0
        self._served = 0
        self._relayed = False
        """Have answers to these frames been passed on?"""
        self._pong = b""
        self._release: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._stop_watching: Callable[[], None] = lambda: None
        self._incoming = bytearray()
        self._filled = 0

    def forward(self, data: bytes, correlations: bytes, key: bytes) -> None:
        """Take whole frames to the owner; `served` says when they are done with."""
        self.busy = True
        self._release = self._replies.hold()
        self._correlations, self._size, self._relayed = correlations, len(data), False
        council = self._context.broker.council
        owner = council.owner
        if owner is None or owner == council.me or not key:
            self._hang_up()
            self._unanswered("no gateway owns them at the moment")
            return
        if self._wire is None and not self._unreached.may_call(owner.gateway_id, self._now_s()):
            self._unanswered(f"gateway {owner.number}, which keeps them, cannot be reached")
            return
        if not self._call(owner, key):
            self._refuse(f"gateway {owner.number}, which keeps them, has no listener for this door")
            return
        marker = uuid.uuid4().bytes[: frames.ID_BYTES]
        self._pong = frames.pong(marker)
        self._timer = self._context.runtime.after(_TIMEOUT_MS, self._give_up)
        self._stop_watching = self._context.broker.subscriptions.watch(self._look_for_owner)
        self._send(data + _HEAD.pack(9, FrameType.PING, marker))

    def served_here(self) -> None:
        """Whatever had to wait for an owner has found one: this gateway."""
        self._holding.end()

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
        self._holding.end()
        self._stop()
        self._hang_up()

    # The wire's side

    def opened(self) -> None:
        self._opened = True
        if self._peer is not None:
            self._unreached.reached(self._peer.gateway_id)
        waiting, self._waiting = self._waiting, []
        if self._wire is not None:
            self._wire.send(waiting)

    def buffer(self) -> memoryview:
        return memoryview(self._incoming)[self._filled :]

    def received(self, size: int) -> None:
        self._filled += size
        try:
            self._take()
        except _NoFrame:
            self._hang_up()
            self._refuse("an answer that is no frame of BlipMQ")

    def lost(self, why: str) -> None:
        self._wire = None
        if self._peer is not None and not self._opened:
            self._unreached.note(self._peer.gateway_id, self._now_s())
        try:
            if self.busy and not self._greetings:
                self._relay(self._whole())
        except _NoFrame:
            pass  # as good as nothing
        self._hang_up()
        self._unanswered(why)

    # Our side

    def _now_s(self) -> float:
        return self._context.runtime.monotonic()

    def _call(self, owner: Peer, key: bytes) -> bool:
        """See to a connection to this gateway; False if there is no way."""
        if self._wire is not None and self._peer is not None:
            if self._peer.gateway_id == owner.gateway_id:
                return True
            self._hang_up()
        self._peer = owner
        self._incoming = bytearray(_PORTION_BYTES)
        self._wire = self._context.broker.council.call(owner, self._context.listener, self)
        if self._wire is None:
            return False
        self._greetings = 2
        hello = _HELLO.pack(11, FrameType.HELLO, FORWARDED, PROTOCOL_VERSION)
        auth = _HEAD.pack(11 + len(key), FrameType.AUTH, FORWARDED)
        self._waiting = [hello + auth + len(key).to_bytes(2, "big") + key]
        return True

    def _send(self, data: bytes) -> None:
        if self._opened:
            assert self._wire is not None
            self._wire.send((data,))
        else:
            self._waiting.append(data)

    def _look_for_owner(self) -> None:
        """One who is not the owner any more may be too dead to say so."""
        owner = self._context.broker.council.owner
        if self._peer is not None and (owner is None or owner.gateway_id != self._peer.gateway_id):
            self._hang_up()
            self._unanswered("it keeps them no more")

    def _take(self) -> None:
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
            self._answered()
        elif filled == len(incoming):
            self._relay_whole()

    def _greeted(self) -> bool:
        """Take one answer to a greeting, if it is there and says yes."""
        end = self._frame_end(0)
        if end == 0 or end > self._filled:
            return False
        if self._incoming[4] != FrameType.ACK:
            text = str(self._incoming[17:end], "utf-8", "replace")
            number = self._peer.number if self._peer else 0
            self._hang_up()
            self._refuse(f"gateway {number} does not let this one in: {text}")
            return False
        self._greetings -= 1
        self._drop(end)
        return True

    def _frame_end(self, start: int) -> int:
        """Where the frame that begins here ends; 0 if its length is not there."""
        if self._filled - start < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._incoming, start)
        if not _LENGTH_MIN <= length <= FRAME_BYTES_MAX:
            raise _NoFrame
        return start + _LENGTH.size + int(length)

    def _whole(self) -> int:
        """Where the last frame that is whole ends."""
        end = 0
        while 0 < (following := self._frame_end(end)) <= self._filled:
            end = following
        return end

    def _relay_whole(self) -> None:
        """Pass on the frames that are whole."""
        end = self._whole()
        if end:
            self._relay(end)
            self._look_for_room()
        else:
            self._make_room(0, max(self._frame_end(0), len(self._incoming)))

    def _relay(self, size: int) -> None:
        if size:
            self._relayed = True
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
        self._refuse(f"no answer in {_TIMEOUT_MS} ms")

    def _unanswered(self, why: str) -> None:
        """The owner has gone, or there is none."""
        if not self.busy:
            return
        self._stop()
        if self._relayed:
            # Polls that are not answered have found nothing, and what an owner has acknowledged
            # just before its death is forgotten: nobody is told more by asking the next one.
            self._answered()
        elif not self._holding.wait():
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        if not self.busy:
            return
        self._context.metrics.request_errors += len(self._correlations) // frames.ID_BYTES
        if self._relayed:
            self._replies.hang_up()  # nobody knows which of the frames are answered
        else:
            text = f"subscriptions are kept by another gateway: {why}; try again"
            self._replies.send(frames.nacks(self._correlations, 500, text))
        self._answered()

    def _answered(self) -> None:
        self._served = self._size
        self._filled = 0
        self._holding.end()
        self._again()

    def _again(self) -> None:
        """Have the session go on with what it has not `served`."""
        self.busy = False
        self._stop()
        release, self._release = self._release, None
        if release is not None:
            release()

    def _stop(self) -> None:
        self._stop_watching()
        self._stop_watching = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
