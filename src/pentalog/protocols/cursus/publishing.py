"""Records coming in: batches, and single ones given as text.

A batch is stored whole or not at all.  Idempotence is the broker's own: the name and the epoch of a
producer become an identity, its sequence numbers those of the record batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from pentalog.broker.port import ADMISSION_BYTES_MIN, Admitted
from pentalog.broker.security import ANONYMOUS, Kind, Operation
from pentalog.kernels import CursusFrame, Facts, cursus_batches
from pentalog.model.errors import BrokerError, OutOfSequence
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.cursus import records, rights
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import Route
from pentalog.protocols.cursus.errors import REFUSALS, Refused, quoted, shown
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX, framed
from pentalog.protocols.cursus.gaps import Gap, Producing, Violation
from pentalog.protocols.cursus.messages import encoded, key_of, truth
from pentalog.protocols.cursus.storing import LARGE_BYTES, Storing, run_steps

_SEQUENCES: Final = 1 << 31
"""Sequence numbers of record batches begin again after this many."""
_HEAD_BYTES_MAX: Final = 512
_NAME_BYTES_MAX: Final = 1_000
"""Of an idempotent producer: its name is remembered."""
_UNCHECKED: Final = Identity(-1, -1)
_INTERNAL: Final = "__"
"""How the names of topics begin that belong to brokers."""


class Sequencing(NamedTuple):
    """How a batch stands to what its producer sent before."""

    who: Identity = _UNCHECKED
    sequence: int = -1
    skip: int = 0
    """Messages at its beginning that are stored already."""
    last_offset: int = -1
    """All of them are: where the last one is."""
    entered: Later[None] | None = None
    repeated: bool = False
    """All of them are, and only those who keep them can say where."""


def serve_batch(call: Call, data: memoryview, read: CursusFrame) -> Storing | None:
    """Store a batch and answer with JSON, whatever becomes of it.

    Returns what the caller has to continue with if the batch is large.
    """
    call.refused = lambda text: records.refusal(None if read.flaw else read, text)
    try:
        if read.flaw:
            reason = quoted(records.FLAWS.get(read.flaw, "cannot be read"))
            raise Refused(f"batch_decode_failed reason={reason}")
        rights.check_batch(call, read.topic)
        ack = records.ack_of(read.acks)
        call.waivable = ack is Ack.NONE
        route = call.door.route(read.topic, read.partition)
        check_writable(call, route)
        if not read.records:
            raise Refused('broker_error reason="empty batch messages"')

        def stored(last_offset: int) -> None:
            call.send(framed(records.acknowledgement(read, last_offset)))

        who = Producing(route.at, read.producer, read.epoch)
        gaps = call.door.gaps
        # Until an earlier batch is stored, a repetition of it cannot be recognised.
        waits = gaps.is_under_way(who) and _is_checked(route, read)
        try:
            if not waits or not gaps.has_room(who, call, len(data)):
                return store(call, route, data, read, ack, stored)
        except Gap:
            if not gaps.has_room(who, call, len(data)):
                raise
        kept = bytes(data)
        again = partial(_store_kept, call, route, kept, read, ack, stored)
        gaps.keep(who, read.seq_first, len(kept), call, again)
    except REFUSALS as refusal:
        call.refuse(refusal)
    return None


def _store_kept(
    call: Call,
    route: Route,
    data: bytes | bytearray,
    read: CursusFrame,
    ack: Ack,
    stored: Callable[[int], None],
) -> None:
    """Store a batch that is not in the receive buffer, in parts if it is large."""
    storing = store(call, route, data, read, ack, stored)
    if storing is None:
        return
    context = call.session.context
    steps = run_steps(storing, memoryview(data))
    call.keep_place()
    release = call.session.hold()

    def made(error: Exception | None) -> None:
        release()
        if error is not None:
            raise error

    def make() -> None:
        context.slices.run(steps, made, unconditional=True)

    # In another turn than the one that copied the message.
    context.runtime.soon(make)


def store(
    call: Call,
    route: Route,
    data: bytes | bytearray | memoryview,
    read: CursusFrame,
    ack: Ack,
    stored: Callable[[int], None],
) -> Storing | None:
    """Append; calls `stored` with the last offset once it is as safe as `ack` demands.

    Returns what has to be continued if the frame is large.  Raises refusals; a `Gap` while nothing
    has been answered.
    """
    check_sizes(route, read, ack)
    sequencing = _sequencing(call, route, read)

    def written(appended: Appended) -> None:
        _settle(call, route, read, ack, sequencing, appended, stored)

    def begin() -> None:
        if sequencing.who is not _UNCHECKED:
            call.door.gaps.begin(Producing(route.at, read.producer, read.epoch), call)

    if sequencing.last_offset >= 0:
        written(Appended(route.at, sequencing.last_offset, sequencing.last_offset + 1, -1, 0))
    elif len(data) > LARGE_BYTES and call.broker.knowledge.current:
        begin()
        make = partial(_make_part, call, route, sequencing)
        return Storing(call, route, read, len(data), sequencing.skip, make, written)
    else:
        batches, facts = _batches(call, route, data, read, sequencing)
        admission = admission_of(call, route, batches, facts)
        if admission is None:
            written(call.broker.log.append(route.at, memoryview(batches), facts, parted=True))
        else:
            if not admission.ready:
                begin()
            call.hold_until(
                admission, lambda admitted: written(append_admitted(call, route, admitted))
            )
    return None


def admission_of(
    call: Call, route: Route, batches: bytearray | memoryview, facts: Facts
) -> Later[Admitted] | None:
    """What large batches wait for before they are appended; None: nothing."""
    if len(batches) <= ADMISSION_BYTES_MIN:
        return None
    return call.broker.log.admission(route.at, memoryview(batches), facts, owned=True)


def append_admitted(call: Call, route: Route, admitted: Admitted) -> Appended:
    """Append batches that were admitted."""
    batches, facts, settings = admitted
    return call.broker.log.append(route.at, batches, facts, parted=True, opened=settings)


def _settle(
    call: Call,
    route: Route,
    read: CursusFrame,
    ack: Ack,
    sequencing: Sequencing,
    appended: Appended,
    stored: Callable[[int], None],
) -> None:
    def settled(done: Appended) -> None:
        # Nobody has said where they are if nobody was asked to (`acks=0`).
        stored(max(0, done.next_offset - 1))

    later = call.broker.log.settle(appended, ack)
    if sequencing.repeated:
        later = _found_or_known(later, call.broker.log.marks(route.at).end)
    if sequencing.entered is None or sequencing.entered.ready:
        call.after(later, settled)
    else:
        call.after(sequencing.entered, lambda _: call.after(later, settled))
    if sequencing.who is not _UNCHECKED:
        call.door.gaps.filled(Producing(route.at, read.producer, read.epoch), call)


def _make_part(
    call: Call,
    route: Route,
    sequencing: Sequencing,
    data: memoryview,
    start: int,
    end: int,
    count: int,
    before: int,
) -> tuple[bytearray, Facts]:
    """Record batches of `count` messages of a large frame, of which `before` came earlier."""
    sequence = sequencing.sequence
    if sequence >= 0:
        sequence = (sequence + before - sequencing.skip) % _SEQUENCES
    return record_batches(
        call, route, data, start, end, count, sequencing._replace(skip=0, sequence=sequence)
    )


def _batches(
    call: Call,
    route: Route,
    data: bytes | bytearray | memoryview,
    read: CursusFrame,
    sequencing: Sequencing,
) -> tuple[bytearray, Facts]:
    start, end = read.messages_start, len(data)
    return record_batches(call, route, data, start, end, read.records, sequencing)


def record_batches(
    call: Call,
    route: Route,
    data: bytes | bytearray | memoryview,
    start: int,
    end: int,
    count: int,
    sequencing: Sequencing,
    attributes: int = 0,
) -> tuple[bytearray, Facts]:
    """Record batches of `count` messages, as they are to be appended."""
    return cursus_batches(
        data,
        start,
        end,
        count,
        skip=sequencing.skip,
        timestamp_ms=call.session.context.runtime.now_ms(),
        attributes=records.ATTRIBUTES | attributes,
        producer_id=sequencing.who.producer_id,
        producer_epoch=sequencing.who.epoch,
        base_sequence=sequencing.sequence,
        batch_bytes_max=route.batch_bytes_max,
    )


def _found_or_known(again: Later[Appended], end: int) -> Later[Appended]:
    """Where a repeated batch is; its end cannot be told any more if it is too long ago."""
    later: Later[Appended] = Later()

    def answered(there: Later[Appended]) -> None:
        try:
            later.fill(there.value)
        except OutOfSequence:
            later.fill(Appended(Partition("", 0), -1, end, -1, 0))
        except BrokerError as refusal:
            later.refuse(refusal)

    again.then(answered)
    return later


def check_writable(call: Call, route: Route) -> None:
    if route.at.topic.startswith(_INTERNAL):
        raise Refused(f"internal_topic_write_forbidden topic={shown(route.at.topic)}")
    access = call.session.context.access
    if not access.guarded and not route.options.writable(access.who):
        raise Refused(f"NOT_AUTHORIZED_FOR_TOPIC operation=write topic={shown(route.at.topic)}")


def check_sizes(route: Route, read: CursusFrame, ack: Ack) -> None:
    """Nothing is taken that could not be given back."""
    most = REPLY_BYTES_MAX - _HEAD_BYTES_MAX
    if read.message_bytes_max > most:
        raise Refused(
            f"invalid_payload reason={quoted(f'a message of {read.message_bytes_max} bytes')} "
            f"max={most}"
        )
    copies = route.topic.settings.insync_replicas_min
    if ack is Ack.DURABLE and copies > 1:
        raise Refused(
            f'broker_error reason="min.insync.replicas is {copies} and this broker keeps 1 copy"'
        )


def _is_checked(route: Route, read: CursusFrame) -> bool:
    """Return whether the order of this batch is checked against its producer's earlier ones."""
    checked = read.idempotent or route.options.idempotent
    return bool(checked and read.producer and read.seq_first)


def _sequencing(call: Call, route: Route, read: CursusFrame) -> Sequencing:
    if not _is_checked(route, read):
        return Sequencing()
    name = shown(read.producer.decode("utf-8", "replace"))
    if len(read.producer) > _NAME_BYTES_MAX:
        reason = f"a producer id of {len(read.producer)} bytes; {_NAME_BYTES_MAX} are accepted"
        raise Refused(f"invalid_producer_id reason={quoted(reason)}")
    if not read.one_producer:
        raise Violation(f"idempotency error: several producers or epochs in one batch of {name}")
    if read.break_got or read.break_after:
        raise Violation(
            f"idempotency gap for producer {name}: "
            f"expected {read.break_after + 1}, got {read.break_got}"
        )
    producers = call.broker.sourcing.producers
    owner = _owner(call, read.producer)
    current = producers.epoch(read.producer)
    if current is not None and read.epoch < current:
        raise Violation(f"stale_producer_epoch producer={name} current={current} got={read.epoch}")
    charged = "" if current == read.epoch else call.session.context.access.owner
    who = producers.who(read.producer, read.epoch)
    sequence = (read.seq_first - 1) % _SEQUENCES
    written = producers.written(route.at, who)
    skip = 0
    if written:
        ahead = (sequence - written[-1].sequence_last - 1) % _SEQUENCES
        if 0 < ahead < _SEQUENCES // 2:
            raise Gap(
                f"idempotency gap for producer {name}: "
                f"expected {read.seq_first - ahead}, got {read.seq_first}"
            )
        skip = -ahead % _SEQUENCES
        if skip >= read.records:
            last = (read.seq_last - 1) % _SEQUENCES
            entered = producers.enter(read.producer, read.epoch, owner, charged)
            for batch in written:
                behind = (last - batch.sequence_first) % _SEQUENCES
                if batch.base_offset < 0:
                    return Sequencing(who, sequence, entered=entered, repeated=True)
                if behind <= (batch.sequence_last - batch.sequence_first) % _SEQUENCES:
                    return Sequencing(last_offset=batch.base_offset + behind, entered=entered)
            end = call.broker.log.marks(route.at).end
            return Sequencing(last_offset=max(0, end - 1), entered=entered)
    elif read.seq_first != 1:
        fresh = current is not None and read.epoch > current
        what = "first message in new producer epoch" if fresh else "first message"
        raise Gap(
            f"idempotency error: {what} for producer {name} must have seqNum 1, "
            f"got {read.seq_first}"
        )
    entered = producers.enter(read.producer, read.epoch, owner, charged)
    return Sequencing(who, (sequence + skip) % _SEQUENCES, skip, -1, entered)


def _owner(call: Call, producer: bytes) -> str:
    """Return the principal that a producer's name is to belong to; refuses that of another."""
    access = call.session.context.access
    me = "" if access.who == ANONYMOUS else str(access.who)
    owner = call.broker.sourcing.producers.owner(producer)
    if owner in ("", me):
        return me
    if access.guarded and access.could(Operation.ALTER, Kind.CLUSTER):
        return owner
    command = call.command.verb or rights.BATCH
    name = shown(producer.decode("utf-8", "replace"))
    raise Refused(
        f"NOT_AUTHORIZED_FOR_OPERATION command={command} permission=producer producer={name} "
        'reason="this producer id belongs to another principal; choose another one"'
    )


def publish(call: Call) -> None:
    """PUBLISH: one record as text."""
    command = call.command
    topic = command.need("topic")
    payload = command.payload
    producer = command.need("producerId", "missing_producer_id")
    for name in ("transactional_id", "txn", "transaction"):
        if name in command.parameters:
            raise Refused("transaction_metadata_forbidden command=PUBLISH")
    ack = records.ack_of(encoded(command.get("acks", "1")))
    call.waivable = ack is Ack.NONE
    index = -1
    if "partition" in command.parameters:
        reason = 'invalid_partition reason="must be an integer"'
        index = command.number("partition", reason, least=-(1 << 31), most=(1 << 31) - 1)
    seq = epoch = 0
    if "seqNum" in command.parameters:
        reason = 'invalid_seq_num reason="must be an unsigned integer"'
        seq = command.number("seqNum", reason, most=(1 << 64) - 1)
    if "epoch" in command.parameters:
        reason = 'invalid_epoch reason="must be an integer"'
        epoch = command.number("epoch", reason, least=-(1 << 63))
    idempotent = truth(command.get("isIdempotent", "false"))
    if idempotent is None:
        raise Refused(f"invalid_is_idempotent value={command.get('isIdempotent')}")
    key = key_of(command)
    route = chosen_route(call, topic, index, key)
    check_writable(call, route)
    data, read = records.single(
        producer=encoded(producer), seq=seq, epoch=epoch, key=key, payload=payload
    )
    read = read._replace(idempotent=idempotent)

    def stored(last_offset: int) -> None:
        if ack is Ack.NONE:
            call.reply("OK")
        else:
            call.send(framed(records.acknowledgement(read, last_offset)))

    try:
        _store_kept(call, route, data, read, ack, stored)
    except Violation as violation:
        raise Refused(f"broker_error reason={quoted(str(violation))}") from None


def chosen_route(call: Call, topic: str, index: int, key: bytes) -> Route:
    """The partition asked for, or (negative) the one the topic's partitioner chooses."""
    name = encoded(topic)
    route = call.door.route(name, max(0, index))
    if index >= 0:
        return route
    by_key = route.options.partitioner == "hash_key"
    return call.door.route(name, call.door.choose(route.topic, key, by_key=by_key))
