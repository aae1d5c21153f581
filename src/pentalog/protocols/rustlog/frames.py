"""Frames of both dialects: which one a frame speaks, and the binary requests in it.

A frame is a u32 length and that many bytes; numbers are big-endian, `str` is a u16 length and
UTF-8.  What follows a complete request in its frame is ignored, as the original does.

type  request            body
0x01  Produce            str topic, u32 partition, u32 count, count x (u32 length, bytes)
0x02  Fetch              str group, str topic, u32 partition, u64 offset, u32 max bytes
0x03  OffsetCommit       str group, str topic, u32 partition, u64 offset
0x04  OffsetFetch        str group, str topic, u32 partition
0x05  CreateTopic        str topic, u32 partitions
0x06  ListTopics
0x07  DescribeTopic      str topic
0x08  DescribePartition  str topic, u32 partition
0x09  MetricsFetch
0xff  Ping
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from pentalog import kernels
from pentalog.protocols.rustlog.messages import (
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
)

FRAME_BYTES_MAX: Final = 10 << 20
LENGTH: Final = struct.Struct(">I")
PRODUCE: Final = 0x01
OBJECT: Final = 0x7B
"""The brace a JSON request starts with."""

_METRICS: Final = 0x09
_WHITE: Final = b" \t\r\n"
_BLANKS_MAX: Final = 4_096
"""A request in JSON begins within so many bytes."""
_OTHER_JSON: Final = frozenset(b'["0123456789tfn')
_FLAWS: Final = ("", "truncated record length", "truncated record")
"""By the numbers of `kernels.rustlog_flaw`."""
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class Undecodable(Exception):
    """A binary request that cannot be read; the text is the original's."""


def recognises(head: bytes) -> bool:
    """Is this the beginning of a RustLog conversation?  No Kafka request starts like one.

    `head` is at least the length and one byte of a frame: the high byte of Kafka's request key
    is 0, which is no request of either dialect.
    """
    return len(head) > LENGTH.size and head[LENGTH.size] != 0


def is_json(payload: memoryview) -> bool:
    """Does a frame speak the document's dialect?"""
    first = payload[0]
    if first == OBJECT or first in _OTHER_JSON:
        return True
    if first in _WHITE and len(payload) > 1:
        return bytes(payload[:_BLANKS_MAX]).lstrip(_WHITE)[:1] == b"{"
    return False


def decode(payload: memoryview) -> Request:
    """A binary request other than Produce; raises `Undecodable`."""
    read = _REQUESTS.get(payload[0])
    if read is None:
        raise Undecodable(f"unknown request type: {payload[0]}")
    return read(_Walk(payload))


class _Walk:
    """Takes fields from the front of a request."""

    __slots__ = ("_payload", "_position")

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._position = 1

    def text(self, name: str) -> str:
        size: int = self._number(_U16, f"{name} length")
        start = self._position
        if size > len(self._payload) - start:
            raise _missing(f"truncated {name}")
        self._position = start + size
        try:
            return str(self._payload[start : self._position], "utf-8")
        except UnicodeDecodeError as flaw:
            raise _missing(f"invalid utf8 {name}: {_utf8_flaw(flaw)}") from flaw

    def u32(self, name: str) -> int:
        return self._number(_U32, name)

    def u64(self, name: str) -> int:
        return self._number(_U64, name)

    def records(self) -> int:
        """How many there are; nothing is reserved by what the count says, each must be there."""
        count = self.u32("record count")
        flaw = kernels.rustlog_flaw(self._payload, self._position, len(self._payload), count)
        if flaw:
            raise _missing(_FLAWS[flaw])
        return count

    def _number(self, form: struct.Struct, name: str) -> int:
        if len(self._payload) - self._position < form.size:
            raise _missing(f"missing {name}")
        number: int = form.unpack_from(self._payload, self._position)[0]
        self._position += form.size
        return number


def _missing(what: str) -> Undecodable:
    return Undecodable(f"decode error: {what}")


def _utf8_flaw(flaw: UnicodeDecodeError) -> str:
    """As Rust's standard library words it."""
    if flaw.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {flaw.start}"
    return f"invalid utf-8 sequence of {flaw.end - flaw.start} bytes from index {flaw.start}"


def decode_produce(payload: memoryview) -> tuple[Produce, int]:
    """What a Produce asks for, and how many records it brings, but not the records themselves.

    Those are taken by the kernel alone; here are the words for what is wrong.
    """
    walk = _Walk(payload)
    topic, partition = walk.text("topic"), walk.u32("partition")
    return Produce(topic, partition, []), walk.records()


def _fetch(walk: _Walk) -> Fetch:
    group, topic = walk.text("group_id"), walk.text("topic")
    partition, offset = walk.u32("partition"), walk.u64("offset")
    return Fetch(topic, partition, offset, walk.u32("max_bytes"), group)


def _offset_commit(walk: _Walk) -> OffsetCommit:
    group, topic = walk.text("group"), walk.text("topic")
    return OffsetCommit(group, topic, walk.u32("partition"), walk.u64("offset"))


def _offset_fetch(walk: _Walk) -> OffsetFetch:
    return OffsetFetch(walk.text("group"), walk.text("topic"), walk.u32("partition"))


def _create_topic(walk: _Walk) -> CreateTopic:
    return CreateTopic(walk.text("topic"), walk.u32("partition count"))


def _describe_topic(walk: _Walk) -> DescribeTopic:
    return DescribeTopic(walk.text("topic"))


def _describe_partition(walk: _Walk) -> DescribePartition:
    return DescribePartition(walk.text("topic"), walk.u32("partition"))


_REQUESTS: Final[Mapping[int, Callable[[_Walk], Request]]] = {
    0x02: _fetch,
    0x03: _offset_commit,
    0x04: _offset_fetch,
    0x05: _create_topic,
    0x06: lambda _: ListTopics(),
    0x07: _describe_topic,
    0x08: _describe_partition,
    _METRICS: lambda _: MetricsFetch(),
    0xFF: lambda _: Ping(),
}
