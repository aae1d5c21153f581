"""The short way of a batch: the task that reads records writes them, and Spark sees the rest.

A record of an ordinary pipeline need not leave the process that decoded it.  Bronze is written
there, silver and dead letters where it is certain what the record is; only records of which it is
not go on to Spark, which decides about them as about any other.  They wait in files of their own
beside bronze, so that a batch that has none of them costs Spark no plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pentalog.model.types import Partition
from pentalog.tables import bronze, schema
from pentalog.tables.dead_letters import REASON
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.options import SourceOptions, read_options
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.positions import to_json
from pentalog.tables.silver import COORDINATES, clashing
from pentalog.tables.sinks.state import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from pentalog.tables.splits import Split

REST: Final = "rest"
"""The files of records that Spark has to look at, among those of the tables."""
_ROWS: Final = 50_000


@dataclasses.dataclass(frozen=True, slots=True)
class Shortcut:
    """What the tasks of one batch need to know."""

    source: StructType
    options: SourceOptions
    format: str
    fields: pa.Schema
    """What is decoded of a value, in silver's types."""
    needed: tuple[str, ...]
    bronze: Layout
    silver: Layout
    dead_letters: Layout

    @property
    def rest(self) -> Layout:
        """Records as they were read, undivided, and of no worth after a crash."""
        return dataclasses.replace(
            self.bronze, schema=schema.as_arrow(self.source), partition_by=(), fsync=False
        )


def serves(pipeline: Pipeline, source: StructType, known: StructType, table: pa.Schema) -> bool:
    """Whether silver's rows can be made without Spark: plain columns, and nothing computed."""
    wanted = None if pipeline.rules or pipeline.key else silver_schema(pipeline, source, known)
    return wanted is not None and all(_same(wanted.field(one.name), table) for one in known)


def silver_schema(pipeline: Pipeline, source: StructType, known: StructType) -> pa.Schema | None:
    """What silver looks like if its columns are those of the records; None if they are not."""
    import pyarrow as pa

    decode = pipeline.decode
    if decode.format not in ("raw", "json") or decode.inferred or decode.options:
        return None
    if (
        pipeline.columns
        or pipeline.transforms
        or {"day", "hour"}.intersection(pipeline.partition_by)
    ):
        return None
    there = {one.name: one.type for one in schema.as_arrow(source)}
    content = {name: there.get(name) for name in ("key", "value")}
    if not there.keys() >= set(COORDINATES.values()) or set(content.values()) != {pa.binary()}:
        return None
    fields = schema.as_arrow(known)
    own = [pa.field(ours, there[theirs]) for ours, theirs in COORDINATES.items()]
    alike = len({one.name.lower() for one in known}) < len(known)
    if alike or clashing(known) or not all(_plain(one, decode.format) for one in fields):
        return None  # whoever asks Spark is told what is wrong with it
    return pa.schema([*(pa.field(one.name, one.type) for one in fields), *own])


def _plain(field: pa.Field, format: str) -> bool:
    from pentalog.tables import documents

    return format == "raw" or field.type in documents.KINDS


def _same(field: pa.Field, table: pa.Schema) -> bool:
    place = table.get_field_index(field.name)
    return place >= 0 and bool(table.field(place).type == field.type)


def write(
    spark: SparkSession, ranges: Mapping[Partition, Range], way: Shortcut
) -> dict[str, list[File]]:
    """The files of every table, and under `REST` those that are left for Spark to read."""
    found: dict[str, list[File]] = {}
    splits = _splits(way, ranges)
    if splits:
        # Without a plan: there is nothing in it that could be planned.  Every task makes a file of
        # each table, so there are no more of them than can run at a time.
        context = spark.sparkContext
        tasks = context.parallelize(splits, min(len(splits), context.defaultParallelism))
        for layer, file in tasks.mapPartitions(_task(way)).collect():
            found.setdefault(layer, []).append(file)
    return found


def options_of(pipeline: Pipeline) -> SourceOptions:
    """How to read; batches may be large, as Spark does not see them."""
    options = read_options(bronze.where(pipeline))
    return dataclasses.replace(options, rows_per_batch=_ROWS)


def _splits(way: Shortcut, ranges: Mapping[Partition, Range]) -> list[Split]:
    """The same ranges of offsets, with the same checks, as the stream would have read."""
    from pentalog.tables.stream import TopicStream

    stream = TopicStream(way.source, way.options)
    try:
        first = to_json({at: one.start for at, one in ranges.items()})
        last = to_json({at: one.end for at, one in ranges.items()})
        return list(stream.partitions(first, last))  # type: ignore[arg-type]
    finally:
        stream.stop()


def _task(way: Shortcut) -> Callable[[Iterable[Split]], Iterator[tuple[str, File]]]:
    def task(splits: Iterable[Split]) -> Iterator[tuple[str, File]]:
        from pentalog.tables.source import make_maker
        from pentalog.tables.splits import read_split

        layouts = {
            "bronze": way.bronze,
            "silver": way.silver,
            "dead_letters": way.dead_letters,
            REST: way.rest,
        }
        sets = {layer: FileSet(layout) for layer, layout in layouts.items()}
        maker = make_maker(way.source, way.options)
        try:
            for split in splits:
                for read in read_split(split, maker, way.options):
                    _divide(read, way, sets)
        except BaseException:
            for files in sets.values():
                files.discard()
            raise
        return iter([(layer, file) for layer, files in sets.items() for file in files.close()])

    return task


def _divide(read: pa.RecordBatch, way: Shortcut, sets: Mapping[str, FileSet]) -> None:
    """Give every record to bronze, and to the one other set that it belongs to."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from pentalog.tables import documents

    sets["bronze"].add(read)
    own = {ours: read.column(theirs) for ours, theirs in COORDINATES.items()}
    if way.format == "raw":
        columns = {"key": read.column("key"), "value": read.column("value"), **own}
        sets["silver"].add(pa.table(columns))
        return
    parsed = documents.parse(read.column("value"), way.fields, way.needed)
    every = parsed.certain.false_count == 0
    kept = {
        name: column if every else column.filter(parsed.certain) for name, column in own.items()
    }
    found = {one.name: parsed.columns.column(one.name) for one in way.fields}
    sets["silver"].add(pa.table({**found, **kept}))
    if every:
        return
    left = read.filter(pc.invert(parsed.certain))
    reasons = documents.reasons(left.column("value"))
    dead = reasons.is_valid()
    letters = pa.Table.from_batches([left.filter(dead)])
    sets["dead_letters"].add(letters.append_column(REASON, reasons.drop_null()))
    sets[REST].add(left.filter(pc.invert(dead)))
