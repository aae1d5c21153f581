"""How a transaction ends everywhere at once, whatever happens in between.

An end is decided by one row in the state file, which names every partition that takes part.  Only
when that is on the disk are the markers written; the end is complete when they are on the disk
too.  After a crash the row says which markers are still to be written.  A transaction in a single
partition, without offsets, is decided by its only marker, so row and marker go to the disk at the
same time.  An abort that fences the producer is always decided by the row: were the marker alone
left after a crash, a commit that the producer asks for then would be confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from pentalog.broker.log import LocalLog
from pentalog.broker.port import Offsets
from pentalog.broker.state import State
from pentalog.broker.transaction import DISMISS, PREPARED, UPSERT, Extent, Phase, Transaction
from pentalog.log.store import Store
from pentalog.model import batch
from pentalog.model.errors import BrokerError, PartitionNotFound
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.runtime import Runtime, Timer

_log: Final = logging.getLogger(__name__)

RETRY_MS: Final = 1_000


class Endings:
    def __init__(
        self,
        store: Store,
        log: LocalLog,
        state: State,
        offsets: Offsets,
        runtime: Runtime,
        rename: Callable[[Transaction, int], None],
        dismiss: Callable[[Transaction], None],
    ) -> None:
        """`rename` is called when a transaction goes on with another producer id.

        `dismiss` takes its participants away when it has ended.
        """
        self._store = store
        self._local_log = log
        self._state = state
        self._offsets = offsets
        self._runtime = runtime
        self._rename = rename
        self._dismiss = dismiss
        self._stuck: dict[str, Transaction] = {}
        """Prepared, but a marker or the decision could not be written: tried again."""
        self._timer: Timer | None = None
        self._closed = False

    def close(self) -> None:
        """Change nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def prepare(self, entry: Transaction, *, commit: bool, epoch: int, bumps: bool) -> None:
        """Decide the end; `entry` is busy until it is complete."""
        self._state.check()
        fences = epoch != entry.epoch and not bumps
        entry.phase = Phase.PREPARE_COMMIT if commit else Phase.PREPARE_ABORT
        entry.epoch, entry.bumps, entry.last_epoch = epoch, bumps, -1
        entry.uncertain = False
        entry.extents = {}
        for at in entry.partitions:
            try:
                partition = self._store.get(at)
            except PartitionNotFound:
                continue
            entry.extents[at] = Extent(partition.topic_id, partition.end_offset)
        entry.unmarked = set(entry.extents)
        entry.staged = entry.producer_id in self._offsets.staged()
        entry.undecided = True
        self.write(entry)
        entry.added = []
        if entry.enlisted:
            entry.enlisted = 0
            self._state.write(DISMISS, entry.name)
        # Count partitions whose topic is being deleted: a crash may undo the deletion.
        alone = len(entry.partitions) <= 1 and not entry.staged and not fences
        if alone:
            self._mark(entry)
        self._state.settle().then(partial(self._decided, entry, alone))

    def redo(self, entry: Transaction) -> None:
        """Complete an end that a former life of the broker decided.

        Its offsets become real before the first client asks for them: an earlier life may have
        answered that they are.
        """
        for at, extent in entry.extents.items():
            if self._is_open(at, entry.producer_id, extent):
                entry.unmarked.add(at)
        self._mark(entry, at_once=True)

    def _is_open(self, at: Partition, producer_id: int, extent: Extent) -> bool:
        try:
            partition = self._store.get(at)
        except PartitionNotFound:
            return False
        producer = partition.producers.get(producer_id)
        return (
            producer is not None
            and partition.topic_id == extent.topic_id
            and 0 <= producer.transaction_start < extent.end_offset
        )

    def _decided(self, entry: Transaction, alone: bool, settled: Later[None]) -> None:
        try:
            _ = settled.value
        except BrokerError as refusal:
            # The row is queued still: it reaches the disk when that takes writes again.
            self._hold_up(entry, refusal)
            self._runtime.after(RETRY_MS, partial(self._ask_again, entry, alone))
            return
        entry.undecided = False
        if alone:
            self._complete_if_marked(entry)
        else:
            self._mark(entry)

    def _ask_again(self, entry: Transaction, alone: bool) -> None:
        if not self._closed:
            self._state.settle().then(partial(self._decided, entry, alone))

    def _mark(self, entry: Transaction, *, at_once: bool = False) -> None:
        """Write the markers that are missing, all in one turn so that they share a sync.

        With `at_once` the offsets become real in this turn as well.
        """
        if self._closed:
            return
        self._stuck.pop(entry.name, None)
        finishes = entry.staged and not entry.finishing
        entry.finishing = entry.finishing or finishes
        for at in list(entry.unmarked):
            marker = self.write_marker(at, entry.identity, commit=entry.commits)
            marker.then(partial(self._marked, entry, at))
        if finishes:
            finished = self._offsets.finish(
                entry.producer_id, commit=entry.commits, at_once=at_once
            )
            finished.then(partial(self._finished, entry))
        else:
            self._complete_if_marked(entry)

    def _finished(self, entry: Transaction, _: Later[None]) -> None:
        entry.finishing = False
        self._complete_if_marked(entry)

    def write_marker(self, at: Partition, who: Identity, *, commit: bool) -> Later[Appended]:
        """Append a commit or abort marker; ready when it is on the disk."""
        data = batch.build_marker(
            commit=commit,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            timestamp_ms=self._runtime.now_ms(),
        )
        try:
            appended = self._local_log.append(at, memoryview(data))
            return self._local_log.settle(appended, Ack.DURABLE)
        except BrokerError as refusal:
            refused: Later[Appended] = Later()
            refused.refuse(refusal)
            return refused

    def _marked(self, entry: Transaction, at: Partition, settled: Later[Appended]) -> None:
        try:
            _ = settled.value
        except PartitionNotFound:
            pass  # deleted, and its part of the transaction with it
        except BrokerError as refusal:
            self._hold_up(entry, refusal)
            self._stuck[entry.name] = entry
            if self._timer is None and not self._closed:
                self._timer = self._runtime.after(RETRY_MS, self._retry)
            return
        entry.unmarked.discard(at)
        self._complete_if_marked(entry)

    def _hold_up(self, entry: Transaction, refusal: BrokerError) -> None:
        _log.error("the end of transaction %r is held up: %s", entry.name, refusal)
        self.release(entry, None)

    def _retry(self) -> None:
        self._timer = None
        for entry in list(self._stuck.values()):
            self._mark(entry)

    def _complete_if_marked(self, entry: Transaction) -> None:
        if entry.unmarked or entry.finishing or entry.undecided:
            return
        if entry.phase not in PREPARED or self._closed:
            return
        entry.phase = Phase.COMPLETE_COMMIT if entry.commits else Phase.COMPLETE_ABORT
        entry.started_ms = -1
        # The row may go on saying "prepared": to find that again does no harm, unless offsets
        # staged later or writes under the next id could be taken for those of this transaction.
        lasting = entry.staged or entry.next_id >= 0
        if entry.next_id >= 0:
            self._rename(entry, entry.next_id)
            entry.epoch, entry.next_id = 0, -1
        self._dismiss(entry)
        entry.extents, entry.staged = {}, False
        if lasting:
            self.write(entry)
        self.release(entry, entry.identity)

    def write(self, entry: Transaction) -> None:
        entry.updated_ms = self._runtime.now_ms()
        self._state.write(UPSERT, *entry.row())

    def release(self, entry: Transaction, identity: Identity | None) -> None:
        """Let those go on who waited for the end."""
        waiting, entry.waiting = entry.waiting, []
        for run in waiting:
            run(identity)
