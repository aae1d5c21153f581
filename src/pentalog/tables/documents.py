"""JSON documents into columns without Spark, where it is certain that Spark would find the same.

Whatever is unusual about a document is left to Spark: several lines, control characters, blanks
around it, values of another type than the schema's, great length.  So there is one meaning of JSON,
and two speeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pentalog.kernels import parse_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pentalog.kernels.document_facts import Field

NULL: Final = "the value is null"
NO_TEXT: Final = "the value is not UTF-8"
EMPTY: Final = "the value is empty"
NO_JSON: Final = "the value is not JSON"
_WORDS: Final = ("null", "true", "false", "NaN", "I")
"""What begins with a letter begins with one of these, or is no JSON."""
KINDS: Final = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(),
)  # fmt: skip
"""The types of fields, in the order of the kernel's numbers for them."""


class Parsed(NamedTuple):
    """The documents that were certain: which rows they are, and their columns."""

    certain: pa.Array
    """One boolean for every row."""
    columns: pa.Table


def parse(content: pa.Array, schema: pa.Schema, needed: Sequence[str]) -> Parsed:
    """Documents as columns; one that lacks a `needed` field is not certain."""
    validity, offsets, data = content.buffers()
    first = content.offset
    found = parse_documents(
        memoryview(offsets)[4 * first : 4 * (first + len(content) + 1)] if offsets else bytes(4),
        data or b"",
        validity if content.null_count else b"",
        first,
        tuple(one.name.encode() for one in schema),
        bytes(KINDS.index(one.type) for one in schema),
        bytes(one.name in needed for one in schema),
    )
    certain = pa.Array.from_buffers(pa.bool_(), len(content), [None, pa.py_buffer(found.certain)])
    arrays = [_array(*pair, found.rows) for pair in zip(schema, found.fields, strict=True)]
    return Parsed(certain, pa.Table.from_arrays(arrays, schema=schema))


def _array(field: pa.Field, found: Field, rows: int) -> pa.Array:
    validity = pa.py_buffer(found.validity) if found.nulls else None
    buffers = [validity, pa.py_buffer(found.data)]
    if pa.types.is_string(field.type):
        buffers.insert(1, pa.py_buffer(found.offsets))
    return pa.Array.from_buffers(field.type, rows, buffers, found.nulls)


def reasons(content: pa.Array) -> pa.Array:
    """Why values are no documents, in Spark's place; null where that is not certain."""
    odd = pc.fill_null(pc.invert(pc.starts_with(content, b"{")), fill_value=True)
    found = pa.array([_reason(one) for one in content.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(pa.nulls(len(content), pa.string()), odd, found)


def _reason(value: bytes | None) -> str | None:
    if value is None:
        return NULL
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return NO_TEXT
    if not text:
        return EMPTY
    if text[0].isascii() and text[0].isalpha() and not text.startswith(_WORDS):
        return NO_JSON
    return None
