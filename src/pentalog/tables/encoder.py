"""Arrow batches of rows into record batches of topics, whole columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.kernels import Cells, HeaderCells, Producing, encode_rows, place_rows
from pentalog.model.types import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

BATCH_BYTES_MAX: Final = 900_000
"""Brokers take a megabyte unless told otherwise; some of it is framing."""
COLUMNS: Final = {
    "topic": ("string",),
    "partition": ("int",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""The columns a row may have, and their types."""


class RowsRefused(Exception):
    """Rows that cannot become records; the text says what can."""


class EncodedBatch(NamedTuple):
    """One record batch for one partition."""

    at: Partition
    data: bytearray
    start: int
    end: int
    records: int


def check_columns(schema: StructType, topic: str) -> None:
    """Refuse columns that mean nothing, or too few of them."""
    accepted = "; ".join(f"{name} {' or '.join(types)}" for name, types in COLUMNS.items())
    for one in schema:
        if one.name not in COLUMNS or _type_name(one.dataType) not in COLUMNS[one.name]:
            raise RowsRefused(
                f"column {one.name} {_type_name(one.dataType)} cannot be written; accepted are: "
                f"{accepted}"
            )
    if "value" not in schema.names:
        raise RowsRefused("there is no column value; make one, for example with to_json(struct(*))")
    if "topic" not in schema.names and not topic:
        raise RowsRefused("to which topic? give .option('topic', NAME) or a column topic")


class Encoder:
    """Encodes for one producer; counts its sequences."""

    def __init__(
        self, producing: Producing, partitions_of: Callable[[str], int], *, topic: str, task: int
    ) -> None:
        self.rows = 0
        self.digest = 0
        self._producing = producing
        self._partitions_of = partitions_of
        self._topic = topic
        self._keyless = task
        self._sequences: dict[str, bytearray] = {}

    def encode(self, rows: pa.RecordBatch, now_ms: int) -> Iterator[EncodedBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if "topic" not in rows.schema.names:
            yield from self._encode(self._topic, rows, now_ms)
            return
        named = pc.fill_null(rows.column("topic"), self._topic)
        topics = pc.unique(named).to_pylist()
        if len(topics) == 1:
            yield from self._encode(topics[0], rows, now_ms)
            return
        for topic in topics:
            yield from self._encode(topic, rows.filter(pc.equal(named, pa.scalar(topic))), now_ms)

    def _encode(self, topic: str, rows: pa.RecordBatch, now_ms: int) -> Iterator[EncodedBatch]:
        if not topic:
            raise RowsRefused("a row has no topic; fill the column, or give .option('topic', NAME)")
        names = rows.schema.names
        sequences = self._sequences.get(topic)
        if sequences is None:
            sequences = self._sequences[topic] = bytearray(4 * self._partitions_of(topic))
        keys = _cells(rows.column("key")) if "key" in names else None
        encoded = encode_rows(
            keys,
            _cells(rows.column("value")),
            _header_cells(rows.column("headers")) if "headers" in names else None,
            _timestamps(rows, now_ms),
            self._placed(topic, rows, keys, len(sequences) // 4),
            rows.num_rows,
            sequences,
            BATCH_BYTES_MAX,
            self._producing,
        )
        self.rows += rows.num_rows
        self.digest = (self.digest + encoded.digest) % (1 << 64)
        for partition, start, end, records in encoded.batches:
            yield EncodedBatch(Partition(topic, partition), encoded.data, start, end, records)

    def _placed(
        self, topic: str, rows: pa.RecordBatch, keys: Cells | None, partitions: int
    ) -> bytearray | memoryview:
        import pyarrow as pa
        import pyarrow.compute as pc

        # Rows without a key stay together, and the next ones go elsewhere.
        placed = place_rows(keys, rows.num_rows, partitions, self._keyless % partitions)
        self._keyless += 1
        if "partition" not in rows.schema.names:
            return placed
        chosen = rows.column("partition")
        range_ = pc.min_max(chosen).as_py()
        if chosen.null_count < len(chosen) and not 0 <= range_["min"] <= range_["max"] < partitions:
            raise RowsRefused(
                f"column partition has {range_['min']}..{range_['max']}, but {topic} has "
                f"partitions 0..{partitions - 1}; a null lets the key choose"
            )
        ours = pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, pa.py_buffer(placed)])
        return _numbers(pc.coalesce(chosen, ours))


def _type_name(kind: DataType) -> str:
    return str(kind.simpleString())


def _cells(column: pa.Array) -> Cells:
    """The buffers of a column of texts or bytes."""
    import pyarrow as pa

    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    if offsets is None or offsets.size == 0:
        offsets = bytes(4)
    return Cells(validity, offsets, data if data is not None else b"", column.offset)


def _header_cells(column: pa.Array) -> HeaderCells:
    validity, offsets = column.buffers()[:2]
    entries = column.values
    # `field` ignores where the struct begins; its children's own beginning counts.
    names, values = _cells(entries.field(0)), _cells(entries.field(1))
    if offsets is None or offsets.size == 0:
        offsets = bytes(4)
    begin = entries.offset
    return HeaderCells(
        validity,
        offsets,
        column.offset,
        names._replace(first=names.first + begin),
        values._replace(first=values.first + begin),
    )


def _timestamps(rows: pa.RecordBatch, now_ms: int) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    if "timestamp" not in rows.schema.names:
        return memoryview(pa.repeat(pa.scalar(now_ms, pa.int64()), rows.num_rows).buffers()[1])
    # Floors, as a reader would: a moment's millisecond.
    moments = pc.floor_temporal(rows.column("timestamp"), unit="millisecond")
    return _numbers(pc.fill_null(moments.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()), now_ms))


def _numbers(column: pa.Array) -> memoryview:
    """The bytes of a column of numbers without nulls."""
    width = column.type.bit_width // 8
    view = memoryview(column.buffers()[1]).cast("B")
    return view[column.offset * width : (column.offset + len(column)) * width]
