"""`format("pentalog")`: topics as Spark sees them, in batches and as streams."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from pentalog.model.types import Offset, Partition
from pentalog.tables.options import OptionRefused, SourceOptions, read_options
from pentalog.tables.origins import Origin, chosen_partitions, open_origin
from pentalog.tables.positions import LATEST, check_start, resolve
from pentalog.tables.rows import RowMaker, SpanMaker, schema_text
from pentalog.tables.splits import Maker, Split, make_splits, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class Pentalog(DataSource):
    """Registered once per session: `spark.dataSource.register(Pentalog)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "pentalog"

    def schema(self) -> str:
        return schema_text(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        # Spark keeps what a reader made of its filters for every later query over the same loaded
        # DataFrame, so it must be asked for.  It also refuses such readers while its own setting
        # is off, and says nowhere whether it is: filters come in a worker of their own.
        if options.pushdown and _PUSHDOWN_WORKER in sys.modules:
            return FilteredReader(schema, options)
        return TopicReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pentalog.tables.stream import TopicStream

        options = read_options(self.options)
        if options.ending != LATEST or options.ending_timestamp_ms is not None:
            raise OptionRefused(
                "ending and endingTimestampMs are for one read; a stream ends with its trigger,"
                " such as .trigger(availableNow=True)"
            )
        return TopicStream(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pentalog.tables.writer import batch_writer

        return batch_writer(schema, dict(self.options), overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from pentalog.tables.writer import stream_writer

        return stream_writer(schema, dict(self.options), overwrite=overwrite)


def make_maker(schema: StructType, options: SourceOptions) -> Maker:
    if options.view == "offsets":
        return SpanMaker(schema)
    return RowMaker(schema, rows_per_batch=options.rows_per_batch)


class TopicReader(DataSourceReader):
    """One query over topics as they are when it is planned."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._bounds = Bounds()
        make_maker(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        origin = open_origin(self._options)
        try:
            return make_splits(origin, self._ranges(origin), self._options)
        finally:
            origin.close()

    def _ranges(self, origin: Origin) -> dict[Partition, tuple[Offset, Offset]]:
        bounds, options = self._bounds, self._options
        partitions = [at for at in chosen_partitions(origin, options) if bounds.wants(at)]
        starts, ends = origin.starts(partitions), origin.ends(partitions)
        lows = resolve(origin, partitions, options, ending=False)
        highs = resolve(origin, partitions, options, ending=True)
        found: dict[Partition, tuple[Offset, Offset]] = {}
        since = bounds.since_ms
        by_time = origin.at_time(dict.fromkeys(partitions, since)) if since is not None else {}
        for at in partitions:
            low = check_start(at, lows[at], starts[at], fail=options.fail_on_data_loss)
            for name, offset in (("starting", low), ("ending", highs[at])):
                if offset > ends[at]:
                    raise OptionRefused(
                        f"{name}: {at} ends at {ends[at]} at present, {offset} was given;"
                        f" accepted are offsets from {starts[at]} to {ends[at]}"
                    )
            low = max(low, bounds.low, by_time.get(at, 0))
            found[at] = (low, min(highs[at], bounds.high))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):
            return iter(())  # what Spark makes of an empty list of partitions
        return read_split(partition, make_maker(self._schema, self._options), self._options)


class FilteredReader(TopicReader):
    """Leaves out partitions, offsets and times that a query does not ask for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        if self._options.view == "offsets":
            return filters
        return [one for one in filters if not self._bounds.take(one)]


class Bounds:
    """What filters leave of topics, partitions, offsets and times."""

    def __init__(self) -> None:
        self.low: Offset = 0
        self.high: Offset = 1 << 62
        self.since_ms: int | None = None
        self._topics: set[Any] | None = None
        self._indexes: set[Any] | None = None

    def wants(self, at: Partition) -> bool:
        return (self._topics is None or at.topic in self._topics) and (
            self._indexes is None or at.index in self._indexes
        )

    def take(self, one: Filter) -> bool:
        """Narrow by a filter; False if Spark has to look at the rows itself all the same."""
        column = getattr(one, "attribute", ())
        if column == ("topic",) or column == ("partition",):
            return self._take_place(column[0], one)
        if column == ("offset",):
            return self._take_offset(one)
        if column == ("timestamp",):
            self._take_time(one)
        return False

    def _take_place(self, name: str, one: Filter) -> bool:
        if isinstance(one, EqualTo | EqualNullSafe):
            wanted = {one.value}
        elif isinstance(one, In):
            wanted = set(one.value)
        else:
            return False
        if name == "topic":
            self._topics = wanted if self._topics is None else self._topics & wanted
        else:
            self._indexes = wanted if self._indexes is None else self._indexes & wanted
        return True

    def _take_offset(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if not isinstance(value, int):
            return False
        low, high = self.low, self.high
        if isinstance(one, EqualTo | EqualNullSafe):
            low, high = value, value + 1
        elif isinstance(one, GreaterThan):
            low = value + 1
        elif isinstance(one, GreaterThanOrEqual):
            low = value
        elif isinstance(one, LessThan):
            high = value
        elif isinstance(one, LessThanOrEqual):
            high = value + 1
        else:
            return False
        self.low, self.high = max(self.low, low), min(self.high, high)
        return True

    def _take_time(self, one: Filter) -> None:
        """Records may be out of order in time: only those before the first new one can go."""
        if not isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
            return
        if isinstance(one.value, datetime):
            moment = one.value if one.value.tzinfo is not None else one.value.replace(tzinfo=UTC)
            since_ms = int(moment.timestamp() * 1000)
            self.since_ms = max(since_ms, self.since_ms or 0)
