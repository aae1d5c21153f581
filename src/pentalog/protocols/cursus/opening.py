"""Compressed frames that hold much: opened on another thread, then served in their turn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pentalog.kernels import new_buffer
from pentalog.model.errors import BrokerError
from pentalog.protocols.cursus import frames
from pentalog.protocols.cursus.compression import Algorithm, open_frame, opened_bytes_max
from pentalog.protocols.cursus.errors import REFUSALS
from pentalog.protocols.cursus.storing import run_steps

if TYPE_CHECKING:
    from pentalog.protocols.cursus.calls import Call
    from pentalog.protocols.cursus.session import CursusSession
    from pentalog.protocols.cursus.workroom import Reservation

LANE: Final = "cursus-open"
_COPIED_BYTES: Final = 2 << 20
"""Copied in one turn: to copy 60 MiB at once takes longer than other clients may wait."""


class Copying:
    """A copy of a compressed frame, made in parts; the frame is offered again for each.

    Nothing is copied before there is memory for the copy and for what the frame may hold: until
    then the frame stays where it was received, which is bounded too.
    """

    def __init__(self, session: CursusSession, algorithm: Algorithm, size: int) -> None:
        self.algorithm = algorithm
        self.bytes_max = opened_bytes_max(size)
        self.data = bytearray()
        self._end = 0
        self.owner = session.context.access.owner
        self._gaps = session.door.gaps
        self._gaps.begin_opening(self.owner)
        self.room = session.door.workroom.reserve(self.owner, size + self.bytes_max, session.hold())

    def step(self, data: memoryview) -> bool:
        """Copy a part once there is memory; True if that was the last one."""
        if not self.room.granted:
            return False
        if not self.data:
            self.data = new_buffer(len(data))
        start, self._end = self._end, min(self._end + _COPIED_BYTES, len(data))
        memoryview(self.data)[start : self._end] = data[start : self._end]
        return self._end == len(data)

    def abandon(self) -> None:
        """Free the memory of a frame that is not opened."""
        self.room.release()
        self._gaps.end_opening(self.owner)


class Aside:
    """One compressed frame; nothing else of its connection is served until it is."""

    def __init__(self, session: CursusSession, call: Call, copying: Copying) -> None:
        self._session = session
        self._call = call
        self._room: Reservation | None = copying.room
        self._owner = copying.owner
        self._plain = b""
        call.keep_place()
        self._release = session.hold()
        data = memoryview(copying.data)
        work = partial(open_frame, copying.algorithm, data, bytes_max=copying.bytes_max)
        session.context.runtime.offload(LANE, work, self._opened)

    def _opened(self, plain: bytes | None, error: BaseException | None) -> None:
        if self._session.ended:
            self._give_back()
            self._finish()
            return
        try:
            if error is not None:
                raise error
            assert plain is not None, "opened without an error"
            frames.check_opened(plain, self._session.door.registry)
            self._plain = plain
            if self._room is not None:
                self._room.shrink(2 * len(plain))
                self._call.room = self._room
        except REFUSALS as refusal:
            self._session.refuse_batch(self._call, refusal)
            self._give_back()
            self._finish()
            return
        self._serve()

    def _serve(self) -> None:
        session = self._session
        if session.ended:
            self._finish()
            return
        if session.serve_plain(self._call, self._plain):
            self._finish()
            return
        storing = session.take_storing()
        if storing is None:
            # The broker must ask others first.
            session.asking.then(partial(session.context.runtime.soon, self._serve))
            return
        steps = run_steps(storing, memoryview(self._plain))
        session.context.slices.run(steps, self._stored, unconditional=True)

    def _stored(self, error: Exception | None) -> None:
        self._finish()
        if error is not None and not isinstance(error, BrokerError):
            raise error

    def _finish(self) -> None:
        self._plain = b""
        if self._call.room is not None:
            # Nothing else uses the memory: the frame was not stored in parts.
            self._call.room = None
            self._give_back()
        self._session.door.gaps.end_opening(self._owner)
        self._release()

    def _give_back(self) -> None:
        if self._room is not None:
            self._room.release()
            self._room = None
