"""Delta tables without a jar: files that tasks wrote, committed from the driver in one step.

What exactly-once depends on is kept in app transactions, because they outlive the clean-up of
the table's log; the ledger, in the commits' own metadata, does not and is for people.

| app transaction | holds |
|---|---|
| `pentalog:<pipeline>:<topic>/<partition>:start` and `:end` | the offsets the table covers |
| `pentalog:<pipeline>:<topic>/<partition>:dropped` | rows dropped by rules |
| `pentalog:<pipeline>:query:<id>` | the last batch of a query |

Which partitions and queries there are is listed in two properties of the table.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables.files import File, Layout
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks.reading import read_files
from pentalog.tables.sinks.refusals import Busy, Missing, SinkRefused
from pentalog.tables.sinks.state import (
    Entry,
    Range,
    State,
    Step,
    entry_of,
    name_of,
    partition_of,
    partitions_text,
)
from pentalog.tables.storage import storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS: Final = "pentalog.partitions"
_QUERIES: Final = "pentalog.queries"
_QUERIES_MAX: Final = 100
WRITER: Final = "pentalog.writer"
_LEDGER_MAX: Final = 10_000


class DeltaSink:
    """One Delta table."""

    writer = ""

    def __init__(self, at: TableAt) -> None:
        # What goes wrong is raised as well, and would be told in lines of hundreds of words.
        os.environ.setdefault("RUST_LOG", "error")
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise SinkRefused(f"{error}; install it with: pip install 'pentalog[spark]'") from error
        self.at = at
        self._options = dict(at.storage_options)
        self._storage = storage_of(at.uri, at.storage_options)
        self._table: DeltaTable | None = None

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return self._table is not None or DeltaTable.is_deltatable(self.at.uri, self._options)

    def schema(self) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema(self._current().schema().to_arrow()) if self.exists() else None

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Make the table, or give it the columns it lacks; its schema afterwards."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if not self.exists():
            self._storage.make_folder()
            DeltaTable.create(
                self.at.uri,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(self.at.partition_by) or None,
                configuration={_PARTITIONS: "[]", _QUERIES: "[]"},
                storage_options=self._options or None,
                raise_if_key_not_exists=False,
            )
        table = self._current()
        wanted = {one.name: one for one in Schema.from_arrow(schema).fields}
        known = {one.name: one for one in table.schema().fields}
        lacking = [one for name, one in wanted.items() if known.get(name) != one]
        if lacking:
            try:
                table.alter.add_columns(lacking)
            except DeltaError as error:
                names = ", ".join(one.name for one in lacking)
                raise SinkRefused(f"{self.at.uri}: cannot add columns {names}: {error}") from error
        found = self.schema()
        assert found is not None
        return found

    def layout(self, file_bytes: int, *, whole: bool = False) -> Layout:
        schema = self.schema()
        assert schema is not None, "prepared first"
        # What will be merged is read again here: whole rows, wherever they go in the end.
        staged = bool(self.at.key) and not whole
        return Layout(
            self.at.uri,
            schema,
            () if staged else self.at.partition_by,
            staged,
            file_bytes,
            self.at.fsync,
            self._options,
        )

    def state(self) -> State:
        if not self.exists():
            return State()
        table = self._current()
        known = table.metadata().configuration
        if known.get(WRITER, self.writer) != self.writer:
            raise SinkRefused(
                f"{self.at.uri}: Delta's jar writes this table and keeps its state another way;"
                " set sink = 'delta-jar' again"
            )
        covered, dropped, batches = {}, {}, {}
        for at in map(partition_of, json.loads(known.get(_PARTITIONS, "[]"))):
            start, end, lost = (
                self._version(f"{name_of(at)}:{key}") for key in ("start", "end", "dropped")
            )
            if end is not None:
                covered[at] = Range(start or 0, end)
            if lost is not None:
                dropped[at] = lost
        for query in json.loads(known.get(_QUERIES, "[]")):
            batch = self._version(f"query:{query}")
            if batch is not None:
                batches[query] = batch
        if not covered and not batches and _PARTITIONS in known and table.file_uris():
            raise SinkRefused(
                f"{self.at.uri} has rows, but not of a pipeline {self.at.pipeline!r}; call it as it"
                " was called when they were written, or name another directory as into"
            )
        return State(covered, dropped, batches)

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """List a query and its partitions before their first transaction.

        A commit of its own, so it comes before the look at the state that the rows' commit is
        fenced by.
        """
        table = self._current()
        known = table.metadata().configuration
        listed = set(map(partition_of, json.loads(known.get(_PARTITIONS, "[]"))))
        queries = json.loads(known.get(_QUERIES, "[]"))
        new = [query] if query and query not in queries else []
        if not new and listed >= set(partitions):
            return
        properties = {
            _PARTITIONS: partitions_text(listed | set(partitions)),
            _QUERIES: json.dumps([*queries, *new][-_QUERIES_MAX:]),
        }
        with conflicts(self.at.uri):
            table.alter.set_table_properties(properties, raise_if_not_exists=False)

    def append(self, files: Sequence[File], step: Step) -> None:
        self._write(files, step, self._current(refresh=False).schema(), "append")

    def _write(self, files: Sequence[File], step: Step, schema: Any, mode: str) -> None:
        from deltalake.transaction import AddAction

        now_ms = _now_ms()
        adds: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size_bytes, one.partition, now_ms, True, one.stats)
            for one in files
        ]
        table = self._current(refresh=False)
        with conflicts(self.at.uri):
            table.create_write_transaction(
                adds,
                mode,
                schema,
                partition_by=list(self.at.partition_by) or None,
                commit_properties=self._properties(step, sum(one.rows for one in files)),
            )
        self._sync_log()

    def merge(self, files: Sequence[File], step: Step) -> None:
        """Replace rows by key; of two rows of a key the one with the later place stays."""
        self._refuse_odd_paths()
        rows = self._staged(files)
        table = self._current(refresh=False)
        on = " and ".join(f"(t.`{name}` is not distinct from s.`{name}`)" for name in self.at.key)
        before = table.version()
        with conflicts(self.at.uri):
            table.merge(
                rows,
                on,
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(step, rows.num_rows),
            ).when_matched_update_all(LATER).when_not_matched_insert_all().execute()
        self._record(step, unless_after=before)

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        self._refuse_odd_paths()
        self._write(files, step, schema, "overwrite")

    def cut(self, step: Step) -> None:
        """Remove the rows below the starts of `step`, with the new starts in the same commit."""
        self._refuse_odd_paths()
        table = self._current(refresh=False)
        before = table.version()
        with conflicts(self.at.uri):
            table.delete(self._below(step), commit_properties=self._properties(step, 0))
        self._record(step, unless_after=before)

    def _record(self, step: Step, *, unless_after: int) -> None:
        """Commit a step of no rows: a statement that changes none commits nothing by itself."""
        if self._current(refresh=False).version() == unless_after:
            self.append([], step)
        else:
            self._sync_log()

    def _below(self, step: Step) -> str:
        mark = "" if self.at.layer in ("bronze", "dead_letters") else "_"
        return " or ".join(
            f"(`{mark}topic` = '{at.topic}' and `{mark}partition` = {at.index}"
            f" and `{mark}offset` < {one.start})"
            for at, one in step.covered.items()
        )

    def ledger(self) -> list[Entry]:
        found = (
            entry_of(commit["version"], commit["timestamp"], commit)
            for commit in reversed(self._current().history(_LEDGER_MAX))
        )
        return [entry for entry in found if entry is not None]

    def version(self) -> int:
        return self._current(refresh=False).version()

    def files(self) -> list[str]:
        return list(self._current().file_uris())

    def arrow(self) -> pa.Table:
        return self._current().to_pyarrow_table()

    def read(self, spark: SparkSession) -> DataFrame:
        import pyarrow as pa

        if not self.exists():
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        schema = self.schema()
        assert schema is not None
        listed = pa.table(self._current().get_add_actions(flatten=False)).to_pylist()
        # The log holds paths as addresses are written, the directory does not.
        pairs = [
            (urllib.parse.unquote(one["path"]), dict(one.get("partition") or {})) for one in listed
        ]
        return read_files(spark, self.at, schema, pairs)

    def compact(self, file_bytes: int) -> Mapping[str, Any]:
        self._refuse_odd_paths()
        with conflicts(self.at.uri):
            done = self._current().optimize.compact(target_size=file_bytes)
        return {"files_removed": done["numFilesRemoved"], "files_added": done["numFilesAdded"]}

    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]:
        """Remove files no commit refers to any more, those of crashed batches included."""
        removed = self._current().vacuum(
            # Whole hours only; a file must never go before its time.
            retention_hours=-(-retention_ms // 3_600_000),
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=True,
        )
        return list(removed)

    def discard(self, files: Iterable[File]) -> None:
        """Remove files that no commit will refer to."""
        self._storage.remove([one.path for one in files])

    def examine(self) -> None:
        """Nothing: what is written is read by the library it was written with."""

    def drop(self) -> None:
        if self.exists():
            self._storage.filesystem.delete_dir(self._storage.root)
        self._table = None

    def _current(self, *, refresh: bool = True) -> DeltaTable:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(self.at.uri, storage_options=self._options or None)
        elif refresh:
            self._table.update_incremental()
        return self._table

    def _version(self, name: str) -> int | None:
        return self._current(refresh=False).transaction_version(self._app(name))

    def _app(self, name: str) -> str:
        return f"pentalog:{self.at.pipeline}:{name}"

    def _properties(self, step: Step, rows: int) -> Any:
        from deltalake import CommitProperties, Transaction

        now_ms = _now_ms()
        versions: dict[str, int] = {}
        if step.batch >= 0:
            versions[f"query:{step.query}"] = step.batch
        for at, one in step.covered.items():
            versions[f"{name_of(at)}:start"] = one.start
            versions[f"{name_of(at)}:end"] = one.end
        for at, count in step.dropped.items():
            versions[f"{name_of(at)}:dropped"] = count
        return CommitProperties(
            app_transactions=[
                Transaction(self._app(name), version, now_ms) for name, version in versions.items()
            ],
            # The library's own retry would not ask whether the batch is there by now.
            max_commit_retries=0,
            custom_metadata=step.metadata(rows),
        )

    def _staged(self, files: Sequence[File]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Not of a newer version: the commit is fenced by the one that was looked at.
        schema = pa.schema(self._current(refresh=False).schema().to_arrow())
        parts = []
        for one in files:
            with self._storage.filesystem.open_input_file(self._storage.path(one.path)) as file:
                parts.append(pq.ParquetFile(file).read())
        return pa.concat_tables(parts).cast(schema) if parts else schema.empty_table()

    def _refuse_odd_paths(self) -> None:
        """Files that the jar wrote and only the jar finds again.

        It writes characters beyond ASCII into the log as they are.  The library removes files by
        names in which they are escaped, so these would stay and their rows be there twice.
        """
        if not all(path.isascii() for path in self._partitioned_paths()):
            raise SinkRefused(
                f"{self.at.uri}: Delta's jar wrote files of partitions whose values are not ASCII,"
                " and the library would not find them to replace them; set sink = 'delta-jar'"
            )

    def _partitioned_paths(self) -> list[str]:
        """What the log calls the files, if values are part of that."""
        import pyarrow as pa

        if not self.at.partition_by:
            return []
        listed = pa.table(self._current(refresh=False).get_add_actions(flatten=False))
        return list(listed.column("path").to_pylist())

    def _sync_log(self) -> None:
        table = self._current()
        if self.at.fsync:
            self._storage.sync(f"_delta_log/{table.version():020d}.json")


LATER: Final = (
    "s._offset > t._offset or (s._offset = t._offset and (s._topic > t._topic"
    " or (s._topic = t._topic and s._partition > t._partition)))"
)
"""One order over all places, so that the result does not depend on where batches were cut."""


@contextmanager
def conflicts(uri: str) -> Iterator[None]:
    from deltalake.exceptions import CommitFailedError

    try:
        yield
    except CommitFailedError as error:
        raise Busy(f"{uri}: {error}") from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
