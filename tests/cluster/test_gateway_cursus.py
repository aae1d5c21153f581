"""Cursus in front of Apache Kafka: two gateways, of which one numbers the events, and dies."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from fleet_member import FleetMember
from kafka_node import Node

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.golden.cursus.test_cursus_golden import GOLDEN, spoken
from tests.support.cursus_world import Message, batch, frame, messages_of, numbered

from pentalog.clients.kafka import Cluster, committed
from pentalog.clients.kafka.errors import Refused
from pentalog.model import batch as batches_of
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Partition, Record

pytestmark = pytest.mark.java

DESCRIBE_PRODUCERS = 61
PATIENCE_S = 120

T = TypeVar("T")


class Talk:
    """One connection that waits for each answer."""

    def __init__(self, member: FleetMember) -> None:
        host, _, port = member.addresses["cursus"].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._incoming = self._socket.makefile("rb")

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *failure: object) -> None:
        self._incoming.close()
        self._socket.close()

    def ask(self, body: bytes) -> bytes:
        self._socket.sendall(frame(body))
        return self.receive()

    def receive(self) -> bytes:
        head = self._incoming.read(4)
        if len(head) < 4:
            raise ConnectionError("the gateway hung up")
        (size,) = struct.unpack(">I", head)
        return self._incoming.read(size)

    def text(self, command: str) -> str:
        return self.ask(b"\0\0" + command.encode()).decode()

    def publish(self, body: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(body))
        return found

    def payloads(self, topic: str, index: int = 0, offset: int = 0) -> list[bytes]:
        command = f"CONSUME topic={topic} partition={index} offset={offset} member=m"
        return [message.payload for message in messages_of(self.ask(command.encode()))]


@pytest.fixture(scope="module")
def pair(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FleetMember]]:
    directory = tmp_path_factory.mktemp("pair")
    members = [FleetMember(directory / name, node.address, ["cursus"]) for name in ("one", "two")]
    yield members
    for member in members:
        assert member.stop() == 0


def until(what: str, attempt: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not attempt():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def joined(talk: Talk, topic: str, name: str) -> tuple[str, int, list[int]]:
    answer = talk.text(f"JOIN_GROUP topic={topic} group={topic} member={name}")
    found = re.fullmatch(r"OK generation=(\d+) member=(\S+) assignments=\[(.*)\]", answer)
    assert found is not None, answer
    return found[2], int(found[1]), [int(index) for index in found[3].split()]


def test_two_gateways_are_one_broker(pair: list[FleetMember], node: Node, topic: str) -> None:
    with Talk(pair[0]) as here, Talk(pair[1]) as there:
        assert here.text(f"CREATE topic={topic} partitions=2").startswith("OK")
        for number in range(20):
            talk = (here, there)[number % 2]
            body = batch([Message(b"%d" % number)], topic=topic, acks="-1")
            assert talk.publish(body)["last_offset"] == number
        values = [b"%d" % number for number in range(20)]
        assert here.payloads(topic) == there.payloads(topic) == values
        first = numbered(1, 2, topic=topic, partition=1, acks="-1")
        assert here.publish(first)["last_offset"] == 1
        assert there.publish(first)["last_offset"] == 1
        then = numbered(3, topic=topic, partition=1, acks="-1")
        assert there.publish(then)["last_offset"] == 2
        assert "expected 4, got 9" in here.publish(numbered(9, topic=topic, partition=1))["error"]
        newer = numbered(1, topic=topic, partition=1, epoch=2)
        assert there.publish(newer)["last_offset"] == 3
        assert here.publish(numbered(4, topic=topic, partition=1))["status"] == "ERROR"
        waiting = f"CONSUME topic={topic} partition=0 offset=20 member=m wait_ms=30000"
        with Talk(pair[1]) as reader:
            reader._socket.sendall(frame(waiting.encode()))
            here.publish(batch([Message(b"late")], topic=topic, acks="1"))
            (late,) = messages_of(reader.receive())
        assert late.payload == b"late"
        assert here.text(f"DELETE topic={topic}") == f"OK topic={topic} deleted=true"
        assert there.text(f"DESCRIBE topic={topic}").startswith("ERROR: topic_not_found")


def test_members_at_two_gateways(pair: list[FleetMember], node: Node, topic: str) -> None:
    with Talk(pair[0]) as here, Talk(pair[1]) as there, Cluster(node.address) as cluster:
        here.text(f"CREATE topic={topic} partitions=4")
        shares: list[list[int]] = [[], []]
        names = ["a", "b"]
        generations = [0, 0]

        def shared() -> bool:
            for number, talk in enumerate((here, there)):
                names[number], generations[number], shares[number] = joined(
                    talk, topic, names[number]
                )
            return sorted(shares[0] + shares[1]) == [0, 1, 2, 3] and len(shares[0]) == 2

        until("two halves", shared)
        for number, talk in enumerate((here, there)):
            index = shares[number][0]
            talk.publish(batch([Message(b"x")], topic=topic, partition=index, acks="-1"))
            answer = talk.text(
                f"COMMIT_OFFSET topic={topic} partition={index} group={topic} offset=1 "
                f"generation={generations[number]} member={names[number]}"
            )
            assert answer == "OK"
        places = {Partition(topic, shares[number][0]): 1 for number in (0, 1)}
        found = committed(cluster, topic)
        assert {at: found[at].offset for at in places} == places
        status = json.loads(here.text(f"GROUP_STATUS group={topic}"))
        assert {member["member_id"] for member in status["members"]} == set(names)
        assert topic in here.text("LIST_GROUPS")
        there.text(f"LEAVE_GROUP topic={topic} group={topic} member={names[1]}")
        until("all of it", lambda: joined(here, topic, names[0])[2] == [0, 1, 2, 3])


def test_groups_are_the_clusters(pair: list[FleetMember], topic: str) -> None:
    """Registered at one gateway, known at the other; commits of nobody go to members elsewhere."""
    with Talk(pair[0]) as here, Talk(pair[1]) as there:
        here.text(f"CREATE topic={topic} partitions=2")
        assert "registered=true" in here.text(f"REGISTER_GROUP topic={topic} group=r-{topic}")
        assert json.loads(there.text(f"GROUP_STATUS group=r-{topic}"))["state"] == "Dead"
        assert f"r-{topic}" in there.text("LIST_GROUPS")
        here.publish(batch([Message(b"x"), Message(b"y")], topic=topic, acks="-1"))
        joined(there, topic, "a")
        for offset in (1, 2):
            assert here.text(f"COMMIT {topic} {topic} 0 {offset}") == "OK"
            joined(there, topic, f"b{offset}")  # their epoch is another one from now on
        fetch = f"FETCH_OFFSET topic={topic} partition=0 group={topic}"
        assert there.text(fetch) == here.text(fetch) == "OK offset=2"


def test_members_outlive_a_gateway(pair: list[FleetMember], topic: str) -> None:
    """Who was at a gateway that is killed joins at the other one, and is the same member."""
    with Talk(pair[0]) as here, Talk(pair[1]) as there:
        here.text(f"CREATE topic={topic} partitions=4")
        mine, _, _ = joined(here, topic, "a")
        other, _, _ = joined(there, topic, "b")
        until("two halves", lambda: len(joined(here, topic, mine)[2]) == 2)
        until("two halves", lambda: len(joined(there, topic, other)[2]) == 2)
    pair[1].kill()
    with Talk(pair[0]) as here, Talk(pair[0]) as moved:
        assert joined(moved, topic, other)[0] == other
        shares: list[list[int]] = [[], []]

        def shared() -> bool:
            for number, (talk, member) in enumerate(((here, mine), (moved, other))):
                shares[number] = joined(talk, topic, member)[2]
            return sorted(shares[0] + shares[1]) == [0, 1, 2, 3]

        until("all of it", shared)
        assert [len(share) for share in shares] == [2, 2]
    pair[1].start()


class Asker(Talk):
    """Stands for the client of the golden conversations."""

    def ask(self, body: bytes) -> list[bytes]:  # type: ignore[override]  # all answers
        answers = [super().ask(body)]
        if b"READ_STREAM" in body and b'"status":"OK"' in answers[0]:
            answers.append(self.receive())
        return answers


def test_captured_conversations(pair: list[FleetMember]) -> None:
    """Word for word as on the local engine, but for addresses and what is drawn at random."""

    def masked(lines: list[str]) -> list[str]:
        lines = [re.sub(r"(c\d|pc|0001)-[0-9a-f]{12,20}\b", r"\1-*", line) for line in lines]
        lines = [re.sub(r"leaders=\S+", "leaders=*", line) for line in lines]
        return [re.sub(r"host=\S+ port=\d+", "host=* port=*", line) for line in lines]

    owner: list[FleetMember] = []

    def owned() -> bool:
        for member in pair:
            with Talk(member) as talk:
                if talk.text("STREAM_VERSION topic=none key=k").startswith("ERROR: topic"):
                    owner.append(member)
        return bool(owner)

    until("an owner", owned)
    with Asker(owner[0]) as asker:
        got = spoken(asker)  # type: ignore[arg-type]  # all it needs is `ask`
        for topic in ("pyt", "jt", "orders", "es"):
            asker.ask(f"DELETE topic={topic}".encode())
    assert masked(got) == masked(GOLDEN.read_text().splitlines())


def test_transactions(pair: list[FleetMember], topic: str) -> None:
    with Talk(pair[0]) as here, Talk(pair[1]) as there:
        here.text(f"CREATE topic={topic} partitions=1")
        member, generation, _ = joined(here, topic, "a")
        for result, expected in (("commit", [b"a", b"b"]), ("abort", [b"a", b"b"])):
            answer = here.text(f"INIT_PRODUCER_ID transactional_id={topic}")
            found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
            assert found is not None, answer
            who = f"transactional_id={topic} producerId={found[1]} epoch={found[2]}"
            assert here.text(f"BEGIN_TXN {who}").startswith("OK")
            for seq, value in ((1, "a"), (2, "b")):
                staged = here.text(
                    f"TXN_PUBLISH {who} topic={topic} partition=0 seqNum={seq} message={value}"
                )
                assert f"staged_messages={seq}" in staged
            offsets = here.text(
                f"SEND_OFFSETS_TO_TXN {who} topic={topic} group={topic} member={member} "
                f"generation={generation} P0:1"
            )
            assert "staged_offsets=1" in offsets
            assert there.payloads(topic) == ([] if result == "commit" else expected)
            assert here.text(f"END_TXN {who} result={result}").startswith("OK")
            assert there.payloads(topic) == expected
        fetched = there.text(f"FETCH_OFFSET topic={topic} partition=0 group={topic}")
        assert fetched == "OK offset=1"


def last_writer(cluster: Cluster, at: Partition) -> tuple[int, int, int]:
    """Producer id, epoch and last sequence of who wrote to a partition."""
    asked = {"topics": [{"name": at.topic, "partition_indexes": (at.index,)}]}
    (part,) = cluster.leader(at).ask(DESCRIBE_PRODUCERS, asked).topics[0].partitions
    (one,) = part.active_producers
    return one.producer_id, one.producer_epoch, one.last_sequence


def record_offsets(address: str, at: Partition) -> list[int]:
    """Where the records of a partition are; consumers are not given markers."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
        | {"enable.partition.eof": True, "isolation.level": "read_uncommitted"}
    )
    consumer.assign([TopicPartition(at.topic, at.index, 0)])
    offsets: list[int] = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the partition cannot be read to its end"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        offsets.append(message.offset() or 0)
    consumer.close()
    return offsets


def test_events_outlive_their_owner(pair: list[FleetMember], node: Node, topic: str) -> None:
    """What the dead one may have sent and comes late is refused by the partition's leader."""
    owner: list[FleetMember] = []

    def created() -> bool:
        for member in pair:
            with Talk(member) as talk:
                answer = talk.text(f"CREATE topic={topic} partitions=2 event_sourcing=true")
                if answer.startswith("OK"):
                    owner.append(member)
                    return True
        return False

    until("an owner", created)
    other = next(member for member in pair if member is not owner[0])
    append = f"APPEND_STREAM topic={topic} key=k version={{}} message=m{{}}"
    with Talk(owner[0]) as talk, Talk(other) as stranger:
        told: list[int] = []
        for version in (1, 2, 3):
            answer = talk.text(append.format(version, version))
            found = re.fullmatch(rf"OK version={version} offset=(\d+) partition=(\d+)", answer)
            assert found is not None, answer
            told.append(int(found[1]))
        at = Partition(topic, int(found[2]))
        # The topic is older than its owner if an earlier attempt to create it was refused half-way.
        # Then the events begin behind the marker of the fence, and behind nothing else.
        assert told == [told[0], told[0] + 1, told[0] + 2]
        assert record_offsets(node.address, at) == told
        with Cluster(node.address) as cluster:
            producer_id, epoch, sequence = last_writer(cluster, at)
        assert talk.text(append.format(3, 3)) == "ERROR: version_conflict current=3 expected=3"
        talk.text(f"SAVE_SNAPSHOT topic={topic} key=k version=1 message=first")
        until(
            "the owner's address",
            lambda: (
                stranger.text(append.format(4, 4))
                == f"ERROR: NOT_LEADER LEADER_IS {owner[0].addresses['cursus']}"
            ),
        )
    owner[0].kill()
    with Talk(other) as talk:
        until("the next owner", lambda: talk.text(append.format(4, 4)).startswith("OK version=4"))
        talk._socket.sendall(frame(f"READ_STREAM topic={topic} key=k from_version=1".encode()))
        envelope = json.loads(talk.receive())
        assert envelope["snapshot"] == {"version": 1, "payload": "first"}
        assert [message.version for message in messages_of(talk.receive())] == [2, 3, 4]
    *kept, last = record_offsets(node.address, at)
    assert kept == told
    assert last > told[-1] + 1, "a marker fences the dead owner before the next event"
    late = batches_of.build(
        [Record(b"late")],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence + 1,
    )
    with Cluster(node.address) as cluster, pytest.raises(Refused) as refused:
        cluster.produce(at, bytes(late))
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    owner[0].start()


def test_the_released_client(pair: list[FleetMember], topic: str) -> None:
    """Its producer and two consumers of a group, which go where the gateways send them.

    The gateway where the group meets is killed; they find it again when it is back.
    """
    cursus = pytest.importorskip("cursus")
    addresses = [member.addresses["cursus"] for member in pair]
    got: list[str] = []
    sent: set[str] = set()
    done, up = threading.Event(), threading.Event()
    up.set()
    consumers: dict[str, Any] = {}

    def send() -> None:
        producer = cursus.Producer(
            cursus.ProducerConfig(
                brokers=addresses, topic=topic, partitions=2, acks=cursus.Acks.ALL
            )
        )
        for number in range(len(sent), len(sent) + 50):
            producer.send(f"{number}")
            sent.add(f"{number}")
        producer.flush()
        producer.close()

    def run(address: str) -> None:
        while not done.is_set():
            consumer = cursus.Consumer(
                cursus.ConsumerConfig(
                    brokers=[address, *addresses],
                    topic=topic,
                    group_id=topic,
                    heartbeat_interval_ms=300,
                )
            )
            consumers[address] = consumer
            try:
                consumer.start(lambda message: got.append(message.payload))
            except cursus.ConnectionError:
                # It gives up when it cannot commit; applications begin anew, and those that do not
                # leave are waited for by the cluster.
                up.wait()
                consumer.close()

    send()
    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in addresses]
    for thread in threads:
        thread.start()
    until("every message", lambda: set(got) == sent)
    with Talk(pair[0]) as talk:
        place = talk.text(f"FIND_COORDINATOR group={topic}")
    for member in pair:
        if place.endswith(" port=" + member.addresses["cursus"].rpartition(":")[2]):
            up.clear()
            member.kill()
            member.start()
            up.set()
    send()
    until("every message", lambda: set(got) == sent)
    done.set()
    for thread in threads:
        while thread.is_alive():
            for consumer in list(consumers.values()):
                consumer.close()
            thread.join(1)


def test_the_released_event_store(pair: list[FleetMember], topic: str) -> None:
    """A gateway that does not own the event streams redirects the store to the owner.

    Another test may have killed a gateway just before.  Then the ownership still moves, and the
    store, which follows seven redirects without a pause, may end with a refusal: it has to ask
    again, as after an election of the original.
    """
    cursus = pytest.importorskip("cursus")
    with contextlib.ExitStack() as opened:
        stores = [
            opened.enter_context(cursus.EventStore(member.addresses["cursus"], topic, "p"))
            for member in reversed(pair)
        ]

        def owned(ask: Callable[[], T]) -> T:
            answers: list[T] = []

            def answered() -> bool:
                try:
                    answers.append(ask())
                except cursus.ConnectionError as refusal:
                    if not re.search("NOT_LEADER|no_raft_leader", str(refusal)):
                        raise
                return bool(answers)

            until("an owner", answered)
            return answers[0]

        owned(lambda: stores[0].create_topic(2))
        for version in range(1, 7):
            event = cursus.Event(type="Put", payload=f"{version}")
            append = partial(stores[version % 2].append, "k", version, event)
            assert owned(append).version == version
        for store in stores:
            read = owned(partial(store.read_stream, "k"))
            assert [event.payload for event in read.events] == [f"{each}" for each in range(1, 7)]
