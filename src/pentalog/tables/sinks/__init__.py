"""The kinds of tables a pipeline can write, behind one interface."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pentalog.model.types import Partition
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.pipeline import TableAt, is_local
from pentalog.tables.sinks.refusals import Busy, CatalogFailed, Missing, SinkRefused, Unreachable
from pentalog.tables.sinks.state import Entry, Range, State, Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Busy", "CatalogFailed", "Entry", "File", "Missing", "Range", "Sink", "SinkRefused", "State",
    "Step", "Unreachable", "open_table", "probe",
]  # fmt: skip


_MARKS: Final = {"delta": "_delta_log", "parquet": "_manifest", "iceberg": "metadata"}
"""The directory in a table that only its kind has."""


class Sink(Protocol):
    """One table.  Its state and its rows change in the same commit or not at all."""

    at: TableAt

    def exists(self) -> bool: ...
    def schema(self) -> pa.Schema | None: ...
    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Make the table, or give it the columns it lacks; its schema afterwards."""

    def layout(self, file_bytes: int, *, whole: bool = False) -> Layout:
        """How tasks must write files for this table; `whole`: files for `replace`."""

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """Make room for the state of a query and of partitions that were not there before."""

    def state(self) -> State:
        """The newest state; the next commit is refused as `Busy` if it is not the newest then."""

    def append(self, files: Sequence[File], step: Step) -> None:
        """Add the rows of files that tasks have written."""

    def merge(self, files: Sequence[File], step: Step) -> None:
        """Replace rows by the table's key with those of files that tasks have written."""

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        """Let the rows of these files, of this schema, be all the table holds."""

    def cut(self, step: Step) -> None:
        """Remove the rows below the starts of `step`."""

    def ledger(self) -> list[Entry]:
        """What each commit added, oldest first, as far back as the table remembers."""

    def version(self) -> int:
        """The number of the newest commit that was looked at."""

    def files(self) -> list[str]: ...
    def arrow(self) -> pa.Table: ...
    def read(self, spark: SparkSession) -> DataFrame: ...
    def compact(self, file_bytes: int) -> Mapping[str, Any]: ...
    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]: ...
    def discard(self, files: Iterable[File]) -> None: ...
    def examine(self) -> None:
        """For a trial at the start: whatever else of reading and writing may not work."""

    def drop(self) -> None: ...


def open_table(at: TableAt) -> Sink:
    """The table at a place; nothing is made before `prepare`."""
    _refuse_other_kind(at)
    if at.sink == "delta":
        from pentalog.tables.sinks.delta import DeltaSink

        return DeltaSink(at)
    if at.sink == "parquet":
        from pentalog.tables.sinks.parquet import ParquetSink

        return ParquetSink(at)
    if at.sink == "iceberg":
        from pentalog.tables.sinks.iceberg import IcebergSink

        return IcebergSink(at)
    if at.sink == "delta-jar":
        from pentalog.tables.sinks.delta_jar import DeltaJarSink

        return DeltaJarSink(at)
    if at.sink == "iceberg-jar":
        from pentalog.tables.sinks.iceberg_jar import IcebergJarSink

        return IcebergJarSink(at)
    raise SinkRefused(f"{at.uri}: no sink {at.sink!r}")


def _refuse_other_kind(at: TableAt) -> None:
    """Two kinds in one directory would take each other's files for a crash's leavings."""
    if not is_local(at.uri):
        return
    for kind, mark in _MARKS.items():
        if at.sink not in (kind, f"{kind}-jar") and Path(at.uri, mark).is_dir():
            raise SinkRefused(
                f"{at.uri} is a table of sink = '{kind}', not '{at.sink}'; set that again, or name"
                " another directory as into, or drop the pipeline with that before you change it"
            )


def probe(at: TableAt) -> None:
    """Write a small table beside `at` and read it back, so that trouble shows before any record."""
    import pyarrow as pa

    folder = at.uri.rpartition("/")[0]
    trial = dataclasses.replace(
        at, uri=f"{folder}/.probe-{uuid.uuid4().hex[:12]}", key=(), partition_by=()
    )
    try:
        with _dropping(open_table(trial)) as sink:
            sink.prepare(pa.schema([("offset", pa.int64())]))
            files = FileSet(sink.layout(1 << 20))
            files.add(pa.table({"offset": pa.array([41, 42], pa.int64())}))
            at_zero = Partition("probe", 0)
            sink.announce("probe", [at_zero])
            sink.state()
            step = Step("probe", 0, {at_zero: Range(41, 43)}, {at_zero: Range(41, 43)})
            sink.append(files.close(), step)
            sink.examine()
            again = open_table(trial)
            rows, end = sorted(again.arrow()["offset"].to_pylist()), again.state().end(at_zero)
            if rows != [41, 42] or end != 43:
                raise SinkRefused(
                    f"{folder}: wrote 41 and 42 up to 43 and read back {rows} up to {end}"
                )
    except (OSError, Busy) as error:
        raise Unreachable(f"{folder}: cannot write and read a {at.sink} table: {error}") from error


@contextmanager
def _dropping(sink: Sink) -> Iterator[Sink]:
    """Whatever becomes of the trial, it goes; what failed first is what is told."""
    done = False
    try:
        yield sink
        done = True
    finally:
        with suppress(*(() if done else (OSError,))):
            sink.drop()
