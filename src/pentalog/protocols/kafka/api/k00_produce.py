"""Produce: batches in, offsets out.

3: transactional id.  5: log start offset.  7: zstd.  8: error messages.  9: flexible.
10: leader and endpoints in tagged fields.  11: abortable errors.  12: implicit transactions.
13: topics by id.

Neighbouring requests for one partition come as one run and are appended by one call; requests
for several partitions are walked where they lie.  Batches are copied only if they must be opened
elsewhere than on the loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog import kernels
from pentalog.broker.port import ADMISSION_BYTES_MIN
from pentalog.broker.security import Kind, Operation
from pentalog.kernels import Facts, ProduceRun
from pentalog.model.buffers import join_buffers
from pentalog.model.errors import (
    BrokerError,
    InvalidRecord,
    RecordsRefused,
    TransactionBusy,
    TransactionState,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.kafka import records
from pentalog.protocols.kafka.authorization import demand, find
from pentalog.protocols.kafka.codec import uvarint
from pentalog.protocols.kafka.entities import exhaust
from pentalog.protocols.kafka.errors import REFUSALS, Denied, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call, KeptLine, Line, Steps, hold_line
from pentalog.protocols.kafka.produce_requests import (
    PARTS_AT_ONCE,
    Many,
    Part,
    Produce,
    decode,
    walk,
)

if TYPE_CHECKING:
    from pentalog.broker.port import Admitted, Log
    from pentalog.broker.security import Access
    from pentalog.model.settings import LogSettings
    from pentalog.protocols.kafka.door import Door

_APPENDED_AT_ONCE: Final = 16
_FLEXIBLE: Final = 9
_BY_ID: Final = 13
_ENLISTS: Final = 12
_ABORTABLE: Final = 11
_ACKS: Final = {-1: Ack.DURABLE, 0: Ack.NONE, 1: Ack.WRITTEN}
_UNCOMPRESSED: Final = 1
_ENTRY_BYTES: Final = 8
"""Size of one request's entry in `ProduceRun.requests`."""
_PARTITION: Final = struct.Struct(">ihqqq")
_PARTITION_3: Final = struct.Struct(">ihqq")


def serve_run(
    run: ProduceRun, data: memoryview, log: Log, door: Door, line: Line, access: Access
) -> bool:
    """Append a run by one call; False if the connection must end (a refusal without acks)."""
    start, end, requests, facts = run.start, run.end, run.requests, run.facts
    if facts.attributes_any & records.OWN:
        facts = records.disowned(data, start, end, facts)
        run = run._replace(facts=facts)
    batches, opened = data[start:end], None
    try:
        at = _target(run, door, access)
        admission = None
        if facts.codecs != _UNCOMPRESSED or end - start > ADMISSION_BYTES_MIN:
            admission = log.admission(at, batches, facts)
        if admission is not None:
            if not admission.ready:
                _Serving([run], data, log, door, line, access).wait(admission)
                return True
            batches, facts, opened = admission.value
        appended = log.append(at, batches, facts, opened=opened)
        if appended.duplicate and len(requests) > _ENTRY_BYTES:
            # The first life of these batches need not have been one run.
            return _Serving(_singles(run, data), data, log, door, line, access).serve()
    except REFUSALS as refused:
        if len(requests) > _ENTRY_BYTES and not isinstance(refused, Denied):
            return _Serving(_singles(run, data), data, log, door, line, access).serve()
        if run.acks == 0:
            return False
        line.send(_run_refused(run, refused))
        return True
    if run.acks:
        _settle(run, log, appended, line)
    return True


def _target(run: ProduceRun, door: Door, access: Access) -> Partition:
    """Where a run goes; raises what stands against it."""
    if run.acks not in _ACKS:
        raise _invalid_acks(run.acks)
    refusal = records.rules(run.facts, len(run.requests) // _ENTRY_BYTES, run.version)
    if refusal is not None:
        raise refusal
    by_id = run.version >= _BY_ID
    at = find(access, door, run.topic, run.partition, Operation.WRITE, by_id=by_id)
    if run.acks < 0:
        door.routes.check_copies(at)
    return at


def _settle(run: ProduceRun, log: Log, appended: Appended, line: Line) -> None:
    later = log.settle(appended, _ACKS[run.acks])
    if later.ready:
        line.send(_run_settled(run, later))
    else:
        place = line.place()
        later.then(lambda settled: place.fill(_run_settled(run, settled)))


def _singles(run: ProduceRun, data: memoryview) -> list[ProduceRun]:
    """A run is taken whole or not at all: its requests, to find out which are at fault."""
    return [
        run._replace(
            start=start,
            end=end,
            requests=entry,
            facts=kernels.check_batches(data, start, end),
        )
        for entry, start, end in records.single_requests(data, run.start, run.requests)
    ]


class _Serving:
    """Runs that are served one after another, some of them after a wait.

    While one waits for its batches to be opened elsewhere, the connection's later requests wait
    too: a producer counts on the order of its batches.
    """

    __slots__ = ("_access", "_data", "_door", "_let_go", "_line", "_log", "_runs")

    def __init__(
        self,
        runs: list[ProduceRun],
        data: memoryview,
        log: Log,
        door: Door,
        line: Line,
        access: Access,
    ) -> None:
        self._runs = runs
        self._data = data
        self._log = log
        self._door = door
        self._line = line
        self._access = access
        self._let_go: Callable[[], None] | None = None

    def serve(self) -> bool:
        """Serve all that is left; False if the connection must end."""
        while self._runs:
            run = self._runs[0]
            batches, facts, opened = self._data[run.start : run.end], run.facts, None
            try:
                at = _target(run, self._door, self._access)
                admission = self._log.admission(at, batches, facts)
                if admission is not None:
                    if not admission.ready:
                        self.wait(admission)
                        return True
                    batches, facts, opened = admission.value
                appended = self._log.append(at, batches, facts, opened=opened)
            except REFUSALS as refused:
                if not self._refused(run, refused, self._line):
                    return False
            else:
                if run.acks:
                    _settle(run, self._log, appended, self._line)
            del self._runs[0]
        if self._let_go is not None:
            self._let_go()
        return True

    def wait(self, admission: Later[Admitted]) -> None:
        """Go on when the batches of the first run are opened; the receive buffer is not kept."""
        if self._let_go is None:
            self._let_go = hold_line(self._line, answers=self._runs[0].acks != 0)
            first, last = self._runs[0], self._runs[-1]
            self._data = memoryview(join_buffers(self._data[first.start : last.end]))
            base = first.start
            self._runs = [
                run._replace(start=run.start - base, end=run.end - base) for run in self._runs
            ]
        acks = self._runs[0].acks
        line = self._line if acks == 0 else KeptLine(self._line.place(), self._line)
        admission.then(lambda admitted: self._go_on(admitted, line))

    def _go_on(self, admitted: Later[Admitted], line: Line) -> None:
        run = self._runs[0]
        alive = True
        try:
            # Again: its topic may have been deleted meanwhile, and created under another id.
            at = _target(run, self._door, self._access)
            batches, facts, opened = admitted.value
            appended = self._log.append(at, batches, facts, opened=opened)
        except REFUSALS as refused:
            if len(run.requests) > _ENTRY_BYTES:
                self._runs[:1] = _singles(run, self._data)
                line.send()
            else:
                alive = self._refused(run, refused, line)
                del self._runs[0]
        else:
            if appended.duplicate and len(run.requests) > _ENTRY_BYTES:
                self._runs[:1] = _singles(run, self._data)
                line.send()
            else:
                if run.acks:
                    _settle(run, self._log, appended, line)
                del self._runs[0]
        if not alive or not self.serve():
            line.hang_up()
            if self._let_go is not None:
                self._let_go()

    def _refused(self, run: ProduceRun, refused: Exception, line: Line) -> bool:
        if run.acks:
            line.send(_run_refused(run, refused))
        return run.acks != 0


def _run_settled(run: ProduceRun, settled: Later[Appended]) -> bytes | bytearray:
    try:
        appended = settled.value
    except BrokerError as refusal:
        return _run_refused(run, refusal)
    return kernels.produce_replies(
        run.version,
        run.topic,
        run.partition,
        run.requests,
        appended.base_offset,
        error=0,
        error_message=None,
        timestamp_ms=appended.timestamp_ms,
        start_offset=appended.start_offset,
    )


def _run_refused(run: ProduceRun, refusal: Exception) -> bytes | bytearray:
    if isinstance(refusal, RecordsRefused) and refusal.records:
        answers = bytearray()
        topics = [(run.topic, [Part(run.partition, None)])]
        for correlation_id, _ in records.requests_in(run.requests):
            answers += _frame(run.version, correlation_id, topics, [refusal])
        return answers
    return kernels.produce_replies(
        run.version,
        run.topic,
        run.partition,
        run.requests,
        -1,
        error=code_of(refusal),
        error_message=str(refusal),
        timestamp_ms=-1,
        start_offset=-1,
    )


def _invalid_acks(acks: int) -> Refused:
    return Refused(ErrorCode.invalid_required_acks, f"acks {acks}; accepted are -1, 0 and 1")


class _Answer:
    """The answer to a request for several partitions, complete when all have settled."""

    __slots__ = ("_call", "_open", "_place", "_results")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._results: list[Later[Appended] | Exception] = []
        self._open = 0
        self._place: Any = None

    @property
    def refused(self) -> bool:
        return any(isinstance(result, Exception) for result in self._results)

    def add(self, result: Later[Appended] | Exception) -> None:
        if isinstance(result, Exception):
            # Thousands of tracebacks would keep frames alive, and take long to be collected.
            result.__traceback__ = result.__cause__ = result.__context__ = None
        self._results.append(result)

    def send(self) -> None:
        pending = [
            result for result in self._results if isinstance(result, Later) and not result.ready
        ]
        if not pending:
            self._call.line.send(self._frame())
            return
        self._place = self._call.line.place()
        self._open = len(pending)
        for later in pending:
            later.then(self._settled)

    def steps(self) -> Steps[None]:
        """Send the answer to many partitions when all have settled."""
        for number, result in enumerate(self._results):
            if isinstance(result, Later) and not result.ready:
                yield result
            elif not number % PARTS_AT_ONCE:
                yield None
        call = self._call
        frame = _framing(call.version, call.correlation_id, call.body.topics, self._results)
        call.send((yield from frame))

    def _settled(self, _: Later[Appended]) -> None:
        self._open -= 1
        if not self._open:
            self._place.fill(self._frame())

    def _frame(self) -> bytearray:
        call = self._call
        return _frame(call.version, call.correlation_id, call.body.topics, self._results)


def _frame(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[Part]]],
    results: Sequence[Later[Appended] | Exception],
) -> bytearray:
    return exhaust(_framing(version, correlation_id, topics, results))


def _framing(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[Part]]],
    results: Sequence[Later[Appended] | Exception],
) -> Generator[None, None, bytearray]:
    flexible = version >= _FLEXIBLE
    out = bytearray(4) + correlation_id.to_bytes(4, "big", signed=True)
    if flexible:
        out += b"\0"
    left = iter(results)
    written = 0
    _count(out, len(topics), flexible)
    for name, parts in topics:
        if version >= _BY_ID:
            out += name
        else:
            out += uvarint(len(name) + 1) if flexible else len(name).to_bytes(2, "big")
            out += name
        _count(out, len(parts), flexible)
        for part in parts:
            _partition(out, version, part.number, next(left))
            written += 1
            if not written % PARTS_AT_ONCE:
                yield
        if flexible:
            out += b"\0"
    out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time, tagged fields
    struct.pack_into(">i", out, 0, len(out) - 4)
    return out


def _partition(
    out: bytearray, version: int, index: int, result: Later[Appended] | Exception
) -> None:
    error, offset, timestamp_ms, start_offset, text = 0, -1, -1, -1, None
    named: Sequence[tuple[int, str]] = ()
    try:
        if isinstance(result, Exception):
            raise result
        _, offset, _, timestamp_ms, start_offset, _ = result.value
    except REFUSALS as refusal:
        error, text = code_of(refusal), str(refusal)
        if isinstance(refusal, RecordsRefused):
            named = refusal.records
    if version >= 5:
        out += _PARTITION.pack(index, error, offset, timestamp_ms, start_offset)
    else:
        out += _PARTITION_3.pack(index, error, offset, timestamp_ms)
    if version < 8:
        return
    flexible = version >= _FLEXIBLE
    _count(out, len(named), flexible)
    for number, reason in named:
        out += number.to_bytes(4, "big")
        _text(out, reason, flexible)
        if flexible:
            out += b"\0"
    _text(out, text, flexible)
    if flexible:
        out += b"\0"


def _text(out: bytearray, text: str | None, flexible: bool) -> None:
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
    else:
        message = text.encode()
        out += uvarint(len(message) + 1) if flexible else len(message).to_bytes(2, "big")
        out += message


def _count(out: bytearray, length: int, flexible: bool) -> None:
    out += uvarint(length + 1) if flexible else length.to_bytes(4, "big")


def serve(call: Call) -> Steps[None] | None:
    """A request that was no run: several partitions, or something to be refused."""
    if isinstance(call.body, Many):
        return _serve_many(call, call.body)
    _Parts(call).serve()
    return None


def _serve_many(call: Call, many: Many) -> Steps[None]:
    # A producer counts on the order of its batches, also while one of them is opened elsewhere.
    let_go = call.line.hold()
    try:
        call.body = yield from walk(call.version, many.body)
        yield from _Parts(call).steps()
    finally:
        let_go()


class _Parts:
    """The partitions of a request, appended in order, some of them after a wait."""

    __slots__ = ("_acks", "_answer", "_call", "_left", "_let_go", "_transactional_id")

    def __init__(self, call: Call) -> None:
        acks, topics, transactional_id = call.body
        self._call = call
        self._acks = acks
        self._transactional_id = transactional_id
        self._left = [(name, part) for name, parts in reversed(topics) for part in reversed(parts)]
        # The answer may come when the receive buffer holds something else.
        bare = [(name, [Part(part.number, None) for part in parts]) for name, parts in topics]
        call.body = Produce(acks, bare)
        self._answer = _Answer(call)
        self._let_go: Callable[[], None] | None = None

    def serve(self) -> None:
        while self._left:
            name, part = self._left.pop()
            try:
                ready = _admission(self._call, self._acks, name, part)
                if isinstance(ready, Waiting):
                    self._wait(ready)
                    return
                self._answer.add(self._append(ready))
            except REFUSALS as refusal:
                self._answer.add(refusal)
        if self._acks != 0:
            self._answer.send()
        elif self._answer.refused:
            self._call.line.hang_up()
        if self._let_go is not None:
            self._let_go()

    def steps(self) -> Steps[None]:
        """Append many partitions, which no longer lie in the receive buffer."""
        while self._left:
            name, part = self._left.pop()
            try:
                ready = _admission(self._call, self._acks, name, part)
                if isinstance(ready, Waiting):
                    yield ready.admission
                    ready = ready.ready(ready.admission.value)
                self._answer.add(self._append(ready))
            except REFUSALS as refusal:
                self._answer.add(refusal)
            if not len(self._left) % _APPENDED_AT_ONCE:
                yield None
        if self._acks != 0:
            yield from self._answer.steps()
        elif self._answer.refused:
            self._call.line.hang_up()

    def _wait(self, waiting: Waiting) -> None:
        """Go on when a batch is opened; of those behind it the receive buffer is not kept."""
        if self._let_go is None:
            line = self._call.line
            self._let_go = hold_line(line, answers=self._acks != 0)
            if self._acks != 0:
                self._call.line = KeptLine(line.place(), line)
            self._left = [
                (name, part._replace(batches=_copied(part.batches))) for name, part in self._left
            ]
        waiting.admission.then(partial(self._opened, waiting))

    def _opened(self, waiting: Waiting, admitted: Later[Admitted]) -> None:
        try:
            self._answer.add(self._append(waiting.ready(admitted.value)))
        except REFUSALS as refusal:
            self._answer.add(refusal)
        self.serve()

    def _append(self, ready: Ready) -> Later[Appended]:
        call, facts = self._call, ready.facts
        if facts.attributes_any & records.TRANSACTIONAL:
            if self._transactional_id is None:
                raise Refused(
                    ErrorCode.transactional_id_authorization_failed,
                    "a transactional batch without a transactional id: name the id as well",
                )
            demand(call.access, Operation.WRITE, Kind.TRANSACTION, self._transactional_id)
            if facts.producer_id < 0:
                raise InvalidRecord(
                    "a transactional batch without a producer id: ask for one first"
                )
            who = Identity(facts.producer_id, facts.producer_epoch)
            _admit(call, self._transactional_id, who, ready.at)
        log = call.context.broker.log
        appended = log.append(ready.at, ready.batches, facts, opened=ready.opened)
        return Later.now(appended) if ready.ack is Ack.NONE else log.settle(appended, ready.ack)


class Ready(NamedTuple):
    """Batches that may be appended now."""

    at: Partition
    ack: Ack
    batches: memoryview
    facts: Facts
    opened: LogSettings | None = None


class Waiting(NamedTuple):
    """Batches that are being opened."""

    find: Callable[[], Partition]
    """Finds the partition again: its topic may be deleted meanwhile, and created by another id."""
    ack: Ack
    admission: Later[Admitted]

    def ready(self, admitted: Admitted) -> Ready:
        return Ready(self.find(), self.ack, *admitted)


def _copied(batches: memoryview | None) -> memoryview | None:
    return None if batches is None else memoryview(join_buffers(batches))


def _admission(call: Call, acks: int, name: bytes, part: Part) -> Ready | Waiting:
    ack = _ACKS.get(acks)
    if ack is None:
        raise _invalid_acks(acks)
    by_id = call.version >= _BY_ID
    again = partial(find, call.access, call.door, name, part.number, Operation.WRITE, by_id=by_id)
    at = again()
    if ack is Ack.DURABLE:
        call.door.routes.check_copies(at)
    batches = part.batches if part.batches is not None else memoryview(b"")
    facts = records.judge(batches, 0, len(batches), call.version)
    admission = call.context.broker.log.admission(at, batches, facts)
    if admission is None:
        return Ready(at, ack, batches, facts)
    if admission.ready:
        return Ready(at, ack, *admission.value)
    return Waiting(again, ack, admission)


def _admit(call: Call, name: str, who: Identity, at: Partition) -> None:
    """Let the batch into its producer's transaction, or refuse in the words of the version."""
    try:
        call.context.broker.transactions.admit(name, who, at, enlists=call.version >= _ENLISTS)
    except TransactionBusy as refusal:
        if call.version >= _ENLISTS:
            raise
        raise Refused(ErrorCode.not_enough_replicas, str(refusal)) from refusal
    except TransactionState as refusal:
        if call.version < _ABORTABLE:
            raise
        raise Refused(ErrorCode.transaction_abortable, str(refusal)) from refusal


API: Final = Api(0, "Produce", 3, 13, serve, advertised_min=0, decode=decode, finishes=True)
