"""Rows of records as Arrow batches, made of the kernels' buffers without copying them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pentalog.kernels import Chunks, Columns, column_facts
from pentalog.model.batch import DOORS
from pentalog.model.types import Offset, Partition
from pentalog.tables.options import OptionRefused, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PICKS: Final = {
    "cursus_producer_id": ("cursus.producer_id", "string"),
    "cursus_seq": ("cursus.seq", "bigint"),
    "cursus_epoch": ("cursus.epoch", "bigint"),
    "cursus_event_type": ("cursus.event_type", "string"),
    "cursus_schema_version": ("cursus.schema_version", "int"),
    "cursus_aggregate_version": ("cursus.aggregate_version", "bigint"),
    "cursus_metadata": ("cursus.metadata", "string"),
    "fluvio_schema_id": ("fluvio.schema_id", "bigint"),
    "blipmq_qos": ("blipmq.qos", "int"),
}
"""Columns made of one header each: its name, and the column's type."""
_PLAIN: Final = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "door": "string",
}
COLUMNS: Final = {**_PLAIN, **{name: kind for name, (_, kind) in PICKS.items()}}
OFFSETS_VIEW: Final = "topic string, partition int, start bigint, `end` bigint, kind string"
KINDS: Final = ("record", "control", "aborted", "missing")

_FLAGS: Final = {
    "offset": column_facts.OFFSETS,
    "timestamp": column_facts.TIMESTAMPS,
    "key": column_facts.KEYS,
    "value": column_facts.VALUES,
    "headers": column_facts.HEADERS,
    "door": column_facts.DOORS,
}
_BLANKS: Final = " \t\r\n"
"""What JSON allows around a document."""
_DOOR_NAMES: Final = tuple(name.encode() for name in DOORS)


def schema_text(options: SourceOptions) -> str:
    """The columns that the options ask for, in Spark's own notation."""
    if options.view == "offsets":
        return OFFSETS_VIEW
    texts = dict(COLUMNS)
    if options.decode in ("utf8", "cursus"):
        texts["key"] = texts["value"] = "string"
    elif options.decode == "json":
        texts["value"] = f"struct<{options.json_schema}>"
    names = options.columns or tuple(texts)
    for name in names:
        if name not in texts:
            raise OptionRefused(f"there is no column {name!r}; there are: {', '.join(texts)}")
    return ", ".join(f"`{name}` {texts[name]}" for name in names)


class RowMaker:
    """What to ask of the kernel, and how to make Spark's batches of what it gives."""

    def __init__(self, schema: StructType, *, rows_per_batch: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._rows_per_batch = rows_per_batch
        names = self._schema.names
        self._picked = [name for name in names if name in PICKS]
        self.columns = sum(_FLAGS.get(name, 0) for name in names)
        self.picks = tuple(PICKS[name][0].encode() for name in self._picked)
        self.doors = _DOOR_NAMES
        for field in self._schema:
            _check_type(field)

    def batches(self, columns: Columns, topic: str, partition: int) -> Iterator[pa.RecordBatch]:
        if not columns.rows:
            return
        arrays = [self._array(field, columns, topic, partition) for field in self._schema]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for start in range(0, columns.rows, self._rows_per_batch):
            yield whole.slice(start, self._rows_per_batch)

    def missing(self, at: Partition, low: Offset, high: Offset) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _array(self, field: pa.Field, columns: Columns, topic: str, partition: int) -> pa.Array:
        name, kind, rows = field.name, field.type, columns.rows
        if name == "topic":
            return pa.repeat(pa.scalar(topic, kind), rows)
        if name == "partition":
            return pa.repeat(pa.scalar(partition, kind), rows)
        if name in ("offset", "timestamp"):
            numbers = columns.offsets if name == "offset" else columns.timestamps
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers)])
        if name == "headers":
            return _headers(kind, columns)
        if name in PICKS:
            picked = columns.picked[self._picked.index(name)]
            return pa.nulls(rows, kind) if picked is None else _typed(kind, _binary(picked, rows))
        chunks = {"key": columns.keys, "value": columns.values, "door": columns.doors}[name]
        assert chunks is not None
        if name == "door":
            return _from_chunks(kind, chunks, rows)
        return _typed(kind, _binary(chunks, rows))


class SpanMaker:
    """The view of offsets: what each run of them is."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        if self._schema.names != ["topic", "partition", "start", "end", "kind"]:
            raise OptionRefused(f"view = offsets has the columns {OFFSETS_VIEW} and no others")
        self.columns = column_facts.SPANS
        self.picks: tuple[bytes, ...] = ()
        self.doors = _DOOR_NAMES

    def missing(self, at: Partition, low: Offset, high: Offset) -> Iterator[pa.RecordBatch]:
        kinds = {"topic": at.topic, "partition": at.index, "start": low, "end": high}
        yield pa.RecordBatch.from_pylist([{**kinds, "kind": KINDS[-1]}], schema=self._schema)

    def batches(self, columns: Columns, topic: str, partition: int) -> Iterator[pa.RecordBatch]:
        assert columns.spans is not None
        count = len(columns.spans) // 24
        if not count:
            return
        flat = pa.Array.from_buffers(pa.int64(), 3 * count, [None, pa.py_buffer(columns.spans)])
        kinds, firsts, behinds = (flat.take(pa.array(range(i, 3 * count, 3))) for i in range(3))
        arrays = [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            firsts,
            behinds,
            pa.array(KINDS, pa.string()).take(kinds),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _check_type(field: pa.Field) -> None:
    if field.name not in COLUMNS:
        raise OptionRefused(f"there is no column {field.name!r}; there are: {', '.join(COLUMNS)}")
    accepted: dict[str, Callable[[pa.DataType], bool]] = {
        "topic": pa.types.is_string,
        "door": pa.types.is_string,
        "partition": pa.types.is_int32,
        "offset": pa.types.is_int64,
        "timestamp": pa.types.is_timestamp,
        "headers": pa.types.is_list,
        "key": _is_content,
        "value": _is_content,
    }
    if not accepted.get(field.name, _is_pick)(field.type):
        raise OptionRefused(
            f"column {field.name!r} cannot be {field.type}; it is {COLUMNS[field.name]}"
            f"{', or string, or struct<...> of JSON' if field.name in ('key', 'value') else ''}"
        )
    if pa.types.is_struct(field.type):
        for one in field.type:
            if _read_json(pa.struct([one]), pa.array([b"{}"])) is None:
                raise OptionRefused(
                    f"schema: a field {one.name} of {one.type} cannot be decoded from JSON; read"
                    " the value with decode = utf8 and use Spark's from_json"
                )


def _is_content(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_struct(kind))


def _is_pick(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))


def _binary(chunks: Chunks, count: int) -> pa.Array:
    return _from_chunks(pa.binary(), chunks, count)


def _from_chunks(kind: pa.DataType, chunks: Chunks, count: int) -> pa.Array:
    validity = pa.py_buffer(chunks.validity) if chunks.nulls else None
    buffers = [validity, pa.py_buffer(chunks.offsets), pa.py_buffer(chunks.data)]
    return pa.Array.from_buffers(kind, count, buffers, chunks.nulls)


def _headers(kind: pa.DataType, columns: Columns) -> pa.Array:
    names, values = columns.header_names, columns.header_values
    assert names is not None
    assert values is not None
    count = len(names.offsets) // 4 - 1
    inner = kind.value_type
    pairs = pa.StructArray.from_arrays(
        [_typed(pa.string(), _binary(names, count)), _binary(values, count)],
        fields=[inner.field(0), inner.field(1)],
    )
    lists = pa.py_buffer(columns.header_lists)
    return pa.Array.from_buffers(kind, columns.rows, [None, lists], 0, children=[pairs])


def _typed(kind: pa.DataType, content: pa.Array) -> pa.Array:
    """Bytes as the type that was asked for; what is none becomes null, text is mended."""
    if pa.types.is_binary(kind):
        return content
    if pa.types.is_struct(kind):
        return _json(kind, content)
    try:
        text = content.cast(pa.string())
    except pa.ArrowInvalid:
        mended = [
            one if one is None else one.decode("utf-8", "replace") for one in content.to_pylist()
        ]
        text = pa.array(mended, pa.string())
    if pa.types.is_string(kind):
        return text
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_number(one, kind) for one in text.to_pylist()], kind)


def _number(text: str | None, kind: pa.DataType) -> int | None:
    try:
        number = int(text or "")
        pa.scalar(number, kind)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None
    return number


def _json(kind: pa.DataType, content: pa.Array) -> pa.Array:
    """Documents as structs; null for what is none, or not one with values of these types."""
    trimmed = _trimmed(content)
    sound = _is_object(trimmed)
    found = _read_json(kind, trimmed.filter(sound))
    if found is None:
        # Most of those that do not fit are told by a look at each, which is cheaper than halving.
        sound = pa.array([_fits(kind, one) for one in trimmed.to_pylist()], pa.bool_())
        found = _structs(kind, trimmed.filter(sound))
    rows = pc.if_else(sound, pc.subtract(pc.cumulative_sum(sound.cast(pa.int64())), 1), None)
    return found.take(rows)


def _trimmed(content: pa.Array) -> pa.Array:
    """Without blanks around the documents."""
    return pc.ascii_trim(content.view(pa.string()), _BLANKS).view(pa.binary())


def _is_object(content: pa.Array) -> pa.Array:
    """Begun and ended as one: together they cannot be read as other objects than each alone."""
    found = pc.and_(pc.starts_with(content, b"{"), pc.ends_with(content, b"}"))
    return pc.fill_null(found, fill_value=False)


def _fits(kind: pa.DataType, document: bytes | None) -> bool:
    try:
        return document is not None and _is_value(kind, json.loads(document))
    except (ValueError, RecursionError):
        return False


def _is_value(kind: pa.DataType, value: Any) -> bool:
    """Whether JSON can be of the type, by what it is written as."""
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(
            value.get(one.name) is None or _is_value(one.type, value[one.name]) for one in kind
        )
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(
            one is None or _is_value(kind.value_type, one) for one in value
        )
    if pa.types.is_integer(kind):
        return type(value) is int
    if pa.types.is_floating(kind):
        return type(value) in (int, float)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    return isinstance(value, str) or pa.types.is_decimal(kind)


def _structs(kind: pa.DataType, documents: pa.Array) -> pa.Array:
    """All at once; by halves where one of them is not what was promised."""
    found = _read_json(kind, documents)
    if found is not None:
        return found
    if len(documents) == 1:
        return pa.nulls(1, kind)
    middle = len(documents) // 2
    halves = [_structs(kind, one) for one in (documents[:middle], documents[middle:])]
    return pa.concat_arrays(halves)


def _read_json(kind: pa.DataType, documents: pa.Array) -> pa.Array | None:
    from pyarrow import json as arrow_json

    if len(documents) == 0:
        return pa.nulls(0, kind)
    lines = pc.binary_join_element_wise(documents, pa.scalar(b"\n"), pa.scalar(b""))
    whole = lines.buffers()[2]
    try:
        lines.cast(pa.string())  # refuses what is not UTF-8, which the parser does not
        table = arrow_json.read_json(
            pa.BufferReader(whole),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema([one.with_type(_written_as(one.type)) for one in kind]),
                unexpected_field_behavior="ignore",
            ),
        )
        columns = [table.column(one.name).combine_chunks().cast(one.type) for one in kind]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(documents):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _written_as(kind: pa.DataType) -> pa.DataType:
    """The type to read; a day is written as text, and the parser would want its number."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_written_as(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_written_as(one.type)) for one in kind])
    return kind
