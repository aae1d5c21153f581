"""Fetch responses, written by hand: the frame around record batches that stay in their files.

partition             4     5-10  11    12-18
index                 i32   i32   i32   i32
error                 i16   i16   i16   i16
high watermark        i64   i64   i64   i64
last stable offset    i64   i64   i64   i64
log start offset            i64   i64   i64
aborted transactions  i32   i32   i32   uvarint     count; -1 or 0: null
read replica                      i32   i32         always -1
records               i32   i32   i32   uvarint     size; 12 on: plus 1
tagged fields                           empty
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from pentalog.model.types import FilePiece, Piece, Slice
from pentalog.protocols.kafka.codec import uvarint
from pentalog.protocols.kafka.fetch_sessions import Cursor

_FLEXIBLE: Final = 12
_BY_ID: Final = 13
_HEAD: Final = struct.Struct(">i")
_ABORTED: Final = struct.Struct(">qq")
_LEADING: Final = struct.Struct(">ihqqq")
_LEADING_4: Final = struct.Struct(">ihqq")
_PARTITIONS_AT_ONCE: Final = 128
_REPLICA: Final = b"\xff\xff\xff\xff"


class Outcome(NamedTuple):
    """What became of one partition of a fetch."""

    cursor: Cursor
    error: int
    slice: Slice | None


def frame(
    version: int,
    correlation_id: int,
    *,
    error: int,
    session_id: int,
    outcomes: Sequence[Outcome],
    committed: bool,
    throttle_ms: int = 0,
) -> Generator[None, None, list[Piece]]:
    """Write the pieces of a whole response in steps, length in front."""
    pieces: list[Piece] = []
    flexible = version >= _FLEXIBLE
    head = bytearray(_HEAD.pack(correlation_id))
    if flexible:
        head += b"\0"
    head += _HEAD.pack(throttle_ms)
    if version >= 7:
        head += struct.pack(">hi", error, session_id)
    topics = [
        (topic, list(group)) for topic, group in groupby(outcomes, lambda out: out.cursor.topic)
    ]
    head += _count(len(topics), flexible)
    written = 0
    for topic, group in topics:
        if version >= _BY_ID:
            head += topic
        else:
            head += uvarint(len(topic) + 1) if flexible else len(topic).to_bytes(2, "big")
            head += topic
        head += _count(len(group), flexible)
        for outcome in group:
            head = _partition(pieces, head, version, outcome, committed)
            written += 1
            if written % _PARTITIONS_AT_ONCE == 0:
                yield
        if flexible:
            head += b"\0"
    if flexible:
        head += b"\0"
    pieces.append(head)
    size = sum(part.length if isinstance(part, FilePiece) else len(part) for part in pieces)
    first = pieces[0]
    assert isinstance(first, bytearray)
    first[:0] = _HEAD.pack(size)
    return pieces


def _partition(
    pieces: list[Piece], head: bytearray, version: int, outcome: Outcome, committed: bool
) -> bytearray:
    """Write one partition to `head`, and what follows its records to the bytes returned."""
    cursor, error, found = outcome
    flexible = version >= _FLEXIBLE
    high = stable = start = -1
    size = 0
    if found is not None:
        start, stable, high, _ = found.marks
        size = found.size_bytes
    if version >= 5:
        head += _LEADING.pack(cursor.index, error, high, stable, start)
    else:
        head += _LEADING_4.pack(cursor.index, error, high, stable)
    if found is None or not committed:
        head += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        head += _count(len(found.aborted), flexible)
        for producer_id, first_offset in found.aborted:
            head += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                head += b"\0"
    if version >= 11:
        head += _REPLICA
    head += uvarint(size + 1) if flexible else _HEAD.pack(size)
    if found is not None and size:
        pieces.append(head)
        pieces.extend(found.pieces)
        head = bytearray()
    if flexible:
        head += b"\0"
    return head


def _count(length: int, flexible: bool) -> bytes:
    return uvarint(length + 1) if flexible else _HEAD.pack(length)
