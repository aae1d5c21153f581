"""Every request of the protocol in both dialects: bytes to send, and how to read the answer.

No socket here: `blocking.py` and `asynchronous.py` carry the bytes.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from pentalog.clients.reconnection import ConnectionLost, Trouble

T = TypeVar("T")

FRAME_BYTES_MAX: Final = 10_485_760
LENGTH: Final = struct.Struct(">I")
_BYTES_MAX: Final = 0xFFFFFFFF
_ERROR: Final = 0xFE
_SERVER_CODES: Final = frozenset({4, 500})
"""Codes of the binary dialect that may be gone with the next attempt."""


class RustLogError(Exception):
    """The broker refused; `code` is the dialect's."""

    def __init__(self, code: int, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message
        self.details = details


class ClientError(RustLogError):
    """The request is wrong: sending it again would not help."""


class ServerError(RustLogError, Trouble):
    """The broker has trouble: it may help to send it again."""


class Produced(NamedTuple):
    base_offset: int
    record_count: int


class FetchedRecord(NamedTuple):
    offset: int
    """In the binary dialect counted back from the next offset: the wire does not tell it."""
    value: bytes
    timestamp_us: int | None = None
    """Microseconds since 1970; the binary dialect does not tell."""


class Fetched(NamedTuple):
    records: Sequence[FetchedRecord]
    next_offset: int


class TopicSummary(NamedTuple):
    name: str
    partitions: int


class PartitionSummary(NamedTuple):
    partition: int
    high_watermark: int
    """The next offset that will be assigned."""
    log_start_offset: int | None = None
    segment_count: int | None = None
    """The binary dialect tells neither of the last two."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and what its answer means."""

    frame: bytes
    read: Callable[[memoryview], T]


class Calls(Protocol):
    """Both dialects make the same calls."""

    def ping(self) -> Call[None]: ...
    def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Call[Produced]: ...
    def fetch(
        self, topic: str, partition: int, offset: int, bytes_max: int, group: str
    ) -> Call[Fetched]: ...
    def commit(self, group: str, topic: str, partition: int, offset: int) -> Call[bool]: ...
    def committed(self, group: str, topic: str, partition: int) -> Call[int | None]: ...
    def create_topic(self, topic: str, partitions: int) -> Call[None]: ...
    def topics(self) -> Call[list[TopicSummary]]: ...
    def describe_topic(self, topic: str) -> Call[list[PartitionSummary]]: ...
    def describe_partition(self, topic: str, partition: int) -> Call[PartitionSummary]: ...
    def metrics(self) -> Call[str]: ...


def framed(payload: bytes) -> bytes:
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(
            f"a request of {len(payload)} bytes; at most {FRAME_BYTES_MAX} are accepted: "
            "send fewer records at once"
        )
    return LENGTH.pack(len(payload)) + payload


def frame_size(head: bytes) -> int:
    """The size that a reply's first four bytes announce; raises `ConnectionLost` for nonsense."""
    (size,) = LENGTH.unpack(head)
    if not 0 < size <= FRAME_BYTES_MAX:
        raise ConnectionLost(f"a reply of {size} bytes; this is not a RustLog broker")
    return int(size)


class JsonCalls:
    """The document's dialect."""

    def ping(self) -> Call[None]:
        return self._call("Ping", "Pong", lambda _: None)

    def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Call[Produced]:
        encoded = [b64encode(record).decode("ascii") for record in records]
        return self._call(
            "Produce",
            "ProduceResponse",
            lambda said: Produced(said["base_offset"], said["record_count"]),
            topic=topic,
            partition=partition,
            records=encoded,
        )

    def fetch(
        self, topic: str, partition: int, offset: int, bytes_max: int, group: str
    ) -> Call[Fetched]:
        return self._call(
            "Fetch",
            "FetchResponse",
            _fetched,
            group_id=group,
            topic=topic,
            partition=partition,
            offset=offset,
            max_bytes=bytes_max,
        )

    def commit(self, group: str, topic: str, partition: int, offset: int) -> Call[bool]:
        return self._call(
            "OffsetCommit",
            "OffsetCommitResponse",
            lambda said: bool(said["success"]),
            group=group,
            topic=topic,
            partition=partition,
            offset=offset,
        )

    def committed(self, group: str, topic: str, partition: int) -> Call[int | None]:
        return self._call(
            "OffsetFetch",
            "OffsetFetchResponse",
            lambda said: said["offset"],
            group=group,
            topic=topic,
            partition=partition,
        )

    def create_topic(self, topic: str, partitions: int) -> Call[None]:
        return self._call(
            "CreateTopic",
            "CreateTopicResponse",
            lambda _: None,
            topic=topic,
            partition_count=partitions,
        )

    def topics(self) -> Call[list[TopicSummary]]:
        return self._call(
            "ListTopics",
            "ListTopicsResponse",
            lambda said: [
                TopicSummary(topic["name"], topic["partition_count"]) for topic in said["topics"]
            ],
        )

    def describe_topic(self, topic: str) -> Call[list[PartitionSummary]]:
        return self._call(
            "DescribeTopic",
            "DescribeTopicResponse",
            lambda said: [_summary(partition) for partition in said["partitions"]],
            topic=topic,
        )

    def describe_partition(self, topic: str, partition: int) -> Call[PartitionSummary]:
        return self._call(
            "DescribePartition",
            "DescribePartitionResponse",
            _summary,
            topic=topic,
            partition=partition,
        )

    def metrics(self) -> Call[str]:
        return self._call("MetricsFetch", "MetricsFetchResponse", lambda said: str(said["metrics"]))

    def _call(
        self, kind: str, answer: str, read: Callable[[Mapping[str, Any]], T], **fields: object
    ) -> Call[T]:
        text = json.dumps({"type": kind, **fields}, separators=(",", ":"))

        def read_json(payload: memoryview) -> T:
            try:
                said = json.loads(bytes(payload))
                if said["type"] == "Error":
                    _fail(said["code"], said["message"], said.get("details"))
                if said["type"] != answer:
                    raise ConnectionLost(f"{said['type']} came as the answer to {kind}")
                return read(said)
            except (ValueError, KeyError, TypeError) as flaw:
                raise ConnectionLost(f"the answer to {kind} cannot be read: {flaw}") from flaw

        return Call(framed(text.encode()), read_json)


def _fail(code: int, message: str, details: Mapping[str, Any] | None) -> NoReturn:
    if 400 <= code < 500:
        raise ClientError(code, message, details)
    raise ServerError(code, message, details)


def _fetched(said: Mapping[str, Any]) -> Fetched:
    records = [
        FetchedRecord(
            record["offset"], b64decode(record["payload"], validate=True), record["timestamp"]
        )
        for record in said["records"]
    ]
    return Fetched(records, said["next_offset"])


def _summary(said: Mapping[str, Any]) -> PartitionSummary:
    return PartitionSummary(
        said["partition"], said["high_watermark"], said["log_start_offset"], said["segment_count"]
    )


class BinaryCalls:
    """The original's dialect."""

    def ping(self) -> Call[None]:
        return _packed(0xFF, b"", lambda _: None)

    def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Call[Produced]:
        parts = [_string(topic), struct.pack(">II", partition, len(records))]
        for record in records:
            parts += [LENGTH.pack(len(record)), record]
        return _packed(0x01, b"".join(parts), lambda reply: Produced(*reply.numbers(">QI")))

    def fetch(
        self, topic: str, partition: int, offset: int, bytes_max: int, group: str
    ) -> Call[Fetched]:
        numbers = struct.pack(">IQI", partition, offset, min(bytes_max, _BYTES_MAX))

        def read(reply: _Reply) -> Fetched:
            (count,) = reply.numbers(">I")
            values = [reply.chunk(">I") for _ in range(count)]
            (next_offset,) = reply.numbers(">Q")
            # Where it began, the reply does not say: a group's own offset may have been used.
            first = next_offset - count
            return Fetched(
                [FetchedRecord(first + index, value) for index, value in enumerate(values)],
                next_offset,
            )

        return _packed(0x02, _string(group) + _string(topic) + numbers, read)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> Call[bool]:
        body = _string(group) + _string(topic) + struct.pack(">IQ", partition, offset)
        return _packed(0x03, body, lambda reply: bool(reply.numbers(">B")[0]))

    def committed(self, group: str, topic: str, partition: int) -> Call[int | None]:
        def read(reply: _Reply) -> int | None:
            (there,) = reply.numbers(">B")
            return reply.numbers(">Q")[0] if there else None

        return _packed(0x04, _string(group) + _string(topic) + LENGTH.pack(partition), read)

    def create_topic(self, topic: str, partitions: int) -> Call[None]:
        return _packed(0x05, _string(topic) + LENGTH.pack(partitions), lambda _: None)

    def topics(self) -> Call[list[TopicSummary]]:
        def read(reply: _Reply) -> list[TopicSummary]:
            (count,) = reply.numbers(">I")
            return [
                TopicSummary(reply.chunk(">H").decode(), reply.numbers(">I")[0])
                for _ in range(count)
            ]

        return _packed(0x06, b"", read)

    def describe_topic(self, topic: str) -> Call[list[PartitionSummary]]:
        def read(reply: _Reply) -> list[PartitionSummary]:
            reply.chunk(">H")
            _, count = reply.numbers(">II")
            return [PartitionSummary(*reply.numbers(">IQ")) for _ in range(count)]

        return _packed(0x07, _string(topic), read)

    def describe_partition(self, topic: str, partition: int) -> Call[PartitionSummary]:
        def read(reply: _Reply) -> PartitionSummary:
            reply.chunk(">H")
            return PartitionSummary(*reply.numbers(">IQ"))

        return _packed(0x08, _string(topic) + LENGTH.pack(partition), read)

    def metrics(self) -> Call[str]:
        return _packed(0x09, b"", lambda reply: reply.chunk(">I").decode())


class _Reply:
    """Takes fields from the front of a binary reply."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._position = 1

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._payload, self._position)
        self._position += struct.calcsize(form)
        return found

    def chunk(self, form: str) -> bytes:
        (size,) = self.numbers(form)
        start = self._position
        if size > len(self._payload) - start:
            raise ValueError("it ends inside a field")
        self._position = start + size
        return bytes(self._payload[start : self._position])


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _packed(kind: int, body: bytes, read: Callable[[_Reply], T]) -> Call[T]:
    def read_packed(payload: memoryview) -> T:
        reply = _Reply(payload)
        try:
            if payload[0] == _ERROR:
                (code,) = reply.numbers(">H")
                error = ServerError if code in _SERVER_CODES else ClientError
                raise error(code, reply.chunk(">H").decode("utf-8", "replace"))
            if payload[0] != kind:
                raise ConnectionLost(f"reply {payload[0]:#04x} came as the answer to {kind:#04x}")
            return read(reply)
        except (struct.error, ValueError) as flaw:
            raise ConnectionLost(f"the answer to {kind:#04x} cannot be read: {flaw}") from flaw

    return Call(framed(bytes((kind,)) + body), read_packed)


DIALECTS: Final[Mapping[str, Calls]] = {"json": JsonCalls(), "binary": BinaryCalls()}


def calls_of(dialect: str) -> Calls:
    if dialect not in DIALECTS:
        raise ValueError(f"dialect {dialect!r}; accepted are {', '.join(DIALECTS)}")
    return DIALECTS[dialect]
