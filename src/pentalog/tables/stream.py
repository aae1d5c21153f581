"""Topics as a stream: bounded triggers, a frozen end if asked for, lag, and a group to show it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pentalog.clients.kafka import Cluster, GroupOffset, commit
from pentalog.model.types import Offset, Partition
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import Origin, chosen_partitions, open_origin
from pentalog.tables.positions import (
    LostRecords,
    Positions,
    check_start,
    from_json,
    resolve,
    shares,
    to_json,
)
from pentalog.tables.source import make_maker
from pentalog.tables.splits import Split, make_splits, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def lease_text(options: SourceOptions) -> str:
    """What a committed offset says to hold records for this group."""
    if not options.lease_ms:
        return ""
    return f"pentalog.lease={options.lease_ms};bytes={options.lease_bytes}"


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in a process of its own beside the driver, as long as the query does."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._origin: Origin | None = None
        self._cluster: Cluster | None = None
        self._frozen: Positions | None = None
        self._shown: Positions | None = None
        self._leased_s = float("-inf")
        make_maker(schema, options)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        partitions = chosen_partitions(self._source(), self._options)
        found = resolve(self._source(), partitions, self._options, ending=False)
        starts = self._source().starts(partitions)
        fail = self._options.fail_on_data_loss
        return to_json(
            {at: check_start(at, first, starts[at], fail=fail) for at, first in found.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_per_trigger_max is not None:
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._frozen = self._ends()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return to_json(self._ends())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        begun = from_json(start)
        ends = self._frozen if self._frozen is not None else self._ends()
        self._check_there(begun, ends)
        self._show(begun)
        # A partition seen for the first time begins, empty, where its records begin: from here
        # on the checkpoint knows its place.
        fresh = [at for at in ends if at not in begun]
        reached = {at: offset for at, offset in begun.items() if at in ends}
        reached |= self._source().starts(fresh)
        waiting = {at: max(0, ends[at] - begun[at]) for at in ends if at in begun}
        if isinstance(limit, ReadMaxRows):
            taken = shares(waiting, limit.max_rows)
            if self._options.bytes_per_trigger_max is not None:
                taken = self._within_bytes(begun, taken, self._options.bytes_per_trigger_max)
        elif isinstance(limit, ReadMaxBytes):
            taken = self._within_bytes(begun, waiting, limit.max_bytes)
        else:
            taken = waiting
        for at, rows in taken.items():
            reached[at] += rows
        return to_json(reached)

    def _within_bytes(
        self, begun: Positions, waiting: dict[Partition, int], bytes_max: int
    ) -> dict[Partition, int]:
        """Each partition that has something gets the same part of the bytes."""
        behind = [at for at, rows in waiting.items() if rows > 0]
        taken: dict[Partition, int] = {}
        for at in behind:
            low, high = begun[at], begun[at] + waiting[at]
            cuts = self._source().cuts(at, low, high, max(1, bytes_max // len(behind)))
            taken[at] = (cuts[0] if cuts else high) - low
        return taken

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        begun, reached = from_json(start), from_json(end)
        ranges: dict[Partition, tuple[Offset, Offset]] = {
            at: (begun[at], behind) for at, behind in reached.items() if at in begun
        }
        there = [at for at, (low, high) in ranges.items() if low < high]
        starts = self._source().starts(there)
        fail = self._options.fail_on_data_loss
        for at in there:
            low, high = ranges[at]
            if starts[at] > low:
                ranges[at] = (
                    min(high, check_start(at, low, min(high, starts[at]), fail=fail)),
                    high,
                )
        return make_splits(self._source(), ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):
            return iter(())  # what Spark makes of an empty list of partitions
        return read_split(partition, make_maker(self._schema, self._options), self._options)

    def commit(self, end: dict[str, int]) -> None:
        if self._options.group:
            self._commit(from_json(end))

    def stop(self) -> None:
        if self._origin is not None:
            self._origin.close()
            self._origin = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def __reduce__(self) -> tuple[type[TopicStream], tuple[StructType, SourceOptions]]:
        """Tasks get what was asked for, and no connection."""
        return TopicStream, (self._schema, self._options)

    def _source(self) -> Origin:
        if self._origin is None:
            self._origin = open_origin(self._options)
        return self._origin

    def _ends(self) -> Positions:
        return self._source().ends(chosen_partitions(self._source(), self._options))

    def _check_there(self, begun: Positions, ends: Positions) -> None:
        """What was read before must still be there, and no shorter."""
        if not self._options.fail_on_data_loss:
            for at in [at for at in begun if at in ends and begun[at] > ends[at]]:
                begun[at] = ends[at]
            return
        for at, offset in begun.items():
            if at not in ends:
                raise LostRecords(at, offset, offset + 1, "the partition was deleted")
            if ends[at] < offset:
                raise LostRecords(
                    at, ends[at], offset, f"the log ends at {ends[at]}: it was cut or made anew"
                )

    def _show(self, begun: Positions) -> None:
        """Tell the group where the next batch begins: everything before it is done.

        Spark itself says so one batch late, and of the last batch of a run never.  It is said again
        to keep a lease on what has not been read, and from the very first trigger on.
        """
        lease_ms = self._options.lease_ms
        due = lease_ms and time.monotonic() - self._leased_s > lease_ms / 3000
        if self._options.group and (due or begun != self._shown):
            self._commit(begun)

    def _commit(self, positions: Positions) -> None:
        if self._cluster is None:
            self._cluster = Cluster(self._options.servers, self._options.client)
        metadata = lease_text(self._options)
        offsets = {at: GroupOffset(offset, metadata) for at, offset in positions.items()}
        commit(self._cluster, self._options.group, offsets)
        self._shown = positions
        self._leased_s = time.monotonic()
