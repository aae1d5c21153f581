"""Kafka's port of a gateway: clients are shown the way to the cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cluster_world import ClusterWorld, HeldLine
from disk_broker import DiskBroker
from kafka_requests import produce, request
from kafka_schemas import frame, sample
from kafka_world import answer_of
from kio.index import load_request_schema

from pentalog.broker.port import Broker, TopicSpec
from pentalog.broker.security import Access, Kind, Operation, Principal, Rule
from pentalog.cluster import fleet
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.signpost import TABLE, SignpostSession
from pentalog.session import Address, Context

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS, IDENTIFY = 0, 1, 3, 10, 18, 22
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
LEADERS = [0, 1, 2, 23]
COORDINATORS = [8, 9, 11, 12, 13, 14, 24, 25, 26, 28, 68]
NODE = (0, "host.example", 9092)
ALL_TOPICS: dict[str, Any] = {
    "topics": None,
    "allow_auto_topic_creation": True,
    "include_cluster_authorized_operations": True,
    "include_topic_authorized_operations": True,
}
NAMED = {"client_software_name": "test", "client_software_version": "1"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path, auto_create_topics=True)
    yield made
    made.close()


class Guided:
    """A connection of a Kafka client to a gateway."""

    def __init__(
        self,
        world: ClusterWorld,
        access: Access | None = None,
        broker: Broker | None = None,
        demands: tuple[str, ...] = (),
    ) -> None:
        self._world = world
        self.line = HeldLine()
        self._left = b""
        self.session = SignpostSession(
            Context(
                broker=broker or world.broker,
                runtime=world.runtime,
                config=world.config,
                metrics=world.passed,
                peer="test",
                listener="kafka",
                advertised=lambda endpoint: Address("gateway.example", 19092),
                access=access or Access(),
                demands=frozenset(demands),
            ),
            self.line,
        )

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        used = self.session.receive(memoryview(buffer))
        self._left = bytes(buffer[used:])
        buffer[:] = b"\xaa" * len(buffer)

    def ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        return self.answer(request(key, version, fields), key, version)

    def answer(self, data: bytes, key: int, version: int) -> Any:
        before = len(self.line.frames())
        self.feed(data)
        self._world.runtime.run()
        (found,) = self.line.frames()[before:]
        return read(key, version, found)


def read(key: int, version: int, data: bytes) -> Any:
    assert data[:4] == (7).to_bytes(4, "big")
    return answer_of(key, version, data)


def topics_asked(*names: str | UUID | None, create: bool = False) -> dict[str, Any]:
    topics = [
        {"name": None, "topic_id": name}
        if isinstance(name, UUID)
        else {"name": name, "topic_id": None}
        for name in names
    ]
    return {**ALL_TOPICS, "topics": topics, "allow_auto_topic_creation": create}


@pytest.mark.parametrize("version", range(TABLE[METADATA].version_max + 1))
def test_metadata_is_the_clusters(world: ClusterWorld, version: int) -> None:
    world.disk.topics.create(TopicSpec(name="orders", partitions=3))
    world.disk.topics.create(TopicSpec(name="others"))
    guided = Guided(world)
    found = guided.ask(METADATA, version, topics_asked("orders", "nothing"))
    assert [(node.node_id, node.host, node.port) for node in found.brokers] == [NODE]
    orders, nothing = found.topics
    assert (orders.name, orders.error_code) == ("orders", ErrorCode.none)
    assert [(each.partition_index, each.leader_id) for each in orders.partitions] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert all(each.replica_nodes == each.isr_nodes == (0,) for each in orders.partitions)
    assert nothing.error_code is ErrorCode.unknown_topic_or_partition
    if version >= 2:
        assert found.cluster_id == world.disk.broker.cluster_id
    if version >= 10:
        assert orders.topic_id == world.disk.topics.get("orders").topic_id
    listed = guided.ask(METADATA, version, topics_asked() if version == 0 else ALL_TOPICS)
    assert {"orders", "others"} <= {each.name for each in listed.topics}
    if version >= 1:
        assert guided.ask(METADATA, version, topics_asked()).topics == ()


def test_topics_by_id(world: ClusterWorld) -> None:
    kept = world.disk.topics.create(TopicSpec(name="orders"))
    asked = [kept.topic_id, UUID(int=5)]
    found = Guided(world).ask(METADATA, 12, topics_asked(*asked)).topics
    assert [(each.name, each.topic_id) for each in found] == [
        ("orders", kept.topic_id),
        (None, UUID(int=5)),
    ]
    assert found[1].error_code is ErrorCode.unknown_topic_id


def test_topics_are_made_for_those_who_want_it(world: ClusterWorld) -> None:
    guided = Guided(world)
    guided.ask(METADATA, 9, topics_asked("later"))
    assert "later" not in [topic.name for topic in world.disk.topics.all()]
    for _ in range(2):
        found = guided.ask(METADATA, 9, topics_asked("later", create=True)).topics
    assert [(each.name, each.error_code) for each in found] == [("later", ErrorCode.none)]


def test_what_has_no_name(world: ClusterWorld) -> None:
    found = Guided(world).ask(METADATA, 12, topics_asked(None, "x" * 40_000)).topics
    assert [each.error_code for each in found] == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_topic_exception,
    ]


@pytest.mark.parametrize("version", range(TABLE[FIND_COORDINATOR].version_max + 1))
@pytest.mark.parametrize("kind", [0, 1])
def test_coordinators_are_the_clusters(world: ClusterWorld, version: int, kind: int) -> None:
    fields = {"key": "them", "key_type": kind, "coordinator_keys": ["them", "others", "them"]}
    found = Guided(world).ask(FIND_COORDINATOR, version, fields)
    for each in [found] if version < 4 else found.coordinators:
        assert (each.node_id, each.host, each.port) == NODE
        assert each.error_code is ErrorCode.none
    if version >= 4:
        assert [each.key for each in found.coordinators] == ["them", "others", "them"]


def test_coordinators_of_what_there_is_not(world: ClusterWorld) -> None:
    found = Guided(world).ask(FIND_COORDINATOR, 2, {"key": "them", "key_type": 7})
    assert (found.error_code, found.node_id) == (ErrorCode.invalid_request, -1)
    keys = [f"group {number}" for number in range(101)]
    many = Guided(world).ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": keys})
    codes = [each.error_code for each in many.coordinators]
    assert codes == [ErrorCode.none] * 100 + [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", range(TABLE[API_VERSIONS].version_max + 1))
def test_what_is_served(world: ClusterWorld, version: int) -> None:
    found = Guided(world).ask(API_VERSIONS, version, NAMED)
    told = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
    assert told.keys() == TABLE.keys()
    for key, (least, most) in told.items():
        assert APIS[key].version_min <= least <= most == APIS[key].version_max
    flawed = Guided(world).ask(API_VERSIONS, 3, {**NAMED, "client_software_name": "?"})
    assert flawed.error_code is ErrorCode.invalid_request


def test_an_older_cluster(world: ClusterWorld) -> None:
    """Nobody is told of versions that the nodes do not know."""

    class Old:
        def versions(self) -> Later[dict[int, tuple[int, int]]]:
            return Later.now({key: (0, 4) for key in TABLE if key not in (68, 36)})

    guided = Guided(world, broker=replace(world.broker, signpost=Old()))  # type: ignore[arg-type]
    found = guided.ask(API_VERSIONS, 0, {}).api_keys
    told = {each.api_key: each.max_version for each in found}
    assert told.keys() == TABLE.keys() - {68}
    assert (told[METADATA], told[FETCH], told[SASL_AUTHENTICATE]) == (4, 4, 2)


def test_identities_are_the_clusters(world: ClusterWorld) -> None:
    guided = Guided(world)
    fields = {"transactional_id": None, "transaction_timeout": timedelta(seconds=1)}
    found = [guided.ask(IDENTIFY, 4, fields) for _ in range(2)]
    assert len({each.producer_id for each in found}) == 2
    referred = guided.ask(IDENTIFY, 4, {**fields, "transactional_id": "mine"})
    assert referred.error_code is ErrorCode.not_coordinator


def codes_in(answer: Any) -> set[ErrorCode]:
    """Every error code an answer holds."""
    found: set[ErrorCode] = set()
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name in ("error_code", "partition_error_code"):
            found.add(value)
        for each in value if isinstance(value, tuple) else ():
            found |= codes_in(each)
    return found


@pytest.mark.parametrize("key", [*LEADERS, *COORDINATORS])
def test_others_lead_and_coordinate(world: ClusterWorld, key: int) -> None:
    dice = random.Random(key)
    api = TABLE[key]
    expected = ErrorCode.not_leader_or_follower if key in LEADERS else ErrorCode.not_coordinator
    guided = Guided(world)
    for version in range(api.version_min, api.version_max + 1):
        for _ in range(10):
            entity, _ = sample(load_request_schema(key, version), dice)
            if key == PRODUCE and entity.acks == 0:
                continue
            found = guided.answer(frame(entity), key, version)
            assert codes_in(found) <= {expected, ErrorCode.none}
            if key in COORDINATORS and hasattr(found, "error_code"):
                assert found.error_code is expected
    assert world.passed.appended_batches == 0


def test_every_partition_is_referred(world: ClusterWorld) -> None:
    guided = Guided(world)
    asked = produce(9, [("one", 3, b"x"), ("two", 0, None)])
    found = guided.answer(asked, PRODUCE, 9).responses
    assert [
        (each.name, part.index, part.error_code)
        for each in found
        for part in each.partition_responses
    ] == [
        ("one", 3, ErrorCode.not_leader_or_follower),
        ("two", 0, ErrorCode.not_leader_or_follower),
    ]
    guided.feed(produce(9, [("one", 3, b"x")], acks=0))
    assert guided.line.hung_up


def test_nothing_else_is_served(world: ClusterWorld) -> None:
    for key in sorted(APIS.keys() - TABLE.keys()):
        guided = Guided(world)
        entity, _ = sample(load_request_schema(key, APIS[key].version_max), random.Random(key))
        guided.feed(frame(entity))
        assert guided.line.hung_up, key
        assert not guided.line.frames()


def test_only_what_may_be_seen(world: ClusterWorld, tmp_path: Path) -> None:
    for name in ("seen", "hidden"):
        world.disk.topics.create(TopicSpec(name=name))
    (tmp_path / "guarded").mkdir()
    guarded = DiskBroker(tmp_path / "guarded", authorization=True)
    rules = guarded.broker.rules
    who = Principal("User", "anna")
    rules.add([Rule(Kind.TOPIC, "seen", False, who, "*", Operation.DESCRIBE, True)])
    guided = Guided(world, Access(rules, who))
    found = guided.ask(METADATA, 9, topics_asked("seen", "hidden", "new", create=True)).topics
    denied = ErrorCode.topic_authorization_failed
    assert [(each.name, each.error_code) for each in found] == [
        ("seen", ErrorCode.none),
        ("hidden", denied),
        ("new", denied),
    ]
    assert [each.name for each in guided.ask(METADATA, 9, ALL_TOPICS).topics] == ["seen"]
    refused = guided.ask(FIND_COORDINATOR, 2, {"key": "them", "key_type": 0})
    assert refused.error_code is ErrorCode.group_authorization_failed
    assert {topic.name for topic in world.disk.topics.all()} == {"seen", "hidden"}
    guarded.close()


def test_a_login(world: ClusterWorld, tmp_path: Path) -> None:
    (tmp_path / "guarded").mkdir()
    guarded = DiskBroker(tmp_path / "guarded")
    users = guarded.broker.users
    users.set_password("anna", "a long password")
    guarded.runtime.run()
    broker = replace(world.broker, users=users)
    for password, code in (("a long password", 0), ("another", 58)):
        guided = Guided(world, broker=broker, demands=("sasl",))
        assert guided.ask(API_VERSIONS, 3, NAMED).api_keys
        assert guided.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code is ErrorCode.none
        token = b"\0anna\0" + password.encode()
        guided.feed(request(SASL_AUTHENTICATE, 2, {"auth_bytes": token}))
        guarded.runtime.run()
        world.runtime.advance(10_000)
        answer = read(SASL_AUTHENTICATE, 2, guided.line.frames()[-1])
        assert answer.error_code == code
        assert guided.line.hung_up == bool(code)
    early = Guided(world, broker=broker, demands=("sasl",))
    early.feed(request(METADATA, 9, ALL_TOPICS))
    assert early.line.hung_up
    guarded.close()


def test_cut_anywhere(world: ClusterWorld) -> None:
    world.disk.topics.create(TopicSpec(name="orders"))
    guided = Guided(world)
    asked = request(METADATA, 9, topics_asked("orders"))
    for each in asked * 2:
        guided.feed(bytes([each]))
    world.runtime.run()
    first, second = guided.line.frames()
    assert read(METADATA, 9, first) == read(METADATA, 9, second)
    guided.feed((1 << 30).to_bytes(4, "big"))
    assert guided.line.hung_up


def test_a_cluster_that_is_away(world: ClusterWorld) -> None:
    world.away = True
    for wire in list(world.wires):
        wire.lose()
    asking = [Guided(world) for _ in range(3)]
    asking[0].feed(request(METADATA, 9, topics_asked("orders")))
    asking[1].feed(request(FIND_COORDINATOR, 2, {"key": "them", "key_type": 0}))
    asking[2].feed(request(API_VERSIONS, 3, NAMED))
    for _ in range(2 * fleet.PATIENCE_MS // 500):
        world.runtime.advance(500)
    assert asking[0].line.hung_up
    assert asking[0].line.sent() == b""
    (told,) = asking[1].line.frames()
    assert read(FIND_COORDINATOR, 2, told).error_code is ErrorCode.coordinator_not_available
    (told,) = asking[2].line.frames()
    assert read(API_VERSIONS, 3, told).error_code is not ErrorCode.none


def test_damaged_requests(world: ClusterWorld) -> None:
    """Nothing raises, and every connection goes on or ends."""
    dice = random.Random(5)
    ended = 0
    guided = Guided(world)
    for _ in range(600):
        key = dice.choice(list(TABLE))
        version = dice.randint(TABLE[key].version_min, TABLE[key].version_max)
        data = bytearray(frame(sample(load_request_schema(key, version), dice)[0]))
        for _ in range(dice.randint(0, 3)):
            at = dice.randrange(4, len(data))
            data[at] = dice.choice((0, 127, 128, 255, dice.randrange(256)))
        guided.feed(bytes(data))
        world.runtime.run()
        if guided.line.hung_up:
            ended += 1
            guided.session.close()
            guided = Guided(world)
    assert 50 < ended < 600
