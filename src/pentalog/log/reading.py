"""Find and slice what a partition holds.

A reader that goes on where its last slice ended is served from a hint: no search.  Bytes that are
not in memory are never waited for here; `Cold` says what to bring in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pentalog.log.inspection import damage_at, damage_from
from pentalog.log.segment import Cold, Point, Segment
from pentalog.log.times import find_time, find_time_after
from pentalog.model.errors import OffsetOutOfRange
from pentalog.model.types import Edge, FilePiece, Horizon, Slice

if TYPE_CHECKING:
    from pentalog.log.partition import PartitionLog

_HINTS_MAX: Final = 128
_HOT_BYTES: Final = 64 << 20
"""What was written this recently is taken to be in memory still."""


class Reading:
    def __init__(self, partition: PartitionLog) -> None:
        self._log = partition
        self._hints: dict[int, tuple[Segment, int]] = {}

    def forget(self) -> None:
        """Segments have gone or been replaced."""
        self._hints.clear()

    def limit(self, horizon: Horizon, *, patient: bool = True) -> Point:
        if horizon is Horizon.END:
            return self._log.end
        stable = self._log.stable_offset if horizon is Horizon.STABLE else self._log.durable.offset
        if stable == self._log.durable.offset:
            return self._log.durable
        segment = self._log.segment_of(stable)
        found = segment.find(stable, patient=patient)
        position = segment.size if found is None else found.position
        return Point(stable, segment.base_offset, position)

    def check_range(self, offset: int) -> None:
        start, end = self._log.start_offset, self._log.end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} outside {start}..{end} of {self._log.name}", start=start, end=end
            )

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool,
        patient: bool = False,
        aborted_max: int = 0,
    ) -> Slice:
        """Whole batches from the one that holds `offset`; raises Cold rather than wait.

        With `aborted_max` it ends where more transactions than that have been aborted.
        """
        self.check_range(offset)
        limit = self.limit(horizon, patient=patient)
        if offset >= limit.offset:
            return Slice((), 0, self._log.marks, offset)
        segment, position = self._hints.get(offset) or (self._log.segment_of(offset), -1)
        while segment.base_offset <= limit.base:
            last = segment.base_offset == limit.base
            if position < 0:
                found = segment.find(offset, patient=patient)
                position = segment.size if found is None else found.position
            end = limit.position if last else segment.size
            if position >= end:
                if last:
                    # All that is left is damaged.  A reader that stayed here would ask for ever.
                    return Slice((), 0, self._log.marks, limit.offset)
                segment = self._log.segments[self._log.bases.index(segment.base_offset) + 1]
                position = -1
                continue
            segment.trust(position, min(end, position + max(bytes_max, 1)), patient=patient)
            end, next_offset = self._sound_end(segment, position, end, limit)
            if end <= position:
                position = -1  # found damaged only now: look again, behind the damage
                continue
            if end - position > bytes_max:
                end, next_offset = self._whole_batches(
                    segment, position, bytes_max, whole_first=whole_first, patient=patient
                )
                if end == position:
                    break
            if aborted_max:
                marker = self._log.aborted.marker_after(offset, aborted_max)
                if 0 <= marker < next_offset:
                    found = segment.find(marker, patient=patient)
                    # Compacted and damaged stretches may have no batch there.
                    if found is not None and position < found.position < end:
                        end, next_offset = found
            self._check_warm(segment, position, end, patient)
            self._hint(next_offset, segment, end)
            self._log.metrics.read_bytes += end - position
            aborted = (
                self._log.aborted.between(offset, next_offset) if len(self._log.aborted) else ()
            )
            pieces = (FilePiece(segment.file, position, end - position),)
            return Slice(pieces, end - position, self._log.marks, next_offset, aborted)
        return Slice((), 0, self._log.marks, offset)

    def _whole_batches(
        self, segment: Segment, position: int, bytes_max: int, *, whole_first: bool, patient: bool
    ) -> tuple[int, int]:
        """End and next offset of the batches that fit; of the first one alone if none does."""
        boundary = segment.boundary(position, position + bytes_max, patient=patient)
        if boundary.position > position or not whole_first:
            return boundary
        header = segment.header_at(position)
        segment.trust(position, position + header.size, patient=patient)
        return position + header.size, header.base_offset + header.last_offset_delta + 1

    def _sound_end(
        self, segment: Segment, position: int, end: int, limit: Point
    ) -> tuple[int, int]:
        """How far one undamaged stretch goes, and the offset behind it."""
        damages = segment.damages
        damage = damage_at(damages, position) or damage_from(damages, position + 1)
        if damage is not None and damage.start < end:
            return damage.start, damage.offset
        if segment.base_offset == limit.base:
            return end, limit.offset
        return end, segment.next_offset

    def _check_warm(self, segment: Segment, position: int, end: int, patient: bool) -> None:
        if patient or (segment.active and segment.size - position < _HOT_BYTES):
            return
        if not self._log.files.cached(segment.file, position, end - position):
            raise Cold(segment.file, position, end - position)

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        """Whoever reads this slice will ask for the next one soon."""
        hints = self._hints
        if len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def is_lost(self, offset: int) -> bool:
        """Are all records from an offset in the newest segment on damaged?"""
        active = self._log.active
        if not active.damages or offset < active.base_offset:
            return False
        found = active.find(offset, patient=True)
        return found is None or found.position >= active.size

    def bytes_behind(self, offset: int, horizon: Horizon) -> int:
        """Roughly how many bytes a reader at `offset` could get."""
        limit = self.limit(horizon)
        if offset >= limit.offset:
            return 0
        first = self._log.segment_of(offset)
        hint = self._hints.get(offset)
        position = hint[1] if hint is not None and hint[0] is first else -1
        if position < 0:
            position = first.position_near(offset)
        if first.base_offset == limit.base:
            return limit.position - position
        between = sum(
            segment.size
            for segment in self._log.segments
            if first.base_offset < segment.base_offset < limit.base
        )
        return first.size - position + between + limit.position

    def edge(self, when: Edge | int) -> int | None:
        """The offset of an edge; None if records must be searched for."""
        if when is Edge.START:
            return self._log.start_offset
        if when is Edge.END:
            return self._log.end_offset
        if when is Edge.DURABLE:
            return self._log.durable.offset
        if when is Edge.STABLE:
            return self._log.stable_offset
        return None

    def candidates(self, when: Edge | int) -> Iterator[tuple[bytes, int]]:
        """Batches that may hold the first record from a time on, each with that time.

        In order; the caller stops at the first that has one.  May wait for the disk.
        """
        if isinstance(when, Edge):
            newest = max(self._log.segments, key=lambda segment: segment.newest_timestamp)
            if newest.newest_timestamp >= 0:
                yield from self._candidates_in(newest, newest.newest_timestamp)
            return
        for segment in list(self._log.segments):
            if segment.newest_timestamp >= when:
                yield from self._candidates_in(segment, when)

    def _candidates_in(self, segment: Segment, timestamp: int) -> Iterator[tuple[bytes, int]]:
        found = find_time(segment, timestamp)
        while found is not None:
            data = segment.read_batch(found.position, patient=True)
            yield data, timestamp
            found = find_time_after(segment, found.position + len(data), timestamp)
