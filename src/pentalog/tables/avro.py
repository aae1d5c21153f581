"""Avro values: the schema as Spark's, and decoding over whole Arrow batches in the workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pentalog.tables.pipeline import Decode, PipelineError
from pentalog.tables.schema import as_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_BELOW: Final = frozenset({"type", "items", "values", "fields"})
"""Where a schema has schemas in it."""
_FRAME_BYTES: Final = 5
"""What schema registries put before a value: a zero and the number of the schema."""


def spark_schema(text: str) -> StructType:
    """The columns of a record's schema."""
    import fastavro
    from pyspark.sql.types import StructType

    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise PipelineError(f"decode.schema: no Avro schema: {error}") from None
    except fastavro.schema.UnknownType as error:
        raise PipelineError(f"decode.schema: Avro does not know the type {error}") from None
    found = _type(parsed, {})
    if not isinstance(found, StructType):
        raise PipelineError("decode.schema: the Avro schema of a value must be a record")
    return found


def decoded(rows: DataFrame, decode: Decode, schema: StructType) -> DataFrame:
    """`rows` with the columns `_decoded` and `_reason`."""
    from pyspark.sql.types import StringType, StructField, StructType

    wanted = StructType(
        [
            *rows.schema,
            StructField("_decoded", _nullable(schema)),
            StructField("_reason", StringType()),
        ]
    )
    framed = decode.options.get("framing", "none")
    if framed not in ("none", "confluent"):
        raise PipelineError(f"decode.options.framing: {framed!r}; known: none, confluent")
    arrow = as_arrow(wanted)
    task = _task(decode.schema, _FRAME_BYTES if framed == "confluent" else 0, arrow)
    return rows.mapInArrow(task, wanted)


def _task(
    text: str, skipped: int, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fastavro
        import pyarrow as pa

        parsed = fastavro.parse_schema(_plain(json.loads(text)))
        for batch in batches:
            values = batch.column(batch.schema.names.index("value"))
            structs, reasons = _opened(values, parsed, skipped)
            found = _fitted(structs, reasons, schema.field("_decoded").type)
            columns = [*batch.columns, found, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return task


def _opened(values: pa.Array, parsed: Any, skipped: int) -> tuple[list[Any], list[str | None]]:
    import io

    import fastavro

    structs: list[Any] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        found, reason = None, None
        if value is None:
            reason = "the value is null"
        elif skipped and (len(value) < skipped or value[0] != 0):
            reason = "the value does not begin with a schema's number"
        else:
            file = io.BytesIO(value)
            file.seek(skipped)
            try:
                found = fastavro.schemaless_reader(file, parsed, None)
                if file.tell() != len(value):
                    found, reason = None, f"{len(value) - file.tell()} bytes behind the record"
            # Bytes of another schema fail in any way that reading can.
            except Exception as error:
                reason = f"the value is no Avro of the schema: {type(error).__name__} {error}"[:300]
        structs.append(found)
        reasons.append(reason)
    return structs, reasons


def _fitted(structs: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    """The structs as a column; those with a value their column cannot hold are given up."""
    import pyarrow as pa

    try:
        return pa.array(structs, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass  # one bad record: which one is only found by trying each
    for number, one in enumerate(structs):
        try:
            pa.array([one], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            structs[number] = None
            reasons[number] = f"the value does not fit its column: {error}"[:300]
    return pa.array(structs, kind)


def _plain(schema: Any) -> Any:
    """The schema without the logical types that tables have no type for: read as what they are."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _plain(one) if name in _BELOW else one for name, one in schema.items()}
    if _logical(schema) is None:
        kept.pop("logicalType", None)
    return kept


def _nullable(schema: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, one.dataType, True) for one in schema])


def _type(schema: Any, named: dict[str, DataType]) -> DataType:
    from pyspark.sql import types as t

    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise PipelineError("decode.schema: a union must be of null and one other type")
        return _type(others[0], named)
    if isinstance(schema, str):
        return _named(schema, named)
    kind = schema["type"]
    logical = _logical(schema)
    if logical is not None:
        return logical
    if kind == "record":
        found = t.StructType(
            [t.StructField(one["name"], _type(one["type"], named)) for one in schema["fields"]]
        )
        named[schema["name"]] = found
        return found
    if kind == "array":
        return t.ArrayType(_type(schema["items"], named))
    if kind == "map":
        return t.MapType(t.StringType(), _type(schema["values"], named))
    if kind == "enum":
        named[schema["name"]] = t.StringType()
        return t.StringType()
    if kind == "fixed":
        named[schema["name"]] = t.BinaryType()
        return t.BinaryType()
    return _type(kind, named)


def _named(name: str, named: dict[str, DataType]) -> DataType:
    from pyspark.sql import types as t

    plain: dict[str, DataType] = {
        "boolean": t.BooleanType(), "int": t.IntegerType(), "long": t.LongType(),
        "float": t.FloatType(), "double": t.DoubleType(), "string": t.StringType(),
        "bytes": t.BinaryType(), "null": t.StringType(),
    }  # fmt: skip
    if name in plain:
        return plain[name]
    if name in named:
        return named[name]
    raise PipelineError(f"decode.schema: a table cannot hold the Avro type {name}")


def _logical(schema: Any) -> DataType | None:
    from pyspark.sql import types as t

    logical = schema.get("logicalType")
    if logical == "date":
        return t.DateType()
    if logical in ("timestamp-millis", "timestamp-micros"):
        return t.TimestampType()
    if logical == "decimal":
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    return None
