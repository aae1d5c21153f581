"""Two sets of rows compared by hashes: first by blocks of offsets, then offset by offset.

Rows are (layer, topic, partition, offset, hash).  Several rows may have one offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

MEANINGS: Final = {
    "missing": "in the log, not in the table",
    "doubled": "more than once in the table",
    "changed": "not the values the log has",
    "unexpected": "in the table, but it should not be",
    "beyond": "outside what the table's ledger covers",
    "behind": "in another table of the pipeline, not yet in this one; run the pipeline again",
    "gone": "in the ledger, but the log ends before it: is this the same log?",
    "dropped": "the ledger counts other rows as dropped than the rules drop",
}
"""What is wrong with an offset, or a window, by the word reports have for it."""
PLACE: Final = ("topic", "partition")
KEYS: Final = ("layer", *PLACE)
HASH: Final = "_hash"
BEYOND: Final = -1
"""The block of rows outside of what the ledger covers."""
EXPIRED: Final = -2
"""The block of rows whose offsets the log has no longer."""
_BLOCK_OFFSETS_MIN: Final = 1 << 16
_BLOCKS_MAX: Final = 1 << 14


def block_offsets(offsets: int) -> int:
    """How many offsets make a block, so that a driver can hold the sums of all blocks."""
    return max(_BLOCK_OFFSETS_MIN, offsets // _BLOCKS_MAX)


def hashed(
    rows: StructType, table: StructType, *, prefix: str = "", without: Sequence[str] = ()
) -> Column:
    """A hash of a row in the columns and types of `table`; a column that is not there is null."""
    from pyspark.sql import functions as f

    names = set(rows.names)
    parts: list[Column] = []
    for one in sorted(table, key=lambda field: field.name):
        if one.name in without:
            continue
        path = f"`{prefix}`.`{one.name}`" if prefix else f"`{one.name}`"
        value = f.col(path) if one.name in names else f.lit(None)
        value = _hashable(value.cast(one.dataType), one.dataType)
        # The hash passes nulls over, so two columns could change places unseen.
        parts += [value.isNull(), value]
    return f.xxhash64(*parts)


def _hashable(value: Column, kind: DataType) -> Column:
    """Maps have no order and Spark no hash for them."""
    from pyspark.sql import functions as f

    text = kind.simpleString()
    return f.to_json(f.struct(value)) if "map<" in text or "variant" in text else value


def summed(rows: DataFrame, side: str, block: Column) -> DataFrame:
    """Per block of offsets: how many rows, and two sums of their hashes."""
    from pyspark.sql import functions as f

    return rows.groupBy(*KEYS, block.alias("block")).agg(*_sums(side, f.col(HASH)))


def by_offset(rows: DataFrame, side: str) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.groupBy(*KEYS, "offset").agg(*_sums(side, f.col(HASH)))


def _sums(side: str, hash_: Column) -> list[Column]:
    from pyspark.sql import functions as f

    return [
        f.count(f.lit(1)).alias(f"{side}_n"),
        f.bit_xor(hash_).alias(f"{side}_x"),
        # The upper half: no number of rows of a block makes it overflow.
        f.sum(f.shiftright(hash_, 32)).alias(f"{side}_s"),
    ]


def block(size: int) -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"offset div {size}")


def differs(one: str, other: str) -> Column:
    from pyspark.sql import functions as f

    found = f.lit(False)
    for name in ("n", "x", "s"):
        found = found | ~f.col(f"{one}_{name}").eqNullSafe(f.col(f"{other}_{name}"))
    return found


def in_blocks(rows: DataFrame, blocks: DataFrame, size: int) -> DataFrame:
    from pyspark.sql import functions as f

    keyed = rows.withColumn("block", block(size))
    return keyed.join(f.broadcast(blocks), [*KEYS, "block"], "left_semi")


def judged(joined: DataFrame, *, one_each: bool) -> DataFrame:
    """What is wrong with each offset: `missing`, `doubled`, `changed`, or `extra`.

    `joined` has both sides by offset.  `one_each` says that no record makes several rows.
    """
    from pyspark.sql import functions as f

    there = f.coalesce(f.col("actual_n"), f.lit(0))
    wanted = f.coalesce(f.col("expected_n"), f.lit(0))
    twice = (there > 1) & ((wanted > 0) | f.lit(one_each))
    kind = (
        f.when(there < wanted, f.lit("missing"))
        .when(there == wanted, f.lit("changed"))
        .when(twice, f.lit("doubled"))
        .otherwise(f.lit("extra"))
    )
    return joined.filter(differs("expected", "actual")).select(*KEYS, "offset", kind.alias("kind"))


def outside(rows: DataFrame, spans: DataFrame, size: int) -> DataFrame:
    """Rows whose offsets are in none of the spans (topic, partition, start, end)."""
    from pyspark.sql import functions as f

    # Joined by blocks, because a join by a range alone would compare all with all.
    blocks = f.sequence(f.expr(f"`start` div {size}"), f.expr(f"(`end` - 1) div {size}"))
    cut = spans.select(*PLACE, "start", "end", f.explode(blocks).alias("block")).alias("span")
    keyed = rows.withColumn("block", block(size)).alias("row")
    same = f.expr(
        "row.topic = span.topic and row.partition = span.partition and row.block = span.block"
        " and row.offset >= span.start and row.offset < span.end"
    )
    return keyed.join(cut, same, "left_anti").select(*rows.columns)


def ranges(offsets: DataFrame) -> DataFrame:
    """Neighbouring offsets of the same kind as (layer, kind, topic, partition, start, end)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same = (*KEYS, "kind")
    distinct = offsets.select(*same, "offset").distinct()
    order = Window.partitionBy(*same).orderBy("offset")
    numbered = distinct.withColumn("island", f.col("offset") - f.row_number().over(order))
    return (
        numbered.groupBy(*same, "island")
        .agg(f.min("offset").alias("start"), (f.max("offset") + 1).alias("end"))
        .select("layer", "kind", *PLACE, "start", "end")
    )
