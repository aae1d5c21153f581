"""Tables into Spark without a jar: their files, given the table's own schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pentalog.tables.files import NULL_PARTITION
from pentalog.tables.pipeline import TableAt
from pentalog.tables.storage import for_spark, storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ESCAPE: Final = re.compile(r"%([0-9A-F]{2})")

Listed = tuple[str, Mapping[str, Any]]
"""A file's path below its table, and the values of the columns that are not inside it."""


def read_files(
    spark: SparkSession, at: TableAt, schema: pa.Schema, files: Sequence[Listed]
) -> DataFrame:
    """The rows of `files` as one DataFrame of `schema`; columns a file lacks are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], wanted)
    storage = storage_of(at.uri, at.storage_options)
    if not storage.is_local:
        # Spark has no object store without jars; its Python workers do.
        rows = spark.createDataFrame([(path, _texts(values)) for path, values in files])
        tasks = min(len(files), 4 * spark.sparkContext.defaultParallelism)
        return rows.repartition(tasks).mapInArrow(_opener(at, schema), wanted)
    return _read_local(spark, for_spark(storage.root), wanted, files)


def _read_local(
    spark: SparkSession, root: str, wanted: StructType, files: Sequence[Listed]
) -> DataFrame:
    paths = [f"{root}/{path}" for path, _ in files]
    columns = [f"`{one.name}`" for one in wanted]
    if not any(values for _, values in files):
        return spark.read.schema(wanted).parquet(*paths).select(*columns)
    if all(_in_path(path, name, value) for path, values in files for name, value in values.items()):
        reader = spark.read.schema(wanted).option("basePath", root)
        return reader.parquet(*paths).select(*columns)
    return _joined(spark, wanted, paths, files).select(*columns)


def _in_path(path: str, name: str, value: Any) -> bool:
    """Whether Spark, which takes escapes for single characters, finds this value in the path."""
    found = re.search(f"(?:^|/){re.escape(name)}=([^/]*)/", path)
    text = _ESCAPE.sub(lambda one: chr(int(one[1], 16)), found[1]) if found else ""
    return text == (NULL_PARTITION if value is None else str(value))


def _joined(
    spark: SparkSession, wanted: StructType, paths: list[str], files: Sequence[Listed]
) -> DataFrame:
    """Partition values by the name of the file, which no other file has."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    names = sorted({name for _, values in files for name in values})
    inside = StructType([one for one in wanted if one.name not in names])
    texts = [
        (path.rpartition("/")[2], *(_text(values.get(name)) for name in names))
        for path, values in files
    ]
    listed = spark.createDataFrame(
        texts, StructType([StructField(name, StringType()) for name in ("_file", *names)])
    )
    types = {one.name: one.dataType for one in wanted}
    for name in names:
        listed = listed.withColumn(name, f.col(f"`{name}`").cast(types[name]))
    rows = spark.read.schema(inside).option("recursiveFileLookup", "true").parquet(*paths)
    return rows.withColumn("_file", f.col("_metadata.file_name")).join(f.broadcast(listed), "_file")


def _texts(values: Mapping[str, Any]) -> str:
    return json.dumps({name: _text(value) for name, value in values.items()})


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _opener(
    at: TableAt, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    uri, options = at.uri, dict(at.storage_options)

    def opened(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        storage = storage_of(uri, options)
        for batch in batches:
            for path, values in zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True):
                given = json.loads(values)
                with storage.filesystem.open_input_file(storage.path(path)) as file:
                    for rows in pq.ParquetFile(file).iter_batches(65_536):
                        yield _complete(pa.Table.from_batches([rows]), schema, given)

    return opened


def _complete(rows: pa.Table, schema: pa.Schema, given: Mapping[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for one in schema:
        if one.name in given:
            column = pa.array([given[one.name]] * rows.num_rows, pa.string()).cast(one.type)
        elif one.name in rows.column_names:
            column = rows.column(one.name).cast(one.type).combine_chunks()
        else:
            column = pa.nulls(rows.num_rows, one.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
