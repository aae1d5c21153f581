"""Columns of JSON documents as kernels give them back: buffers in Arrow's layout."""

from __future__ import annotations

from typing import Final, NamedTuple

INT8, INT16, INT32, INT64, FLOAT64, BOOLEAN, TEXT = range(7)
"""What a field may be."""

DOCUMENT_BYTES_MAX: Final = 1000
"""Java's parser refuses longer numbers and deeper nesting than a text of that length can have."""
NUMBER_BYTES_MAX: Final = 63
DEPTH_MAX: Final = 32


class Field(NamedTuple):
    """A column of documents."""

    data: bytearray
    """Native numbers; of booleans bits, lowest first; of texts their bytes, one after the other."""
    offsets: bytearray
    """Of texts, where each begins in `data`, and where the last ends: native i32."""
    validity: bytearray
    """One bit each, lowest first, set unless null; empty if none is null."""
    nulls: int


class Documents(NamedTuple):
    """What `parse_documents` made of values."""

    rows: int
    """How many were certain."""
    certain: bytearray
    """One bit for every value, lowest first."""
    fields: tuple[Field, ...]
