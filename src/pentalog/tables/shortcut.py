"""The short way of a batch: the task that reads records writes them, and Spark sees the rest.

A record of an ordinary pipeline need not leave the process that decoded it.  Bronze is written
there, and silver where the row is certain; only records that are not go on to Spark, which decides
about them as about any other.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pentalog.model.types import Partition
from pentalog.tables import bronze, schema
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.options import SourceOptions, read_options
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.positions import to_json
from pentalog.tables.silver import COORDINATES
from pentalog.tables.sinks.state import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pentalog.tables.splits import Split

WRITTEN: Final = "_written"
"""The column in which a task tells of its files, beside the rows that it did not write."""
_SPLIT: Final = "split binary"


@dataclass(frozen=True, slots=True)
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


def serves(pipeline: Pipeline, source: StructType, known: StructType, table: pa.Schema) -> bool:
    """Whether silver's rows can be made without Spark: plain columns, and nothing computed."""
    import pyarrow as pa

    decode = pipeline.decode
    if decode.format not in ("raw", "json") or decode.inferred or decode.options:
        return False
    if pipeline.columns or pipeline.rules or pipeline.key or pipeline.transforms:
        return False
    if {"day", "hour"}.intersection(pipeline.partition_by):
        return False
    there = {one.name: one.type for one in schema.as_arrow(source)}
    content = {name: there.get(name) for name in ("key", "value")}
    if not there.keys() >= set(COORDINATES.values()) or set(content.values()) != {pa.binary()}:
        return False
    fields = schema.as_arrow(known)
    return all(_plain(one, decode.format) and _same(one, table) for one in fields)


def _plain(field: pa.Field, format: str) -> bool:
    from pentalog.tables import documents

    return format == "raw" or field.type in documents.KINDS


def _same(field: pa.Field, table: pa.Schema) -> bool:
    place = table.get_field_index(field.name)
    return place >= 0 and bool(table.field(place).type == field.type)


def rest(spark: SparkSession, ranges: Mapping[Partition, Range], way: Shortcut) -> DataFrame:
    """The records of a batch that are left for Spark, and rows that tell of the files written."""
    splits = [(pickle.dumps(one),) for one in _splits(way, ranges)]
    frame = spark.createDataFrame(splits, _SPLIT)
    return frame.mapInArrow(_task(way), _with_written(way.source))


def options_of(pipeline: Pipeline) -> SourceOptions:
    return read_options(bronze.where(pipeline))


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


def _with_written(source: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*source, StructField(WRITTEN, StringType())])


def _task(
    way: Shortcut,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from pentalog.tables.source import make_maker
        from pentalog.tables.splits import read_split

        sets = {"bronze": FileSet(way.bronze), "silver": FileSet(way.silver)}
        maker = make_maker(way.source, way.options)
        try:
            for batch in batches:
                for pickled in batch.column(0).to_pylist():
                    for read in read_split(pickle.loads(pickled), maker, way.options):
                        sets["bronze"].add(read)
                        left = _left(read, way, sets["silver"])
                        if left.num_rows:
                            nothing = pa.nulls(left.num_rows, pa.string())
                            yield left.append_column(WRITTEN, nothing)
        except BaseException:
            for files in sets.values():
                files.discard()
            raise
        told = [_told(layer, file) for layer, files in sets.items() for file in files.close()]
        if told:
            arrow = schema.as_arrow(_with_written(way.source))
            empty = [pa.nulls(len(told), one.type) for one in arrow][:-1]
            yield pa.RecordBatch.from_arrays([*empty, pa.array(told, pa.string())], schema=arrow)

    return task


def _left(read: pa.RecordBatch, way: Shortcut, silver: FileSet) -> pa.RecordBatch:
    """Write the rows of silver that are certain; give back the records of the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from pentalog.tables import documents

    own = {ours: read.column(theirs) for ours, theirs in COORDINATES.items()}
    if way.format == "raw":
        columns = {"key": read.column("key"), "value": read.column("value"), **own}
        silver.add(pa.table(columns))
        return read.slice(0, 0)
    parsed = documents.parse(read.column("value"), way.fields, way.needed)
    every = parsed.certain.false_count == 0
    kept = {
        name: column if every else column.filter(parsed.certain) for name, column in own.items()
    }
    found = {one.name: parsed.columns.column(one.name) for one in way.fields}
    silver.add(pa.table({**found, **kept}))
    return read.slice(0, 0) if every else read.filter(pc.invert(parsed.certain))


def _told(layer: str, file: File) -> str:
    return json.dumps({"layer": layer, **file._asdict(), "partition": dict(file.partition)})


def told(text: str) -> tuple[str, File]:
    """The layer and the file that a task tells of."""
    found = json.loads(text)
    return found.pop("layer"), File(**found)
