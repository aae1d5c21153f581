"""One partition: its segments in order, its marks, what may be appended and read.

Not thread-safe: one owner.  Threads only ever see file handles.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.log import transactions
from pentalog.log.admission import admit
from pentalog.log.files import Files, Handle, sync_file
from pentalog.log.flusher import Flusher
from pentalog.log.inspection import Damage
from pentalog.log.producers import ProducerRoom, Producers, Written
from pentalog.log.reading import Reading
from pentalog.log.residents import Residents
from pentalog.log.segment import Point, Segment
from pentalog.log.snapshots import ProducerSnapshots
from pentalog.log.transactions import AbortedTransaction, AbortedTransactions
from pentalog.log.troubles import Troubles
from pentalog.metrics import Metrics
from pentalog.model import batch as batches_of
from pentalog.model.errors import (
    BrokerError,
    InvalidRecord,
    OffsetOutOfRange,
    PartitionNotFound,
    StorageFailed,
    StorageFull,
)
from pentalog.model.settings import LogSettings, TimestampType
from pentalog.model.types import Appended, Marks, Partition
from pentalog.runtime import Runtime

log = logging.getLogger("pentalog.log")

_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1

LEADER_EPOCH: Final = 0


class UnsyncedAborts:
    """An index as of its newest write; another object for each."""

    __slots__ = ("file",)

    def __init__(self, file: Handle) -> None:
        self.file = file


class PartitionLog:
    def __init__(
        self,
        at: Partition,
        topic_id: UUID,
        directory: Path,
        *,
        files: Files,
        runtime: Runtime,
        metrics: Metrics,
        flusher: Flusher,
        residents: Residents,
        room: ProducerRoom,
        troubles: Troubles,
        settings: LogSettings,
    ) -> None:
        self.at = at
        self.name = str(at)
        self.topic_id = topic_id
        self.directory = directory
        self.files = files
        self.runtime = runtime
        self.metrics = metrics
        self.flusher = flusher
        self.residents = residents
        self.troubles = troubles
        self.settings = settings
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.pending_start = 0
        """A start requested by DeleteRecords that may not be durable yet."""
        self.room = room
        self.producers = Producers(room)
        self.aborted = AbortedTransactions()
        self.failed = ""
        """Why no more writes are taken; empty as long as they are."""
        self.deleted = False
        self.gaps = False
        """Offsets may be missing between batches: the partition has been compacted."""
        self.watchers: dict[Callable[[PartitionLog], None], None] = {}
        """Called with this partition whenever a mark of it has moved."""
        self.waiters: list[tuple[int, Callable[[BrokerError | None], None]]] = []
        """(offset, call when everything before it is durable), by offset."""
        self.durable = Point(0, 0, 0)
        self.synced = Point(0, 0, 0)
        """Up to here the segment files themselves are on the disk: where recovery begins."""
        self.records_since_sync = 0
        self.leased_bytes = 0
        """Kept only because somebody has not read them yet."""
        self.aborts_unsynced: dict[Path, UnsyncedAborts] = {}
        """Indexes of aborted transactions that a power cut would take.

        Each stays here until a sync of its newest state has succeeded, also while one runs.
        """
        self.aborts_unwritten = False
        """The files do not tell yet what was aborted; the next checkpoint makes up for it."""
        self.snapshots = ProducerSnapshots(self)
        self.appended_bytes = 0
        """Since this was opened."""
        self.bases: list[int] = []
        self.reading = Reading(self)

    # Marks

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset

    @property
    def end(self) -> Point:
        active = self.segments[-1]
        return Point(active.next_offset, active.base_offset, active.size)

    @property
    def stable_offset(self) -> int:
        durable = self.durable.offset
        start = self.producers.unstable_start(durable)
        return durable if start is None else min(max(start, self.start_offset), durable)

    @property
    def marks(self) -> Marks:
        return Marks(self.start_offset, self.stable_offset, self.durable.offset, self.end_offset)

    @property
    def unsynced_segments(self) -> list[Segment]:
        """Segments with something that a power cut could take."""
        return [segment for segment in self.segments if segment.base_offset >= self.synced.base]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def syncs(self) -> bool:
        """False if the page cache has been declared good enough."""
        settings = self.settings
        return self.flusher.syncs or min(settings.flush_messages, settings.flush_ms) < 1 << 62

    # Segments

    def attach(self, segments: list[Segment]) -> None:
        """Take segments found on disk, the last of them active; or start with an empty one."""
        self.segments = segments
        if not segments:
            self._add_segment(self._new_segment(self.start_offset))
        self.bases = [segment.base_offset for segment in self.segments]
        for segment in self.segments:
            self._apply_settings(segment)

    def _apply_settings(self, segment: Segment) -> None:
        segment.index_interval = self.settings.index_interval_bytes
        segment.gaps = self.gaps or self.settings.cleanup_compact
        segment.report = self.report

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.files, self.directory, base_offset, self.residents, size=0)
        self._apply_settings(segment)
        segment.next_offset = base_offset
        segment.start_new()
        return segment

    def _add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.flusher.created(self.directory)

    def report(self, damage: Damage) -> None:
        self.metrics.damaged_batches += 1
        log.error(
            "%s: offsets %d..%d are damaged (bytes %d..%d) and will not be served",
            self.name,
            damage.offset,
            damage.next_offset - 1,
            damage.start,
            damage.end,
        )

    def configure(self, settings: LogSettings) -> None:
        self.settings = settings
        for segment in self.segments:
            self._apply_settings(segment)
        if not self.syncs:
            self.advance(self.end)

    def roll(self) -> None:
        """Seal the active segment and start a new one; raises OSError and changes nothing."""
        active = self.active
        if not active.size:
            return
        following = self._new_segment(active.next_offset)
        try:
            active.seal()
        except OSError:
            # The old one stays active and grows beyond the base of the new one, whose file would
            # hide those records from the next start.
            following.discard()
            raise
        self._add_segment(following)
        self.flusher.sealed(self)

    def skip_to(self, offset: int) -> None:
        """Go on in a new segment at an offset behind the end; those in between are lost.

        Inside a segment a missing offset would be taken for damage.
        """
        active = self.active
        assert offset > active.base_offset
        following = self._new_segment(offset)
        if active.size:
            active.seal()
        else:
            del self.segments[-1], self.bases[-1]
            active.close()
            active.remove_files()
        self._add_segment(following)

    def _roll_if_due(self, size: int, facts: Facts) -> None:
        active, settings = self.segments[-1], self.settings
        if not active.size:
            return
        age_ms = facts.timestamp_max - active.timestamp_first if active.timestamp_first >= 0 else 0
        if (
            active.size + size > settings.segment_bytes
            or age_ms > settings.segment_ms - self._jitter_ms(active)
            or active.next_offset + facts.offsets - active.base_offset > _RELATIVE_OFFSET_MAX
            or active.index_full(settings.segment_index_bytes)
        ):
            self.roll()

    def _jitter_ms(self, segment: Segment) -> int:
        """A share of the jitter that differs by partition and segment, so rolls do not coincide."""
        jitter = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        if not jitter:
            return 0
        return kernels.crc32c(f"{self.name}/{segment.base_offset}".encode()) % jitter

    # Appending

    def append(
        self, batches: memoryview, facts: Facts, opened: LogSettings | None = None
    ) -> Appended:
        if self.failed:
            raise StorageFailed(self.failed)
        now_ms = self.runtime.now_ms()
        settings = self.settings
        batches, facts = admit(
            batches, facts, settings, now_ms=now_ms, at=self.name, opened=opened is settings
        )
        stamped_ms = now_ms if settings.timestamp_type is TimestampType.APPEND else -1
        if facts.producer_id >= 0 or not facts.chained:
            written = self._admit_producer(facts)
            if written is not None:
                self.metrics.duplicate_batches += 1
                base, behind = written.base_offset, written.last_offset + 1
                return Appended(self.at, base, behind, stamped_ms, self.start_offset, True)
        try:
            self._roll_if_due(len(batches), facts)
            active = self.segments[-1]
            base_offset = active.next_offset
            next_offset = kernels.stamp(batches, 0, len(batches), base_offset, LEADER_EPOCH)
            active.append(batches, facts, next_offset)
        except OSError as error:
            raise self._storage_error("write to", error) from error
        if facts.producer_id >= 0:
            self._remember(batches, facts, base_offset)
        metrics = self.metrics
        metrics.appended_batches += facts.batches
        metrics.appended_records += facts.records
        metrics.appended_bytes += len(batches)
        self.appended_bytes += len(batches)
        self._appended(facts.records)
        return Appended(self.at, base_offset, next_offset, stamped_ms, self.start_offset)

    def _admit_producer(self, facts: Facts) -> Written | None:
        if not facts.chained:
            raise InvalidRecord(
                f"batches of several producers, or with sequences that do not follow each other, "
                f"in one write to {self.name}; send one batch per request"
            )
        if facts.attributes_any & _CONTROL:
            return None
        return self.producers.admit(facts, self.name)

    def _remember(self, batches: memoryview, facts: Facts, base_offset: int) -> None:
        if facts.batches == 1 and facts.chained:
            written = Written(
                facts.sequence_first,
                facts.sequence_last,
                base_offset,
                base_offset + facts.offsets - 1,
            )
            self.note_producer(
                facts.producer_id, facts.producer_epoch, written, facts.attributes_any, batches, 0
            )
            return
        position = 0
        while position < len(batches):
            header = kernels.batch_header(batches, position)
            last = (header.base_sequence + header.last_offset_delta) & _RELATIVE_OFFSET_MAX
            written = Written(
                header.base_sequence,
                last,
                header.base_offset,
                header.base_offset + header.last_offset_delta,
            )
            self.note_producer(
                header.producer_id,
                header.producer_epoch,
                written,
                header.attributes,
                batches,
                position,
            )
            position += header.size

    def note_producer(
        self,
        producer_id: int,
        epoch: int,
        written: Written,
        attributes: int,
        data: kernels.Buffer,
        position: int,
    ) -> None:
        """Remember a batch, just written or met while opening; `data` holds it at `position`."""
        now_ms = self.runtime.now_ms()
        if not attributes & _CONTROL:
            self.producers.wrote(
                producer_id,
                epoch,
                written,
                timestamp_ms=now_ms,
                transactional=bool(attributes & _TRANSACTIONAL),
            )
            return
        kind = batches_of.control_type(data, position)
        self.producers.settled(self.durable.offset)
        start = self.producers.ended(producer_id, epoch, written.last_offset, timestamp_ms=now_ms)
        if kind == "abort" and start >= 0:
            open_start = self.producers.open_transaction_start
            stable = written.last_offset + 1 if open_start is None else open_start
            self._add_aborted(AbortedTransaction(producer_id, start, written.last_offset, stable))

    def _add_aborted(self, entry: AbortedTransaction) -> None:
        self.aborted.add(entry)
        segment = self.segment_of(entry.last_offset)
        # Behind it there are others only while opening, when some were found lost.
        later = self.aborted.from_offset(entry.last_offset, segment.next_offset)
        index = self.aborted.number_from(segment.base_offset)
        index -= self.aborted.number_from(entry.last_offset)
        try:
            self._write_aborted(segment, later, index)
        except OSError as error:
            # The marker is written and counts; this is made up for by the next checkpoint.
            what = "write to the index of aborted transactions"
            self.troubles.tell(logging.ERROR, "aborted", what, error)
            self.aborts_unwritten = True

    def make_up_for_aborts(self) -> None:
        """Write what the indexes of aborted transactions lack; raises OSError."""
        if not self.aborts_unwritten:
            return
        for segment in self.segments:
            entries = self.aborted.from_offset(segment.base_offset, segment.next_offset)
            if entries:
                self._write_aborted(segment, entries, 0)
        self.aborts_unwritten = False

    def _write_aborted(
        self, segment: Segment, entries: list[AbortedTransaction], index: int
    ) -> None:
        path = segment.path(".txnindex")
        known = self.aborts_unsynced.get(path)
        if known is None:
            file = self.files.open(path, create=True)
            self.flusher.created(self.directory)
        else:
            file = known.file
        self.aborts_unsynced[path] = UnsyncedAborts(file)
        self.files.write(file, transactions.pack(entries), index * transactions.ENTRY_BYTES)

    def _appended(self, records: int) -> None:
        if not self.syncs:
            active = self.segments[-1]
            self.durable = Point(active.next_offset, active.base_offset, active.size)
            if self.watchers:
                self.notify()
            return
        self.records_since_sync += records
        urgent = bool(self.watchers) or self.records_since_sync >= self.settings.flush_messages
        self.flusher.appended(self, urgent=urgent)
        if self.watchers:
            self.notify()

    def _storage_error(self, action: str, error: OSError) -> StorageFailed:
        self.troubles.tell(logging.ERROR, action, f"{action} {self.name}", error)
        text = f"cannot {action} {self.name}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"{text}; free some space")
        return StorageFailed(f"{text}; check the disk of {self.directory}")

    # Durability

    def settle(self, offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """Call `then` once everything before `offset` is durable, or cannot become so."""
        if self.durable.offset >= offset:
            then(None)
        elif self.failed:
            then(StorageFailed(self.failed))
        else:
            self.waiters.append((offset, then))
            self.flusher.request(self)

    def advance(self, durable: Point) -> None:
        """Everything before a point has become durable."""
        if durable.offset <= self.durable.offset:
            return
        self.durable = durable
        waiters = self.waiters
        if waiters:
            self.waiters = [waiter for waiter in waiters if waiter[0] > durable.offset]
            for offset, then in waiters:
                if offset <= durable.offset:
                    self._call(partial(then, None))
        if self.watchers:
            self.notify()

    def fail(self, error: BaseException) -> None:
        """A sync failed: the kernel may have dropped what it could not write.  No more writes."""
        if not self.failed:
            self.failed = (
                f"{self.name} takes no writes: the disk refused to sync ({error}); "
                f"check the disk, then restart the broker"
            )
            log.error(self.failed)
        waiters, self.waiters = self.waiters, []
        for _, then in waiters:
            self._call(partial(then, StorageFailed(self.failed)))

    def notify(self) -> None:
        for watcher in list(self.watchers):
            self._call(partial(watcher, self))

    def _call(self, run: Callable[[], object]) -> None:
        """Report to one waiter; its mistake must not keep the news from all the others."""
        try:
            run()
        except Exception:
            log.exception("%s: a waiter failed when it was told of new records", self.name)

    # Finding

    def segment_of(self, offset: int) -> Segment:
        return self.segments[max(0, bisect_right(self.bases, offset) - 1)]

    # Giving up the oldest

    def trim(self, before: int) -> int:
        """Request a later log start; `Store.write_starts` applies it.  Returns that start."""
        if not self.start_offset <= before <= self.durable.offset:
            raise OffsetOutOfRange(
                f"offset {before} outside {self.start_offset}..{self.durable.offset} "
                f"of {self.name}",
                start=self.start_offset,
                end=self.durable.offset,
            )
        self.pending_start = max(self.pending_start, before)
        return self.pending_start

    def advance_start(self, start: int) -> None:
        """Move the log start, which must be durable, and drop whole segments below it.

        Consumers skip the records below it for good, so a power cut must not restore them.
        """
        self.start_offset = start
        self.drop_segments([s for s in self.segments[:-1] if s.next_offset <= start])

    def drop_segments(self, doomed: list[Segment]) -> int:
        """Remove segments from the front, their files after the topic's delay; returns how many.

        The first one that the disk does not let go keeps all after it: a log without those would
        have a hole after the next start.
        """
        if not doomed or not self.snapshots.keep(doomed[-1].next_offset):
            return 0
        dropped = 0
        for segment in doomed:
            assert segment is self.segments[0]
            assert len(self.segments) > 1
            if not self.retire(segment):
                break
            del self.segments[0], self.bases[0]
            self.start_offset = max(self.start_offset, self.segments[0].base_offset)
            self.metrics.segments_deleted += 1
            self.metrics.segments_deleted_bytes += segment.size
            dropped += 1
        self.reading.forget()
        # Not those before the start: where an entry is in its file is counted from these.
        self.aborted.forget(self.segments[0].base_offset)
        self.notify()
        return dropped

    def retire(self, segment: Segment) -> bool:
        """Take the files of a segment out of the log; they go after the topic's delay.

        False if the disk refuses it.
        """
        try:
            segment.mark_deleted()
        except OSError as error:
            what = f"rename the files of a dropped segment of {self.name}"
            self.troubles.tell(logging.WARNING, "retire", what, error)
            return False
        self.runtime.after(self.settings.file_delete_delay_ms, partial(self._remove, segment))
        return True

    def _remove(self, segment: Segment) -> None:
        try:
            segment.remove()
        except OSError as error:
            what = f"remove the files of a dropped segment of {self.name}"
            self.troubles.tell(logging.WARNING, "remove", what, error)

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put a compacted segment, whose files are in place, where its sources were."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == old
        assert not any(segment.active for segment in old)
        bases = {segment.base_offset for segment in old}
        self.segments[first : first + len(old)] = [new]
        self.bases = [segment.base_offset for segment in self.segments]
        # A mark that lay at the end of a source now lies at the start of what follows.
        following = self.segments[first + 1].base_offset
        if self.durable.base in bases:
            assert self.durable.offset == following
            self.durable = Point(following, following, 0)
        if self.synced.base in bases:
            self.synced = Point(following, following, 0)
        self.gaps = True
        self._apply_settings(new)
        self.reading.forget()
        self.metrics.segments_compacted += len(old)

    # Opening and leaving

    def sync_all(self) -> None:
        """Bring the files to the disk here and now; raises OSError."""
        target = self.end
        for segment in self.unsynced_segments:
            self.files.sync(segment.file)
            if segment.damages or not segment.active:
                for path in segment.indexes:
                    sync_file(self.files, path)
        self.make_up_for_aborts()
        for unsynced in self.aborts_unsynced.values():
            self.files.sync(unsynced.file)
        self.aborts_unsynced = {}
        self.files.sync_directory(self.directory)
        self.synced = target
        self.advance(target)

    def abandon(self) -> None:
        """The partition was deleted: whoever waits for it is told."""
        refusal = PartitionNotFound(f"{self.name} was deleted")
        waiters, self.waiters = self.waiters, []
        for _, then in waiters:
            then(refusal)
        self.notify()
        self.close()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.reading.forget()
