"""What a pipeline's tables claim to hold, and what of it the log can still be asked about."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pentalog.model.types import Offset, Partition
from pentalog.tables import bronze
from pentalog.tables.options import read_options
from pentalog.tables.origins import chosen_partitions, open_origin
from pentalog.tables.pipeline import LAYERS, Pipeline
from pentalog.tables.positions import to_json
from pentalog.tables.sinks import Missing, Range, State, open_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.5
_NOTHING: Final = Range(0, 0)


@dataclass(frozen=True)
class Snapshot:
    """The tables of one moment: rows and ledger of each belong together."""

    states: Mapping[str, State]
    rows: Mapping[str, DataFrame]

    def covered(self, layer: str, at: Partition) -> Range:
        return self.states[layer].covered.get(at, _NOTHING)

    def partitions(self) -> list[Partition]:
        return sorted({at for state in self.states.values() for at in state.covered})


@dataclass(frozen=True, slots=True)
class Held:
    """What the log has of a partition now."""

    start: Offset
    end: Offset


def snapshot(spark: SparkSession, pipeline: Pipeline) -> Snapshot:
    """The tables as they are; of a pipeline that runs, between two batches if possible."""
    for attempt in range(_ATTEMPTS):
        taken = _taken(spark, pipeline)
        if taken is not None:
            whole = {tuple(sorted(state.covered.items())) for state in taken.states.values()}
            if len(whole) == 1 or attempt == _ATTEMPTS - 1:
                return taken
        time.sleep(_PAUSE_S)
    raise Missing(f"{pipeline.into} changes too often to be looked at; pause the pipeline first")


def _taken(spark: SparkSession, pipeline: Pipeline) -> Snapshot | None:
    sinks = {layer: open_table(pipeline.table(layer)) for layer in LAYERS}
    for sink in sinks.values():
        if not sink.exists():
            raise Missing(
                f"{sink.at.uri} is no table yet; run the pipeline {pipeline.name} first, with "
                "`pentalog table run FILE --once`"
            )
    before = {layer: sink.state() for layer, sink in sinks.items()}
    rows = {layer: sink.read(spark) for layer, sink in sinks.items()}
    after = {layer: sink.state() for layer, sink in sinks.items()}
    return Snapshot(before, rows) if before == after else None


def held(pipeline: Pipeline, partitions: list[Partition]) -> dict[Partition, Held]:
    """What the log has now of every partition of the topics; those of `partitions` among them."""
    options = read_options(_where(pipeline, partitions))
    origin = open_origin(options)
    try:
        there = chosen_partitions(origin, options)
        starts, ends = origin.starts(there), origin.ends(there)
        return {at: Held(starts[at], ends[at]) for at in there}
    finally:
        origin.close()


def log_rows(
    spark: SparkSession,
    pipeline: Pipeline,
    ranges: Mapping[Partition, Range],
    log: Mapping[Partition, Held],
    *,
    view: str = "records",
) -> DataFrame:
    """The log's own rows of exactly these ranges, or what its offsets are."""
    whole = {at: ranges.get(at, Range(one.start, one.start)) for at, one in log.items()}
    return (
        spark.read.format("pentalog")
        .options(**_where(pipeline, list(log)))
        .option("starting", json.dumps(to_json({at: one.start for at, one in whole.items()})))
        .option("ending", json.dumps(to_json({at: one.end for at, one in whole.items()})))
        .option("view", view)
        .load()
    )


def _where(pipeline: Pipeline, partitions: list[Partition]) -> dict[str, str]:
    place = {key: value for key, value in bronze.where(pipeline).items() if key != "pattern"}
    return {**place, "topics": ",".join(sorted({at.topic for at in partitions}))}
