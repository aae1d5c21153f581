"""JSON documents into columns without Spark, where it is certain that Spark would find the same.

Whatever is unusual about a document is left to Spark: escapes, control characters, blanks around
it, values of another type than the schema's, great length.  So there is one meaning of JSON, and
two speeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = r"^\{[^\x00-\x1f\\\x7f]*\}$"
_LENGTH_MAX: Final = 1000
"""Java's parser refuses numbers of more digits and deeper nesting; no shorter text has either."""
_SMALLEST: Final = 64
"""So many documents are not divided any further to find the one that does not fit."""
KINDS: Final = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(),
)  # fmt: skip


class Parsed(NamedTuple):
    """The documents that were certain: which rows they are, and their columns."""

    certain: pa.Array
    """One boolean for every row."""
    columns: pa.Table


def parse(content: pa.Array, schema: pa.Schema, needed: Sequence[str]) -> Parsed:
    """Documents as columns; one that lacks a `needed` field is not certain."""
    plain = _plain(content)
    texts = content.filter(plain) if plain.false_count else content
    found = _tables(texts, schema)
    parts = [table for table in found if isinstance(table, pa.Table)]
    columns = pa.concat_tables(parts) if parts else schema.empty_table()
    fits = pa.concat_arrays([_fits(one, needed) for one in found]) if found else plain.slice(0, 0)
    if parts and fits.false_count:
        here = pa.concat_arrays([_fits(one, needed) for one in parts])
        columns = columns.filter(here)
    certain = pc.replace_with_mask(plain, plain, fits)
    return Parsed(certain, columns)


def _plain(content: pa.Array) -> pa.Array:
    """Which values are short objects of ordinary characters in one line."""
    try:
        text = content.cast(pa.string())
    except pa.ArrowInvalid:
        return _plain_halves(content)
    short = pc.less_equal(pc.binary_length(text), _LENGTH_MAX)
    found = pc.and_(pc.match_substring_regex(text, _PLAIN), short)
    return pc.fill_null(found, fill_value=False)


def _plain_halves(content: pa.Array) -> pa.Array:
    """The same if one of them is no text: divided until it is nearly alone."""
    if len(content) <= _SMALLEST:
        return pa.repeat(pa.scalar(value=False), len(content))
    middle = len(content) // 2
    return pa.concat_arrays([_plain(content.slice(0, middle)), _plain(content.slice(middle))])


def _tables(texts: pa.Array, schema: pa.Schema) -> list[pa.Table | int]:
    """Runs of documents in order: a table, or the number of those that may not fit."""
    if len(texts) == 0:
        return []
    table = _table(texts, schema)
    if table is not None:
        return [table]
    if len(texts) <= _SMALLEST:
        return [len(texts)]
    middle = len(texts) // 2
    return [
        *_tables(texts.slice(0, middle), schema),
        *_tables(texts.slice(middle), schema),
    ]


def _table(texts: pa.Array, schema: pa.Schema) -> pa.Table | None:
    lines = pc.binary_join_element_wise(texts, pa.scalar(b"", texts.type), pa.scalar(b"\n"))
    _, offsets, whole = lines.buffers()
    bounds = memoryview(offsets).cast("i")
    size = bounds[lines.offset + len(lines)] - bounds[lines.offset]
    try:
        table = arrow_json.read_json(
            pa.BufferReader(whole.slice(bounds[lines.offset], size)),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=size + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    # Every line is one object at least, so as many rows as lines means one each.
    return table.select(schema.names) if table.num_rows == len(texts) else None


def _fits(found: pa.Table | int, needed: Sequence[str]) -> pa.Array:
    """Which rows of a run are certain."""
    if isinstance(found, int):
        return pa.repeat(pa.scalar(value=False), found)
    fits = pa.repeat(pa.scalar(value=True), found.num_rows)
    for field in found.schema:
        column = found.column(field.name).combine_chunks()
        if field.name in needed:
            fits = pc.and_(fits, column.is_valid())
        if pa.types.is_floating(field.type):
            fits = pc.and_(fits, _ordinary(column))
    return fits


def _ordinary(numbers: pa.Array) -> pa.Array:
    """Numbers that are finite and not zero with a sign, of which there are two opinions."""
    finite = pc.is_finite(numbers)
    zero = pc.equal(numbers, 0.0)
    if pc.any(zero).as_py():
        signed = pc.less(pc.divide(pa.scalar(1.0), numbers), 0.0)
        finite = pc.and_(finite, pc.invert(pc.and_(zero, signed)))
    return pc.fill_null(finite, fill_value=True)
