"""Keep the newest record of each key: which partition is due, and its way from start to swap.

A compaction goes back and forth between the owner's thread, where everything is decided, and a
thread of its own, where files are read, written and synced:

    owner    capture what the partition is (`plan`)
    thread   write the new segments beside the old ones
    owner    still the same partition?
    thread   commit: from here on a crash finishes the swap
    owner    still the same?  Then put the new segments in place
    thread   sync, and forget the swap
    owner    note up to where the partition is clean
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pentalog.log import swap
from pentalog.log.partition import PartitionLog
from pentalog.log.retention import newest_ms
from pentalog.log.rewriting import Abandoned, Job, Output, Rewritten, Source, rewrite
from pentalog.log.segment import Segment
from pentalog.log.store import Store
from pentalog.runtime import Runtime

log = logging.getLogger("pentalog.log")

COMPACTION_LANE: Final = "compaction"
NEWEST_BYTES_MAX: Final = 128 << 20
"""Memory that the keys of one compaction may take."""

_NO_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The segments a partition could have compacted now."""

    partition: PartitionLog
    segments: list[Segment]
    first_dirty: int
    dirty_ratio: float
    """Bytes that were never compacted, of all that could be."""
    overdue: bool
    """A record has waited longer than the topic allows."""

    @property
    def due(self) -> bool:
        return self.overdue or self.dirty_ratio >= self.partition.settings.cleanable_dirty_ratio_min

    @property
    def urgency(self) -> tuple[bool, float]:
        return self.overdue, self.dirty_ratio


def plan(partition: PartitionLog, cleaned_offset: int | None, now_ms: int) -> Plan | None:
    """None if the partition is not compacted, or has nothing new to compact."""
    settings = partition.settings
    if not settings.cleanup_compact or partition.failed or partition.deleted:
        return None
    first_dirty = partition.start_offset
    if cleaned_offset is not None and first_dirty <= cleaned_offset <= partition.end_offset:
        first_dirty = cleaned_offset
    _roll_if_overdue(partition, first_dirty, now_ms)
    segments: list[Segment] = []
    for segment in partition.segments:
        if segment.active or segment.next_offset > partition.stable_offset:
            break
        if segment.next_offset > partition.synced.offset:
            break  # the journal may still have to restore it as it is
        if segment.next_offset > first_dirty and not _is_settled(segment, partition, now_ms):
            break
        segments.append(segment)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    if not dirty:
        return None
    dirty_bytes = sum(segment.size for segment in dirty)
    all_bytes = sum(segment.size for segment in segments)
    return Plan(
        partition=partition,
        segments=segments,
        first_dirty=first_dirty,
        dirty_ratio=dirty_bytes / max(1, all_bytes),
        overdue=_is_overdue(dirty[0], partition, now_ms),
    )


def _is_settled(segment: Segment, partition: PartitionLog, now_ms: int) -> bool:
    lag_ms = partition.settings.compaction_lag_ms_min
    return not lag_ms or newest_ms(segment) + lag_ms < now_ms


def _is_overdue(segment: Segment, partition: PartitionLog, now_ms: int) -> bool:
    lag_ms = partition.settings.compaction_lag_ms_max
    if lag_ms >= _NO_LIMIT or not segment.size:
        return False
    return segment.header_at(0).max_timestamp + lag_ms < now_ms


def _roll_if_overdue(partition: PartitionLog, first_dirty: int, now_ms: int) -> None:
    """A quiet topic would never seal the segment its overdue records are in."""
    active = partition.active
    if active.size and active.next_offset > first_dirty and _is_overdue(active, partition, now_ms):
        partition.roll()


class Compaction:
    """One compaction of one partition; tells its owner when it is over, however it went."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        plan: Plan,
        over: Callable[[], None],
        *,
        newest_bytes_max: int = NEWEST_BYTES_MAX,
    ) -> None:
        self.partition = plan.partition
        self.stuck = False
        """The disk kept something of the swap: no other one before the next start."""
        self._store = store
        self._runtime = runtime
        self._plan = plan
        self._over = over
        self._cancelled = False
        self._bases = [segment.base_offset for segment in plan.segments]
        self._job = self._capture(newest_bytes_max)

    def _capture(self, newest_bytes_max: int) -> Job:
        partition, settings = self.partition, self.partition.settings
        return Job(
            files=partition.files,
            directory=partition.directory,
            sources=[
                Source(segment.base_offset, segment.next_offset, segment.size)
                for segment in self._plan.segments
            ],
            start_offset=partition.start_offset,
            first_dirty=self._plan.first_dirty,
            now_ms=self._runtime.now_ms(),
            delete_retention_ms=settings.delete_retention_ms,
            segment_bytes=settings.segment_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            aborted=list(partition.aborted),
            producers={
                producer_id: producer.batches[-1].last_offset
                for producer_id, producer in partition.producers.all().items()
                if producer.batches
            },
            newest_bytes_max=newest_bytes_max,
            abandoned=self._is_cancelled,
        )

    def start(self) -> None:
        self._offload(partial(rewrite, self._job), self._rewritten)

    def cancel(self) -> None:
        """Go no further, and tell nobody; what is left behind the next start tidies up."""
        self._cancelled = True

    def _is_cancelled(self) -> bool:
        return self._cancelled or self.partition.deleted

    def _offload(
        self, work: Callable[[], object], then: Callable[[object, BaseException | None], None]
    ) -> None:
        def done(outcome: object, error: BaseException | None) -> None:
            if not self._cancelled:
                then(outcome, error)

        self._runtime.offload(COMPACTION_LANE, work, done)

    def _still_wanted(self) -> bool:
        """Nothing that was captured has changed since."""
        segments = self._plan.segments
        return (
            not self.partition.deleted
            and not self.partition.failed
            and self.partition.settings.cleanup_compact
            and self.partition.segments[: len(segments)] == segments
        )

    # The steps, on the owner's thread

    def _rewritten(self, found: object, error: BaseException | None) -> None:
        if error is not None or not self._still_wanted():
            self._give_up(error)
            return
        assert isinstance(found, Rewritten)
        if not found.outputs:
            self._finished(found, None, None)
            return
        try:
            self._expect_gaps()
        except OSError as failure:
            self._give_up(failure)
            return
        # The journal may hold what the new segments replace: no start may put it back there.
        self._store.write_recovery_points(partial(self._pointed, found))

    def _pointed(self, found: Rewritten, _: None, error: BaseException | None) -> None:
        if self._cancelled:
            return
        if error is not None or not self._still_wanted():
            self._give_up(error)
            return
        work = partial(self._commit, found.outputs)
        self._offload(work, partial(self._committed, found))

    def _expect_gaps(self) -> None:
        """From the swap on offsets may be missing, and the next start must know."""
        at, cleaned = self.partition.at, self._store.cleaned_offsets
        if at not in cleaned:
            cleaned[at] = self._plan.first_dirty
            self._store.write_cleaned_offsets()

    def _commit(self, outputs: list[Output]) -> None:
        files, directory = self._job.files, self._job.directory
        for output in outputs:
            if self._is_cancelled():
                raise Abandoned
            swap.announce(files, directory, output.sources[0], output.sources, output.size)
        swap.commit(files, directory, [output.sources[0] for output in outputs])

    def _committed(self, found: Rewritten, _: object, error: BaseException | None) -> None:
        if error is not None or not self._still_wanted():
            self._give_up(error)
            return
        try:
            for output in found.outputs:
                self._install(output)
        except OSError as failure:
            # Half of the files have their new names: only the next start can tell which.
            self.partition.fail(failure)
            self._over()
            return
        bases = [output.sources[0] for output in found.outputs]
        work = partial(swap.close, self._job.files, self._job.directory, bases)
        self._offload(work, partial(self._finished, found))

    def _install(self, output: Output) -> None:
        partition = self.partition
        base = output.sources[0]
        first = partition.bases.index(base)
        old = partition.segments[first : first + len(output.sources)]
        assert tuple(segment.base_offset for segment in old) == output.sources
        for segment in old:
            partition.retire(segment)
        swap.put_in_place(partition.files, partition.directory, base, output.sources)
        new = Segment(
            partition.files, partition.directory, base, partition.residents, size=output.size
        )
        new.next_offset = output.next_offset
        new.timestamp_max = output.timestamp_max
        new.timestamp_max_offset = output.timestamp_max_offset
        partition.replace_segments(old, new)

    def _finished(self, found: Rewritten, _: object, error: BaseException | None) -> None:
        partition = self.partition
        if error is not None:
            self.stuck = True
            log.warning("%s: compacted, but cannot sync its directory: %s", partition.name, error)
        elif not partition.deleted:
            self._store.cleaned_offsets[partition.at] = found.clean_offset
            try:
                self._store.write_cleaned_offsets()
            except OSError as failure:
                log.warning("cannot note what has been compacted: %s", failure)
            self._count(found)
            log.info("%s: compacted up to offset %d", partition.name, found.clean_offset)
        self._over()

    def _count(self, found: Rewritten) -> None:
        metrics = self.partition.metrics
        metrics.compactions += 1
        metrics.records_compacted += found.records_dropped
        metrics.segments_compacted_bytes += sum(output.size for output in found.outputs)
        metrics.segments_not_compacted += len(self._bases) - sum(
            len(output.sources) for output in found.outputs
        )

    def _give_up(self, error: BaseException | None) -> None:
        partition = self.partition
        if isinstance(error, Abandoned) or partition.deleted or error is None:
            log.info("%s: compaction given up, the partition has changed", partition.name)
        else:
            log.warning("%s: compaction given up: %s", partition.name, error)
        if partition.deleted:
            self._over()
            return
        work = partial(swap.undo, self._job.files, self._job.directory, self._bases)
        self._offload(work, self._undone)

    def _undone(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self.stuck = True
            log.warning("%s: leftovers of a compaction remain: %s", self.partition.name, error)
        self._over()
