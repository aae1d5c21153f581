"""Requests by schema: bytes to kio's entities, read by our own code.

kio's own reader is not for bytes from strangers: it sets memory aside for whatever an array's
length claims, and refuses tagged fields it does not know, which the protocol says to skip.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import lru_cache
from types import NoneType
from typing import Any, Final, TypeAlias, get_args, get_origin
from uuid import UUID

from pentalog.model.kio_schemas import load_request_schema

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Data and position to a value and the position behind it."""

_ID_NONE: Final = bytes(16)


class Undecodable(ValueError):
    """The bytes are not a request of the kind they claim to be."""


def decode(key: int, version: int, body: memoryview) -> Any:
    """The request in `body`, as kio's entity for this version; keeps no view of it."""
    try:
        entity, _ = request_reader(key, version)(bytes(body), 0)
    except (struct.error, UnicodeDecodeError, OverflowError) as flaw:
        raise Undecodable(f"request {key} version {version}: {flaw}") from flaw
    return entity


@lru_cache(maxsize=1024)
def request_reader(key: int, version: int) -> Read:
    return _entity(load_request_schema(key, version))


def unwrapped(kind: Any) -> tuple[bool, Any]:
    """May a field of this type be null, and what is it otherwise?"""
    if NoneType not in get_args(kind):
        return False, kind
    (kind,) = (arm for arm in get_args(kind) if arm is not NoneType)
    return True, kind


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift <= 28:
        if position >= len(data):
            raise Undecodable("the request ends inside a length")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Undecodable("a length of more than 5 bytes")


def skip_tagged(data: bytes, position: int) -> int:
    """Where the tagged fields that begin here end."""
    if position < len(data) and not data[position]:
        return position + 1
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > len(data):
            raise Undecodable("a tagged field is longer than the request")
    return position


def _entity(schema: Any) -> Read:
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    flexible: bool = schema.__flexible__
    for field in fields(schema):
        tag = field.metadata.get("tag")
        read = _field(field, flexible=flexible)
        if tag is None:
            plain.append((field.name, read))
        else:
            assert field.default is not MISSING, f"{field.name} has no default"
            tagged[tag] = (field.name, read)
            defaults[field.name] = field.default

    def read_entity(data: bytes, position: int) -> tuple[Any, int]:
        values = defaults.copy()
        for name, read in plain:
            values[name], position = read(data, position)
        if flexible:
            position = _read_tagged(data, position, tagged, values)
        return schema(**values), position

    return read_entity


def _read_tagged(
    data: bytes, position: int, tagged: dict[int, tuple[str, Read]], values: dict[str, Any]
) -> int:
    count, position = read_uvarint(data, position)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if end > len(data):
            raise Undecodable("a tagged field is longer than the request")
        known = tagged.get(tag)
        if known is not None:
            name, read = known
            values[name], stopped = read(data, position)
            if stopped != end:
                raise Undecodable(f"{name} takes {stopped - position} bytes but claims {size}")
        position = end
    return position


def _field(field: Field[Any], *, flexible: bool) -> Read:
    optional, kind = unwrapped(field.type)
    if get_origin(kind) is tuple:
        (element, _) = get_args(kind)
        read = _entity(element) if is_dataclass(element) else _primitive(field, flexible, False)
        return _array(field.name, read, flexible, optional)
    if is_dataclass(kind):
        return _nullable_entity(_entity(kind)) if optional else _entity(kind)
    return _primitive(field, flexible, optional)


def _array(name: str, read: Read, flexible: bool, optional: bool) -> Read:
    read_size = _size(flexible, ">i")

    def read_array(data: bytes, position: int) -> tuple[Any, int]:
        count, position = read_size(data, position)
        # Every element takes a byte at least, so a longer array cannot be there.
        if count > len(data) - position or count < -1:
            raise Undecodable(f"{name} claims {count} elements")
        if count < 0:
            if not optional:
                raise Undecodable(f"{name} cannot be null")
            return None, position
        values = []
        for _ in range(count):
            value, position = read(data, position)
            values.append(value)
        return tuple(values), position

    return read_array


def _nullable_entity(read: Read) -> Read:
    def read_nullable(data: bytes, position: int) -> tuple[Any, int]:
        (marker,) = struct.unpack_from(">b", data, position)
        return (None, position + 1) if marker < 0 else read(data, position + 1)

    return read_nullable


def _primitive(field: Field[Any], flexible: bool, optional: bool) -> Read:
    kind: str = field.metadata["kafka_type"]
    if kind in NUMBERS:
        return _number(NUMBERS[kind])
    if kind in ("string", "bytes", "records"):
        return _sized(field.name, kind == "string", flexible, optional)
    return _CONVERTED[kind]


def _number(form: str) -> Read:
    shape = struct.Struct(form)
    unpack, size = shape.unpack_from, shape.size

    def read_number(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read_number


def _size(flexible: bool, form: str) -> Read:
    if not flexible:
        return _number(form)

    def read_size(data: bytes, position: int) -> tuple[int, int]:
        size, position = read_uvarint(data, position)
        return size - 1, position

    return read_size


def _sized(name: str, text: bool, flexible: bool, optional: bool) -> Read:
    read_size = _size(flexible, ">h" if text else ">i")

    def read_sized(data: bytes, position: int) -> tuple[Any, int]:
        size, position = read_size(data, position)
        end = position + size
        if size < 0:
            if not optional or size < -1:
                raise Undecodable(f"{name} cannot be null")
            return None, position
        if end > len(data):
            raise Undecodable(f"{name} is longer than the request")
        found = data[position:end]
        return (found.decode() if text else found), end

    return read_sized


def _read_id(data: bytes, position: int) -> tuple[UUID | None, int]:
    end = position + 16
    found = data[position:end]
    if len(found) < 16:
        raise Undecodable("the request ends inside an id")
    return (None if found == _ID_NONE else UUID(bytes=found)), end


def _read_duration(data: bytes, position: int) -> tuple[timedelta, int]:
    (number,) = struct.unpack_from(">i", data, position)
    return timedelta(milliseconds=number), position + 4


def read_long_duration(data: bytes, position: int) -> tuple[timedelta, int]:
    (number,) = struct.unpack_from(">q", data, position)
    # More than a timedelta can hold means for ever; nobody lives to see the difference.
    bounded = max(-_DURATION_MS_MAX, min(_DURATION_MS_MAX, number))
    return timedelta(milliseconds=bounded), position + 8


NUMBERS: Final = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d",
    "bool": ">?",
}

_DURATION_MS_MAX: Final = 999_999_999 * 24 * 3600 * 1000

_CONVERTED: Final[dict[str, Read]] = {
    "uuid": _read_id,
    "timedelta_i32": _read_duration,
    "timedelta_i64": read_long_duration,
}
