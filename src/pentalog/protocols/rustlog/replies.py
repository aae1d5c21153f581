"""Replies in both dialects: what is said, and how each of them says it."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from pentalog import kernels
from pentalog.broker.port import Topic
from pentalog.model.errors import (
    BrokerError,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    PartitionNotFound,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from pentalog.protocols.rustlog import errors
from pentalog.protocols.rustlog.errors import Invalid, NotJson
from pentalog.protocols.rustlog.frames import FRAME_BYTES_MAX, LENGTH, Undecodable
from pentalog.protocols.rustlog.messages import (
    NAME_CHARACTERS_MAX,
    TOPIC_NAME,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    OffsetCommit,
    Produce,
    Request,
    name_flaw,
)

_LISTED_TOPICS_MAX: Final = 1000
"""Names in the answer to a topic that is not there."""
_TEXT_BYTES_MAX: Final = 0xFFFF
_ENCODER: Final = msgspec.json.Encoder()
_PART: Final = 256
"""Elements of a long list that are encoded in one step."""

T = TypeVar("T")


class Known(Protocol):
    """What a refusal may tell the client about topics."""

    def visible(self) -> Iterable[Topic]: ...

    def partitions(self, topic: str) -> int: ...


class Bounds(NamedTuple):
    """One partition as it is described."""

    partition: int
    high_watermark: int
    log_start_offset: int
    segment_count: int


class Dialect(Protocol):
    """One way to say everything."""

    @property
    def json(self) -> bool: ...
    def pong(self) -> bytes: ...
    def produced(self, counts: bytes, base_offset: int) -> bytes: ...
    def nothing(self, next_offset: int) -> bytes:
        """A Fetch that found no record."""

    def committed(self, *, accepted: bool) -> bytes: ...
    def offset(self, offset: int | None) -> bytes: ...
    def created(self, partitions: int) -> bytes: ...
    def topics(self, topics: Sequence[tuple[str, int]]) -> Generator[None, None, bytes]:
        """There may be many: made in steps."""

    def topic(self, name: str, partitions: Sequence[Bounds]) -> Generator[None, None, bytes]:
        """There may be many partitions: made in steps."""

    def partition(self, name: str, bounds: Bounds) -> bytes: ...
    def metrics(self, text: str) -> bytes: ...
    def bad_frame(self, size: int, size_max: int) -> bytes: ...
    def refusal(self, request: Request | None, refusal: Exception, known: Known) -> bytes: ...


class JsonDialect:
    """The document's."""

    json: Final = True

    def pong(self) -> bytes:
        return _text(_PONG)

    def produced(self, counts: bytes, base_offset: int) -> bytes:
        return kernels.rustlog_acks(counts, base_offset, json=True)

    def nothing(self, next_offset: int) -> bytes:
        return _text({"type": "FetchResponse", "records": [], "next_offset": next_offset})

    def committed(self, *, accepted: bool) -> bytes:
        return _text({"type": "OffsetCommitResponse", "success": accepted})

    def offset(self, offset: int | None) -> bytes:
        return _text({"type": "OffsetFetchResponse", "offset": offset})

    def created(self, partitions: int) -> bytes:
        reply = {"type": "CreateTopicResponse", "success": True, "partitions_created": partitions}
        return _text(reply)

    def topics(self, topics: Sequence[tuple[str, int]]) -> Generator[None, None, bytes]:
        listed = [
            {"name": name, "partition_count": count} for name, count in topics if _nameable(name)
        ]
        head = {"type": "ListTopicsResponse"}
        return (yield from _text_in_parts(head, "topics", listed))

    def topic(self, name: str, partitions: Sequence[Bounds]) -> Generator[None, None, bytes]:
        listed = [bounds._asdict() for bounds in partitions]
        yield
        head = {"type": "DescribeTopicResponse", "topic": name}
        return (yield from _text_in_parts(head, "partitions", listed))

    def partition(self, name: str, bounds: Bounds) -> bytes:
        return _text({"type": "DescribePartitionResponse", "topic": name, **bounds._asdict()})

    def metrics(self, text: str) -> bytes:
        return _text({"type": "MetricsFetchResponse", "metrics": text})

    def bad_frame(self, size: int, size_max: int) -> bytes:
        said = f"Frame of {size} bytes; 1 to {size_max} are accepted"
        return _error(errors.INVALID, said, None)

    def refusal(self, request: Request | None, refusal: Exception, known: Known) -> bytes:
        details: Mapping[str, Any] | None = None
        said = str(refusal)
        if isinstance(refusal, Invalid):
            said = f"Invalid request: {refusal}"
        elif isinstance(refusal, NotJson):
            said = f"Malformed JSON: {refusal}; the connection is closed"
        elif isinstance(refusal, TopicNotFound) and not TOPIC_NAME.fullmatch(_topic_of(request)):
            return self.refusal(request, Invalid(name_flaw(_topic_of(request))), known)
        elif isinstance(refusal, TopicNotFound):
            said = f"Topic '{_topic_of(request)}' not found"
            names = (topic.name for topic in known.visible() if _nameable(topic.name))
            details = {"available_topics": list(islice(names, _LISTED_TOPICS_MAX))}
        elif isinstance(refusal, PartitionNotFound):
            name = _topic_of(request)
            said = f"Partition {_partition_of(request)} not found in topic '{name}'"
            # 0 if the topic was deleted meanwhile.
            details = {"partition_count": known.partitions(name)}
        elif isinstance(refusal, OffsetOutOfRange):
            asked = request.offset if isinstance(request, Fetch) else -1
            said = f"Offset {asked} out of range"
            details = {
                "valid_range": {"start": refusal.start, "end": refusal.end},
                "high_watermark": refusal.end,
            }
        elif isinstance(refusal, TopicExists):
            said = f"Topic '{_topic_of(request)}' already exists"
        return _error(errors.code_of(refusal), said, details)


class PackedDialect:
    """The original's."""

    json: Final = False

    def pong(self) -> bytes:
        return b"\0\0\0\x01\xff"

    def produced(self, counts: bytes, base_offset: int) -> bytes:
        return kernels.rustlog_acks(counts, base_offset, json=False)

    def nothing(self, next_offset: int) -> bytes:
        return _packed(struct.pack(">BIQ", 0x02, 0, next_offset))

    def committed(self, *, accepted: bool) -> bytes:
        return _packed(bytes((0x03, accepted)))

    def offset(self, offset: int | None) -> bytes:
        if offset is None:
            return _packed(b"\x04\0")
        return _packed(struct.pack(">BBQ", 0x04, 1, offset))

    def created(self, partitions: int) -> bytes:
        return _packed(b"\x05\x01")

    def topics(self, topics: Sequence[tuple[str, int]]) -> Generator[None, None, bytes]:
        listed = sorted((name.encode(), count) for name, count in topics)
        yield
        parts = [struct.pack(">BI", 0x06, len(listed))]
        for some in _parts(listed):
            parts += [_string(name) + LENGTH.pack(count) for name, count in some]
            yield
        return _packed(b"".join(parts))

    def topic(self, name: str, partitions: Sequence[Bounds]) -> Generator[None, None, bytes]:
        parts = [b"\x07", _string(name.encode()), struct.pack(">II", *(len(partitions),) * 2)]
        for some in _parts(partitions):
            parts += [struct.pack(">IQ", each.partition, each.high_watermark) for each in some]
            yield
        return _packed(b"".join(parts))

    def partition(self, name: str, bounds: Bounds) -> bytes:
        ends = struct.pack(">IQ", bounds.partition, bounds.high_watermark)
        return _packed(b"\x08" + _string(name.encode()) + ends)

    def metrics(self, text: str) -> bytes:
        data = text.encode()
        return _packed(b"\x09" + LENGTH.pack(len(data)) + data)

    def bad_frame(self, size: int, size_max: int) -> bytes:
        said = f"frame too large: {size} bytes (max: {size_max})"
        if size == 0:
            said = "invalid protocol: zero-length frame"
        return _failure(errors.BAD_FRAME, f"Frame error: {said}")

    def refusal(self, request: Request | None, refusal: Exception, known: Known) -> bytes:
        if isinstance(refusal, Undecodable):
            return _failure(errors.UNDECODABLE, f"Decode error: {refusal}")
        return _failure(*_packed_refusal(request, refusal))


def _packed_refusal(request: Request | None, refusal: Exception) -> tuple[int, str]:
    """The original's code and text; where it has none, its nearest and ours."""
    missing = isinstance(refusal, TopicNotFound | PartitionNotFound)
    if isinstance(request, Produce | Fetch) and missing:
        said = "Topic or partition does not exist: topic={}, partition={}"
        return errors.NOT_THERE, said.format(request.topic, request.partition)
    if isinstance(request, Produce):
        return errors.FAILED, f"Failed to write record: {refusal}"
    if isinstance(request, Fetch):
        kind = "storage error: " if isinstance(refusal, StorageFailed) else ""
        return errors.FETCH_FAILED, f"Fetch failed: {kind}{refusal}"
    if isinstance(request, OffsetCommit):
        return errors.COMMIT_FAILED, f"Offset commit failed: {refusal}"
    if isinstance(request, CreateTopic):
        if isinstance(refusal, TopicExists):
            return errors.EXISTS, f"Topic '{request.topic}' already exists"
        if isinstance(refusal, InvalidPartitions):
            return errors.BAD_CREATION, f"Invalid partition count: {request.partition_count}"
        if isinstance(refusal, InvalidTopic):
            return errors.BAD_CREATION, f"Invalid topic name: {refusal}"
        return errors.FAILED, f"Internal server error during topic creation: {refusal}"
    if isinstance(request, DescribeTopic) and missing:
        return errors.NO_TOPIC, f"DescribeTopic failed: Topic '{request.topic}' not found"
    if isinstance(request, DescribePartition) and missing:
        said = f"Partition {request.partition} not found in topic '{request.topic}'"
        return errors.NO_PARTITION, f"DescribePartition failed: {said}"
    return errors.FAILED, str(refusal)


def _nameable(topic: str) -> bool:
    """Has it a length the document knows?  What another door made with a dot is served."""
    return 0 < len(topic) <= NAME_CHARACTERS_MAX


def _topic_of(request: Request | None) -> str:
    return getattr(request, "topic", "")


def _partition_of(request: Request | None) -> int:
    return getattr(request, "partition", 0)


def _error(code: int, message: str, details: Mapping[str, Any] | None) -> bytes:
    return _text({"type": "Error", "code": code, "message": message, "details": details})


def _text(reply: object) -> bytes:
    data = _ENCODER.encode(reply)
    if len(data) > FRAME_BYTES_MAX:
        return _error(errors.INTERNAL, _oversize(len(data)), None)
    return LENGTH.pack(len(data)) + data


def _text_in_parts(
    head: Mapping[str, Any], name: str, listed: Sequence[Any]
) -> Generator[None, None, bytes]:
    """An object with one long list, encoded a few elements at a time."""
    data = bytearray(_ENCODER.encode(head)[:-1] + f',"{name}":['.encode())
    for number, some in enumerate(_parts(listed)):
        if number:
            data += b","
        data += _ENCODER.encode(some)[1:-1]
        yield
    data += b"]}"
    if len(data) > FRAME_BYTES_MAX:
        return _error(errors.INTERNAL, _oversize(len(data)), None)
    return LENGTH.pack(len(data)) + data


def _parts(listed: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(listed), _PART):
        yield listed[start : start + _PART]


def _string(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _failure(code: int, message: str) -> bytes:
    said = message.encode("utf-8", "replace")
    if len(said) > _TEXT_BYTES_MAX:
        said = said[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return _packed(struct.pack(">BH", 0xFE, code) + _string(said))


def _packed(payload: bytes) -> bytes:
    if len(payload) > FRAME_BYTES_MAX:
        return _failure(errors.FAILED, _oversize(len(payload)))
    return LENGTH.pack(len(payload)) + payload


def _oversize(size: int) -> str:
    return (
        f"The reply would have {size} bytes and a frame holds {FRAME_BYTES_MAX}: "
        "ask for less, or through another protocol"
    )


_PONG: Final = {"type": "Pong"}
JSON: Final[Dialect] = JsonDialect()
PACKED: Final[Dialect] = PackedDialect()
REFUSALS: Final = (BrokerError, Invalid)
"""What may come out of serving one request, to be answered."""
