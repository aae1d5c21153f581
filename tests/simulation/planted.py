"""Planted faults: small patches that make the broker wrong; the simulator must find each.

A fault counts as found by a seed that breaks a rule with the patch and none without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.files import SimulatedFiles
from tests.simulation.runner import run_seed

from pentalog import kernels
from pentalog.broker.derived_topics import Derivation
from pentalog.broker.endings import Endings
from pentalog.broker.groups import LocalGroups
from pentalog.broker.log import LocalLog, LocalWait
from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.port import Committed
from pentalog.broker.state import State
from pentalog.broker.transaction import Transaction
from pentalog.broker.transactions import LocalTransactions
from pentalog.log import inspection, journal, recovery, replay, rewriting, store
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
from pentalog.model.types import Ack, Horizon
from pentalog.protocols.fluvio import produce as fluvio_produce
from pentalog.protocols.fluvio import records as fluvio_records
from pentalog.protocols.fluvio.streams import Stream
from pentalog.protocols.rustlog import records as rustlog_records
from pentalog.protocols.rustlog.line import Line
from pentalog.protocols.rustlog.records import Fetching


class Planted(NamedTuple):
    name: str
    text: str
    plant: Callable[[ExitStack], None]


PLANTED: list[Planted] = []
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _fault(text: str) -> Callable[[Callable[[ExitStack], None]], Callable[[ExitStack], None]]:
    def add(plant: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
        PLANTED.append(Planted(plant.__name__, text, plant))
        return plant

    return add


def _patch(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    """Replace something; a function that cannot be called as the old one was does not fit."""
    old = getattr(owner, name)
    if isinstance(old, FunctionType):
        parameters = inspect.signature(old).parameters.values()
        inspect.signature(new).bind(
            *(entry.name for entry in parameters if entry.kind in _POSITIONAL),
            **{entry.name: None for entry in parameters if entry.kind is entry.KEYWORD_ONLY},
        )
    stack.enter_context(mock.patch.object(owner, name, new))


# Syncs


@_fault("directories are never synced")
def no_directory_sync(stack: ExitStack) -> None:
    _patch(stack, SimulatedFiles, "sync_directory", lambda files, path: None)


@_fault("new names are not synced before the acknowledgement")
def no_sync_of_new_names(stack: ExitStack) -> None:
    _patch(stack, Flusher, "_sync_names", lambda flusher, names: None)


@_fault("partition.metadata is not synced before the acknowledgement")
def topic_id_not_synced(stack: ExitStack) -> None:
    created = Flusher.created
    _patch(stack, Flusher, "created", lambda flusher, at, *contents: created(flusher, at))


@_fault("segment files are not synced, only said to be")
def files_not_synced(stack: ExitStack) -> None:
    _patch(stack, Flusher, "_sync_files", lambda flusher, handles, indexes, names: 0.0)


@_fault("the journal is written without a sync")
def journal_not_synced(stack: ExitStack) -> None:
    _patch(stack, SimulatedFiles, "write_synced", SimulatedFiles.write)


@_fault("the durable mark moves before the sync")
def marks_before_sync(stack: ExitStack) -> None:
    sync = Flusher._sync

    def early(flusher: Flusher, partition: PartitionLog, *more: Any, **options: Any) -> None:
        partition.advance(partition.end)
        sync(flusher, partition, *more, **options)

    _patch(stack, Flusher, "_sync", early)


@_fault("acks=all is answered when the records are written")
def acks_all_is_written(stack: ExitStack) -> None:
    _patch(stack, LocalLog, "settle", lambda log, appended, ack: Later.now(appended))


@_fault("recovery points run ahead of the sync")
def recovery_point_ahead(stack: ExitStack) -> None:
    def ahead(owner: Store) -> dict[str, Checkpointed]:
        return {
            partition.directory.name: Checkpointed(partition.end_offset, partition.topic_id)
            for partition in owner.all()
        }

    _patch(stack, Store, "_recovery_points", ahead)


@_fault("what recovery found is served before it is synced")
def recovered_not_synced(stack: ExitStack) -> None:
    def claim(owner: Store, partition: PartitionLog, *, clean: bool) -> None:
        partition.durable = partition.synced = partition.end

    _patch(stack, Store, "_sync_recovered", claim)


@_fault("a failed sync is taken for a good one")
def failed_sync_forgotten(stack: ExitStack) -> None:
    def forget(partition: PartitionLog, error: BaseException) -> None:
        partition.advance(partition.end)

    _patch(stack, PartitionLog, "fail", forget)


# The journal


@_fault("a record can forge a journal entry")
def forged_journal_entry(stack: ExitStack) -> None:
    _patch(stack, Journal, "accepts", lambda owner, payload: True)


@_fault("the journal's space is reused while it is needed")
def journal_reused_early(stack: ExitStack) -> None:
    def room(owner: Journal, size: int) -> int:
        return journal._START if size <= owner.size_bytes - journal._START else -1

    _patch(stack, Journal, "_room", room)


@_fault("journal entries are given up before the files are synced")
def journal_given_up_early(stack: ExitStack) -> None:
    def give_up(flusher: Flusher) -> None:
        if not flusher._checkpointing:
            flusher._checkpointing = True
            flusher._journaled.clear()
            flusher._give_up(flusher._committed_sequence)

    _patch(stack, Flusher, "_checkpoint_journal", give_up)


@_fault("the journal is not replayed")
def journal_not_replayed(stack: ExitStack) -> None:
    _patch(stack, Journal, "recover", lambda owner: [])


# Segments and recovery


@_fault("a roll that fails leaves its new segment behind")
def failed_roll_left(stack: ExitStack) -> None:
    _patch(stack, Segment, "discard", lambda segment: None)
    _patch(stack, recovery, "_without_empty", lambda segments, stop: segments)


@_fault("a sealed segment loses its last byte")
def seal_off_by_one(stack: ExitStack) -> None:
    seal = Segment.seal

    def cut_one(segment: Segment) -> None:
        seal(segment)
        segment.files.truncate(segment.file, segment.size - 1)

    _patch(stack, Segment, "seal", cut_one)


@_fault("recovery does not verify checksums")
def no_checksum(stack: ExitStack) -> None:
    class Credulous:
        def __getattr__(self, name: str) -> Any:
            return getattr(kernels, name)

        def scan_batches(self, *data: Any, **options: Any) -> Any:
            return kernels.scan_batches(*data, **{**options, "verify": False})

    _patch(stack, inspection, "kernels", Credulous())


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

    _patch(stack, inspection, "_positions_behind", everywhere)


@_fault("the marker of a clean stop is believed after a crash")
def clean_stop_stays(stack: ExitStack) -> None:
    remove = SimulatedFiles.remove

    def keep(files: SimulatedFiles, path: Any) -> None:
        if path.name != CLEAN_STOP:
            remove(files, path)

    _patch(stack, SimulatedFiles, "remove", keep)


@_fault("readers see records that are not durable")
def reads_beyond_durable(stack: ExitStack) -> None:
    limit = Reading.limit

    def end(reading: Reading, horizon: Horizon, *, patient: bool = True) -> Any:
        return limit(reading, Horizon.END if horizon is Horizon.DURABLE else horizon)

    _patch(stack, Reading, "limit", end)


@_fault("deleted records are not remembered")
def starts_not_written(stack: ExitStack) -> None:
    _patch(stack, Store, "write_starts", lambda owner: None)


@_fault("a new topic adopts the directory of a deleted one")
def old_directory_adopted(stack: ExitStack) -> None:
    _patch(stack, Directories, "make_way", lambda owner, directory, topic_id: None)


@_fault("the journal does not fill holes before the end of a segment")
def holes_not_filled(stack: ExitStack) -> None:
    apply = replay._SegmentWriter.apply

    def append_only(writer: Any, entry: Any, known: Any, restored: Any) -> int:
        files, path = writer._files, segment_path(writer._directory, entry.segment_base, ".log")
        if files.exists(path) and files.stat(path)[0] >= entry.position + len(entry.payload):
            return int(entry.position)
        return apply(writer, entry, known, restored)

    _patch(stack, replay._SegmentWriter, "apply", append_only)


@_fault("a log that lost its tail may end before its start")
def start_beyond_end(stack: ExitStack) -> None:
    _patch(stack, recovery, "_drop_before_start", lambda partition: None)


@_fault("what acks=1 acknowledged is visible after the flush interval only")
def acknowledged_not_visible(stack: ExitStack) -> None:
    def ends(log: LocalLog, partitions: Any) -> Any:
        return Later.now({at: log.marks(at).durable for at in partitions})

    _patch(stack, LocalLog, "ends", ends)
    _patch(stack, LocalWait, "_time_up", LocalWait.give_up)


@_fault("tombstones expire by the time their producer gave them")
def tombstones_backdated(stack: ExitStack) -> None:
    def over(sieve: Any, header: Any, last_offset: int) -> bool:
        if last_offset >= sieve._job.first_dirty:
            return False
        return bool(header.max_timestamp + sieve._job.delete_retention_ms < sieve._job.now_ms)

    _patch(stack, rewriting._Sieve, "_tombstones_are_over", over)


# Producers, transactions, state


@_fault("committed offsets are ordered by the wall clock")
def offsets_by_clock(stack: ExitStack) -> None:
    numbered = LocalOffsets._numbered

    def by_clock(offsets: LocalOffsets, given: Any, now_ms: int) -> Any:
        return replace(numbered(offsets, given, now_ms), sequence=now_ms)

    _patch(stack, LocalOffsets, "_numbered", by_clock)


@_fault("retries of idempotent producers are written again")
def no_idempotence(stack: ExitStack) -> None:
    _patch(stack, Producers, "admit", lambda owner, facts, at: None)


@_fault("producers are forgotten by a restart")
def producers_forgotten(stack: ExitStack) -> None:
    _patch(stack, store, "open_producers", lambda partition: None)


@_fault("without syncs, an epoch is given again after a power cut")
def epoch_given_again(stack: ExitStack) -> None:
    _patch(stack, LocalTransactions, "_fence_outrun", lambda owner, epochs: None)


@_fault("a transactional id may write with the producer id of another")
def impostor(stack: ExitStack) -> None:
    _patch(stack, Transaction, "check_owner", lambda owner, who: None)


@_fault("consumers are not told which transactions were aborted")
def aborts_hidden(stack: ExitStack) -> None:
    _patch(stack, AbortedTransactions, "between", lambda owner, start, end: ())


@_fault("an abort writes a commit marker")
def abort_commits(stack: ExitStack) -> None:
    write = Endings.write_marker

    def commit_always(owner: Endings, at: Any, who: Any, *, commit: bool) -> Any:
        return write(owner, at, who, commit=True)

    _patch(stack, Endings, "write_marker", commit_always)


@_fault("changes of the state are confirmed before they are committed")
def state_confirmed_early(stack: ExitStack) -> None:
    _patch(stack, State, "settle", lambda state, position=None: Later.now(None))


@_fault("committed offsets are told before they are durable")
def offsets_told_early(stack: ExitStack) -> None:
    _patch(stack, LocalOffsets, "settled", lambda offsets, group: Later.now(None))


@_fault("a new topic inherits the committed offsets of a deleted one")
def offsets_outlive_topic(stack: ExitStack) -> None:
    _patch(stack, LocalGroups, "topic_deleted", lambda groups, topic: None)


@_fault("a failed commit of the state is dropped")
def state_changes_dropped(stack: ExitStack) -> None:
    committed = State._committed

    def drop(state: State, changes: list[Any], error: BaseException | None) -> None:
        committed(state, changes, None)

    _patch(stack, State, "_committed", drop)


# RustLog and Fluvio


@_fault("RustLog's Produce is answered when the records are written")
def rustlog_answers_early(stack: ExitStack) -> None:
    _patch(stack, rustlog_records, "Ack", SimpleNamespace(DURABLE=Ack.WRITTEN))


@_fault("RustLog's commits and new topics are answered before they are on the disk")
def rustlog_confirms_early(stack: ExitStack) -> None:
    def early(
        line: Line, dialect: Any, request: Any, later: Any, encode: Any, kept: Any = None
    ) -> None:
        if kept is None:
            line.send(encode(None))
        else:
            line.fill(kept, encode(None))

    _patch(stack, Line, "answer_later", early)


@_fault("ends that RustLog shows are not durable")
def rustlog_ends_early(stack: ExitStack) -> None:
    def early(line: Line, dialect: Any, request: Any, partitions: Any, encode: Any) -> None:
        log = line.context.broker.log
        line.say(encode({at: log.marks(at).end for at in partitions}))

    _patch(stack, Line, "answer_with_ends", early)


@_fault("RustLog's Fetch does not wait for what acks=1 acknowledged")
def rustlog_fetch_impatient(stack: ExitStack) -> None:
    def look_again(fetching: Fetching) -> None:
        fetching._settled = True
        fetching._read()

    _patch(stack, Fetching, "_settle", look_again)


@_fault("a durable write of Fluvio is answered when it is in the file")
def fluvio_answers_early(stack: ExitStack) -> None:
    levels = SimpleNamespace(DURABLE=Ack.WRITTEN, WRITTEN=Ack.WRITTEN)
    _patch(stack, fluvio_produce, "Ack", levels)


@_fault("Fluvio's readers of committed records see what is not durable")
def fluvio_reads_to_the_end(stack: ExitStack) -> None:
    def end(broker: Any, *, committed: bool) -> Horizon:
        return Horizon.END

    _patch(stack, fluvio_records, "horizon_of", end)


@_fault("Fluvio's readers see records of open transactions")
def fluvio_undecided(stack: ExitStack) -> None:
    _patch(stack, fluvio_records, "decided", lambda broker, at, opened, horizon: opened)


@_fault("Fluvio's streams pass over a record after each frame")
def fluvio_stream_skips(stack: ExitStack) -> None:
    acknowledge = Stream.acknowledge

    def skip(stream: Stream, offset: int) -> Any:
        error = acknowledge(stream, offset)
        stream._offset += 1
        return error

    _patch(stack, Stream, "acknowledge", skip)


@_fault("a derived topic's place in its source is committed ahead of its records")
def derived_place_early(stack: ExitStack) -> None:
    def early(derivation: Derivation, reached: int, later: Any) -> None:
        def step() -> None:
            place = {derivation._source: Committed(reached)}
            offsets = derivation._broker.groups.offsets
            offsets.commit(derivation._group, place).then(partial(derivation._staged, reached))

        derivation._try(step)

    _patch(stack, Derivation, "_written", early)


@_fault("a derived topic's place in its source is not committed with its records")
def derived_place_forgotten(stack: ExitStack) -> None:
    def forget(derivation: Derivation, reached: int, later: Any) -> None:
        derivation._try(lambda: derivation._staged(reached, later))

    _patch(stack, Derivation, "_written", forget)


@contextmanager
def planted(name: str) -> Iterator[Planted]:
    """Make the broker wrong in one way."""
    found = next(entry for entry in PLANTED if entry.name == name)
    with ExitStack() as stack:
        found.plant(stack)
        yield found


def find(name: str, seeds_max: int, first: int = 0) -> tuple[int, str]:
    """How many seeds it takes to find a planted fault, and by which rule; 0 if it is not found."""
    for seed in range(first, first + seeds_max):
        with planted(name):
            result = run_seed(seed)
        if result.rule and not run_seed(seed).rule:
            return seed - first + 1, result.rule
    return 0, ""


def main(seeds_max: int, jobs: int, only: str | None) -> int:
    """Print the table for docs/durability.md."""
    entries = [entry for entry in PLANTED if only in (None, entry.name)]
    missed = 0
    print("| Planted fault | Seeds until found | By the rule |\n|---|---|---|")
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = pool.map(find, [e.name for e in entries], [seeds_max] * len(entries))
        for entry, (count, rule) in zip(entries, outcomes, strict=True):
            missed += not count
            print(f"| {entry.text} | {count or 'not found'} | {rule} |", flush=True)
    return 1 if missed else 0
