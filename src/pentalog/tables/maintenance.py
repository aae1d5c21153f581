"""Upkeep of a pipeline's tables: few large files, nothing that is too old, nothing left behind."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import commit, replays
from pentalog.tables.pipeline import LAYERS, Pipeline, duration_ms
from pentalog.tables.sinks import Range, Sink, State, Step, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RETAIN_EVERY_S: Final = 3600.0
VACUUM_MS: Final = 7 * 86_400_000


class Upkeep:
    """What a running pipeline does between batches."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._batches = 0
        self._retained_s = float("-inf")

    def after_batch(self, spark: SparkSession) -> None:
        self._batches += 1
        every = self._pipeline.compact_every
        if every and self._batches % every == 0:
            compact(self._pipeline)
        now_s = time.monotonic()
        if self._pipeline.retention and now_s - self._retained_s >= _RETAIN_EVERY_S:
            self._retained_s = now_s
            retain(spark, self._pipeline, now_ms=time.time_ns() // 1_000_000)


def tables(pipeline: Pipeline) -> list[Sink]:
    """The tables of a pipeline that are there."""
    found = [open_table(pipeline.table(layer)) for layer in pipeline.layers]
    return [sink for sink in found if sink.exists()]


def compact(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Write small files together, up to the size the pipeline aims at."""
    return {
        sink.at.layer: dict(commit.insisting(sink, partial(sink.compact, pipeline.file_bytes)))
        for sink in tables(pipeline)
    }


def vacuum(
    pipeline: Pipeline, *, retention_ms: int = VACUUM_MS, dry_run: bool = False
) -> dict[str, list[str]]:
    """Remove files that no version of the last `retention_ms` needs, those of crashes included."""
    if not dry_run:
        replays.refuse_if_unfinished(pipeline)
    return {
        sink.at.layer: commit.insisting(sink, partial(sink.vacuum, retention_ms, dry_run=dry_run))
        for sink in tables(pipeline)
    }


def retain(spark: SparkSession, pipeline: Pipeline, *, now_ms: int) -> dict[Partition, int]:
    """Remove what is older than the pipeline's retention; where its tables begin from now on.

    The offsets decide: everything before the first record that is young enough goes, in all
    tables, so that what they cover stays one piece that can be verified.
    """
    from pyspark.sql import functions as f

    bronze = open_table(pipeline.table("bronze"))
    if not bronze.exists():
        return {}
    before_ms = now_ms - duration_ms(pipeline.retention)
    young = {
        Partition(one["topic"], one["partition"]): int(one["first"])
        for one in bronze.read(spark)
        .filter(f.unix_millis("timestamp") >= before_ms)
        .groupBy("topic", "partition")
        .agg(f.min("offset").alias("first"))
        .collect()
    }
    starts = {
        at: max(one.start, young.get(at, one.end)) for at, one in bronze.state().covered.items()
    }
    for layer in LAYERS:
        sink = open_table(pipeline.table(layer))
        if sink.exists():
            _cut(sink, starts)
    return starts


def _cut(sink: Sink, starts: dict[Partition, int]) -> None:
    def once() -> None:
        step = _cutting(sink.state(), starts)
        if step is not None:
            sink.cut(step)

    commit.insisting(sink, once)


def _cutting(state: State, starts: dict[Partition, int]) -> Step | None:
    covered = {
        at: Range(min(starts[at], one.end), one.end)
        for at, one in state.covered.items()
        if at in starts and starts[at] > one.start
    }
    return Step("retention", -1, {}, covered, note="retention") if covered else None


def drop(pipeline: Pipeline) -> list[str]:
    """Remove the tables and everything kept about them; the topics stay."""
    import shutil

    dropped = []
    for sink in tables(pipeline):
        sink.drop()
        dropped.append(sink.at.layer)
    shutil.rmtree(pipeline.checkpoint, ignore_errors=True)
    return dropped
