"""Rows replaced or removed in tables of whole files: a file that changes is written anew.

The latest row of a key is the one with the greatest place: offset, then topic, then partition.
That is one order over all records, so the result does not depend on where batches were cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pentalog.model.types import Partition
from pentalog.tables.files import FileSet
from pentalog.tables.sinks.refusals import SinkRefused
from pentalog.tables.sinks.state import Range

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_PLACE: Final = ("_offset", "_topic", "_partition")

T = TypeVar("T")


class Bounds(NamedTuple):
    """The least and the greatest value that a column of new rows has."""

    least: Any
    greatest: Any


def bounds(rows: pa.Table, key: Sequence[str]) -> dict[str, Bounds]:
    """Where rows with these keys can be: only for columns whose files can be told apart by it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, Bounds] = {}
    for name in key:
        column = rows.column(name)
        kind = column.type
        ordered = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
        if ordered and rows.num_rows and not column.null_count:
            ends = pc.min_max(column).as_py()
            found[name] = Bounds(ends["min"], ends["max"])
    return found


def replaced(
    files: Iterable[tuple[T, pq.ParquetFile]], rows: pa.Table, key: Sequence[str], made: FileSet
) -> list[T]:
    """Put `rows`, one of each key, in the place of earlier rows with their keys.

    Returns the files that have such rows; `made` takes what is left of them, and of `rows` those
    that are later than what is there.
    """
    import pyarrow.compute as pc

    changed: list[T] = []
    stale = _no(rows.num_rows)
    for one, opened in files:
        found = _matches(opened, rows, key)
        if found.num_rows == 0:
            continue
        later = _later(rows.take(found.column("new")), found)
        older = found.column("new").filter(pc.invert(later))
        stale = pc.or_(stale, pc.is_in(_numbers(rows.num_rows), value_set=older))
        gone = found.column("old").filter(later)
        if len(gone):
            changed.append(one)
            _without(opened, gone, made)
    made.add(rows.filter(pc.invert(stale)))
    return changed


def removed_below(
    files: Iterable[tuple[T, pq.ParquetFile]],
    starts: Mapping[Partition, Range],
    mark: str,
    made: FileSet,
) -> list[T]:
    """Remove the rows before each partition's start; the files that had such rows."""
    changed: list[T] = []
    for one, opened in files:
        places = opened.read([f"{mark}{name}" for name in ("topic", "partition", "offset")])
        gone = _numbers(places.num_rows).filter(_below(places, starts, mark))
        if len(gone):
            changed.append(one)
            _without(opened, gone, made)
    return changed


def copied(files: Iterable[pq.ParquetFile], made: FileSet) -> None:
    """All rows of `files`, a group at a time."""
    for opened in files:
        for group in range(opened.num_row_groups):
            made.add(opened.read_row_group(group))


def small_files(
    files: Iterable[T], size_bytes: Callable[[T], int], partition: Callable[[T], Any], limit: int
) -> list[T]:
    """The files that are worth writing together: less than `limit`, and not alone in a partition.

    A file stays in its partition, so one that is alone would be written again and again.
    """
    together: dict[Any, list[T]] = {}
    for one in files:
        if size_bytes(one) < limit:
            together.setdefault(partition(one), []).append(one)
    return [one for small in together.values() if len(small) > 1 for one in small]


def _matches(opened: pq.ParquetFile, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows of a file that have a key of `rows`: `old` and `new` count them, then the place."""
    import pyarrow as pa
    import pyarrow.compute as pc

    there = [name for name in (*key, *_PLACE) if name in opened.schema_arrow.names]
    old = opened.read(there)
    wanted, present = _codes(rows, old, key)
    new = pc.index_in(present, value_set=wanted)
    places = old.select(list(_PLACE))
    whole = places.append_column("old", _numbers(old.num_rows)).append_column(
        "new", pa.chunked_array([new])
    )
    return whole.filter(pc.is_valid(new))


def _codes(new: pa.Table, old: pa.Table, key: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """A number for every key, the same for the same, nothing being equal to nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pc.cast(_no(new.num_rows + old.num_rows), pa.int64())
    for name in key:
        kind = new.schema.field(name).type
        if pa.types.is_nested(kind):
            raise SinkRefused(
                f"key: column {name} is {kind}; a key is made of columns with single values, so"
                " add one to columns that is computed from it"
            )
        known = old.column(name).cast(kind) if name in old.column_names else _none(old, kind)
        both = pa.concat_arrays([*new.column(name).chunks, *known.chunks])
        encoded = both.dictionary_encode(null_encoding="encode")
        mixed = pc.add(
            pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64())
        )
        codes = mixed.dictionary_encode().indices.cast(pa.int64())
    return codes.slice(0, new.num_rows), codes.slice(new.num_rows)


def _none(rows: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([pa.nulls(rows.num_rows, kind)])


def _later(new: pa.Table, old: pa.Table) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    found, same = None, None
    for name in _PLACE:
        left, right = new.column(name), old.column(name)
        above, equal = pc.greater(left, right), pc.equal(left, right)
        found = above if found is None else pc.or_(found, pc.and_(same, above))
        same = equal if same is None else pc.and_(same, equal)
    return found


def _below(places: pa.Table, starts: Mapping[Partition, Range], mark: str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    found: Any = _no(places.num_rows)
    for at, one in starts.items():
        here = pc.and_(
            pc.equal(places.column(f"{mark}topic"), at.topic),
            pc.equal(places.column(f"{mark}partition"), at.index),
        )
        below = pc.and_(here, pc.less(places.column(f"{mark}offset"), one.start))
        found = pc.or_(found, below)
    return found


def _without(opened: pq.ParquetFile, gone: pa.ChunkedArray, made: FileSet) -> None:
    """The rows of a file but for those counted in `gone`, a group at a time."""
    import pyarrow.compute as pc

    first = 0
    for group in range(opened.num_row_groups):
        rows = opened.read_row_group(group)
        left = pc.invert(pc.is_in(_numbers(rows.num_rows, first), value_set=gone))
        made.add(rows.filter(left))
        first += rows.num_rows


def _numbers(count: int, first: int = 0) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(first, first + count, dtype=np.int64))


def _no(count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.zeros(count, dtype=np.bool_))
