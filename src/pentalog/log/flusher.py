"""Group commit: who waits for which offset, and how the bytes reach the disk.

What somebody waits for goes through the journal (one sync for all partitions), or, if it is
large or the journal is full, by a sync of the partition's own file.  What nobody waits for is
synced at the latest after the interval.  All syncs run on two threads, one for the journal and
one for the files, so that a large file never holds up a small commit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.log.files import Files, Handle, sync_file
from pentalog.log.journal import Chunk, Entry, Journal
from pentalog.metrics import Metrics
from pentalog.runtime import Runtime, Timer

if TYPE_CHECKING:
    from pentalog.log.partition import PartitionLog
    from pentalog.log.segment import Point

log = logging.getLogger("pentalog.log")

JOURNAL_LANE: Final = "journal"
SYNC_LANE: Final = "sync"

_LACKING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The system has no room for one more open file now."""
_NOT_SYNCED: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""No sync fails with these: a directory or an index could not be opened to be synced."""
_REOPEN_MS: Final = 1_000

_JOURNAL_PAYS_AFTER: Final = 32
"""File syncs that somebody waited for, before it is worth writing a journal ahead."""


class _NewNames:
    """Names that were made in a directory since it was last synced; another object for others."""

    __slots__ = ("contents",)

    def __init__(self, contents: tuple[Path, ...]) -> None:
        self.contents = contents


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
        self._timer_delay_ms = 0
        self._timer_due_s = 0.0
        self._kick_due = False
        self._committing = False
        self._creating = False
        self._waited_syncs = 0
        self._syncing: dict[PartitionLog, None] = {}
        self._reopening: dict[PartitionLog, list[Callable[[PartitionLog], None]]] = {}
        """Partitions that wait for descriptors, and what is to be called when they are synced.

        Each has one timer, however often it is asked for meanwhile.
        """
        self._new_names: dict[Path, _NewNames] = {}
        """Directories with names that a power cut would take.

        They stay here until a sync has succeeded: two lanes may sync one at the same time, and
        neither may rely on the other.
        """
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

    def created(self, directory: Path, *contents: Path) -> None:
        """Files were made in a directory: their names must reach the disk as well.

        Those among them whose contents nothing else syncs are given as `contents`.
        """
        earlier = self._new_names.get(directory)
        if earlier is not None:
            contents = (*earlier.contents, *contents)
        self._new_names[directory] = _NewNames(contents)

    def sealed(self, partition: PartitionLog) -> None:
        """A segment is complete: sync it in the background, so recovery need not read it."""
        self._dirty[partition] = None
        self._arm(self.interval_ms or 1000)

    def forget(self, partition: PartitionLog) -> None:
        self._new_names.pop(partition.directory, None)
        self._urgent.pop(partition, None)
        self._dirty.pop(partition, None)
        self._journaled.pop(partition, None)

    def _arm(self, delay_ms: int) -> None:
        """Sync what is dirty after a delay at the latest, whatever delay was set before."""
        if self._timer is not None and delay_ms >= self._timer_delay_ms:
            return  # with every append, so before anything else
        if self._closed:
            return
        due_s = self._runtime.monotonic() + delay_ms / 1000
        if self._timer is not None:
            if due_s >= self._timer_due_s:
                return
            self._timer.cancel()
        self._timer = self._runtime.after(delay_ms, self._interval_over)
        self._timer_delay_ms, self._timer_due_s = delay_ms, due_s

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
            if partition.failed or partition.deleted or partition in self._reopening:
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
        try:
            payload = self._files.read(partition.active.file, size, start)
        except OSError:
            return None
        if len(payload) != size or not self._journal.accepts(payload):
            return None
        return Entry(
            partition.topic_id, partition.at.index, covered.offset, target.base, start, payload
        )

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
        settled = [(partition, target) for partition, target, _ in entries]
        names = self._names_of([partition for partition, _ in settled])
        self._runtime.offload(
            JOURNAL_LANE,
            partial(self._write_chunk, chunk, names),
            partial(self._committed, settled, names, chunk.sequence_last),
        )

    def _write_chunk(self, chunk: Chunk, names: dict[Path, _NewNames]) -> float:
        """Returns how many seconds the disk took; they are counted on the owner's thread."""
        start_s = self._runtime.monotonic()
        self._sync_names(names)
        self._files.write_synced(self._journal.file, chunk.data, chunk.position)
        return self._runtime.monotonic() - start_s

    def _committed(
        self,
        settled: list[tuple[PartitionLog, Point]],
        names: dict[Path, _NewNames],
        sequence: int,
        took_s: float | None,
        error: BaseException | None,
    ) -> None:
        self._committing = False
        if isinstance(error, OSError) and error.errno in _NOT_SYNCED:
            # The names are synced first, so the chunk was not written: its entries are made again.
            settled, waiting = [], settled
            for partition, _ in waiting:
                self._not_opened(partition, None, error)
        if error is None:
            self._names_synced(names)
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
        if self._creating or self._journal.ready or self._journal.retired or not self.syncs:
            return
        self._creating = True
        self._runtime.offload(JOURNAL_LANE, self._journal.create, self._created)

    def _created(self, file: Handle | None, error: BaseException | None) -> None:
        if self._closed:
            return
        try:
            if error is not None:
                raise error
            self._journal.start(file)
        except OSError as failure:
            log.warning("no journal: %s; acknowledged writes sync their own files", failure)
            # Tried again after as many syncs as were needed before this time.
            self._creating = False
            self._waited_syncs = 0

    def _checkpoint_journal(self) -> None:
        """Sync the partitions behind the journal's entries, then give up the entries."""
        if self._checkpointing:
            return
        self._checkpointing = True
        # Not the newest entry: that one may still be on its way to the disk.
        sequence = self._committed_sequence
        waiting = {
            partition: None
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
                waiting.pop(partition, None)
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
            self._journal.forget_header()
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
        if partition in self._reopening:
            self._reopen_later(partition, then)
            return
        if partition in self._syncing and then is None:
            if urgent:
                self._urgent[partition] = None
            else:
                self._dirty[partition] = None
                self._arm(self.interval_ms or 1000)
            return
        target = partition.end
        segments = partition.unsynced_segments
        try:
            handles = [segment.file for segment in segments]
        except OSError as error:
            self._not_opened(partition, then, error)
            return
        self._syncing[partition] = None
        indexes = [path for segment in segments if not segment.active for path in segment.indexes]
        names = self._names_of([partition])
        self._metrics.syncs += len(handles)
        self._runtime.offload(
            SYNC_LANE,
            partial(self._sync_files, handles, indexes, names),
            partial(self._synced, partition, target, names, then),
        )

    def _not_opened(
        self,
        partition: PartitionLog,
        then: Callable[[PartitionLog], None] | None,
        error: OSError,
    ) -> None:
        """A file of the partition cannot be opened to be synced."""
        if error.errno in _LACKING:
            # Clients may hold all the descriptors there are: nothing is lost, and they will go.
            what = f"open the files of {partition.name} to sync them, which is tried again"
            partition.troubles.tell(logging.WARNING, "descriptors", what, error)
            self._reopen_later(partition, then)
            return
        partition.fail(error)
        if then is not None:
            then(partition)

    def _reopen_later(
        self, partition: PartitionLog, then: Callable[[PartitionLog], None] | None = None
    ) -> None:
        """Sync a partition when there may be descriptors again; until then nothing else tries."""
        if partition not in self._reopening:
            self._reopening[partition] = []
            self._runtime.after(_REOPEN_MS, partial(self._reopen, partition))
        if then is not None:
            self._reopening[partition].append(then)

    def _reopen(self, partition: PartitionLog) -> None:
        waiting = self._reopening.pop(partition)
        if self._closed:
            return

        def synced(partition: PartitionLog) -> None:
            for then in waiting:
                then(partition)

        self._sync(partition, synced if waiting else None, urgent=True)

    def _sync_files(
        self, handles: list[Handle], indexes: list[Path], names: dict[Path, _NewNames]
    ) -> float:
        start_s = self._runtime.monotonic()
        for handle in handles:
            self._files.sync(handle)
        for path in indexes:
            with contextlib.suppress(FileNotFoundError):  # dropped or compacted meanwhile
                sync_file(self._files, path)
        self._sync_names(names)
        return self._runtime.monotonic() - start_s

    # Names

    def _names_of(self, partitions: list[PartitionLog]) -> dict[Path, _NewNames]:
        """What must be synced so that the partitions' files can be found after a power cut."""
        if not self._new_names:
            return {}
        directories = [partition.directory for partition in partitions]
        directories.append(directories[0].parent)  # of all partitions
        return {
            directory: names
            for directory in directories
            if (names := self._new_names.get(directory)) is not None
        }

    def _sync_names(self, names: dict[Path, _NewNames]) -> None:
        for directory, new in names.items():
            with contextlib.suppress(FileNotFoundError):  # its partition was deleted meanwhile
                for path in new.contents:
                    sync_file(self._files, path)
                self._files.sync_directory(directory)

    def _names_synced(self, names: dict[Path, _NewNames]) -> None:
        for directory, new in names.items():
            if self._new_names.get(directory) is new:
                del self._new_names[directory]

    def _synced(
        self,
        partition: PartitionLog,
        target: Point,
        names: dict[Path, _NewNames],
        then: Callable[[PartitionLog], None] | None,
        took_s: float | None,
        error: BaseException | None,
    ) -> None:
        self._syncing.pop(partition, None)
        if isinstance(error, OSError) and error.errno in _NOT_SYNCED:
            self._not_opened(partition, then, error)
            return
        if error is not None:
            partition.fail(error)
        else:
            self._names_synced(names)
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
                self._sync_names(self._names_of([partition]))
                partition.sync_all()
            except OSError as error:
                partition.fail(error)
