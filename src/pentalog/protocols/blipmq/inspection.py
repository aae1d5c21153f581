"""Reads the frames of a connection for somebody who watches it."""

from __future__ import annotations

from typing import Final

from pentalog.observation import Told
from pentalog.protocols.blipmq.frames import ID_BYTES, FrameType

_PAYLOAD: Final = 1 + ID_BYTES
_KINDS: Final = frozenset(FrameType)


class BlipmqInspector:
    """Both sides speak the same frames."""

    def request(self, head: memoryview, size: int) -> Told:
        if len(head) < _PAYLOAD:
            return Told("unreadable", secret=True)
        correlation = int.from_bytes(head[1:_PAYLOAD], "big")
        if head[0] not in _KINDS:
            return Told("unknown", correlation, secret=True)
        kind = FrameType(head[0])
        return Told(kind.name, correlation, topic=_topic(kind, head), secret=kind is FrameType.AUTH)

    reply = request


def _topic(kind: FrameType, head: memoryview) -> str | None:
    if kind is FrameType.PUBLISH:
        start = _PAYLOAD + 1
    elif kind is FrameType.SUBSCRIBE:
        start = _PAYLOAD
    else:
        return None
    length = int.from_bytes(head[start : start + 2], "big")
    return str(head[start + 2 : start + 2 + length], "utf-8", "replace") or None
