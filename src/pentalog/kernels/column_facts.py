"""Columns of records as kernels give them back: buffers in the layout Arrow has in memory."""

from __future__ import annotations

from typing import Final, NamedTuple

OFFSETS: Final = 0x01
TIMESTAMPS: Final = 0x02
KEYS: Final = 0x04
VALUES: Final = 0x08
HEADERS: Final = 0x10
DOORS: Final = 0x20
SPANS: Final = 0x40

SPAN_RECORD: Final = 0
SPAN_CONTROL: Final = 1
SPAN_ABORTED: Final = 2
SPAN_MISSING: Final = 3
"""Offsets that no batch holds any more: compacted away, or lost."""


class Chunks(NamedTuple):
    """A column of byte strings."""

    offsets: bytearray
    """Where each begins in `data`, and where the last ends: native i32."""
    data: bytearray
    validity: bytearray
    """One bit each, lowest first, set unless null; empty if none is null."""
    nulls: int


class Columns(NamedTuple):
    """What `decode_columns` made of a run of batches; a column nobody asked for is None."""

    position: int
    """Where it stopped: behind the last batch taken."""
    next_offset: int
    """The offset behind that batch; `low` if none was taken."""
    flaw: int
    """0, or why the batch at `position` was not taken: one of the `FLAW_*` numbers."""
    batches: int
    rows: int
    offsets: bytearray | None
    """Native i64."""
    timestamps: bytearray | None
    """Microseconds since 1970, native i64."""
    keys: Chunks | None
    values: Chunks | None
    doors: Chunks | None
    header_lists: bytearray | None
    """Where each record's headers begin among all, and where the last one's end: native i32."""
    header_names: Chunks | None
    header_values: Chunks | None
    picked: tuple[Chunks | None, ...]
    """The value of each header picked by name; None for one that no record has."""
    spans: bytearray | None
    """Native i64 triples (kind, first offset, offset behind), ascending, no gap between them."""
