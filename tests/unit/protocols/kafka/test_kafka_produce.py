"""Produce, by runs and one by one, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka_requests import produce
from kafka_world import World, answer_of, records

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.model import errors
from pentalog.model.types import Partition

VERSIONS = range(3, 14)
AT = Partition("orders", 0)


def world() -> tuple[World, UUID]:
    made = World()
    return made, made.topics.add("orders", 2).topic_id


def name(version: int, topic_id: UUID) -> str | UUID:
    return topic_id if version >= 13 else "orders"


def only(answer: Any) -> Any:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_gets_its_offset(version: int, acks: int) -> None:
    made, topic_id = world()
    for expected in (0, 3, 6):
        data = produce(version, [(name(version, topic_id), 0, records(3))], acks=acks)
        partition = only(made.ask(0, version, data))
        assert (partition.error_code, partition.base_offset, partition.index) == (0, expected, 0)
        if version >= 5:
            assert partition.log_start_offset == 0
    assert [kernels.batch_header(data, 0).base_offset for data in made.log.batches[AT]] == [0, 3, 6]


@pytest.mark.parametrize("version", VERSIONS)
def test_neighbours_are_appended_together_and_answered_each(version: int) -> None:
    made, topic_id = world()
    parts = [(name(version, topic_id), 0, records(2))]
    data = b"".join(produce(version, parts, correlation_id=number) for number in range(5))
    assert made.feed(data) == len(data)
    answers = made.line.frames()
    assert [int.from_bytes(answer[:4], "big") for answer in answers] == [0, 1, 2, 3, 4]
    offsets = [only(answer_of(0, version, answer)).base_offset for answer in answers]
    assert offsets == [0, 2, 4, 6, 8]
    assert made.log.appends == [(AT, 5)]
    assert made.line.sends == 1
    assert made.metrics.requests == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_several_partitions_in_one_request(version: int) -> None:
    made, topic_id = world()
    topic = name(version, topic_id)
    strange: str | UUID = UUID(int=99) if version >= 13 else "nowhere"
    parts: list[Any] = [
        (topic, 0, records(2)),
        (topic, 1, records(1)),
        (strange, 0, records()),
        (topic, 7, records()),
        (topic, 1, None),
        (topic, 0, records(1)[:-1]),
    ]
    answer = made.ask(0, version, produce(version, parts))
    found = [
        (partition.index, int(partition.error_code), partition.base_offset)
        for topic in answer.responses
        for partition in topic.partition_responses
    ]
    unknown = 100 if version >= 13 else 3
    assert found == [(0, 0, 0), (1, 0, 0), (0, unknown, -1), (7, 3, -1), (1, 87, -1), (0, 2, -1)]
    if version >= 8:
        assert (
            "nowhere" in answer.responses[2].partition_responses[0].error_message or unknown == 100
        )


def flipped(data: bytearray, position: int) -> bytearray:
    data[position] ^= 1
    return data


def with_attributes(bits: int) -> bytearray:
    data = records()
    data[22] |= bits
    data[17:21] = kernels.crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return data


@pytest.mark.parametrize("version", [3, 7, 8, 9, 13])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (flipped(records(), 70), 2),
        (flipped(records(), 16), 87),
        (b"", 87),
        (None, 87),
        (with_attributes(0x20), 87),
        (with_attributes(0x10), 53),
        (bytes(records()) + bytes(records()), 87),
    ],
    ids=["crc", "magic", "empty", "null", "control", "transactional", "two batches"],
)
def test_what_kafka_refuses(version: int, data: bytes | None, error: int) -> None:
    made, topic_id = world()
    request = produce(version, [(name(version, topic_id), 0, data)])
    assert only(made.ask(0, version, request)).error_code == error
    assert not made.log.appends


@pytest.mark.parametrize(("version", "error"), [(3, 76), (6, 76), (7, 0), (13, 0)])
def test_zstd_came_with_version_7(version: int, error: int) -> None:
    made, topic_id = world()
    request = produce(version, [(name(version, topic_id), 0, records(codec=4))])
    assert only(made.ask(0, version, request)).error_code == error


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(parts: int, acks: int) -> None:
    made, _ = world()
    request = produce(9, [("orders", number, records()) for number in range(parts)], acks=acks)
    answer = made.ask(0, 9, request)
    codes = {partition.partition_responses[0].error_code for partition in answer.responses}
    assert codes == {21}
    assert not made.log.appends


@pytest.mark.parametrize("parts", [1, 2])
def test_acks_0_is_silent(parts: int) -> None:
    made, _ = world()
    request = produce(9, [("orders", number, records()) for number in range(parts)], acks=0)
    assert made.feed(request) == len(request)
    assert made.line.sent() == b""
    assert not made.line.hung_up
    assert len(made.log.appends) == parts


@pytest.mark.parametrize("parts", [1, 2])
def test_acks_0_refused_ends_the_connection(parts: int) -> None:
    made, _ = world()
    good = produce(9, [("orders", 0, records())], acks=1)
    bad = produce(9, [("orders", 5, records())] * parts, acks=0)
    made.feed(good + bad + good)
    assert made.line.hung_up
    assert len(made.line.frames()) == 1


def test_acks_all_waits_for_the_disk_and_keeps_its_place() -> None:
    made, _ = world()
    made.log.held = []
    made.feed(produce(9, [("orders", 0, records())], acks=-1, correlation_id=1))
    made.feed(produce(9, [("orders", 0, records())], acks=1, correlation_id=2))
    assert made.line.frames() == []
    (later, appended), made.log.held = made.log.held[0], None
    later.fill(appended)
    assert [answer[3] for answer in made.line.frames()] == [1, 2]


def test_a_disk_that_fails_is_answered() -> None:
    made, _ = world()
    made.log.held = []
    made.feed(produce(9, [("orders", 0, records())], acks=-1))
    made.feed(produce(9, [("orders", 0, records()), ("orders", 1, records())], acks=-1))
    for later, _ in made.log.held:
        later.refuse(errors.StorageFailed("the disk failed"))
    first, second = (answer_of(0, 9, answer) for answer in made.line.frames())
    assert only(first).error_code == 56
    assert only(first).error_message == "the disk failed"
    assert [topic.partition_responses[0].error_code for topic in second.responses] == [56, 56]


def test_a_refused_run_is_tried_request_by_request() -> None:
    made, _ = world()

    def refuse(facts: Facts) -> errors.BrokerError | None:
        if facts.batches > 1 or facts.records == 2:
            return errors.OutOfSequence("not this one")
        return None

    made.log.refuse = refuse
    sizes = (1, 2, 3)
    data = b"".join(
        produce(9, [("orders", 0, records(size))], correlation_id=size) for size in sizes
    )
    made.feed(data)
    found = [only(answer_of(0, 9, answer)) for answer in made.line.frames()]
    assert [(int(one.error_code), one.base_offset) for one in found] == [(0, 0), (45, -1), (0, 1)]


def test_a_changed_topic_is_looked_up_again() -> None:
    made, topic_id = world()
    request = produce(13, [(topic_id, 0, records())])
    assert only(made.ask(0, 13, request)).error_code == 0
    made.topics.delete("orders")
    assert only(made.ask(0, 13, request)).error_code == 100
    assert only(made.ask(0, 9, produce(9, [("orders", 0, records())]))).error_code == 3


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (errors.ProducerFenced("x"), 47),
        (errors.UnknownProducer("x"), 59),
        (errors.RecordTooLarge("x"), 10),
        (errors.InvalidTimestamp("x"), 32),
        (errors.NotEnoughReplicas("x"), 19),
        (errors.StorageFull("x"), 56),
        (errors.Overloaded("x"), 89),
    ],
)
def test_refusals_of_the_log_have_their_codes(refusal: errors.BrokerError, code: int) -> None:
    made, _ = world()
    made.log.refuse = lambda facts: refusal
    assert only(made.ask(0, 9, produce(9, [("orders", 0, records())]))).error_code == code


def test_a_name_of_16_bytes_is_no_id() -> None:
    made = World()
    topic = made.topics.add("a" * 16)
    assert only(made.ask(0, 9, produce(9, [("a" * 16, 0, records())]))).error_code == 0
    wrong = UUID(bytes=b"a" * 16)
    assert only(made.ask(0, 13, produce(13, [(wrong, 0, records())]))).error_code == 100
    assert only(made.ask(0, 13, produce(13, [(topic.topic_id, 0, records())]))).error_code == 0
