"""Kafka requests of any size, built from the schemas: every array filled, names distinct.

The elements of a request are shared out among its arrays: `WIDE` gives each element of an outer
array one inner element, `DEEP` gives one outer element all inner ones.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin
from uuid import UUID

from pentalog.model.kio_schemas import load_request_schema
from pentalog.protocols.kafka import codec

_NUMBERS: Final = ("int8", "int16", "int32", "int64", "uint16", "uint32", "float64")
_INDEXES: Final = ("partition_index", "partition", "partition_indexes", "partitions", "index")
_TOPICS: Final = ("name", "topic", "topic_name", "topics", "topic_names", "resource_name")
_PADDINGS: Final = ("x" * 120, "x" * 30)
"""Of names, so that a request is as large as it may be."""
_BYTES_MAX: Final = 4 << 20


class Shape(Enum):
    WIDE = "wide"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class World:
    """What the broker holds, for requests to name."""

    topics: Sequence[str]
    topic_ids: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class Row:
    """How one API is walked: values of fields that a schema alone does not tell."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    answers: bool = True
    """False if the largest request is refused by closing the connection."""
    elements_max: int | None = None
    """Where fewer elements than in other requests are legal."""


def frame(
    key: int, version: int, elements: int, shape: Shape, world: World, row: Row
) -> tuple[bytes, int]:
    """Build a request with as many elements as fit in `elements`; returns it and their number."""
    for padding in _PADDINGS:
        out, made = _frame(key, version, elements, _Builder(world, row, shape, padding))
        if len(out) <= _BYTES_MAX:
            break
    return out, made


def _frame(key: int, version: int, elements: int, builder: _Builder) -> tuple[bytes, int]:
    schema = load_request_schema(key, version)
    entity = builder.entity(schema, elements, 0)
    out = bytearray(struct.pack(">ihhih", 0, key, version, 7, -1))
    if schema.__header_schema__.__flexible__:
        out.append(0)
    codec._entity(schema).write(out, entity)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out), builder.made


def has_arrays(key: int, version: int) -> bool:
    return bool(_arrays(load_request_schema(key, version)))


def shapes(key: int, version: int) -> list[Shape]:
    """The shapes in which a request differs."""
    nested = [
        element
        for each in _arrays(load_request_schema(key, version))
        if dataclasses.is_dataclass(element := get_args(_plain(each.type))[0]) and _arrays(element)
    ]
    return list(Shape) if nested else [Shape.WIDE]


class _Builder:
    def __init__(self, world: World, row: Row, shape: Shape, padding: str) -> None:
        self._padding = padding
        self.made = 0
        self._world = world
        self._row = row
        self._shape = shape

    def entity(self, schema: Any, elements: int, number: int) -> dict[str, Any]:
        """Build one entity whose arrays have at most `elements` elements in all."""
        arrays = _arrays(schema)
        given = [each for each in arrays if each.name not in self._row.fields] if arrays else []
        values: dict[str, Any] = {}
        for each in _fields(schema):
            if each.name in self._row.fields:
                values[each.name] = self._row.fields[each.name]
            elif arrays and each in arrays:
                values[each.name] = self._array(each, elements // len(given))
            else:
                values[each.name] = self._value(each, number)
        return values

    def _array(self, each: Any, elements: int) -> list[Any]:
        element = get_args(_plain(each.type))[0]
        if not dataclasses.is_dataclass(element):
            self.made += elements
            return [self._value(each, number) for number in range(elements)]
        if not elements:
            return []
        inner = len(_leaves(element))
        count = elements // (1 + inner)
        if inner and self._shape is Shape.DEEP:
            count = 1
        self.made += count
        each_gets = (elements - count) // count if inner and count else 0
        if self._shape is Shape.WIDE:
            each_gets = inner
        return [self.entity(element, each_gets, number) for number in range(count)]

    def _value(self, each: Any, number: int) -> Any:
        kind = each.metadata.get("kafka_type")
        if kind is None:
            return None if NoneType in get_args(each.type) else self.entity(each.type, 0, number)
        if each.name in _INDEXES and kind == "int32":
            return number
        if kind == "string":
            return self._text(each.name, number)
        if kind in ("bytes", "records"):
            return b"x" * 16
        if kind == "uuid":
            ids = self._world.topic_ids
            return ids[number] if number < len(ids) else UUID(int=number + 1)
        if kind == "bool":
            return False
        if kind in _NUMBERS:
            return 0
        return timedelta(0)

    def _text(self, name: str, number: int) -> str:
        topics = self._world.topics
        if name in _TOPICS and number < len(topics):
            return topics[number]
        return f"{name}-{number}-{self._padding}"


def _plain(kind: Any) -> Any:
    if NoneType in get_args(kind) and get_origin(kind) is not tuple:
        (kind,) = (arm for arm in get_args(kind) if arm is not NoneType)
    return kind


@cache
def _fields(schema: Any) -> tuple[Any, ...]:
    return dataclasses.fields(schema)


@cache
def _arrays(schema: Any) -> list[Any]:
    return [each for each in dataclasses.fields(schema) if get_origin(_plain(each.type)) is tuple]


def _leaves(schema: Any) -> list[Any]:
    """The arrays inside one element, at any depth."""
    found = []
    for each in _arrays(schema):
        element = get_args(_plain(each.type))[0]
        found.append(each)
        if dataclasses.is_dataclass(element):
            found += _leaves(element)
    return found
