"""Messages by schema: requests to entities (`entities.py`), plain dicts to response bytes.

The schemas are kio's.  The functions that write are put together once per (key, version); hot
answers are written by hand elsewhere, and the rest must not cost an object per field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin
from uuid import UUID

from pentalog.model.kio_schemas import load_response_schema
from pentalog.protocols.kafka.entities import NUMBERS, decode, unwrapped

__all__ = ["Fields", "Written", "decode", "element", "encode", "milliseconds", "uvarint"]

Fields: TypeAlias = Mapping[str, Any]
"""A response as plain nested dicts: kio's field names, milliseconds for times, ints for codes."""

Write: TypeAlias = Callable[[bytearray, Any], None]

_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_ID_NONE: Final = bytes(16)
# Fields every answer has and hardly one sets: no throttling, no error.
_ZERO_KINDS: Final = frozenset({"timedelta_i32", "error_code"})


class Written(NamedTuple):
    """The elements of an array that were written before, in slices, by `element`."""

    number: int
    data: bytearray


def encode(key: int, version: int, correlation_id: int, answer: Fields) -> bytearray:
    """The whole frame of an answer, length in front."""
    out = bytearray(8)
    flexible_header, write = _response(key, version)
    if flexible_header:
        out.append(0)
    write(out, answer)
    struct.pack_into(">ii", out, 0, len(out) - 4, correlation_id)
    return out


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def milliseconds(value: timedelta) -> int:
    """A time of a decoded request, as the number that was on the wire."""
    return value // _MILLISECOND


@lru_cache(maxsize=1024)
def _response(key: int, version: int) -> tuple[bool, Write]:
    schema: Any = load_response_schema(key, version)
    return schema.__header_schema__.__flexible__, _entity(schema)


@lru_cache(maxsize=16)
def element(key: int, version: int, name: str) -> Write:
    """The function that writes one element of an array of an answer."""
    for field in fields(load_response_schema(key, version)):
        if field.name == name:
            entity, _ = get_args(unwrapped(field.type)[1])
            return _entity(entity)
    raise KeyError(f"answer {key} {version} has no {name}")


def _entity(schema: Any) -> Write:
    """A function that writes a dict as this entity: its fields in order, then the tagged ones."""
    plain: list[tuple[str, Any, Write]] = []
    tagged: list[tuple[int, str, Any, Write]] = []
    flexible: bool = schema.__flexible__
    for field in fields(schema):
        tag = field.metadata.get("tag")
        write = _field(field, flexible=flexible, tagged=tag is not None)
        if tag is None:
            plain.append((field.name, _default(field), write))
        else:
            tagged.append((tag, field.name, field.default, write))
    tagged.sort(key=lambda entry: entry[0])

    def write_entity(out: bytearray, value: Fields) -> None:
        for name, default, write in plain:
            given = value.get(name, default)
            if given is MISSING:
                raise KeyError(f"{schema.__name__} {schema.__version__} needs {name}")
            write(out, given)
        if flexible:
            _write_tagged(out, value, tagged)

    return write_entity


def _write_tagged(out: bytearray, value: Fields, tagged: list[tuple[int, str, Any, Write]]) -> None:
    present = 0
    body = bytearray()
    for tag, name, default, write in tagged:
        given = value.get(name, default)
        # Left out is how a tagged field says its default; an entity given is never the default.
        if given is MISSING or is_dataclass(given) or given == default:
            continue
        if not given and isinstance(given, (list, tuple)) and not default:
            continue
        part = bytearray()
        write(part, given)
        body += uvarint(tag) + uvarint(len(part)) + part
        present += 1
    out += uvarint(present) + body


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return 0 if field.metadata.get("kafka_type") in _ZERO_KINDS else MISSING


def _field(field: Field[Any], *, flexible: bool, tagged: bool) -> Write:
    optional, kind = unwrapped(field.type)
    optional = optional and not tagged
    if get_origin(kind) is tuple:
        (element, _) = get_args(kind)
        write = _entity(element) if is_dataclass(element) else _primitive(field, flexible, False)
        return _array(write, flexible=flexible)
    if is_dataclass(kind):
        return _nullable_entity(_entity(kind)) if optional else _entity(kind)
    return _primitive(field, flexible, optional)


def _array(write: Write, *, flexible: bool) -> Write:
    def write_array(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\0" if flexible else b"\xff\xff\xff\xff"
            return
        written = isinstance(values, Written)
        count = values.number if written else len(values)
        out += uvarint(count + 1) if flexible else count.to_bytes(4, "big")
        if written:
            out += values.data
            return
        for value in values:
            write(out, value)

    return write_array


def _nullable_entity(write: Write) -> Write:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
            return
        out += b"\x01"
        write(out, value)

    return write_nullable


def _primitive(field: Field[Any], flexible: bool, optional: bool) -> Write:
    kind: str = field.metadata["kafka_type"]
    if kind in _NUMBERS:
        pack = struct.Struct(_NUMBERS[kind]).pack

        def write_number(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write_number
    if kind in ("string", "bytes", "records"):
        return _sized(field.name, 2 if kind == "string" else 4, flexible, optional)
    return _CONVERTED[kind]


def _sized(name: str, width: int, flexible: bool, optional: bool) -> Write:
    def write_sized(out: bytearray, value: Any) -> None:
        if value is None:
            if not optional:
                raise ValueError(f"{name} cannot be null")
            out += b"\0" if flexible else b"\xff" * width
            return
        data = value.encode() if isinstance(value, str) else value
        out += uvarint(len(data) + 1) if flexible else len(data).to_bytes(width, "big")
        out += data

    return write_sized


def _write_id(out: bytearray, value: UUID | None) -> None:
    out += _ID_NONE if value is None else value.bytes


def _write_duration(out: bytearray, value: int | timedelta) -> None:
    number = value // _MILLISECOND if isinstance(value, timedelta) else value
    out += number.to_bytes(4, "big", signed=True)


def _write_long_duration(out: bytearray, value: int | timedelta) -> None:
    number = value // _MILLISECOND if isinstance(value, timedelta) else value
    out += number.to_bytes(8, "big", signed=True)


def _write_moment(out: bytearray, value: int | datetime | None) -> None:
    if value is None:
        value = -1
    number = (value - _EPOCH) // _MILLISECOND if isinstance(value, datetime) else value
    out += number.to_bytes(8, "big", signed=True)


_NUMBERS: Final = {**NUMBERS, "error_code": ">h"}

_CONVERTED: Final[Mapping[str, Write]] = {
    "uuid": _write_id,
    "timedelta_i32": _write_duration,
    "timedelta_i64": _write_long_duration,
    "datetime_i64": _write_moment,
}
