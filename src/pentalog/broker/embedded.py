"""What the members of a leader-planned group tell each other: subscriptions and assignments.

To the broker these are opaque bytes, with one exception: where such members share a group with
members it plans for, it reads their subscriptions and writes their assignments itself.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from pentalog.model.errors import GroupInconsistent

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    """What the member still reads; nothing from those that give up everything first."""
    rack_id: str | None = None


def subscription(data: bytes) -> Subscription:
    """Read a subscription; raises `GroupInconsistent` if it is none."""
    reader = _Reader(data)
    try:
        version = reader.number(">h")
        topics = frozenset(reader.text() for _ in range(reader.count()))
        reader.skip_bytes()
        owned: Mapping[str, frozenset[int]] = {}
        rack_id = None
        if version >= 1 and not reader.done:
            owned = reader.partitions()
        if version >= 3 and not reader.done:
            reader.number(">i")
            size = reader.number(">h")
            rack_id = None if size < 0 else reader.take(size).decode()
    except (struct.error, ValueError) as flaw:
        raise GroupInconsistent(
            f"the member's subscription cannot be read ({flaw}): accepted is the form that "
            f"members of protocol type {PROTOCOL_TYPE!r} use"
        ) from flaw
    if version < 0:
        raise GroupInconsistent(f"a subscription of version {version}; accepted is 0 or higher")
    return Subscription(min(version, VERSION_MAX), topics, owned, rack_id)


def assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """Write an assignment as the member's own leader would have."""
    out = bytearray(struct.pack(">hi", version, len(partitions)))
    for topic in sorted(partitions):
        name = topic.encode()
        indexes = sorted(partitions[topic])
        out += struct.pack(">h", len(name)) + name
        out += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    out += struct.pack(">i", -1)
    return bytes(out)


def assigned(data: bytes) -> Mapping[str, frozenset[int]]:
    """Read an assignment; an empty one is nothing at all."""
    if not data:
        return {}
    reader = _Reader(data)
    try:
        reader.number(">h")
        return reader.partitions()
    except (struct.error, ValueError) as flaw:
        raise GroupInconsistent(f"a member's assignment cannot be read: {flaw}") from flaw


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._data)

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def count(self) -> int:
        count = self.number(">i")
        if count > len(self._data):
            raise ValueError(f"{count} entries in {len(self._data)} bytes")
        return max(0, count)

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError(f"{size} bytes wanted, {len(self._data) - self._at} there")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.take(self.number(">h")).decode()

    def skip_bytes(self) -> None:
        self.take(max(0, self.number(">i")))

    def partitions(self) -> Mapping[str, frozenset[int]]:
        return {
            self.text(): frozenset(self.number(">i") for _ in range(self.count()))
            for _ in range(self.count())
        }
