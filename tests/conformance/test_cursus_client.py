"""PyPI's cursus-client, unmodified: producing, polling, streaming, groups, the event store."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cursus_subject import Subject, running
from tests.support.cursus_world import messages_of

cursus = pytest.importorskip("cursus")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
    ),
]

ACKS = {"0": cursus.Acks.NONE, "1": cursus.Acks.ONE, "-1": cursus.Acks.ALL}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with running(tmp_path_factory.mktemp("cursus")) as started:
        yield started
    with warnings.catch_warnings():
        # The client leaves sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def producer(subject: Subject, topic: str, **settings: Any) -> Any:
    chosen = {"partitions": 2, "linger_ms": 5, "batch_size": 50, **settings}
    return cursus.Producer(cursus.ProducerConfig(topic=topic, brokers=[subject.cursus], **chosen))


def stored(subject: Subject, topic: str) -> list[str]:
    """Every payload of a topic, by the wire."""
    found = []
    with subject.connect() as wire:
        (count,) = (
            int(word.split("=")[1])
            for word in wire.text(f"METADATA topic={topic}").split()
            if word.startswith("partitions=")
        )
        for partition in range(count):
            offset = 0
            while True:
                messages = messages_of(
                    wire.ask(
                        f"CONSUME topic={topic} partition={partition} offset={offset} member=m"
                    )
                )
                if not messages:
                    break
                found += [message.payload.decode() for message in messages]
                offset = messages[-1].offset + 1
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


class Reader:
    """A consumer in a thread of its own."""

    def __init__(
        self, subject: Subject, topic: str, group: str, name: str, **settings: Any
    ) -> None:
        self.messages: list[Any] = []
        self.consumer = cursus.Consumer(
            cursus.ConsumerConfig(
                topic=topic,
                brokers=[subject.cursus],
                group_id=group,
                consumer_id=name,
                heartbeat_interval_ms=100,
                auto_commit_interval_s=0.3,
                **settings,
            )
        )
        self._thread = threading.Thread(
            target=lambda: self.consumer.start(self.messages.append), daemon=True
        )
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        return sorted(self.consumer._assignments)

    def close(self) -> None:
        self.consumer.close()
        self._thread.join(10)


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_every_message_is_stored_once(
    subject: Subject, acks: str, idempotent: bool, compression: str
) -> None:
    topic = f"produced-{ACKS[acks].name}-{idempotent}-{compression}"
    writer = producer(
        subject, topic, acks=ACKS[acks], idempotent=idempotent, compression_type=compression
    )
    sent = [f"message {number} é" for number in range(300)]
    for payload in sent:
        writer.send(payload)
    writer.flush()
    assert wait_for(lambda: writer.unique_ack_count == len(sent))
    writer.close()
    assert sorted(stored(subject, topic)) == sorted(sent)


@pytest.mark.parametrize("mode", [cursus.ConsumerMode.POLLING, cursus.ConsumerMode.STREAMING])
def test_a_consumer_reads_everything_and_goes_on_where_it_stopped(
    subject: Subject, mode: Any
) -> None:
    topic = f"consumed-{mode.name.lower()}"
    writer = producer(subject, topic)
    for number in range(100):
        writer.send(f"{number}", key=f"key-{number % 7}")
    writer.flush()
    reader = Reader(subject, topic, "readers", "one", mode=mode)
    assert wait_for(lambda: len(reader.messages) >= 100)
    assert Counter(m.payload for m in reader.messages) == Counter(map(str, range(100)))
    assert {m.key for m in reader.messages} == {f"key-{number}" for number in range(7)}
    reader.close()
    with subject.connect() as wire:
        offsets = [
            int(
                wire.text(f"FETCH_OFFSET topic={topic} partition={index} group=readers")
                .rpartition("=")[2]
            )
            for index in range(2)
        ]  # fmt: skip
    assert sum(offsets) == 100
    again: Reader | None = None
    # What is read twice comes before what is written later, in every partition.
    for first, end in ((100, 120), (120, 140)):
        for number in range(first, end):
            writer.send(f"{number}")
        writer.flush()
        again = again or Reader(subject, topic, "readers", "two", mode=mode)
        assert wait_for(lambda again=again, wanted=end - 100: len(again.messages) >= wanted)
        assert sorted(int(m.payload) for m in again.messages) == list(range(100, end))
    again.close()
    writer.close()


def status(subject: Subject, group: str) -> dict[str, Any]:
    with subject.connect() as wire:
        found: dict[str, Any] = json.loads(wire.text(f"GROUP_STATUS group={group}"))
    return found


def watch(subject: Subject, group: str, heartbeats: int) -> set[int]:
    """The generations seen until every member has been heard of so often."""
    heard: dict[str, set[str]] = defaultdict(set)
    generations: set[int] = set()

    def often() -> bool:
        found = status(subject, group)
        generations.add(found["generation"])
        for member in found["members"]:
            heard[member["member_id"]].add(member["last_heartbeat"])
        return all(len(times) > heartbeats for times in heard.values())

    assert wait_for(often, 60), heard
    return generations


@pytest.mark.parametrize("members", [2, 3])
def test_groups_settle_and_stay_settled(subject: Subject, members: int) -> None:
    topic, group = f"shared-{members}", f"sharers-{members}"
    writer = producer(subject, topic, partitions=2)
    readers = [
        Reader(subject, topic, group, f"w{number}", mode=cursus.ConsumerMode.POLLING)
        for number in range(members)
    ]

    def settled() -> bool:
        """Whether every reader knows what the broker has assigned, in the latest generation."""
        if not all(reader.consumer._generation for reader in readers):
            return False
        found = status(subject, group)
        assigned = {each["member_id"]: sorted(each["assignments"]) for each in found["members"]}
        known = {reader.consumer._member_id: reader.partitions for reader in readers}
        generations = {reader.consumer._generation for reader in readers}
        return assigned == known and generations == {found["generation"]}

    assert wait_for(settled)
    generation = status(subject, group)["generation"]
    for number in range(40):
        writer.send(f"{number}")
    writer.flush()
    assert wait_for(lambda: sum(len(reader.messages) for reader in readers) >= 40)
    assert watch(subject, group, heartbeats=20) == {generation}
    assert settled()
    assert generation <= members + 1
    payloads = Counter(m.payload for reader in readers for m in reader.messages)
    assert payloads == Counter(map(str, range(40)))
    for reader in readers:
        reader.close()
    writer.close()
    # A client that rejoins while it is closed is a member until its session ends.
    assert wait_for(lambda: status(subject, group)["state"] == "Dead")


CONSUMER = """
import sys, cursus
cursus.Consumer(cursus.ConsumerConfig(
    topic=sys.argv[2], brokers=[sys.argv[1]], group_id=sys.argv[3], consumer_id="goes",
    heartbeat_interval_ms=200, mode=cursus.ConsumerMode.STREAMING,
)).start(lambda message: None)
"""


def test_the_partitions_of_a_killed_member_move(subject: Subject) -> None:
    topic, group = "orphaned", "orphans"
    writer = producer(subject, topic, partitions=2)
    stays = Reader(subject, topic, group, "stays", mode=cursus.ConsumerMode.STREAMING)
    goes = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, subject.cursus, topic, group], env=os.environ
    )
    try:
        assert wait_for(lambda: len(stays.partitions) == 1, 60)
    finally:
        goes.kill()
        goes.wait()
    assert wait_for(lambda: stays.partitions == [0, 1], 60)
    for number in range(10):
        writer.send(f"{number}")
    writer.flush()
    assert wait_for(lambda: len(stays.messages) >= 10)
    assert Counter(m.payload for m in stays.messages) == Counter(map(str, range(10)))
    stays.close()
    writer.close()


def test_the_event_store(subject: Subject) -> None:
    store = cursus.EventStore(subject.cursus, "ledger", producer_id="es")
    store.create_topic(2)
    for version, kind in ((1, "Opened"), (2, "Deposited"), (3, "Closed")):
        event = cursus.Event(
            type=kind, schema_version=1, payload=f'{{"n": {version}}}', metadata='{"a":1}'
        )
        store.append("acc-1", version, event)
    with pytest.raises(Exception, match="version_conflict"):
        store.append("acc-1", 3, cursus.Event(type="x", schema_version=1, payload="{}"))
    assert store.stream_version("acc-1") == 3
    assert store.stream_version("nobody") == 0
    data = store.read_stream("acc-1")
    assert [event.type for event in data.events] == ["Opened", "Deposited", "Closed"]
    store.save_snapshot("acc-1", 2, '{"bal": 10}')
    data = store.read_stream("acc-1")
    assert data.snapshot is not None
    assert [event.version for event in data.events] == [3]
    store.close()


@pytest.mark.parametrize("mode", [cursus.ConsumerMode.POLLING, cursus.ConsumerMode.STREAMING])
def test_the_asynchronous_client(subject: Subject, mode: Any) -> None:
    topic = f"async-{mode.name.lower()}"

    async def talk() -> list[str]:
        config = cursus.ProducerConfig(
            topic=topic,
            brokers=[subject.cursus],
            partitions=2,
            linger_ms=5,
            idempotent=True,
            acks=cursus.Acks.ALL,
            compression_type="gzip",
        )
        async with cursus.AsyncProducer(config) as writer:
            for number in range(50):
                await writer.send(f"{number}")
            await writer.flush()
            assert writer.unique_ack_count == 50
        reading = cursus.ConsumerConfig(
            topic=topic, brokers=[subject.cursus], group_id="async", mode=mode
        )
        found: list[str] = []
        async with cursus.AsyncConsumer(reading) as reader:
            async for message in reader:
                found.append(message.payload)
                if len(found) == 50:
                    break
        return found

    found = asyncio.run(asyncio.wait_for(talk(), 30))
    assert sorted(found, key=int) == [str(number) for number in range(50)]
