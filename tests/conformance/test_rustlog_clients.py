"""RustLog through real sockets: the shipped client, a bare socket, and Kafka's clients."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_clients import CLIENTS, Event
from kafka_clients.confluent import write

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
sys.path.insert(0, str(Path(__file__).parents[1] / "clients"))

from broker_process import BrokerProcess
from rustlog_raw import RawRustLog, encoded, fetch, produce, read_all

from pentalog.clients.rustlog import AsyncRustLogClient, ClientError, RustLogClient

pytestmark = pytest.mark.clients


@dataclass(frozen=True)
class Ports:
    kafka: str
    rustlog: str


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    data = tmp_path_factory.mktemp("rustlog") / "data"
    with BrokerProcess(data, "--listen", "rustlog=127.0.0.1:0") as broker:
        found = dict(re.findall(r"(\w+) listening on (\S+)", "\n".join(broker.lines)))
        yield Ports(found["kafka"], found["rustlog"])


@pytest.fixture
def name() -> str:
    return f"rustlog-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("dialect", ["binary", "json"])
@pytest.mark.parametrize("door", ["rustlog", "kafka"])
def test_the_shipped_client(ports: Ports, name: str, dialect: str, door: str) -> None:
    address = getattr(ports, door)
    values = [b"%d" % number * (number % 50) for number in range(1000)]
    with RustLogClient(address, dialect=dialect) as client:
        client.ping()
        client.create_topic(name, 3)
        assert (name, 3) in client.topics()
        with pytest.raises(ClientError, match="already exists"):
            client.create_topic(name, 3)
        for start in range(0, 1000, 250):
            produced = client.produce(name, 1, values[start : start + 250])
            assert produced == (start, 250)
        found = list(client.records(name, 1, bytes_max=4000))
        assert [(record.offset, record.value) for record in found] == list(enumerate(values))
        assert [part.high_watermark for part in client.describe_topic(name)] == [0, 1000, 0]
        assert client.describe_partition(name, 1).high_watermark == 1000
        assert client.committed("g", name, 1) is None
        assert client.commit("g", name, 1, 400)
        assert client.committed("g", name, 1) == 400
        assert "messages_produced_total" in client.metrics()
        if dialect == "binary":
            assert client.fetch(name, 1, 0, group="g").records[0].value == values[400]
        else:
            assert client.fetch(name, 1, 0, group="g").records[0].timestamp_us


@pytest.mark.parametrize("dialect", ["binary", "json"])
def test_the_shipped_client_for_asyncio(ports: Ports, name: str, dialect: str) -> None:
    async def talk() -> list[bytes]:
        async with AsyncRustLogClient(ports.rustlog, dialect=dialect) as client:
            await client.create_topic(name)
            tasks = [client.produce(name, 0, [b"%d" % number]) for number in range(20)]
            offsets = [produced.base_offset for produced in await asyncio.gather(*tasks)]
            assert sorted(offsets) == list(range(20))
            assert await client.commit("g", name, 0, 5)
            assert await client.committed("g", name, 0) == 5
            assert (await client.describe_topic(name))[0].high_watermark == 20
            return [record.value async for record in client.records(name, 0)]

    assert sorted(asyncio.run(talk())) == sorted(b"%d" % number for number in range(20))


def test_a_bare_socket(ports: Ports, name: str) -> None:
    with RawRustLog(ports.rustlog) as peer:
        assert peer.packed(0xFF) == b"\xff"
        assert peer.json(type="Ping") == {"type": "Pong"}
        created = peer.json(type="CreateTopic", topic=name, partition_count=2)
        assert created == {"type": "CreateTopicResponse", "success": True, "partitions_created": 2}
        assert produce(peer, name, 0, b"binary", b"") == (0, 2)
        answer = peer.json(
            type="Produce", topic=name, partition=0, records=encoded(b"json", b"\0\xff")
        )
        assert answer == {"type": "ProduceResponse", "base_offset": 2, "record_count": 2}
        assert read_all(peer, name, 0) == [b"binary", b"", b"json", b"\0\xff"]
        found = peer.json(
            type="Fetch", group_id="x", topic=name, partition=0, offset=1, max_bytes=1 << 20
        )
        assert [record["payload"] for record in found["records"]] == encoded(
            b"", b"json", b"\0\xff"
        )
        assert [record["offset"] for record in found["records"]] == [1, 2, 3]
        assert all(record["timestamp"] > 1_600_000_000_000_000 for record in found["records"])
        assert found["next_offset"] == 4
        refused = peer.json(type="Fetch", topic="no-such", partition=0, offset=0, max_bytes=1)
        assert refused["code"] == 404
        assert name in refused["details"]["available_topics"]
        described = peer.packed(8, name, (0, 4))
        assert int.from_bytes(described[-8:], "big") == 4


def test_frames_cut_and_joined_by_the_network(ports: Ports, name: str) -> None:
    with RawRustLog(ports.rustlog) as peer:
        peer.json(type="CreateTopic", topic=name, partition_count=1)
        ping = b"\0\0\0\x01\xff"
        peer.write(ping * 1000)
        assert [peer.frame() for _ in range(1000)] == [b"\xff"] * 1000
        for byte in ping:
            peer.write(bytes([byte]))
        assert peer.frame() == b"\xff"
        peer.write(bytes(4))
        assert peer.frame()[:3] == b"\xfe\x00\x01"
        assert peer.frame() == b"", "the broker hangs up"


def test_batches_of_concurrent_producers_do_not_mix(ports: Ports, name: str) -> None:
    """In the original, records of two connections could alternate."""
    with RawRustLog(ports.rustlog) as peer:
        peer.json(type="CreateTopic", topic=name, partition_count=1)
        producers = [RawRustLog(ports.rustlog) for _ in range(4)]
        body = name.encode()
        for _ in range(100):
            for number, producer in enumerate(producers):
                value = b"%d" % number
                records = (len(value).to_bytes(4, "big") + value) * 50
                head = b"\x01" + len(body).to_bytes(2, "big") + body + bytes(4)
                producer.send(head + (50).to_bytes(4, "big") + records)
        bases: dict[int, int] = {}
        for round_ in range(100):
            for number, producer in enumerate(producers):
                answer = producer.frame()
                assert answer[0] == 1, round_
                bases[int.from_bytes(answer[1:9], "big")] = number
        values = read_all(peer, name, 0)
        assert len(values) == 4 * 100 * 50
        for base, number in bases.items():
            assert values[base : base + 50] == [b"%d" % number] * 50
        for producer in producers:
            producer.__exit__()


@pytest.mark.parametrize("dialect", ["binary", "json"])
def test_records_cross_to_kafka(ports: Ports, name: str, dialect: str) -> None:
    values = [b"", b"text", bytes(range(256)), b"x" * 70_000]
    with RustLogClient(ports.rustlog, dialect=dialect) as client:
        client.create_topic(name, 2)
        client.produce(name, 1, values)
    for reader in CLIENTS:
        if reader.missing():
            continue
        found = reader.read(ports.kafka, name, partition=1, count=len(values))
        assert [record.offset for record in found] == list(range(len(values)))
        assert [record.event.value or b"" for record in found] == values
        assert {record.event.key for record in found} <= {None, b""}


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_records_of_kafka_cross(ports: Ports, name: str, codec: str) -> None:
    CLIENTS[0].create_topic(ports.kafka, name, partitions=1, settings={})
    t0_ms = 1_700_000_000_000
    events = [
        Event(b"key", b"value %d" % number, (("h", b"1"),), t0_ms + number) for number in range(500)
    ]
    write(ports.kafka, name, events, {"compression.type": codec}, 0)
    for dialect in ("binary", "json"):
        with RustLogClient(ports.rustlog, dialect=dialect) as client:
            found = list(client.records(name, 0, bytes_max=3000))
            assert [record.value for record in found] == [event.value for event in events]
            assert [record.offset for record in found] == list(range(500))
            if dialect == "json":
                assert found[7].timestamp_us == (t0_ms + 7) * 1000


def test_commits_cross_both_ways(ports: Ports, name: str) -> None:
    group = f"group-{name}"
    admin = AdminClient({"bootstrap.servers": ports.kafka})
    with RustLogClient(ports.rustlog) as client:
        client.create_topic(name, 2)
        client.produce(name, 0, [b"%d" % number for number in range(100)])
        assert client.commit(group, name, 0, 42)

        asked = ConsumerGroupTopicPartitions(group)
        (told,) = admin.list_consumer_group_offsets([asked]).values()
        assert [(at.topic, at.partition, at.offset) for at in told.result(30).topic_partitions] == [
            (name, 0, 42)
        ]
        listed = admin.list_consumer_groups().result(30)
        assert group in {view.group_id for view in listed.valid}

        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 77)])
        (done,) = admin.alter_consumer_group_offsets([wanted]).values()
        done.result(30)
        assert client.committed(group, name, 0) == 77
        found = client.fetch(name, 0, 0, group=group)
        assert (found.records[0].value, found.next_offset) == (b"77", 100)

        lag = f'consumer_lag{{topic="{name}",partition="0",group="{group}"}} 23'
        assert lag in client.metrics()


def test_a_kafka_group_goes_on_where_rustlog_stopped(ports: Ports, name: str) -> None:
    group = f"group-{name}"
    with RustLogClient(ports.rustlog, dialect="json") as client:
        client.create_topic(name)
        client.produce(name, 0, [b"%d" % number for number in range(10)])
        client.commit(group, name, 0, 6)
        consumer = Consumer(
            {
                "bootstrap.servers": ports.kafka,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.subscribe([name])
            found = consumer.consume(4, timeout=30)
            assert [message.value() for message in found] == [b"6", b"7", b"8", b"9"]
            consumer.commit(message=found[1], asynchronous=False)
        finally:
            consumer.close()
        assert client.committed(group, name, 0) == 8


def test_kafka_and_rustlog_share_a_port(ports: Ports, name: str) -> None:
    with RawRustLog(ports.kafka) as peer:
        peer.json(type="CreateTopic", topic=name, partition_count=1)
        assert produce(peer, name, 0, b"through the shared port") == (0, 1)
        assert fetch(peer, name, 0, 0) == ([b"through the shared port"], 1)
    found = CLIENTS[0].read(ports.kafka, name, partition=0, count=1)
    assert found[0].event.value == b"through the shared port"
    # Undecided connections neither answer nor do harm.
    host, _, port = ports.kafka.rpartition(":")
    for start in (b"", b"\0", b"\0\0\0\x01"):
        with socket.create_connection((host, int(port)), timeout=60) as peer_socket:
            peer_socket.sendall(start)
    with RawRustLog(ports.kafka) as peer:
        for byte in b"\0\0\0\x01\xff":
            peer.write(bytes([byte]))
        assert peer.frame() == b"\xff"


def test_sharing_can_be_turned_off(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--rustlog-on-kafka-port", "false") as broker,
        RawRustLog(f"127.0.0.1:{broker.port}") as peer,
    ):
        peer.send(b"\xff")
        assert peer.frame() == b"", "Kafka's door hangs up on what it does not know"
