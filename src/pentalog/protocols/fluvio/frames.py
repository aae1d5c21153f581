"""Fluvio's framing, the same on both ports and in both directions.

| Request | | Answer | |
|---|---|---|---|
| length | u32, of what follows | length | u32, of what follows |
| api key | u16 | correlation id | i32 |
| api version | i16 | body | at the version of the request |
| correlation id | i32 | | |
| client id | string | | |
| body | at that version | | |
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.protocols.fluvio.codec import Reader, Writer

LENGTH_BYTES: Final = 4
HEAD_BYTES_MIN: Final = 10
"""Of a request without a client id, its length not counted."""

_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">Ii")


class Head(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str


def length_at(data: memoryview, position: int) -> int:
    """The length of the frame that starts here."""
    return int(_LENGTH.unpack_from(data, position)[0])


def read_head(data: memoryview, start: int, end: int) -> tuple[Head, Reader]:
    """The head of the request in `start..end`, and a reader of its body."""
    reader = Reader(data, start, end, 0)
    key, version, correlation_id = reader.u16(), reader.i16(), reader.i32()
    head = Head(key, version, correlation_id, reader.text())
    reader.version = version
    return head, reader


def answer(correlation_id: int, body: Writer) -> bytearray:
    """A whole frame."""
    return bytearray(_HEAD.pack(len(body.out) + 4, correlation_id)) + body.out


def answer_pieces(correlation_id: int, head: Writer, body: Writer) -> list[bytes | bytearray]:
    """A whole frame, in pieces that are not copied."""
    size = len(head.out) + body.size
    return [bytes(answer_head(correlation_id, size) + head.out), *body.pieces]


def answer_head(correlation_id: int, body_bytes: int) -> bytes:
    """What comes before a body that is sent in pieces of its own."""
    return _HEAD.pack(body_bytes + 4, correlation_id)
