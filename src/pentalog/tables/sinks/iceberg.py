"""Iceberg tables through pyiceberg: one catalog in an SQLite file beside a pipeline's tables.

The state is a property of the table, set in the same transaction that adds the files; the
properties of snapshots hold the ledger and go when snapshots are expired.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables.files import File, Layout
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks.reading import read_files
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
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

_STATE: Final = "pentalog.state"
_NAMESPACE: Final = "pentalog"
_PROPERTIES: Final = {
    # Two writers of the same batch would both succeed with the library's own retry.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergSink:
    """One Iceberg table."""

    keep_partitions = True

    def __init__(self, at: TableAt) -> None:
        try:
            import pyiceberg.catalog.sql  # noqa: F401
        except ImportError as error:
            raise SinkRefused(
                f"{error}; install it with: pip install 'pentalog[iceberg]'"
            ) from error
        self.at = at
        self._storage = storage_of(at.uri, at.storage_options)
        if not self._storage.is_local:
            raise SinkRefused(
                f"{at.uri}: the Iceberg catalog is a file and needs a file system; set"
                " sink = 'delta' for an object store"
            )
        self._data: Storage = self._storage._replace(root=f"{self._storage.root}/data")
        self._home = Path(at.uri.removesuffix(f"/{at.layer}"))
        if self._home == Path(at.uri):
            self._home = self._home.parent
        self._name = (_NAMESPACE, Path(at.uri).relative_to(self._home).as_posix().replace("/", "_"))
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def exists(self) -> bool:
        if not (self._home / "iceberg.db").exists():
            return False
        return self._table is not None or self._opened().table_exists(self._name)

    def schema(self) -> pa.Schema | None:
        return _plain(self._current().schema().as_arrow()) if self.exists() else None

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        from pyiceberg.exceptions import TableAlreadyExistsError

        if not self.exists():
            self._data.make_folder()
            try:
                table = self._opened().create_table(
                    self._name, schema, location=self.at.uri, properties=_PROPERTIES
                )
                with table.update_spec() as spec:
                    for name in self.at.partition_by:
                        spec.add_identity(name)
            except TableAlreadyExistsError:
                pass
        table = self._current()
        known = self.schema()
        assert known is not None
        if any(one.name not in known.names or one != known.field(one.name) for one in schema):
            with _conflicts(self.at.uri), table.update_schema() as update:
                update.union_by_name(schema)
        found = self.schema()
        assert found is not None
        return found

    def layout(self, file_bytes: int) -> Layout:
        schema = self.schema()
        assert schema is not None, "prepared first"
        return Layout(
            self._data.root, schema, self.at.partition_by, self.keep_partitions, file_bytes,
            self.at.fsync,
        )  # fmt: skip

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """Nothing: the state is written whole."""

    def state(self) -> State:
        if not self.exists():
            return State()
        return state_from_json(json.loads(self._current().properties.get(_STATE, "{}")))

    def append(self, files: Sequence[File], step: Step) -> None:
        table = self._looked_at()
        with _conflicts(self.at.uri), table.transaction() as transaction:
            if files:
                transaction.add_files(
                    [self._data.path(one.path) for one in files],
                    snapshot_properties=step.metadata(sum(one.rows for one in files)),
                )
            transaction.set_properties(self._next(table, step))
        self._table = None

    def merge(self, files: Sequence[File], step: Step) -> None:
        raise SinkRefused(f"{self.at.uri}: only Delta tables replace rows; set sink = 'delta'")

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        from pyiceberg.expressions import AlwaysTrue

        table = self._looked_at()
        with _conflicts(self.at.uri), table.transaction() as transaction:
            transaction.delete(AlwaysTrue())
            if files:
                transaction.add_files(
                    [self._data.path(one.path) for one in files],
                    snapshot_properties=step.metadata(sum(one.rows for one in files)),
                )
            transaction.set_properties(self._next(table, step))
        self._table = None

    def cut(self, step: Step) -> None:
        mark = "" if self.at.layer in ("bronze", "dead_letters") else "_"
        below = " or ".join(
            f"({mark}topic = '{at.topic}' and {mark}partition = {at.index}"
            f" and {mark}offset < {one.start})"
            for at, one in step.covered.items()
        )
        table = self._looked_at()
        with _conflicts(self.at.uri), table.transaction() as transaction:
            transaction.delete(below, snapshot_properties=step.metadata(0))
            transaction.set_properties(self._next(table, step))
        self._table = None

    def ledger(self) -> list[Entry]:
        found = (
            entry_of(number, one.timestamp_ms, one.summary.additional_properties)
            for number, one in enumerate(self._current().snapshots())
            if one.summary is not None
        )
        return [entry for entry in found if entry is not None]

    def version(self) -> int:
        return len(self._current().metadata.snapshots)

    def files(self) -> list[str]:
        return [
            str(one.file.file_path).removeprefix("file://")
            for one in self._current().scan().plan_files()
        ]

    def arrow(self) -> pa.Table:
        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        return self._current().scan().to_arrow().cast(schema)

    def read(self, spark: SparkSession) -> DataFrame:
        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        root = f"{self._storage.root}/"
        return read_files(
            spark, self.at, schema, [(path.removeprefix(root), {}) for path in self.files()]
        )

    def compact(self, file_bytes: int) -> Mapping[str, Any]:
        raise SinkRefused(
            f"{self.at.uri}: pyiceberg cannot compact; use Spark's Iceberg runtime and"
            " rewrite_data_files, or set sink = 'delta'"
        )

    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]:
        """Expire old snapshots and remove files that no snapshot refers to."""
        import datetime

        table = self._current()
        before = datetime.datetime.fromtimestamp(time.time() - retention_ms / 1000, datetime.UTC)
        if not dry_run and table.current_snapshot() is not None:
            with _conflicts(self.at.uri):
                table.maintenance.expire_snapshots().older_than(before).commit()
            table = self._current()
        used = {
            str(path).removeprefix("file://")
            for path in table.inspect.all_files().column("file_path").to_pylist()
        }
        root = Path(self._data.root)
        found = [
            path
            for path in sorted(root.rglob("*.parquet"))
            if str(path) not in used and path.stat().st_mtime <= before.timestamp()
        ]
        if not dry_run:
            for path in found:
                path.unlink(missing_ok=True)
        return [str(path.relative_to(root)) for path in found]

    def discard(self, files: Iterable[File]) -> None:
        self._data.remove([one.path for one in files])

    def drop(self) -> None:
        if self.exists():
            self._opened().drop_table(self._name)
        if Path(self.at.uri).exists():
            self._storage.filesystem.delete_dir(self._storage.root)
        self._table = None

    def _next(self, table: Table, step: Step) -> dict[str, str]:
        known = state_from_json(json.loads(table.properties.get(_STATE, "{}")))
        return {_STATE: json.dumps(state_as_json(after(known, step)))}

    def _opened(self) -> Catalog:
        if self._catalog is None:
            from pyiceberg.catalog.sql import SqlCatalog

            self._home.mkdir(parents=True, exist_ok=True)
            self._catalog = SqlCatalog(
                "pentalog", uri=f"sqlite:///{self._home}/iceberg.db", warehouse=str(self._home)
            )
            self._catalog.create_namespace_if_not_exists(_NAMESPACE)
        return self._catalog

    def _current(self) -> Table:
        self._table = self._opened().load_table(self._name)
        return self._table

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
