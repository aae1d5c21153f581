"""Parquet files as tasks write them: in their final place under a name nobody else has.

Nothing refers to such a file until a commit does; one that is never committed is found and
removed by vacuum.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.tables.storage import Storage, storage_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP_ROWS: Final = 131_072
_BUFFERED_BYTES_MAX: Final = 64 << 20
_WRITERS_MAX: Final = 64
_UNIQUE: Final = frozenset({"offset", "_offset", "value"})
"""Columns of which hardly a value comes twice."""
_UNSAFE: Final = frozenset("\"#%'*/:=?\\\x7f{[]^ ~")
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


class File(NamedTuple):
    """A Parquet file that a task has finished, not yet part of any table."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files of one table look; sent to every task."""

    uri: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    keep_partitions: bool = False
    file_bytes: int = 134_217_728
    fsync: bool = True
    storage_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_schema(self) -> pa.Schema:
        import pyarrow as pa

        if self.keep_partitions:
            return self.schema
        return pa.schema([one for one in self.schema if one.name not in self.partition_by])


class FileSet:
    """The files of one task: one at a time for every combination of partition values."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._schema = layout.file_schema
        self._storage = storage_of(layout.uri, layout.storage_options)
        self._open: dict[tuple[str | None, ...], _Writer] = {}
        self._done: list[File] = []

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if table.num_rows == 0:
            return
        if not self._layout.partition_by:
            self._write((), _shaped(table, self._schema))
            return
        for values, part in _divided(table, self._layout.partition_by):
            self._write(values, _shaped(part, self._schema))

    def close(self) -> list[File]:
        for values in list(self._open):
            self._finish(values)
        return self._done

    def discard(self) -> None:
        """Remove whatever was written, after a failure."""
        names = [file.path for file in self.close()]
        self._storage.remove(names)

    @contextmanager
    def discarding(self, failure: type[Exception]) -> Iterator[None]:
        """Remove what was written after such a failure.

        Around a commit that is only one which says that nothing was committed: after any other
        the files may be part of the table.
        """
        try:
            yield
        except failure:
            self.discard()
            raise

    def _write(self, values: tuple[str | None, ...], rows: pa.Table) -> None:
        writer = self._open.get(values)
        if writer is None:
            if len(self._open) >= _WRITERS_MAX:
                self._finish(next(iter(self._open)))
            partition = dict(zip(self._layout.partition_by, values, strict=True))
            writer = self._open[values] = _Writer(self._storage, self._schema, partition)
        writer.add(rows)
        if sum(one.buffered_bytes for one in self._open.values()) > _BUFFERED_BYTES_MAX:
            for one in self._open.values():
                one.flush()
        if writer.size_bytes >= self._layout.file_bytes:
            self._finish(values)

    def _finish(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values).close()
        if self._layout.fsync:
            self._storage.sync(file.path)
        self._done.append(file)


class _Writer:
    """One file; batches are gathered into row groups that are worth reading."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, partition: Mapping[str, str | None]
    ) -> None:
        import pyarrow.parquet as pq

        folder = "/".join(
            f"{name}={_escaped(NULL_PARTITION if value is None else value)}"
            for name, value in partition.items()
        )
        name = f"part-{uuid.uuid4()}.parquet"
        self._path = f"{folder}/{name}" if folder else name
        self._partition = partition
        self._schema = schema
        self._rows = 0
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self.buffered_bytes = 0
        self._footer: list[Any] = []
        storage.make_folder(folder)
        self._file = storage.filesystem.open_output_stream(storage.path(self._path))
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            metadata_collector=self._footer,
            use_dictionary=[path for one in schema for path in _repeating(one.name, one)],
        )

    @property
    def size_bytes(self) -> int:
        return int(self._file.tell())

    def add(self, rows: pa.Table) -> None:
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self.buffered_bytes += rows.nbytes
        if self._gathered_rows >= _ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._gathered:
            self._writer.write_table(pa.concat_tables(self._gathered))
        self._rows += self._gathered_rows
        self._gathered, self._gathered_rows, self.buffered_bytes = [], 0, 0

    def close(self) -> File:
        self.flush()
        self._writer.close()
        size_bytes = self.size_bytes
        self._file.close()
        stats = _stats(self._footer[0], self._schema)
        return File(self._path, size_bytes, self._rows, self._partition, json.dumps(stats))


def _repeating(path: str, field: pa.Field) -> list[str]:
    """The Parquet columns whose values may come again; for others a dictionary is work for nothing.

    Readers understand either; this is about the CPU of writing.
    """
    import pyarrow.types as kinds

    if path in _UNIQUE:
        return []
    kind = field.type
    if kinds.is_struct(kind):
        return [one for child in kind for one in _repeating(f"{path}.{child.name}", child)]
    if kinds.is_map(kind):
        pairs = (
            (f"{path}.key_value.key", kind.key_field),
            (f"{path}.key_value.value", kind.item_field),
        )
        return [one for name, child in pairs for one in _repeating(name, child)]
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _repeating(f"{path}.list.element", kind.value_field)
    return [path]


def _escaped(value: str) -> str:
    """A value as the name of a directory, in the way Hive began and every reader understands."""
    return "".join(f"%{ord(one):02X}" if one in _UNSAFE or ord(one) < 32 else one for one in value)


def _shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Exactly the columns of the table: the missing ones null, in order, of its types."""
    import pyarrow as pa

    columns = []
    for one in schema:
        if one.name in rows.column_names:
            column = rows.column(one.name)
            columns.append(column if column.type == one.type else column.cast(one.type))
        else:
            columns.append(pa.nulls(rows.num_rows, one.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _divided(
    rows: pa.Table, names: tuple[str, ...]
) -> list[tuple[tuple[str | None, ...], pa.Table]]:
    """The rows of every combination of values, and the values as texts."""
    import pyarrow.compute as pc

    found = []
    distinct = rows.select(list(names)).group_by(list(names)).aggregate([])
    for values in distinct.to_pylist():
        mask = None
        for name in names:
            column, value = rows.column(name), values[name]
            same = pc.is_null(column) if value is None else pc.equal(column, value)
            mask = same if mask is None else pc.and_(mask, same)
        texts = tuple(None if values[name] is None else str(values[name]) for name in names)
        found.append((texts, rows.filter(mask) if distinct.num_rows > 1 else rows))
    return found


def _stats(footer: Any, schema: pa.Schema) -> dict[str, Any]:
    """Counts, and the least and greatest of whole numbers, days and times, from the footer."""
    import pyarrow.types as kinds

    wanted = {
        one.name for one in schema
        if kinds.is_integer(one.type) or kinds.is_date(one.type) or kinds.is_timestamp(one.type)
    }  # fmt: skip
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            name, stats = column.path_in_schema, column.statistics
            if name not in wanted or stats is None:
                continue
            nulls[name] = nulls.get(name, 0) + stats.null_count
            bounds = _bounds(stats)
            if bounds is None:
                # A group of nothing but nulls has no bounds and needs none.
                if stats.null_count < footer.row_group(group).num_rows:
                    unknown.add(name)
                continue
            least[name] = min(least.get(name, bounds[0]), bounds[0])
            most[name] = max(most.get(name, bounds[1]), bounds[1])
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _floor(value) for name, value in least.items() if name not in unknown},
        "maxValues": {name: _ceiling(value) for name, value in most.items() if name not in unknown},
        "nullCount": nulls,
    }


def _bounds(stats: Any) -> tuple[Any, Any] | None:
    try:
        return (stats.min, stats.max) if stats.has_min_max else None
    except (OverflowError, ValueError):  # a time that Python's calendar does not reach
        return None


def _floor(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, datetime.date) else value


def _ceiling(value: Any) -> Any:
    """Times are kept in whole milliseconds, so the greatest is rounded up."""
    if isinstance(value, datetime.datetime) and value.microsecond % 1000:
        value = value + datetime.timedelta(microseconds=1000 - value.microsecond % 1000)
    return _floor(value)
