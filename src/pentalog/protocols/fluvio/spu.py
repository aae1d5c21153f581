"""The SPU's port: records are produced, fetched and streamed, consumers' offsets are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pentalog.model.errors import BrokerError, PartitionNotFound, TopicNotFound
from pentalog.model.types import Horizon, Marks, Partition
from pentalog.protocols.fluvio import (
    errors,
    fetch,
    frames,
    messages,
    offsets,
    produce,
    rights,
)
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.session import Api, Call, FluvioSession
from pentalog.protocols.fluvio.streams import STREAMS_MAX, Stream, frame_body

VERSION_MAX: Final = 25
CONSUMER_ID_CHARACTERS_MAX: Final = 1_000
"""Every stream keeps one."""
_NO_MARKS: Final = Marks(0, 0, 0, 0)


def stream_fetch(call: Call) -> None:
    wish = messages.read_stream_fetch(call.reader)
    session = call.session
    at = Partition(wish.topic, wish.partition)
    try:
        rights.check(call, rights.SPU, wish.topic, wish.consumer_id or "")
        call.know(lambda known: [known.topic(wish.topic, wish.partition)])
        topic = call.context.broker.topics.get(wish.topic)
        if wish.partition >= topic.partitions:
            raise PartitionNotFound(f"partition {wish.partition} of {wish.topic}")
    except (TopicNotFound, PartitionNotFound):
        _refuse_stream(call, at, WireError(errors.NOT_LEADER))
        return
    except BrokerError as refusal:
        _refuse_stream(call, at, errors.error_of(refusal))
        return
    if len(wish.consumer_id or "") > CONSUMER_ID_CHARACTERS_MAX:
        text = (
            f"a consumer id of {len(wish.consumer_id or '')} characters; accepted are "
            f"{CONSUMER_ID_CHARACTERS_MAX}"
        )
        _refuse_stream(call, at, errors.other(text))
        return
    if len(session.streams) >= STREAMS_MAX:
        session.streams = {key: kept for key, kept in session.streams.items() if not kept.ended}
    if len(session.streams) >= STREAMS_MAX:
        text = f"{STREAMS_MAX} streams are open on this connection: open another connection"
        _refuse_stream(call, at, errors.other(text))
        return
    session.stream_ids += 1
    stream = Stream(call, session.stream_ids, wish, topic)
    session.streams[stream.stream_id] = stream
    stream.start()


def _refuse_stream(call: Call, at: Partition, error: WireError) -> None:
    body = frame_body(call.version, at, 0, error, _NO_MARKS, horizon=Horizon.END)
    call.session.send(frames.answer(call.head.correlation_id, body.i32(0)))


def update_offsets(call: Call) -> None:
    """Acknowledgements, which let streams go on."""
    reader = call.reader
    taken = reader.many(lambda: (reader.i64(), reader.u32()))
    reader.finish()
    streams = call.session.streams
    body = call.writer().u32(len(taken))
    going_on: list[Stream] = []
    for offset, stream_id in taken:
        body.u32(stream_id)
        stream = streams.get(stream_id)
        if stream is None or stream.ended:
            body.i16(errors.SESSION_NOT_FOUND)
            continue
        stream.acknowledge(offset).write(body)
        going_on.append(stream)
    call.answer(body)
    for stream in going_on:
        call.session.soon(stream.pump)


class SpuSession(FluvioSession):
    """One connection to the SPU's port."""

    platform_version = "0.0.0"
    apis: ClassVar[Mapping[int, Api]] = {
        0: Api("Produce", 0, VERSION_MAX, produce.serve),
        1: Api("Fetch", 0, VERSION_MAX, fetch.serve),
        1002: Api("FetchOffsets", 23, VERSION_MAX, fetch.serve_offsets),
        1003: Api("StreamFetch", 0, VERSION_MAX, stream_fetch),
        1005: Api("UpdateOffsets", 0, 0, update_offsets),
        1006: Api("UpdateConsumerOffset", 0, VERSION_MAX, offsets.update, advertised=False),
        1007: Api("DeleteConsumerOffset", 0, VERSION_MAX, offsets.delete, advertised=False),
        1008: Api("FetchConsumerOffsets", 0, VERSION_MAX, offsets.fetch, advertised=False),
    }

    def close(self) -> None:
        super().close()
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        waits, self.waits = self.waits, set()
        for waiting in waits:
            waiting.cancel()
