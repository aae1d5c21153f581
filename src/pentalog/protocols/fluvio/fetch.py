"""Fetch, the one-shot way to read, and FetchOffsets: where a partition begins and ends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from pentalog.broker.port import Committed, Opened
from pentalog.broker.security import Kind
from pentalog.model.errors import BrokerError, OffsetOutOfRange, StorageFailed, Unauthorized
from pentalog.model.later import Later, all_of
from pentalog.model.types import Horizon, Marks, Offset, Partition
from pentalog.protocols.fluvio import (
    errors,
    frames,
    lookups,
    messages,
    records,
    rights,
    streams,
)
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.messages import Fetch, PartitionFetch
from pentalog.protocols.fluvio.session import WORK_BYTES, Answer, Call, raise_error

WAITS_MAX: Final = 100
"""Fetches of one connection that may wait for records; further ones are answered at once."""
_PARTS_AT_ONCE: Final = 2
"""Partitions that are served without a pause."""
_LENGTH: Final = struct.Struct(">i")
_NO_MARKS: Final = Marks(0, 0, 0, 0)
_CONSUMER_ID_VERSION: Final = 23
"""FetchOffsets has a consumer id in this version and in no other."""


class Reading:
    """A Fetch whose partitions are being read, after a wait if there was nothing yet."""

    def __init__(self, call: Call, wish: Fetch) -> None:
        self._call = call
        self._wish = wish
        self._horizon = records.horizon_of(call.context.broker, committed=wish.committed)
        self._parts = [part for _, parts in wish.topics for part in parts]
        self._bodies: list[bytes] = []
        self._next = 0
        self._bytes_left = max(1, min(wish.bytes_max, streams.FRAME_BYTES_MAX))
        self._answer: Answer | None = None
        self._release: Callable[[], None] | None = None

    def start(self) -> None:
        positions = self._behind()
        if positions is None:
            self._read()
        else:
            self._wait(positions)

    def _behind(self) -> dict[Partition, Offset] | None:
        """Where to wait; None if some partition can be answered as it is."""
        if self._wish.wait_ms <= 0 and self._horizon is Horizon.END:
            return None
        if len(self._call.session.waits) >= WAITS_MAX:
            return None
        broker = self._call.context.broker
        positions: dict[Partition, Offset] = {}
        for part in self._parts:
            at = Partition(part.topic, part.partition)
            try:
                rights.check(self._call, rights.SPU, part.topic)
                broker.topics.get(part.topic)
                marks = broker.log.marks(at)
                if not marks.at(self._horizon) <= part.offset <= marks.end:
                    return None
            except BrokerError:
                return None
            positions[at] = part.offset
        return positions or None

    def _wait(self, positions: dict[Partition, Offset]) -> None:
        session = self._call.session
        waiting = self._call.context.broker.log.wait(
            positions,
            bytes_min=max(1, self._wish.bytes_min),
            horizon=self._horizon,
            timeout_ms=max(0, self._wish.wait_ms),
        )
        if waiting.ready:
            self._read()
            return
        session.waits.add(waiting)

        def waited(_: Later[bool]) -> None:
            session.waits.discard(waiting)
            if session.replies.full:
                # Many that waited together would fill the memory together.
                session.replies.when_room(self._read)
            else:
                session.soon(self._read)

        self._answer = self._call.place()
        waiting.then(waited)

    def _read(self) -> None:
        """Read once memory for the answer is reserved."""
        opens_bytes = streams.OPEN_BYTES_MAX * len(self._parts)
        reserved = self._call.session.replies.reserve(min(self._bytes_left, opens_bytes))
        if not reserved.ready and self._answer is None:
            self._answer = self._call.place()
        reserved.then(self._reserved)

    def _reserved(self, reserved: Later[Callable[[], None]]) -> None:
        self._release = reserved.value
        self._read_on()

    def _read_on(self) -> None:
        """Read on; in slices, where there is much."""
        if len(self._parts) <= _PARTS_AT_ONCE:
            for _ in self._reading():
                pass
            return
        if self._answer is None:
            self._answer = self._call.place()
        # Memory for the answer is reserved.
        self._call.context.slices.run(self._reading(), raise_error, unconditional=True)

    def _reading(self) -> Iterator[None]:
        """One partition after the other: what one has taken the next may not bring."""
        while self._next < len(self._parts):
            yield
            if self._call.session.ended:
                return
            part = self._parts[self._next]
            self._next += 1
            at = Partition(part.topic, part.partition)
            bytes_max = max(1, min(part.bytes_max, self._bytes_left, streams.OPEN_BYTES_MAX))
            try:
                rights.check(self._call, rights.SPU, part.topic)
                self._call.context.broker.topics.get(part.topic)
                if self._bytes_left <= 0:
                    # The answer is full: as if there were nothing new.
                    marks = self._call.context.broker.log.marks(at)
                    self._put(part, errors.FINE, marks, b"", part.offset)
                    continue
                opened = self._call.context.broker.log.open(
                    at, part.offset, bytes_max=bytes_max, horizon=self._horizon
                )
            except BrokerError as refusal:
                self._refuse(part, refusal)
                continue
            if not opened.ready:
                if self._answer is None:
                    self._answer = self._call.place()
                opened.then(partial(self._arrived, part))
                return
            self._opened(part, opened)
        self._finish()

    def _arrived(self, part: PartitionFetch, later: Later[Opened]) -> None:
        self._opened(part, later)
        self._read_on()

    def _opened(self, part: PartitionFetch, later: Later[Opened]) -> None:
        try:
            broker = self._call.context.broker
            at = Partition(part.topic, part.partition)
            opened = records.decided(broker, at, later.value, self._horizon)
            record_set, count = records.from_log(opened.batches, part.offset)
        except BrokerError as refusal:
            self._refuse(part, refusal)
            return
        self._call.context.metrics.sent_records += count
        # A client takes the next offset from the last batch, or from here if there is none.
        next_offset = 0 if count else opened.next_offset
        self._bytes_left -= len(record_set)
        self._call.session.work += len(record_set) // WORK_BYTES
        self._put(part, errors.FINE, opened.marks, record_set, next_offset)

    def _refuse(self, part: PartitionFetch, refusal: BrokerError) -> None:
        error = errors.error_of(refusal)
        if isinstance(refusal, OffsetOutOfRange):
            error = streams.out_of_range(refusal, part.offset)
        elif error.code == errors.TOPIC_NOT_FOUND:
            error = WireError(errors.NOT_LEADER)
        self._put(part, error, _NO_MARKS, b"", 0)

    def _put(
        self,
        part: PartitionFetch,
        error: WireError,
        marks: Marks,
        record_set: bytes | bytearray,
        next_offset: Offset,
    ) -> None:
        at = Partition(part.topic, part.partition)
        body = streams.frame_body(
            self._call.version,
            at,
            None,
            error,
            marks,
            horizon=self._horizon,
            next_offset=next_offset,
        )
        body.out += _LENGTH.pack(len(record_set))
        self._bodies.append(bytes(body.out + record_set))

    def _finish(self) -> None:
        size_bytes = sum(len(body or b"") for body in self._bodies)
        delay_ms = self._call.context.usage.read_delay_ms(size_bytes)
        body = self._call.writer().i32(delay_ms).i16(errors.NONE).i32(0)
        bodies = iter(self._bodies)
        body.u32(len(self._wish.topics))
        for name, parts in self._wish.topics:
            body.text(name).u32(len(parts))
            for _ in parts:
                body.attach(next(bodies))
        head = frames.answer_head(self._call.head.correlation_id, body.size)
        if self._answer is None:
            self._call.session.send(head, *body.pieces)
        else:
            self._answer.place.fill(head, *body.pieces)
        if self._release is not None:
            self._release()


def serve(call: Call) -> None:
    wish = messages.read_fetch(call.reader)
    by_topic = {name: {part.partition for part in parts} for name, parts in wish.topics}
    call.know(lambda known: lookups.marks(known, by_topic))
    Reading(call, wish).start()


def serve_offsets(call: Call) -> None:
    reader = call.reader
    topics = reader.many(lambda: (reader.text(), reader.many(reader.u32)))
    consumer_id = None
    if call.version == _CONSUMER_ID_VERSION:
        consumer_id = reader.option(reader.text)
    reader.finish()
    by_topic = {name: set(indexes) for name, indexes in topics}
    call.know(lambda known: lookups.marks(known, by_topic))
    if consumer_id is not None:
        _know_offsets(call, consumer_id, topics)
    call.slice(_finding_offsets(call, topics, consumer_id))


def _finding_offsets(
    call: Call, topics: list[tuple[str, list[int]]], consumer_id: str | None
) -> Iterator[None]:
    shown: dict[Partition, int] = {}
    for name, indexes in topics:
        for index in indexes:
            at = Partition(name, index)
            if at not in shown:
                shown[at] = _shown(call, at)
                yield
    ends = call.context.broker.log.ends([at for at in shown if shown[at] == errors.NONE])
    starts = _consumer_starts(call, consumer_id, list(shown))
    yield
    both = all_of([ends, starts])
    answer = None if both.ready else call.place()

    def writing() -> Iterator[None]:
        body = call.writer()
        body.u32(len(topics))
        for name, indexes in topics:
            body.text(name).u32(len(indexes))
            for index in indexes:
                at = Partition(name, index)
                _write_marks(body, call, at, shown[at], ends.value.get(at), starts)
                yield
        if answer is None:
            call.answer(body)
        else:
            answer.fill(body)

    if answer is None:
        yield from writing()
    else:

        def settled(_: Later[None]) -> None:
            call.context.slices.run(writing(), raise_error)

        both.then(settled)


def _know_offsets(call: Call, consumer_id: str, topics: list[tuple[str, list[int]]]) -> None:
    at = [Partition(name, index) for name, indexes in topics for index in indexes]
    call.know(lambda known: [known.offsets(consumer_id, at)])


def _consumer_starts(
    call: Call, consumer_id: str | None, at: Sequence[Partition]
) -> Later[Mapping[Partition, Committed]]:
    """Where a consumer that this client may see continues, ready once that is durable."""
    if consumer_id is None or not call.context.access.sees(Kind.GROUP, consumer_id):
        return Later.now({})
    offsets = call.context.broker.groups.offsets
    found = offsets.committed(consumer_id, at)
    later: Later[Mapping[Partition, Committed]] = Later()

    def settled(done: Later[None]) -> None:
        try:
            done.check()
        except BrokerError as refusal:
            later.refuse(refusal)
        else:
            later.fill(found)

    offsets.settled(consumer_id).then(settled)
    return later


def _shown(call: Call, at: Partition) -> int:
    """The code of what stands against showing this client where a partition ends."""
    broker = call.context.broker
    try:
        rights.check(call, rights.SPU, at.topic)
        broker.topics.get(at.topic)
        broker.log.marks(at)
    except Unauthorized:
        return errors.PERMISSION_DENIED
    except BrokerError:
        return errors.PARTITION_NOT_LEADER
    return errors.NONE


def _write_marks(
    body: Writer,
    call: Call,
    at: Partition,
    error: int,
    end: Offset | None,
    starts: Later[Mapping[Partition, Committed]],
) -> None:
    start = 0
    if error == errors.NONE:
        try:
            kept = starts.value.get(at)
            start = call.context.broker.log.marks(at).start if kept is None else kept.offset
        except StorageFailed as refusal:
            error = errors.error_of(refusal).code
        except BrokerError:
            error = errors.PARTITION_NOT_LEADER  # deleted since
    if error == errors.NONE and end is None:
        error = errors.PARTITION_NOT_LEADER
    if error != errors.NONE or end is None:
        body.i16(error).u32(at.index).i64(0).i64(0)
        return
    body.i16(errors.NONE).u32(at.index).i64(start).i64(end)
