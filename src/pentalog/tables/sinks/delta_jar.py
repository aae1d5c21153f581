"""Delta tables written by Spark's own jar: for those who run it, and the same tables as `delta`.

Tasks put their files beside the table, and the jar takes the rows into it.  A commit of the jar
can record one app transaction only: its version is the number of our commit, so that of two
drivers with the same number one commits.  The state is in the commit's own metadata with the
ledger.  Looking at a table needs no jar.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import jars
from pentalog.tables.files import File, Layout
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks.delta import LATER, WRITER, DeltaSink, conflicts
from pentalog.tables.sinks.refusals import Busy, SinkRefused
from pentalog.tables.sinks.state import (
    Entry,
    State,
    Step,
    after,
    entry_of,
    state_as_json,
    state_from_json,
)
from pentalog.tables.storage import for_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_STATE: Final = "pentalog.state"
_NUMBER: Final = "pentalog.commit"
_TOKEN: Final = "pentalog.token"
_LOOK_BACK: Final = 20
_SETTINGS: Final = "spark.databricks.delta"
_CONFLICTS: Final = ("Concurrent", "MetadataChanged", "ProtocolChanged")

Write = Callable[["SparkSession", "_Commit"], None]


class _Commit:
    """What the jar is to record with the rows."""

    def __init__(self, app: str, number: int, metadata: Mapping[str, Any]) -> None:
        self.number = number
        self.token = uuid.uuid4().hex
        text = json.dumps({**metadata, _NUMBER: number, _TOKEN: self.token})
        self.options = {"txnAppId": app, "txnVersion": str(number), "userMetadata": text}

    @contextmanager
    def within(self, spark: SparkSession) -> Iterator[SparkSession]:
        """A session whose statements record it: they take no options."""
        from pyspark.sql import SparkSession

        session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        session.conf.set(f"{_SETTINGS}.write.txnAppId", self.options["txnAppId"])
        session.conf.set(f"{_SETTINGS}.write.txnVersion", self.options["txnVersion"])
        session.conf.set(f"{_SETTINGS}.commitInfo.userMetadata", self.options["userMetadata"])
        yield session


class DeltaJarSink(DeltaSink):
    """One Delta table whose rows Spark's jar writes."""

    writer = "jar"

    def __init__(self, at: TableAt) -> None:
        super().__init__(at)
        if not self._storage.is_local:
            raise SinkRefused(
                f"{at.uri}: sink = 'delta-jar' needs a file system; set sink = 'delta' for an"
                " object store"
            )
        self._staging = self._storage._replace(root=f"{self._storage.root}/_staged")
        self._place = for_spark(self._storage.root)
        self._looked_at: tuple[int, State] | None = None

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        found = super().prepare(schema)
        table = self._current()
        if table.metadata().configuration.get(WRITER) != self.writer:
            table.alter.set_table_properties({WRITER: self.writer}, raise_if_not_exists=False)
        return found

    def layout(self, file_bytes: int, *, whole: bool = False) -> Layout:
        schema = self.schema()
        assert schema is not None, "prepared first"
        self._staging.make_folder()
        return Layout(self._staging.root, schema, (), True, file_bytes, False)

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """Nothing: the state is written whole."""

    def state(self) -> State:
        if not self.exists():
            return State()
        self._current()
        number = self._version(_NUMBER)
        if number is None:
            # What was written before, if anything, was written without the jar.
            found = super().state()
        else:
            found = state_from_json(json.loads(self._recorded(number)[_STATE]))
        self._looked_at = (-1 if number is None else number, found)
        return found

    def append(self, files: Sequence[File], step: Step) -> None:
        self._write_rows(files, step, self.schema(), mode="append")

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        self._write_rows(files, step, schema, mode="overwrite", overwriteSchema="true")

    def merge(self, files: Sequence[File], step: Step) -> None:
        schema = self.schema()
        on = " and ".join(f"t.`{name}` <=> s.`{name}`" for name in self.at.key)

        def write(spark: SparkSession, recorded: _Commit) -> None:
            with recorded.within(spark) as session:
                view = f"staged_{recorded.token}"
                self._rows(session, files, schema).createOrReplaceTempView(view)
                session.sql(
                    f"merge into delta.`{self._place}` t using {view} s on {on} when matched and"
                    f" ({LATER}) then update set * when not matched then insert *"
                )

        self._commit(step, sum(one.rows for one in files), write)

    def cut(self, step: Step) -> None:
        def write(spark: SparkSession, recorded: _Commit) -> None:
            with recorded.within(spark) as session:
                session.sql(f"delete from delta.`{self._place}` where {self._below(step)}")

        self._commit(step, 0, write)

    def ledger(self) -> list[Entry]:
        found = (
            entry_of(commit["version"], commit["timestamp"], {**commit, **_metadata(commit)})
            for commit in reversed(self._current().history())
        )
        return [entry for entry in found if entry is not None]

    def compact(self, file_bytes: int) -> Mapping[str, Any]:
        # Commits of others push ours out of the log in time: the state is kept beside it, too.
        self.state()
        number = self._version(_NUMBER)
        if number is not None:
            kept = {_NUMBER: str(number), _STATE: self._recorded(number)[_STATE]}
            with conflicts(self.at.uri):
                self._current().alter.set_table_properties(kept, raise_if_not_exists=False)
        if all(path.isascii() and "~" not in path for path in self._partitioned_paths()):
            return super().compact(file_bytes)
        # The library does not find these, as the jar writes them.
        if jars.session() is None:
            raise SinkRefused(
                f"{self.at.uri}: has partitions whose values are not ASCII or have a ~, which only"
                " Delta's jar can compact; set compact_every in the pipeline, or run in Spark:"
                f" optimize delta.`{self.at.uri}`"
            )
        return self._optimize(file_bytes)

    def _optimize(self, file_bytes: int) -> Mapping[str, Any]:
        from pyspark.sql import SparkSession

        spark = jars.session_with(jars.DELTA, self.at.uri)
        session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        for name in ("maxFileSize", "minFileSize"):
            session.conf.set(f"{_SETTINGS}.optimize.{name}", str(file_bytes))
        with jars.refusing(jars.DELTA, self.at.uri, spark, _CONFLICTS):
            row = session.sql(f"optimize delta.`{self._place}`").first()
        done = {} if row is None else row["metrics"].asDict()
        return {
            "files_removed": done.get("numFilesRemoved", 0),
            "files_added": done.get("numFilesAdded", 0),
        }

    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]:
        before_s = time.time() - retention_ms / 1000
        left = [
            path
            for path in sorted(Path(self._staging.root).glob("*.parquet"))
            if path.stat().st_mtime <= before_s
        ]
        if not dry_run:
            for path in left:
                path.unlink(missing_ok=True)
        found = super().vacuum(retention_ms, dry_run=dry_run)
        staged = [f"_staged/{path.name}" for path in left]
        return [*staged, *(one for one in found if not one.startswith("_staged/"))]

    def discard(self, files: Iterable[File]) -> None:
        self._staging.remove([one.path for one in files])

    def examine(self) -> None:
        """Read by the jar, which may be able to write only."""
        spark = jars.session_with(jars.DELTA, self.at.uri)
        with jars.refusing(jars.DELTA, self.at.uri, spark, _CONFLICTS):
            spark.read.format("delta").load(self._place).count()

    def _write_rows(
        self, files: Sequence[File], step: Step, schema: pa.Schema | None, **options: str
    ) -> None:
        def write(spark: SparkSession, recorded: _Commit) -> None:
            writer = self._rows(spark, files, schema).write.format("delta")
            writer = writer.mode(options["mode"]).options(**recorded.options)
            if "overwriteSchema" in options:
                writer = writer.option("overwriteSchema", options["overwriteSchema"])
            writer.partitionBy(*self.at.partition_by).save(self._place)

        self._commit(step, sum(one.rows for one in files), write)
        self.discard(files)

    def _rows(
        self, spark: SparkSession, files: Sequence[File], schema: pa.Schema | None
    ) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        assert schema is not None, "prepared first"
        wanted = from_arrow_schema(schema)
        if not files:
            return spark.createDataFrame([], wanted)
        staged = (for_spark(self._staging.path(one.path)) for one in files)
        return spark.read.schema(wanted).parquet(*staged)

    def _commit(self, step: Step, rows: int, write: Write) -> None:
        """Let the jar commit, and see whose commit of this number is in the table."""
        assert self._looked_at is not None, "look at the state first"
        last, known = self._looked_at
        state = json.dumps(state_as_json(after(known, step)))
        recorded = _Commit(self._app(_NUMBER), last + 1, {**step.metadata(rows), _STATE: state})
        spark = jars.session_with(jars.DELTA, self.at.uri)
        with jars.refusing(jars.DELTA, self.at.uri, spark, _CONFLICTS):
            write(spark, recorded)
            if not self._there(recorded):
                # A statement that changes no row commits nothing, not even that it ran.
                empty = self._rows(spark, [], self.schema()).write.format("delta")
                empty.mode("append").options(**recorded.options).save(self._place)
        if self._recorded(recorded.number)[_TOKEN] != recorded.token:
            raise Busy(f"{self.at.uri}: commit {recorded.number} was made by another writer")
        self._looked_at = None

    def _there(self, recorded: _Commit) -> bool:
        self._current()
        number = self._version(_NUMBER)
        return number is not None and number >= recorded.number

    def _recorded(self, number: int) -> Mapping[str, Any]:
        """The metadata of our commit with a number."""
        table = self._current()
        for limit in (_LOOK_BACK, None):
            for commit in table.history(limit):
                found = _metadata(commit)
                if found.get(_NUMBER) == number:
                    return found
        kept = table.metadata().configuration
        if kept.get(_NUMBER) == str(number):
            return {_STATE: kept[_STATE], _TOKEN: ""}
        raise SinkRefused(
            f"{self.at.uri}: commit {number}, which says which offsets the table holds, is no"
            " longer in its log; drop the pipeline and run it again, and raise the table's"
            " delta.logRetentionDuration if it rests that long"
        )


def _metadata(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """What we gave the jar for a commit; nothing for the commits of others."""
    text = commit.get("userMetadata")
    if not isinstance(text, str) or not text.startswith("{"):
        return {}
    found = json.loads(text)
    return found if isinstance(found, dict) and _NUMBER in found else {}
