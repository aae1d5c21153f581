"""Fetch requests, read by hand: the request a consumer sends all day.

request           4-6   7-14  15-18
replica id        i32   i32   tagged
wait, ms          i32   i32   i32
bytes, at least   i32   i32   i32
bytes, at most    i32   i32   i32
isolation         i8    i8    i8
session id              i32   i32
session epoch           i32   i32
topics            name (13 on: id) and partitions of each
forgotten topics        the same, of each partition only its index
rack                    string, from version 11 on

partition         4     5-8   9-11  12-18
index             i32   i32   i32   i32
leader epoch                  i32   i32
offset            i64   i64   i64   i64
last fetched epoch                  i32
log start offset        i64   i64   i64
bytes, at most    i32   i32   i32   i32
tagged fields                       skipped: they are for replicas
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final, NamedTuple

from pentalog.protocols.kafka.entities import (
    ELEMENTS_PER_STEP,
    Budget,
    Undecodable,
    read_uvarint,
    skip_tagged,
)
from pentalog.protocols.kafka.fetch_sessions import Cursor

_FLEXIBLE: Final = 12
_BY_ID: Final = 13
_HEAD_4: Final = struct.Struct(">4xiiib")
_HEAD_7: Final = struct.Struct(">4xiiibii")
_HEAD_15: Final = struct.Struct(">iiibii")
_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iq8xi")
_PARTITION_9: Final = struct.Struct(">iiq8xi")
_PARTITION_12: Final = struct.Struct(">iiq12xi")
_COUNT: Final = struct.Struct(">i")
_NAME: Final = struct.Struct(">h")


class FetchRequest(NamedTuple):
    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation: int
    session_id: int
    session_epoch: int
    cursors: list[Cursor]
    forgotten: list[tuple[bytes, int]]


def decode_steps(version: int, data: bytes, budget: Budget) -> Generator[None, None, FetchRequest]:
    """Read a request some partitions at a time."""
    try:
        request = yield from _decode(version, data, budget)
    except struct.error as flaw:
        raise Undecodable(f"Fetch {version}: {flaw}") from flaw
    return request


def _decode(version: int, data: bytes, budget: Budget) -> Generator[None, None, FetchRequest]:
    head = _HEAD_4 if version < 7 else _HEAD_7 if version < 15 else _HEAD_15
    wait_ms, bytes_min, bytes_max, isolation, *session = head.unpack_from(data, 0)
    session_id, session_epoch = session or (0, -1)
    position = head.size
    cursors: list[Cursor] = []
    count, position = _count(data, position, version, budget)
    for _ in range(count):
        topic, position = _topic(data, position, version)
        left, position = _count(data, position, version, budget)
        budget.made += 1
        while left > 0:
            some = min(left, ELEMENTS_PER_STEP)
            position = _partitions(data, position, version, topic, some, cursors, budget)
            left -= some
            budget.made += some
            if budget.made >= ELEMENTS_PER_STEP:
                budget.made = 0
                yield
        if version >= _FLEXIBLE:
            position = skip_tagged(data, position, budget)
    forgotten: list[tuple[bytes, int]] = []
    if version >= 7:
        position = yield from _forgotten(data, position, version, forgotten, budget)
    # What follows, the rack and tagged fields, changes nothing here.
    return FetchRequest(
        wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch, cursors, forgotten
    )


def _partitions(
    data: bytes,
    position: int,
    version: int,
    topic: bytes,
    count: int,
    cursors: list[Cursor],
    budget: Budget,
) -> int:
    epoch = -1
    if version < 9:
        shape = _PARTITION_4 if version < 5 else _PARTITION_5
        for _ in range(count):
            index, offset, size = shape.unpack_from(data, position)
            cursors.append(Cursor(topic, index, offset, size, epoch))
            position += shape.size
        return position
    flexible = version >= _FLEXIBLE
    shape = _PARTITION_12 if flexible else _PARTITION_9
    for _ in range(count):
        index, epoch, offset, size = shape.unpack_from(data, position)
        cursors.append(Cursor(topic, index, offset, size, epoch))
        position += shape.size
        if flexible:
            position = skip_tagged(data, position, budget)
    return position


def _forgotten(
    data: bytes, position: int, version: int, forgotten: list[tuple[bytes, int]], budget: Budget
) -> Generator[None, None, int]:
    count, position = _count(data, position, version, budget)
    for _ in range(count):
        topic, position = _topic(data, position, version)
        indexes, position = _count(data, position, version, budget)
        for _ in range(indexes):
            forgotten.append((topic, _COUNT.unpack_from(data, position)[0]))
            position += _COUNT.size
            budget.made += 1
            if budget.made >= ELEMENTS_PER_STEP:
                budget.made = 0
                yield
        if version >= _FLEXIBLE:
            position = skip_tagged(data, position, budget)
    return position


def _count(data: bytes, position: int, version: int, budget: Budget) -> tuple[int, int]:
    if version >= _FLEXIBLE:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
    if count < 0:
        raise Undecodable("a list of Fetch cannot be null")
    budget.take(count)
    return count, position


def _topic(data: bytes, position: int, version: int) -> tuple[bytes, int]:
    if version >= _BY_ID:
        size = 16
    elif version >= _FLEXIBLE:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        (size,) = _NAME.unpack_from(data, position)
        position += _NAME.size
    end = position + size
    if size < 0 or end > len(data):
        raise Undecodable("the name of a topic is null or longer than the request")
    return data[position:end], end
