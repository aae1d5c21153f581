"""Windowed aggregates over silver's rows: a stream of its own, with state and a watermark.

A window is written once, when the watermark has passed its end; rows that come later than that
are not counted.  What is in the table depends on the state of the query, not on offsets alone,
so a batch is recognised by its number, and a query without its state cannot go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pentalog.model.types import Partition
from pentalog.tables import bronze, commit, decoding, layers, schema, silver, steps
from pentalog.tables.checkpoint import Checkpoint, gold_query
from pentalog.tables.pipeline import Gold, Pipeline, PipelineError, duration_ms
from pentalog.tables.quality import KEEP, STOP, RuleBroken
from pentalog.tables.sinks import Range, Sink, SinkRefused, State, Step, open_table
from pentalog.tables.transforms import Transforms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pentalog.tables.job import Query


def query(spark: SparkSession, pipeline: Pipeline, gold: Gold, *, once: bool) -> Query:
    from pentalog.tables.job import Query

    kept = Checkpoint(pipeline.checkpoint, gold_query(gold.name))
    return Query(
        f"{pipeline.name}.gold.{gold.name}", lambda: start(spark, pipeline, gold, once=once), kept
    )


def start(spark: SparkSession, pipeline: Pipeline, gold: Gold, *, once: bool) -> StreamingQuery:
    """Begin, or go on, with one gold table."""
    from pentalog.tables import job

    kept = Checkpoint(pipeline.checkpoint, gold_query(gold.name))
    sink = open_table(pipeline.table(f"gold/{gold.name}"))
    starting = _beginning(pipeline, kept, sink)
    records = bronze.stream(spark, pipeline, starting, holds=False)
    windows = aggregated(kept_rows(spark, pipeline, records, stops=True), pipeline, gold)
    floor_us = kept.floor_us()
    if floor_us is not None:
        windows = windows.filter(f"window_end > timestamp_micros({floor_us})")
    sink.prepare(schema.as_arrow(windows.schema))
    return (
        windows.writeStream.foreachBatch(_Batches(pipeline, kept, sink))
        .option("checkpointLocation", kept.location)
        .outputMode("append")
        .queryName(f"{pipeline.name}.gold.{gold.name}")
        .trigger(**job.pace(pipeline, once=once))
        .start()
    )


def kept_rows(
    spark: SparkSession, pipeline: Pipeline, records: DataFrame, *, stops: bool = False
) -> DataFrame:
    """The rows that silver has, or will have, of these records.

    With `stops` a record at which a rule stops the pipeline fails the query: left out of a window
    now, it would be missing there for good once the rule is another.
    """
    known = decoding.given_schema(spark, pipeline.decode)
    typed = silver.typed(records, pipeline, known, None)
    verdict = typed[silver.VERDICT]
    if stops and any(one.action == STOP for one in pipeline.rules):
        verdict = _stopping(pipeline, verdict)
    rows = typed.filter(verdict == KEEP).select(f"{silver.ROW}.*")
    return Transforms(pipeline.transforms)(rows)


def _stopping(pipeline: Pipeline, verdict: Column) -> Column:
    from pyspark.sql import functions as f

    said = f.format_string(
        f"{RuleBroken.__name__}: pipeline %s stops at %s/%s offset %s: %s",
        f.lit(pipeline.name), "topic", "partition", "offset", decoding.REASON,
    )  # fmt: skip
    return f.when(verdict == STOP, f.raise_error(said)).otherwise(verdict)


def aggregated(rows: DataFrame, pipeline: Pipeline, gold: Gold) -> DataFrame:
    """`rows` as windows: `window_start`, `window_end`, the grouping columns, the aggregates."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    where = f"pipeline.{pipeline.name}.gold.{gold.name}"
    moment = f.expr(gold.event_time or pipeline.event_time).cast("timestamp")
    length = (gold.window, gold.slide) if gold.slide else (gold.window,)
    try:
        timed = rows.withColumn("__time", moment).withWatermark("__time", gold.watermark)
        grouped = timed.groupBy(
            f.window("__time", *length).alias("__window"), *(f"`{name}`" for name in gold.by)
        )
        sums = grouped.agg(*(f.expr(text).alias(name) for name, text in gold.aggregates.items()))
        return sums.select(
            f.col("__window.start").alias("window_start"),
            f.col("__window.end").alias("window_end"),
            *(f"`{name}`" for name in (*gold.by, *gold.aggregates)),
        )
    except AnalysisException as error:
        raise PipelineError(f"{where}: {str(error).strip().splitlines()[0]}") from None


def _beginning(pipeline: Pipeline, kept: Checkpoint, sink: Sink) -> dict[Partition, int]:
    known = kept.starting()
    if known is not None and (kept.begun() or kept.floor_us() is not None):
        return known
    if sink.exists() and sink.state().covered:
        raise SinkRefused(
            f"{sink.at.uri}: the table has windows, but the state they came from is gone with the"
            f" checkpoint {kept.folder / kept.query}; run: pentalog table rebuild FILE"
            f" {pipeline.name}"
        )
    found = bronze.beginning(pipeline)
    kept.set_starting(found)
    return found


def rebuild(spark: SparkSession, pipeline: Pipeline, gold: Gold, records: DataFrame) -> int:
    """Make the table anew from bronze: the finished windows now, the open ones by the stream.

    The stream begins again where the first row of an open window is, and leaves out windows that
    were finished here.
    """
    from pyspark.sql import functions as f

    kept = Checkpoint(pipeline.checkpoint, gold_query(gold.name))
    sink = open_table(pipeline.table(f"gold/{gold.name}"))
    covered = open_table(pipeline.table("bronze")).state().covered
    rows = kept_rows(spark, pipeline, records)
    moment = f.expr(gold.event_time or pipeline.event_time).cast("timestamp")
    found = rows.agg(f.max(f.unix_micros(moment))).first()
    newest_us = int(found[0]) if found is not None and found[0] is not None else 0
    floor_us = newest_us - 1000 * duration_ms(gold.watermark)
    sink.drop()
    kept.remove()
    windows = aggregated(rows, pipeline, gold).filter(f"window_end <= timestamp_micros({floor_us})")
    sink.prepare(schema.as_arrow(windows.schema))
    written = layers.write_plain(windows, sink.at.layer, sink.layout(pipeline.file_bytes))
    open_us = floor_us - 1000 * duration_ms(gold.window)
    begins = {
        Partition(one["_topic"], one["_partition"]): int(one["first"])
        for one in rows.filter(f.unix_micros(moment) >= open_us)
        .groupBy("_topic", "_partition")
        .agg(f.min("_offset").alias("first"))
        .collect()
    }
    starting = {at: begins.get(at, one.end) for at, one in covered.items()}
    kept.set_starting(starting)
    kept.set_floor(floor_us)
    ranges = {at: Range(one.start, starting[at]) for at, one in covered.items()}
    files = written.files.get(sink.at.layer, [])
    commit.commit(
        sink, "rebuild", ranges, files, lambda _: Step("rebuild", 0, ranges, ranges, note="rebuild")
    )
    return sum(one.rows for one in files)


class _Batches:
    """Finished windows into the table, each batch once."""

    def __init__(self, pipeline: Pipeline, kept: Checkpoint, sink: Sink) -> None:
        self._pipeline = pipeline
        self._kept = kept
        self._sink = sink

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query, ranges = self._kept.query_id(), self._kept.ranges(batch)

        def step(state: State) -> Step | None:
            if state.batches.get(query, -1) >= batch:
                return None
            return Step(query, batch, ranges, _grown(state, ranges))

        if step(self._sink.state()) is None:
            # The windows are in the table, but Spark's state takes a batch only if it is run.
            rows.write.format("noop").mode("overwrite").save()
            return
        layout = self._sink.layout(self._pipeline.file_bytes)
        written = layers.write_plain(rows, self._sink.at.layer, layout)
        files = written.files.get(self._sink.at.layer, [])
        steps.reached(f"before-commit:{self._sink.at.layer}")
        commit.commit(self._sink, query, ranges, files, step)
        steps.reached(f"after-commit:{self._sink.at.layer}")


def _grown(state: State, ranges: Mapping[Partition, Range]) -> dict[Partition, Range]:
    return {
        at: Range(state.covered[at].start if at in state.covered else one.start, one.end)
        for at, one in ranges.items()
    }
