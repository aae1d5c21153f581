"""Making tables anew or whole: earlier records, other columns, dead letters that are none now."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pentalog.model.types import Partition
from pentalog.tables import bronze, checkpoint, commit, gold, layers, replays, steps
from pentalog.tables.checkpoint import INGEST, Checkpoint
from pentalog.tables.job import Ingestion, configured
from pentalog.tables.options import read_options
from pentalog.tables.origins import open_origin
from pentalog.tables.pipeline import LAYERS, Pipeline
from pentalog.tables.positions import resolve
from pentalog.tables.sinks import Missing, Range, Sink, SinkRefused, State, Step, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def backfill(
    spark: SparkSession,
    pipeline: Pipeline,
    starting: str,
    report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[Partition, Range]:
    """Take in what lies before the tables' beginning, from `starting` on; what was added.

    What a table covers is always one piece, so it grows downwards, chunk by chunk; what it
    covers already is never read again, and a crash loses at most the chunk it was in.  Each
    chunk is reported as a run reports a batch.
    """
    sinks = _sinks(pipeline)
    replays.go_on(pipeline)
    wanted = _wanted(pipeline, sinks, starting)
    session = configured(spark)
    added: dict[Partition, Range] = {}
    for number in itertools.count(1):
        states = {layer: sink.state() for layer, sink in sinks.items()}
        chunk = _next_chunk(states, wanted, pipeline.batch_rows_max)
        if not chunk:
            break
        begun_s = time.monotonic()
        _backfill_chunk(session, pipeline, sinks, states, chunk)
        for at, one in chunk.items():
            added[at] = Range(one.start, added[at].end if at in added else one.end)
        left = _lacking(states, wanted) - _rows(chunk)
        report(_chunk_report(pipeline, number, _rows(chunk), left, time.monotonic() - begun_s))
    return added


def _lacking(states: Mapping[str, State], wanted: Mapping[Partition, int]) -> int:
    """How many offsets are still to be taken in, of the table that lacks most."""
    highest = {at: max(one.covered[at].start for one in states.values()) for at in wanted}
    return sum(max(0, highest[at] - lowest) for at, lowest in wanted.items())


def _rows(chunk: Mapping[Partition, Range]) -> int:
    return sum(one.end - one.start for one in chunk.values())


def _chunk_report(
    pipeline: Pipeline, number: int, rows: int, left: int, took_s: float
) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "batch": number,
        "rows": rows,
        "rows_per_second": rows / took_s,
        "batch_ms": round(took_s * 1000),
        "lag": left,
        "eta_s": round(left * took_s / rows),
    }


def _wanted(pipeline: Pipeline, sinks: Mapping[str, Sink], starting: str) -> dict[Partition, int]:
    """The offset of every covered partition to begin at, no lower than its log."""
    covered = sorted(sinks["bronze"].state().covered)
    if not covered:
        raise SinkRefused(f"pipeline {pipeline.name} has no rows yet; run it first")
    options = read_options({**bronze.where(pipeline), "starting": starting})
    origin = open_origin(options)
    try:
        asked = resolve(origin, covered, options, ending=False)
        starts = origin.starts(covered)
    finally:
        origin.close()
    return {at: max(asked[at], starts[at]) for at in covered}


def _next_chunk(
    states: Mapping[str, State], wanted: Mapping[Partition, int], rows_max: int
) -> dict[Partition, Range]:
    """The offsets just below what every table covers.

    A table that is ahead after a crash sets the lower bound, so that it needs all or nothing.
    """
    found: dict[Partition, Range] = {}
    left = rows_max
    for at, lowest in wanted.items():
        starts = sorted({state.covered[at].start for state in states.values()})
        top = starts[-1]
        if top <= lowest or left <= 0:
            continue
        ahead = starts[-2] if len(starts) > 1 else lowest
        found[at] = Range(max(lowest, top - left, ahead), top)
        left -= top - found[at].start
    return found


def _backfill_chunk(
    spark: SparkSession,
    pipeline: Pipeline,
    sinks: Mapping[str, Sink],
    states: Mapping[str, State],
    chunk: Mapping[Partition, Range],
) -> None:
    # The source reads all of a partition that is not named: those that need nothing are, too.
    known = {at: Range(one.start, one.start) for at, one in states["bronze"].covered.items()}
    bounds = {**known, **chunk}
    starting = {at: one.start for at, one in bounds.items()}
    ending = {at: one.end for at, one in bounds.items()}
    rows = bronze.span(spark, pipeline, starting, ending)
    ingestion = Ingestion(pipeline, Checkpoint(pipeline.checkpoint, INGEST), rows.schema)
    ingestion.prepare(spark)
    lacking = {
        layer: {at: one for at, one in chunk.items() if states[layer].covered[at].start == one.end}
        for layer in sinks
    }
    wanted = {layer: missing for layer, missing in lacking.items() if missing}
    # Never all that was read: a partition that came up meanwhile is not part of this.
    written = ingestion.write(
        rows,
        {
            layer: {at: one.start for at, one in missing.items()}
            for layer, missing in wanted.items()
        },
    )
    for layer, missing in wanted.items():
        steps.reached(f"before-commit:{layer}")
        dropped = written.dropped if layer == "silver" else {}
        step_of = partial(_backfill_step, sinks[layer].at.uri, missing, dropped)
        commit.commit(sinks[layer], "", missing, written.files.get(layer, []), step_of)


def _backfill_step(
    uri: str, missing: Mapping[Partition, Range], dropped: Mapping[Partition, int], state: State
) -> Step:
    if any(state.covered[at].start != one.end for at, one in missing.items()):
        raise SinkRefused(f"{uri}: another backfill is running")
    grown = {at: Range(one.start, state.covered[at].end) for at, one in missing.items()}
    return Step("backfill", -1, missing, grown, _added(state, dropped), note="backfill")


def rebuild(spark: SparkSession, pipeline: Pipeline) -> dict[str, int]:
    """Silver, dead letters and gold anew from bronze, by the pipeline file as it is now."""
    refuse_if_running(pipeline)
    sinks = _sinks(pipeline)
    session = configured(spark)
    covered = sinks["bronze"].state().covered
    # A replay that was cut short is void with this, in each table by the same commit.
    void = replays.unfinished(pipeline)
    query, batch = ("rebuild", -1) if void is None else (replays.QUERY, int(void["number"]))
    records = sinks["bronze"].read(session)
    ingestion = Ingestion(pipeline, Checkpoint(pipeline.checkpoint, INGEST), records.schema)
    schemas = ingestion.renew(session, records)
    written = ingestion.write(records, {"silver": None, "dead_letters": None})
    rows: dict[str, int] = {}
    for layer in ("silver", "dead_letters"):
        sink, files = sinks[layer], written.files.get(layer, [])

        def step(state: State, layer: str = layer) -> Step | None:
            dropped = {at: written.dropped.get(at, 0) for at in covered}
            return Step(
                query, batch, covered, covered, dropped if layer == "silver" else {}, "rebuild"
            )

        def write(files: Any, step: Step, sink: Sink = sink, layer: str = layer) -> None:
            sink.replace(files, step, schemas[layer])

        known_as = query if batch >= 0 else ""
        commit.commit(sink, known_as, covered, files, step, write=write)
        rows[layer] = sum(one.rows for one in files)
    replays.forget(pipeline)
    for one in pipeline.gold:
        rows[f"gold/{one.name}"] = gold.rebuild(session, pipeline, one, records)
    return rows


def replay_dead_letters(spark: SparkSession, pipeline: Pipeline) -> dict[str, int]:
    """Try every dead letter again; those that are rows now move to silver."""
    refuse_if_running(pipeline)
    sinks = _sinks(pipeline)
    plan = replays.unfinished(pipeline)
    if plan is None:
        letters = sinks["dead_letters"].state()
        plan = replays.plan(pipeline, letters, _tried_again(configured(spark), pipeline, sinks))
    steps.reached("after-files")
    replays.finish(pipeline, plan)
    return {name: int(plan[name]) for name in ("moved", "dropped", "left")}


def _tried_again(
    spark: SparkSession, pipeline: Pipeline, sinks: Mapping[str, Sink]
) -> layers.Written:
    from pyspark.sql import functions as f

    letters = sinks["dead_letters"].read(spark)
    source = sinks["bronze"].read(spark).schema
    lacking = [one for one in source if one.name not in letters.columns]
    records = letters.select(
        *(
            f.lit(None).cast(one.dataType).alias(one.name) if one in lacking else f"`{one.name}`"
            for one in source
        )
    )
    ingestion = Ingestion(pipeline, Checkpoint(pipeline.checkpoint, INGEST), records.schema)
    ingestion.prepare(spark)
    return ingestion.write(records, {"silver": None, "dead_letters": None})


def refuse_if_running(pipeline: Pipeline) -> None:
    """These tasks rewrite whole tables: a batch that comes between would be lost with them."""
    kept = Checkpoint(pipeline.checkpoint, INGEST)
    number = int(kept.progress().get("pid", 0))
    if number and number != os.getpid() and not checkpoint.is_paused(pipeline.checkpoint):
        try:
            os.kill(number, 0)
        except OSError:
            return
        raise SinkRefused(
            f"pipeline {pipeline.name} is running as process {number}; pause it first: pentalog"
            " table pause FILE NAME"
        )


def _sinks(pipeline: Pipeline) -> dict[str, Sink]:
    found = {layer: open_table(pipeline.table(layer)) for layer in LAYERS}
    for sink in found.values():
        if not sink.exists():
            raise Missing(f"{sink.at.uri} is no table yet; run the pipeline {pipeline.name} first")
    return found


def _added(state: State, dropped: Mapping[Partition, int]) -> dict[Partition, int]:
    return {at: state.dropped.get(at, 0) + count for at, count in dropped.items()}
