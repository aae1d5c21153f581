"""Events by key: which version each aggregate has, and where its events lie.

The log is the truth: an event is a record with a key and the header `cursus.aggregate_version`, in
a batch that the Cursus door built: a producer of another protocol can write such a header too.
What is kept here is an index over it, brought up to date before it is asked, and saved in the state
file only as far as the log is durable; what was not saved is read from the log again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pentalog.broker.needs import Admitting, Readable, RowsToLookUp
from pentalog.broker.port import Opened, Topic
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.sourcing import Conflict, Extent, Snapshot
from pentalog.broker.state import Row
from pentalog.config import Config
from pentalog.kernels import Facts, batch_header
from pentalog.model import batch
from pentalog.model.errors import (
    BrokerError,
    PartitionNotFound,
    RecordTooLarge,
    StorageFailed,
)
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Horizon, Offset, Partition, Record

if TYPE_CHECKING:
    from pentalog.runtime import Runtime

VERSION_HEADER: Final = "cursus.aggregate_version"
INDEX_BYTES_MAX: Final = 512 << 20
"""What the index over all aggregates may take, keys included."""
SNAPSHOT_BYTES_MAX: Final = 1 << 20

_ENTRY_BYTES: Final = 300
"""About what an aggregate takes besides its key."""
_CHUNK_BYTES: Final = 128 << 10
"""Looked through in one turn."""
_OPENED_BYTES_MAX: Final = 256 << 20
_UPSERT: Final = "INSERT OR REPLACE INTO aggregates VALUES (?, ?, ?, ?, ?, ?)"
_UPSERT_MARK: Final = "INSERT OR REPLACE INTO aggregate_marks VALUES (?, ?, ?)"
_NOTHING: Final = Extent()

T = TypeVar("T")


class _Index:
    """The aggregates of one partition."""

    def __init__(self, at: Partition) -> None:
        self.at = at
        self.next_offset: Offset = 0
        """Everything before it is in the index."""
        self.extents: dict[bytes, Extent] = {}
        self.unsaved: dict[bytes, None] = {}
        self.saved_to: Offset = 0
        """Appended events before it are saved."""
        self.charged: Counter[str] = Counter()
        """Bytes that the extents take, by the client that made them, or the topic."""
        self.waiting: list[Callable[[BrokerError | None], None]] = []
        self.reading = False

    def note(self, key: bytes, version: int, offset: Offset) -> None:
        known = self.extents.get(key, _NOTHING)
        first = known.first_offset if known.version else offset
        self.extents[key] = Extent(max(known.version, version), first, offset + 1)
        self.unsaved[key] = None


class AggregateIndex:
    """Knows versions and keeps snapshots; whoever writes events says so in the log."""

    def __init__(
        self,
        log: Readable,
        state: RowsToLookUp,
        runtime: Runtime,
        config: Config,
        *,
        door: int | None = None,
    ) -> None:
        """With `door`, only batches that the door of this number built hold events."""
        self._log = log
        self._door = door
        self._state = state
        self._runtime = runtime
        self._indexes: dict[Partition, _Index] = {}
        self._memory = PrincipalLimits(
            "bytes of the index over aggregates",
            INDEX_BYTES_MAX,
            share_percent=config.principal_share_percent,
        )

    def open(self) -> None:
        for topic, partition, next_offset in self._state.rows(
            "SELECT topic, partition, next_offset FROM aggregate_marks"
        ):
            self._index(Partition(topic, partition)).next_offset = next_offset
        for topic, partition, key, *extent in self._state.rows(
            "SELECT topic, partition, key, version, first_offset, next_offset FROM aggregates"
        ):
            index = self._index(Partition(topic, partition))
            index.extents[key] = Extent(*extent)
            self._charge(index, key, _found_in(index.at))

    def check(self) -> None:
        self._state.check()

    def topic_deleted(self, topic: Topic) -> None:
        """To be called in the turn of the deletion."""
        for at in [at for at in self._indexes if at.topic == topic.name]:
            self._release(self._indexes.pop(at))
        for table in ("aggregates", "aggregate_marks", "snapshots"):
            self._state.write(f"DELETE FROM {table} WHERE topic = ?", topic.name)

    def extent(self, at: Partition, key: bytes) -> Later[Extent]:
        later: Later[Extent] = Later()

        def known(refusal: BrokerError | None) -> None:
            if refusal is None:
                later.fill(self._index(at).extents.get(key, _NOTHING))
            else:
                later.refuse(refusal)

        self._catch_up(at, known)
        return later

    def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot) -> Later[None]:
        if len(snapshot.payload) > SNAPSHOT_BYTES_MAX:
            raise RecordTooLarge(
                f"a snapshot of {len(snapshot.payload)} bytes; "
                f"up to {SNAPSHOT_BYTES_MAX} are accepted"
            )
        self._state.check()
        self._state.write(
            "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", topic, key, *snapshot
        )
        return self._state.settle()

    def snapshot(self, topic: str, key: bytes) -> Later[Snapshot | None]:
        later: Later[Snapshot | None] = Later()

        def found(rows: Later[list[Row]]) -> None:
            try:
                later.fill(Snapshot(*rows.value[0]) if rows.value else None)
            except BrokerError as refusal:
                later.refuse(refusal)

        self._state.look_up(
            "SELECT version, payload FROM snapshots WHERE topic = ? AND key = ?", topic, key
        ).then(found)
        return later

    def _index(self, at: Partition) -> _Index:
        index = self._indexes.get(at)
        if index is None:
            index = self._indexes[at] = _Index(at)
        return index

    def _save(self, index: _Index) -> None:
        """Save what is durable; the rest comes with what follows it."""
        if self._indexes.get(index.at) is not index:
            return
        durable = index.saved_to = self._log.marks(index.at).durable
        saved = [key for key in index.unsaved if index.extents[key].next_offset <= durable]
        for key in saved:
            del index.unsaved[key]
            self._state.write(_UPSERT, *index.at, key, *index.extents[key])
        if saved and not index.unsaved and index.next_offset <= durable:
            self._state.write(_UPSERT_MARK, *index.at, index.next_offset)

    def _check_room(self, key: bytes, owner: str) -> None:
        self._memory.check(owner, _ENTRY_BYTES + len(key))

    def _charge(self, index: _Index, key: bytes, owner: str) -> None:
        """Count a new aggregate for the client, or the topic, that made it."""
        self._memory.add(owner, _ENTRY_BYTES + len(key))
        index.charged[owner] += _ENTRY_BYTES + len(key)

    def _release(self, index: _Index) -> None:
        """Free what the aggregates of a partition are charged for."""
        for owner, size in index.charged.items():
            self._memory.release(owner, size)
        index.charged.clear()

    # Reading what others wrote, or what the last life did not save

    def _catch_up(self, at: Partition, run: Callable[[BrokerError | None], None]) -> None:
        """Call `run` when the index knows everything that is in the log now."""
        marks = self._log.marks(at)
        index = self._index(at)
        if index.next_offset > marks.end:
            self._forget(index)
        index.next_offset = max(index.next_offset, marks.start)
        if index.next_offset == marks.end and not index.reading:
            run(None)
            return
        index.waiting.append(run)
        if not index.reading:
            index.reading = True
            self._read(index)

    def _forget(self, index: _Index) -> None:
        """The log has lost its end: begin anew."""
        self._release(index)
        index.extents.clear()
        index.unsaved.clear()
        index.saved_to = 0
        index.next_offset = 0
        self._state.write("DELETE FROM aggregates WHERE topic = ? AND partition = ?", *index.at)

    def _read(self, index: _Index) -> None:
        if self._indexes.get(index.at) is not index:
            self._finish(index, None)
            return
        try:
            opened = self._log.open(
                index.at, index.next_offset, bytes_max=_CHUNK_BYTES, horizon=Horizon.END
            )
        except BrokerError as refusal:
            self._finish(index, refusal)
            return
        opened.then(partial(self._opened, index))

    def _opened(self, index: _Index, opened: Later[Opened]) -> None:
        if self._indexes.get(index.at) is not index:
            self._finish(index, None)  # deleted: what it finds now would be charged for good
            return
        try:
            found = opened.value
            self._note_all(index, found)
            end = self._log.marks(index.at).end
        except BrokerError as refusal:
            self._finish(index, refusal)
            return
        if found.next_offset <= index.next_offset or found.next_offset >= end:
            index.next_offset = max(index.next_offset, found.next_offset)
            self._save(index)
            self._finish(index, None)
            return
        index.next_offset = found.next_offset
        self._save(index)  # what one turn has found, not all at the end
        self._runtime.soon(partial(self._read, index))

    def _note_all(self, index: _Index, found: Opened) -> None:
        position = 0
        while position < len(found.batches):
            header = batch_header(found.batches, position)
            size = header.size
            if self._door is not None and batch.door_of(header.attributes) != self._door:
                position += size
                continue
            for offset, record in batch.records_of(
                found.batches, position, bytes_max=_OPENED_BYTES_MAX
            ):
                version = _version(record)
                if offset >= index.next_offset and version and record.key:
                    if record.key not in index.extents:
                        self._check_room(record.key, _found_in(index.at))
                        self._charge(index, record.key, _found_in(index.at))
                    index.note(record.key, version, offset)
            position += size

    def _finish(self, index: _Index, refusal: BrokerError | None) -> None:
        if refusal is None and self._indexes.get(index.at) is not index:
            refusal = PartitionNotFound(f"{index.at} was deleted")
        index.reading = False
        waiting, index.waiting = index.waiting, []
        for run in waiting:
            run(refusal)


class LocalAggregates(AggregateIndex):
    """Implements `sourcing.Aggregates`."""

    def __init__(
        self, log: Admitting, state: RowsToLookUp, runtime: Runtime, config: Config
    ) -> None:
        super().__init__(log, state, runtime, config, door=batch.DOORS.index("cursus"))
        self._target = log

    def extent(self, at: Partition, key: bytes) -> Later[Extent]:
        """The extent, once its events are durable: a version that was told must not go back."""
        later: Later[Extent] = Later()

        def known(found: Later[Extent]) -> None:
            try:
                self._fill_durable(at, found.value.next_offset, later, found.value)
            except BrokerError as refusal:
                later.refuse(refusal)

        super().extent(at, key).then(known)
        return later

    def _fill_durable(self, at: Partition, end: Offset, later: Later[T], value: T) -> None:
        """Fill `later` once everything before `end` is durable; refuse it if that cannot be."""
        if end <= self._target.marks(at).durable:
            later.fill(value)
            return

        def settled(ends: Later[Mapping[Partition, Offset]]) -> None:
            found = ends.value.get(at)
            if found is None:
                later.refuse(PartitionNotFound(f"{at} was deleted"))
            elif found >= end:
                later.fill(value)
            else:
                later.refuse(StorageFailed(f"the newest events of {at} are not on the disk"))

        self._target.ends([at]).then(settled)

    def append(
        self,
        at: Partition,
        key: bytes,
        version: int,
        batch: memoryview,
        facts: Facts,
        *,
        owner: str = "",
        opened: LogSettings | None = None,
    ) -> Later[Appended | Conflict]:
        later: Later[Appended | Conflict] = Later()

        def known(refusal: BrokerError | None) -> None:
            if refusal is not None:
                later.refuse(refusal)
                return
            try:
                self._append(self._index(at), key, version, batch, facts, owner, opened, later)
            except BrokerError as refused:
                later.refuse(refused)

        self._catch_up(at, known)
        return later

    def _append(
        self, index: _Index, key: bytes, version: int, data: memoryview, facts: Facts, owner: str,
        opened: LogSettings | None, later: Later[Appended | Conflict],
    ) -> None:  # fmt: skip
        extent = index.extents.get(key, _NOTHING)
        current = extent.version
        if version != current + 1:
            self._fill_durable(index.at, extent.next_offset, later, Conflict(current))
            return
        if not current:
            self._check_room(key, owner)
        self._state.check()
        appended = self._target.append(index.at, data, facts, opened=opened)
        if not current:
            self._charge(index, key, owner)
        index.note(key, version, appended.base_offset)
        index.next_offset = appended.next_offset
        self._target.settle(appended, Ack.DURABLE).then(partial(self._durable, index, key, later))

    def _durable(
        self,
        index: _Index,
        key: bytes,
        later: Later[Appended | Conflict],
        settled: Later[Appended],
    ) -> None:
        try:
            appended = settled.value
        except BrokerError as refusal:
            later.refuse(refusal)
            return
        if appended.next_offset > index.saved_to:
            # The first of those that became durable together saves all of them.
            self._save(index)
        later.fill(appended)


def _found_in(at: Partition) -> str:
    """The owner of aggregates that were found in the log, which does not say who wrote them.

    Each topic has a share: events that a client publishes as batches do not fill the index for
    the topics of others.
    """
    return f"topic {at.topic!r}"


def _version(record: Record) -> int:
    for name, value in record.headers:
        if name == VERSION_HEADER and value is not None and value.isdigit() and len(value) < 19:
            return int(value)
    return 0
