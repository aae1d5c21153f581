"""Kafka's framing above the length: request headers, and the primitives of both encodings.

field           classic (header 1)      flexible (header 2)
api key         i16                     i16
version         i16                     i16
correlation id  i32                     i32
client id       nullable string, i16    the same: never compact
tagged fields   -                       uvarint count, then (tag, size, bytes) each
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pentalog.model.kio_schemas import load_request_schema
from pentalog.protocols.kafka.entities import Undecodable

_START: Final = struct.Struct(">hhih")
_TAGS_MAX: Final = 100
"""Tagged fields of one header, or of one entity that is walked."""
_COSTLY: Final = frozenset({11, 13, 14, 19, 20, 37, 68})
"""Joining, leaving and planning groups; making, growing and deleting topics."""


def costly(data: memoryview) -> bool:
    """Does what was received begin with a request that takes long, as far as can be told?"""
    return len(data) > 5 and data[5] in _COSTLY and data[4] == 0


KEY_END: Final = 6


def key_of(data: memoryview) -> int:
    """Which request what was received begins with; at least `KEY_END` bytes of it."""
    return int.from_bytes(data[4:KEY_END], "big", signed=True)


class Header(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int
    """Where the rest starts: the tagged fields of a flexible header, else the body."""


def read_header(data: memoryview, start: int, end: int) -> Header:
    """The fixed part of a request header; raises `Undecodable`."""
    if end - start < _START.size:
        raise Undecodable(f"a request of {end - start} bytes; its header alone takes 10")
    key, version, correlation_id, size = _START.unpack_from(data, start)
    position = start + _START.size
    if size < 0:
        return Header(key, version, correlation_id, None, position)
    if position + size > end:
        raise Undecodable("the client id is longer than the request")
    try:
        client_id = str(data[position : position + size], "utf-8")
    except UnicodeDecodeError as flaw:
        raise Undecodable("the client id is not UTF-8") from flaw
    return Header(key, version, correlation_id, client_id, position + size)


@lru_cache(maxsize=1024)
def flexible_header(key: int, version: int) -> bool:
    """Has this request tagged fields in its header?"""
    schema: Any = load_request_schema(key, version)
    flexible: bool = schema.__header_schema__.__flexible__
    return flexible


def skip_tags(data: memoryview, position: int, end: int) -> int:
    """Where the body starts, behind the tagged fields of a header."""
    if position < end and data[position] == 0:
        return position + 1
    walk = Walk(data, position, end)
    walk.tags()
    return walk.position


class Walk:
    """Reads a request where it lies; raises `Undecodable` where it ends too soon."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: memoryview, position: int, end: int) -> None:
        self._data = data
        self.position = position
        self._end = end

    def take(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or size > self._end - start:
            raise Undecodable(f"{size} bytes wanted, {self._end - start} left")
        self.position = start + size
        return self._data[start : self.position]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def uvarint(self) -> int:
        value = shift = 0
        while shift <= 28:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise Undecodable("a length of more than 5 bytes")

    def size(self, *, flexible: bool, wide: bool) -> int:
        """The length before a string, bytes or an array; -1 for null."""
        if flexible:
            return self.uvarint() - 1
        return self.int32() if wide else self.int16()

    def tags(self) -> None:
        """Skip tagged fields: none of those a client may send changes what we do."""
        count = self.uvarint()
        if count > _TAGS_MAX:
            raise Undecodable(f"{count} tagged fields; at most {_TAGS_MAX} are accepted")
        for _ in range(count):
            self.uvarint()
            self.take(self.uvarint())
