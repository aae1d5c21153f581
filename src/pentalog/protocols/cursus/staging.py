"""Deduplication of TXN_PUBLISH: parses the command and finds messages that are already written.

A client without an answer repeats its TXN_PUBLISH, possibly after a restart or at another gateway.
Messages that another process wrote are read back from the log.  Clients send one message at a
time, so the newest messages of each partition are enough.
"""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pentalog.broker.port import Opened, TransactionView
from pentalog.kernels import CursusFrame, cursus_page, read_cursus
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.errors import BrokerError, PartitionNotFound, TransactionUnknown
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Offset, Partition
from pentalog.protocols.cursus import records
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import MessageKey
from pentalog.protocols.cursus.errors import Refused, quoted
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX
from pentalog.protocols.cursus.messages import encoded, key_of, transaction_of
from pentalog.protocols.cursus.publishing import Sequencing, record_batches

_ANY: Final = -1
_HEAD: Final = records.head(b"-", 0, document=False)
_HEAD_BYTES: Final = 4
_OFFSET: Final = struct.Struct(">Q")


class Staging(NamedTuple):
    """A TXN_PUBLISH."""

    name: str
    topic: str
    asked: int
    """The partition, or -1: the broker chooses one."""
    seq: int
    record_key: bytes
    payload: bytes | bytearray

    @property
    def key(self) -> MessageKey:
        return self.topic, self.asked, self.seq

    def record(self, view: TransactionView) -> tuple[bytes | bytearray, CursusFrame]:
        return records.single(
            producer=encoded(producer_of(self.name)),
            seq=self.seq,
            epoch=view.who.epoch,
            key=self.record_key,
            payload=self.payload,
        )


def staging_of(call: Call) -> Staging:
    """Read a TXN_PUBLISH; raises refusals."""
    command = call.command
    name = transaction_of(command)
    if not name:
        raise Refused("missing_transactional_id command=TXN_PUBLISH")
    topic, payload = command.need("topic"), command.payload
    if not command.get("seqNum"):
        raise Refused('invalid_seq_num command=TXN_PUBLISH reason="missing seqNum"')
    reason = 'invalid_seq_num command=TXN_PUBLISH reason="must be 1 or more"'
    seq = command.number("seqNum", reason, least=1, most=(1 << 64) - 1)
    asked = _ANY
    if "partition" in command.parameters:
        reason = "invalid_partition command=TXN_PUBLISH"
        asked = command.number("partition", reason, least=_ANY, most=(1 << 31) - 1)
    return Staging(name, topic, asked, seq, key_of(command), payload)


def producer_of(name: str) -> str:
    """Return what clients call the producer of a transactional id; the broker has a number."""
    return f"txn-{hashlib.sha256(encoded(name)).digest()[:8].hex()}"


def open_view(call: Call, name: str, epoch: int | None) -> TransactionView | None:
    """Return the transaction if it is open in this epoch."""
    try:
        view = call.broker.transactions.view(name)
    except TransactionUnknown:
        return None
    open_one = call.transaction(name, view.who.epoch)
    if epoch != view.who.epoch or open_one.ended:
        return None
    return view if open_one.begun or view.phase == "Ongoing" else None


def must_recover(call: Call, epoch: int | None) -> bool:
    """Return whether the log must be searched for the message of this TXN_PUBLISH."""
    try:
        staging = staging_of(call)
    except Refused:
        return False
    view = open_view(call, staging.name, epoch)
    if view is None:
        return False
    return not call.transaction(staging.name, view.who.epoch).knows(staging.key)


def recover(call: Call, staging: Staging, epoch: int | None) -> Iterator[Later[None]]:
    """Search the log for the message and remember its offset; yields what to wait for.

    Raises a refusal if the search fails: the message must not be written twice.
    """
    broker, name = call.broker, staging.name
    if not broker.knowledge.current:
        _notice_moves(call, name)
    try:
        view = broker.transactions.view(name)
    except TransactionUnknown:
        return
    open_one = call.transaction(name, view.who.epoch)
    if open_one.knows(staging.key):
        return
    asked = broker.knowledge.transaction(name)
    yield ready(asked)
    _check(asked)
    found = open_view(call, name, epoch)
    if found is None:
        return
    for at in found.partitions:
        if at.topic == staging.topic and staging.asked in (_ANY, at.index):
            yield from _recover_partition(call, staging, found, at)
    open_one = call.transaction(name, found.who.epoch)
    open_one.note_lookup(staging.topic, staging.asked)


def _notice_moves(call: Call, name: str) -> None:
    """Forget the transaction if a new connection uses it: the client may have changed gateways."""
    open_one = call.door.transactions.get(name)
    if open_one is not None and (open_one.user is None or open_one.user() is not call.session):
        open_one.forget()
        open_one.user = weakref.ref(call.session)


def _recover_partition(
    call: Call, staging: Staging, view: TransactionView, at: Partition
) -> Iterator[Later[None]]:
    broker = call.broker
    asked = broker.knowledge.transacted(staging.name, at)
    yield ready(asked)
    _check(asked)
    try:
        written = broker.sourcing.producers.written(at, view.who)
    except PartitionNotFound:
        return  # it was deleted, and its messages with it
    if not written:
        return
    offsets = [batch.base_offset for batch in written if batch.base_offset >= 0]
    if written[-1].base_offset < 0:
        # The leader does not write a batch with a known sequence again; it returns its offset.
        settled = _send_again(call, staging, view, at, written[-1].sequence_first)
        yield ready(settled)
        _check(settled)
        offsets = [settled.value.base_offset]
    open_one = call.transaction(staging.name, view.who.epoch)
    open_one.counts[at] = written[-1].sequence_last + 1
    for offset in offsets:
        opening = _open(call, at, offset)
        yield ready(opening)
        try:
            seq = _seq_at(opening.value, offset)
        except BrokerError:
            seq = 0
        if not seq and offset == offsets[-1]:
            raise _unknown(f"the newest message of {at} cannot be read")
        for asked_for in (at.index, _ANY) if seq else ():
            message = (at.topic, asked_for, seq)
            if message not in open_one.staged:
                open_one.note(message, Appended(at, offset, offset + 1, -1, 0))


def _send_again(
    call: Call, staging: Staging, view: TransactionView, at: Partition, sequence: int
) -> Later[Appended]:
    try:
        route = call.door.route(encoded(at.topic), at.index)
        call.broker.transactions.admit(view.name, view.who, at, enlists=False)
        data, read = staging.record(view)
        span = read.messages_start, len(data)
        sequencing = Sequencing(view.who, sequence)
        batches, facts = record_batches(call, route, data, *span, 1, sequencing, TRANSACTIONAL)
        appended = call.broker.log.append(route.at, memoryview(batches), facts, parted=True)
        return call.broker.log.settle(appended, Ack.DURABLE)
    except BrokerError as refusal:
        raise _unknown(str(refusal)) from None


def _open(call: Call, at: Partition, offset: Offset) -> Later[Opened]:
    try:
        return call.broker.log.open(at, offset, bytes_max=1, horizon=Horizon.END)
    except BrokerError as refusal:
        later: Later[Opened] = Later()
        later.refuse(refusal)
        return later


def _seq_at(opened: Opened, offset: Offset) -> int:
    """Return the sequence number of the message at this offset; 0 if there is none."""
    batches = opened.batches
    page = cursus_page(
        batches,
        0,
        len(batches),
        _HEAD,
        offset=offset,
        messages_max=1,
        bytes_max=REPLY_BYTES_MAX,
        frame_bytes_max=REPLY_BYTES_MAX,
    )
    read = read_cursus(page.frame, _HEAD_BYTES, len(page.frame))
    if read.flaw or not read.records:
        return 0
    (found,) = _OFFSET.unpack_from(page.frame, read.messages_start)
    return read.seq_first if found == offset else 0


def ready(later: Later[Any]) -> Later[None]:
    """Return a result that is ready when the other one is, even if that was refused."""
    if later.ready:
        return Later.now(None)
    result: Later[None] = Later()
    later.then(lambda _: result.fill(None))
    return result


def _check(later: Later[Any]) -> None:
    try:
        later.check()
    except BrokerError as refusal:
        raise _unknown(str(refusal)) from None


def _unknown(why: str) -> Refused:
    reason = f"it is not known whether this message is in the transaction: {why}"
    return Refused(f"transaction_publish_failed reason={quoted(reason)}")
