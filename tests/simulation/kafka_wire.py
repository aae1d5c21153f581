"""Kafka requests and answers, as bytes, for the simulated clients.

Produce and Fetch are packed by hand, because they are most of the traffic; everything else goes
through the schemas that `pentalog.clients` uses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.simulation.violation import Violation

from pentalog.clients.kafka import messages
from pentalog.clients.kafka.fetch import Fetched, read_answer
from pentalog.kernels import FLAW_COUNT, batch_header, check_batches
from pentalog.model import batch
from pentalog.model.batch import CONTROL, TRANSACTIONAL
from pentalog.model.types import Record

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH = 8, 9
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
CREATE_PARTITIONS, ALTER_CONFIGS = 37, 44

_VERSIONS: Final[Mapping[int, int]] = {
    PRODUCE: 7,
    FETCH: 11,
    LIST_OFFSETS: 5,
    METADATA: 12,
    OFFSET_COMMIT: 8,
    OFFSET_FETCH: 7,
    CREATE_TOPICS: 7,
    DELETE_TOPICS: 5,
    DELETE_RECORDS: 2,
    INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS: 3,
    ADD_OFFSETS: 3,
    END_TXN: 3,
    TXN_OFFSET_COMMIT: 3,
    CREATE_PARTITIONS: 3,
    ALTER_CONFIGS: 1,
}
_NEWEST: Final = struct.Struct(">q")
_NEWEST_AT: Final = 35
"""Where the header of a batch has its newest time."""
_CLIENT: Final = b"sim"
_BY_ID: Final = 13
"""The first version of Produce that names topics by their ids."""
ID_HEADER: Final = "id"
"""Every record of a simulated producer carries its identity in a header of this name."""
EARLIEST, LATEST = -2, -1


class Produced(NamedTuple):
    code: int
    base_offset: int


class Read(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    record: Record
    producer_id: int
    transactional: bool


class Answer(NamedTuple):
    """One answer to Fetch, decoded."""

    code: int
    stable: int
    start: int
    next_offset: int
    """Where the next fetch goes on."""
    records: list[Read]
    aborted: list[tuple[int, int]]


def request(key: int, fields: Mapping[str, Any], number: int = 0) -> bytes:
    return messages.request(key, _VERSIONS[key], number, _CLIENT, fields)


def answer(key: int, frame: bytes) -> Any:
    return messages.answer(key, _VERSIONS[key], frame)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def produce(
    topic: str,
    index: int,
    data: bytes,
    acks: int,
    transactional_id: str | None = None,
    number: int = 0,
) -> bytes:
    name = b"\xff\xff" if transactional_id is None else _string(transactional_id)
    return b"".join(
        (
            messages.head(PRODUCE, _VERSIONS[PRODUCE], number, _CLIENT),
            name,
            struct.pack(">hii", acks, 30_000, 1),
            _string(topic),
            struct.pack(">iii", 1, index, len(data)),
            data,
        )
    )


def produced(frame: bytes) -> Produced:
    """The only partition of an answer to Produce."""
    (size,) = struct.unpack_from(">h", frame, 8)
    _, code, base_offset = struct.unpack_from(">ihq", frame, 8 + 2 + size + 4)
    return Produced(code, base_offset)


def produce_by_id(topic_id: object, index: int, data: bytes, acks: int, number: int) -> bytes:
    part = {"index": index, "records": data}
    fields = {
        "transactional_id": None,
        "acks": acks,
        "timeout": messages.ms(30_000),
        "topic_data": [{"topic_id": topic_id, "partition_data": [part]}],
    }
    return messages.request(PRODUCE, _BY_ID, number, _CLIENT, fields)


def produced_by_id(frame: bytes) -> Produced:
    part = messages.answer(PRODUCE, _BY_ID, frame).responses[0].partition_responses[0]
    return Produced(part.error_code, part.base_offset)


def newest_time(data: bytes) -> int:
    """The newest time of a batch's records, by its header."""
    return int(_NEWEST.unpack_from(data, _NEWEST_AT)[0])


def number_of(frame: bytes) -> int:
    """The correlation id of an answer."""
    (number,) = struct.unpack_from(">i", frame)
    return int(number)


def fetch(
    topic: str,
    index: int,
    offset: int,
    *,
    committed: bool,
    bytes_max: int,
    wait_ms: int = 0,
    number: int = 0,
) -> bytes:
    return b"".join(
        (
            messages.head(FETCH, _VERSIONS[FETCH], number, _CLIENT),
            struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, int(committed), 0, -1),
            struct.pack(">i", 1),
            _string(topic),
            struct.pack(">i", 1),
            struct.pack(">iiqqi", index, -1, offset, -1, bytes_max),
            struct.pack(">i", 0),
            _string(""),
        )
    )


def fetched(frame: bytes, offset: int) -> Answer:
    """The records from `offset` on, as a consumer reads them: control batches are left out."""
    found: Fetched = read_answer(memoryview(frame))
    records: list[Read] = []
    data = found.data
    position, next_offset = 0, offset
    while position + 61 <= len(data):
        header = batch_header(data, position)
        if position + header.size > len(data):
            break
        after = header.base_offset + header.last_offset_delta + 1
        if check_batches(data, position, position + header.size).flaw not in (0, FLAW_COUNT):
            raise Violation("damaged", f"a batch at offset {header.base_offset} is damaged")
        if not header.attributes & CONTROL:
            transactional = bool(header.attributes & TRANSACTIONAL)
            records += [
                Read(at, record, header.producer_id, transactional)
                for at, record in batch.records_of(data, position, bytes_max=1 << 26)
                if at >= offset
            ]
        else:
            records.append(Read(header.base_offset, _MARKER, header.producer_id, True))
        next_offset = max(next_offset, after)
        position += header.size
    return Answer(found.code, found.stable, found.start, next_offset, records, found.aborted)


_MARKER: Final = Record(None, None)


def is_marker(read: Read) -> bool:
    return read.record is _MARKER


def committed_only(found: Answer) -> list[Read]:
    """Leave out what was aborted, as a consumer with read_committed does."""
    kept: list[Read] = []
    aborted = sorted(found.aborted, key=lambda entry: entry[1])
    active: set[int] = set()
    for read in found.records:
        while aborted and aborted[0][1] <= read.offset:
            active.add(aborted.pop(0)[0])
        if is_marker(read):
            active.discard(read.producer_id)
        elif not (read.transactional and read.producer_id in active):
            kept.append(read)
    return kept


def identity_of(record: Record) -> bytes:
    """What tells a record from all others."""
    for name, value in record.headers:
        if name in (ID_HEADER, ID_HEADER.encode()):
            return bytes(value or b"")
    return bytes(record.value or b"")


def list_offsets(
    topic: str, indexes: Sequence[int], when: int, *, committed: bool, number: int = 0
) -> bytes:
    return request(
        LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": int(committed),
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": index, "current_leader_epoch": -1, "timestamp": when}
                        for index in indexes
                    ],
                }
            ],
        },
        number,
    )


def metadata() -> bytes:
    return request(
        METADATA,
        {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )


def committed_topics(name: str, index: int, offset: int) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
            ],
        }
    ]
