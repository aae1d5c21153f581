"""Iceberg tables through pyiceberg, in a catalog of the user's or in a file beside the tables.

The state is a property of the table, set in the same transaction that adds the files; the
properties of snapshots hold the ledger and go when snapshots are expired.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import replacement
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.pipeline import TableAt, is_local
from pentalog.tables.sinks import iceberg_catalog
from pentalog.tables.sinks.iceberg_catalog import failing
from pentalog.tables.sinks.reading import Listed, read_files
from pentalog.tables.sinks.refusals import Busy, Missing, SinkRefused
from pentalog.tables.sinks.state import (
    Entry,
    State,
    Step,
    after,
    entry_of,
    state_as_json,
    state_from_json,
)
from pentalog.tables.storage import Storage, storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession

_STATE: Final = "pentalog.state"
NOTE: Final = "pentalog.note"
_FILE_BYTES: Final = 134_217_728
_COMPACT_LOOKS: Final = 10
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9]*:(?://)?")
_ONCE: Final = {
    # Two writers of the same batch would both succeed with the library's own retry.
    "commit.retry.num-retries": "0",
}
_PROPERTIES: Final = {
    **_ONCE,
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergSink:
    """One Iceberg table."""

    keep_partitions = True

    def __init__(self, at: TableAt) -> None:
        try:
            import pyiceberg.catalog

            if not at.catalog:
                import pyiceberg.catalog.sql  # noqa: F401
        except ImportError as error:
            raise SinkRefused(
                f"{error}; install it with: pip install 'pentalog[iceberg]'"
            ) from error
        self.at = at
        if not at.catalog and not is_local(at.uri):
            raise SinkRefused(
                f"{at.uri}: iceberg.db, the catalog of those who name none, needs a file system;"
                " give sink = 'iceberg' and catalog = { type = 'rest', uri = 'https://..' }, or set"
                " sink = 'delta' for an object store without a catalog"
            )
        self._home = iceberg_catalog.home(at)
        self._name = iceberg_catalog.identifier(at)
        self._granted: Mapping[str, str] = at.storage_options
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._file_bytes = _FILE_BYTES

    def exists(self) -> bool:
        from pyiceberg.exceptions import NoSuchTableError

        if self._table is not None:
            return True
        if not self.at.catalog and not (self._home / "iceberg.db").exists():
            return False
        try:
            self._current()
        except NoSuchTableError:
            return False
        return True

    def schema(self) -> pa.Schema | None:
        return _plain(self._current().schema().as_arrow()) if self.exists() else None

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        from pyiceberg.exceptions import TableAlreadyExistsError

        if not self.exists():
            self._data.make_folder()
            with failing(self.at), contextlib.suppress(TableAlreadyExistsError):
                iceberg_catalog.make_namespace(self._opened(), self._name)
                self._opened().create_table(
                    self._name, schema, location=self.at.uri, properties=_PROPERTIES
                )
        table = self._current()
        self._partition(table)
        known = self.schema()
        assert known is not None
        if any(one.name not in known.names or one != known.field(one.name) for one in schema):
            with failing(self.at), _conflicts(self.at.uri), table.update_schema() as update:
                update.union_by_name(schema)
        found = self.schema()
        assert found is not None
        return found

    def _partition(self, table: Table) -> None:
        """A commit of its own, which is made up for if a crash came before it."""
        if not self.at.partition_by or table.current_snapshot() or table.spec().fields:
            return
        with failing(self.at), _conflicts(self.at.uri), table.update_spec() as spec:
            for name in self.at.partition_by:
                spec.add_identity(name)

    def layout(self, file_bytes: int, *, whole: bool = False) -> Layout:
        self._file_bytes = file_bytes
        # What will be merged is read again here: whole rows, wherever they go in the end.
        return self._layout(() if self.at.key and not whole else self.at.partition_by)

    def _layout(self, partition_by: tuple[str, ...]) -> Layout:
        schema = self.schema()
        assert schema is not None, "prepared first"
        return Layout(
            f"{self.at.uri}/data", schema, partition_by, self.keep_partitions, self._file_bytes,
            self.at.fsync, self._granted,
        )  # fmt: skip

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """Nothing: the state is written whole."""

    def state(self) -> State:
        if not self.exists():
            return State()
        return state_from_json(json.loads(self._current().properties.get(_STATE, "{}")))

    def append(self, files: Sequence[File], step: Step) -> None:
        self._commit(self._looked_at(), files, (), step)

    def merge(self, files: Sequence[File], step: Step) -> None:
        """Replace rows by key; of two rows of a key the one with the later place stays."""
        table = self._looked_at()
        rows = self._staged(files, table)
        made = FileSet(self._layout(self.at.partition_by))
        near = _near(replacement.bounds(rows, self.at.key))
        with made.discarding(Exception):
            there = self._opened_files(self._files(table, near))
            changed = replacement.replaced(there, rows, self.at.key, made)
        with made.discarding(Busy):
            self._commit(table, made.close(), changed, step, rows.num_rows)

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        table = self._looked_at()
        self._commit(table, files, self._files(table), step, schema=schema)

    def cut(self, step: Step) -> None:
        mark = "" if self.at.layer in ("bronze", "dead_letters") else "_"
        highest = max(one.start for one in step.covered.values())
        table = self._looked_at()
        made = FileSet(self._layout(self.at.partition_by))
        near = _compared("LessThan", f"{mark}offset", highest)
        below = self._opened_files(self._files(table, near))
        with made.discarding(Exception):
            changed = replacement.removed_below(below, step.covered, mark, made)
        with made.discarding(Busy):
            self._commit(table, made.close(), changed, step, 0)

    def ledger(self) -> list[Entry]:
        found = (
            entry_of(one.sequence_number or 0, one.timestamp_ms, one.summary.additional_properties)
            for one in self._current().snapshots()
            if one.summary is not None
        )
        return [entry for entry in found if entry is not None]

    def version(self) -> int:
        newest = self._current().current_snapshot()
        return (newest.sequence_number or 0) if newest is not None else 0

    def files(self) -> list[str]:
        return [str(one.file_path).removeprefix("file://") for one in self._files(self._current())]

    def arrow(self) -> pa.Table:
        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        return self._current().scan().to_arrow().cast(schema)

    def read(self, spark: SparkSession) -> DataFrame:
        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        files = self._files(self._current())
        root = f"{self._storage.root}/"
        listed: list[Listed] = [(_in_store(one.file_path).removeprefix(root), {}) for one in files]
        at = dataclasses.replace(self.at, storage_options=self._granted)
        return read_files(spark, at, schema, listed)

    def compact(self, file_bytes: int) -> Mapping[str, Any]:
        """Write small files together; commits that come meanwhile only make it look again."""
        table = self._current()
        self._file_bytes = file_bytes
        small = replacement.small_files(
            self._files(table),
            lambda one: int(one.file_size_in_bytes),
            lambda one: (one.spec_id, one.partition),
            file_bytes // 2,
        )
        if not small:
            return {"files_removed": 0, "files_added": 0}
        made = FileSet(self._layout(self.at.partition_by))
        with made.discarding(Exception):
            replacement.copied((opened for _, opened in self._opened_files(small)), made)
        with made.discarding(Busy):
            files = made.close()
            for last in (False,) * _COMPACT_LOOKS + (True,):
                try:
                    self._commit(table, files, small, None)
                    break
                except Busy:
                    table = self._current()
                    if last or not set(small) <= set(self._files(table)):
                        raise
        return {"files_removed": len(small), "files_added": len(files)}

    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]:
        """Expire old snapshots and remove files that no snapshot refers to."""
        import datetime

        table = self._current()
        before = datetime.datetime.fromtimestamp(time.time() - retention_ms / 1000, datetime.UTC)
        if not dry_run and table.current_snapshot() is not None:
            with failing(self.at), _conflicts(self.at.uri):
                table.maintenance.expire_snapshots().older_than(before).commit()
            table = self._current()
        used = self._used(table)
        storage = self._storage
        found = [
            name
            for folder, ending in (("data", ".parquet"), ("metadata", ".avro"))
            for name, written_s in storage.listed(folder)
            if name.endswith(ending)
            and storage.path(name) not in used
            and written_s <= before.timestamp()
        ]
        if not dry_run:
            storage.remove(found)
        return found

    def _used(self, table: Table) -> set[str]:
        """Every file that a snapshot refers to, directly or not."""
        files = table.inspect.all_files().column("file_path").to_pylist()
        found = {_in_store(one) for one in files}
        for snapshot in table.snapshots():
            found.add(_in_store(snapshot.manifest_list))
            found |= {_in_store(one.manifest_path) for one in snapshot.manifests(table.io)}
        return found

    def discard(self, files: Iterable[File]) -> None:
        self._data.remove([one.path for one in files])

    def examine(self) -> None:
        """Nothing: what is written is read by the library it was written with."""

    def drop(self) -> None:
        if self.exists():
            with failing(self.at):
                self._opened().drop_table(self._name)
        self._storage.remove_all()
        self._table = None

    def _commit(
        self,
        table: Table,
        files: Sequence[File],
        removed: Sequence[DataFile],
        step: Step | None,
        rows: int | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        """One snapshot, even of nothing: only a snapshot is fenced by the one before it."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        count = sum(one.rows for one in files) if rows is None else rows
        entry = {NOTE: "compact"} if step is None else step.metadata(count)
        self._check_once(table)
        with failing(self.at), _conflicts(self.at.uri), table.transaction() as transaction:
            self._shape(transaction, schema)
            metadata = transaction.table_metadata
            update = transaction.update_snapshot(snapshot_properties=entry)
            with update.overwrite() if removed else update.fast_append() as snapshot:
                for gone in removed:
                    snapshot.delete_data_file(gone)
                for one in files:
                    path = f"{self.at.uri}/data/{one.path}"
                    snapshot.append_data_file(parquet_file_to_data_file(table.io, metadata, path))
            if step is not None:
                transaction.set_properties(self._next(table, step))
        self._table = None

    def _check_once(self, table: Table) -> None:
        """Another writer's table may come with the library's own retry, or be given it."""
        if not _ONCE.items() <= table.properties.items():
            with failing(self.at), _conflicts(self.at.uri), table.transaction() as transaction:
                transaction.set_properties(_ONCE)
            raise Busy(f"{self.at.uri}: looks again, now that the library's retry is off")

    def _shape(self, transaction: Transaction, schema: pa.Schema | None) -> None:
        """Let columns of files be found by name; `schema` is for rows in place of all others."""
        from pyiceberg.table import TableProperties

        if transaction.table_metadata.name_mapping() is None:
            names = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
        if schema is None:
            return
        known = _plain(transaction.table_metadata.schema().as_arrow())
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for one in known:
                if one.name not in schema.names or schema.field(one.name).type != one.type:
                    update.delete_column(one.name)
        with transaction.update_schema() as update:
            update.union_by_name(schema)

    def _staged(self, files: Sequence[File], table: Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _plain(table.schema().as_arrow())
        data, parts = self._data, []
        for one in files:
            with data.filesystem.open_input_file(data.path(one.path)) as file:
                parts.append(pq.ParquetFile(file).read())
        return pa.concat_tables(parts).cast(schema) if parts else schema.empty_table()

    def _files(self, table: Table, near: BooleanExpression | None = None) -> list[DataFile]:
        """The files of a version of the table, those that cannot hold what is `near` left out."""
        from pyiceberg.expressions import AlwaysTrue

        found = []
        for task in table.scan(row_filter=near or AlwaysTrue()).plan_files():
            if task.delete_files:
                raise SinkRefused(
                    f"{self.at.uri}: another writer deleted rows of {task.file.file_path} without"
                    " writing it anew; let that writer do so (rewrite_data_files), then try again"
                )
            found.append(task.file)
        return found

    def _next(self, table: Table, step: Step) -> dict[str, str]:
        known = state_from_json(json.loads(table.properties.get(_STATE, "{}")))
        return {_STATE: json.dumps(state_as_json(after(known, step)))}

    def _opened_files(self, files: Iterable[DataFile]) -> Iterator[tuple[DataFile, pq.ParquetFile]]:
        import pyarrow.parquet as pq

        filesystem = self._storage.filesystem
        for one in files:
            with filesystem.open_input_file(_in_store(one.file_path)) as file:
                yield one, pq.ParquetFile(file)

    @property
    def _storage(self) -> Storage:
        """The table's directory, by the access that the pipeline has, or the catalog grants."""
        return storage_of(self.at.uri, self._granted)

    @property
    def _data(self) -> Storage:
        storage = self._storage
        return storage._replace(root=f"{storage.root}/data")

    def _opened(self) -> Catalog:
        if self._catalog is None:
            with failing(self.at):
                self._catalog = iceberg_catalog.open_catalog(self.at)
        return self._catalog

    def _current(self) -> Table:
        with failing(self.at):
            table = self._opened().load_table(self._name)
        iceberg_catalog.check_ours(self.at, table)
        if self.at.catalog:
            self._granted = iceberg_catalog.granted(self.at, table)
        self._table = table
        return table

    def _looked_at(self) -> Table:
        """The version that `state` was read from, so that the commit is fenced by it."""
        assert self._table is not None, "look at the state first"
        return self._table


@contextmanager
def _conflicts(uri: str) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException

    try:
        yield
    except CommitFailedException as error:
        raise Busy(f"{uri}: {error}") from error


def _in_store(address: str) -> str:
    """The path in the store: writers do not agree about `s3a:`, `s3:`, `file:` or nothing."""
    return _SCHEME.sub("", str(address))


def _near(bounds: Mapping[str, replacement.Bounds]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And

    found: BooleanExpression = AlwaysTrue()
    for name, (least, greatest) in bounds.items():
        found = And(found, _compared("GreaterThanOrEqual", name, least))
        found = And(found, _compared("LessThanOrEqual", name, greatest))
    return found


def _compared(kind: str, name: str, value: Any) -> BooleanExpression:
    """The library's comparisons are typed as what they hold, not as what they take."""
    from pyiceberg import expressions

    made: BooleanExpression = getattr(expressions, kind)(name, value)
    return made


def _plain(schema: pa.Schema) -> pa.Schema:
    """As Spark and our files have it: no 64-bit text offsets, no field numbers."""
    import pyarrow as pa

    return pa.schema([pa.field(one.name, _small(one.type)) for one in schema])


def _small(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _small(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return kind
