"""The frames of a live connection, as lines of JSON for as long as somebody reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.observation import START_BYTES_MAX, Frame, Observation
from pentalog.protocols.http import messages
from pentalog.protocols.http.frames import Request, number
from pentalog.protocols.http.views import connection_view, frame_view
from pentalog.session import Context, Replies

_LINES_MAX: Final = 1000
"""Gathered in one turn of the loop; what comes beyond is counted, not kept."""
_HEX_BYTES: Final = 64


class FrameStream:
    """`observation.Watching` that writes an answer without an end."""

    def __init__(
        self, context: Context, replies: Replies, request: Request, may: Callable[[], bool]
    ) -> None:
        """`may`: is its reader still allowed to see this?  Asked whenever something is shown."""
        self.over = False
        self._may = may
        self._replies = replies
        self._known = context.known
        self._soon = context.runtime.soon
        self._request = request
        self._hex_bytes_max = _hex_bytes(request)
        self._lines: list[bytes] = []
        self._dropped = 0
        self._scheduled = False
        self._end: Callable[[], None] | None = None

    def open(self, observation: Observation, connection: int) -> None:
        """Begin; raises `NotInspected`."""
        self._end = observation.watch(connection, self)
        self._known.pushed_to = True
        request = self._request
        self._replies.send(
            messages.stream_head(
                messages.LINES, chunks=request.chunks, keep_alive=request.keep_alive
            )
        )
        view = observation.connection(connection)
        if view is not None:
            self._lines.insert(0, messages.line({"connection": connection_view(view)}))
        self._schedule()

    def frame(self, frame: Frame) -> None:
        if self._replies.full or len(self._lines) >= _LINES_MAX:
            self._dropped += 1
        else:
            view = frame_view(frame, hex_bytes_max=self._hex_bytes_max)
            self._lines.append(messages.line(view))
        self._schedule()

    def ended(self) -> None:
        if not self.over:
            self._lines.append(messages.line({"ended": "the connection is closed"}))
            self._flush()
            self._conclude()

    def _conclude(self) -> None:
        if self.over:
            return
        self.close()
        if self._request.chunks:
            self._replies.send(messages.LAST_CHUNK)
        if not self._request.keep_alive or not self._request.chunks:
            self._replies.hang_up()

    def close(self) -> None:
        self.over = True
        self._known.pushed_to = False
        end, self._end = self._end, None
        if end is not None:
            end()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self.over:
            return
        if self._replies.full:
            # Those gathered wait here; they are few.
            self._replies.when_room(self._flush)
            self._scheduled = True
            return
        lines, self._lines = self._lines, []
        allowed = self._may()
        if not allowed:
            lines = [messages.line({"ended": "the right to see it was taken away"})]
            self._dropped = 0
        if self._dropped:
            lines.append(messages.line({"dropped": self._dropped}))
            self._dropped = 0
        if lines:
            data = b"".join(lines)
            self._replies.send(messages.chunk(data) if self._request.chunks else data)
        if not allowed:
            self._conclude()


def _hex_bytes(request: Request) -> int:
    return min(number(request, "bytes", _HEX_BYTES), START_BYTES_MAX)
