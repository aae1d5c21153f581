"""Planted faults of the log and the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.files import SimulatedFiles
from tests.simulation.planting import Planted, fault, patch

from pentalog import kernels
from pentalog.broker.endings import Endings
from pentalog.broker.groups import LocalGroups
from pentalog.broker.log import LocalLog, LocalWait
from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.state import State
from pentalog.broker.transaction import Transaction
from pentalog.broker.transactions import LocalTransactions
from pentalog.log import inspection, journal, recovery, replay, retention, rewriting, store
from pentalog.log.checkpoints import CLEAN_STOP, Checkpointed
from pentalog.log.directories import Directories
from pentalog.log.flusher import Flusher
from pentalog.log.journal import Journal
from pentalog.log.partition import PartitionLog
from pentalog.log.producers import Producers
from pentalog.log.reading import Reading
from pentalog.log.segment import Segment, segment_path
from pentalog.log.store import Store
from pentalog.log.transactions import AbortedTransactions
from pentalog.model.later import Later
from pentalog.model.types import Horizon, Identity, Partition

PLANTED: list[Planted] = []
_fault = partial(fault, PLANTED)


# Syncs


@_fault("directories are never synced")
def no_directory_sync(stack: ExitStack) -> None:
    patch(stack, SimulatedFiles, "sync_directory", lambda files, path: None)


@_fault("new names are not synced before the acknowledgement")
def no_sync_of_new_names(stack: ExitStack) -> None:
    patch(stack, Flusher, "_sync_names", lambda flusher, names: None)


@_fault("partition.metadata is not synced before the acknowledgement")
def topic_id_not_synced(stack: ExitStack) -> None:
    created = Flusher.created
    patch(stack, Flusher, "created", lambda flusher, at, *contents: created(flusher, at))


@_fault("segment files are not synced, only said to be")
def files_not_synced(stack: ExitStack) -> None:
    patch(stack, Flusher, "_sync_files", lambda flusher, handles, indexes, names: 0.0)


@_fault("the journal is written without a sync")
def journal_not_synced(stack: ExitStack) -> None:
    patch(stack, SimulatedFiles, "write_synced", SimulatedFiles.write)


@_fault("the durable mark moves before the sync")
def marks_before_sync(stack: ExitStack) -> None:
    sync = Flusher._sync

    def early(flusher: Flusher, partition: PartitionLog, *more: Any, **options: Any) -> None:
        partition.advance(partition.end)
        sync(flusher, partition, *more, **options)

    patch(stack, Flusher, "_sync", early)


@_fault("acks=all is answered when the records are written")
def acks_all_is_written(stack: ExitStack) -> None:
    patch(stack, LocalLog, "settle", lambda log, appended, ack: Later.now(appended))


@_fault("recovery points run ahead of the sync")
def recovery_point_ahead(stack: ExitStack) -> None:
    def ahead(owner: Store) -> dict[str, Checkpointed]:
        return {
            partition.directory.name: Checkpointed(partition.end_offset, partition.topic_id)
            for partition in owner.all()
        }

    patch(stack, Store, "_recovery_points", ahead)


@_fault("what recovery found is served before it is synced")
def recovered_not_synced(stack: ExitStack) -> None:
    def claim(owner: Store, partition: PartitionLog, *, clean: bool) -> None:
        partition.durable = partition.synced = partition.end

    patch(stack, Store, "_sync_recovered", claim)


@_fault("a failed sync is taken for a good one")
def failed_sync_forgotten(stack: ExitStack) -> None:
    def forget(partition: PartitionLog, error: BaseException) -> None:
        partition.advance(partition.end)

    patch(stack, PartitionLog, "fail", forget)


# The journal


@_fault("a record can forge a journal entry")
def forged_journal_entry(stack: ExitStack) -> None:
    patch(stack, Journal, "accepts", lambda owner, payload: True)


@_fault("the journal's space is reused while it is needed")
def journal_reused_early(stack: ExitStack) -> None:
    def room(owner: Journal, size: int) -> int:
        return journal._START if size <= owner.size_bytes - journal._START else -1

    patch(stack, Journal, "_room", room)


@_fault("journal entries are given up before the files are synced")
def journal_given_up_early(stack: ExitStack) -> None:
    def give_up(flusher: Flusher) -> None:
        if not flusher._checkpointing:
            flusher._checkpointing = True
            flusher._journaled.clear()
            flusher._give_up(flusher._committed_sequence)

    patch(stack, Flusher, "_checkpoint_journal", give_up)


@_fault("the journal is not replayed")
def journal_not_replayed(stack: ExitStack) -> None:
    patch(stack, Journal, "recover", lambda owner: [])


# Segments and recovery


@_fault("a roll that fails leaves its new segment behind")
def failed_roll_left(stack: ExitStack) -> None:
    patch(stack, Segment, "discard", lambda segment: None)
    patch(stack, recovery, "_without_empty", lambda segments, stop: segments)


@_fault("a sealed segment loses its last byte")
def seal_off_by_one(stack: ExitStack) -> None:
    seal = Segment.seal

    def cut_one(segment: Segment) -> None:
        seal(segment)
        segment.files.truncate(segment.file, segment.size - 1)

    patch(stack, Segment, "seal", cut_one)


@_fault("recovery does not verify checksums")
def no_checksum(stack: ExitStack) -> None:
    class Credulous:
        def __getattr__(self, name: str) -> Any:
            return getattr(kernels, name)

        def scan_batches(self, *data: Any, **options: Any) -> Any:
            return kernels.scan_batches(*data, **{**options, "verify": False})

    patch(stack, inspection, "kernels", Credulous())


@_fault("batches are searched for inside damaged ones")
def search_in_damage(stack: ExitStack) -> None:
    def everywhere(
        data: Any, start: int, next_offset: int, offset_max: int, known: Any, at_rest: bool
    ) -> Iterator[int]:
        position = start
        while True:
            position = kernels.find_batch(
                data, position + 1, len(data), offset_min=next_offset, offset_max=offset_max
            )
            if position < 0:
                return
            yield position

    patch(stack, inspection, "_positions_behind", everywhere)


@_fault("retention believes a time index without its newest entry")
def newest_time_missing(stack: ExitStack) -> None:
    adopt = Segment.adopt

    def without_newest(segment: Segment, *found: Any, **options: Any) -> None:
        active, segment.active = segment.active, True
        adopt(segment, *found, **options)
        segment.active = active

    patch(stack, Segment, "adopt", without_newest)
    patch(stack, retention, "confirm_newest", lambda segment: None)


@_fault("the marker of a clean stop is believed after a crash")
def clean_stop_stays(stack: ExitStack) -> None:
    remove = SimulatedFiles.remove

    def keep(files: SimulatedFiles, path: Any) -> None:
        if path.name != CLEAN_STOP:
            remove(files, path)

    patch(stack, SimulatedFiles, "remove", keep)


@_fault("readers see records that are not durable")
def reads_beyond_durable(stack: ExitStack) -> None:
    limit = Reading.limit

    def end(reading: Reading, horizon: Horizon, *, patient: bool = True) -> Any:
        return limit(reading, Horizon.END if horizon is Horizon.DURABLE else horizon)

    patch(stack, Reading, "limit", end)


@_fault("deleted records are not remembered")
def starts_not_written(stack: ExitStack) -> None:
    def advance_unwritten(owner: Store) -> None:
        for partition in owner.all():
            partition.advance_start(max(partition.start_offset, partition.pending_start))

    patch(stack, Store, "write_starts", advance_unwritten)


@_fault("a new start is shown before it is on the disk")
def start_shown_early(stack: ExitStack) -> None:
    trim = PartitionLog.trim

    def trim_and_show(owner: PartitionLog, before: int) -> int:
        owner.start_offset = trim(owner, before)
        return owner.start_offset

    patch(stack, PartitionLog, "trim", trim_and_show)


@_fault("a new topic adopts the directory of a deleted one")
def old_directory_adopted(stack: ExitStack) -> None:
    patch(stack, Directories, "make_way", lambda owner, directory, topic_id: None)


@_fault("the journal does not fill holes before the end of a segment")
def holes_not_filled(stack: ExitStack) -> None:
    apply = replay._SegmentWriter.apply

    def append_only(writer: Any, entry: Any, known: Any, restored: Any) -> int:
        files, path = writer._files, segment_path(writer._directory, entry.segment_base, ".log")
        if files.exists(path) and files.stat(path)[0] >= entry.position + len(entry.payload):
            return int(entry.position)
        return apply(writer, entry, known, restored)

    patch(stack, replay._SegmentWriter, "apply", append_only)


@_fault("a log that lost its tail may end before its start")
def start_beyond_end(stack: ExitStack) -> None:
    patch(stack, recovery, "_skip_to_start", lambda partition: None)


@_fault("what acks=1 acknowledged is visible after the flush interval only")
def acknowledged_not_visible(stack: ExitStack) -> None:
    def ends(log: LocalLog, partitions: Any) -> Any:
        return Later.now({at: log.marks(at).durable for at in partitions})

    patch(stack, LocalLog, "ends", ends)
    patch(stack, LocalWait, "_time_up", LocalWait.give_up)


@_fault("tombstones expire by the time their producer gave them")
def tombstones_backdated(stack: ExitStack) -> None:
    def over(sieve: Any, header: Any, last_offset: int) -> bool:
        if last_offset >= sieve._job.first_dirty:
            return False
        return bool(header.max_timestamp + sieve._job.delete_retention_ms < sieve._job.now_ms)

    patch(stack, rewriting._Sieve, "_tombstones_are_over", over)


# Producers, transactions, state


@_fault("committed offsets are ordered by the wall clock")
def offsets_by_clock(stack: ExitStack) -> None:
    numbered = LocalOffsets._numbered

    def by_clock(offsets: LocalOffsets, given: Any, now_ms: int) -> Any:
        return replace(numbered(offsets, given, now_ms), sequence=now_ms)

    patch(stack, LocalOffsets, "_numbered", by_clock)


@_fault("retries of idempotent producers are written again")
def no_idempotence(stack: ExitStack) -> None:
    patch(stack, Producers, "admit", lambda owner, facts, at: None)


@_fault("producers are forgotten by a restart")
def producers_forgotten(stack: ExitStack) -> None:
    patch(stack, store, "open_producers", lambda partition: None)


@_fault("without syncs, an epoch is given again after a power cut")
def epoch_given_again(stack: ExitStack) -> None:
    patch(stack, LocalTransactions, "_fence_outrun", lambda owner, epochs: None)


@_fault("a transactional id may write with the producer id of another")
def impostor(stack: ExitStack) -> None:
    patch(stack, Transaction, "check_owner", lambda owner, who: None)


@_fault("after a restart a batch of an ended transaction begins another one")
def late_writes_admitted(stack: ExitStack) -> None:
    admit = LocalTransactions.admit

    def lenient(
        owner: LocalTransactions, name: str, who: Identity, at: Partition, *, enlists: bool
    ) -> None:
        entry = owner._by_name.get(name)
        admit(owner, name, who, at, enlists=enlists or (entry is not None and entry.uncertain))

    patch(stack, LocalTransactions, "admit", lenient)


@_fault("after a restart, offsets of a committed transaction become real while clients are served")
def offsets_finished_late(stack: ExitStack) -> None:
    finish = LocalOffsets.finish

    def in_turns(
        owner: LocalOffsets, producer_id: int, *, commit: bool, at_once: bool = False
    ) -> Later[None]:
        return finish(owner, producer_id, commit=commit)

    patch(stack, LocalOffsets, "finish", in_turns)


@_fault("consumers are not told which transactions were aborted")
def aborts_hidden(stack: ExitStack) -> None:
    patch(stack, AbortedTransactions, "between", lambda owner, start, end: ())


@_fault("an abort writes a commit marker")
def abort_commits(stack: ExitStack) -> None:
    write = Endings.write_marker

    def commit_always(owner: Endings, at: Any, who: Any, *, commit: bool) -> Any:
        return write(owner, at, who, commit=True)

    patch(stack, Endings, "write_marker", commit_always)


@_fault("changes of the state are confirmed before they are committed")
def state_confirmed_early(stack: ExitStack) -> None:
    patch(stack, State, "settle", lambda state, position=None: Later.now(None))


@_fault("committed offsets are told before they are durable")
def offsets_told_early(stack: ExitStack) -> None:
    patch(stack, LocalOffsets, "settled", lambda offsets, group: Later.now(None))


@_fault("a new topic inherits the committed offsets of a deleted one")
def offsets_outlive_topic(stack: ExitStack) -> None:
    patch(stack, LocalGroups, "topic_deleted", lambda groups, topic: None)


@_fault("a failed commit of the state is dropped")
def state_changes_dropped(stack: ExitStack) -> None:
    committed = State._committed

    def drop(state: State, changes: list[Any], error: BaseException | None) -> None:
        committed(state, changes, None)

    patch(stack, State, "_committed", drop)
