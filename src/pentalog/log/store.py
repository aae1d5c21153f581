"""A data directory: its lock, its format, its partitions and its journal.

.lock                              held while a broker uses the directory
pentalog.format                    version of everything below, one number
pentalog.clean                     written by a clean stop, removed by the next start
journal                            see journal.py
journal.rejected                   entries of the journal that could not be applied
recovery-point-offset-checkpoint   what is known to be on the disk, by partition
log-start-offset-checkpoint        where partitions start that do not start at a segment
pentalog.marks                     see marks.py
cleaner-offset-checkpoint          up to where partitions have been compacted
TOPIC-N/                           one partition: segments, indexes, producers' snapshot
TOPIC-N/partition.metadata         the topic's id, as Kafka writes it
TOPIC-N/name                       the topic's name, where TOPIC is only its digest
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from pentalog.config import Config
from pentalog.log import checkpoints
from pentalog.log.checkpoints import Checkpointed, offset_of, spell
from pentalog.log.directories import (
    DOOMED,
    STRAY,
    TOPIC_ID_FILE,
    Directories,
    StoreError,
    lock_directory,
    owners_of,
)
from pentalog.log.files import Files, Handle, sync_file
from pentalog.log.flusher import SYNC_LANE, Flusher
from pentalog.log.format import FORMAT, FORMAT_FILE, FORMATS_READ, read_format, write_format
from pentalog.log.journal import Entry, Journal
from pentalog.log.marks import MarksFile, PublishedMarks, read_marks
from pentalog.log.partition import PartitionLog
from pentalog.log.producers import ProducerRoom
from pentalog.log.recovery import CleanStop, clean_stop_of, open_partition, open_producers
from pentalog.log.residents import Residents
from pentalog.log.troubles import Troubles
from pentalog.metrics import Metrics
from pentalog.model.errors import PartitionNotFound
from pentalog.model.settings import LogSettings
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Timer

log = logging.getLogger("pentalog.log")

_SET_ASIDE_BYTES_MAX: Final = 64 << 20

_CHECKPOINT_INTERVAL_MS: Final = 5_000
_CHECKPOINTS_PER_TURN: Final = 8
_PRODUCERS_AT_ONCE: Final = 500
"""A snapshot of more producers counts as several."""
_MARKS_AT_ONCE: Final = 1000


class Opening(NamedTuple):
    """How far the opening of a directory is."""

    done: int
    partitions: int


class Store:
    def __init__(
        self, directory: Path, files: Files, runtime: Runtime, metrics: Metrics, config: Config
    ) -> None:
        self.directory = directory
        self.files = files
        self.runtime = runtime
        self.metrics = metrics
        self.config = config
        self.journal = Journal(directory / "journal", files, config.journal_bytes)
        self.flusher = Flusher(
            files,
            runtime,
            metrics,
            self.journal,
            interval_ms=config.flush_interval_ms,
            journal_batch_bytes_max=config.journal_batch_bytes_max,
        )
        self.cleaned_offsets: dict[Partition, int] = {}
        """Up to where each compacted partition has been compacted."""
        self.stopped_cleanly = False
        """Did the life before this one leave everything as it should be?"""
        self._names = checkpoints.Names(files, directory)
        self._directories = Directories(files, directory, self._names)
        self._marks = MarksFile(directory, files)
        self._marks_timer: Timer | None = None
        self.troubles = Troubles(runtime)
        self.files_max = sys.maxsize
        """Files that may be open at once, of which each partition has one."""
        self._residents = Residents()
        self._producer_room = ProducerRoom(config.producers_max)
        self._partitions: dict[Partition, PartitionLog] = {}
        self._visible: dict[Partition, PartitionLog] = {}
        """Without those whose topic is being deleted."""
        self._lock: Handle | None = None
        self._starts: dict[str, Checkpointed] = {}
        """What the checkpoint of starts holds, by directory name."""
        self._points: dict[str, Checkpointed] = {}
        """The recovery points that were found at the start, by directory name."""
        self._checkpoint_timer: Timer | None = None
        self._checkpointed: dict[Partition, tuple[int, int]] = {}
        self._opened = False

    # Opening and closing

    def open(self) -> None:
        for _ in self.opening():
            pass

    def opening(self) -> Iterator[Opening]:
        """Open step by step, so that others get their turn; nothing is usable before the end.

        At the first step the directory is locked and nothing in it has been touched.
        """
        files, directory = self.files, self.directory
        self._lock_directory()
        yield Opening(0, 0)
        stops = checkpoints.read_clean_stop(files, directory / checkpoints.CLEAN_STOP)
        self._points = points = self._read_offsets(checkpoints.RECOVERY_POINTS)
        cleaned = self._read_offsets(checkpoints.CLEANED_OFFSETS)
        published = read_marks(files, directory, self._names)
        starts = self._read_starts(published)
        named = {spell(at): marks.topic_id for at, marks in (published or {}).items()}
        for name, known in (*self._starts.items(), *points.items()):
            if known.topic_id is not None:
                named[name] = known.topic_id
        self._directories.named = named
        if stops:
            files.remove(directory / checkpoints.CLEAN_STOP)
            files.sync_directory(directory)
            self.stopped_cleanly = True
        found = list(self._directories.found())
        if len(found) > self.files_max:
            raise StoreError(
                f"{directory} holds {len(found)} partitions, each needs an open file, and there "
                f"may be {self.files_max}; let this process open more (ulimit -Hn)"
            )
        entries = self._read_journal()
        ids = {name: self._topic_id(name) for _, name in found}
        owners = owners_of(found, ids, points)
        for done, (at, name) in enumerate(found):
            topic_id = ids[name]
            owned = owners[topic_id, at.index] == name
            compacted = offset_of(cleaned, name, topic_id)
            if compacted is not None:
                self.cleaned_offsets[at] = compacted
            for _ in self._open_partition(
                at,
                topic_id,
                stops.get(name),
                recovery_point=offset_of(points, name, topic_id) or 0,
                start_offset=offset_of(starts, name, topic_id) or 0,
                entries=entries.pop((topic_id, at.index), []) if owned else [],
            ):
                yield Opening(done, len(found))
            yield Opening(done + 1, len(found))
        if entries:
            log.info("%d journal entries of deleted partitions", sum(map(len, entries.values())))
        for partition in self._partitions.values():
            open_producers(partition)
            yield Opening(len(found), len(found))
        if not stops:
            files.sync_directory(directory)
        for at, partition in self._partitions.items():
            self._sync_recovered(partition, clean=spell(at) in stops)
            yield Opening(len(found), len(found))
        if any(partition.failed for partition in self._partitions.values()):
            # What could not be synced may be nowhere else: the next start needs it.
            self.journal.retire()
        else:
            if not stops:  # the journal alone may have known that offsets are taken
                self._write_checkpoints(self._recovery_points())
            self.journal.start()
        offsets = (*points.values(), *cleaned.values(), *self._starts.values())
        if any(offset.topic_id is None for offset in offsets):
            self._write_ids()
        self._opened = True
        self._checkpoint_timer = self.runtime.after(_CHECKPOINT_INTERVAL_MS, self._checkpoint_due)
        self._publish_due()

    def _write_ids(self) -> None:
        """Complete what format 1 wrote: a new topic would inherit offsets without an id."""
        self.write_starts()
        self.write_cleaned_offsets()
        self._write_checkpoints(self._recovery_points())
        for partition in self._partitions.values():
            if partition.topic_id.int:
                self._directories.write_topic_id(partition.directory, partition.topic_id)

    def _topic_id(self, name: str) -> UUID:
        """The id of a directory's topic; if its file is damaged, as other files name it.

        Without an id the start offset and the journal's entries of the partition would be lost.
        A new topic of the same name gets no acknowledged record before its own id is synced.
        """
        directory = self.directory / name
        found, named = self._directories.topic_id(directory), self._directories.named.get(name)
        if found.int or named is None:
            return found
        path = directory / TOPIC_ID_FILE
        log.warning("%s is damaged: it is written again as other files name the id", path)
        self._directories.write_topic_id(directory, named)
        return named

    def _read_journal(self) -> dict[tuple[UUID, int], list[Entry]]:
        entries: dict[tuple[UUID, int], list[Entry]] = {}
        for entry in self.journal.recover():
            entries.setdefault((entry.topic_id, entry.partition), []).append(entry)
        return entries

    def _lock_directory(self) -> None:
        self._lock = lock_directory(self.files, self.directory)
        self._check_format()

    def _read_offsets(self, name: str) -> dict[str, Checkpointed]:
        return checkpoints.read_offsets(self.files, self.directory / name, self._note_damage)

    def _read_starts(
        self, published: Mapping[Partition, PublishedMarks] | None
    ) -> dict[str, Checkpointed]:
        """Where partitions start; if the checkpoint does not say it, as the readers' marks do."""
        known = self.metrics.damaged_checkpoints
        self._starts = self._read_offsets(checkpoints.LOG_STARTS)
        if self._starts:
            return self._starts
        if published is None and self.metrics.damaged_checkpoints != known:
            log.error("nothing says where partitions start: deleted records may be back")
        return {
            spell(at): Checkpointed(marks.start, marks.topic_id)
            for at, marks in (published or {}).items()
            if marks.start
        }

    def _note_damage(self, checkpoint: Path) -> None:
        self.metrics.damaged_checkpoints += 1
        log.warning("%s is damaged: what it says is taken from other files", checkpoint)

    def _check_format(self) -> None:
        found = read_format(self.files, self.directory)
        if found and found not in FORMATS_READ:
            raise StoreError(
                f"{self.directory / FORMAT_FILE} says format {found!r}, this pentalog reads format "
                f"{FORMAT}; use the pentalog that wrote it, or choose another --data"
            )
        if found != str(FORMAT):
            write_format(self.files, self.directory)

    def _open_partition(
        self,
        at: Partition,
        topic_id: UUID,
        stop: CleanStop | None,
        *,
        recovery_point: int,
        start_offset: int,
        entries: list[Entry],
    ) -> Iterator[None]:
        partition = self._partition(at, topic_id, self.directory / spell(at), LogSettings())
        partition.gaps = at in self.cleaned_offsets
        rejected = yield from open_partition(
            partition,
            stop,
            recovery_point=recovery_point,
            start_offset=start_offset,
            compacted_offset=self.cleaned_offsets.get(at, 0),
            entries=entries,
        )
        if rejected:
            self._keep_rejected(partition, rejected)
        self._partitions[at] = self._visible[at] = partition

    def _keep_rejected(self, partition: PartitionLog, rejected: list[Entry]) -> None:
        """Keep what the journal holds and no segment can take, for those who want to look."""
        path = self.directory / "journal.rejected"
        self.metrics.journal_entries_rejected += len(rejected)
        for entry in rejected:
            log.error(
                "%s: the journal has %d bytes at offset %d that cannot be applied; they are in %s",
                partition.name,
                len(entry.payload),
                entry.base_offset,
                path,
            )
        try:
            file = self.files.open(path, create=True)
            try:
                for entry in rejected:
                    end = self.files.size(file)
                    if end + len(entry.payload) <= _SET_ASIDE_BYTES_MAX:
                        self.files.write(file, entry.payload, end)
            finally:
                file.close()
        except OSError as error:
            log.error("cannot write %s: %s", path, error)

    def _partition(
        self, at: Partition, topic_id: UUID, directory: Path, settings: LogSettings
    ) -> PartitionLog:
        return PartitionLog(
            at,
            topic_id,
            directory,
            files=self.files,
            runtime=self.runtime,
            metrics=self.metrics,
            flusher=self.flusher,
            residents=self._residents,
            room=self._producer_room,
            troubles=self.troubles,
            settings=settings,
        )

    def _sync_recovered(self, partition: PartitionLog, *, clean: bool) -> None:
        """What was found may be in the page cache only; readers take it for durable."""
        partition.durable = partition.end
        for damage in (d for segment in partition.segments for d in segment.damages):
            partition.report(damage)
        if not clean:
            try:
                # The names, too: the process that made them may have been killed before it synced.
                # And not only synced: a sync of that process may have failed, after which another
                # one proves nothing unless the contents are written again.
                if partition.topic_id.int:
                    self._directories.write_topic_id(partition.directory, partition.topic_id)
                    sync_file(self.files, partition.directory / TOPIC_ID_FILE)
                partition.sync_all()
            except OSError as error:
                partition.fail(error)

    def close(self) -> None:
        """Sync everything and say so, so that the next start need not look."""
        if not self._opened:
            self._lock = None
            return
        self._opened = False
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        if self._marks_timer is not None:
            self._marks_timer.cancel()
        partitions = list(self._partitions.values())
        self.flusher.close(partitions)
        stops: dict[str, CleanStop] = {}
        for partition in partitions:
            if not partition.failed:
                partition.active.persist_indexes()
                partition.snapshots.write()
                partition.snapshots.sync()
                stops[spell(partition.at)] = clean_stop_of(partition)
        self._write_checkpoints(self._recovery_points())
        if len(stops) == len(partitions):
            self.journal.start()
            path = self.directory / checkpoints.CLEAN_STOP
            self.files.replace_text(path, checkpoints.clean_stop_text(stops))
        self._publish()
        for partition in partitions:
            _stop(partition)
        self.journal.close()
        self._lock = None

    def abandon(self) -> None:
        """Let go of the directory as a crash would: nothing is synced, nothing is said."""
        self._opened = False
        for timer in (self._checkpoint_timer, self._marks_timer):
            if timer is not None:
                timer.cancel()
        for partition in self._partitions.values():
            _stop(partition)
        self.journal.close()
        self._lock = None

    # Checkpoints

    def _checkpoint_due(self) -> None:
        self._checkpoint_some(iter(list(self._partitions.values())))

    def _checkpoint_some(self, ahead: Iterator[PartitionLog]) -> None:
        """A few partitions a turn: thousands of small files must not hold up the others."""
        if not self._opened:
            return
        written = 0
        for partition in ahead:
            if self._checkpoint(partition):
                written += 1 + len(partition.producers) // _PRODUCERS_AT_ONCE
            if written >= _CHECKPOINTS_PER_TURN:
                self.runtime.soon(partial(self._checkpoint_some, ahead))
                return
        self.runtime.offload(
            SYNC_LANE,
            partial(self._write_checkpoints, self._recovery_points()),
            self._checkpoint_done,
        )

    def _checkpoint(self, partition: PartitionLog) -> bool:
        """Bring a partition's small files up to date; False if they are."""
        state = (partition.end_offset, partition.synced.offset)
        unchanged = self._checkpointed.get(partition.at) == state
        if unchanged or partition.failed or partition.deleted:
            return False
        self._checkpointed[partition.at] = state
        try:
            partition.active.persist_indexes()
            partition.snapshots.write()
        except OSError as error:
            what = f"write checkpoints of {partition.name}"
            self.troubles.tell(logging.WARNING, "checkpoint", what, error)
        return True

    def _checkpoint_done(self, _: None, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self.troubles.tell(logging.WARNING, "points", "write the recovery points", error)
        elif error is not None:
            log.warning("cannot write the recovery points: %s", error)
        if self._opened:
            self._checkpoint_timer = self.runtime.after(
                _CHECKPOINT_INTERVAL_MS, self._checkpoint_due
            )

    def _publish_due(self) -> None:
        self._publish()
        interval_ms = self.config.marks_interval_ms
        if self._opened and interval_ms:
            # The walk takes a turn of the loop: with thousands of partitions it comes less often.
            interval_ms *= 1 + len(self._partitions) // _MARKS_AT_ONCE
            self._marks_timer = self.runtime.after(interval_ms, self._publish_due)

    def _publish(self) -> None:
        try:
            self._marks.publish(self._partitions.values())
        except OSError as error:
            what = "publish the marks for readers of the files"
            self.troubles.tell(logging.WARNING, "marks", what, error)

    def _recovery_points(self) -> dict[str, Checkpointed]:
        every = self._partitions.values()
        return {p.directory.name: _checkpointed(p, p.synced.offset) for p in every}

    def _write_checkpoints(self, points: dict[str, Checkpointed]) -> None:
        path = self.directory / checkpoints.RECOVERY_POINTS
        self.files.replace_text(path, checkpoints.offsets_text(points))

    def write_recovery_points(self, then: Callable[[None, BaseException | None], None]) -> None:
        """Make it last what is synced: nothing before these points is replayed any more."""
        work = partial(self._write_checkpoints, self._recovery_points())
        self.runtime.offload(SYNC_LANE, work, then)

    def write_starts(self) -> None:
        """Persist the log starts, pending ones included, then apply them; raises OSError."""
        newest = {p: max(p.start_offset, p.pending_start) for p in self._partitions.values()}
        starts = {p.directory.name: _checkpointed(p, to) for p, to in newest.items() if to}
        if starts != self._starts:
            path = self.directory / checkpoints.LOG_STARTS
            self.files.replace_text(path, checkpoints.offsets_text(starts))
            self._starts = starts
        for partition, start in newest.items():
            partition.advance_start(start)

    def write_cleaned_offsets(self) -> None:
        path = self.directory / checkpoints.CLEANED_OFFSETS
        cleaned = {
            spell(at): _checkpointed(self._partitions[at], offset)
            for at, offset in self.cleaned_offsets.items()
        }
        self.files.replace_text(path, checkpoints.offsets_text(cleaned))

    # Partitions

    @property
    def left_alone(self) -> set[str]:
        """Topics of which an Apache Kafka's directories lie here; they are not ours to touch."""
        return self._directories.left_alone

    def found(self) -> Mapping[Partition, UUID | None]:
        """The partitions there are, and the ids of their topics as far as they are known."""
        return {at: p.topic_id if p.topic_id.int else None for at, p in self._partitions.items()}

    @property
    def room(self) -> int:
        """How many partitions more may be made: some files are left for other things."""
        return max(0, self.files_max * 3 // 4 - len(self._partitions))

    def all(self) -> list[PartitionLog]:
        return list(self._partitions.values())

    def get(self, at: Partition) -> PartitionLog:
        partition = self._visible.get(at)
        if partition is None:
            raise PartitionNotFound(f"there is no partition {at}")
        return partition

    def create(self, at: Partition, topic_id: UUID, settings: LogSettings) -> None:
        assert at not in self._partitions
        directory = self.directory / spell(at)
        self._directories.make_way(directory, topic_id)
        new = not self.files.exists(directory)
        try:
            partition = self._make(at, directory, topic_id, settings)
        except OSError:
            if new:
                self._directories.unmake(directory)
            raise
        self._partitions[at] = self._visible[at] = partition
        self.flusher.created(self.directory)

    def _make(
        self, at: Partition, directory: Path, topic_id: UUID, settings: LogSettings
    ) -> PartitionLog:
        self.files.make_directory(directory)
        if checkpoints.needs_name_file(directory.name):
            # Synced, and before the first segment: no record may lie where nobody finds it.
            self.files.replace_text(directory / checkpoints.NAME_FILE, at.topic)
        self._write_topic_id(directory, topic_id)
        partition = self._partition(at, topic_id, directory, settings)
        # If its directory was lost, it continues after the offsets that are known to be taken.
        known = (offsets.get(directory.name) for offsets in (self._starts, self._points))
        partition.start_offset = max(
            (found.offset for found in known if found and found.topic_id == topic_id), default=0
        )
        partition.attach([])
        return partition

    def _write_topic_id(self, directory: Path, topic_id: UUID) -> None:
        self._directories.write_topic_id(directory, topic_id)
        # Without it the journal's entries belong to no partition.
        self.flusher.created(directory, directory / TOPIC_ID_FILE)

    def identify(self, at: Partition, topic_id: UUID) -> None:
        """Give a partition found without its topic's id the one its topic has."""
        partition = self.get(at)
        partition.topic_id = topic_id
        self._write_topic_id(partition.directory, topic_id)

    def unused(self, at: Partition) -> bool:
        """Has nothing ever been written to it?"""
        return not self.get(at).end_offset

    def set_aside(self, at: Partition, why: str) -> None:
        """Take a partition of an unknown topic out of the log; its files get another name."""
        partition = self._forget(at)
        aside = self._directories.move_away(partition.directory, partition.topic_id, STRAY)
        log.error("%s %s; it was moved to %s", partition.name, why, aside)

    def configure(self, at: Partition, settings: LogSettings) -> None:
        self.get(at).configure(settings)

    def hide(self, at: Partition) -> None:
        """Let nothing find it any more.  It is kept as it is, until `delete`."""
        self._visible.pop(at, None)

    def delete(self, at: Partition) -> None:
        """Gone at once for everybody; the files follow on another thread.

        Raises OSError if the directory keeps its name: it is known by its topic's id, at the next
        start and if a topic of the same name is made.
        """
        partition = self._forget(at)
        doomed = self._directories.move_away(partition.directory, partition.topic_id, DOOMED)
        self.runtime.offload(SYNC_LANE, partial(self._directories.remove, doomed), _ignore_outcome)

    def _forget(self, at: Partition) -> PartitionLog:
        partition = self._partitions.pop(at)
        self._visible.pop(at, None)
        partition.deleted = True
        partition.producers.clear()
        self.metrics.retention_held_bytes -= partition.leased_bytes
        self.flusher.forget(partition)
        partition.abandon()
        self._checkpointed.pop(at, None)
        self._marks.forget(at)
        self.cleaned_offsets.pop(at, None)
        return partition


def _checkpointed(partition: PartitionLog, offset: int) -> Checkpointed:
    return Checkpointed(offset, partition.topic_id if partition.topic_id.int else None)


def _ignore_outcome(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.warning("cannot remove the files of a deleted partition: %s", error)


def _stop(partition: PartitionLog) -> None:
    """Close a partition for good: from now on its directory may belong to another process."""
    partition.failed = partition.failed or f"{partition.name} is closed: the broker has stopped"
    partition.close()
