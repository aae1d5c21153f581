"""Records in and out: requests joined to batches, batches turned into replies.

Both directions are one kernel call for many records.  A write is answered when the disk has it.  A
Fetch sees what was acknowledged before it, and what was produced before it on its own connection:
if it finds nothing else, it waits for their commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pentalog import kernels
from pentalog.broker.port import ADMISSION_BYTES_MIN, Admitted, Opened
from pentalog.kernels import Facts, RustlogRun
from pentalog.model.batch import DOOR_SHIFT, DOORS
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    OffsetOutOfRange,
    PartitionNotFound,
    RecordTooLarge,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Offset, Partition
from pentalog.protocols.rustlog import rights
from pentalog.protocols.rustlog.door import RUN_BYTES_MAX, Route
from pentalog.protocols.rustlog.frames import FRAME_BYTES_MAX, LENGTH, decode_produce
from pentalog.protocols.rustlog.line import Line
from pentalog.protocols.rustlog.messages import Fetch, Produce
from pentalog.protocols.rustlog.replies import JSON, PACKED, Dialect
from pentalog.session import Place

_ATTRIBUTES: Final = DOORS.index("rustlog") << DOOR_SHIFT
_COUNT_BYTES: Final = 4
LARGE_BYTES: Final = 2 << 20
"""A request that takes long to read, and as long to append."""
RECORDS_MAX: Final = 300_000
"""Records of one binary Produce: to copy each takes a few nanoseconds."""
_JSON_PAYLOAD_BYTES_MAX: Final = 7 << 20
"""Read at most this much for a reply in base64: more would not fit its frame."""
_HIDDEN_STEPS_MAX: Final = 128
"""Reads that may find nothing but hidden records before the client is told to go on there.

Each is in a turn of its own, and looks at some thousand batches at most.
"""


class Writing:
    """The appends of one connection."""

    __slots__ = (
        "_frame_bytes_max",
        "_gathered",
        "_gathered_bytes",
        "_line",
        "_route",
        "_suspects",
        "_waiting",
    )

    def __init__(self, line: Line, frame_bytes_max: int) -> None:
        self._line = line
        self._frame_bytes_max = frame_bytes_max
        self._gathered: list[Produce] = []
        self._gathered_bytes = 0
        self._route: Route | None = None
        self._suspects = 0
        """Binary requests of a run that was refused; they are appended one by one."""
        self._waiting = False
        """Batches are being opened elsewhere; nothing may be appended before them."""

    def packed_run(self, data: memoryview, start: int, end: int) -> int:
        """Append the binary Produce requests at `start` that go the same way.

        Returns the position behind them; `start` if the first must be looked at by hand.
        """
        suspects, self._suspects = self._suspects, max(0, self._suspects - 1)
        line = self._line
        route = line.door.routes.peek(data, start, end)
        if route is None:
            return start
        if not rights.may_write(line.context.access, route.at.topic):
            return start
        behind = self._refuse_many(data, start, end, route)
        if behind:
            return behind
        run = kernels.rustlog_run(
            data,
            start,
            end,
            frame_bytes_max=self._frame_bytes_max,
            run_bytes_max=0 if suspects else route.run_bytes_max,
            batch_bytes_max=route.batch_bytes_max,
            attributes=_ATTRIBUTES,
            timestamp_ms=line.context.runtime.now_ms(),
        )
        if run is None:
            return start
        requests = len(run.counts) // _COUNT_BYTES
        if requests == 1 and len(run.batches) > LARGE_BYTES:
            self._append_later(route, run)
            return run.end
        try:
            self._write(PACKED, route.at, run.batches, run.facts, run.counts)
        except BrokerError as refusal:
            if requests > 1:
                # A run is appended whole or not at all: find out which requests are at fault.
                # The caller may stop after each of them.
                self._suspects = requests
                return self.packed_run(data, start, end)
            request, _ = decode_produce(data[start + LENGTH.size : run.end])
            line.context.metrics.requests += 1
            line.refuse(PACKED, request, refusal, None)
            return run.end
        line.context.metrics.requests += requests
        return run.end

    def _append_later(self, route: Route, run: RustlogRun) -> None:
        """Append a large request in a turn of its own; nothing is served before that."""
        line = self._line
        release = line.replies.hold()

        def append() -> None:
            release()
            line.context.metrics.requests += 1
            try:
                self._write(PACKED, route.at, run.batches, run.facts, run.counts)
            except BrokerError as refusal:
                line.refuse(PACKED, Produce(route.at.topic, route.at.index, []), refusal, None)

        line.context.runtime.soon(append)

    def _write(
        self, dialect: Dialect, at: Partition, batches: bytearray, facts: Facts, counts: bytes
    ) -> None:
        """Append batches, once they have been opened if the topic demands that.

        Raises what they are refused for at once.
        """
        log, view = self._line.context.broker.log, memoryview(batches)
        admission = None
        if len(view) > ADMISSION_BYTES_MIN:
            admission = log.admission(at, view, facts, owned=True)
        if admission is None:
            self._settle(dialect, log.append(at, view, facts), counts, facts)
        elif admission.ready:
            self._write_admitted(dialect, at, admission.value, counts)
        else:
            self._waiting = True
            place, release = self._line.replies.place(), self._line.replies.hold()

            def admitted(opened: Later[Admitted]) -> None:
                self._waiting = False
                release()
                try:
                    self._write_admitted(dialect, at, opened.value, counts, place)
                except BrokerError as refusal:
                    self._line.fill(place, self._refusals(dialect, at, refusal, counts))
                self.flush()

            admission.then(admitted)

    def _write_admitted(
        self,
        dialect: Dialect,
        at: Partition,
        admitted: Admitted,
        counts: bytes,
        place: Place | None = None,
    ) -> None:
        batches, facts, settings = admitted
        appended = self._line.context.broker.log.append(at, batches, facts, opened=settings)
        self._settle(dialect, appended, counts, facts, place)

    def _refusals(
        self, dialect: Dialect, at: Partition, refusal: BrokerError, counts: bytes
    ) -> bytes:
        """The same answer to every request of a run."""
        requests = len(counts) // _COUNT_BYTES
        self._line.context.metrics.request_errors += requests
        asked = Produce(at.topic, at.index, [])
        return dialect.refusal(asked, refusal, self._line) * requests

    def _refuse_many(self, data: memoryview, start: int, end: int, route: Route) -> int:
        """Refuse a request of too many records; returns where it ends, or 0 if it is not one."""
        size: int = LENGTH.unpack_from(data, start)[0]
        behind = start + LENGTH.size + size
        at = start + LENGTH.size + 1
        at += 2 + int.from_bytes(data[at : at + 2], "big") + LENGTH.size
        if size <= RUN_BYTES_MAX or at + LENGTH.size > min(behind, end):
            return 0
        (count,) = LENGTH.unpack_from(data, at)
        if count <= RECORDS_MAX or count > size // LENGTH.size:
            return 0  # the second is no request, and refused for that
        line = self._line
        line.context.metrics.requests += 1
        refusal = RecordTooLarge(
            f"{count} records in one request; at most {RECORDS_MAX} are accepted: send several"
        )
        line.refuse(PACKED, Produce(route.at.topic, route.at.index, []), refusal, None)
        return behind

    @property
    def large(self) -> bool:
        """Is so much gathered that it is better appended in a turn of its own?"""
        return self._gathered_bytes > LARGE_BYTES

    def gather(self, request: Produce, size: int) -> bool:
        """Keep a Produce in JSON for a moment: the next may go the same way.

        False if it must wait for earlier ones.  Raises what stands against its topic or partition.
        """
        rights.check(self._line.context.access, request)
        route = self._line.door.routes.find(request.topic, request.partition)
        if self._gathered and (
            route is not self._route or self._gathered_bytes + size > route.run_bytes_max
        ):
            self.flush()
        if not request.records:
            self.flush()
        if self._waiting:
            return False
        if not request.records:
            answer_empty(self._line, JSON, request, route.at)
            return True
        self._route = route
        self._gathered.append(request)
        self._gathered_bytes += size
        return True

    def flush(self) -> bool:
        """Append what was gathered; False if nothing may be served until it is."""
        if self._waiting or not self._gathered:
            return not self._waiting
        requests, self._gathered, self._gathered_bytes = self._gathered, [], 0
        route, self._route = self._route, None
        assert route is not None, "what was gathered goes somewhere"
        if not self._append(route, requests) and len(requests) > 1:
            for number, request in enumerate(requests, 1):
                self._append(route, [request])
                if self._waiting:
                    self._gathered, self._route = requests[number:], route
                    break
        return not self._waiting

    def _append(self, route: Route, requests: list[Produce]) -> bool:
        """False if several requests were refused together: they must be tried one by one."""
        line = self._line
        counts, batches, facts = kernels.rustlog_batches(
            [request.records for request in requests],
            batch_bytes_max=route.batch_bytes_max,
            attributes=_ATTRIBUTES,
            timestamp_ms=line.context.runtime.now_ms(),
        )
        try:
            self._write(JSON, route.at, batches, facts, counts)
        except BrokerError as refusal:
            if len(requests) == 1:
                line.refuse(JSON, requests[0], refusal, None)
            return False
        return True

    def _settle(
        self,
        dialect: Dialect,
        appended: Appended,
        counts: bytes,
        facts: Facts,
        place: Place | None = None,
    ) -> None:
        line, at = self._line, appended.at
        started_s = line.context.runtime.monotonic()
        later = line.context.broker.log.settle(appended, Ack.DURABLE)
        if not later.ready:
            if place is None:
                place = line.replies.place()
            line.unsettled[at] = later

        def settled(filled: Later[Appended]) -> None:
            if line.unsettled.get(at) is filled:
                del line.unsettled[at]
            try:
                base_offset = filled.value.base_offset
            except BrokerError as refusal:
                frames = self._refusals(dialect, at, refusal, counts)
            else:
                line.door.produced += facts.records
                line.door.produce_latencies.note(line.context.runtime.monotonic() - started_s)
                frames = dialect.produced(counts, base_offset)
            if place is None:
                line.send(frames)
            else:
                line.fill(place, frames)

        later.then(settled)


def answer_empty(line: Line, dialect: Dialect, request: Produce, at: Partition) -> None:
    """Answer a Produce without records: with the end of the partition."""

    def produced(ends: Mapping[Partition, Offset]) -> bytes:
        if at not in ends:
            raise PartitionNotFound(f"{at} was deleted")
        return dialect.produced(bytes(_COUNT_BYTES), ends[at])

    line.answer_with_ends(dialect, request, (at,), produced)


class Fetching:
    """One Fetch on its way."""

    __slots__ = (
        "_at",
        "_dialect",
        "_end_offset",
        "_line",
        "_offset",
        "_place",
        "_release",
        "_request",
        "_settled",
        "_started_s",
        "_steps",
    )

    def __init__(
        self, line: Line, dialect: Dialect, request: Fetch, at: Partition, offset: Offset
    ) -> None:
        self._line = line
        self._dialect = dialect
        self._request = request
        self._at = at
        self._offset = offset
        # What comes after this request is not in its answer, however long that takes.
        self._end_offset = line.context.broker.log.marks(at).end
        self._place: Place | None = None
        self._settled = False
        self._started_s = line.context.runtime.monotonic()
        self._steps = 0
        self._release: Callable[[], None] | None = None

    def start(self, settled: Later[None] | None) -> None:
        """Read once the committed offset it starts at, if it does, is durable."""
        if settled is None:
            self._begin()
            return
        if not settled.ready:
            self._place = self._line.replies.place()
        settled.then(self._offset_settled)

    def _offset_settled(self, settled: Later[None]) -> None:
        try:
            settled.check()
        except BrokerError as refusal:
            self._refuse(refusal)
        else:
            self._begin()

    def _begin(self) -> None:
        pending = self._line.unsettled.get(self._at)
        if pending is None:
            self._read()
            return
        if self._place is None:
            self._place = self._line.replies.place()
        pending.then(lambda _: self._read())

    def _read(self) -> None:
        try:
            self._look()
        except BrokerError as refusal:
            self._refuse(refusal)

    def _look(self) -> None:
        """Look once: the answer is then given, or on its way."""
        line, offset, bytes_max = self._line, self._offset, self._request.max_bytes
        if line.closed:
            return
        log = line.context.broker.log
        marks = log.marks(self._at)
        if offset < marks.start and bytes_max > 0:
            if self._dialect.json:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self._at}; it starts at {marks.start}",
                    start=marks.start,
                    end=marks.end,
                )
            # The original knows no error for this, and repeats what it was asked for.
            self._answer(self._dialect.nothing(offset))
            return
        if bytes_max > 0 and marks.stable <= offset < self._end_offset and not self._settled:
            self._settle()
            return
        if offset >= min(marks.stable, self._end_offset) or bytes_max == 0:
            self._answer(self._dialect.nothing(offset))
            return
        limit = _JSON_PAYLOAD_BYTES_MAX if self._dialect.json else FRAME_BYTES_MAX
        bytes_max = min(bytes_max, limit)
        if self._release is None:
            reserved = line.replies.reserve(bytes_max)
            if not reserved.ready:
                if self._place is None:
                    self._place = line.replies.place()
                reserved.then(self._reserved)
                return
            self._release = reserved.value
        later = log.open(self._at, offset, bytes_max=bytes_max, horizon=Horizon.STABLE)
        if later.ready and len(later.value.batches) <= LARGE_BYTES:
            self._take(later)
            return
        if self._place is None:
            self._place = line.replies.place()
        if later.ready:
            self._take_later(later)
        else:
            later.then(self._arrived)

    def _reserved(self, reserved: Later[Callable[[], None]]) -> None:
        self._release = reserved.value
        self._read()

    def _take_later(self, later: Later[Opened]) -> None:
        """Make a large answer in another turn than the one that read its records.

        Nothing else of the connection is served before that.
        """
        release = self._line.replies.hold()

        def make() -> None:
            release()
            if not self._line.closed:
                self._arrived(later)

        self._run_later(make)

    def _read_later(self) -> None:
        """Read on in another turn: what was stepped over took some milliseconds."""
        if self._place is None:
            self._place = self._line.replies.place()
        self._run_later(self._read)

    def _run_later(self, work: Callable[[], None]) -> None:
        """Run `work` in a later turn, which long requests of other addresses alternate with."""
        context = self._line.context

        def step() -> Iterator[None]:
            work()
            yield

        def ended(error: Exception | None) -> None:
            if error is not None:
                self._line.replies.hang_up()
                raise error

        def run() -> None:
            context.slices.run(step(), ended, unconditional=True)

        context.runtime.soon(run)

    def _settle(self) -> None:
        """Look again when everything written before this request is durable."""
        self._settled = True
        ends = self._line.context.broker.log.ends((self._at,))
        if not ends.ready and self._place is None:
            self._place = self._line.replies.place()
        ends.then(lambda _: self._read())

    def _arrived(self, later: Later[Opened]) -> None:
        try:
            self._take(later)
        except OffsetOutOfRange:
            # Records were deleted while the disk was read: answer as if they had been before.
            self._read()
        except BrokerError as refusal:
            self._refuse(refusal)

    def _take(self, later: Later[Opened]) -> None:
        batches, _, next_offset = later.value
        next_offset = max(min(next_offset, self._end_offset), self._offset)
        try:
            found = kernels.rustlog_fetched(
                batches,
                self._offset,
                end_offset=self._end_offset,
                empty_offset=next_offset,
                bytes_max=min(self._request.max_bytes, FRAME_BYTES_MAX),
                frame_bytes_max=FRAME_BYTES_MAX,
                json=self._dialect.json,
            )
        except kernels.Malformed as flaw:
            raise BatchCorrupt(
                f"records of {self._at} from offset {self._offset} cannot be read: {flaw}; "
                f"go on at {next_offset}"
            ) from flaw
        if found.too_large >= 0:
            raise RecordTooLarge(
                f"the record at offset {found.too_large} of {self._at} does not fit a frame of "
                f"{FRAME_BYTES_MAX} bytes; go on at {found.too_large + 1}"
            )
        self._steps += 1
        if not found.records and next_offset > self._offset and self._steps < _HIDDEN_STEPS_MAX:
            # Nothing but what readers are not shown: the client would take it for the end.
            self._offset = next_offset
            self._read_later()
            return
        self._line.door.fetched += found.records
        self._line.context.metrics.sent_records += found.records
        self._answer(found.frame)

    def _answer(self, frame: bytes) -> None:
        line = self._line
        line.door.fetch_latencies.note(line.context.runtime.monotonic() - self._started_s)
        if self._place is None:
            line.send(frame)
        else:
            line.fill(self._place, frame)
        if self._release is not None:
            self._release()

    def _refuse(self, refusal: BrokerError) -> None:
        self._line.refuse(self._dialect, self._request, refusal, self._place)
        if self._release is not None:
            self._release()
