"""Schemas that grow: which columns are new, and which cannot be what they are asked to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def merged(known: StructType, seen: StructType) -> StructType:
    """`known` with the fields of `seen` that it lacks; what both have stays as it was.

    A value of another type than the known one does not fit and becomes a dead letter, unless
    the known type can hold it.
    """
    from pyspark.sql.types import StructField, StructType

    theirs = {one.name: one for one in seen}
    fields = [
        StructField(
            one.name,
            _merged_type(one.dataType, theirs[one.name].dataType)
            if one.name in theirs
            else one.dataType,
            one.nullable,
        )
        for one in known
    ]
    names = {one.name.lower() for one in known}
    # Spark and most readers do not tell capitals from small letters: the first name stays.
    for one in seen:
        if one.name.lower() not in names:
            fields.append(StructField(one.name, one.dataType, True))
            names.add(one.name.lower())
    return StructType(fields)


def _merged_type(known: DataType, seen: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(known, StructType) and isinstance(seen, StructType):
        return merged(known, seen)
    if isinstance(known, ArrayType) and isinstance(seen, ArrayType):
        return ArrayType(_merged_type(known.elementType, seen.elementType))
    return known


def conflicts(table: StructType, wanted: StructType) -> dict[str, tuple[DataType, DataType]]:
    """Columns whose type in the table is another one and cannot grow into the wanted one."""
    types = {one.name: one.dataType for one in table}
    return {
        one.name: (types[one.name], one.dataType)
        for one in wanted
        if one.name in types
        and not _same(_merged_type(types[one.name], one.dataType), one.dataType)
        and not _same(types[one.name], one.dataType)
    }


def _same(one: DataType, other: DataType) -> bool:
    """Equal but for nullability and the order of fields."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {field.name: field.dataType for field in one}
        theirs = {field.name: field.dataType for field in other}
        return fields.keys() == theirs.keys() and all(
            _same(kind, theirs[name]) for name, kind in fields.items()
        )
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _same(one.elementType, other.elementType)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _same(one.keyType, other.keyType) and _same(one.valueType, other.valueType)
    return one == other


def fitted(name: str, value: Column, kinds: tuple[DataType, DataType]) -> tuple[Column, Column]:
    """A value in the table's type, and the reason where it has none in it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    table, wanted = kinds
    if any(isinstance(kind, ArrayType | MapType | StructType) for kind in kinds):
        fits, back = f.lit(None).cast(table), f.lit(False)
    else:
        fits = value.try_cast(table)
        # There and back again: half of a number does not fit either.
        back = f.coalesce(fits.try_cast(wanted) == value, f.lit(False))
    reason = f.when(
        value.isNotNull() & ~back,
        f.lit(
            f"{name} is {wanted.simpleString().upper()} and the table has"
            f" {table.simpleString().upper()}: the value does not fit"
        ),
    )
    return fits, reason


def as_spark(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def as_arrow(schema: StructType) -> pa.Schema:
    """A Spark schema as files have it: everything may be null, times are in UTC."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        found: Any = to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.2 knows no other
        found = to_arrow_schema(schema)
    return pa.schema([one.with_nullable(True) for one in found])
