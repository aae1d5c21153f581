"""Produce: batches in, offsets out.

3: transactional id.  5: log start offset.  7: zstd.  8: error messages.  9: flexible.
10: leader and endpoints in tagged fields.  11: abortable errors.  12: implicit transactions.
13: topics by id.

Neighbouring requests for one partition come as one run and are appended by one call; requests
for several partitions are walked where they lie.  Batches are never copied.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog import kernels
from pentalog.broker.security import Kind, Operation
from pentalog.kernels import ProduceRun
from pentalog.model.errors import (
    BrokerError,
    InvalidRecord,
    TransactionBusy,
    TransactionState,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.kafka import records
from pentalog.protocols.kafka.authorization import demand, find
from pentalog.protocols.kafka.codec import uvarint
from pentalog.protocols.kafka.entities import Budget
from pentalog.protocols.kafka.errors import REFUSALS, Denied, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.frames import Walk
from pentalog.protocols.kafka.messages import Api, Call, Line

if TYPE_CHECKING:
    from pentalog.broker.port import Log
    from pentalog.broker.security import Access
    from pentalog.protocols.kafka.door import Door

_FLEXIBLE: Final = 9
_BY_ID: Final = 13
_ENLISTS: Final = 12
_ABORTABLE: Final = 11
_ACKS: Final = {-1: Ack.DURABLE, 0: Ack.NONE, 1: Ack.WRITTEN}
_ENTRY_BYTES: Final = 8
"""Size of one request's entry in `ProduceRun.requests`."""
_PARTITION: Final = struct.Struct(">ihqqq")
_PARTITION_3: Final = struct.Struct(">ihqq")


def serve_run(
    run: ProduceRun, data: memoryview, log: Log, door: Door, line: Line, access: Access
) -> bool:
    """Append a run by one call; False if the connection must end (a refusal without acks)."""
    version, acks, topic, partition, start, end, requests, facts = run
    try:
        if acks not in _ACKS:
            raise _invalid_acks(acks)
        refusal = records.rules(facts, len(requests) // _ENTRY_BYTES, version)
        if refusal is not None:
            raise refusal
        by_id = version >= _BY_ID
        at = find(access, door, topic, partition, Operation.WRITE, by_id=by_id)
        if acks < 0:
            door.routes.check_copies(at)
        appended = log.append(at, data[start:end], facts)
        if appended.duplicate and len(requests) > _ENTRY_BYTES:
            # The first life of these batches need not have been one run.
            return _serve_singly(run, data, log, door, line, access)
    except REFUSALS as refused:
        if len(requests) > _ENTRY_BYTES and not isinstance(refused, Denied):
            return _serve_singly(run, data, log, door, line, access)
        if acks == 0:
            return False
        line.send(_run_refused(run, refused))
        return True
    if acks == 0:
        return True
    later = log.settle(appended, _ACKS[acks])
    if later.ready:
        line.send(_run_settled(run, later))
    else:
        place = line.place()
        later.then(lambda settled: place.fill(_run_settled(run, settled)))
    return True


def _serve_singly(
    run: ProduceRun, data: memoryview, log: Log, door: Door, line: Line, access: Access
) -> bool:
    """A run is taken whole or not at all: find out which of its requests are at fault."""
    for entry, start, end in records.single_requests(data, run.start, run.requests):
        facts = kernels.check_batches(data, start, end)
        single = run._replace(start=start, end=end, requests=entry, facts=facts)
        if not serve_run(single, data, log, door, line, access):
            return False
    return True


def _run_settled(run: ProduceRun, settled: Later[Appended]) -> bytes:
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


def _run_refused(run: ProduceRun, refusal: Exception) -> bytes:
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


class Part(NamedTuple):
    """One partition of a request: its number, and where its batches are."""

    number: int
    batches: memoryview | None


class Produce(NamedTuple):
    """A request that was walked, its batches still in the receive buffer."""

    acks: int
    topics: list[tuple[bytes, list[Part]]]
    transactional_id: str | None = None


def decode(version: int, body: memoryview) -> Produce:
    walk = Walk(body, 0, len(body))
    flexible = version >= _FLEXIBLE
    size = walk.size(flexible=flexible, wide=False)
    transactional_id = str(walk.take(size), "utf-8", "replace") if size >= 0 else None
    acks = walk.int16()
    walk.int32()  # the timeout bounds waiting for replicas, of which there are none
    topics: list[tuple[bytes, list[Part]]] = []
    budget = Budget()
    for _ in range(budget.counted(walk.size(flexible=flexible, wide=True))):
        if version >= _BY_ID:
            name = bytes(walk.take(16))
        else:
            name = bytes(walk.take(walk.size(flexible=flexible, wide=False)))
        parts: list[Part] = []
        for _ in range(budget.counted(walk.size(flexible=flexible, wide=True))):
            index = walk.int32()
            length = walk.size(flexible=flexible, wide=True)
            parts.append(Part(index, walk.take(length) if length >= 0 else None))
            if flexible:
                walk.tags()
        topics.append((name, parts))
        if flexible:
            walk.tags()
    if flexible:
        walk.tags()
    return Produce(acks, topics, transactional_id)


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

    def _settled(self, _: Later[Appended]) -> None:
        self._open -= 1
        if not self._open:
            self._place.fill(self._frame())

    def _frame(self) -> bytearray:
        call = self._call
        version = call.version
        flexible = version >= _FLEXIBLE
        out = bytearray(4) + call.correlation_id.to_bytes(4, "big", signed=True)
        if flexible:
            out += b"\0"
        results = iter(self._results)
        topics: list[tuple[bytes, list[Part]]] = call.body.topics
        _count(out, len(topics), flexible)
        for name, parts in topics:
            if version >= _BY_ID:
                out += name
            else:
                out += uvarint(len(name) + 1) if flexible else len(name).to_bytes(2, "big")
                out += name
            _count(out, len(parts), flexible)
            for part in parts:
                _partition(out, version, part.number, next(results))
            if flexible:
                out += b"\0"
        out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time, tagged fields
        struct.pack_into(">i", out, 0, len(out) - 4)
        return out


def _partition(
    out: bytearray, version: int, index: int, result: Later[Appended] | Exception
) -> None:
    error, offset, timestamp_ms, start_offset, text = 0, -1, -1, -1, None
    try:
        if isinstance(result, Exception):
            raise result
        _, offset, _, timestamp_ms, start_offset, _ = result.value
    except REFUSALS as refusal:
        error, text = code_of(refusal), str(refusal)
    if version >= 5:
        out += _PARTITION.pack(index, error, offset, timestamp_ms, start_offset)
    else:
        out += _PARTITION_3.pack(index, error, offset, timestamp_ms)
    if version < 8:
        return
    flexible = version >= _FLEXIBLE
    _count(out, 0, flexible)  # errors of single records
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
    else:
        message = text.encode()
        out += uvarint(len(message) + 1) if flexible else len(message).to_bytes(2, "big")
        out += message
    if flexible:
        out += b"\0"


def _count(out: bytearray, length: int, flexible: bool) -> None:
    out += uvarint(length + 1) if flexible else length.to_bytes(4, "big")


def serve(call: Call) -> None:
    """A request that was no run: several partitions, or something to be refused."""
    acks, topics, transactional_id = call.body
    answer = _Answer(call)
    for name, parts in topics:
        for part in parts:
            try:
                answer.add(_append(call, acks, name, part, transactional_id))
            except REFUSALS as refusal:
                answer.add(refusal)
    # The answer may come when the receive buffer holds something else.
    bare = [(name, [Part(part.number, None) for part in parts]) for name, parts in topics]
    call.body = Produce(acks, bare)
    if acks != 0:
        answer.send()
    elif answer.refused:
        call.line.hang_up()


def _append(
    call: Call, acks: int, name: bytes, part: Part, transactional_id: str | None
) -> Later[Appended]:
    ack = _ACKS.get(acks)
    if ack is None:
        raise _invalid_acks(acks)
    by_id = call.version >= _BY_ID
    at = find(call.access, call.door, name, part.number, Operation.WRITE, by_id=by_id)
    if ack is Ack.DURABLE:
        call.door.routes.check_copies(at)
    batches = part.batches if part.batches is not None else memoryview(b"")
    facts = records.judge(batches, 0, len(batches), call.version)
    if facts.attributes_any & records.TRANSACTIONAL:
        if transactional_id is None:
            raise Refused(
                ErrorCode.transactional_id_authorization_failed,
                "a transactional batch without a transactional id: name the id as well",
            )
        demand(call.access, Operation.WRITE, Kind.TRANSACTION, transactional_id)
        if facts.producer_id < 0:
            raise InvalidRecord("a transactional batch without a producer id: ask for one first")
        _admit(call, transactional_id, Identity(facts.producer_id, facts.producer_epoch), at)
    log = call.context.broker.log
    appended = log.append(at, batches, facts)
    return Later.now(appended) if ack is Ack.NONE else log.settle(appended, ack)


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


API: Final = Api(0, "Produce", 3, 13, serve, advertised_min=0, decode=decode)
