"""Append, settle, read, wait: the port's `Log` on the local disk."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from pentalog import kernels
from pentalog.broker.opening import (
    ABORTED_AT_ONCE_MAX,
    OPENED_AT_ONCE_MAX,
    Openings,
    find_in_batch,
)
from pentalog.broker.port import Admitted, Opened, Waiting
from pentalog.kernels import Facts
from pentalog.log.admission import (
    ADMITTED_AT_ONCE_BYTES,
    OverBudget,
    admit,
    any_time,
    check_size,
    must_open,
    open_batches,
)
from pentalog.log.partition import PartitionLog
from pentalog.log.segment import Cold
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.buffers import LARGE_BYTES, join_buffers
from pentalog.model.errors import BrokerError, InvalidTopic, PartitionNotFound, StorageFailed
from pentalog.model.internal import INTERNAL
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import (
    Ack,
    Appended,
    Edge,
    FilePiece,
    Horizon,
    Marks,
    Offset,
    Partition,
    Slice,
    Volume,
)
from pentalog.runtime import Runtime, Timer

if TYPE_CHECKING:
    from pentalog.log.files import Handle

READ_LANE: Final = "read"

_WARM_TRIES: Final = 3
"""After that the read goes ahead whether its bytes are in memory or not."""

COMMIT_WAIT_MS_MAX: Final = 10_000
"""How long a reader waits for a disk that does not answer; then it gets what is durable."""


class LocalLog:
    def __init__(self, store: Store, runtime: Runtime, metrics: Metrics) -> None:
        self._store = store
        self._runtime = runtime
        self._metrics = metrics
        self._openings = Openings(runtime, metrics)
        self._waits: set[LocalWait] = set()
        self._stopping = False

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        parted: bool = False,
        given: bool = False,
        opened: LogSettings | None = None,
        relayed: bool = False,
    ) -> Appended:
        partition = self._store.get(at)
        if at.topic in INTERNAL:
            raise _own(at)
        if facts is None:
            facts = kernels.check_batches(batches, 0, len(batches))
        if relayed:
            opened = partition.settings
            accepted = any_time(opened)
            now_ms = self._runtime.now_ms()
            batches, facts = admit(batches, facts, accepted, now_ms=now_ms, at=partition.name)
        return partition.append(batches, facts, opened)

    def admission(
        self, at: Partition, batches: memoryview, facts: Facts, *, owned: bool = False
    ) -> Later[Admitted] | None:
        partition = self._store.get(at)
        settings = partition.settings
        now_ms = self._runtime.now_ms()
        if not must_open(facts, settings, now_ms):
            return None
        if at.topic in INTERNAL:
            raise _own(at)
        check_size(facts, settings, partition.name)

        def opened(data: memoryview, budget_bytes: int) -> Admitted:
            found = open_batches(
                data,
                facts,
                settings,
                now_ms=now_ms,
                at=partition.name,
                budget_bytes=budget_bytes,
            )
            return Admitted(*found, settings)

        try:
            return Later.now(opened(batches, ADMITTED_AT_ONCE_BYTES))
        except OverBudget:
            kept = batches if owned else memoryview(join_buffers(batches))
            return self._openings.offload(partial(opened, kept))

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        partition = self._store.get(appended.at)
        if (
            ack is Ack.NONE
            or partition.durable.offset >= appended.next_offset
            or (ack is Ack.WRITTEN and partition.settings.flush_messages > 1)
        ):
            return Later.now(appended)
        later: Later[Appended] = Later()
        partition.settle(appended.next_offset, partial(_settled, later, appended))
        return later

    def read(
        self,
        at: Partition,
        offset: Offset,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool = True,
        aborted_max: int = 0,
    ) -> Later[Slice]:
        partition = self._store.get(at)
        try:
            return Later.now(
                partition.reading.read(
                    offset,
                    bytes_max=bytes_max,
                    horizon=horizon,
                    whole_first=whole_first,
                    aborted_max=aborted_max,
                )
            )
        except Cold as cold:
            later: Later[Slice] = Later()
            again = partial(
                self._read_warmed,
                later,
                partition,
                offset,
                bytes_max=bytes_max,
                horizon=horizon,
                whole_first=whole_first,
                aborted_max=aborted_max,
            )
            self._warm(cold, partial(again, 1))
            return later
        except OSError as error:
            raise _unreadable(partition, error) from error

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]:
        bytes_max = min(bytes_max, OPENED_AT_ONCE_MAX)
        read = self.read(
            at, offset, bytes_max=bytes_max, horizon=horizon, aborted_max=ABORTED_AT_ONCE_MAX
        )
        if read.ready:
            return self._open_slice(at, offset, bytes_max, read.value)
        later: Later[Opened] = Later()
        read.then(partial(self._open_read, later, at, offset, bytes_max))
        return later

    def _open_read(
        self,
        later: Later[Opened],
        at: Partition,
        offset: Offset,
        bytes_max: int,
        read: Later[Slice],
    ) -> None:
        try:
            self._open_slice(at, offset, bytes_max, read.value).then(partial(_pass_on, later))
        except BrokerError as refusal:
            later.refuse(refusal)

    def _open_slice(
        self, at: Partition, offset: Offset, bytes_max: int, found: Slice
    ) -> Later[Opened]:
        try:
            return self._openings.open(
                at, offset, found, bytes_max=bytes_max, read_piece=self._read_piece
            )
        except OSError as error:
            raise _unreadable(self._store.get(at), error) from error

    def _read_piece(self, piece: FilePiece) -> bytes | memoryview:
        files, file = self._store.files, cast("Handle", piece.file)
        data: bytes | memoryview
        if piece.length < LARGE_BYTES:
            data = files.read(file, piece.length, piece.position)
            size = len(data)
        else:
            data = memoryview(kernels.new_buffer(piece.length))
            size = files.read_into(file, data, piece.position)
        if size != piece.length:
            raise OSError(0, f"the file ends before byte {piece.position + piece.length}")
        return data

    def _warm(self, cold: Cold, again: partial[None]) -> None:
        """Have another thread wait for the disk, so that nobody else does."""
        self._metrics.cold_reads += 1
        work = partial(self._store.files.warm, cold.file, cold.position, cold.length)
        self._runtime.offload(READ_LANE, work, again)

    def _read_warmed(
        self,
        later: Later[Slice],
        partition: PartitionLog,
        offset: Offset,
        tries: int,
        _: None,
        error: BaseException | None,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool,
        aborted_max: int,
    ) -> None:
        if partition.deleted:
            later.refuse(PartitionNotFound(f"{partition.name} was deleted"))
            return
        try:
            later.fill(
                partition.reading.read(
                    offset,
                    bytes_max=bytes_max,
                    horizon=horizon,
                    whole_first=whole_first,
                    aborted_max=aborted_max,
                    patient=tries >= _WARM_TRIES or error is not None,
                )
            )
        except Cold as cold:
            again = partial(
                self._read_warmed,
                later,
                partition,
                offset,
                tries + 1,
                bytes_max=bytes_max,
                horizon=horizon,
                whole_first=whole_first,
                aborted_max=aborted_max,
            )
            self._warm(cold, again)
        except BrokerError as refusal:
            later.refuse(refusal)
        except OSError as failure:
            later.refuse(_unreadable(partition, failure))

    def wait(
        self,
        positions: Mapping[Partition, Offset],
        *,
        bytes_min: int,
        horizon: Horizon,
        timeout_ms: int,
    ) -> Waiting:
        watched = {self._store.get(at): offset for at, offset in positions.items()}
        wait = LocalWait(watched, bytes_min, horizon, self._waits, self._runtime)
        wait.look()
        if not wait.ready:
            wait.start(0 if self._stopping else timeout_ms)
        return wait

    def ends(self, partitions: Collection[Partition]) -> Later[Mapping[Partition, Offset]]:
        asked: list[PartitionLog] = []
        for at in partitions:
            with contextlib.suppress(BrokerError):
                asked.append(self._store.get(at))
        unsettled = [
            partition
            for partition in asked
            if partition.end_offset > partition.durable.offset and not partition.failed
        ]
        found = {partition: partition.end_offset for partition in asked}
        if not unsettled:
            return Later.now(_durable_ends(found))
        later: Later[Mapping[Partition, Offset]] = Later()
        left = len(unsettled)

        def answer() -> None:
            if not later.ready:
                stuck.cancel()
                later.fill(_durable_ends(found))

        def settled(_: BrokerError | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                answer()

        stuck = self._runtime.after(COMMIT_WAIT_MS_MAX, answer)
        for partition in unsettled:
            partition.settle(partition.end_offset, settled)
        return later

    def stop_waiting(self) -> None:
        """The broker is about to stop: nobody need wait for more records."""
        self._stopping = True
        for wait in list(self._waits):
            wait.give_up()

    def marks(self, at: Partition) -> Marks:
        return self._store.get(at).marks

    def locate(self, at: Partition, when: Edge | int) -> Later[tuple[Offset, int]]:
        partition = self._store.get(at)
        edge = partition.reading.edge(when)
        if edge is not None:
            return Later.now((edge, -1))
        later: Later[tuple[Offset, int]] = Later()
        self._search(later, partition, partition.reading.candidates(when))
        return later

    def _search(
        self,
        later: Later[tuple[Offset, int]],
        partition: PartitionLog,
        candidates: Iterator[tuple[bytes, int]],
    ) -> None:
        """Look for a time in one batch after another, until one has it."""
        try:
            for data, timestamp in candidates:
                work = partial(find_in_batch, data, timestamp, partition.start_offset)
                search = self._openings.run(work)
                if not search.ready:
                    search.then(partial(self._searched, later, partition, candidates))
                    return
                if search.value[0] >= 0:
                    later.fill(_durable(partition, search.value))
                    return
        except OSError as error:
            later.refuse(_unreadable(partition, error))
            return
        later.fill((-1, -1))

    def _searched(
        self,
        later: Later[tuple[Offset, int]],
        partition: PartitionLog,
        candidates: Iterator[tuple[bytes, int]],
        search: Later[tuple[Offset, int]],
    ) -> None:
        try:
            found = search.value
        except BrokerError as refusal:
            later.refuse(refusal)
            return
        if found[0] >= 0:
            later.fill(_durable(partition, found))
        else:
            self._search(later, partition, candidates)

    def size_bytes(self, at: Partition) -> int:
        return self._store.get(at).size_bytes

    def appended_bytes(self, at: Partition) -> int:
        return self._store.get(at).appended_bytes

    def volume(self) -> Volume:
        try:
            return self._store.files.volume(self._store.directory)
        except OSError as error:
            raise StorageFailed(
                f"cannot tell the size of the disk of {self._store.directory}: {error.strerror}; "
                "check that it is mounted"
            ) from error

    def segments(self, at: Partition) -> int:
        return len(self._store.get(at).segments)


class LocalWait(Waiting):
    """Looks at a watched partition again whenever a mark of it moves, and at that one only.

    A reader may watch thousands: were all of them looked at for every batch that one of them gets,
    readers would make its writers pay for that.
    """

    __slots__ = (
        "_all",
        "_behind",
        "_bytes",
        "_bytes_min",
        "_horizon",
        "_late",
        "_runtime",
        "_timer",
        "_uncommitted",
        "_watched",
    )

    def __init__(
        self,
        watched: dict[PartitionLog, Offset],
        bytes_min: int,
        horizon: Horizon,
        everyone: set[LocalWait],
        runtime: Runtime,
    ) -> None:
        super().__init__()
        self._all = everyone
        self._runtime = runtime
        self._watched = watched
        self._bytes_min = bytes_min
        self._horizon = horizon
        self._behind: dict[PartitionLog, int] = {}
        """Bytes that were found in each partition, where there were any; if their sum matters."""
        self._bytes = 0
        self._timer: Timer | None = None
        self._uncommitted = 0
        """Partitions whose end, as it was when this began, is not durable."""
        self._late = False
        """Time is up, and this only waits for their commit."""

    def start(self, timeout_ms: int) -> None:
        self._all.add(self)
        moved = self._moved
        for partition, offset in self._watched.items():
            partition.watchers[moved] = None
            if self._horizon is not Horizon.END and partition.end_offset > max(
                offset, partition.durable.offset
            ):
                # A reader is waiting for what is written but not yet durable.
                self._uncommitted += 1
                partition.settle(partition.end_offset, self._committed)
        if timeout_ms > 0:
            self._timer = self._runtime.after(timeout_ms, self._time_up)
        else:
            self._time_up()

    def _time_up(self) -> None:
        self._timer = None
        if self._uncommitted:
            self._late = True
            self._timer = self._runtime.after(COMMIT_WAIT_MS_MAX, self.give_up)
        else:
            self.give_up()

    def _committed(self, refusal: BrokerError | None) -> None:
        """A partition's end has become durable, or cannot."""
        self._uncommitted -= 1
        if self._late and not self._uncommitted:
            self.look()  # the watchers of the last partition are called after this
            if not self.ready:
                self.give_up()

    def look(self) -> None:
        """Look at all partitions, until there is enough."""
        for partition in self._watched:
            if self.ready:
                return
            self._moved(partition)

    def _moved(self, partition: PartitionLog) -> None:
        if self.ready:
            return
        offset = self._watched[partition]
        enough = partition.deleted
        if not enough and self._bytes_min <= 1:
            enough = _ahead(partition, offset, self._horizon)
        elif not enough:
            found = partition.reading.bytes_behind(offset, self._horizon)
            self._bytes += found - self._behind.get(partition, 0)
            if found:
                self._behind[partition] = found
            else:
                self._behind.pop(partition, None)
            enough = self._bytes >= self._bytes_min
        if enough:
            self.cancel()
            self.fill(True)

    def give_up(self) -> None:
        self.cancel()
        self.fill(False)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late = False
        self._all.discard(self)
        for partition in self._watched:
            partition.watchers.pop(self._moved, None)


def _durable_ends(found: Mapping[PartitionLog, Offset]) -> Mapping[Partition, Offset]:
    """The ends as they were found, as far as they are durable."""
    return {
        partition.at: min(end, partition.durable.offset)
        for partition, end in found.items()
        if not partition.deleted
    }


def _pass_on(later: Later[Opened], opened: Later[Opened]) -> None:
    try:
        later.fill(opened.value)
    except BrokerError as refusal:
        later.refuse(refusal)


def _durable(partition: PartitionLog, found: tuple[Offset, int]) -> tuple[Offset, int]:
    """A record that a search has found, unless a power cut could still take it."""
    return found if found[0] < partition.durable.offset else (-1, -1)


def _own(at: Partition) -> InvalidTopic:
    return InvalidTopic(f"{at.topic} is the broker's own: write to another topic")


def _ahead(partition: PartitionLog, offset: Offset, horizon: Horizon) -> bool:
    """Is there something to read beyond an offset?"""
    mark = partition.durable.offset
    if horizon is not Horizon.DURABLE:
        mark = partition.marks.at(horizon)
    return mark > offset and not partition.reading.is_lost(offset)


def _settled(later: Later[Appended], appended: Appended, refusal: BrokerError | None) -> None:
    if refusal is None:
        later.fill(appended)
    else:
        later.refuse(refusal)


def _unreadable(partition: PartitionLog, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"cannot read {partition.name}: {error.strerror or error}; "
        f"check the disk of {partition.directory}"
    )
