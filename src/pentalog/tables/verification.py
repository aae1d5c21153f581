"""The proof that tables hold what the log holds: every offset once, every value as it was.

For every partition that a table's ledger covers:

    offsets covered = records + control + aborted + compacted + expired
    records         = rows of bronze = rows of silver + dead letters + dropped by rule

The log is read and decoded anew.  Both sides become (layer, partition, offset, hash), compared by
blocks of offsets; only blocks that differ are looked at offset by offset.  Nothing but counts and
ranges comes to the driver.

What the log has no longer (compacted, expired) cannot be compared: rows of such offsets are
counted, and must not be doubled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import comparison, decoding, ledger, quality, schema, silver, windows
from pentalog.tables.comparison import HASH, KEYS, PLACE
from pentalog.tables.job import configured
from pentalog.tables.ledger import Held, Snapshot
from pentalog.tables.pipeline import LAYERS, Pipeline
from pentalog.tables.sinks import Range
from pentalog.tables.transforms import Transforms
from pentalog.tables.windows import WindowCount, WindowProblem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

RANGES_MAX: Final = 1000
"""Ranges that a report lists; it says how many more there are."""
_DROPPED: Final = "dropped"


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """One partition's account; `waiting` are offsets of the log that no table covers yet."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    control: int
    aborted: int
    compacted: int
    expired: int
    bronze: int
    silver: int
    dead_letters: int
    dropped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Offsets `start` up to, but without, `end` that are not as they must be."""

    layer: str
    kind: str
    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        shown = str(self.start) if self.end == self.start + 1 else f"{self.start}..{self.end - 1}"
        place = f"{self.topic}/{self.partition} offset {shown}"
        return f"{self.layer}: {place}: {comparison.MEANINGS[self.kind]}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one pipeline."""

    pipeline: str
    partitions: tuple[PartitionCount, ...]
    problems: tuple[Problem | WindowProblem, ...]
    problems_left_out: int = 0
    gold: tuple[WindowCount, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def verify(spark: SparkSession, pipeline: Pipeline) -> Report:
    """Compare a pipeline's tables with the log."""
    # With the settings of the session that wrote them: the same values are null.
    spark = configured(spark)
    taken = ledger.snapshot(spark, pipeline)
    partitions = taken.partitions()
    if not partitions:
        # Nothing is claimed to be in the tables, so nothing may be.
        listed, total = _listed([_as("beyond", _rows_of(taken))])
        return Report(pipeline.name, (), tuple(listed), total - len(listed))
    log = ledger.held(pipeline, partitions)
    report = _Proof(spark, pipeline, taken, log).report()
    gold = [windows.verify(spark, pipeline, one, log) for one in pipeline.gold]
    return replace(
        report,
        problems=(*report.problems, *(problem for one in gold for problem in one.problems)),
        problems_left_out=report.problems_left_out + sum(one.left_out for one in gold),
        gold=tuple(one.account for one in gold),
    )


class _Proof:
    """One pipeline at one moment."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        taken: Snapshot,
        log: Mapping[Partition, Held],
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._taken = taken
        self._log = log
        self._transforms = Transforms(pipeline.transforms)
        self._one_each = not (pipeline.key or self._transforms)
        spans = [taken.covered("bronze", at) for at in taken.partitions()]
        self._block = comparison.block_offsets(sum(one.end - one.start for one in spans))

    def report(self) -> Report:
        expected, actual = self._expected(), self._joined_with_ledger(_rows_of(self._taken))
        sums = self._summed(expected, actual)
        found = self._strays(actual, sums)
        different = [one for one in sums if one.block >= 0 and _differ(one)]
        if different:
            found.append(self._wrong(different, expected, actual))
        listed, total = _listed(found)
        spans = self._spans_counted()
        counted = _counted(sums)
        counts = tuple(self._count(at, counted, spans) for at in self._taken.partitions())
        problems = [
            *self._ledger_problems(),
            *listed,
            *self._dropped_problems(counts, counted),
        ]
        return Report(self._pipeline.name, counts, tuple(problems), total - len(listed))

    def _summed(self, expected: DataFrame, actual: DataFrame) -> list[Row]:
        """Both sides by blocks; in blocks of their own what cannot be compared."""
        from pyspark.sql import functions as f

        block = comparison.block(self._block)
        outside = f.expr("_end is null or offset < _start or offset >= _end")
        place = (
            f.when(outside, f.lit(comparison.BEYOND))
            .when(f.expr("offset < _low"), f.lit(comparison.EXPIRED))
            .otherwise(block)
        )
        there = comparison.summed(actual, "actual", place)
        wanted = comparison.summed(expected, "expected", block)
        return wanted.join(there, [*KEYS, "block"], "full_outer").collect()

    def _expected(self) -> DataFrame:
        """(layer, topic, partition, offset, hash) of every row that must be there."""
        from pyspark.sql import functions as f

        records = ledger.log_rows(self._spark, self._pipeline, self._ranges(), self._log)
        typed = self._typed(records)
        tables = {layer: rows.schema for layer, rows in self._taken.rows.items()}
        record = comparison.hashed(records.schema, tables["bronze"])
        letter = comparison.hashed(records.schema, tables["dead_letters"], without=("reason",))
        entries = {
            "bronze": (f.lit(True), record),
            "dead_letters": (f.col(silver.VERDICT) == quality.DEAD, letter),
            _DROPPED: (f.col(silver.VERDICT) == quality.DROP, f.lit(0).cast("long")),
        }
        kept = f.col(silver.VERDICT) == quality.KEEP
        if self._one_each:
            row = silver.row_schema(typed)
            entries["silver"] = (
                kept, comparison.hashed(row, tables["silver"], prefix=silver.ROW),
            )  # fmt: skip
        structs = [
            f.when(holds, f.struct(f.lit(layer).alias("layer"), hash_.alias(HASH)))
            for layer, (holds, hash_) in entries.items()
        ]
        found = typed.select(
            *PLACE, "offset", f.explode(f.array_compact(f.array(*structs))).alias("_entry")
        ).select("_entry.layer", *PLACE, "offset", f"_entry.{HASH}")
        if not self._one_each:
            found = found.unionByName(self._expected_silver(typed.filter(kept)))
        within = self._joined_with_ledger(found).filter("offset >= _low and offset < _high")
        return within.select(*found.columns)

    def _expected_silver(self, kept: DataFrame) -> DataFrame:
        """Rows of silver that are not simply one per record."""
        from pyspark.sql import functions as f

        rows = self._transforms(kept.select(f"{silver.ROW}.*"))
        if self._pipeline.key:
            rows = silver.latest(rows, self._pipeline.key)
        return rows.select(
            f.lit("silver").alias("layer"),
            *(f.col(f"_{name}").alias(name) for name in (*PLACE, "offset")),
            comparison.hashed(rows.schema, self._taken.rows["silver"].schema).alias(HASH),
        )

    def _typed(self, records: DataFrame) -> DataFrame:
        table = self._taken.rows["silver"].schema
        known = decoding.given_schema(self._spark, self._pipeline.decode)
        if self._pipeline.decode.inferred:
            known = schema.merged(known, silver.decoded_part(table, self._pipeline))
        return silver.typed(records, self._pipeline, known, table)

    def _wrong(self, different: Sequence[Row], expected: DataFrame, actual: DataFrame) -> DataFrame:
        """(layer, place, offset, kind) of what differs from the log in some blocks."""
        keys = [(one.layer, one.topic, one.partition, one.block) for one in different]
        blocks = self._spark.createDataFrame(
            keys, "layer string, topic string, partition int, block long"
        )
        inside = actual.filter("offset >= _low and offset < _high")
        offsets = comparison.by_offset(
            comparison.in_blocks(expected, blocks, self._block), "expected"
        ).join(
            comparison.by_offset(comparison.in_blocks(inside, blocks, self._block), "actual"),
            [*KEYS, "offset"],
            "full_outer",
        )
        found = comparison.judged(offsets, one_each=self._one_each)
        # A row whose record was compacted since is what a table is for.
        missing = self._spans().filter("kind = 'missing'")
        extra = comparison.outside(found.filter("kind = 'extra'"), missing, self._block)
        return found.filter("kind != 'extra'").unionByName(_as("unexpected", extra))

    def _strays(self, actual: DataFrame, sums: Sequence[Row]) -> list[DataFrame]:
        """Rows outside of the ledger, and doubles among those the log has no longer."""
        blocks = {one.block for one in sums}
        found = []
        if comparison.BEYOND in blocks:
            outside = actual.filter("_end is null or offset < _start or offset >= _end")
            found.append(_as("beyond", outside))
        if comparison.EXPIRED in blocks and self._one_each:
            expired = actual.filter("offset >= _start and offset < _end and offset < _low")
            twice = comparison.by_offset(expired, "actual").filter("actual_n > 1")
            found.append(_as("doubled", twice))
        return found

    def _joined_with_ledger(self, rows: DataFrame) -> DataFrame:
        """With what the ledger covers, `_start.._end`, and the log has of it, `_low.._high`."""
        from pyspark.sql import functions as f

        covered = [
            (layer, at.topic, at.index, *self._covered(layer, at), *self._range(layer, at))
            for at in self._taken.partitions()
            for layer in (*LAYERS, _DROPPED)
        ]
        names = "layer string, topic string, partition int"
        marks = "_start long, _end long, _low long, _high long"
        table = self._spark.createDataFrame(covered, f"{names}, {marks}")
        return rows.join(f.broadcast(table), [*KEYS], "left")

    def _covered(self, layer: str, at: Partition) -> Range:
        return self._taken.covered("silver" if layer == _DROPPED else layer, at)

    def _range(self, layer: str, at: Partition) -> Range:
        """The offsets of a layer that the log still has."""
        covered, log = self._covered(layer, at), self._log[at]
        low = max(covered.start, min(log.start, covered.end))
        return Range(low, max(low, min(covered.end, log.end)))

    def _ranges(self) -> dict[Partition, Range]:
        """What to read of the log: what any table covers of it."""
        found = {}
        for at in self._taken.partitions():
            parts = [self._range(layer, at) for layer in LAYERS]
            found[at] = Range(min(one.start for one in parts), max(one.end for one in parts))
        return found

    def _spans(self) -> DataFrame:
        ranges = {at: self._range("bronze", at) for at in self._taken.partitions()}
        return ledger.log_rows(self._spark, self._pipeline, ranges, self._log, view="offsets")

    def _spans_counted(self) -> dict[tuple[Partition, str], int]:
        from pyspark.sql import functions as f

        length = f.sum(f.col("end") - f.col("start")).alias("offsets")
        rows = self._spans().groupBy(*PLACE, "kind").agg(length).collect()
        return {(Partition(one.topic, one.partition), one.kind): one.offsets for one in rows}

    def _count(
        self,
        at: Partition,
        counted: Mapping[tuple[str, Partition], tuple[int, int]],
        spans: Mapping[tuple[Partition, str], int],
    ) -> PartitionCount:
        covered, inside = self._covered("bronze", at), self._range("bronze", at)
        rows = {layer: counted.get((layer, at), (0, 0))[1] for layer in LAYERS}
        kinds = {kind: spans.get((at, kind), 0) for kind in ("record", "control", "aborted")}
        return PartitionCount(
            topic=at.topic,
            partition=at.index,
            start=covered.start,
            end=covered.end,
            records=kinds["record"],
            control=kinds["control"],
            aborted=kinds["aborted"],
            compacted=spans.get((at, "missing"), 0),
            expired=inside.start - covered.start,
            bronze=rows["bronze"],
            silver=rows["silver"],
            dead_letters=rows["dead_letters"],
            dropped=self._taken.states["silver"].dropped.get(at, 0),
            waiting=max(0, self._log[at].end - covered.end),
        )

    def _ledger_problems(self) -> Iterator[Problem]:
        for at in self._taken.partitions():
            furthest = max(self._covered(layer, at).end for layer in LAYERS)
            for layer in LAYERS:
                end = self._covered(layer, at).end
                if end < furthest:
                    yield Problem(layer, "behind", at.topic, at.index, end, furthest)
                if end > self._log[at].end:
                    yield Problem(layer, "gone", at.topic, at.index, self._log[at].end, end)

    def _dropped_problems(
        self,
        counts: tuple[PartitionCount, ...],
        counted: Mapping[tuple[str, Partition], tuple[int, int]],
    ) -> Iterator[Problem]:
        for one in counts:
            at = Partition(one.topic, one.partition)
            wanted = counted.get((_DROPPED, at), (0, 0))[0]
            # Rows dropped long ago may be of records that are no longer there to be counted.
            whole = not (one.expired or one.compacted)
            if one.dropped < wanted or (whole and one.dropped != wanted):
                yield Problem("silver", "dropped", at.topic, at.index, one.start, one.end)


def _rows_of(taken: Snapshot) -> DataFrame:
    """(layer, topic, partition, offset, hash) of every row that is there."""
    from pyspark.sql import functions as f

    parts = []
    for layer in LAYERS:
        rows = taken.rows[layer]
        mark = "_" if layer == "silver" else ""
        hash_ = comparison.hashed(rows.schema, rows.schema, without=("reason",))
        parts.append(
            rows.select(
                f.lit(layer).alias("layer"),
                *(f.col(f"{mark}{name}").alias(name) for name in (*PLACE, "offset")),
                hash_.alias(HASH),
            )
        )
    return parts[0].unionByName(parts[1]).unionByName(parts[2])


def _differ(one: Row) -> bool:
    if one.layer == _DROPPED:
        return False
    return any(one[f"expected_{name}"] != one[f"actual_{name}"] for name in ("n", "x", "s"))


def _counted(sums: Sequence[Row]) -> dict[tuple[str, Partition], tuple[int, int]]:
    """(rows expected, rows there) by layer and partition; rows beyond the ledger do not count."""
    found: dict[tuple[str, Partition], tuple[int, int]] = {}
    for one in sums:
        if one.block != comparison.BEYOND:
            key = one.layer, Partition(one.topic, one.partition)
            wanted, there = found.get(key, (0, 0))
            found[key] = (wanted + (one.expected_n or 0), there + (one.actual_n or 0))
    return found


def _listed(found: Sequence[DataFrame]) -> tuple[list[Problem], int]:
    """The first ranges of what was found, and how many ranges there are."""
    if not found:
        return [], 0
    every = comparison.ranges(functools.reduce(lambda one, other: one.unionByName(other), found))
    rows = every.orderBy(*KEYS, "start").limit(RANGES_MAX + 1).collect()
    total = every.count() if len(rows) > RANGES_MAX else len(rows)
    return [Problem(*one) for one in rows[:RANGES_MAX]], total


def _as(kind: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.select(*KEYS, "offset", f.lit(kind).alias("kind"))
