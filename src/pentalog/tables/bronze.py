"""Records as they are: the stream that everything else is made of, and where it begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pentalog.model.types import Partition
from pentalog.tables.options import read_options
from pentalog.tables.origins import chosen_partitions, open_origin
from pentalog.tables.pipeline import Pipeline, duration_ms
from pentalog.tables.positions import Positions, resolve, to_json
from pentalog.tables.sinks import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stream(
    spark: SparkSession, pipeline: Pipeline, starting: Mapping[Partition, int], *, holds: bool
) -> DataFrame:
    """The pipeline's topics as a stream of batches of bounded size.

    One that `holds` asks the broker to keep what it has not read, if the pipeline wants that.
    """
    return (
        spark.readStream.format("pentalog")
        .options(**(leased(pipeline) if holds else where(pipeline)), **_pace(pipeline))
        .option("starting", json.dumps(to_json(starting)))
        .load()
    )


def leased(pipeline: Pipeline) -> dict[str, Any]:
    """The same, with the group that asks for records to be kept, if the pipeline does."""
    if not pipeline.lease:
        return where(pipeline)
    lease_ms = duration_ms(pipeline.lease)
    return {**where(pipeline), "group": pipeline.group, "lease": f"{lease_ms}ms"}


def _pace(pipeline: Pipeline) -> dict[str, Any]:
    """How much of the log one batch takes."""
    if pipeline.batch_bytes_max:
        return {"maxBytesPerTrigger": str(pipeline.batch_bytes_max)}
    return {"maxRowsPerTrigger": str(pipeline.batch_rows_max)}


def span(
    spark: SparkSession,
    pipeline: Pipeline,
    starting: Mapping[Partition, int],
    ending: Mapping[Partition, int],
) -> DataFrame:
    """The records of exactly these offsets."""
    return (
        spark.read.format("pentalog")
        .options(**{**where(pipeline), "topics": ",".join(sorted({at.topic for at in starting}))})
        .option("starting", json.dumps(to_json(starting)))
        .option("ending", json.dumps(to_json(ending)))
        .load()
    )


def where(pipeline: Pipeline) -> dict[str, Any]:
    """The options of the source that say what to read."""
    place = {"servers": pipeline.servers} if pipeline.servers else {"data": pipeline.data}
    options = {**pipeline.source_options, **place}
    if pipeline.topics:
        return {**options, "topics": ",".join(pipeline.topics)}
    return {**options, "pattern": pipeline.pattern}


def beginning(pipeline: Pipeline) -> Positions:
    """Where a table that holds nothing yet begins in every partition there is now."""
    options = read_options({**where(pipeline), "starting": pipeline.starting})
    origin = open_origin(options)
    try:
        return resolve(origin, chosen_partitions(origin, options), options, ending=False)
    finally:
        origin.close()


def ends(pipeline: Pipeline) -> Positions:
    """Where the log ends now, for everything that is safe and decided."""
    options = read_options(where(pipeline))
    origin = open_origin(options)
    try:
        return origin.ends(chosen_partitions(origin, options))
    finally:
        origin.close()


def where_tables_end(states: Iterable[State]) -> dict[Partition, int]:
    """Where a new query must begin so that no table lacks anything.

    After a crash one table may be ahead of another, or know a partition the other does not:
    the query begins where the one that is behind ends, and the other skips what it has.
    """
    known = list(states)
    found: dict[Partition, int] = {}
    for at in {at for state in known for at in state.covered}:
        first = min(state.covered[at].start for state in known if at in state.covered)
        ends = [state.covered[at].end if at in state.covered else first for state in known]
        found[at] = min(ends)
    return found
