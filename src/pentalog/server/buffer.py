"""What one connection has received and its session has not used up yet, always in one piece."""

from __future__ import annotations

from typing import Final

from pentalog.kernels import new_buffer

IDLE_BYTES: Final = 8 << 10
"""Size of a connection that says little, so that thousands of them stay cheap."""
BUSY_BYTES: Final = 256 << 10
KEPT_BYTES: Final = 4 << 20
"""Larger buffers are given back as soon as they are empty."""

_READ_BYTES_MAX: Final = 512 << 10
_TAIL_BYTES_MIN: Final = 16 << 10
_GROWTH: Final = 4


class ReceiveBuffer:
    """Memory that is replaced, never resized: a session's views may be alive."""

    __slots__ = ("_end", "_start", "_view", "size")

    def __init__(self) -> None:
        self.size = IDLE_BYTES
        """What may be used; `_view` can be larger."""
        self._view = memoryview(bytearray(IDLE_BYTES))
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def space(self) -> memoryview:
        """Where the next read goes."""
        end = self._end
        return self._view[end : min(end + _READ_BYTES_MAX, self.size)]

    def content(self) -> memoryview:
        return self._view[self._start : self._end]

    def received(self, count: int) -> None:
        self._end += count

    def used(self, count: int) -> None:
        self._start += count
        if self._start == self._end:
            self._start = self._end = 0

    def size_for(self, frame_bytes: int, *, frame_bytes_max: int) -> int:
        """The size this should have once it is stuffed and a frame of `frame_bytes` is coming in.

        Never more than a few times what has really arrived: a peer that announces a large
        frame and sends nothing gets nothing.
        """
        frame_bytes = min(frame_bytes, frame_bytes_max)
        goal = max(frame_bytes, min(2 * frame_bytes, KEPT_BYTES))
        return min(goal, max(BUSY_BYTES, _GROWTH * len(self)))

    def replace(self, size: int, frame_bytes: int = 0) -> None:
        """Move the content to new memory of `size` bytes.

        For a large frame, addresses for all `frame_bytes` are reserved with the first memory over
        `KEPT_BYTES`.  Later growth only moves the end of what may be used: to copy 64 MiB takes
        longer than other clients may wait.
        """
        held = len(self)
        assert held <= size, "what was received must fit"
        if self.size < size <= len(self._view):
            self.size = size
            return
        # Pages are mapped as bytes arrive: zeros written here first would map all of them at once.
        view = memoryview(new_buffer(max(size, frame_bytes) if size > KEPT_BYTES else size))
        view[:held] = self.content()
        self._view = view
        self.size = size
        self._start = 0
        self._end = held

    def tidy(self, frame_bytes: int) -> None:
        """Move the content to the front if the frame, or a decent read, would not fit behind it."""
        if self._start and (
            self._start + frame_bytes > self.size or self.size - self._end < _TAIL_BYTES_MIN
        ):
            held = len(self)
            self._view[:held] = self.content()
            self._start = 0
            self._end = held

    @property
    def stuffed(self) -> bool:
        """There is no space for another byte."""
        return self._end == self.size
