"""One pass over a batch that writes the files of all its tables, in the tasks.

Records are read and decoded once; every Arrow batch is divided into what bronze, silver and the
dead letters get of it.  What comes back to the driver is the list of files and a few counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import dead_letters, quality, silver
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.sinks.state import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_RESULT: Final = (
    "layer string, path string, size_bytes long, rows long, detail string, stats string"
)
_DROPPED: Final = "dropped"
_STOPPED: Final = "stopped"


@dataclass(frozen=True, slots=True)
class Part:
    """What one table takes of a batch: how to write it, and where it must begin.

    `since` is only for tables that are ahead of others after a crash; it holds the first offset
    to take, by partition, and what is not in it is there already.
    """

    layout: Layout
    since: Mapping[Partition, int] | None = None


@dataclass(slots=True)
class Written:
    """What the tasks of a batch did."""

    files: dict[str, list[File]] = field(default_factory=dict)
    dropped: Counter[Partition] = field(default_factory=Counter)
    stopped: str = ""

    def add(self, other: Written) -> None:
        for layer, files in other.files.items():
            self.files.setdefault(layer, []).extend(files)


def since(
    ranges: Mapping[Partition, Range], lacking: Mapping[Partition, Range]
) -> dict[Partition, int] | None:
    """Where a table must begin; None if it needs the whole batch."""
    if dict(ranges) == dict(lacking):
        return None
    return {at: one.start for at, one in lacking.items()}


def write(
    rows: DataFrame, parts: Mapping[str, Part], dropped_since: Mapping[Partition, int] | None
) -> Written:
    """Write the files of every table in `parts`; the rows come from `silver.typed`.

    Dropped rows are counted from where silver begins, whether it is in `parts` or written apart.
    """
    return gather(rows.mapInArrow(_task(dict(parts), dropped_since), _RESULT))


def write_plain(rows: DataFrame, layer: str, layout: Layout) -> Written:
    """Write rows that are already those of the table."""
    return gather(rows.mapInArrow(_plain_task(layer, layout), _RESULT))


def filtered(rows: DataFrame, since: Mapping[Partition, int] | None) -> DataFrame:
    """The rows of a batch that a table lacks."""
    from pyspark.sql import functions as f

    if since is None:
        return rows
    wanted = f.lit(False)
    for at, first in since.items():
        here = (f.col("topic") == at.topic) & (f.col("partition") == at.index)
        wanted = wanted | (here & (f.col("offset") >= first))
    return rows.filter(wanted)


def gather(results: DataFrame) -> Written:
    """The results of the successful tasks: others left files that nothing will refer to."""
    written = Written()
    for one in results.collect():
        if one.layer == _DROPPED:
            written.dropped[Partition(one.path, one.size_bytes)] += one.rows
        elif one.layer == _STOPPED:
            written.stopped = written.stopped or one.detail
        else:
            file = File(one.path, one.size_bytes, one.rows, json.loads(one.detail), one.stats)
            written.files.setdefault(one.layer, []).append(file)
    return written


def _task(
    parts: dict[str, Part], dropped_since: Mapping[Partition, int] | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        sets = {layer: FileSet(part.layout) for layer, part in parts.items()}
        dropped: Counter[tuple[str, int]] = Counter()
        stopped = ""
        try:
            for batch in batches:
                table = pa.Table.from_batches([batch])
                for layer, files in sets.items():
                    files.add(_share(layer, _after(table, parts[layer].since)))
                if silver.VERDICT in table.column_names:
                    _count_dropped(_after(table, dropped_since), dropped)
                    stopped = stopped or _first_stop(table)
        except BaseException:
            for files in sets.values():
                files.discard()
            raise
        done = {layer: files.close() for layer, files in sets.items()}
        yield _results(done, dropped, stopped)

    return task


def _plain_task(
    layer: str, layout: Layout
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = FileSet(layout)
        try:
            for batch in batches:
                files.add(batch)
        except BaseException:
            files.discard()
            raise
        yield _results({layer: files.close()}, Counter(), "")

    return task


def _share(layer: str, table: pa.Table) -> pa.Table:
    """The rows and columns of one layer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if layer == "bronze":
        return table
    if layer == "silver":
        kept = table.filter(pc.equal(table.column(silver.VERDICT), quality.KEEP))
        rows = kept.column(silver.ROW).combine_chunks()
        return pa.Table.from_arrays(rows.flatten(), names=[one.name for one in rows.type])
    dead = table.filter(pc.equal(table.column(silver.VERDICT), quality.DEAD))
    return dead.append_column(dead_letters.REASON, dead.column("_reason"))


def _after(table: pa.Table, since: Mapping[Partition, int] | None) -> pa.Table:
    import pyarrow.compute as pc

    if since is None or table.num_rows == 0:
        return table
    wanted = None
    for at, first in since.items():
        here = pc.and_(
            pc.equal(table.column("topic"), at.topic),
            pc.equal(table.column("partition"), at.index),
        )
        here = pc.and_(here, pc.greater_equal(table.column("offset"), first))
        wanted = here if wanted is None else pc.or_(wanted, here)
    return table.filter(wanted) if wanted is not None else table.slice(0, 0)


def _count_dropped(table: pa.Table, counts: Counter[tuple[str, int]]) -> None:
    import pyarrow.compute as pc

    dropped = table.filter(pc.equal(table.column(silver.VERDICT), quality.DROP))
    if dropped.num_rows:
        places = dropped.select(["topic", "partition"]).group_by(["topic", "partition"])
        for one in places.aggregate([([], "count_all")]).to_pylist():
            counts[one["topic"], one["partition"]] += one["count_all"]


def _first_stop(table: pa.Table) -> str:
    import pyarrow.compute as pc

    found = table.filter(pc.equal(table.column(silver.VERDICT), quality.STOP)).slice(0, 1)
    for one in found.select(["topic", "partition", "offset", "_reason"]).to_pylist():
        return f"{one['topic']}/{one['partition']} offset {one['offset']}: {one['_reason']}"
    return ""


def _results(
    files: Mapping[str, list[File]], dropped: Counter[tuple[str, int]], stopped: str
) -> pa.RecordBatch:
    import pyarrow as pa

    rows: list[dict[str, Any]] = [
        {
            "layer": layer,
            "path": file.path,
            "size_bytes": file.size_bytes,
            "rows": file.rows,
            "detail": json.dumps(dict(file.partition)),
            "stats": file.stats,
        }
        for layer, written in files.items()
        for file in written
    ]
    for (topic, partition), count in dropped.items():
        rows.append({"layer": _DROPPED, "path": topic, "size_bytes": partition, "rows": count})
    if stopped:
        rows.append({"layer": _STOPPED, "detail": stopped})
    schema = pa.schema(
        [("layer", pa.string()), ("path", pa.string()), ("size_bytes", pa.int64()),
         ("rows", pa.int64()), ("detail", pa.string()), ("stats", pa.string())]
    )  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=schema)
