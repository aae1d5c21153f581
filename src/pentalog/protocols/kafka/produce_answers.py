"""Answers to Produce, written by hand: one is sent for every few records."""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final

from pentalog.model.errors import RecordsRefused
from pentalog.model.later import Later
from pentalog.model.types import Appended
from pentalog.protocols.kafka.codec import uvarint
from pentalog.protocols.kafka.entities import exhaust
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.produce_requests import PARTS_AT_ONCE, Part

BY_ID: Final = 13
"""From this version on topics are named by their ids."""
_FLEXIBLE: Final = 9
_PARTITION: Final = struct.Struct(">ihqqq")
_PARTITION_3: Final = struct.Struct(">ihqq")


def frame(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[Part]]],
    results: Sequence[Later[Appended] | Exception],
) -> bytearray:
    return exhaust(framing(version, correlation_id, topics, results))


def framing(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[Part]]],
    results: Sequence[Later[Appended] | Exception],
) -> Generator[None, None, bytearray]:
    flexible = version >= _FLEXIBLE
    out = bytearray(4) + correlation_id.to_bytes(4, "big", signed=True)
    if flexible:
        out += b"\0"
    left = iter(results)
    written = 0
    _count(out, len(topics), flexible)
    for name, parts in topics:
        if version >= BY_ID:
            out += name
        else:
            out += uvarint(len(name) + 1) if flexible else len(name).to_bytes(2, "big")
            out += name
        _count(out, len(parts), flexible)
        for part in parts:
            _partition(out, version, part.number, next(left))
            written += 1
            if not written % PARTS_AT_ONCE:
                yield
        if flexible:
            out += b"\0"
    out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time, tagged fields
    struct.pack_into(">i", out, 0, len(out) - 4)
    return out


def _partition(
    out: bytearray, version: int, index: int, result: Later[Appended] | Exception
) -> None:
    error, offset, timestamp_ms, start_offset, text = 0, -1, -1, -1, None
    named: Sequence[tuple[int, str]] = ()
    try:
        if isinstance(result, Exception):
            raise result
        _, offset, _, timestamp_ms, start_offset, _ = result.value
    except REFUSALS as refusal:
        error, text = code_of(refusal), str(refusal)
        if isinstance(refusal, RecordsRefused):
            named = refusal.records
    if version >= 5:
        out += _PARTITION.pack(index, error, offset, timestamp_ms, start_offset)
    else:
        out += _PARTITION_3.pack(index, error, offset, timestamp_ms)
    if version < 8:
        return
    flexible = version >= _FLEXIBLE
    _count(out, len(named), flexible)
    for number, reason in named:
        out += number.to_bytes(4, "big")
        _text(out, reason, flexible)
        if flexible:
            out += b"\0"
    _text(out, text, flexible)
    if flexible:
        out += b"\0"


def _text(out: bytearray, text: str | None, flexible: bool) -> None:
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
    else:
        message = text.encode()
        out += uvarint(len(message) + 1) if flexible else len(message).to_bytes(2, "big")
        out += message


def _count(out: bytearray, length: int, flexible: bool) -> None:
    out += uvarint(length + 1) if flexible else length.to_bytes(4, "big")
