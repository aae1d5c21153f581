"""Answers of BlipMQ, many at a time: batches to deliveries, correlation ids to NACKs.

The frames are described in `blipmq.py`.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels.blipmq_facts import DEAD_EXPIRED, DEAD_TOO_LARGE, Delivered
from pentalog.kernels.facts import BatchHeader, Buffer, Malformed
from pentalog.kernels.pure.batch import batch_header
from pentalog.kernels.pure.records import decode_records
from pentalog.kernels.pure.varints import i64, read_varint

_FRAME: Final = struct.Struct(">IB8s")
_PUBLISH: Final = struct.Struct(">BH")
_NACK: Final = struct.Struct(">IB8sHH")

_PUBLISH_TYPE: Final = 3
_NACK_TYPE: Final = 6
_HEADER_BYTES: Final = 61
_OFFSET_MAX: Final = 1 << 62


def deliver_blipmq(
    batches: Buffer,
    batch: int,
    record: int,
    offset: int,
    stop: int,
    polls: Buffer,
    *,
    topic: bytes,
    qos: int,
    tag_shift: int,
    timestamp_min: int,
    bytes_max: int,
    frame_bytes_max: int,
    again: int = 0,
    states: bytearray | None = None,
    floor: int = 0,
    doubtful_end: int = 0,
    zero_end: int = _OFFSET_MAX,
) -> Delivered:
    """Answer POLLs with the records from `offset` on, up to `stop`.

    `polls` has their correlation ids; a leased record's is its tag, offset plus `tag_shift`.
    With `again` only records whose state is that are given, and their states are advanced in place.
    Records of quality 0 before `doubtful_end` may have been delivered: they are passed over.  The
    first one from `zero_end` on must not be delivered yet: it ends before that.
    """
    view = memoryview(batches)
    answers = _Answers(memoryview(polls), topic, qos, tag_shift, bytes_max, frame_bytes_max)
    answers.offset = offset
    answers.timestamp_min = timestamp_min
    answers.doubtful_end, answers.zero_end = doubtful_end, zero_end
    if states is not None:
        answers.again, answers.known, answers.floor = again, states, floor
    unreadable = 0
    position, inside = batch, record
    while len(view) - position >= _HEADER_BYTES and answers.offset < stop:
        header = batch_header(view, position)
        if not _is_sound(header, len(view) - position):
            unreadable += 1
            position = len(view)
            break
        after = position + header.size
        if header.base_offset + header.last_offset_delta < answers.offset:
            position, inside = after, 0
            continue
        if header.base_offset >= stop:
            answers.pass_over(stop)
            break
        try:
            inside = max(inside, position + _HEADER_BYTES)
            reached = answers.take(view, position, inside, after, stop)
        except Malformed:
            unreadable += 1
            reached = 0
            answers.pass_over(min(stop, header.base_offset + header.last_offset_delta + 1))
        if reached:
            inside = reached
            break
        position, inside = after, 0
    return Delivered(
        bytes(answers.out),
        answers.used,
        answers.offset,
        position,
        inside,
        b"" if answers.again else bytes(answers.states),
        answers.leased,
        unreadable,
    )


def _is_sound(header: BatchHeader, room: int) -> bool:
    return (
        header.magic == 2
        and _HEADER_BYTES <= header.size <= room
        and 0 <= header.base_offset <= _OFFSET_MAX
        and header.last_offset_delta >= 0
    )


class _Answers:
    def __init__(
        self,
        polls: memoryview,
        topic: bytes,
        qos: int,
        tag_shift: int,
        bytes_max: int,
        frame_bytes_max: int,
    ) -> None:
        if len(polls) % 8:
            raise ValueError(f"{len(polls)} bytes are no list of ids of 8 bytes each")
        self.out = bytearray()
        self.used = 0
        self.offset = 0
        self.states = bytearray()
        self.leased = 0
        self.timestamp_min = 0
        self.doubtful_end = self.zero_end = 0
        self.again = 0
        self.known = bytearray()
        self.floor = 0
        self._polls = polls
        self._topic = topic
        self._qos = qos
        self._tag_shift = tag_shift
        self._bytes_max = bytes_max
        self._frame_bytes_max = frame_bytes_max

    def take(self, view: memoryview, batch: int, record: int, end: int, stop: int) -> int:
        """Records of one batch; where it stopped inside, or 0 if it is through."""
        header = batch_header(view, batch)
        while record < end:
            size, begin = read_varint(view, record, end)
            if size < 1 or size > end - begin:
                raise Malformed(f"no record at byte {record}")
            decoded = decode_records(view, record, begin + size, 1, header.base_offset, 0, -1)
            at, delta, _, value, headers = decoded[0]
            if not 0 <= at - header.base_offset <= header.last_offset_delta:
                raise Malformed(f"the record at byte {record} is outside its batch")
            if at >= self.offset:
                if at >= stop:
                    self.pass_over(stop)
                    return record
                if not self._room():
                    return record
                qos = 0 if ("blipmq.qos", b"0") in headers else self._qos
                if not qos and not self.again and at >= self.zero_end:
                    self.pass_over(at)
                    return record
                time = header.base_timestamp + delta
                if header.attributes & 8:
                    time = header.max_timestamp
                self._answer(at, i64(time), value or b"", qos)
            record = begin + size
        self.pass_over(min(stop, header.base_offset + header.last_offset_delta + 1))
        return 0

    def pass_over(self, to: int) -> None:
        """Offsets without a record are settled."""
        if to > self.offset:
            self.states += bytes(to - self.offset) if not self.again else b""
            self.offset = to

    def _room(self) -> bool:
        return self.used * 8 < len(self._polls) and len(self.out) < self._bytes_max

    def _answer(self, at: int, time: int, value: bytes, qos: int) -> None:
        self.pass_over(at)
        self.offset = at + 1
        if self.again:
            index = at - self.floor
            if not 0 <= index < len(self.known) or self.known[index] != self.again:
                return
            self.known[index] = min((self.again & 0x7F) + 1, 99)
        else:
            size = 12 + len(self._topic) + len(value)
            if not qos and at < self.doubtful_end:
                self.states.append(0)
                return
            if time < self.timestamp_min:
                self.states.append(DEAD_EXPIRED)
                return
            if size > self._frame_bytes_max:
                self.states.append(DEAD_TOO_LARGE)
                return
            self.states.append(qos)
        self.leased += qos
        correlation = bytes(self._polls[8 * self.used : 8 * self.used + 8])
        if qos:
            correlation = ((at + self._tag_shift) % (1 << 64)).to_bytes(8, "big")
        length = 12 + len(self._topic) + len(value)
        self.out += _FRAME.pack(length, _PUBLISH_TYPE, correlation)
        self.out += _PUBLISH.pack(qos, len(self._topic)) + self._topic + value
        self.used += 1


def refuse_blipmq(correlations: Buffer, code: int, text: bytes) -> bytes:
    """One NACK for each of these correlation ids, of 8 bytes each."""
    view = memoryview(correlations)
    if len(view) % 8 or len(text) > 0xFFFF:
        raise ValueError("ids have 8 bytes each, a text at most 65535")
    return b"".join(
        _NACK.pack(13 + len(text), _NACK_TYPE, bytes(view[at : at + 8]), code, len(text)) + text
        for at in range(0, len(view), 8)
    )
