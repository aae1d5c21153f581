"""Frames of BlipMQ: u32 length, u8 type, u64 correlation id, payload."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from pentalog import kernels

FRAME_BYTES_MAX: Final = 16 << 20
"""Largest length a frame may name."""
LOGIN_BYTES_MAX: Final = 160 << 10
"""Before login: a hundredth of the largest frame, and room for the longest key."""
NUMBER_FRAME_BYTES: Final = 21
"""Size of a POLL or ACK frame on the wire."""
ID_BYTES: Final = 8
PAYLOAD_BYTES_MAX: Final = 128 << 10
"""More than the longest key or name of a topic has."""
_TEXT_BYTES_MAX: Final = 1_000

LENGTH: Final = struct.Struct(">I")
"""Of what follows it in the frame."""
_HEAD: Final = struct.Struct(">IB8s")
_ACK: Final = struct.Struct(">IB8sQ")


class FrameType(IntEnum):
    HELLO = 1
    AUTH = 2
    PUBLISH = 3
    SUBSCRIBE = 4
    ACK = 5
    NACK = 6
    PING = 7
    PONG = 8
    POLL = 9


class Frame(NamedTuple):
    """A frame that is not part of a run; a copy, so it may be kept."""

    kind: FrameType
    correlation: bytes
    payload: bytes


def read(data: memoryview, start: int, end: int) -> Frame:
    """The frame whose type is at `start`; the kernel has seen that it is whole and of a kind.

    What no frame but a PUBLISH needs of its payload is not copied.
    """
    end = min(end, start + 9 + PAYLOAD_BYTES_MAX)
    return Frame(
        FrameType(data[start]), bytes(data[start + 1 : start + 9]), bytes(data[start + 9 : end])
    )


def ack(correlation: bytes, subscription_id: int) -> bytes:
    return _ACK.pack(17, FrameType.ACK, correlation, subscription_id)


def pong(correlation: bytes) -> bytes:
    return _HEAD.pack(9, FrameType.PONG, correlation)


def nacks(correlations: bytes, code: int, text: str) -> bytes:
    """One NACK for each correlation id."""
    encoded = text.encode()
    if len(encoded) > _TEXT_BYTES_MAX:
        encoded = encoded[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return kernels.refuse_blipmq(correlations, code, encoded)
