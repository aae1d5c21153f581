"""Opens batches for those who look inside: readers of records, searches by time, and producers.

A small batch can hold a thousand times its size.  What is small once opened is opened where it is
asked for; the rest on a lane, one batch after another, so that neither the loop waits nor more
than a few are in memory at a time.  Batches that cannot be read are skipped, counted and logged:
they were stored before batches were opened on their way in, and must not stop a reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pentalog import kernels
from pentalog.broker.port import Opened
from pentalog.kernels import BatchHeader, Buffer, Malformed, batch_header
from pentalog.log.admission import OPENED_BYTES_MAX, UNLIMITED, OverBudget
from pentalog.metrics import Metrics
from pentalog.model import batch, compression
from pentalog.model.errors import BatchCorrupt, BrokerError, RecordTooLarge
from pentalog.model.later import Later
from pentalog.model.types import Aborted, FilePiece, Offset, Partition, Slice
from pentalog.runtime import Runtime

T = TypeVar("T")
ReadPiece = Callable[[FilePiece], bytes | memoryview]

OPENED_AT_ONCE_MAX: Final = 16 << 20
"""What one read of opened batches brings, whatever the reader would take."""

LOOKED_AT_MAX: Final = 8_192
"""Batches that one read looks at, if all of them are skipped: a few milliseconds in Python.

They may be so small that 16 MiB hold a quarter of a million.
"""
ABORTED_AT_ONCE_MAX: Final = 2_048
"""Aborted transactions whose markers one read brings: of what it does not look at, none is read."""
OPENED_COST: Final = 4
"""A batch that is opened counts as so many that are skipped."""
INLINE_BYTES_MAX: Final = 256 << 10
"""Opened where it is asked for: less than a millisecond with every codec."""
_LARGE_BYTES: Final = 8 << 20
"""More than this has a lane of its own, so that it does not hold up the others."""
_LANE: Final = "open"
_LARGE_LANE: Final = "open-large"
_HIDDEN: Final = batch.CODEC_MASK | batch.CONTROL
_SILENCE_S: Final = 60.0
_I64_MIN: Final = -(1 << 63)

log = logging.getLogger("pentalog.log")


class Gap(NamedTuple):
    """Offsets that a reader skips because they cannot be read."""

    first: Offset
    last: Offset
    why: str


class Openings:
    """Runs what opens batches, and reports what could not be opened."""

    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._told_at = -_SILENCE_S
        self._untold = 0

    def run(self, work: Callable[[int], T]) -> Later[T]:
        """Call `work` with a budget of bytes to open: here if it is small, else on a lane.

        `work` raises `OverBudget` to be called again elsewhere with a larger one.  What it
        raises when it is called here comes out of this.
        """
        try:
            return Later.now(work(INLINE_BYTES_MAX))
        except OverBudget:
            return self.offload(work)

    def offload(self, work: Callable[[int], T]) -> Later[T]:
        """The same on a lane at once: nothing that `work` uses may be the loop's own."""
        later: Later[T] = Later()
        self._runtime.offload(_LANE, partial(work, _LARGE_BYTES), partial(self._done, later, work))
        return later

    def _done(
        self,
        later: Later[T],
        work: Callable[[int], T],
        value: T | None,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, OverBudget):
            large = partial(work, UNLIMITED)
            self._runtime.offload(_LARGE_LANE, large, partial(_finish, later))
        else:
            _finish(later, value, error)

    def open(
        self, at: Partition, offset: Offset, found: Slice, *, bytes_max: int, read_piece: ReadPiece
    ) -> Later[Opened]:
        """What a slice holds for a reader of records, from an offset on."""
        data = _bytes_of(found, read_piece)
        if _is_plain(data, found):
            return Later.now(Opened(data, found.marks, found.next_offset))
        later = self.run(partial(_open_each, data, found, offset, bytes_max))
        if later.ready:
            return Later.now(self._reported(at, later.value))
        opened: Later[Opened] = Later()
        later.then(partial(self._opened, at, opened))
        return opened

    def _opened(
        self, at: Partition, opened: Later[Opened], later: Later[tuple[Opened, Sequence[Gap]]]
    ) -> None:
        try:
            opened.fill(self._reported(at, later.value))
        except BrokerError as refusal:
            opened.refuse(refusal)

    def _reported(self, at: Partition, found: tuple[Opened, Sequence[Gap]]) -> Opened:
        opened, gaps = found
        for gap in gaps:
            self.report(at, gap)
        return opened

    def report(self, at: Partition, gap: Gap) -> None:
        """Count a gap, and log it unless another one was logged a moment ago."""
        self._metrics.unreadable_batches += 1
        now_s = self._runtime.monotonic()
        if now_s - self._told_at < _SILENCE_S:
            self._untold += 1
            return
        more = f"; {self._untold} more were skipped since the last report" if self._untold else ""
        log.error(
            "%s: offsets %d..%d cannot be read and are skipped: %s%s",
            at,
            gap.first,
            gap.last,
            gap.why,
            more,
        )
        self._told_at, self._untold = now_s, 0


def _finish(later: Later[T], value: T | None, error: BaseException | None) -> None:
    if error is None:
        later.fill(value)  # type: ignore[arg-type]  # there is a value, and None may be a T
    elif isinstance(error, BrokerError):
        later.refuse(error)
    else:
        log.error("a batch could not be opened", exc_info=error)
        later.refuse(BatchCorrupt("the batch could not be opened; the log of the broker says why"))


def find_in_batch(
    data: Buffer, timestamp: int, offset_min: Offset, budget_bytes: int
) -> tuple[Offset, int]:
    """Offset and timestamp of the first record of a batch from a time and an offset on.

    (-1, -1) if there is none, or if the batch cannot be read.
    """
    try:
        payload, header = _payload_of(data, 0, budget_bytes)
        if header.attributes & batch.APPEND_TIME:
            if header.max_timestamp < timestamp:
                return -1, -1
            timestamp = _I64_MIN
        found = kernels.find_time(
            payload,
            0,
            len(payload),
            header.records,
            base_offset=header.base_offset,
            base_timestamp=header.base_timestamp,
            offset_min=offset_min,
            timestamp_min=timestamp,
        )
    except (BrokerError, Malformed):
        return -1, -1
    if found[0] >= 0 and header.attributes & batch.APPEND_TIME:
        return found[0], header.max_timestamp
    return found


def _is_plain(data: bytes | memoryview, found: Slice) -> bool:
    attributes, end = kernels.readable_batches(data, 0, len(data))
    return end == len(data) and not attributes & _HIDDEN and not found.aborted


def _bytes_of(found: Slice, read_piece: ReadPiece) -> bytes | memoryview:
    parts = [read_piece(piece) if isinstance(piece, FilePiece) else piece for piece in found.pieces]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _open_each(
    data: bytes | memoryview, found: Slice, offset: Offset, bytes_max: int, budget_bytes: int
) -> tuple[Opened, Sequence[Gap]]:
    out = bytearray()
    gaps: list[Gap] = []
    next_offset = offset
    hidden = _Hidden(found.aborted)
    left = LOOKED_AT_MAX
    for position, header in _headers(data):
        if left <= 0:
            return Opened(out, found.marks, next_offset), gaps
        left -= 1
        behind = header.base_offset + header.last_offset_delta + 1
        try:
            if hidden.hides(data, position, header):
                next_offset = behind
                continue
            left -= OPENED_COST - 1
            if out and len(out) + header.size > bytes_max:
                return Opened(out, found.marks, next_offset), gaps
            payload = _sound_payload(data, position, header, budget_bytes)
        except BrokerError as flaw:
            gaps.append(Gap(header.base_offset, behind - 1, str(flaw)))
            next_offset = behind
            continue
        budget_bytes -= len(payload)
        size = batch.HEADER_BYTES + len(payload)
        if out and len(out) + size > bytes_max:
            return Opened(out, found.marks, next_offset), gaps
        if size > bytes_max and header.attributes & batch.CODEC_MASK:
            part, next_offset = _part(header, payload, offset, bytes_max)
            return Opened(part, found.marks, next_offset), gaps
        out += batch.rebuild(header, payload, count=header.records, codec=compression.NONE)
        next_offset = behind
    return Opened(out, found.marks, found.next_offset), gaps


def _part(
    header: BatchHeader, payload: Buffer, offset: Offset, bytes_max: int
) -> tuple[bytearray, Offset]:
    """As much of a batch as a reader takes, from an offset on, and where it goes on."""
    start, end, count, last = kernels.cut_records(
        payload,
        0,
        len(payload),
        header.records,
        delta_min=max(0, offset - header.base_offset),
        bytes_max=bytes_max,
    )
    behind = header.base_offset + header.last_offset_delta + 1
    if not count:
        return bytearray(), behind
    cut = header._replace(last_offset_delta=last)
    part = batch.rebuild(cut, memoryview(payload)[start:end], count=count, codec=compression.NONE)
    return part, behind if end == len(payload) else header.base_offset + last + 1


def _headers(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while position + batch.HEADER_BYTES <= len(data):
        header = batch_header(data, position)
        if not batch.HEADER_BYTES <= header.size <= len(data) - position:
            break
        yield position, header
        position += header.size


def _payload_of(data: Buffer, position: int, budget_bytes: int) -> tuple[Buffer, BatchHeader]:
    try:
        payload, header = batch.payload_of(
            data, position, bytes_max=min(OPENED_BYTES_MAX, max(0, budget_bytes))
        )
    except RecordTooLarge as refusal:
        if budget_bytes < OPENED_BYTES_MAX:
            raise OverBudget from refusal
        raise
    return payload, header


def _sound_payload(
    data: bytes | memoryview, position: int, header: BatchHeader, budget_bytes: int
) -> Buffer:
    payload, _ = _payload_of(data, position, budget_bytes)
    flaw = kernels.check_records(
        payload, 0, len(payload), header.records, header.last_offset_delta
    )[0]
    if flaw:
        raise BatchCorrupt("its records are malformed")
    return payload


class _Hidden:
    """Tells which batches of a slice nobody may see, asked in the order of the log."""

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._open: set[int] = set()

    def hides(self, data: bytes | memoryview, position: int, header: BatchHeader) -> bool:
        last_offset = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[-1].first_offset <= last_offset:
            self._open.add(self._coming.pop().producer_id)
        if header.attributes & batch.CONTROL:
            if header.producer_id in self._open and batch.control_type(data, position) == "abort":
                self._open.discard(header.producer_id)
            return True
        return bool(header.attributes & batch.TRANSACTIONAL) and header.producer_id in self._open
