"""Walks over record batches (format v2): check, stamp, index, find.

Layout, big-endian:

    ======== ==== ======================================
    position size field
    ======== ==== ======================================
           0    8 base offset
           8    4 length of what follows this field
          12    4 partition leader epoch
          16    1 magic, 2
          17    4 CRC-32C of everything from position 21
          21    2 attributes
          23    4 last offset delta
          27    8 base timestamp
          35    8 max timestamp
          43    8 producer id
          51    2 producer epoch
          53    4 base sequence
          57    4 number of records
          61      records
    ======== ==== ======================================

Offset and leader epoch lie outside the checksum, so the log fills them in place.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels.facts import (
    FLAW_CHECKSUM,
    FLAW_CODEC,
    FLAW_COUNT,
    FLAW_LENGTH,
    FLAW_MAGIC,
    FLAW_NONE,
    FLAW_OFFSET,
    FLAW_SHORT,
    BatchHeader,
    Buffer,
    Facts,
    Scan,
)
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import i64
from pentalog.kernels.pure.walks import PRODUCED, check_walk

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES: Final = _HEADER.size
_FRAMING_BYTES: Final = 12
_LENGTH_MIN: Final = _HEADER_BYTES - _FRAMING_BYTES
_LENGTH_MAX: Final = (1 << 31) - 1 - _FRAMING_BYTES
_MAGIC_END: Final = 17
_RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key, value and headers of a record that has nothing."""
_CODEC_MAX: Final = 4
_APPEND_TIME: Final = 0x08
_I32_MAX: Final = (1 << 31) - 1
_I64_MAX: Final = (1 << 63) - 1
_FIND_STEP_BYTES: Final = 1 << 16

_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">II")
_TIME_ENTRY: Final = struct.Struct(">qI")


def _view(data: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def _sequence_after(sequence: int, count: int) -> int:
    """Sequences go on at 0 after the largest 32-bit number."""
    after = sequence + count
    return after if after <= _I32_MAX else after - _I32_MAX - 1


def _frame_flaw(view: memoryview, position: int, end: int) -> int:
    """The flaw in the framing of the batch at `position`, whose whole body must be there."""
    if end - position < _MAGIC_END:
        return FLAW_SHORT
    if view[position + 16] != 2:
        return FLAW_MAGIC
    length: int = _I32.unpack_from(view, position + 8)[0]
    if not _LENGTH_MIN <= length <= _LENGTH_MAX:
        return FLAW_LENGTH
    return FLAW_SHORT if length > end - position - _FRAMING_BYTES else FLAW_NONE


def _sum_is_right(view: memoryview, position: int, size: int) -> bool:
    crc: int = _U32.unpack_from(view, position + 17)[0]
    return crc32c(view[position + 21 : position + size]) == crc


def _header(view: memoryview, position: int) -> BatchHeader:
    fields = _HEADER.unpack_from(view, position)
    return BatchHeader(fields[0], fields[1] + _FRAMING_BYTES, *fields[2:])


def batch_header(data: Buffer, position: int) -> BatchHeader:
    """The header at `position`, unchecked; its 61 bytes must be there."""
    return _header(_view(data, position, position + _HEADER_BYTES), position)


def _append_flaw(view: memoryview, position: int, header: BatchHeader) -> tuple[int, int]:
    """(flaw, timestamp of the newest record) of a batch as a producer sends it.

    What is compressed is not opened: its newest timestamp is what the header says.
    """
    codec, timestamp = header.attributes & 7, header.max_timestamp
    if not _sum_is_right(view, position, header.size):
        return FLAW_CHECKSUM, timestamp
    if codec > _CODEC_MAX:
        return FLAW_CODEC, timestamp
    if header.records <= 0 or header.records != header.last_offset_delta + 1:
        return FLAW_COUNT, timestamp
    if codec:
        return FLAW_NONE, timestamp
    if header.records > (header.size - _HEADER_BYTES) // _RECORD_BYTES_MIN:
        return FLAW_COUNT, timestamp
    start, end = position + _HEADER_BYTES, position + header.size
    flaw, _, _, newest = check_walk(view, start, end, header.records, PRODUCED)
    if not flaw and not header.attributes & _APPEND_TIME:
        timestamp = max(-1, i64(header.base_timestamp + newest))
    return flaw, timestamp


def check_batches(data: Buffer, start: int, end: int) -> Facts:
    """Check a run of whole batches as a producer must send them; nothing is a flaw too.

    The other facts cover the batches before the flaw.
    """
    view = _view(data, start, end)
    position = start
    flaw = FLAW_SHORT if start == end else FLAW_NONE
    batches = offsets = records = size_max = attributes_any = codecs = 0
    timestamp_max = producer_id = producer_epoch = sequence_first = sequence_last = -1
    chained, restamp = True, False
    while position < end:
        flaw = _frame_flaw(view, position, end)
        if flaw:
            break
        header = _header(view, position)
        flaw, timestamp = _append_flaw(view, position, header)
        if flaw:
            break
        producer, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if producer < 0:
            producer = epoch = sequence = last = -1
        else:
            last = _sequence_after(sequence, header.last_offset_delta)
        if batches == 0:
            producer_id, producer_epoch, sequence_first = producer, epoch, sequence
        elif (producer, epoch) != (producer_id, producer_epoch) or (
            producer >= 0 and sequence != _sequence_after(sequence_last, 1)
        ):
            chained = False
        sequence_last = last
        batches += 1
        offsets += header.last_offset_delta + 1
        records += header.records
        size_max = max(size_max, header.size)
        timestamp_max = max(timestamp_max, timestamp)
        restamp |= timestamp != header.max_timestamp
        attributes_any |= header.attributes & 0xFFFF
        codecs |= 1 << (header.attributes & 7)
        position += header.size
    return Facts(
        flaw,
        position,
        batches,
        offsets,
        records,
        size_max,
        timestamp_max,
        attributes_any,
        codecs,
        producer_id,
        producer_epoch,
        sequence_first,
        sequence_last,
        chained,
        restamp,
    )


def _whole_size(view: memoryview, position: int, end: int) -> int:
    """Size of a batch that has been checked before; anything else is our own mistake."""
    size = 0
    if end - position >= _HEADER_BYTES:
        size = _I32.unpack_from(view, position + 8)[0] + _FRAMING_BYTES
    if not _HEADER_BYTES <= size <= end - position:
        raise ValueError(f"no whole batch at {position}: check the batches before stamping them")
    return size


def stamp(data: Buffer, start: int, end: int, base_offset: int, leader_epoch: int) -> int:
    """Give the batches their offsets, in place; returns the offset after the last."""
    view = _view(data, start, end)
    position = start
    while position < end:
        size = _whole_size(view, position, end)
        _I64.pack_into(view, position, base_offset)
        _I32.pack_into(view, position + 12, leader_epoch)
        base_offset += _I32.unpack_from(view, position + 23)[0] + 1
        position += size
    return base_offset


def stamp_append_time(data: Buffer, start: int, end: int, timestamp_ms: int) -> None:
    """Let the append time stand for the time of every record, in place."""
    view = _view(data, start, end)
    position = start
    while position < end:
        size = _whole_size(view, position, end)
        view[position + 22] |= _APPEND_TIME
        _I64.pack_into(view, position + 35, timestamp_ms)
        _U32.pack_into(view, position + 17, crc32c(view[position + 21 : position + size]))
        position += size


def _stored_flaw(
    view: memoryview,
    position: int,
    header: BatchHeader,
    *,
    next_offset: int,
    offset_max: int,
    segment_base: int,
    verify: bool,
    gaps: bool,
) -> int:
    if verify and not _sum_is_right(view, position, header.size):
        return FLAW_CHECKSUM
    if header.attributes & 7 > _CODEC_MAX:
        return FLAW_CODEC
    delta = header.last_offset_delta
    if delta < 0 or not 0 <= header.records <= delta + 1:
        return FLAW_COUNT
    base = header.base_offset
    if base < next_offset or base > offset_max - delta:
        return FLAW_OFFSET
    if base != next_offset and not gaps:
        return FLAW_OFFSET
    if segment_base < 0 or base + delta - segment_base > _I32_MAX:
        return FLAW_OFFSET
    return FLAW_NONE


class _Index:
    """The index entries of a walk, made as Kafka makes them."""

    __slots__ = ("base", "entered", "entries", "interval", "newest", "newest_at", "since", "times")

    def __init__(self, base: int, interval: int, since: int, newest: tuple[int, int, int]) -> None:
        self.base = base
        self.interval = interval
        self.since = since
        self.newest, self.newest_at, self.entered = newest
        self.entries = bytearray()
        self.times = bytearray()

    def add(self, header: BatchHeader, last_offset: int, file_position: int) -> None:
        if header.max_timestamp > self.newest:
            self.newest, self.newest_at = header.max_timestamp, last_offset
        if self.since > self.interval:
            relative = (last_offset - self.base) & 0xFFFFFFFF
            self.entries += _ENTRY.pack(relative, file_position & 0xFFFFFFFF)
            if self.newest > self.entered:
                relative = (self.newest_at - self.base) & 0xFFFFFFFF
                self.times += _TIME_ENTRY.pack(self.newest, relative)
                self.entered = self.newest
            self.since = 0
        self.since += header.size


def _producer(header: BatchHeader, position: int) -> tuple[int, int, int, int, int, int, int, int]:
    return (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        _sequence_after(header.base_sequence, header.last_offset_delta),
        header.base_offset,
        header.base_offset + header.last_offset_delta,
        header.attributes & 0xFFFF,
        position,
    )


def scan_batches(
    data: Buffer,
    start: int,
    end: int,
    *,
    file_position: int,
    segment_base: int,
    next_offset: int,
    index_interval: int,
    bytes_since_entry: int,
    timestamp_max: int,
    timestamp_max_offset: int,
    verify: bool,
    producers: bool,
    timestamp_entered: int = -1,
    gaps: bool = True,
    offset_max: int = _I64_MAX - 1,
) -> Scan:
    """Walk a piece of a segment until its end or its first flaw, and make its index entries.

    `data[start]` lies at `file_position` of the segment.  Missing records are fine, and with
    `gaps` missing offsets are too: compaction leaves both.  No offset may exceed `offset_max`.
    """
    view = _view(data, start, end)
    offset_max = max(-1, min(offset_max, _I64_MAX - 1))
    position = start
    flaw = FLAW_NONE
    batches = 0
    newest = (timestamp_max, timestamp_max_offset, timestamp_entered)
    index = _Index(segment_base, index_interval, bytes_since_entry, newest)
    found = []
    while position < end:
        flaw = _frame_flaw(view, position, end)
        if flaw:
            break
        header = _header(view, position)
        flaw = _stored_flaw(
            view,
            position,
            header,
            next_offset=next_offset,
            offset_max=offset_max,
            segment_base=segment_base,
            verify=verify,
            gaps=gaps,
        )
        if flaw:
            break
        last_offset = header.base_offset + header.last_offset_delta
        index.add(header, last_offset, file_position + position - start)
        if producers and header.producer_id >= 0:
            found.append(_producer(header, position))
        next_offset = last_offset + 1
        batches += 1
        position += header.size
    return Scan(
        position,
        next_offset,
        index.newest,
        index.newest_at,
        batches,
        flaw,
        bytes(index.entries),
        bytes(index.times),
        found,
        index.since,
        index.entered,
    )


def find_batch(data: Buffer, start: int, end: int, *, offset_min: int, offset_max: int) -> int:
    """The first position of a whole, right-summed batch with such a base offset, or -1."""
    view = _view(data, start, end)
    step_start = start + 16
    while step_start < end:
        step = bytes(view[step_start : min(step_start + _FIND_STEP_BYTES, end)])
        at = step.find(2)
        while at >= 0:
            position = step_start + at - 16
            if (
                _frame_flaw(view, position, end) == FLAW_NONE
                and offset_min <= _I64.unpack_from(view, position)[0] <= offset_max
                and _sum_is_right(view, position, _whole_size(view, position, end))
            ):
                return position
            at = step.find(2, at + 1)
        step_start += len(step)
    return -1


def _step(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """(size, last offset) of a batch whose header lies inside; (0, -1) if there is none.

    Its body may end outside.
    """
    if end - position < _HEADER_BYTES or view[position + 16] != 2:
        return 0, -1
    header = _header(view, position)
    if not _HEADER_BYTES <= header.size <= _I32_MAX:
        return 0, -1
    delta = header.last_offset_delta
    if delta < 0 or not 0 <= header.base_offset < _I64_MAX - delta:
        return 0, -1
    return header.size, header.base_offset + delta


def locate_offset(data: Buffer, start: int, end: int, offset: int) -> tuple[int, int, int, int]:
    """(position, size, base offset, next offset) of the first batch that reaches `offset`.

    Without one: (-1, where the walk stopped, -1, -1).
    """
    view = _view(data, start, end)
    position = start
    while position < end:
        size, last = _step(view, position, end)
        if size == 0:
            break
        if last >= offset:
            return position, size, _I64.unpack_from(view, position)[0], last + 1
        position += size
    return -1, position, -1, -1


def fit_batches(
    data: Buffer, start: int, end: int, bytes_max: int, offset_limit: int
) -> tuple[int, int]:
    """(end, next offset) of the whole batches within `bytes_max` and before `offset_limit`.

    Without one: (start, -1).
    """
    view = _view(data, start, end)
    position, next_offset = start, -1
    limit = min(end, start + max(bytes_max, 0))
    while position < limit:
        size, last = _step(view, position, limit)
        if not 0 < size <= limit - position or last >= offset_limit:
            break
        next_offset = last + 1
        position += size
    return position, next_offset


def attributes_in(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """(all attribute words of the whole batches, or-ed; where the walk stopped)."""
    view = _view(data, start, end)
    position, attributes = start, 0
    while position < end:
        size, _ = _step(view, position, end)
        if not 0 < size <= end - position:
            break
        attributes |= _header(view, position).attributes & 0xFFFF
        position += size
    return attributes, position


def locate_time(data: Buffer, start: int, end: int, timestamp: int) -> tuple[int, int]:
    """(position, size) of the first batch that holds a record of `timestamp` or later.

    Without one: (-1, where the walk stopped).
    """
    view = _view(data, start, end)
    position = start
    while position < end:
        size, _ = _step(view, position, end)
        if size == 0:
            break
        if _I64.unpack_from(view, position + 35)[0] >= timestamp:
            return position, size
        position += size
    return -1, position
