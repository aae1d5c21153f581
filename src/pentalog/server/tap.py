"""Cuts what passes one connection into frames, for those who watch it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pentalog.observation import START_BYTES_MAX, Frame, Inspector, Told, Watching

_log = logging.getLogger("pentalog.server")

_LENGTH_BYTES: Final = 4
_HEAD_BYTES_MAX: Final = 4096
"""Of each frame, kept until its protocol has read it."""

_Found: TypeAlias = Callable[[memoryview, int], None]


class Tap:
    """What one connection's watchers are told; there only while somebody watches."""

    def __init__(self, inspector: Inspector, now_ms: Callable[[], int]) -> None:
        self.hears = True
        """What comes next begins with a frame, or goes on with one that was heard."""
        self.aligned = True
        """The same of what leaves."""
        self.watchers: list[Watching] = []
        self._inspector = inspector
        self._now_ms = now_ms
        self._in = _Cutter(self._received)
        self._out = _Cutter(self._sent)

    def received(self, data: memoryview) -> None:
        if self.hears:
            self._in.feed(data)

    def sent(
        self, pieces: Sequence[bytes | bytearray | memoryview], count: int, *, drained: bool
    ) -> None:
        """The first `count` bytes of these pieces have left; `drained`: nothing is behind them."""
        if not self.aligned:
            self.aligned = drained
            return
        for piece in pieces:
            self._out.feed(memoryview(piece)[:count])
            count -= len(piece)
            if count <= 0:
                break

    def sent_file(self, count: int, *, drained: bool) -> None:
        """Bytes have left that nobody here has seen."""
        if not self.aligned:
            self.aligned = drained
        elif not self._out.skip(count):
            # Not within one frame: where the next one begins is known when nothing is left.
            self._out = _Cutter(self._sent)
            self.aligned = drained

    def ended(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.ended()

    def _received(self, head: memoryview, size: int) -> None:
        self._tell(head, size, self._inspector.request, received=True)

    def _sent(self, head: memoryview, size: int) -> None:
        self._tell(head, size, self._inspector.reply, received=False)

    def _tell(
        self,
        head: memoryview,
        size: int,
        read: Callable[[memoryview, int], Told],
        *,
        received: bool,
    ) -> None:
        try:
            told = read(head, size)
        except Exception:  # the connection that is watched must not suffer from it
            _log.exception("a frame could not be read for those who watch, please report it")
            told = Told("unreadable", secret=True)
        start = b"" if told.secret else bytes(head[:START_BYTES_MAX])
        frame = Frame(self._now_ms(), received, size, told, start)
        for watcher in self.watchers:
            watcher.frame(frame)


class _Cutter:
    """One direction: finds where frames begin, keeps the first bytes of each."""

    __slots__ = ("_found", "_head", "_left", "_size")

    def __init__(self, found: _Found) -> None:
        self._found = found
        self._head = bytearray()
        self._size = 0
        self._left = 0
        """Bytes of the last frame found that are still to come."""

    def feed(self, data: memoryview) -> None:
        position, end = 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
                continue
            step = min(self._missing(), end - position)
            self._head += data[position : position + step]
            position += step
            if len(self._head) == _LENGTH_BYTES:
                self._size = int.from_bytes(self._head, "big")
            if not self._missing():
                self._finish()

    def skip(self, count: int) -> bool:
        """`count` bytes went by unseen; False if they were not all of one frame."""
        if self._head:
            if len(self._head) < _LENGTH_BYTES:
                return False
            self._finish()
        if count > self._left:
            return False
        self._left -= count
        return True

    def _missing(self) -> int:
        """Of the head of the present frame."""
        held = len(self._head)
        if held < _LENGTH_BYTES:
            return _LENGTH_BYTES - held
        return _LENGTH_BYTES + min(self._size, _HEAD_BYTES_MAX) - held

    def _finish(self) -> None:
        head, self._head = self._head, bytearray()
        self._left = self._size - (len(head) - _LENGTH_BYTES)
        self._found(memoryview(head)[_LENGTH_BYTES:], self._size)
