"""JSON documents into columns, where every reader would find the same."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Final, NamedTuple

from pentalog.kernels.document_facts import (
    BOOLEAN,
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    FLOAT64,
    INT64,
    NUMBER_BYTES_MAX,
    TEXT,
    Documents,
    Field,
)
from pentalog.kernels.facts import Buffer

_PLAIN: Final = re.compile(rb"\{[^\x00-\x1f\x7f]*\}")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBERS: Final = "bhiqd"


class _Number(NamedTuple):
    text: str
    whole: bool


class _Uncertain(Exception):
    """Readers may disagree about this document, or it does not fit."""


def parse_documents(
    offsets: Buffer,
    data: Buffer,
    validity: Buffer,
    first: int,
    names: tuple[bytes, ...],
    kinds: bytes,
    needed: bytes,
) -> Documents:
    """Values into columns; a value that is not certain is in none of them.

    `offsets` are native i32: where each value begins in `data`, and where the last ends.
    `validity` has one bit for each, lowest first, from bit `first` on; it is empty if none is
    null.  Of every field there are its name, its kind and whether a document must have it.

    Certain is a document that is one object in one line without control characters, of ordinary
    length, with no escapes in names and no half characters, with every field at most once, in its
    type, and with nothing that readers take for different numbers: exponents or fractions in whole
    numbers, zero with a sign.
    """
    view = memoryview(data)
    count = len(memoryview(offsets)) // 4 - 1
    if count < 0 or len(kinds) != len(names) or len(needed) != len(names):
        raise ValueError("documents need one offset more than values, and each field its kind")
    if any(kind > TEXT for kind in kinds):
        raise ValueError(f"a field may be of kind 0 to {TEXT}")
    bounds = struct.unpack(f"={count + 1}i", offsets)
    bits = memoryview(validity)
    if bits and len(bits) * 8 < first + count:
        raise ValueError("there are fewer bits than values")
    rows: list[list[Any]] = []
    certain = bytearray((count + 7) // 8)
    for index in range(count):
        start, end = bounds[index], bounds[index + 1]
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"value {index} is not inside the data")
        place = first + index
        if bits and not bits[place >> 3] >> (place & 7) & 1:
            continue
        try:
            rows.append(_row(bytes(view[start:end]), names, kinds, needed))
        except _Uncertain:
            continue
        certain[index >> 3] |= 1 << (index & 7)
    columns = (_column(kind, [row[place] for row in rows]) for place, kind in enumerate(kinds))
    return Documents(len(rows), certain, tuple(columns))


def _row(value: bytes, names: tuple[bytes, ...], kinds: bytes, needed: bytes) -> list[Any]:
    if len(value) > DOCUMENT_BYTES_MAX or not _PLAIN.fullmatch(value):
        raise _Uncertain
    try:
        text = value.decode()
        pairs = json.loads(
            text,
            object_pairs_hook=list,
            parse_int=lambda digits: _Number(digits, True),
            parse_float=lambda digits: _Number(digits, False),
            parse_constant=_refuse,
        )
    except ValueError:
        raise _Uncertain from None
    if _depth(text) > DEPTH_MAX + 1 or _has_escaped_name(text):
        raise _Uncertain
    row: list[Any] = [None] * len(names)
    seen: set[int] = set()
    places = {name: place for place, name in reversed(list(enumerate(names)))}
    for name, found in pairs:
        place = places.get(name.encode())
        if place is None:
            continue
        if place in seen:
            raise _Uncertain
        seen.add(place)
        row[place] = None if found is None else _typed(kinds[place], found)
    if any(row[place] is None for place, must in enumerate(needed) if must):
        raise _Uncertain
    return row


def _has_escaped_name(text: str) -> bool:
    """Whether a backslash is in a text that a colon follows; the document is known to be valid."""
    return any(
        "\\" in found[0] and text[found.end() :].lstrip(" ").startswith(":")
        for found in _STRING.finditer(text)
    )


def _refuse(_: str) -> None:
    raise _Uncertain


def _depth(text: str) -> int:
    depth = deepest = 0
    for one in _STRING.sub("", text):
        depth += (one in "{[") - (one in "}]")
        deepest = max(deepest, depth)
    return deepest


def _typed(kind: int, value: Any) -> Any:
    if kind == TEXT and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _Uncertain from None
    if kind == BOOLEAN and isinstance(value, bool):
        return value
    if kind >= BOOLEAN or not isinstance(value, _Number):
        raise _Uncertain
    if len(value.text) > NUMBER_BYTES_MAX:
        raise _Uncertain
    if kind == FLOAT64:
        number = float(value.text)
        if not math.isfinite(number) or (not number and value.text.startswith("-")):
            raise _Uncertain
        return number
    if not value.whole or value.text == "-0":
        raise _Uncertain
    whole = int(value.text)
    half = 1 << (8 * (1 << kind) - 1)
    if not -half <= whole < half:
        raise _Uncertain
    return whole


def _column(kind: int, values: list[Any]) -> Field:
    nulls = sum(value is None for value in values)
    validity = _bits([value is not None for value in values]) if nulls else bytearray()
    if kind == BOOLEAN:
        return Field(_bits([bool(value) for value in values]), bytearray(), validity, nulls)
    if kind <= INT64 or kind == FLOAT64:
        numbers = struct.pack(f"={len(values)}{_NUMBERS[kind]}", *(value or 0 for value in values))
        return Field(bytearray(numbers), bytearray(), validity, nulls)
    data = bytearray()
    ends = [0]
    for value in values:
        data += value or b""
        ends.append(len(data))
    return Field(data, bytearray(struct.pack(f"={len(ends)}i", *ends)), validity, nulls)


def _bits(values: list[bool]) -> bytearray:
    found = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        found[place >> 3] |= value << (place & 7)
    return found
