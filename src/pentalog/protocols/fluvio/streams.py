"""StreamFetch: records pushed one frame at a time, the next when the client has taken the last.

A client reads all its streams and answers through one socket with small queues behind it, so more
than one frame ahead of its acknowledgements can stall it for good.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from pentalog.broker.port import Opened, Topic, Waiting
from pentalog.broker.security import Kind, Operation
from pentalog.broker.transformation import Chain, Transformed
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from pentalog.model.later import Later
from pentalog.model.types import Horizon, Marks, Offset, Partition
from pentalog.protocols.fluvio import errors, frames, records, transforms
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.messages import StreamFetch
from pentalog.protocols.fluvio.session import WORK_BYTES, Call, FluvioSession

STREAMS_MAX: Final = 1_000
"""Per connection."""
FRAME_BYTES_MAX: Final = 16 << 20
OPEN_BYTES_MAX: Final = 2 << 20
"""Read of one partition at a time: to translate it takes a few milliseconds."""
_WAIT_MS: Final = 3_600_000
_LENGTH: Final = struct.Struct(">i")
_NO_MARKS: Final = Marks(0, 0, 0, 0)


class Stream:
    """One stream of one connection."""

    def __init__(self, call: Call, stream_id: int, wish: StreamFetch, topic: Topic) -> None:
        self.stream_id = stream_id
        self.at = Partition(wish.topic, wish.partition)
        self.consumer_id = wish.consumer_id
        self.ended = False
        self._deleted = False
        self._session: FluvioSession = call.session
        self._correlation_id = call.head.correlation_id
        self._version = call.version
        self._topic_id = topic.topic_id
        self._offset = wish.offset
        self._bytes_max = max(1, min(wish.bytes_max, OPEN_BYTES_MAX))
        self._horizon = records.horizon_of(call.context.broker, committed=wish.committed)
        self._sent_to: Offset | None = None
        """Up to where the client has been sent records it has not acknowledged; None: nothing."""
        self._waiting: Waiting | None = None
        self._links = wish.links
        self._chain: Chain | None = None
        self._busy = False
        self._stop_watching: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin, after the SmartModules have been started."""
        broker = self._session.context.broker
        if not broker.knowledge.current:
            # Others delete topics, and do not end those who wait for records of them.
            self._stop_watching = broker.topics.watch(self._topics_changed)
        if not self._links:
            self.pump()
            return
        self._busy = True
        modules = self._session.context.broker.smart_modules
        try:
            owner = self._session.context.access.owner
            chain = modules.chain(self._links, version=self._version, owner=owner)
        except BrokerError as refusal:
            self._fail(transforms.chain_error(refusal))
        else:
            chain.then(self._chained)

    def _chained(self, later: Later[Chain]) -> None:
        try:
            self._chain = later.value
            if self.ended:
                self._chain.close()
                return
            looked = transforms.looked_back(
                self._session.context, self.at, self._chain, self._links
            )
        except BrokerError as refusal:
            if not self.ended:
                self._fail(transforms.chain_error(refusal))
        else:
            # The programs may be large, and streams that have ended are remembered.
            self._links = []
            looked.then(self._looked)

    def _looked(self, later: Later[None]) -> None:
        try:
            _ = later.value
        except BrokerError as refusal:
            if not self.ended:
                self._fail(transforms.chain_error(refusal))
        else:
            self._go_on()

    def pump(self) -> None:
        """Send the next frame if it may leave and there is one; else see to it that it will."""
        while not (self.ended or self._busy or self._sent_to is not None):
            if self._session.replies.full:
                self._busy = True
                self._session.replies.when_room(self._go_on)
                return
            reserved = self._session.replies.reserve(self._bytes_max)
            if not reserved.ready:
                self._busy = True
                reserved.then(self._reserved)
                return
            self._read(reserved.value)

    def _reserved(self, reserved: Later[Callable[[], None]]) -> None:
        self._busy = False
        if self.ended:
            reserved.value()
        else:
            self._read(reserved.value)
            self.pump()

    def _read(self, release: Callable[[], None]) -> None:
        """Read for the next frame; `release` gives back the memory that is reserved for it."""
        try:
            self._session.context.access.check(Operation.READ, Kind.TOPIC, self.at.topic)
            self.check_topic()
            opened = self._session.context.broker.log.open(
                self.at, self._offset, bytes_max=self._bytes_max, horizon=self._horizon
            )
            if not opened.ready:
                self._busy = True
                opened.then(self._arrived)
                opened.then(lambda _: release())
                return
            self._take(opened.value)
        except BrokerError as refusal:
            self._refuse(refusal)
        release()

    def acknowledge(self, offset: Offset) -> WireError:
        """The client has taken what it was sent and wants to go on at `offset`."""
        if self._sent_to is None or not 0 <= offset <= self._sent_to:
            text = (
                f"offset {offset} of {self.at} acknowledged on stream {self.stream_id}, which was "
                f"sent records up to {self._sent_to}; the stream ends, open it again"
            )
            self._fail(errors.other(text))
            return errors.other(text)
        self._sent_to = None
        self._offset = offset
        return errors.FINE

    def close(self) -> None:
        self.ended = True
        self._links = []
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._chain is not None:
            self._chain.close()
        if self._stop_watching is not None:
            self._stop_watching()

    def _topics_changed(self) -> None:
        try:
            self.check_topic()
        except BrokerError as refusal:
            self._refuse(refusal)

    def check_topic(self) -> None:
        """Raise `TopicNotFound` if the topic that the stream was opened for has been deleted."""
        topic = self._session.context.broker.topics.get(self.at.topic)
        # A cluster gives a topic its id a little later: what was seen to be gone stays gone.
        if self._deleted or topic.topic_id != self._topic_id:
            raise TopicNotFound(f"topic {self.at.topic!r} was deleted and made again")

    def _go_on(self) -> None:
        self._busy = False
        self.pump()

    def _arrived(self, opened: Later[Opened]) -> None:
        self._busy = False
        if self.ended:
            return
        try:
            self._take(opened.value)
        except BrokerError as refusal:
            self._refuse(refusal)
        self.pump()

    def _take(self, opened: Opened) -> None:
        if opened.next_offset <= self._offset:
            self._wait(self._horizon)
            return
        broker = self._session.context.broker
        opened = records.decided(broker, self.at, opened, self._horizon)
        if opened.next_offset <= self._offset:
            # What comes next is part of a transaction that has not ended.
            self._wait(Horizon.STABLE)
            return
        if opened.batches:
            record_set, count = records.from_log(opened.batches, self._offset)
            if count and self._chain is not None:
                self._busy = True
                if not self._session.turns.take(self._go_on):
                    return
                run = self._chain.run(transforms.sections_of(record_set))
                run.then(partial(self._transformed, opened))
                return
            if count:
                self._sent_to = opened.next_offset
                self._session.context.metrics.sent_records += count
                self._send(opened.marks, record_set)
                return
        self._offset = opened.next_offset
        # In a later turn: much may have to be stepped over, and not by one stream alone.
        self._busy = True
        self._session.context.runtime.soon(partial(self._session.soon, self._go_on))

    def _transformed(self, opened: Opened, later: Later[Transformed]) -> None:
        try:
            done = later.value
        except BrokerError as refusal:
            self._busy = False
            if not self.ended:
                self._refuse(refusal)
            self._session.turns.give_back()
            return
        work = partial(transforms.record_set_of, done.sections)
        if transforms.size_of(done.sections) > transforms.STREAMED_BYTES_MAX:
            runtime = self._session.context.runtime
            runtime.offload(transforms.LANE, work, partial(self._built, opened, done))
        else:
            self._built(opened, done, work(), None)

    def _built(
        self,
        opened: Opened,
        done: Transformed,
        record_set: bytearray | None,
        error: BaseException | None,
    ) -> None:
        """The modules are done with it, and it lies in batches."""
        self._busy = False
        if error is not None or record_set is None:
            self._refuse(BatchCorrupt(f"what the SmartModules gave back: {error}"))
        elif not self.ended:
            self._send_transformed(opened, done, record_set)
        self._session.turns.give_back()

    def _send_transformed(self, opened: Opened, done: Transformed, record_set: bytearray) -> None:
        next_offset, error = opened.next_offset, errors.FINE
        if done.failure is not None:
            error = transforms.runtime_error(done.failure)
            # The stream goes on behind the record: one bad record shall not hide the others.
            next_offset = min(max(done.failure.offset, self._offset) + 1, next_offset)
        if done.sections or done.failure is not None:
            self._sent_to = next_offset
            self._session.context.metrics.sent_records += transforms.records_in(done.sections)
            self._send(opened.marks, record_set, error, next_offset=next_offset)
        else:
            self._offset = next_offset
            self.pump()

    def _wait(self, horizon: Horizon) -> None:
        self._busy = True
        runtime = self._session.context.runtime
        asked_s = runtime.monotonic()
        waiting = self._session.context.broker.log.wait(
            {self.at: self._offset}, bytes_min=1, horizon=horizon, timeout_ms=_WAIT_MS
        )

        def waited(later: Later[bool]) -> None:
            self._waiting = None
            self._busy = False
            early = runtime.monotonic() - asked_s < _WAIT_MS / 2000
            if not later.value and early:
                # Nobody is to wait any more: the broker stops.
                self.ended = True
            else:
                self._session.soon(self.pump)

        self._waiting = waiting
        waiting.then(waited)

    def _send(
        self,
        marks: Marks,
        record_set: bytes | bytearray,
        error: WireError = errors.FINE,
        *,
        next_offset: Offset = 0,
    ) -> None:
        body = frame_body(
            self._version,
            self.at,
            self.stream_id,
            error,
            marks,
            horizon=self._horizon,
            next_offset=next_offset,
        )
        body.out += _LENGTH.pack(len(record_set))
        self._session.work += len(record_set) // WORK_BYTES
        head = frames.answer_head(self._correlation_id, len(body.out) + len(record_set))
        self._session.send(head + body.out, *((record_set,) if record_set else ()))

    def _refuse(self, refusal: BrokerError) -> None:
        if isinstance(refusal, TopicNotFound | PartitionNotFound):
            self._deleted = True
            self._fail(WireError(errors.TOPIC_DELETED))
        elif isinstance(refusal, OffsetOutOfRange):
            self._fail(out_of_range(refusal, self._offset))
        else:
            self._fail(errors.error_of(refusal))

    def _fail(self, error: WireError) -> None:
        """Tell the client why the stream ends here."""
        self.close()
        try:
            marks = self._session.context.broker.log.marks(self.at)
        except BrokerError:
            marks = _NO_MARKS
        self._send(marks, b"", error)


def out_of_range(refusal: OffsetOutOfRange, offset: Offset) -> WireError:
    """Too early: it says where to go on.  Too late: there is nothing to go on with."""
    if offset < refusal.start:
        return errors.evicted(offset, refusal.start)
    return errors.other(str(refusal))


def frame_body(
    version: int,
    at: Partition,
    stream_id: int | None,
    error: WireError,
    marks: Marks,
    *,
    horizon: Horizon,
    next_offset: Offset = 0,
) -> Writer:
    """An answer up to its record set; without a stream, the part that Fetch has of it."""
    body = Writer(version)
    if stream_id is not None:
        body.text(at.topic).u32(stream_id)
    body.u32(at.index)
    error.write(body)
    body.i64(marks.at(horizon))
    if version >= 11:
        body.i64(next_offset)
    return body.i64(marks.start).u8(0)
