"""Iceberg tables committed by Iceberg's own Java library, and the same tables as `iceberg`.

Iceberg's Spark extension fits Spark 4.1 and older, but the library in the same jar needs no Spark:
the driver's Java makes the snapshot and commits it, through the same catalog file.  What a commit
is based on is what was looked at, or it is refused; the library's own retry is not used, for it
would put a batch on top of whatever came between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pentalog.tables import jars
from pentalog.tables.files import File
from pentalog.tables.sinks.iceberg import NOTE, IcebergSink
from pentalog.tables.sinks.iceberg_catalog import CATALOG
from pentalog.tables.sinks.refusals import Busy
from pentalog.tables.sinks.state import Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession

_CONFLICTS: Final = ("CommitFailedException", "ValidationException")


class IcebergJarSink(IcebergSink):
    """One Iceberg table whose snapshots Iceberg's Java library commits."""

    def examine(self) -> None:
        """Read by the jar as well."""
        with self._java() as (java, loaded):
            rows = java.org.apache.iceberg.data.IcebergGenerics.read(loaded).build()
            for _ in rows.iterator():
                pass
            rows.close()

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
        from pyiceberg.io.pyarrow import parquet_file_to_data_file
        from pyiceberg.table import Transaction

        if step is None and jars.session() is None:
            # Upkeep from the command line, without Spark: the table does not mind.
            super()._commit(table, files, removed, step)
            return
        count = sum(one.rows for one in files) if rows is None else rows
        entry = {NOTE: "compact"} if step is None else step.metadata(count)
        # Never committed: it tells what the table looks like with the change.
        planned = Transaction(table)
        self._shape(planned, schema)
        metadata = planned.table_metadata
        added = [
            parquet_file_to_data_file(table.io, metadata, self._data.path(one.path))
            for one in files
        ]
        for one in added:
            one.spec_id = metadata.default_spec_id
        properties = {} if step is None else self._next(table, step)
        properties |= {
            key: value
            for key, value in metadata.properties.items()
            if table.properties.get(key) != value
        }
        with self._java() as (java, loaded):
            operations = loaded.operations()
            base = operations.current()
            if base.metadataFileLocation() != table.metadata_location:
                raise Busy(f"{self.at.uri}: another writer came first")
            update = _update(loaded, compacting=step is None, removing=bool(removed))
            for key, value in entry.items():
                update.set(key, value)
            for one in _in_java(java, loaded, removed, metadata):
                update.deleteFile(one)
            for one in _in_java(java, loaded, added, metadata):
                update.addFile(one) if removed else update.appendFile(one)
            made = java.org.apache.iceberg.TableMetadata.buildFrom(base)
            if schema is not None:
                text = metadata.schema().model_dump_json(by_alias=True)
                shape = java.org.apache.iceberg.SchemaParser.fromJson(text)
                made = made.setCurrentSchema(shape, metadata.last_column_id)
            made = made.setBranchSnapshot(update.apply(), "main").setProperties(properties)
            operations.commit(base, made.build())
        self._table = None

    @contextmanager
    def _java(self) -> Iterator[tuple[Any, Any]]:
        """Java's names, and the table as Java has it now."""
        spark = jars.session_with(jars.ICEBERG, self.at.uri)
        java: Any = spark._jvm
        configuration = java.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        # The table's paths are bare, as its other writers have them.
        configuration.set("fs.defaultFS", "file:///")
        place = {
            "uri": f"jdbc:sqlite:{self._home}/iceberg.db",
            "warehouse": str(self._home),
            "jdbc.schema-version": "V1",
        }
        with jars.refusing(jars.ICEBERG, self.at.uri, spark, _CONFLICTS):
            catalog = java.org.apache.iceberg.CatalogUtil.loadCatalog(
                "org.apache.iceberg.jdbc.JdbcCatalog",
                CATALOG,
                place,
                configuration,
            )
            try:
                yield java, catalog.loadTable(_identifier(spark, self._name))
            finally:
                catalog.close()


def _update(loaded: Any, *, compacting: bool, removing: bool) -> Any:
    if compacting:
        return loaded.newRewrite()
    return loaded.newOverwrite() if removing else loaded.newFastAppend()


def _identifier(spark: SparkSession, name: tuple[str, ...]) -> Any:
    java: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    levels = gateway.new_array(java.java.lang.String, 1)
    levels[0] = name[0]
    space = java.org.apache.iceberg.catalog.Namespace.of(levels)
    return java.org.apache.iceberg.catalog.TableIdentifier.of(space, name[1])


def _in_java(
    java: Any, loaded: Any, files: Iterable[DataFile], metadata: TableMetadata
) -> Iterator[Any]:
    """Files as Java has them, by way of the text that catalogs exchange."""
    mapper = java.org.apache.iceberg.util.JsonUtil.mapper()
    specs = loaded.specs()
    for one in files:
        node = mapper.readTree(json.dumps(_as_json(one, metadata)))
        yield java.org.apache.iceberg.ContentFileParser.fromJson(node, specs)


def _as_json(one: DataFile, metadata: TableMetadata) -> dict[str, Any]:
    from pyiceberg.conversions import to_json
    from pyiceberg.types import PrimitiveType

    spec = metadata.specs()[one.spec_id]
    partition = []
    for place, kind in enumerate(spec.partition_type(metadata.schema()).fields):
        assert isinstance(kind.field_type, PrimitiveType)
        value = one.partition[place]
        partition.append(None if value is None else to_json(kind.field_type, value))
    found: dict[str, Any] = {
        "spec-id": one.spec_id,
        "content": "data",
        "file-path": one.file_path,
        "file-format": "parquet",
        "partition": partition,
        "file-size-in-bytes": one.file_size_in_bytes,
        "record-count": one.record_count,
    }
    for name in ("column-sizes", "value-counts", "null-value-counts", "nan-value-counts",
                 "lower-bounds", "upper-bounds"):  # fmt: skip
        counts: Mapping[int, Any] = getattr(one, name.replace("-", "_")) or {}
        values = [each.hex() if isinstance(each, bytes) else each for each in counts.values()]
        found[name] = {"keys": list(counts), "values": values}
    return found
