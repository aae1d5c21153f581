"""Kafka Produce, a whole socket buffer at a time: requests in, runs out; results in, replies out.

Only the plain form is read here: one topic, one partition, no transaction, sound batches, no
tagged fields.  Every other frame is handed on as it came.

Request, versions 3 to 8: api key i16, version i16, correlation id i32, client id (nullable
string); transactional id (nullable string), acks i16, timeout i32, array of topics (name, array
of partitions (index i32, records)).  Versions 9 to 13 are flexible: compact lengths and tagged
fields; version 13 has the 16 bytes of the topic id for the name.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels.facts import Buffer, Facts, Frames, ProduceRun
from pentalog.kernels.pure.batch import check_batches

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_START: Final = struct.Struct(">hhi")
_ACKS: Final = struct.Struct(">hi")
_REQUEST: Final = struct.Struct("=ii")
_RESULT: Final = struct.Struct(">ihqq")

_VERSION_MIN: Final = 3
_VERSION_START_OFFSET: Final = 5
_VERSION_ERROR_MESSAGE: Final = 8
_VERSION_FLEXIBLE: Final = 9
_VERSION_TOPIC_ID: Final = 13
_VERSION_MAX: Final = 13
_TOPIC_BYTES_MAX: Final = 249
_TOPIC_ID_BYTES: Final = 16
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_I32_MAX: Final = (1 << 31) - 1
_UVARINT_BYTES_MAX: Final = 5
_MESSAGE_BYTES_MAX: Final = (1 << 15) - 1


class _NotPlain(Exception):
    """This frame is left to the general decoder."""


class _Cursor:
    """Reads one request; every surprise is `_NotPlain`."""

    __slots__ = ("end", "flexible", "position", "view")

    def __init__(self, view: memoryview, position: int, end: int) -> None:
        self.view = view
        self.position = position
        self.end = end
        self.flexible = False

    def take(self, size: int) -> int:
        """Step over `size` bytes; returns where they start."""
        start = self.position
        if not 0 <= size <= self.end - start:
            raise _NotPlain
        self.position = start + size
        return start

    def i16(self) -> int:
        number: int = _I16.unpack_from(self.view, self.take(2))[0]
        return number

    def i32(self) -> int:
        number: int = _I32.unpack_from(self.view, self.take(4))[0]
        return number

    def compact(self) -> int:
        """A length or count; -1 is null."""
        number = 0
        for index in range(_UVARINT_BYTES_MAX):
            byte = self.view[self.take(1)]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return number - 1
        raise _NotPlain

    def string_length(self) -> int:
        return self.compact() if self.flexible else self.i16()

    def length(self) -> int:
        return self.compact() if self.flexible else self.i32()

    def no_tags(self) -> None:
        if self.flexible and self.view[self.take(1)] != 0:
            raise _NotPlain


class _Request:
    """One plain Produce request, and where its batches lie."""

    __slots__ = ("acks", "correlation", "end", "facts", "partition", "start", "topic", "version")

    def __init__(self, view: memoryview, start: int, end: int) -> None:
        cursor = _Cursor(view, start, end)
        key, self.version, self.correlation = _START.unpack_from(view, cursor.take(_START.size))
        if key != 0 or not _VERSION_MIN <= self.version <= _VERSION_MAX:
            raise _NotPlain
        client_bytes = cursor.i16()
        if client_bytes != -1:
            cursor.take(client_bytes)
        cursor.flexible = self.version >= _VERSION_FLEXIBLE
        cursor.no_tags()
        if cursor.string_length() != -1:
            raise _NotPlain
        self.acks, _ = _ACKS.unpack_from(view, cursor.take(_ACKS.size))
        if cursor.length() != 1:
            raise _NotPlain
        topic_bytes = _TOPIC_ID_BYTES
        if self.version < _VERSION_TOPIC_ID:
            topic_bytes = cursor.string_length()
        if topic_bytes > _TOPIC_BYTES_MAX:
            raise _NotPlain
        topic = cursor.take(topic_bytes)
        self.topic = bytes(view[topic : topic + topic_bytes])
        if cursor.length() != 1:
            raise _NotPlain
        self.partition = cursor.i32()
        batches_bytes = cursor.length()
        self.start = cursor.take(batches_bytes)
        self.end = self.start + batches_bytes
        for _ in ("partition", "topic", "request"):
            cursor.no_tags()
        if cursor.position != end:
            raise _NotPlain
        self.facts = check_batches(view, self.start, self.end)
        if self.facts.flaw or self.facts.attributes_any & _TRANSACTIONAL_OR_CONTROL:
            raise _NotPlain
        if self.facts.offsets > _I32_MAX:
            raise _NotPlain


def _follows(run: Facts, facts: Facts) -> bool:
    """Can both be appended at once, as if one request had sent them?"""
    if not (run.chained and facts.chained) or run.producer_id != facts.producer_id:
        return False
    if run.producer_id < 0:
        return True
    sequence = 0 if run.sequence_last == _I32_MAX else run.sequence_last + 1
    return run.producer_epoch == facts.producer_epoch and sequence == facts.sequence_first


def _joined(run: Facts, facts: Facts, end: int) -> Facts:
    return Facts(
        0,
        end,
        run.batches + facts.batches,
        run.offsets + facts.offsets,
        run.records + facts.records,
        max(run.batch_bytes_max, facts.batch_bytes_max),
        max(run.timestamp_max, facts.timestamp_max),
        run.attributes_any | facts.attributes_any,
        run.codecs | facts.codecs,
        run.producer_id,
        run.producer_epoch,
        run.sequence_first,
        facts.sequence_last,
        True,
        run.restamp or facts.restamp,
    )


def _add(
    items: list[ProduceRun | tuple[int, int]],
    view: memoryview,
    request: _Request,
    join_bytes_max: int,
) -> None:
    """Join `request` to the run before it, or begin a run."""
    entry = _REQUEST.pack(request.correlation, request.facts.offsets)
    size = request.end - request.start
    run = items[-1] if items else None
    if (
        isinstance(run, ProduceRun)
        and size <= join_bytes_max
        and (run.version, run.acks, run.topic, run.partition)
        == (request.version, request.acks, request.topic, request.partition)
        and _follows(run.facts, request.facts)
    ):
        end = run.end + size
        view[run.end : end] = view[request.start : request.end]
        facts = _joined(run.facts, request.facts, end)
        items[-1] = run._replace(end=end, requests=run.requests + entry, facts=facts)
        return
    items.append(
        ProduceRun(
            request.version,
            request.acks,
            request.topic,
            request.partition,
            request.start,
            request.end,
            entry,
            request.facts,
        )
    )


def split_produce(
    data: Buffer, start: int, end: int, *, frame_bytes_max: int, join_bytes_max: int = 32768
) -> Frames:
    """Take every whole frame out of `data`, Produce requests joined into runs.

    The batches of a joined request are moved directly behind those of the run before it, over
    request headers that have been read, so `data` must be writable.
    """
    view = memoryview(data).cast("B")
    if view.readonly:
        raise ValueError("the buffer is read-only: batches could not be moved together")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    items: list[ProduceRun | tuple[int, int]] = []
    position = start
    wanted = refused = 0
    while end - position >= 4:
        length: int = _I32.unpack_from(view, position)[0]
        if not 0 <= length <= frame_bytes_max:
            refused = length
            break
        frame = position + 4
        if length > end - frame:
            wanted = 4 + length
            break
        position = frame + length
        try:
            request = _Request(view, frame, position)
        except _NotPlain:
            items.append((frame, position))
        else:
            _add(items, view, request, join_bytes_max)
    return Frames(items, position, wanted, refused)


def _compact(length: int) -> bytes:
    """Length plus one, so that null can be 0."""
    number = length + 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _reply_frame(version: int, topic: bytes, message: bytes | None) -> tuple[bytes, bytes]:
    """What stands before and behind the result of the partition in a reply."""
    flexible = version >= _VERSION_FLEXIBLE
    before, behind = bytearray(), bytearray()
    if flexible:
        before += b"\x00\x02"
        if version < _VERSION_TOPIC_ID:
            before += _compact(len(topic))
        before += topic + b"\x02"
        behind += b"\x01"
        behind += b"\x00" if message is None else _compact(len(message)) + message
        behind += b"\x00\x00" + bytes(4) + b"\x00"
        return bytes(before), bytes(behind)
    before += _I32.pack(1) + _I16.pack(len(topic)) + topic + _I32.pack(1)
    if version >= _VERSION_ERROR_MESSAGE:
        behind += bytes(4)
        behind += _I16.pack(-1) if message is None else _I16.pack(len(message)) + message
    behind += bytes(4)
    return bytes(before), bytes(behind)


def produce_replies(
    version: int,
    topic: bytes,
    partition: int,
    requests: Buffer,
    base_offset: int,
    *,
    error: int,
    error_message: str | None,
    timestamp_ms: int,
    start_offset: int,
) -> bytes:
    """The replies to all requests of a run, joined, each with its length."""
    if not _VERSION_MIN <= version <= _VERSION_MAX:
        raise ValueError(f"Produce version {version} is not {_VERSION_MIN}..{_VERSION_MAX}")
    message = None if error_message is None else error_message.encode()
    if message is not None and len(message) > _MESSAGE_BYTES_MAX:
        message = message[:_MESSAGE_BYTES_MAX].decode("utf-8", "ignore").encode()
    before, behind = _reply_frame(version, topic, message)
    start = b"" if version < _VERSION_START_OFFSET else struct.pack(">q", start_offset)
    size = 4 + len(before) + _RESULT.size + len(start) + len(behind)
    replies: list[bytes] = []
    for correlation, offsets in _REQUEST.iter_unpack(requests):
        offset = -1 if error else base_offset
        base_offset += offsets
        replies += (
            struct.pack(">ii", size, correlation),
            before,
            _RESULT.pack(partition, error, offset, timestamp_ms),
            start,
            behind,
        )
    return b"".join(replies)
