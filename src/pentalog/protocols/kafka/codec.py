"""Messages by schema: requests to entities (`entities.py`), plain dicts to response bytes.

The schemas are kio's.  The functions that write are put together once per (key, version); hot
answers are written by hand elsewhere, and the rest must not cost an object per field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin
from uuid import UUID

from pentalog.model.kio_schemas import load_response_schema
from pentalog.protocols.kafka.entities import NUMBERS, decode, decode_steps, unwrapped

__all__ = [
    "AnswerTooLarge",
    "Fields",
    "Made",
    "decode",
    "decode_steps",
    "encode",
    "encode_steps",
    "milliseconds",
    "refusal",
    "uvarint",
]

Fields: TypeAlias = Mapping[str, Any]
"""A response as plain nested dicts: kio's field names, milliseconds for times, ints for codes."""

Write: TypeAlias = Callable[[bytearray, Any], None]
WriteSteps: TypeAlias = Callable[[bytearray, Any], Generator[None, None, None]]

ANSWER_BYTES_MAX: Final = 64 << 20
"""Largest answer that is put together in memory; those with records are not."""
_BYTES_PER_STEP: Final = 2048
"""Written before other clients are served: about 0.2 ms."""
_ELEMENTS_AT_ONCE: Final = 64
"""An array that is not longer, of elements without arrays, is written in one go."""

_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_ID_NONE: Final = bytes(16)
# Fields every answer has and hardly one sets: no throttling, no error.
_ZERO_KINDS: Final = frozenset({"timedelta_i32", "error_code"})


class AnswerTooLarge(Exception):
    """An answer would not fit in memory: the client asked for too much at once."""


class Made:
    """A list for an answer whose elements are made when they are written, one at a time.

    So that a long answer is never in memory as objects, and making it is divided into steps as
    writing it is.
    """

    __slots__ = ("_items", "_make", "at_once")

    def __init__(
        self, items: Sequence[Any], make: Callable[[Any], Any], *, at_once: int = _ELEMENTS_AT_ONCE
    ) -> None:
        """`make` turns an item into an element; `at_once` of them take less than 0.5 ms."""
        self._items = items
        self._make = make
        self.at_once = at_once

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)


class Writer(NamedTuple):
    """The two ways to write one thing: in one go, and where it has arrays also in steps."""

    write: Write
    steps: WriteSteps | None = None


def encode(key: int, version: int, correlation_id: int, answer: Fields) -> bytearray:
    """The whole frame of an answer, length in front."""
    out = bytearray(8)
    flexible_header, writer = _response(key, version)
    if flexible_header:
        out.append(0)
    writer.write(out, answer)
    struct.pack_into(">ii", out, 0, len(out) - 4, correlation_id)
    return out


def encode_steps(
    key: int, version: int, correlation_id: int, answer: Fields
) -> Generator[None, None, bytearray]:
    """Write an answer in steps; returns the whole frame."""
    out = bytearray(8)
    flexible_header, writer = _response(key, version)
    if flexible_header:
        out.append(0)
    if writer.steps is None:
        writer.write(out, answer)
    else:
        yield from writer.steps(out, answer)
    struct.pack_into(">ii", out, 0, len(out) - 4, correlation_id)
    return out


def refusal(key: int, version: int, error: int, text: str) -> Fields | None:
    """Return an answer that says nothing but an error; None if this answer has no place for it."""
    schema: Any = load_response_schema(key, version)
    answer: dict[str, Any] = {}
    for field in fields(schema):
        if field.name == "error_code":
            answer[field.name] = error
        elif field.name == "error_message":
            answer[field.name] = text
        elif field.default is MISSING:
            answer[field.name] = _nothing(field)
    return answer if "error_code" in answer else None


def _nothing(field: Field[Any]) -> Any:
    optional, kind = unwrapped(field.type)
    if get_origin(kind) is tuple:
        return ()
    if optional:
        return None
    if is_dataclass(kind):
        return {inner.name: _nothing(inner) for inner in fields(kind)}
    return {"string": "", "bytes": b"", "records": b"", "uuid": None}.get(
        field.metadata["kafka_type"], 0
    )


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
def _response(key: int, version: int) -> tuple[bool, Writer]:
    schema: Any = load_response_schema(key, version)
    return schema.__header_schema__.__flexible__, _entity(schema)


def _entity(schema: Any) -> Writer:
    """Return what writes a dict as this entity: its fields in order, then the tagged ones."""
    plain: list[tuple[str, Any, Writer]] = []
    tagged: list[tuple[int, str, Any, Write]] = []
    flexible: bool = schema.__flexible__
    for field in fields(schema):
        tag = field.metadata.get("tag")
        writer = _field(field, flexible=flexible, tagged=tag is not None)
        if tag is None:
            plain.append((field.name, _default(field), writer))
        else:
            tagged.append((tag, field.name, field.default, writer.write))
    tagged.sort(key=lambda entry: entry[0])
    writes = [(name, default, writer.write) for name, default, writer in plain]

    def missing(name: str) -> KeyError:
        return KeyError(f"{schema.__name__} {schema.__version__} needs {name}")

    def write_entity(out: bytearray, value: Fields) -> None:
        for name, default, write in writes:
            given = value.get(name, default)
            if given is MISSING:
                raise missing(name)
            write(out, given)
        if flexible:
            _write_tagged(out, value, tagged)

    def entity_steps(out: bytearray, value: Fields) -> Generator[None, None, None]:
        for name, default, writer in plain:
            given = value.get(name, default)
            if given is MISSING:
                raise missing(name)
            if writer.steps is None:
                writer.write(out, given)
            else:
                yield from writer.steps(out, given)
        if flexible:
            _write_tagged(out, value, tagged)

    has_arrays = any(writer.steps is not None for _, _, writer in plain)
    return Writer(write_entity, entity_steps if has_arrays else None)


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


def _field(field: Field[Any], *, flexible: bool, tagged: bool) -> Writer:
    optional, kind = unwrapped(field.type)
    optional = optional and not tagged
    if get_origin(kind) is tuple:
        (element, _) = get_args(kind)
        if is_dataclass(element):
            return _array(_entity(element), flexible=flexible)
        return _array(Writer(_primitive(field, flexible, False)), flexible=flexible)
    if is_dataclass(kind):
        entity = _entity(kind)
        return Writer(_nullable_entity(entity.write)) if optional else entity
    return Writer(_primitive(field, flexible, optional))


def _array(element: Writer, *, flexible: bool) -> Writer:
    write, element_steps = element

    def write_count(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\0" if flexible else b"\xff\xff\xff\xff"
        else:
            out += uvarint(len(values) + 1) if flexible else len(values).to_bytes(4, "big")

    def write_array(out: bytearray, values: Any) -> None:
        write_count(out, values)
        for value in values or ():
            write(out, value)

    def array_steps(out: bytearray, values: Any) -> Generator[None, None, None]:
        at_once = values.at_once if isinstance(values, Made) else _ELEMENTS_AT_ONCE
        if element_steps is None and len(values or ()) <= at_once:
            write_array(out, values)
            return
        write_count(out, values)
        number, written = 0, len(out)
        for value in values or ():
            if element_steps is None:
                write(out, value)
            else:
                yield from element_steps(out, value)
            number += 1
            if number >= at_once or len(out) - written >= _BYTES_PER_STEP:
                if len(out) > ANSWER_BYTES_MAX:
                    raise AnswerTooLarge(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
                number, written = 0, len(out)
                yield

    return Writer(write_array, array_steps)


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
