"""What a pipeline tells of itself, as read from the metadata of a group's offset.

Anyone who may commit offsets of a group may have written it, so every field has a type and a bound,
and anything else is left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

TEXT_CHARACTERS_MAX: Final = 64 << 10
"""Brokers accept 4096 unless they are told otherwise."""

_Count = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""What a browser's numbers hold."""
_Number = _Count | Annotated[float, Meta(ge=-1e15, le=1e15)]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]
_Line = Annotated[str, Meta(max_length=4_000)]


class _Table(Struct):
    covered: dict[_Line, tuple[_Count, _Count]]


class _Lag(Struct, omit_defaults=True):
    records: _Count | None = None
    by: dict[_Line, _Count] = {}
    unknown: _Line = ""


class _Batch(Struct, omit_defaults=True):
    rows: _Count | None = None
    rows_per_second: _Number | None = None
    batch_ms: _Number | None = None


class _Commit(Struct):
    layer: _Line
    time_ms: _Count
    batch: _Count
    rows: _Count
    ranges: _Line


class _Announcement(Struct):
    pipeline: _Name
    state: Annotated[str, Meta(max_length=100)]
    time_ms: _Number
    topics: list[_Line]
    into: _Line
    tables: dict[_Line, _Table]
    lag: _Lag
    last_batch: _Batch
    ledger: list[_Commit]
    dead_letters: _Count


_decoder: Final = msgspec.json.Decoder(_Announcement)


def read(text: str) -> dict[str, Any] | None:
    """The fields of an announcement; None if it is not one."""
    if len(text) > TEXT_CHARACTERS_MAX:
        return None
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    fields: dict[str, Any] = msgspec.to_builtins(found)
    return fields
