"""Values into columns: for every record either a decoded struct or a reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.tables import avro, documents
from pentalog.tables.pipeline import Decode, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

_CORRUPT: Final = "__corrupt"
DECODED: Final = "_decoded"
REASON: Final = "_reason"

_VARIANT_TYPES: Final = {
    "bigint", "int", "smallint", "tinyint", "double", "float", "boolean", "string", "date",
    "timestamp", "timestamp_ntz",
}  # fmt: skip
"""Types that can be asked of one field of a JSON text, to say which field did not fit."""

_NUMBER: Final = "^(BIGINT|DECIMAL|DOUBLE|FLOAT)"
_WRITTEN_AS: Final = {
    "bigint": "^BIGINT", "int": "^BIGINT", "smallint": "^BIGINT", "tinyint": "^BIGINT",
    "double": _NUMBER, "float": _NUMBER, "boolean": "^BOOLEAN",
}  # fmt: skip
"""What the JSON of a field must be, as a variant calls it, to be taken for a value of the type."""


class Decoded(NamedTuple):
    """Rows of the source with two more columns: the struct, and the reason if there is none."""

    rows: DataFrame
    schema: StructType


def given_schema(spark: SparkSession, decode: Decode) -> StructType:
    """The columns that a pipeline's `decode` names; none if they are found in the records."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    if decode.format == "raw":
        return StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    if decode.format == "text":
        return StructType([StructField("text", StringType())])
    if decode.format == "avro":
        return avro.spark_schema(decode.schema)
    if not decode.schema:
        return StructType([])
    try:
        return StructType().fromDDL(decode.schema)  # type: ignore[return-value]
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise PipelineError(
            f"decode.schema: {decode.schema!r} is no list of columns: {first}"
        ) from None


def decoded(rows: DataFrame, decode: Decode, schema: StructType) -> DataFrame:
    """`rows` with the columns `_decoded` and `_reason`."""
    from pyspark.sql import functions as f

    if decode.format == "avro":
        return avro.decoded(rows, decode, schema)
    if decode.format == "raw":
        return rows.withColumn(DECODED, f.struct("key", "value")).withColumn(
            REASON, f.lit(None).cast("string")
        )
    text = f.col("value").cast("string")
    is_text = f.expr("is_valid_utf8(value)")
    if decode.format == "text":
        return rows.withColumn(DECODED, f.struct(text.alias("text"))).withColumn(
            REASON, f.when(f.col("value").isNotNull() & ~is_text, f.lit(documents.NO_TEXT))
        )
    parser = _json if decode.format == "json" else _csv
    parsed, whole = parser(text, schema, decode.options)
    with_struct = rows.withColumn("__parsed", parsed)
    reason = (
        f.when(f.col("value").isNull(), f.lit(documents.NULL))
        .when(~is_text, f.lit(documents.NO_TEXT))
        .when(f.col("__parsed").isNull(), f.lit(documents.EMPTY))
        .when(whole, _mismatch(decode.format, text, schema))
    )
    for one in schema:
        if not one.nullable:
            missing = f.col("__parsed").getField(one.name).isNull()
            reason = reason.when(missing, f.lit(f"{one.name} is missing, but NOT NULL"))
    fields = [f.col("__parsed").getField(one.name).alias(one.name) for one in schema]
    struct = f.struct(*fields) if fields else f.struct(f.lit(None).cast("int").alias("__none"))
    return (
        with_struct.withColumn(DECODED, struct).withColumn(REASON, reason.otherwise(None))
    ).drop("__parsed")


def inferred(rows: DataFrame) -> StructType:
    """The fields of the JSON objects in `rows`, with the widest types seen."""
    from pyspark.sql.types import DataType, StructType

    found = rows.selectExpr(
        "schema_of_variant_agg(try_parse_json(case when is_valid_utf8(value)"
        " and startswith(ltrim(cast(value as string)), '{')"
        " then cast(value as string) end)) as seen"
    ).first()
    text = found["seen"] if found is not None else None
    if not text or not text.startswith("OBJECT<"):
        return StructType([])
    seen = DataType.fromDDL(text.replace("OBJECT<", "STRUCT<"))
    plain = _plain(seen)
    return plain if isinstance(plain, StructType) else StructType([])


def _plain(kind: DataType) -> DataType | None:
    """A type as a table should have it; None for what only ever was null."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        named = [(one.name, _plain(one.dataType)) for one in kind]
        return t.StructType([t.StructField(name, one) for name, one in named if one is not None])
    if isinstance(kind, t.ArrayType):
        inner = _plain(kind.elementType)
        return t.ArrayType(inner) if inner is not None else None
    if isinstance(kind, t.DecimalType | t.FloatType):
        return t.DoubleType()
    if isinstance(kind, t.NullType):
        return None
    if isinstance(kind, t.VariantType):
        # Values of several types under one name have only their text in common.
        return t.StringType()
    if isinstance(kind, t.IntegerType | t.ShortType | t.ByteType):
        return t.LongType()
    return kind


def _json(text: Column, schema: StructType, options: Mapping[str, str]) -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    chosen = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **options}
    parsed = f.from_json(text, _with_corrupt(schema), chosen)
    # Of an array Spark would take the first element and say nothing about the others.
    array = f.startswith(f.ltrim(text), f.lit("["))
    corrupt = f.col("__parsed").getField(_CORRUPT).isNotNull()
    return parsed, array | corrupt | _more_follows(text)


def _more_follows(text: Column) -> Column:
    """Whether something stands behind the object, which Spark would not look at.

    Only where a closing brace is followed by more than closing ones is it worth a second look:
    between brackets one object is an array of one.
    """
    from pyspark.sql import functions as f

    alone = f.json_array_length(f.concat(f.lit("["), text, f.lit("]"))) == 1
    return text.rlike(r"\}\s*[^\s\}\]]") & ~f.coalesce(alone, f.lit(False))


def _csv(text: Column, schema: StructType, options: Mapping[str, str]) -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    chosen = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **options}
    parsed = f.from_csv(text, _with_corrupt(schema).toDDL(), chosen)
    return parsed, f.col("__parsed").getField(_CORRUPT).isNotNull()


def _with_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    nullable = [StructField(one.name, one.dataType, True) for one in schema]
    return StructType([*nullable, StructField(_CORRUPT, StringType())])


def _mismatch(format: str, text: Column, schema: StructType) -> Column:
    """Which fields do not fit; computed only for values that do not decode."""
    from pyspark.sql import functions as f

    if format == "csv":
        return f.lit(f"the value is no CSV line of {len(schema)} columns: {schema.simpleString()}")
    value = f.try_parse_json(text)
    wrong = f.concat_ws(", ", *(_wrong_field(value, one) for one in schema))
    return (
        f.when(value.isNull(), f.lit(documents.NO_JSON))
        .when(~f.startswith(f.ltrim(text), f.lit("{")), f.lit("the value is no JSON object"))
        .when(wrong != "", wrong)
        .when(_more_follows(text), f.lit("something follows the JSON object"))
        .otherwise(f.lit(f"the value does not fit {schema.simpleString()}"))
    )


def _wrong_field(value: Column, one: StructField) -> Column:
    from pyspark.sql import functions as f

    kind = one.dataType.simpleString()
    if kind not in _VARIANT_TYPES or not one.name.isidentifier():
        return f.lit(None).cast("string")
    path = f"$.{one.name}"
    found = f.try_variant_get(value, path, "variant")
    there = ~f.is_variant_null(found)
    fits = f.try_variant_get(value, path, kind).isNotNull()
    if kind in _WRITTEN_AS:
        # A variant would be cast: a number in quotes, 1.5 and true to 1.
        fits = fits & f.schema_of_variant(found).rlike(_WRITTEN_AS[kind])
    shown = f.substring(f.try_variant_get(value, path, "string"), 1, 60)
    return f.when(there & ~fits, f.concat(f.lit(f"{one.name} is no {kind.upper()}: "), shown))
