"""Managed consumer offsets: a consumer id is a group, and its offset is one less than the group's.

Fluvio keeps the last offset that was processed and adds one on resuming; groups keep the next
offset to read.  One is added on the way in and taken off on the way out, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from pentalog.broker.port import Broker, Committed, Fence
from pentalog.broker.security import Kind
from pentalog.model.errors import BrokerError, TopicNotFound, Unauthorized
from pentalog.model.later import Later, all_of
from pentalog.model.types import Offset, Partition
from pentalog.protocols.fluvio import errors, rights
from pentalog.protocols.fluvio.codec import Writer, is_told
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.session import Answer, Call, raise_error

_FILTER_VERSION = 24
_OFFSET_MAX = (1 << 63) - 2
"""The last one that has a next."""
_OFFSET_MIN = -1 << 63


def fetch(call: Call) -> None:
    """FetchConsumerOffsets: those of one partition, of one consumer, or all.

    Answered when what is found is on the disk.
    """
    reader = call.reader
    at: Partition | None = None
    consumer_id: str | None = None
    if call.version >= _FILTER_VERSION and reader.boolean():
        at = reader.option(lambda: Partition(reader.text(), reader.u32()))
        consumer_id = reader.option(reader.text)
    reader.finish()
    call.know(lambda known: [known.topics(), *(() if consumer_id else [known.groups()])])
    offsets = call.context.broker.groups.offsets
    groups = list(offsets.names()) if consumer_id is None else [consumer_id]
    call.know(lambda known: [known.offsets(group, at and [at]) for group in groups])
    call.slice(_finding(call, groups, at))


def _finding(call: Call, groups: list[str], at: Partition | None) -> Iterator[None]:
    """Find the offsets that this client may see, and answer with them."""
    broker, access = call.context.broker, call.context.access
    offsets = broker.groups.offsets
    found: list[tuple[str, Partition, Committed]] = []
    asked: list[Later[None]] = []
    for group in groups:
        yield
        if not is_told(group) or not access.sees(Kind.GROUP, group):
            continue
        every_kept = offsets.walk(group) if at is None else offsets.committed(group, [at]).items()
        for where, kept in every_kept:
            if _is_shown(broker, where) and access.sees(Kind.TOPIC, where.topic):
                found.append((group, where, kept))
            yield
        asked.append(offsets.settled(group))
    every = all_of(asked)
    answer = None if every.ready else call.place()
    if answer is None:
        yield from _answer_fetch(call, answer, found, every)
    else:

        def settled_all(done: Later[None]) -> None:
            call.context.slices.run(_answer_fetch(call, answer, found, done), raise_error)

        every.then(settled_all)


def _is_shown(broker: Broker, at: Partition) -> bool:
    """Is this a partition that clients can be told of?"""
    try:
        return is_told(at.topic) and at.index < broker.topics.get(at.topic).partitions
    except TopicNotFound:
        return False


def _answer_fetch(
    call: Call,
    answer: Answer | None,
    found: list[tuple[str, Partition, Committed]],
    settled: Later[None],
) -> Iterator[None]:
    error = errors.FINE
    try:
        _ = settled.value
    except BrokerError as refusal:
        error, found = errors.error_of(refusal), []
    body = call.writer()
    error.write(body)
    body.u32(len(found))
    for entry in found:
        _write(body, *entry)
        yield
    _send(call, answer, body)


def _write(body: Writer, group: str, at: Partition, kept: Committed) -> None:
    body.text(group).text(at.topic).u32(at.index)
    # Clients of other protocols commit any number.
    body.i64(max(_OFFSET_MIN, kept.offset - 1)).u64(max(0, kept.timestamp_ms) // 1000)


def update(call: Call) -> None:
    """UpdateConsumerOffset: for the consumer whose stream the session id names."""
    reader = call.reader
    offset, session_id = reader.i64(), reader.u32()
    reader.finish()
    stream = call.session.streams.get(session_id)
    if stream is None:
        _answer_update(call, None, offset, WireError(errors.SESSION_NOT_FOUND))
        return
    if stream.consumer_id is None:
        text = f"stream {session_id} has no consumer id; open it with one to keep its offset"
        _answer_update(call, None, offset, errors.other(text))
        return
    if offset > _OFFSET_MAX:
        text = f"offset {offset}; accepted are those up to {_OFFSET_MAX}"
        _answer_update(call, None, offset, errors.other(text))
        return
    kept = Committed(max(0, offset + 1))
    groups = call.context.broker.groups
    try:
        rights.check(call, rights.SPU, stream.at.topic, stream.consumer_id)
        call.know(lambda known: [known.topic(*stream.at)])
        # Offsets are kept by name: a new topic of the same name must not get this one.
        stream.check_topic()
        settled = groups.commit(
            stream.consumer_id, Fence(), {stream.at: kept}, owner=call.context.access.owner
        )
    except Unauthorized as refusal:
        _answer_update(call, None, offset, errors.error_of(refusal))
        return
    except TopicNotFound:
        _answer_update(call, None, offset, WireError(errors.TOPIC_DELETED))
        return
    except BrokerError as refusal:
        _answer_update(call, None, offset, errors.other(str(refusal)))
        return
    if settled.ready:
        _updated(call, None, offset, settled)
    else:
        settled.then(partial(_updated, call, call.place(), offset))


def _updated(call: Call, answer: Answer | None, offset: Offset, settled: Later[None]) -> None:
    error = errors.FINE
    try:
        _ = settled.value
    except BrokerError as refusal:
        error = errors.texts(errors.FLUSH_FAILED, str(refusal))
    _answer_update(call, answer, offset, error)


def _answer_update(call: Call, answer: Answer | None, offset: Offset, error: WireError) -> None:
    body = call.writer().i64(offset)
    error.write(body)
    _send(call, answer, body)


def delete(call: Call) -> None:
    """DeleteConsumerOffset; one that is not there is as good as deleted."""
    reader = call.reader
    at = Partition(reader.text(), reader.u32())
    consumer_id = reader.text()
    reader.finish()
    try:
        rights.check(call, rights.SPU, at.topic, consumer_id)
    except Unauthorized as refusal:
        _answer_delete(call, None, errors.error_of(refusal))
        return
    call.know(lambda known: [known.offsets(consumer_id, [at])])
    offsets = call.context.broker.groups.offsets
    refused: Mapping[Partition, BrokerError] = {}
    try:
        if offsets.committed(consumer_id, [at]):
            refused = call.context.broker.groups.forget(consumer_id, [at])
            settled = call.context.broker.groups.settle()
        else:
            settled = offsets.settled(consumer_id)
    except BrokerError as refusal:
        _answer_delete(call, None, errors.other(str(refusal)))
        return
    if at in refused:
        _answer_delete(call, None, errors.other(str(refused[at])))
    elif settled.ready:
        _deleted(call, None, settled)
    else:
        settled.then(partial(_deleted, call, call.place()))


def _deleted(call: Call, answer: Answer | None, settled: Later[None]) -> None:
    error = errors.FINE
    try:
        _ = settled.value
    except BrokerError as refusal:
        error = errors.texts(errors.FLUSH_FAILED, str(refusal))
    _answer_delete(call, answer, error)


def _answer_delete(call: Call, answer: Answer | None, error: WireError) -> None:
    body = call.writer()
    error.write(body)
    _send(call, answer, body)


def _send(call: Call, answer: Answer | None, body: Writer) -> None:
    if answer is None:
        call.answer(body)
    else:
        answer.fill(body)
