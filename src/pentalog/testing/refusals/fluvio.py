"""Refusing a Fluvio request: its answer, or the first frame of its stream, with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.model.types import Horizon, Marks, Partition
from pentalog.protocols.fluvio import errors, frames, messages
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession
from pentalog.protocols.fluvio.streams import frame_body

REFUSABLE: Final = frozenset({"Produce", "StreamFetch"})
REQUESTS: Final = frozenset(
    {"ApiVersions", *(api.name for one in (ScSession, SpuSession) for api in one.apis.values())}
)

_TEXT: Final = "refused because a test wants it"
_ERRORS: Final = {
    "OTHER": errors.other(_TEXT),
    "OFFSET_OUT_OF_RANGE": WireError(errors.OFFSET_OUT_OF_RANGE),
    "NOT_LEADER": WireError(errors.NOT_LEADER),
    "TIMED_OUT": errors.timed_out(0),
    "TOO_LARGE": WireError(errors.TOO_LARGE),
    "PERMISSION_DENIED": WireError(errors.PERMISSION_DENIED),
    "STORAGE": WireError(errors.STORAGE),
    "TOPIC_NOT_FOUND": WireError(errors.TOPIC_NOT_FOUND),
    "TOPIC_DELETED": WireError(errors.TOPIC_DELETED),
    "PARTITION_NOT_LEADER": WireError(errors.PARTITION_NOT_LEADER),
}
_NO_MARKS: Final = Marks(-1, -1, -1, -1)


def check(error: str | int) -> None:
    if error not in _ERRORS:
        raise ValueError(f"Fluvio has no error {error!r} here; known are {', '.join(_ERRORS)}")


def refuse(
    payload: memoryview, error: str | int, session: object, send: Callable[..., None]
) -> bool:
    head, reader = frames.read_head(payload, 0, len(payload))
    told = _ERRORS[str(error)]
    if head.key == 0:
        body = _produce(reader, head.version, told)
    else:
        wish = messages.read_stream_fetch(reader)
        at = Partition(wish.topic, wish.partition)
        body = frame_body(head.version, at, 0, told, _NO_MARKS, horizon=Horizon.DURABLE)
        body.u32(0)
    send(frames.answer(head.correlation_id, body))
    return True


def _produce(reader: Reader, version: int, error: WireError) -> Writer:
    wish = messages.read_produce(reader)
    body = Writer(version).u32(len(wish.topics))
    for topic in wish.topics:
        body.text(topic.name).u32(len(topic.partitions))
        for part in topic.partitions:
            body.u32(part.index)
            (error.bare if wish.documented else error).write(body)
            body.i64(0)
            if version >= 2:
                body.i64(-1)
            if version >= 5:
                body.i64(0)
    return body.i32(0) if version >= 1 else body
