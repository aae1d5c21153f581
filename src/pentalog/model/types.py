"""The words everything above the disk speaks: partitions, marks, acks, slices.

Values only: nothing here does I/O or keeps state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

Offset: TypeAlias = int
"""Always the next offset to read; never the last one read."""


_SHOWN_CHARACTERS_MAX: Final = 260


def shown(name: str) -> str:
    """A name of any text as it may stand in a line for people: printable, and not endless."""
    if len(name) > _SHOWN_CHARACTERS_MAX:
        return f"{name[:_SHOWN_CHARACTERS_MAX]!r}..."
    return name if name.isprintable() and name else repr(name)


class Partition(NamedTuple):
    """The name of one partition."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a name

    def __str__(self) -> str:
        """As people see it, in one line whatever the topic is called."""
        return f"{shown(self.topic)}-{self.index}"


class Ack(IntEnum):
    """How safe must a write be before we answer?"""

    NONE = 0
    """Accepted in memory."""
    WRITTEN = 1
    """In the file (page cache)."""
    DURABLE = 2
    """The disk has said so."""


class Horizon(Enum):
    """Where does a reader stop?"""

    END = "end"
    """Everything written."""
    DURABLE = "durable"
    """What survives a power cut."""
    STABLE = "stable"
    """Also: no open transaction before it."""


class Edge(Enum):
    """A place in a partition that has no fixed offset."""

    START = "start"
    END = "end"
    STABLE = "stable"
    DURABLE = "durable"
    NEWEST_TIMESTAMP = "newest timestamp"
    """The record with the largest timestamp."""


class Marks(NamedTuple):
    """The four offsets that bound a partition: start <= stable <= durable <= end."""

    start: Offset
    stable: Offset
    durable: Offset
    end: Offset

    def at(self, horizon: Horizon) -> Offset:
        if horizon is Horizon.DURABLE:
            return self.durable
        return self.stable if horizon is Horizon.STABLE else self.end


class Volume(NamedTuple):
    """A disk, or the part of one that a directory is on."""

    total_bytes: int
    usable_bytes: int
    """What may still be written by who we are."""


class Record(NamedTuple):
    """One event, as the slow paths see it.  Hot paths see batches only."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = -1


class Appended(NamedTuple):
    """What became of an append: the offsets it got, or had already got."""

    at: Partition
    base_offset: Offset
    next_offset: Offset
    timestamp_ms: int
    """The append time if the topic stamps records itself, else -1."""
    start_offset: Offset
    duplicate: bool = False
    """The producer had sent these records before; nothing was written."""


class OpenFile(Protocol):
    """A file that stays open as long as somebody holds this object."""

    @property
    def fd(self) -> int: ...


class FilePiece(NamedTuple):
    """A range of a file, to be sent without passing through Python."""

    file: OpenFile
    position: int
    length: int


Piece: TypeAlias = bytes | bytearray | memoryview | FilePiece


class Aborted(NamedTuple):
    """An aborted transaction that touches a slice: hide this producer from here on."""

    producer_id: int
    first_offset: Offset


class Slice(NamedTuple):
    """Whole batches of one partition, in order, as they lie on disk."""

    pieces: Sequence[FilePiece | memoryview]
    size_bytes: int
    marks: Marks
    next_offset: Offset
    """Where to go on: the offset after the last batch given, or the one asked for if none."""
    aborted: Sequence[Aborted] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a producer is: its id, and the epoch that fences its earlier lives."""

    producer_id: int
    epoch: int
