"""Fetch requests, version 11, written and read by hand: batches stay where they were received."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pentalog.cluster.refusals import Lost
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Aborted, Marks, Offset, Partition

KEY: Final = 1
VERSION: Final = 11

_REQUEST_HEAD: Final = struct.Struct(">iiiibii")
_REQUEST_PARTITION: Final = struct.Struct(">iiqqi")
_ANSWER_HEAD: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


class Fetched(NamedTuple):
    """The one partition of an answer."""

    code: ErrorCode
    throttle_ms: int
    marks: Marks
    aborted: list[Aborted]
    data: memoryview


def request_body(
    at: Partition, offset: Offset, bytes_max: int, *, committed: bool
) -> Sequence[bytes]:
    """Never waits: an empty answer if there is nothing."""
    name = at.topic.encode()
    pieces = (
        _REQUEST_HEAD.pack(-1, 0, 0, bytes_max, committed, 0, -1),
        _I32.pack(1),
        _I16.pack(len(name)),
        name,
        _I32.pack(1),
        _REQUEST_PARTITION.pack(at.index, -1, offset, -1, bytes_max),
        _I32.pack(0),
        _I16.pack(0),
    )
    return (b"".join(pieces),)


def read_answer(data: memoryview) -> Fetched:
    try:
        throttle_ms, code, _ = _ANSWER_HEAD.unpack_from(data, 0)
        if code:
            return Fetched(ErrorCode(code), throttle_ms, _NO_MARKS, [], data[:0])
        position = _ANSWER_HEAD.size
        (topics,) = _I32.unpack_from(data, position)
        (size,) = _I16.unpack_from(data, position + 4)
        position += 6 + size
        (partitions,) = _I32.unpack_from(data, position)
        if (topics, partitions) != (1, 1):
            raise Lost(f"one partition was asked for, {topics} x {partitions} came back")
        _, code, end, stable, start = _PARTITION.unpack_from(data, position + 4)
        position += 4 + _PARTITION.size
        (count,) = _I32.unpack_from(data, position)
        position += 4
        behind = position + max(count, 0) * _ABORTED.size
        aborted = [Aborted(*entry) for entry in _ABORTED.iter_unpack(data[position:behind])]
        (size,) = _I32.unpack_from(data, behind + 4)
        position = behind + 8
        records = data[position : position + max(size, 0)]
        marks = Marks(start, min(stable, end), end, end)
        return Fetched(ErrorCode(code), throttle_ms, marks, aborted, records)
    except (struct.error, ValueError) as flaw:
        raise Lost(f"the cluster's answer to Fetch cannot be read: {flaw}") from flaw


_NO_MARKS: Final = Marks(-1, -1, -1, -1)
