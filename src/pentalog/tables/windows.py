"""The proof of gold: every finished window once, of exactly the rows that came in time.

Which rows count depends on the batches that brought them, and those are in the table's ledger.  In
batch n the watermark is the newest event time of the batches before n, less the delay; a row is
late if the watermark of the batch before its own had passed the end of its window.  With the ledger
and the log every window can be computed anew, without the state of the query that wrote it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.model.types import Partition
from pentalog.tables import comparison, gold, ledger
from pentalog.tables.ledger import Held
from pentalog.tables.pipeline import Gold, Pipeline, duration_ms
from pentalog.tables.sinks import Entry, Missing, Range, Sink, open_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PROBLEMS_MAX: Final = 1000
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.5
_CLOSE: Final = 1e-9
"""Sums of fractions depend on their order, by less than this part of them."""


@dataclass(frozen=True, slots=True)
class WindowCount:
    """What was found of one gold table; `not_compared` says why nothing was."""

    layer: str
    windows: int
    not_compared: str = ""


@dataclass(frozen=True, slots=True)
class WindowProblem:
    """A window that is not as it must be; `by` are its grouping columns in JSON."""

    layer: str
    kind: str
    window_start: str
    window_end: str
    by: str

    def __str__(self) -> str:
        group = "" if self.by == "{}" else f" {self.by}"
        window = f"{self.window_start} to {self.window_end}"
        return f"{self.layer}: window {window}{group}: {comparison.MEANINGS[self.kind]}"


class Found(NamedTuple):
    account: WindowCount
    problems: Sequence[WindowProblem] = ()
    left_out: int = 0


def verify(
    spark: SparkSession, pipeline: Pipeline, one: Gold, log: Mapping[Partition, Held]
) -> Found:
    """Compare one gold table with the log."""
    sink = open_table(pipeline.table(f"gold/{one.name}"))
    layer = sink.at.layer
    if not sink.exists():
        return Found(WindowCount(layer, 0, "there is no table yet; run the pipeline"))
    batches, rows = _taken(sink, spark)
    why = _incomplete(batches) or _lost(spark, pipeline, _covered(batches), log)
    if why:
        return Found(WindowCount(layer, 0, why))
    expected = _expected(spark, pipeline, one, batches, log)
    wrong = _wrong(rows, one, expected)
    listed = [WindowProblem(layer, *found) for found in wrong.limit(PROBLEMS_MAX).collect()]
    total = wrong.count() if len(listed) == PROBLEMS_MAX else len(listed)
    return Found(WindowCount(layer, rows.count()), listed, total - len(listed))


def _taken(sink: Sink, spark: SparkSession) -> tuple[list[Entry], DataFrame]:
    """The ledger and the rows of one moment, also while the table is written."""
    for _ in range(_ATTEMPTS):
        before = sink.state()
        batches, rows = sorted(sink.ledger(), key=lambda entry: entry.batch), sink.read(spark)
        if sink.state() == before:
            return batches, rows
        time.sleep(_PAUSE_S)
    raise Missing(f"{sink.at.uri} changes too often to be looked at; pause the pipeline first")


def _incomplete(batches: Sequence[Entry]) -> str:
    """Why the ledger does not tell of every batch."""
    if any(entry.note == "rebuild" for entry in batches):
        return "it was rebuilt, and its ledger does not say from which rows"
    if [entry.batch for entry in batches] != list(range(len(batches))):
        return "its ledger does not tell of every batch any more"
    return ""


def _covered(batches: Sequence[Entry]) -> dict[Partition, Range]:
    found: dict[Partition, Range] = {}
    for entry in batches:
        for at, one in entry.ranges.items():
            found[at] = Range(found[at].start if at in found else one.start, one.end)
    return found


def _lost(
    spark: SparkSession,
    pipeline: Pipeline,
    covered: Mapping[Partition, Range],
    log: Mapping[Partition, Held],
) -> str:
    """Why the log cannot say any more what the windows were made of."""
    if any(at not in log or log[at].start > one.start for at, one in covered.items()):
        return "the log has no longer all records that its windows are of"
    spans = ledger.log_rows(spark, pipeline, covered, log, view="offsets")
    if not spans.filter("kind = 'missing'").isEmpty():
        return "compaction has taken records that its windows are of"
    return ""


def _expected(
    spark: SparkSession,
    pipeline: Pipeline,
    one: Gold,
    batches: Sequence[Entry],
    log: Mapping[Partition, Held],
) -> DataFrame:
    """The windows that must be there."""
    from pyspark.sql import functions as f

    covered = _covered(batches)
    records = ledger.log_rows(spark, pipeline, covered, log)
    moment = f.expr(one.event_time or pipeline.event_time).cast("timestamp")
    rows = gold.kept_rows(spark, pipeline, records).withColumn("__time", moment)
    located = _with_batch(spark, rows, batches, covered)
    newest = {
        number: newest_ms
        for number, newest_ms in located.groupBy("__batch")
        .agg(f.max(f.unix_millis("__time")))
        .collect()
        if newest_ms is not None
    }
    marks = _watermarks(newest, len(batches), duration_ms(one.watermark))
    late = spark.createDataFrame(
        [(number, marks[max(0, number - 1)]) for number in range(len(batches))],
        "__batch int, __late_ms long",
    )
    length = (one.window, one.slide) if one.slide else (one.window,)
    windows = located.join(f.broadcast(late), "__batch").withColumn(
        "__window", f.window("__time", *length)
    )
    finished = marks[-1] if marks else 0
    counted = windows.filter(
        "__window.end > timestamp_millis(__late_ms)"
        f" and __window.end <= timestamp_millis({finished})"
    )
    sums = counted.groupBy("__window", *(f"`{name}`" for name in one.by)).agg(
        *(f.expr(text).alias(name) for name, text in one.aggregates.items())
    )
    return sums.select(
        f.col("__window.start").alias("window_start"),
        f.col("__window.end").alias("window_end"),
        *(f"`{name}`" for name in (*one.by, *one.aggregates)),
    )


def _with_batch(
    spark: SparkSession,
    rows: DataFrame,
    batches: Sequence[Entry],
    covered: Mapping[Partition, Range],
) -> DataFrame:
    """Every row with the number of the batch that brought it."""
    from pyspark.sql import functions as f

    size = comparison.block_offsets(sum(one.end - one.start for one in covered.values()))
    spans = [
        (at.topic, at.index, entry.batch, one.start, one.end, block)
        for entry in batches
        for at, one in entry.ranges.items()
        if one.start < one.end
        for block in range(one.start // size, (one.end - 1) // size + 1)
    ]
    names = "__topic string, __partition int, __batch int, __first long, __behind long"
    table = spark.createDataFrame(spans, f"{names}, __block long")
    here = f.expr(
        "_topic = __topic and _partition = __partition and __row_block = __block"
        " and _offset >= __first and _offset < __behind"
    )
    keyed = rows.withColumn("__row_block", f.expr(f"_offset div {size}"))
    return keyed.join(f.broadcast(table), here)


def _watermarks(newest_ms: Mapping[int, int], batches: int, delay_ms: int) -> list[int]:
    """The watermark in each batch: of all that came before it, and never backwards."""
    found, reached = [], 0
    for number in range(batches):
        found.append(reached)
        if number in newest_ms:
            reached = max(reached, newest_ms[number] - delay_ms)
    return found


def _wrong(rows: DataFrame, one: Gold, expected: DataFrame) -> DataFrame:
    """(kind, start, end, grouping columns) of the windows that are not as expected, in order."""
    from pyspark.sql import functions as f

    keys = ["window_start", "window_end", *one.by]
    kinds = {field.name: field.dataType for field in rows.schema}
    there = rows.groupBy(*(f"`{name}`" for name in keys)).agg(
        f.count(f.lit(1)).alias("__n"),
        *(f.first(f"`{name}`").alias(f"__there_{name}") for name in one.aggregates),
    )
    wanted = expected.select(
        f.lit(1).alias("__wanted"),
        *(f.col(f"`{name}`").cast(kinds[name]).alias(f"__key_{name}") for name in keys),
        *(f.col(f"`{name}`").cast(kinds[name]).alias(f"__log_{name}") for name in one.aggregates),
    )
    same = [f.col(f"`{name}`").eqNullSafe(f.col(f"`__key_{name}`")) for name in keys]
    differs = f.lit(False)
    for name in one.aggregates:
        table, log = f.col(f"`__there_{name}`"), f.col(f"`__log_{name}`")
        differs = differs | ~_equal(table, log, kinds[name].simpleString())
    kind = (
        f.when(f.col("__n").isNull(), f.lit("missing"))
        .when(f.col("__wanted").isNull(), f.lit("unexpected"))
        .when(f.col("__n") > 1, f.lit("doubled"))
        .when(differs, f.lit("changed"))
    )
    joined = there.join(wanted, same, "full_outer").withColumn("__kind", kind)
    shown = [f.coalesce(f.col(f"`{name}`"), f.col(f"`__key_{name}`")).alias(name) for name in keys]
    text = [f.col(name).cast("string") for name in ("window_start", "window_end")]
    by = f.to_json(f.struct(*(f"`{name}`" for name in one.by))) if one.by else f.lit("{}")
    return (
        joined.filter("__kind is not null")
        .select("__kind", *shown)
        .orderBy(*(f"`{name}`" for name in keys))
        .select("__kind", *text, by)
    )


def _equal(one: Column, other: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    if kind not in ("double", "float"):
        return one.eqNullSafe(other)
    near = f.abs(one - other) <= _CLOSE * f.greatest(f.abs(one), f.abs(other))
    return one.eqNullSafe(other) | f.coalesce(near, f.lit(False))
