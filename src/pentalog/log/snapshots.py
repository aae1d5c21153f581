"""Snapshots of what producers last wrote to a partition, so that a start need not walk the log.

A snapshot is only a short cut as long as the log still holds the batches it tells of.  Before
segments are dropped a snapshot is synced that has what they held; the newest synced one stays
beside newer ones that a power cut could take.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.log.files import sync_file
from pentalog.log.flusher import SYNC_LANE
from pentalog.log.segment import segment_path

if TYPE_CHECKING:
    from pentalog.log.partition import PartitionLog, UnsyncedAborts

SUFFIX: Final = ".producers"


class ProducerSnapshots:
    def __init__(self, partition: PartitionLog) -> None:
        self._partition = partition
        self.offset = -1
        """Of the newest snapshot; -1 if there is none."""
        self.synced_offset = -1
        """Of the newest one that a power cut would leave."""

    def _path(self, offset: int) -> Path:
        return segment_path(self._partition.directory, offset, SUFFIX)

    def write(self) -> None:
        """Write a snapshot of the present; raises OSError.

        The next start will not meet the markers before it, so what is known of them is synced
        first.
        """
        partition = self._partition
        partition.make_up_for_aborts()
        snapshot = partition.producers.packed()
        offset = partition.end_offset
        if not partition.aborts_unsynced:
            self._write(snapshot, offset)
            return
        unsynced = dict(partition.aborts_unsynced)

        def done(_: None, error: BaseException | None) -> None:
            try:
                if error is not None:
                    # Another sync proves nothing: the entries must be written again.
                    partition.aborts_unwritten = True
                    raise error
                for path, synced in unsynced.items():
                    if partition.aborts_unsynced.get(path) is synced:
                        del partition.aborts_unsynced[path]
                if not partition.deleted:
                    self._write(snapshot, offset)
            except OSError as failure:
                what = f"write checkpoints of {partition.name}"
                partition.troubles.tell(logging.WARNING, "checkpoint", what, failure)

        partition.runtime.offload(SYNC_LANE, partial(self._sync_aborts, unsynced), done)

    def _sync_aborts(self, unsynced: dict[Path, UnsyncedAborts]) -> None:
        files = self._partition.files
        for index in unsynced.values():
            files.sync(index.file)
        files.sync_directory(self._partition.directory)

    def _write(self, snapshot: bytes, offset: int) -> None:
        if offset <= self.offset:
            return
        files, older = self._partition.files, self.offset
        file = files.open(self._path(offset), create=True)
        try:
            files.truncate(file, 0)
            files.write(file, snapshot, 0)
        finally:
            file.close()
        self.offset = offset
        if older >= 0 and older != self.synced_offset:
            files.remove(self._path(older))

    def sync(self) -> None:
        """Let a power cut leave the newest snapshot; raises OSError."""
        files, older = self._partition.files, self.synced_offset
        if self.offset == older:
            return
        try:
            sync_file(files, self._path(self.offset))
            files.sync_directory(self._partition.directory)
        except OSError:
            # Another sync proves nothing: the next one is of another snapshot.
            files.remove(self._path(self.offset))
            self.offset = older
            raise
        self.synced_offset = self.offset
        if older >= 0:
            files.remove(self._path(older))

    def keep(self, before: int) -> bool:
        """Make sure that a power cut leaves what producers wrote before an offset.

        The caller is about to delete the segments that hold it.  The log is synced first: a start
        ignores a snapshot taken after the end of the log.  Returns False if that sync fails; the
        segments must then stay until the next start.
        """
        partition = self._partition
        if not len(partition.producers) or self.synced_offset >= before or partition.failed:
            return not partition.failed
        try:
            partition.make_up_for_aborts()
            partition.aborts_unwritten = bool(partition.aborts_unsynced)  # if the sync fails
            self._sync_aborts(partition.aborts_unsynced)
            partition.aborts_unsynced, partition.aborts_unwritten = {}, False
            self._sync_log()
            self._write(partition.producers.packed(), partition.end_offset)
            self.sync()
        except OSError as error:
            # Not a reason to keep the records: to drop them may be what makes room.
            what = f"keep what producers wrote to {partition.name}"
            partition.troubles.tell(logging.WARNING, "snapshot", what, error)
        return not partition.failed

    def _sync_log(self) -> None:
        partition = self._partition
        try:
            for segment in partition.unsynced_segments:
                partition.files.sync(segment.file)
        except OSError as error:
            partition.fail(error)
            raise
