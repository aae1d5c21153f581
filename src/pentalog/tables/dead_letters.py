"""Records that did not become rows: as they were, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pentalog.model.types import Partition
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.sinks import Range, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "door")
REASON: Final = "reason"
SUFFIX: Final = ".dlq"
_OF_READING: Final = frozenset({"failondataloss", "rowsperbatch", "splitbytes", "minpartitions"})


def table_schema(source: StructType) -> StructType:
    """The dead letter table of a source: the record, and why it is here."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [*(one for one in source if one.name in COLUMNS), StructField(REASON, StringType())]
    )


def publish(
    spark: SparkSession,
    pipeline: Pipeline,
    table: Sink,
    query: str,
    batch: int,
    ranges: Mapping[Partition, Range],
) -> None:
    """Write a batch's dead letters to `<topic>.dlq`, exactly once like everything else.

    They are taken from the table, so that a batch that runs again after a crash writes the same
    ones, and the broker recognises it by query and number.
    """
    from pyspark.sql import functions as f

    first = {at: one.start for at, one in ranges.items()}
    last = {at: one.end for at, one in ranges.items()}
    rows = _between(table.read(spark), first, last)
    if rows.isEmpty():
        return
    notes = {
        "pentalog.reason": f.col(REASON),
        "pentalog.topic": f.col("topic"),
        "pentalog.partition": f.col("partition").cast("string"),
        "pentalog.offset": f.col("offset").cast("string"),
    }
    added = f.array(
        *(
            f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in notes.items()
        )
    )
    own = f.coalesce(f.col("headers"), f.array().cast("array<struct<key:string,value:binary>>"))
    (
        rows.select(
            f.concat("topic", f.lit(SUFFIX)).alias("topic"),
            "key",
            "value",
            f.concat(own, added).alias("headers"),
            "timestamp",
        )
        .write.format("pentalog")
        .options(**connection(pipeline), query=f"{pipeline.group}.dlq.{query}", batch=str(batch))
        .mode("append")
        .save()
    )


def connection(pipeline: Pipeline) -> dict[str, str]:
    """The options of a writer to the pipeline's brokers."""
    given = {
        name: value
        for name, value in pipeline.source_options.items()
        if name.lower() not in _OF_READING
    }
    return {**given, "servers": pipeline.servers}


def _between(
    rows: DataFrame, first: Mapping[Partition, int], last: Mapping[Partition, int]
) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = f.lit(False)
    for at, offset in first.items():
        here = (f.col("topic") == at.topic) & (f.col("partition") == at.index)
        within = (f.col("offset") >= offset) & (f.col("offset") < last[at])
        wanted = wanted | (here & within)
    return rows.filter(wanted)
