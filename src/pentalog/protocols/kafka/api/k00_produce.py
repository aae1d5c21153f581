"""Produce: batches in, offsets out.

3: transactional id.  5: log start offset.  7: zstd.  8: error messages.  9: flexible.
10: leader and endpoints in tagged fields.  11: abortable errors.  12: implicit transactions.
13: topics by id.

Neighbouring requests for one partition come as one run and are appended by one call; requests
for several partitions are walked where they lie.  Batches are copied only if they must be opened
elsewhere than on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.broker.security import Kind, Operation
from pentalog.kernels import Facts
from pentalog.model.buffers import join_buffers
from pentalog.model.errors import (
    InvalidRecord,
    TransactionBusy,
    TransactionState,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.kafka import records
from pentalog.protocols.kafka.authorization import demand, find
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, KeptLine, Steps, hold_line
from pentalog.protocols.kafka.produce_answers import BY_ID, frame, framing
from pentalog.protocols.kafka.produce_requests import (
    PARTS_AT_ONCE,
    Many,
    Part,
    Produce,
    decode,
    walk,
)
from pentalog.protocols.kafka.produce_runs import ACKS, invalid_acks

if TYPE_CHECKING:
    from pentalog.broker.port import Admitted
    from pentalog.model.settings import LogSettings

_APPENDED_AT_ONCE: Final = 16
_ENLISTS: Final = 12
_ABORTABLE: Final = 11


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
        encoding = framing(call.version, call.correlation_id, call.body.topics, self._results)
        call.send((yield from encoding))

    def _settled(self, _: Later[Appended]) -> None:
        self._open -= 1
        if not self._open:
            self._place.fill(self._frame())

    def _frame(self) -> bytearray:
        call = self._call
        return frame(call.version, call.correlation_id, call.body.topics, self._results)


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
    ack = ACKS.get(acks)
    if ack is None:
        raise invalid_acks(acks)
    by_id = call.version >= BY_ID
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
