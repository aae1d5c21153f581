"""Walk the partitions now and then: drop what expired, forget silent producers, compact.

The walk is spread over many turns, so that thousands of partitions hold up nobody; compactions
run one at a time, the dirtiest partition first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from pentalog.config import Config
from pentalog.log.compaction import Compaction, Plan, plan
from pentalog.log.partition import PartitionLog
from pentalog.log.retention import Lease, apply_retention
from pentalog.log.store import Store
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Timer

log = logging.getLogger("pentalog.log")

_FIRST_DELAY_MS: Final = 1_000
_FIRST_RETENTION_MS: Final = 30_000
"""Not at once: whoever opens an old log may want to look at it before it is cut."""
_PARTITIONS_PER_TURN: Final = 16


class Housekeeping:
    def __init__(self, store: Store, runtime: Runtime, config: Config) -> None:
        self._store = store
        self._runtime = runtime
        self._interval_ms = config.housekeeping_interval_ms
        self._retention_interval_ms = config.retention_interval_ms
        self._retention_due_s = 0.0
        self._retaining = False
        self._dropped = 0
        """Segments that this walk deleted."""
        self.find_leases: Callable[[int], Mapping[Partition, Lease]] = _no_leases
        """What must be kept for its readers, at a time."""
        self._leases: Mapping[Partition, Lease] = {}
        self._producer_expiration_ms = config.producer_expiration_ms
        self._timer: Timer | None = None
        self._running = False
        self._ahead: deque[PartitionLog] = deque()
        self._due: list[Plan] = []
        self._compaction: Compaction | None = None
        self._stuck: set[PartitionLog] = set()
        """Not to be compacted any more: the disk did not let a swap be finished or undone."""

    def start(self) -> None:
        """The store is open, and its partitions have their settings."""
        self._running = True
        delay_ms = min(_FIRST_RETENTION_MS, self._retention_interval_ms)
        self._retention_due_s = self._runtime.monotonic() + delay_ms / 1000
        self._arm(min(_FIRST_DELAY_MS, self._interval_ms))

    def stop(self) -> None:
        """Touch nothing any more; to be called before the store closes."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._compaction is not None:
            self._compaction.cancel()
            self._compaction = None

    def _arm(self, delay_ms: int) -> None:
        self._timer = self._runtime.after(delay_ms, self._walk)

    def _walk(self) -> None:
        self._timer = None
        now_s = self._runtime.monotonic()
        self._retaining = now_s >= self._retention_due_s
        if self._retaining:
            self._retention_due_s = now_s + self._retention_interval_ms / 1000
            self._leases = self.find_leases(self._runtime.now_ms())
            self._dropped = 0
        self._ahead.extend(self._store.all())
        self._due.clear()
        self._turn()

    def _turn(self) -> None:
        if not self._running:
            return
        for _ in range(min(_PARTITIONS_PER_TURN, len(self._ahead))):
            partition = self._ahead.popleft()
            try:
                self._visit(partition)
            except OSError as error:
                log.warning("cannot keep house in %s: %s", partition.name, error)
        if self._ahead:
            self._runtime.soon(self._turn)
        else:
            self._walked()

    def _visit(self, partition: PartitionLog) -> None:
        if partition.deleted or partition.failed:
            return
        now_ms = self._runtime.now_ms()
        partition.producers.expire(now_ms - self._producer_expiration_ms)
        if self._compaction is not None and self._compaction.partition is partition:
            return  # dropping segments now would waste the work; the next walk will do it
        if self._retaining:
            lease = self._leases.get(partition.at)
            self._dropped += apply_retention(partition, now_ms, lease)
        found = self._plan(partition)
        if found is not None:
            self._due.append(found)

    def _plan(self, partition: PartitionLog) -> Plan | None:
        if partition in self._stuck:
            return None
        cleaned_offset = self._store.cleaned_offsets.get(partition.at)
        found = plan(partition, cleaned_offset, self._runtime.now_ms())
        return found if found is not None and found.due else None

    def _walked(self) -> None:
        if self._retaining and not self._dropped:
            self._store.metrics.retention_walks_in_vain += 1
        try:
            self._store.write_starts()
        except OSError as error:
            log.warning("cannot write where partitions start: %s", error)
        self._due.sort(key=_urgency)
        if self._compaction is None:
            self._compact_next()
        self._arm(self._interval_ms)

    def _compact_next(self) -> None:
        while self._running and self._due:
            partition = self._due.pop().partition
            try:
                found = self._plan(partition)  # again: it may have waited for long
            except OSError as error:
                log.warning("cannot compact %s: %s", partition.name, error)
                continue
            if found is not None:
                self._compaction = Compaction(self._store, self._runtime, found, self._compacted)
                self._compaction.start()
                return

    def _compacted(self) -> None:
        over, self._compaction = self._compaction, None
        if over is not None and over.stuck:
            self._stuck.add(over.partition)
        self._compact_next()


def _no_leases(_: int) -> Mapping[Partition, Lease]:
    return {}


def _urgency(found: Plan) -> tuple[bool, float]:
    return found.urgency
