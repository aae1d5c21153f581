"""Quotas at work: who is over one is told, muted, and served again; nobody else notices."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema
from operator_bench import Bench, Client, read_answer

from pentalog.broker.operation import Owner, Quota
from pentalog.broker.port import TopicSpec
from pentalog.model import batch
from pentalog.model.types import Record
from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.throttling import ThrottledLine

KB = 1000
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


def owner(**names: str | None) -> Owner:
    return frozenset(names.items())


@pytest.fixture(autouse=True)
def topic(bench: Bench) -> None:
    bench.topics.create(TopicSpec(name="a", partitions=2, settings={"retention.ms": "-1"}))


def records(size: int) -> bytes:
    return bytes(batch.build([Record(value=b"v" * size)], timestamp_ms=1))


def produce(
    client: Client, size: int, *, version: int = 9, acks: int = 1, partitions: int = 1
) -> bytes:
    topic: dict[str, Any] = {"name": "a"}
    if version >= 13:
        topic = {"topic_id": client.bench.topics.get("a").topic_id}
    parts = [{"index": index, "records": records(size)} for index in range(partitions)]
    return client.request(
        PRODUCE,
        version,
        transactional_id=None,
        acks=acks,
        timeout=timedelta(seconds=1),
        topic_data=[{**topic, "partition_data": parts}],
    )


def throttled(answer: Any) -> float:
    return answer.throttle_time.total_seconds() * 1000


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", range(3, 14))
def test_a_producer_over_its_quota_is_told_and_muted(
    bench: Bench, version: int, acks: int, partitions: int
) -> None:
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: KB})
    client = bench.connect("busy")
    size = 8 * KB // partitions
    for expected in (False, True):
        client.feed(produce(client, size, version=version, acks=acks, partitions=partitions))
        bench.runtime.advance(200)
        (data,) = client.answers()
        answer = read_answer(PRODUCE, version, data)
        assert len(answer.responses[0].partition_responses) == partitions
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert (throttled(answer) > 5000) == expected
        assert client.full == expected


def test_what_waits_in_the_buffer_waits_until_the_time_is_over(bench: Bench) -> None:
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: KB})
    client = bench.connect("busy")
    versions = client.request(API_VERSIONS, 0)
    requests = produce(client, 12 * KB) + versions + produce(client, 100) + versions
    client.feed(requests)
    assert len(client.answers()) == 1
    assert client.left_bytes > 0
    client.feed(produce(client, 100))
    assert client.answers() == []
    for _ in range(20):
        bench.runtime.advance(3000)
        client.feed()
    assert len(client.answers()) == 4
    assert client.left_bytes == 0
    marks = bench.broker.log.marks(next(iter(bench.store._partitions)))
    assert marks.end == 3


def test_others_are_not_muted(bench: Bench) -> None:
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: KB})
    busy, calm = bench.connect("busy"), bench.connect("calm")
    busy.feed(produce(busy, 20 * KB))
    for _ in range(3):
        calm.feed(produce(calm, 20 * KB))
        (data,) = calm.answers()
        assert throttled(read_answer(PRODUCE, 9, data)) == 0
    assert busy.full
    assert not calm.full


def test_all_connections_of_a_client_share_its_quota(bench: Bench) -> None:
    bench.quotas.change(owner(user="ANONYMOUS"), {Quota.WRITTEN: KB})
    first, second = bench.connect("x"), bench.connect("y")
    first.feed(produce(first, 9 * KB))
    assert not first.full
    second.feed(produce(second, 9 * KB))
    assert second.full


def test_a_producer_without_answers_is_muted_too(bench: Bench) -> None:
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: KB})
    client = bench.connect("busy")
    client.feed(produce(client, 20 * KB, acks=0))
    assert client.answers() == []
    assert client.full


def test_a_quota_that_is_removed_holds_nobody_back(bench: Bench) -> None:
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: KB})
    client = bench.connect("busy")
    client.feed(produce(client, 20 * KB))
    bench.quotas.change(owner(client="busy"), {Quota.WRITTEN: None})
    bench.runtime.advance(12_000)
    for _ in range(3):
        client.feed(produce(client, 20 * KB))
    assert not client.full
    assert len(client.answers()) == 4


def fetch(
    client: Client, version: int, *, session: tuple[int, int] = (0, -1), wait_ms: int = 0
) -> bytes:
    topic: dict[str, Any] = {"topic": "a"}
    if version >= 13:
        topic = {"topic_id": client.bench.topics.get("a").topic_id}
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return client.request(
        FETCH,
        version,
        replica_id=-1,
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{**topic, "partitions": [part]}] if session[1] <= 0 else [],
        forgotten_topics_data=[],
        rack_id="",
    )


def fetched(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


def ask_fetch(client: Client, version: int, **how: Any) -> Any:
    client.feed(fetch(client, version, **how))
    (data,) = client.answers()
    return read_answer(FETCH, version, data)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_consumer_over_its_quota_gets_nothing_for_a_while(bench: Bench, version: int) -> None:
    writer = bench.connect("writer")
    for _ in range(4):
        writer.feed(produce(writer, 4 * KB, acks=-1))
        bench.runtime.advance(200)
    bench.quotas.change(owner(client="reader"), {Quota.READ: KB})
    client = bench.connect("reader")
    first = ask_fetch(client, version)
    # No more than ten seconds' worth at once: two of the four batches.
    assert 8 * KB < fetched(first) < 10 * KB
    assert throttled(first) == 0
    second = ask_fetch(client, version)
    assert second.responses == ()
    assert throttled(second) > 5000
    assert client.full
    bench.runtime.advance(throttled(second) + 11_000)
    assert fetched(ask_fetch(client, version)) > 8 * KB


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_throttled_fetch_opens_no_session_and_loses_no_news(bench: Bench, version: int) -> None:
    writer = bench.connect("writer")
    for _ in range(2):
        writer.feed(produce(writer, 4 * KB, acks=-1))
        bench.runtime.advance(200)
    bench.quotas.change(owner(client="reader"), {Quota.READ: KB})
    client = bench.connect("reader")
    opened = ask_fetch(client, version, session=(0, 0))
    assert opened.session_id > 0
    assert fetched(opened) > 8 * KB
    going_on = ask_fetch(client, version, session=(opened.session_id, 1))
    assert (going_on.session_id, going_on.responses) == (opened.session_id, ())
    assert throttled(going_on) > 0
    bench.runtime.advance(12_000)
    later = ask_fetch(client, version, session=(opened.session_id, 2))
    assert fetched(later) > 8 * KB
    refused = ask_fetch(client, version, session=(0, 0))
    assert (refused.session_id, refused.responses, refused.error_code) == (0, (), 0)
    assert throttled(refused) > 0


def test_time_spent_on_a_client_is_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.quotas.change(owner(client="costly"), {Quota.WORK: 10.0})
    client = bench.connect("costly")
    clock = bench.runtime

    def costly(call: Any) -> Any:
        clock._now_ms += 600
        return real(call)

    real = APIS[METADATA].serve
    monkeypatch.setitem(APIS, METADATA, type(APIS[METADATA])(METADATA, "Metadata", 0, 13, costly))
    answers = []
    for version in (12, 12, 4, 12):
        clock.advance(2)
        answer = client.ask(
            METADATA,
            version,
            topics=[],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answers.append(answer)
        if client.full:
            break
    assert [throttled(answer) > 0 for answer in answers] == [False, False, True]
    assert throttled(answers[-1]) <= 1000


class Sent:
    def send(self, *pieces: Any) -> None:
        self.answer = b"".join(map(bytes, pieces))


@pytest.mark.parametrize("key", sorted(set(APIS) - {PRODUCE, FETCH}))
def test_every_answer_has_a_place_for_the_time_or_none(key: int) -> None:
    for version in range(APIS[key].version_min, APIS[key].version_max + 1):
        schema = load_response_schema(key, version)
        names = [field.name for field in dataclasses.fields(schema)]
        empty = {
            field.name: [] if "tuple" in str(field.type) else _blank(field)
            for field in dataclasses.fields(schema)
            if field.default is dataclasses.MISSING
        }
        frame = codec.encode(key, version, 7, empty)
        sent = Sent()
        ThrottledLine(sent, key, version, 1234).send(frame)  # type: ignore[arg-type]
        answer = read_answer(key, version, sent.answer[4:])
        if "throttle_time" in names and key != API_VERSIONS:
            assert throttled(answer) == 1234
        else:
            assert sent.answer == bytes(frame)


def _blank(field: Any) -> Any:
    if "None" in str(field.type):
        return None
    return {"string": "", "bytes": b"", "bool": False}.get(field.metadata.get("kafka_type"), 0)
