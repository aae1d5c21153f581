"""Requests by schema: bytes to kio's entities, read by our own code.

kio's own reader is not for bytes from strangers: it sets memory aside for whatever an array's
length claims, and refuses tagged fields it does not know, which the protocol says to skip.

Elements of arrays are counted over the whole request before they are made (`Budget`).  Every reader
exists twice: `read` decodes in one go, `steps` decodes an array some elements at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import lru_cache
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_origin
from uuid import UUID

from pentalog.model.kio_schemas import load_request_schema

T = TypeVar("T")

ELEMENTS_MAX: Final = 21_000
"""Elements that the arrays of one request may have in all.

Enough for 10,000 topics with one partition each; memory and work grow with it.
"""
ELEMENTS_PER_STEP: Final = 64
"""Elements decoded before other clients are served: about 0.2 ms."""
_ID_NONE: Final = bytes(16)


class Undecodable(ValueError):
    """The bytes are not a request of the kind they claim to be."""


class TooManyElements(Undecodable):
    """The request names more than one request may."""


class Budget:
    """Elements that a request may still have."""

    __slots__ = ("_left", "_most", "made")

    def __init__(self, most: int = ELEMENTS_MAX) -> None:
        self._left = self._most = most
        self.made = 0
        """Elements that were made in this step."""

    def take(self, count: int) -> None:
        """Count elements before they are made; raise `TooManyElements` if they are too many."""
        self._left -= count
        if self._left < 0:
            raise TooManyElements(
                f"the request names more than {self._most} elements: name fewer in each request"
            )

    def counted(self, count: int) -> int:
        """Count the elements of an array that is about to be read; returns their number."""
        self.take(max(0, count))
        return count


Read: TypeAlias = Callable[[bytes, int, Budget], tuple[Any, int]]
"""Data, position and budget to a value and the position behind it."""
ReadSteps: TypeAlias = Callable[[bytes, int, Budget], Generator[None, None, tuple[Any, int]]]


class Reader(NamedTuple):
    """The two ways to read one thing."""

    read: Read
    steps: ReadSteps | None = None
    """Given where the thing has an array in it."""


def decode(key: int, version: int, body: memoryview, most: int = ELEMENTS_MAX) -> Any:
    """Return the request in `body`, as kio's entity for this version; keeps no view of it."""
    return exhaust(decode_steps(key, version, bytes(body), Budget(most), sliced=False))


def decode_steps(
    key: int, version: int, data: bytes, budget: Budget, *, sliced: bool = True
) -> Generator[None, None, Any]:
    """Decode a request in steps; returns the entity."""
    reader = request_reader(key, version)
    try:
        if sliced and reader.steps is not None:
            entity, _ = yield from reader.steps(data, 0, budget)
        else:
            entity, _ = reader.read(data, 0, budget)
    except (struct.error, UnicodeDecodeError, OverflowError) as flaw:
        raise Undecodable(f"request {key} version {version}: {flaw}") from flaw
    return entity


def exhaust(steps: Generator[Any, None, T]) -> T:
    """Run steps to their end at once; returns what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


@lru_cache(maxsize=1024)
def request_reader(key: int, version: int) -> Reader:
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


def skip_tagged(data: bytes, position: int, budget: Budget) -> int:
    """Where the tagged fields that begin here end."""
    if position < len(data) and not data[position]:
        return position + 1
    count, position = read_uvarint(data, position)
    budget.take(count)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > len(data):
            raise Undecodable("a tagged field is longer than the request")
    return position


def _entity(schema: Any) -> Reader:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    defaults: dict[str, Any] = {}
    flexible: bool = schema.__flexible__
    for field in fields(schema):
        tag = field.metadata.get("tag")
        reader = _field(field, flexible=flexible)
        if tag is None:
            plain.append((field.name, reader))
        else:
            assert field.default is not MISSING, f"{field.name} has no default"
            tagged[tag] = (field.name, reader.read)
            defaults[field.name] = field.default
    reads = [(name, reader.read) for name, reader in plain]

    def read_entity(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        values = defaults.copy()
        for name, read in reads:
            values[name], position = read(data, position, budget)
        if flexible:
            position = _read_tagged(data, position, budget, tagged, values)
        return schema(**values), position

    def entity_steps(
        data: bytes, position: int, budget: Budget
    ) -> Generator[None, None, tuple[Any, int]]:
        values = defaults.copy()
        for name, reader in plain:
            if reader.steps is None:
                values[name], position = reader.read(data, position, budget)
            else:
                values[name], position = yield from reader.steps(data, position, budget)
        if flexible:
            position = _read_tagged(data, position, budget, tagged, values)
        return schema(**values), position

    has_arrays = any(reader.steps is not None for _, reader in plain)
    return Reader(read_entity, entity_steps if has_arrays else None)


def _read_tagged(
    data: bytes,
    position: int,
    budget: Budget,
    tagged: dict[int, tuple[str, Read]],
    values: dict[str, Any],
) -> int:
    if position < len(data) and not data[position]:
        return position + 1
    count, position = read_uvarint(data, position)
    budget.take(count)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if end > len(data):
            raise Undecodable("a tagged field is longer than the request")
        known = tagged.get(tag)
        if known is not None:
            name, read = known
            values[name], stopped = read(data, position, budget)
            if stopped != end:
                raise Undecodable(f"{name} takes {stopped - position} bytes but claims {size}")
        position = end
    return position


def _field(field: Field[Any], *, flexible: bool) -> Reader:
    optional, kind = unwrapped(field.type)
    if get_origin(kind) is tuple:
        (element, _) = get_args(kind)
        if is_dataclass(element):
            return _array(field.name, _entity(element), flexible, optional)
        return _array(field.name, Reader(_primitive(field, flexible, False)), flexible, optional)
    if is_dataclass(kind):
        entity = _entity(kind)
        return Reader(_nullable_entity(entity.read)) if optional else entity
    return Reader(_primitive(field, flexible, optional))


def _array(name: str, element: Reader, flexible: bool, optional: bool) -> Reader:
    read_size = _size(flexible, ">i")
    read, element_steps = element

    def read_count(data: bytes, position: int, budget: Budget) -> tuple[int, int]:
        count, position = read_size(data, position, budget)
        # Every element takes a byte at least, so a longer array cannot be there.
        if count > len(data) - position or count < -1:
            raise Undecodable(f"{name} claims {count} elements")
        if count < 0 and not optional:
            raise Undecodable(f"{name} cannot be null")
        budget.take(max(0, count))
        return count, position

    def read_array(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        count, position = read_count(data, position, budget)
        if count < 0:
            return None, position
        values = []
        for _ in range(count):
            value, position = read(data, position, budget)
            values.append(value)
        return tuple(values), position

    def array_steps(
        data: bytes, position: int, budget: Budget
    ) -> Generator[None, None, tuple[Any, int]]:
        count, position = read_count(data, position, budget)
        if count < 0:
            return None, position
        values = []
        for _ in range(count):
            if element_steps is None:
                value, position = read(data, position, budget)
            else:
                value, position = yield from element_steps(data, position, budget)
            values.append(value)
            budget.made += 1
            if budget.made >= ELEMENTS_PER_STEP:
                budget.made = 0
                yield
        return tuple(values), position

    return Reader(read_array, array_steps)


def _nullable_entity(read: Read) -> Read:
    def read_nullable(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        (marker,) = struct.unpack_from(">b", data, position)
        return (None, position + 1) if marker < 0 else read(data, position + 1, budget)

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

    def read_number(data: bytes, position: int, _: Budget) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read_number


def _size(flexible: bool, form: str) -> Read:
    if not flexible:
        return _number(form)

    def read_size(data: bytes, position: int, _: Budget) -> tuple[int, int]:
        size, position = read_uvarint(data, position)
        return size - 1, position

    return read_size


def _sized(name: str, text: bool, flexible: bool, optional: bool) -> Read:
    read_size = _size(flexible, ">h" if text else ">i")

    def read_sized(data: bytes, position: int, budget: Budget) -> tuple[Any, int]:
        size, position = read_size(data, position, budget)
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


def _read_id(data: bytes, position: int, _: Budget) -> tuple[UUID | None, int]:
    end = position + 16
    found = data[position:end]
    if len(found) < 16:
        raise Undecodable("the request ends inside an id")
    return (None if found == _ID_NONE else UUID(bytes=found)), end


def _read_duration(data: bytes, position: int, _: Budget) -> tuple[timedelta, int]:
    (number,) = struct.unpack_from(">i", data, position)
    return timedelta(milliseconds=number), position + 4


def read_long_duration(data: bytes, position: int, _: Budget) -> tuple[timedelta, int]:
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
