"""Typed rows: decoded, mapped to the pipeline's columns, checked, and told where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pentalog.tables import decoding, quality, schema
from pentalog.tables.decoding import DECODED, REASON
from pentalog.tables.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ROW: Final = "_row"
VERDICT: Final = "_verdict"
COORDINATES: Final = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
}
"""Columns of every row of silver, and the source's columns they come from."""
_RECORD: Final = {
    **COORDINATES,
    "_key": "key",
    "_value": "value",
    "_headers": "headers",
    "_door": "door",
}
"""What expressions may use of the record beside the decoded columns."""
_TIMES: Final = {"day": "to_date({0})", "hour": "date_format({0}, \"yyyy-MM-dd'T'HH\")"}


def typed(
    rows: DataFrame, pipeline: Pipeline, known: StructType, table: StructType | None
) -> DataFrame:
    """Every row of the source with three more columns.

    `_row` is its row of silver, `_verdict` one of the words of `quality`, `_reason` why it is
    not kept.  `table` is what silver looks like already: a column stays what it is there.
    """
    from pyspark.sql import functions as f

    record = rows.columns
    fitted = _fitted(_mapped(rows, pipeline, known), record, table)
    names = row_schema(fitted).names
    judged = fitted.select(
        *(f.col(f"`{name}`").alias(f"__{name}") for name in record),
        ROW,
        REASON,
        *(f.col(ROW).getField(name).alias(name) for name in names),
    )
    times = [
        f.expr(_TIMES[name].format(f"({pipeline.event_time})")).alias(f"_{name}")
        for name in pipeline.partition_by
        if name in _TIMES
    ]
    row = f.struct(*(f.col(f"`{name}`") for name in names), *times)
    return judged.select(
        *(f.col(f"`__{name}`").alias(name) for name in record),
        row.alias(ROW),
        quality.verdict(f.col(REASON), pipeline.rules).alias(VERDICT),
        quality.explained(f.col(REASON), pipeline.rules).alias(REASON),
    )


def mapped_schema(rows: DataFrame, pipeline: Pipeline, known: StructType) -> StructType:
    """What the pipeline would make of rows if there were no table yet."""
    return row_schema(_mapped(rows, pipeline, known))


def clashing(known: StructType) -> list[str]:
    """Fields that are called like something of the record."""
    taken = {name.lower() for name in _RECORD}
    return [one.name for one in known if one.name.lower() in taken]


def latest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of every key the row with the greatest offset; the order `merge` keeps, too."""
    from pyspark.sql import functions as f

    order = f.struct("_offset", "_topic", "_partition")
    whole = f.struct(*(f.col(f"`{name}`") for name in rows.columns))
    newest = rows.groupBy(*(f"`{name}`" for name in key)).agg(f.max_by(whole, order).alias(ROW))
    return newest.select(f"{ROW}.*")


def row_schema(rows: DataFrame) -> StructType:
    """What a row of silver looks like."""
    return rows.schema[ROW].dataType  # type: ignore[return-value]


def decoded_part(table: StructType, pipeline: Pipeline) -> StructType:
    """The columns of a silver table that were found in records, without those we add."""
    from pyspark.sql.types import StructType

    ours = {*COORDINATES, *(f"_{name}" for name in _TIMES)}
    return StructType([one for one in table if one.name not in ours])


def _mapped(rows: DataFrame, pipeline: Pipeline, known: StructType) -> DataFrame:
    """One struct of the pipeline's columns, computed where everything has a name."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    record, opened = rows.columns, decoding.decoded(rows, pipeline.decode, known)
    for name in clashing(known):
        raise PipelineError(f"decode: a field {name} clashes with the record's own column")
    names = opened.select(
        *(f.col(f"`{name}`").alias(f"__{name}") for name in record),
        REASON,
        *(f.col(DECODED).getField(one.name).alias(one.name) for one in known),
        *(f.col(f"`{theirs}`").alias(ours) for ours, theirs in _RECORD.items() if theirs in record),
    )
    chosen: Mapping[str, Column] = (
        {name: f.expr(text) for name, text in pipeline.columns.items()}
        if pipeline.columns
        else {one.name: f.col(f"`{one.name}`") for one in known}
    )
    columns = [
        *(column.alias(name) for name, column in chosen.items()),
        *(f.col(name) for name in COORDINATES),
    ]
    try:
        return names.select(
            *(f.col(f"`__{name}`").alias(name) for name in record),
            REASON,
            f.struct(*columns).alias(ROW),
        )
    except AnalysisException as error:
        first = str(error).strip().splitlines()[0]
        raise PipelineError(f"pipeline.{pipeline.name}.columns: {first}") from None


def _fitted(mapped: DataFrame, record: list[str], table: StructType | None) -> DataFrame:
    """The same, every column in the type the table has for it."""
    from pyspark.sql import functions as f

    row = row_schema(mapped)
    clashes = schema.conflicts(table, row) if table is not None else {}
    if not clashes:
        return mapped
    reason = f.col(REASON)
    fields = []
    for one in row:
        value = f.col(ROW).getField(one.name)
        if one.name in clashes:
            value, why = schema.fitted(one.name, value, clashes[one.name])
            reason = f.coalesce(reason, why)
        fields.append(value.alias(one.name))
    return mapped.select(
        *(f"`{name}`" for name in record), reason.alias(REASON), f.struct(*fields).alias(ROW)
    )
