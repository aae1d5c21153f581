"""Sessions between a connection and the protocol's own, through which faults come in."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from pentalog.model.types import Piece
from pentalog.server.metering import MeteredSession
from pentalog.session import Context, Endpoint, Place, Replies, Session
from pentalog.testing.faults import Faults
from pentalog.testing.refusals import REFUSALS

_LENGTH_BYTES: Final = 4
_HEAD_BYTES: Final = 4096


def faulty(endpoint: Endpoint, faults: Faults) -> Endpoint:
    """The same endpoint, whose requests meet with faults."""
    if endpoint.inspector is None:
        return endpoint

    def open_faulty(context: Context, replies: Replies) -> Session:
        return FaultySession(context, replies, endpoint, faults)

    return replace(endpoint, open=open_faulty)


class _WayOut:
    """Replies, unless they are lost on their way."""

    def __init__(self, replies: Replies) -> None:
        self.lost = False
        self._replies = replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replies, name)

    def send(self, *pieces: Piece) -> None:
        if not self.lost:
            self._replies.send(*pieces)

    def place(self) -> Place:
        return _Nowhere() if self.lost else self._replies.place()


class _Nowhere:
    def fill(self, *pieces: Piece) -> None: ...


class _Verdict(Enum):
    """What becomes of a request."""

    SERVE = auto()
    DONE = auto()
    LATER = auto()


class FaultySession:
    """Hands every request on, unless a fault is ordered for it."""

    def __init__(
        self, context: Context, replies: Replies, endpoint: Endpoint, faults: Faults
    ) -> None:
        assert endpoint.inspector is not None
        self.door = endpoint.door or endpoint.name
        self._frame_bytes_max = context.config.frame_bytes_max
        self._replies = replies
        self._way_out = _WayOut(replies)
        way_out: Any = self._way_out
        self._session = endpoint.open(context, way_out)
        self._inspector = endpoint.inspector()
        self._faults = faults
        self._ended = False
        self._wanted = 0
        self._released_bytes = 0
        """What has waited its time already."""
        self._begun = False
        """The request in front has met with its faults and was handed on, but not taken."""
        self._split = False
        """The session has cut up what it left behind: it must see the same again."""
        faults.sessions.add(self)

    @property
    def wanted(self) -> int:
        return max(self._wanted, self._session.wanted)

    def receive(self, data: memoryview) -> int:
        self._wanted = 0
        if self._ended:
            return len(data)
        if self._split or not (self._faults.ordered or self._released_bytes or self._begun):
            return self._hand_on(data)
        used = 0
        while not self._ended and not self._replies.full:
            size = self._frame_size(data, used)
            if size < 0:
                return used + self._hand_on(data[used:])
            if not size:
                break
            if not self._serve(data[used : used + size], len(data) - used):
                break
            used += size
        return len(data) if self._ended else used

    def close(self) -> None:
        self._faults.sessions.discard(self)
        self._session.close()

    def drop(self) -> None:
        """Hang up now."""
        self._ended = True
        self._way_out.lost = True
        self._replies.hang_up()

    def _hand_on(self, data: memoryview) -> int:
        used = self._session.receive(data)
        self._split = self._frame_size(data, used) > 0
        return used

    def _frame_size(self, data: memoryview, position: int) -> int:
        """Of the whole frame here; 0 if it has not come, -1 if it is not one to wait for."""
        if len(data) - position < _LENGTH_BYTES:
            return 0
        length = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        if length > self._frame_bytes_max:
            return -1
        size = _LENGTH_BYTES + length
        if len(data) - position < size:
            self._wanted = size
            return 0
        return size

    def _serve(self, frame: memoryview, here_bytes: int) -> bool:
        """True if this frame is done with."""
        if not self._begun:
            verdict = self._meet(frame, here_bytes)
            if verdict is _Verdict.LATER:
                return False
            if verdict is _Verdict.DONE:
                self._let_go(frame)
                return True
        used = self._session.receive(frame)
        # A session that has no room leaves it, and is handed the same again.
        self._begun = used < len(frame)
        if self._begun:
            return False
        self._let_go(frame)
        if self._way_out.lost:
            self.drop()
        return True

    def _let_go(self, frame: memoryview) -> None:
        self._released_bytes = max(0, self._released_bytes - len(frame))

    def _meet(self, frame: memoryview, here_bytes: int) -> _Verdict:
        """Let a request meet with its faults."""
        payload = frame[_LENGTH_BYTES:]
        told = self._inspector.request(payload[:_HEAD_BYTES], len(payload))
        faults = self._faults.matching(self.door, told.name)
        delays = [fault for fault in faults if fault.delay_ms]
        if delays and not self._released_bytes:
            for fault in delays:
                self._faults.happened(fault)
            # What has come with it waits with it, not once more behind it.
            self._released_bytes = here_bytes
            self._replies.mute(max(1, round(sum(fault.delay_ms for fault in delays))))
            return _Verdict.LATER
        for fault in faults:
            if fault.error is not None:
                self._faults.happened(fault)
                refuse = REFUSALS[self.door].refuse
                session = self._session
                if isinstance(session, MeteredSession):
                    session = session.inner
                if not refuse(payload, fault.error, session, self._way_out.send):
                    self.drop()
                return _Verdict.DONE
            if fault.hangs_up:
                self._faults.happened(fault)
                if not fault.serves:
                    self.drop()
                    return _Verdict.DONE
                self._way_out.lost = True
        return _Verdict.SERVE
