"""`df.write.format("pentalog")` and `writeStream`: rows into topics, exactly once.

| Option | Meaning |
|---|---|
| `servers` | a Kafka door or cluster, `HOST:PORT,...` |
| `topic` | for rows without a column `topic` |
| `query` | the name under which batches are recorded; a stream's own id if not given |
| `batch` | batch writes: a number; with `query`, writing it again adds nothing |
| `transactionTimeoutMs` | longest time between a task's first row and the commit of its batch |

and those of the connection: `timeoutMs`, `tls`, `saslMechanism` and so on, as in reading.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pentalog.tables.encoder import RowsRefused, check_columns
from pentalog.tables.options import OptionRefused, client_options
from pentalog.tables.settlement import give_up, settle, write_task
from pentalog.tables.shares import Batch, Share, Target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TIMEOUT_MS: Final = 900_000
"""The most that brokers allow unless told otherwise."""
_OURS: Final = ("servers", "topic", "query", "batch", "transactiontimeoutms")
_SPARKS: Final = ("checkpointlocation", "path")
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

Messages: TypeAlias = "Sequence[WriterCommitMessage | None]"
"""What the tasks sent; nothing from those that failed."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    batch: Batch
    share: Share | None
    listed: bool


def batch_writer(
    schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one `df.write`."""
    given = {name.lower(): value for name, value in options.items()}
    query, number = given.get("query", ""), given.get("batch", "")
    if overwrite:
        raise RowsRefused("a topic cannot be overwritten; use .mode('append')")
    if bool(query) != bool(number) or (number and not number.isdecimal()):
        raise OptionRefused("query and batch = NUMBER are given together, or neither")
    batch = Batch(query or uuid.uuid4().hex, int(number or 0), replayable=bool(query))
    return _BatchWriter(_target(given, schema), batch)


def stream_writer(
    schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one streaming query."""
    given = {name.lower(): value for name, value in options.items()}
    if overwrite:
        raise RowsRefused("a topic cannot be overwritten; use .outputMode('append') or 'update'")
    if "batch" in given:
        raise OptionRefused("batch is for batch writes; a stream numbers its batches itself")
    return _StreamWriter(_target(given, schema), given.get("query", ""))


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, batch: Batch) -> None:
        self._target = target
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._target, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        _commit(self._target, messages)

    def abort(self, messages: Messages) -> None:
        _abort(self._target, messages)


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target, query: str) -> None:
        self._target = target
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _task()
        query = self._query or context.getLocalProperty(_QUERY_ID)
        number = context.getLocalProperty(_BATCH_ID)
        assert query is not None, "Spark did not say which query this is"
        assert number is not None, "Spark did not say which batch this is"
        return _write(self._target, Batch(query, int(number), replayable=True), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _commit(self._target, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _abort(self._target, messages)


def _task() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "called in a task"
    return context


def _write(target: Target, batch: Batch, rows: Iterator[pa.RecordBatch]) -> Written:
    return Written(batch, *write_task(target, batch, _task().partitionId(), rows))


def _commit(target: Target, messages: Messages) -> None:
    written = _written(messages)
    if not written:
        return
    shares = [one.share for one in written if one.share is not None]
    batch = written[0].batch
    settle(target, batch, shares, listed=any(one.listed for one in written))


def _abort(target: Target, messages: Messages) -> None:
    written = _written(messages)
    shares = [one.share for one in written if one.share is not None]
    if shares:
        give_up(target, written[0].batch, shares)


def _written(messages: Messages) -> list[Written]:
    """What the tasks said that came to their end."""
    return [one for one in messages if isinstance(one, Written)]


def _target(given: Mapping[str, str], schema: StructType) -> Target:
    topic = given.get("topic", "")
    timeout = given.get("transactiontimeoutms", str(_TIMEOUT_MS))
    if not given.get("servers"):
        raise OptionRefused("name where to write: servers = HOST:PORT,... (a Kafka door)")
    if not timeout.isdecimal() or not int(timeout):
        raise OptionRefused(f"transactionTimeoutMs = {timeout!r}: accepted is a number from 1 on")
    check_columns(schema, topic)
    others = {
        name: value for name, value in given.items() if name not in _OURS and name not in _SPARKS
    }
    return Target(given["servers"], topic, int(timeout), client_options(others))
