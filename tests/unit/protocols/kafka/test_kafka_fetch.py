"""Fetch in every version: limits, errors, waits, slow disks, sessions."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kafka_requests import fetch, produce
from kafka_schemas import sample, written
from kafka_world import Line, World, answer_of, records
from kio.index import load_request_schema

from pentalog.model.errors import StorageFailed
from pentalog.model.types import Aborted, Marks, Partition, Slice
from pentalog.protocols.kafka import fetch_answers, fetch_requests
from pentalog.protocols.kafka.entities import Budget, Undecodable, exhaust
from pentalog.protocols.kafka.fetch_answers import Outcome
from pentalog.protocols.kafka.fetch_sessions import Cursor

VERSIONS = range(4, 19)


def world(partitions: int = 3) -> tuple[World, UUID]:
    made = World()
    return made, made.topics.add("orders", partitions).topic_id


def fill(made: World, index: int, *, count: int = 1, size: int = 10) -> bytes:
    made.feed(produce(9, [("orders", index, records(count, size=size))], acks=0))
    return made.log.batches[Partition("orders", index)][-1]


def described(entity: Any, version: int) -> tuple[Any, ...]:
    """What kio's entity says, in the words of our own reader."""

    def topic_of(topic: Any) -> bytes:
        return topic.topic_id.bytes if version >= 13 else topic.topic.encode()

    cursors = [
        Cursor(
            topic_of(topic),
            one.partition,
            one.fetch_offset,
            one.partition_max_bytes,
            getattr(one, "current_leader_epoch", -1),
        )
        for topic in entity.topics
        for one in topic.partitions
    ]
    forgotten = [
        (topic_of(topic), index)
        for topic in getattr(entity, "forgotten_topics_data", ())
        for index in topic.partitions
    ]
    return (
        entity.max_wait // timedelta(milliseconds=1),
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level,
        getattr(entity, "session_id", 0),
        getattr(entity, "session_epoch", -1),
        cursors,
        forgotten,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_kio_writes_them(version: int) -> None:
    dice = random.Random(version)
    schema = load_request_schema(1, version)
    for _ in range(20):
        entity, _ = sample(schema, dice, nulls=False)
        body = written(entity)
        read = exhaust(fetch_requests.decode_steps(version, body, Budget()))
        assert read == described(entity, version)
        for end in range(17):
            with pytest.raises(Undecodable):
                exhaust(fetch_requests.decode_steps(version, body[:end], Budget()))


def name(version: int, topic_id: UUID) -> str | UUID:
    return topic_id if version >= 13 else "orders"


def flat(answer: Any) -> list[Any]:
    return [partition for topic in answer.responses for partition in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_come_as_they_were_stored(version: int) -> None:
    made, topic_id = world()
    stored = fill(made, 0, count=2) + fill(made, 0, count=3)
    topic = name(version, topic_id)
    answer = made.ask(1, version, fetch(version, [(topic, 0, 1), (topic, 1, 0)]))
    first, second = flat(answer)
    assert (first.error_code, first.partition_index, first.high_watermark) == (0, 0, 5)
    assert first.last_stable_offset == 5
    assert first.aborted_transactions is None
    assert first.records == stored
    assert (second.partition_index, second.high_watermark, second.records) == (1, 0, b"")
    if version >= 13:
        assert {topic.topic_id for topic in answer.responses} == {topic_id}


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_written_as_kio_reads_them(version: int) -> None:
    """Errors, aborted transactions, several topics and long records, in one answer."""
    marks = Marks(3, 7, 8, 9)
    long = memoryview(bytes(range(256)) * 100)
    topics = (b"t" * 16, b"u" * 16)
    outcomes = [
        Outcome(Cursor(topics[0], 5, 0, 0, -1), 0, Slice([long, long], 51200, marks, 9)),
        Outcome(Cursor(topics[0], 6, 0, 0, -1), 1, None),
        Outcome(
            Cursor(topics[1], 0, 0, 0, -1),
            0,
            Slice([long], 25600, marks, 9, [Aborted(4, 5), Aborted(6, 7)]),
        ),
        Outcome(Cursor(topics[0], 1, 0, 0, -1), 0, Slice([], 0, marks, 9)),
    ]
    pieces = exhaust(
        fetch_answers.frame(version, 11, error=70, session_id=12, outcomes=outcomes, committed=True)
    )
    data = b"".join(bytes(piece) for piece in pieces)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    answer = answer_of(1, version, data[4:])
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (70, 12)
    assert [len(topic.partitions) for topic in answer.responses] == [2, 1, 1]
    first, second, third, fourth = flat(answer)
    assert first.records == bytes(long) * 2
    assert (first.high_watermark, first.last_stable_offset) == (8, 7)
    assert first.aborted_transactions == ()
    assert (second.error_code, second.high_watermark, second.records) == (1, -1, b"")
    aborted = [(one.producer_id, one.first_offset) for one in third.aborted_transactions]
    assert aborted == [(4, 5), (6, 7)]
    assert (fourth.records, fourth.partition_index) == (b"", 1)
    if version >= 5:
        assert (first.log_start_offset, second.log_start_offset) == (3, -1)
    if version >= 11:
        assert first.preferred_read_replica == -1


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_are_of_one_partition(version: int) -> None:
    made, topic_id = world()
    stored = fill(made, 0)
    topic = name(version, topic_id)
    strange: str | UUID = UUID(int=9) if version >= 13 else "nowhere"
    parts = [(strange, 0, 0), (topic, 9, 0), (topic, 1, 5), (topic, 0, 0)]
    found = flat(made.ask(1, version, fetch(version, parts)))
    unknown = 100 if version >= 13 else 3
    assert [int(one.error_code) for one in found] == [unknown, 3, 1, 0]
    assert found[-1].records == stored
    (below,) = flat(made.ask(1, version, fetch(version, [(topic, 1, -1)])))
    assert below.error_code == 1


@pytest.mark.parametrize(("epoch", "error"), [(-1, 0), (0, 0), (1, 75)])
def test_there_is_one_leader_epoch(epoch: int, error: int) -> None:
    made, _ = world()
    (one,) = flat(made.ask(1, 11, fetch(11, [("orders", 0, 0)], epoch=epoch)))
    assert one.error_code == error


def test_the_first_batch_comes_whole_and_only_the_first() -> None:
    made, _ = world()
    for index in range(3):
        fill(made, index, size=1000)
    parts = [("orders", index, 0) for index in range(3)]
    found = flat(made.ask(1, 11, fetch(11, parts, bytes_max=1)))
    assert [bool(one.records) for one in found] == [True, False, False]
    assert [one.high_watermark for one in found] == [1, 1, 1]
    found = flat(made.ask(1, 11, fetch(11, parts, partition_bytes_max=1)))
    assert [bool(one.records) for one in found] == [True, False, False]
    found = flat(made.ask(1, 11, fetch(11, parts, bytes_max=2500)))
    assert [bool(one.records) for one in found] == [True, True, False]


def test_an_empty_fetch_waits_and_is_woken() -> None:
    made, _ = world()
    made.feed(fetch(11, [("orders", 0, 0), ("orders", 1, 0)], wait_ms=500))
    assert made.line.waiting == 1
    ((waiting, positions),) = made.log.waits
    assert positions == {Partition("orders", 0): 0, Partition("orders", 1): 0}
    stored = fill(made, 1)
    waiting.fill(True)
    found = flat(answer_of(1, 11, made.line.frames()[0]))
    assert [one.records for one in found] == [b"", stored]
    assert not made.session.waits


def test_time_up_is_answered_with_nothing() -> None:
    made, _ = world()
    made.feed(fetch(11, [("orders", 0, 0)], wait_ms=500))
    made.log.waits[0][0].fill(False)
    (one,) = flat(answer_of(1, 11, made.line.frames()[0]))
    assert (one.error_code, one.records) == (0, b"")
    assert len(made.log.waits) == 1


def test_few_fetches_of_one_connection_wait() -> None:
    """Each keeps every partition that it watches: a thousand of them would fill the memory."""
    made, _ = world()
    for number in range(20):
        made.feed(fetch(11, [("orders", 0, 0)], wait_ms=500, correlation_id=number))
    assert len(made.log.waits) == 10
    for waiting, _ in made.log.waits:
        waiting.fill(False)
    assert [answer[3] for answer in made.line.frames()] == list(range(20))


def test_a_waiting_fetch_is_not_overtaken() -> None:
    made, _ = world()
    made.feed(fetch(11, [("orders", 0, 0)], wait_ms=500, correlation_id=1))
    made.feed(fetch(11, [("orders", 0, 0)], wait_ms=0, correlation_id=2))
    assert made.line.frames() == []
    made.log.waits[0][0].fill(False)
    assert [answer[3] for answer in made.line.frames()] == [1, 2]


def test_too_little_data_waits_for_more() -> None:
    made, _ = world()
    fill(made, 0)
    made.feed(fetch(11, [("orders", 0, 0)], wait_ms=500, bytes_min=10_000))
    assert made.line.waiting == 1
    made.log.waits[0][0].fill(False)
    (one,) = flat(answer_of(1, 11, made.line.frames()[0]))
    assert one.records


def test_an_error_does_not_wait() -> None:
    made, _ = world()
    made.feed(fetch(11, [("orders", 0, 0), ("orders", 9, 0)], wait_ms=500))
    assert made.line.waiting == 0
    assert not made.log.waits


def test_closing_gives_waits_up() -> None:
    made, _ = world()
    made.feed(fetch(11, [("orders", 0, 0)], wait_ms=500))
    made.session.close()
    assert made.log.waits[0][0].cancelled


def test_a_slow_disk_keeps_the_place_and_the_limits() -> None:
    made, _ = world()
    for index in range(3):
        fill(made, index, size=1000)
    made.log.slow = []
    made.feed(fetch(11, [("orders", index, 0) for index in range(3)], bytes_max=2500))
    for step in range(3):
        assert len(made.log.slow) == step + 1
        later, slice_ = made.log.slow[step]
        if step == 1:
            later.refuse(StorageFailed("cannot read"))
        else:
            later.fill(slice_)
    found = flat(answer_of(1, 11, made.line.frames()[0]))
    assert [int(one.error_code) for one in found] == [0, 56, 0]
    assert [bool(one.records) for one in found] == [True, False, True]


class Consumer:
    """A client with a fetch session, in either way of naming topics."""

    def __init__(self, made: World, version: int, topic: str | UUID) -> None:
        self.made = made
        self.version = version
        self.topic = topic
        self.session = (0, 0)

    def ask(self, *parts: tuple[int, int], forgotten: tuple[int, ...] = ()) -> Any:
        request = fetch(
            self.version,
            [(self.topic, index, offset) for index, offset in parts],
            session=self.session,
            forgotten=[(self.topic, index) for index in forgotten],
        )
        answer = self.made.ask(1, self.version, request)
        if answer.session_id:
            self.session = (answer.session_id, self.session[1] + 1)
        return answer


@pytest.fixture(params=[7, 11, 12, 13, 18])
def consumer(request: pytest.FixtureRequest) -> Consumer:
    made, topic_id = world()
    return Consumer(made, request.param, name(request.param, topic_id))


def indexes(answer: Any) -> list[int]:
    return [one.partition_index for one in flat(answer)]


def test_a_session_answers_only_what_changed(consumer: Consumer) -> None:
    made = consumer.made
    assert indexes(consumer.ask((0, 0), (1, 0), (2, 0))) == [0, 1, 2]
    assert consumer.session[0] > 0
    assert indexes(consumer.ask()) == []
    fill(made, 1)
    answer = consumer.ask()
    assert indexes(answer) == [1]
    assert flat(answer)[0].records
    assert indexes(consumer.ask((1, 1))) == []
    fill(made, 0)
    fill(made, 2)
    assert indexes(consumer.ask((1, 1))) == [0, 2]
    assert indexes(consumer.ask((0, 1), forgotten=(2,))) == []
    fill(made, 2)
    assert indexes(consumer.ask()) == []


def test_partitions_that_gave_records_go_to_the_back(consumer: Consumer) -> None:
    made = consumer.made
    consumer.ask((0, 0), (1, 0), (2, 0))
    fill(made, 0)
    consumer.ask()
    for index in range(3):
        fill(made, index)
    assert indexes(consumer.ask((0, 1))) == [1, 2, 0]


def test_errors_are_repeated_and_their_end_is_told(consumer: Consumer) -> None:
    assert indexes(consumer.ask((0, 5), (1, 0))) == [0, 1]
    answer = consumer.ask()
    assert [(one.partition_index, int(one.error_code)) for one in flat(answer)] == [(0, 1)]
    answer = consumer.ask((0, 0))
    assert [(one.partition_index, int(one.error_code)) for one in flat(answer)] == [(0, 0)]
    assert indexes(consumer.ask()) == []


def test_sessions_are_told_apart_and_counted(consumer: Consumer) -> None:
    consumer.ask((0, 0))
    session_id, epoch = consumer.session
    consumer.session = (session_id + 1, epoch)
    assert consumer.ask().error_code == 70
    consumer.session = (session_id, epoch + 1)
    answer = consumer.ask()
    assert (answer.error_code, answer.session_id, answer.responses) == (71, 0, ())
    consumer.session = (session_id, epoch)
    assert consumer.ask().error_code == 0


def test_epoch_minus_1_closes(consumer: Consumer) -> None:
    consumer.ask((0, 0))
    alive = consumer.session
    consumer.session = (alive[0], -1)
    assert consumer.ask().session_id == 0
    consumer.session = alive
    assert consumer.ask().error_code == 70


def test_epoch_0_replaces(consumer: Consumer) -> None:
    consumer.ask((0, 0))
    old = consumer.session
    consumer.session = (old[0], 0)
    assert indexes(consumer.ask((1, 0))) == [1]
    assert consumer.session[0] != old[0]
    consumer.session = old
    assert consumer.ask().error_code == 70


def test_a_session_with_nothing_left_ends(consumer: Consumer) -> None:
    consumer.ask((0, 0))
    answer = consumer.ask(forgotten=(0,))
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert consumer.ask().error_code == 70


def test_a_session_survives_its_connection(consumer: Consumer) -> None:
    made = consumer.made
    consumer.ask((0, 0))
    made.session.close()
    made.line = Line()
    made.session = made.connect(made.line)
    assert consumer.ask().error_code == 0


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    made, topic_id = world()
    consumer = Consumer(made, 12, "orders")
    consumer.ask((0, 0))
    consumer.version, consumer.topic = 13, topic_id
    assert consumer.ask().error_code == 106
