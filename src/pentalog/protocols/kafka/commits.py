"""OffsetCommit, read and answered by hand: what a member sends after every few records.

The fields have the names that the schema gives them.

request            2-4   5-6   7     8-10
group              string, compact from version 8 on
generation         i32   i32   i32   i32
member             string
instance                       string or null
retention, ms      i64
topics             name (10: id) and partitions of each

partition          2-5   6-7   8-10
index              i32   i32   i32
offset             i64   i64   i64
leader epoch             i32   i32
metadata           string or null
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from pentalog.protocols.kafka.codec import uvarint
from pentalog.protocols.kafka.entities import (
    ELEMENTS_PER_STEP,
    Budget,
    Undecodable,
    read_long_duration,
    read_uvarint,
    skip_tagged,
)

_FLEXIBLE: Final = 8
_BY_ID: Final = 10
_NUMBER: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">h")
_ANSWER_HEAD: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ih")
_FLEXIBLE_RESULT: Final = struct.Struct(">ihx")
_KEPT_FOR_EVER: Final = timedelta(milliseconds=-1)
_PARTITION_2: Final = struct.Struct(">iq")
_PARTITION_6: Final = struct.Struct(">iqi")
_RESULTS_PER_STEP: Final = 256
_BYTES_PER_STEP: Final = 4096


class CommitPartition(NamedTuple):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class CommitTopic(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: list[CommitPartition]


class CommitRequest(NamedTuple):
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time: timedelta
    topics: list[CommitTopic]


def decode_steps(version: int, data: bytes, budget: Budget) -> Generator[None, None, CommitRequest]:
    """Read a request some partitions at a time."""
    try:
        request = yield from _decode(version, data, budget)
    except (struct.error, UnicodeDecodeError, OverflowError) as flaw:
        raise Undecodable(f"OffsetCommit {version}: {flaw}") from flaw
    return request


def encode(
    version: int, correlation_id: int, topics: Sequence[Mapping[str, Any]]
) -> Generator[None, None, bytearray]:
    """Write the whole frame of an answer in steps, length in front; nobody is told to wait."""
    flexible = version >= _FLEXIBLE
    out = bytearray(_ANSWER_HEAD.size + (1 if flexible else 0) + (4 if version >= 3 else 0))
    result = _FLEXIBLE_RESULT if flexible else _RESULT
    written = 0
    out += uvarint(len(topics) + 1) if flexible else _NUMBER.pack(len(topics))
    for topic in topics:
        if version >= _BY_ID:
            out += topic["topic_id"].bytes if topic["topic_id"] else bytes(16)
        else:
            name = topic["name"].encode()
            out += uvarint(len(name) + 1) if flexible else _SIZE.pack(len(name))
            out += name
        partitions = topic["partitions"]
        out += uvarint(len(partitions) + 1) if flexible else _NUMBER.pack(len(partitions))
        for number, partition in enumerate(partitions, 1):
            out += result.pack(partition["partition_index"], partition["error_code"])
            if not number % _RESULTS_PER_STEP:
                yield
        if flexible:
            out.append(0)
        if len(out) - written >= _BYTES_PER_STEP:
            written = len(out)
            yield
    if flexible:
        out.append(0)
    _ANSWER_HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _decode(version: int, data: bytes, budget: Budget) -> Generator[None, None, CommitRequest]:
    flexible = version >= _FLEXIBLE
    group, position = _text(data, 0, flexible)
    (generation,) = _NUMBER.unpack_from(data, position)
    member, position = _text(data, position + 4, flexible)
    instance = None
    retention = _KEPT_FOR_EVER
    if version >= 7:
        instance, position = _nullable(data, position, flexible)
    elif version < 5:
        retention, position = read_long_duration(data, position, budget)
    topics: list[CommitTopic] = []
    count, position = _count(data, position, flexible, budget)
    for _ in range(count):
        name, topic_id = "", None
        if version >= _BY_ID:
            if position + 16 > len(data):
                raise Undecodable("the id of a topic is cut off")
            topic_id = UUID(bytes=data[position : position + 16])
            topic_id = topic_id if topic_id.int else None
            position += 16
        else:
            name, position = _text(data, position, flexible)
        partitions, position = yield from _partitions(data, position, version, budget)
        budget.made += 1
        topics.append(CommitTopic(name, topic_id, partitions))
        if flexible:
            position = skip_tagged(data, position, budget)
    if flexible:
        skip_tagged(data, position, budget)
    return CommitRequest(group, generation, member, instance, retention, topics)


def _partitions(
    data: bytes, position: int, version: int, budget: Budget
) -> Generator[None, None, tuple[list[CommitPartition], int]]:
    flexible = version >= _FLEXIBLE
    found: list[CommitPartition] = []
    epoch = -1
    count, position = _count(data, position, flexible, budget)
    for _ in range(count):
        if version >= 6:
            index, offset, epoch = _PARTITION_6.unpack_from(data, position)
            position += 16
        else:
            index, offset = _PARTITION_2.unpack_from(data, position)
            position += 12
        metadata, position = _nullable(data, position, flexible)
        if flexible:
            position = skip_tagged(data, position, budget)
        found.append(CommitPartition(index, offset, epoch, metadata))
        budget.made += 1
        if budget.made >= ELEMENTS_PER_STEP:
            budget.made = 0
            yield
    return found, position


def _text(data: bytes, position: int, flexible: bool) -> tuple[str, int]:
    text, position = _nullable(data, position, flexible)
    if text is None:
        raise Undecodable("a name of OffsetCommit cannot be null")
    return text, position


def _nullable(data: bytes, position: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        (size,) = _SIZE.unpack_from(data, position)
        position += 2
    if size < 0:
        if size < -1:
            raise Undecodable(f"a text of {size} bytes")
        return None, position
    end = position + size
    if end > len(data):
        raise Undecodable("a text is longer than the request")
    return data[position:end].decode(), end


def _count(data: bytes, position: int, flexible: bool, budget: Budget) -> tuple[int, int]:
    if flexible:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        (count,) = _NUMBER.unpack_from(data, position)
        position += 4
    if not 0 <= count <= len(data):
        raise Undecodable(f"a list of {count} in {len(data)} bytes")
    budget.take(count)
    return count, position
