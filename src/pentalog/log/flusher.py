"""Group commit: who waits for which offset, and how the bytes reach the disk.

What somebody waits for goes through the journal (one sync for all partitions), or, if it is
large or the journal is full, by a sync of the partition's own file.  What nobody waits for is
synced at the latest after the interval.  All syncs run on two threads, one for the journal and
one for the files, so that a large file never holds up a small commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.log.files import Files, Handle
from pentalog.log.journal import Chunk, Entry, Journal
from pentalog.metrics import Metrics
from pentalog.runtime import Runtime, Timer

if TYPE_CHECKING:
    from pentalog.log.partition import PartitionLog
    from pentalog.log.segment import Point

log = logging.getLogger("pentalog.log")

JOURNAL_LANE: Final = "journal"
SYNC_LANE: Final = "sync"

_JOURNAL_PAYS_AFTER: Final = 32
"""File syncs that somebody waited for, before it is worth writing a journal ahead."""


class Flusher:
    def __init__(
        self,
        files: Files,
        runtime: Runtime,
        metrics: Metrics,
        journal: Journal,
        *,
        interval_ms: int,
        journal_batch_bytes_max: int,
    ) -> None:
        self.interval_ms = interval_ms
        self.syncs = interval_ms > 0
        self._files = files
        self._runtime = runtime
        self._metrics = metrics
        self._journal = journal
        self._journal_batch_bytes_max = min(
            journal_batch_bytes_max, (journal.size_bytes - 8192) // 4
        )
        self._urgent: dict[PartitionLog, None] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._timer: Timer | None = None
        self._kick_due = False
        self._committing = False
        self._creating = False
        self._waited_syncs = 0
        self._syncing: set[PartitionLog] = set()
        self._directories: set[Path] = set()
        self._journaled: dict[PartitionLog, int] = {}
        """End of the newest journal entry of each partition that has one."""
        self._committed_sequence = 0
        self._checkpointing = False
        self._closed = False

    # Asked by partitions

    def appended(self, partition: PartitionLog, *, urgent: bool) -> None:
        """A partition has new records; `urgent` if somebody is waiting to see them."""
        if urgent:
            self.request(partition)
            return
        self._dirty[partition] = None
        self._arm(min(self.interval_ms or 1 << 30, partition.settings.flush_ms))

    def request(self, partition: PartitionLog) -> None:
        """Make everything written to a partition so far durable, soon."""
        self._urgent[partition] = None
        if not self._kick_due:
            self._kick_due = True
            # Not now: the rest of this turn's appends join.
            self._runtime.soon(self._kick)

    def created(self, directory: Path) -> None:
        """Files were made in a directory: their names must reach the disk as well."""
        self._directories.add(directory)

    def sealed(self, partition: PartitionLog) -> None:
        """A segment is complete: sync it in the background, so recovery need not read it."""
        self._dirty[partition] = None
        self._arm(self.interval_ms or 1000)

    def forget(self, partition: PartitionLog) -> None:
        self._directories.discard(partition.directory)
        self._urgent.pop(partition, None)
        self._dirty.pop(partition, None)
        self._journaled.pop(partition, None)

    def _arm(self, delay_ms: int) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._runtime.after(delay_ms, self._interval_over)

    def _interval_over(self) -> None:
        self._timer = None
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            # What went through the journal is safe; its file is synced when the journal is full.
            rolled = partition.synced.base != partition.active.base_offset
            if rolled or partition.durable.offset < partition.end_offset:
                self._sync(partition)

    def _kick(self) -> None:
        self._kick_due = False
        if self._committing or self._closed:
            return
        urgent, self._urgent = self._urgent, {}
        entries: list[tuple[PartitionLog, Point, Entry]] = []
        for partition in urgent:
            if partition.failed or partition.deleted:
                continue
            target = partition.end
            if partition.durable.offset >= target.offset:
                continue
            entry = self._entry(partition, target)
            if entry is None:
                self._waited_syncs += 1
                self._sync(partition, urgent=True)
            else:
                entries.append((partition, target, entry))
        if entries:
            self._commit(entries)
        if self._waited_syncs >= _JOURNAL_PAYS_AFTER:
            self._create_journal()

    # The journal

    def _entry(self, partition: PartitionLog, target: Point) -> Entry | None:
        """What of a partition is not durable yet, if it may go through the journal."""
        if not self._journal.ready:
            return None
        covered = partition.durable
        # After a roll the entry may begin the new segment, but never reach back into the old one.
        start = covered.position if covered.base == target.base else 0
        if covered.base != target.base and covered.offset != target.base:
            return None
        size = target.position - start
        if size > self._journal_batch_bytes_max:
            return None
        payload = self._files.read(partition.active.file, size, start)
        return Entry(partition.topic_id, partition.at.index, covered.offset, target.base, payload)

    def _commit(self, entries: list[tuple[PartitionLog, Point, Entry]]) -> None:
        chunk = self._journal.place([entry for _, _, entry in entries])
        if chunk is None:
            self._checkpoint_journal()
            for partition, _, _ in entries:
                self._sync(partition, urgent=True)
            return
        self._committing = True
        self._metrics.syncs += 1
        self._metrics.journal_bytes += len(chunk.data)
        directories, self._directories = self._directories, set()
        settled = [(partition, target) for partition, target, _ in entries]
        self._runtime.offload(
            JOURNAL_LANE,
            partial(self._write_chunk, chunk, directories),
            partial(self._committed, settled, directories, chunk.sequence_last),
        )

    def _write_chunk(self, chunk: Chunk, directories: set[Path]) -> float:
        """Returns how many seconds the disk took; the caller counts them on his own thread."""
        start_s = self._runtime.monotonic()
        self._sync_directories(directories)
        self._files.write_synced(self._journal.file, chunk.data, chunk.position)
        return self._runtime.monotonic() - start_s

    def _committed(
        self,
        settled: list[tuple[PartitionLog, Point]],
        directories: set[Path],
        sequence: int,
        took_s: float | None,
        error: BaseException | None,
    ) -> None:
        self._committing = False
        if error is not None:
            self._directories |= directories
        else:
            self._committed_sequence = sequence
            self._metrics.sync_seconds.observe(took_s or 0.0)
        for partition, target in settled:
            if error is not None:
                partition.fail(error)
            else:
                self._journaled[partition] = target.offset
                partition.advance(target)
        if self._urgent and not self._kick_due:
            self._kick()
        if self._journal.used_bytes > self._journal.size_bytes // 2:
            self._checkpoint_journal()

    def _create_journal(self) -> None:
        if self._creating or self._journal.ready or not self.syncs:
            return
        self._creating = True
        self._runtime.offload(JOURNAL_LANE, self._journal.create, self._created)

    def _created(self, file: Handle | None, error: BaseException | None) -> None:
        if error is not None or self._closed:
            log.warning("no journal: %s; acknowledged writes sync their own files", error)
            return
        self._journal.start(file)

    def _checkpoint_journal(self) -> None:
        """Sync the partitions behind the journal's entries, then give up the entries."""
        if self._checkpointing:
            return
        self._checkpointing = True
        # Not the newest entry: that one may still be on its way to the disk.
        sequence = self._committed_sequence
        waiting = {
            partition
            for partition, offset in self._journaled.items()
            if partition.synced.offset < offset
        }
        self._journaled.clear()

        if not waiting:
            self._give_up(sequence)
            return

        def synced(partition: PartitionLog) -> None:
            # A partition that failed has its acknowledged records in the journal alone: then
            # nothing is given up any more, and the next start finds them there.
            if not partition.failed:
                waiting.discard(partition)
            if not waiting:
                self._give_up(sequence)

        for partition in list(waiting):
            self._sync(partition, synced)

    def _give_up(self, sequence: int) -> None:
        data, position = self._journal.header_after(sequence)
        self._runtime.offload(
            JOURNAL_LANE,
            partial(self._files.write_synced, self._journal.file, data, position),
            partial(self._checkpointed, sequence),
        )

    def _checkpointed(self, sequence: int, _: None, error: BaseException | None) -> None:
        self._checkpointing = False
        if error is None:
            self._journal.release(sequence)
        else:
            log.error("cannot write the journal's header: %s", error)

    # Partition files

    def _sync(
        self,
        partition: PartitionLog,
        then: Callable[[PartitionLog], None] | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        """Sync a partition's own files up to its present end."""
        if partition.deleted or partition.failed:
            if then is not None:
                then(partition)
            return
        if partition in self._syncing and then is None:
            if urgent:
                self._urgent[partition] = None
            else:
                self._dirty[partition] = None
                self._arm(self.interval_ms or 1000)
            return
        self._syncing.add(partition)
        target = partition.end
        handles = [
            segment.file
            for segment in partition.segments
            if segment.base_offset >= partition.synced.base
        ]
        directories = {partition.directory} & self._directories
        self._directories -= directories
        self._metrics.syncs += len(handles)
        self._runtime.offload(
            SYNC_LANE,
            partial(self._sync_files, handles, directories),
            partial(self._synced, partition, target, then),
        )

    def _sync_files(self, handles: list[Handle], directories: set[Path]) -> float:
        start_s = self._runtime.monotonic()
        for handle in handles:
            self._files.sync(handle)
        self._sync_directories(directories)
        return self._runtime.monotonic() - start_s

    def _sync_directories(self, directories: set[Path]) -> None:
        for directory in directories:
            with contextlib.suppress(FileNotFoundError):  # its partition was deleted meanwhile
                self._files.sync_directory(directory)

    def _synced(
        self,
        partition: PartitionLog,
        target: Point,
        then: Callable[[PartitionLog], None] | None,
        took_s: float | None,
        error: BaseException | None,
    ) -> None:
        self._syncing.discard(partition)
        if error is not None:
            partition.fail(error)
        else:
            self._metrics.sync_seconds.observe(took_s or 0.0)
            partition.synced = max(partition.synced, target)
            partition.records_since_sync = 0
            partition.advance(target)
        if then is not None:
            then(partition)
        if partition in self._urgent and not self._kick_due:
            self._kick_due = True
            self._runtime.soon(self._kick)

    # Leaving

    def close(self, partitions: list[PartitionLog]) -> None:
        """Sync everything, here and now; nothing runs on the threads any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for partition in partitions:
            if partition.failed or partition.deleted:
                continue
            try:
                partition.sync_all()
            except OSError as error:
                partition.fail(error)
