"""OffsetCommit read by hand: the same as the schema reads, for every version and any bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka_requests import request

from pentalog.protocols.kafka import codec, frames
from pentalog.protocols.kafka.commits import CommitRequest, decode_steps, encode
from pentalog.protocols.kafka.entities import Budget, Undecodable, exhaust

VERSIONS = range(2, 11)
TOPIC_ID = UUID(int=77)


def body_of(version: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "group_id": "grüppe",
        "generation_id_or_member_epoch": 3,
        "member_id": "member",
        "group_instance_id": "instance",
        "retention_time": timedelta(milliseconds=5),
        "topics": [
            {
                "name": "orders",
                "topic_id": TOPIC_ID,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": 10**10 + index,
                        "committed_leader_epoch": 4,
                        "committed_metadata": metadata,
                    }
                    for index, metadata in enumerate(("note", "", None, "x" * 300))
                ],
            },
            {"name": "empty", "topic_id": TOPIC_ID, "partitions": []},
        ],
    }
    data = request(8, version, fields | changes)
    *_, position = frames.read_header(memoryview(data), 4, len(data))
    if frames.flexible_header(8, version):
        position = frames.skip_tags(memoryview(data), position, len(data))
    return bytes(data[position:])


def plain(version: int, read: Any) -> tuple[Any, ...]:
    """What a request says, whoever has read it."""
    return (
        read.group_id,
        read.generation_id_or_member_epoch,
        read.member_id,
        getattr(read, "group_instance_id", None) if version >= 7 else None,
        read.retention_time if version < 5 else None,
        [
            (
                topic.topic_id if version >= 10 else topic.name,
                [
                    (
                        part.partition_index,
                        part.committed_offset,
                        part.committed_leader_epoch if version >= 6 else -1,
                        part.committed_metadata,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in read.topics
        ],
    )


def by_hand(version: int, body: bytes) -> CommitRequest | None:
    try:
        return exhaust(decode_steps(version, body, Budget()))
    except Undecodable:
        return None


def by_schema(version: int, body: bytes) -> Any:
    try:
        return codec.decode(8, version, memoryview(body))
    except Undecodable:
        return None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("changes", [{}, {"topics": []}, {"group_instance_id": None}])
def test_reads_what_the_schema_reads(version: int, changes: dict[str, Any]) -> None:
    body = body_of(version, **changes)
    read = by_hand(version, body)
    assert read is not None
    assert plain(version, read) == plain(version, by_schema(version, body))


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_requests_are_refused(version: int) -> None:
    body = body_of(version)
    assert all(by_hand(version, body[:end]) is None for end in range(len(body)))


@example(version=2, places=[(14, 0)])
@example(version=8, places=[(14, 0), (15, 1)])
@given(
    version=st.sampled_from(VERSIONS),
    places=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=4),
)
def test_damaged_requests_are_read_as_the_schema_reads_them(
    version: int, places: list[tuple[int, int]]
) -> None:
    body = bytearray(body_of(version))
    for at, byte in places:
        body[at % len(body)] = byte
    read, expected = by_hand(version, bytes(body)), by_schema(version, bytes(body))
    assert (read is None) == (expected is None)
    if read is not None:
        assert plain(version, read) == plain(version, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_as_the_schema_does(version: int) -> None:
    topics = [
        {
            "name": name,
            "topic_id": topic_id,
            "partitions": [
                {"partition_index": index, "error_code": code}
                for index, code in enumerate((0, 3, 25) * count)
            ],
        }
        for name, topic_id, count in (("orders", TOPIC_ID, 100), ("grüße" * 40, None, 0))
    ]
    for some in (topics, []):
        assert exhaust(encode(version, 9, some)) == codec.encode(8, version, 9, {"topics": some})
