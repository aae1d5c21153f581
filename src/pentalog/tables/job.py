"""A pipeline as Spark runs it: topics into bronze, silver and dead letters, exactly once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.model.types import Partition
from pentalog.tables import (
    bronze,
    commit,
    dead_letters,
    decoding,
    group,
    layers,
    replays,
    schema,
    shortcut,
    silver,
    steps,
)
from pentalog.tables.checkpoint import INGEST, Checkpoint
from pentalog.tables.files import File, Layout
from pentalog.tables.maintenance import Upkeep
from pentalog.tables.pipeline import LAYERS, Pipeline
from pentalog.tables.quality import KEEP, RuleBroken
from pentalog.tables.sinks import Range, Sink, open_table, probe
from pentalog.tables.sinks.reading import read_files
from pentalog.tables.transforms import Transforms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType, StructType

_log = logging.getLogger("pentalog.tables")
_CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Checkpoints are on local disks, where Spark's usual way starts a program to look at a file."""
Ranges = Mapping[Partition, Range]


class Query(NamedTuple):
    """One streaming query of a pipeline: what it is called, how it is started, what it keeps."""

    name: str
    begin: Callable[[], StreamingQuery]
    kept: Checkpoint


def queries(spark: SparkSession, pipeline: Pipeline, *, once: bool) -> list[Query]:
    """Everything that runs for a pipeline: the tables of its records, and one per gold table."""
    from pentalog.tables import gold

    session = configured(spark)
    kept = Checkpoint(pipeline.checkpoint, INGEST)
    ingest = Query(pipeline.name, lambda: start(session, pipeline, kept, once=once), kept)
    return [ingest, *(gold.query(session, pipeline, one, once=once) for one in pipeline.gold)]


def configured(spark: SparkSession) -> SparkSession:
    """A session of its own for pipelines, where a value that cannot be computed is null.

    The default would be an error, and one bad record never stops a stream unless a rule says so.
    """
    from pyspark.sql import SparkSession

    # A new session would know neither the settings nor the source of this one.
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.ansi.enabled", "false")
    java: Any = session._jvm
    if java.org.apache.spark.util.Utils.classIsLoadable(_CHECKPOINT_FILES):
        session.conf.set("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINT_FILES)
    return session


def start(
    spark: SparkSession, pipeline: Pipeline, kept: Checkpoint | None = None, *, once: bool
) -> StreamingQuery:
    """Begin, or go on, with a pipeline; `once` ends at what is the end now."""
    probe(pipeline.table("bronze"))
    replays.go_on(pipeline)
    checkpoint = kept or Checkpoint(pipeline.checkpoint, INGEST)
    records = bronze.stream(spark, pipeline, beginning(pipeline, checkpoint), holds=True)
    batches = Ingestion(pipeline, checkpoint, records.schema)
    batches.prepare(spark)
    return (
        records.writeStream.foreachBatch(batches)
        .option("checkpointLocation", checkpoint.location)
        .queryName(pipeline.name)
        .trigger(**pace(pipeline, once=once))
        .start()
    )


def pace(pipeline: Pipeline, *, once: bool) -> dict[str, Any]:
    return {"availableNow": True} if once else {"processingTime": pipeline.trigger}


def beginning(pipeline: Pipeline, checkpoint: Checkpoint) -> dict[Partition, int]:
    """Where the first batch of this checkpoint begins: decided once, then kept beside it."""
    known = checkpoint.starting()
    if known is not None and checkpoint.begun():
        return known
    states = [open_table(pipeline.table(layer)).state() for layer in LAYERS]
    found = {**bronze.beginning(pipeline), **bronze.where_tables_end(states)}
    checkpoint.set_starting(found)
    return found


class Ingestion:
    """The batches of one pipeline, from the source's rows to committed tables."""

    def __init__(self, pipeline: Pipeline, checkpoint: Checkpoint, source: StructType) -> None:
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._source = source
        self._sinks: dict[str, Sink] = {
            layer: open_table(pipeline.table(layer)) for layer in LAYERS
        }
        self._transforms = Transforms(pipeline.transforms)
        self._known: StructType | None = None
        self._fresh: pa.Schema | None = None
        self._upkeep = Upkeep(pipeline)

    def prepare(self, spark: SparkSession) -> None:
        """Make the tables, or let them grow, before the first record is read."""
        given = decoding.given_schema(spark, self._pipeline.decode)
        table = self._sinks["silver"].schema()
        if self._pipeline.decode.inferred and table is not None:
            found = silver.decoded_part(schema.as_spark(table), self._pipeline)
            given = schema.merged(given, found)
        self._sinks["bronze"].prepare(schema.as_arrow(self._source))
        letters = dead_letters.table_schema(self._source)
        self._sinks["dead_letters"].prepare(schema.as_arrow(letters))
        self._grow(spark, given)

    def renew(self, spark: SparkSession, records: DataFrame) -> dict[str, pa.Schema]:
        """Forget what silver looks like; the schemas that the pipeline file asks for now."""
        self._known = decoding.given_schema(spark, self._pipeline.decode)
        if self._pipeline.decode.inferred:
            self._known = schema.merged(self._known, decoding.inferred(records))
        typed = silver.typed(records.limit(0), self._pipeline, self._known, None)
        self._fresh = schema.as_arrow(self._silver(typed).schema)
        letters = dead_letters.table_schema(self._source)
        return {"silver": self._fresh, "dead_letters": schema.as_arrow(letters)}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query, ranges = self._checkpoint.query_id(), self._checkpoint.ranges(batch)
        self.take(rows, query, batch, ranges)
        if self._pipeline.dead_letter_topic:
            letters = self._sinks["dead_letters"]
            dead_letters.publish(rows.sparkSession, self._pipeline, letters, query, batch, ranges)
        group.show(self._pipeline, ranges)
        self._upkeep.after_batch(rows.sparkSession)

    def take(self, rows: DataFrame, query: str, batch: int, ranges: Ranges) -> None:
        """Write what the tables lack of a batch, then commit it to one after the other.

        A crash between two commits leaves tables of different length; the batch then runs
        again and only those that lack it take it.
        """
        lacking = {
            layer: commit.lacking(sink.state(), query, batch, ranges, table=sink.at.uri)
            for layer, sink in self._sinks.items()
        }
        wanted = {layer: missing for layer, missing in lacking.items() if missing}
        if not wanted:
            return
        begins = {layer: layers.since(ranges, missing) for layer, missing in wanted.items()}
        written = self._write_shortly(rows.sparkSession, ranges, begins)
        if written is None:
            written = self.write(rows, begins)
        steps.reached("after-files")
        for layer, missing in wanted.items():
            files = written.files.get(layer, [])
            dropped = written.dropped if layer == "silver" else {}
            commit.settle(self._sinks[layer], query, batch, ranges, missing, files, dropped)
        self._checkpoint.tell(batch, self._counts(written))

    def _counts(self, written: layers.Written) -> dict[str, Any]:
        rows = {layer: sum(one.rows for one in files) for layer, files in written.files.items()}
        return {
            "rows": rows.get("bronze", 0),
            "dead_letters": rows.get("dead_letters", 0),
            "dropped": written.dropped.total(),
            "versions": {layer: sink.version() for layer, sink in self._sinks.items()},
        }

    def _write_shortly(
        self,
        spark: SparkSession,
        ranges: Ranges,
        wanted: Mapping[str, Mapping[Partition, int] | None],
    ) -> layers.Written | None:
        """The same as `write` for a whole batch of an ordinary pipeline, at less cost."""
        table = self._silver_schema()
        assert self._known is not None
        whole = wanted.keys() == set(LAYERS) and not any(one is not None for one in wanted.values())
        if not whole or not shortcut.serves(self._pipeline, self._source, self._known, table):
            return None
        way = shortcut.Shortcut(
            self._source,
            shortcut.options_of(self._pipeline),
            self._pipeline.decode.format,
            schema.as_arrow(self._known),
            tuple(one.name for one in self._known if not one.nullable),
            *(self._layout(layer) for layer in LAYERS),
        )
        written = layers.Written(shortcut.write(spark, ranges, way))
        rest = written.files.pop(shortcut.REST, [])
        if rest:
            written.add(self._write_rest(spark, rest, way.rest, schema.as_spark(table)))
        return written

    def _write_rest(
        self, spark: SparkSession, rest: Sequence[File], layout: Layout, table: StructType
    ) -> layers.Written:
        """Silver and dead letters of the records that the short way left for Spark."""
        assert self._known is not None
        # Files of a table may lie below it.
        at = dataclasses.replace(
            self._sinks["bronze"].at, uri=layout.uri, storage_options=layout.storage_options
        )
        places = [(one.path, one.partition) for one in rest]
        parts = {name: layers.Part(self._layout(name)) for name in ("silver", "dead_letters")}
        try:
            rows = read_files(spark, at, layout.schema, places)
            typed = silver.typed(rows, self._pipeline, self._known, table)
            return layers.write(typed, parts, None)
        finally:
            self._sinks["bronze"].discard(rest)

    def write(
        self, rows: DataFrame, wanted: Mapping[str, Mapping[Partition, int] | None]
    ) -> layers.Written:
        """The files of all tables; in one pass, unless silver is more than record by record."""
        if self._pipeline.decode.inferred and self._fresh is None:
            self._grow(rows.sparkSession, decoding.inferred(rows))
        table = self._silver_schema()
        assert self._known is not None
        typed = silver.typed(rows, self._pipeline, self._known, schema.as_spark(table))
        apart = bool(self._pipeline.key or self._transforms) and "silver" in wanted
        parts = {
            layer: layers.Part(self._layout(layer), since)
            for layer, since in wanted.items()
            if not (apart and layer == "silver")
        }
        if apart:
            typed = typed.persist()
        try:
            written = layers.write(typed, parts, wanted.get("silver", {}))
            self._check(written)
            if apart:
                kept = layers.filtered(typed, wanted["silver"])
                silver_rows = self._silver(kept)
                written.add(layers.write_plain(silver_rows, "silver", self._layout("silver")))
        finally:
            if apart:
                typed.unpersist()
        return written

    def _silver_schema(self) -> pa.Schema:
        found = self._fresh if self._fresh is not None else self._sinks["silver"].schema()
        assert found is not None, "prepared first"
        return found

    def _layout(self, layer: str) -> Layout:
        renewed = self._fresh is not None
        layout = self._sinks[layer].layout(self._pipeline.file_bytes, whole=renewed)
        if layer == "silver":
            return dataclasses.replace(layout, schema=self._silver_schema())
        return layout

    def _check(self, written: layers.Written) -> None:
        if written.stopped:
            self.discard(written)
            raise RuleBroken(f"pipeline {self._pipeline.name} stops at {written.stopped}")

    def discard(self, written: layers.Written) -> None:
        for layer, files in written.files.items():
            self._sinks[layer].discard(files)

    def _silver(self, typed: DataFrame) -> DataFrame:
        """The kept rows, transformed; of a key only the latest."""
        rows = typed.filter(typed[silver.VERDICT] == KEEP).select(f"{silver.ROW}.*")
        rows = self._transforms(rows)
        return silver.latest(rows, self._pipeline.key) if self._pipeline.key else rows

    def _grow(self, spark: SparkSession, seen: StructType) -> None:
        """Take new fields into what is known, and their columns into the table."""
        known = seen if self._known is None else schema.merged(self._known, seen)
        if known == self._known:
            return
        self._known = known
        sink = self._sinks["silver"]
        table = sink.schema()
        plain = shortcut.silver_schema(self._pipeline, self._source, known)
        if table is None and plain is not None:
            sink.prepare(plain)
            return
        empty = spark.createDataFrame([], self._source)
        typed = silver.typed(
            empty, self._pipeline, known, schema.as_spark(table) if table is not None else None
        )
        if table is not None:
            wanted = silver.mapped_schema(empty, self._pipeline, known)
            self._say_conflicts(schema.conflicts(schema.as_spark(table), wanted))
        grown = self._silver(typed).schema
        if table is not None:
            grown = schema.merged(schema.as_spark(table), grown)
        sink.prepare(schema.as_arrow(grown))

    def _say_conflicts(self, clashes: Mapping[str, tuple[DataType, DataType]]) -> None:
        for name, (there, here) in clashes.items():
            _log.warning(
                "pipeline %s: column %s is %s in the table and %s in the pipeline file; values"
                " that do not fit become dead letters",
                self._pipeline.name, name, there.simpleString(), here.simpleString(),
            )  # fmt: skip
