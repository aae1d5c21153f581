"""Rules at the Kafka door: what requests refuse, hide and tell, and how fast rules change."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.create_acls.v1.request import AclCreation
from kio.schema.delete_acls.v1.request import DeleteAclsFilter
from kio.schema.types import GroupId, TopicName, TransactionalId
from kio.static.primitive import i8, i32, i32Timedelta
from secured import ADMIN, RawClient, Secured
from test_kafka_login import create_topic
from test_kafka_tls import everything

from pentalog.model.batch import build
from pentalog.model.types import Record

TOPIC, GROUP, CLUSTER, TRANSACTION = 2, 3, 4, 5
LITERAL, PREFIXED, MATCH, ANY = 3, 4, 2, 1
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
DESCRIBE_CONFIGS, IDEMPOTENT_WRITE = 10, 12
DENY, ALLOW = 2, 3
OK, NO_TOPIC, TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = 0, 3, 29, 30, 31
TRANSACTION_DENIED, INVALID = 53, 42
NAMES = ("orders", "orders-archive", "secret")


def acl(
    kind: int, name: str, operation: int, *, who: str = "User:alice", pattern: int = LITERAL,
    permission: int = ALLOW, host: str = "*",
) -> dict[str, Any]:  # fmt: skip
    return {
        "resource_type": i8(kind),
        "resource_name": name,
        "resource_pattern_type": i8(pattern),
        "principal": who,
        "host": host,
        "operation": i8(operation),
        "permission_type": i8(permission),
    }


def allow(admin: RawClient, *acls: dict[str, Any]) -> list[int]:
    answer = admin.call(30, 1, creations=tuple(AclCreation(**each) for each in acls))
    return [int(result.error_code) for result in answer.results]


def forget_all(admin: RawClient) -> int:
    """Remove every rule; how many there were."""
    found = admin.call(31, 1, filters=(DeleteAclsFilter(**everything()),))
    (result,) = found.filter_results
    assert int(result.error_code) == OK
    return len(result.matching_acls)


@pytest.fixture(scope="module")
def connections(secured: Secured) -> Iterator[tuple[RawClient, RawClient]]:
    with secured.connect() as admin, secured.connect() as alice:
        assert (admin.plain(ADMIN), alice.plain("alice")) == (OK, OK)
        for name in NAMES:
            admin.connection.sendall(create_topic(admin, name))
            assert admin.answer()
        yield admin, alice


@pytest.fixture
def admin(connections: tuple[RawClient, RawClient]) -> Iterator[RawClient]:
    yield connections[0]
    forget_all(connections[0])


@pytest.fixture
def alice(connections: tuple[RawClient, RawClient], admin: RawClient) -> RawClient:
    return connections[1]


def listed(client: RawClient) -> set[str]:
    return {str(topic.name) for topic in client.call(3, 1, topics=None).topics}


def named(client: RawClient, name: str) -> int:
    """The error of a topic in an answer to Metadata 4, which does not create it."""
    body = struct.pack(">i", 1) + struct.pack(">h", len(name)) + name.encode() + b"\0"
    head = struct.pack(">hhih", 3, 4, 5, 4) + b"test"
    client.connection.sendall(struct.pack(">i", len(head + body)) + head + body)
    answer = client.answer()
    place = answer.rindex(struct.pack(">h", len(name)) + name.encode())
    return int.from_bytes(answer[place - 2 : place], "big")


def produce(client: RawClient, topic: str, *, transactional_id: str | None = None) -> int:
    """Write one record by Produce 3; the error."""
    batch = bytes(build([Record(b"x")], timestamp_ms=1))
    name = topic.encode()
    given = b"\xff\xff" if transactional_id is None else (
        struct.pack(">h", len(transactional_id)) + transactional_id.encode()
    )  # fmt: skip
    body = given + struct.pack(">hii", -1, 1000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    head = struct.pack(">hhih", 0, 3, 6, 4) + b"test"
    client.connection.sendall(struct.pack(">i", len(head + body)) + head + body)
    answer = client.answer()
    start = 4 + 2 + len(name) + 4 + 4
    return int.from_bytes(answer[start : start + 2], "big")


def fetch(client: RawClient, topic: str) -> int:
    """Read by Fetch 4; the error."""
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    head = struct.pack(">hhih", 1, 4, 6, 4) + b"test"
    client.connection.sendall(struct.pack(">i", len(head + body)) + head + body)
    start = 4 + 4 + 2 + len(name) + 4 + 4
    return int.from_bytes(client.answer()[start : start + 2], "big")


def test_without_a_rule_nothing_is_seen_or_done(alice: RawClient) -> None:
    assert listed(alice) == set()
    assert named(alice, "orders") == TOPIC_DENIED
    assert named(alice, "not-there") == TOPIC_DENIED  # nor whether it is there
    assert produce(alice, "orders") == TOPIC_DENIED
    assert produce(alice, "not-there") == TOPIC_DENIED
    assert fetch(alice, "orders") == TOPIC_DENIED
    assert int(alice.call(29, 1, **everything()).error_code) == CLUSTER_DENIED
    assert allow(alice, acl(TOPIC, "*", ALL)) == [CLUSTER_DENIED]


def test_a_right_counts_for_what_it_names(admin: RawClient, alice: RawClient) -> None:
    assert allow(admin, acl(TOPIC, "orders", READ)) == [OK]
    assert listed(alice) == {"orders"}  # to read is to see
    assert fetch(alice, "orders") == OK
    assert fetch(alice, "orders-archive") == TOPIC_DENIED
    assert produce(alice, "orders") == TOPIC_DENIED
    assert allow(admin, acl(TOPIC, "orders", WRITE, pattern=PREFIXED)) == [OK]
    assert listed(alice) == {"orders", "orders-archive"}
    assert produce(alice, "orders-archive") == OK
    assert produce(alice, "secret") == TOPIC_DENIED
    assert produce(alice, "orders-new") == NO_TOPIC
    assert allow(admin, acl(TOPIC, "*", WRITE, who="User:*")) == [OK]
    assert produce(alice, "secret") == OK


def test_a_denial_wins_and_a_lost_right_is_lost_at_once(admin: RawClient, alice: RawClient) -> None:
    assert allow(admin, acl(TOPIC, "*", ALL)) == [OK]
    assert (produce(alice, "orders"), fetch(alice, "orders")) == (OK, OK)
    assert allow(admin, acl(TOPIC, "orders", WRITE, permission=DENY)) == [OK]
    # The very next request on a connection that was open all the time.
    assert (produce(alice, "orders"), fetch(alice, "orders")) == (TOPIC_DENIED, OK)
    assert forget_all(admin) == 2
    assert (produce(alice, "orders"), fetch(alice, "orders")) == (TOPIC_DENIED, TOPIC_DENIED)


def test_hosts_count(admin: RawClient, alice: RawClient) -> None:
    assert allow(admin, acl(TOPIC, "orders", READ, host="203.0.113.9")) == [OK]
    assert fetch(alice, "orders") == TOPIC_DENIED
    assert allow(admin, acl(TOPIC, "orders", READ, host="127.0.0.1")) == [OK]
    assert fetch(alice, "orders") == OK


def test_groups_and_their_offsets(admin: RawClient, alice: RawClient) -> None:
    assert int(alice.call(10, 0, key="readers").error_code) == GROUP_DENIED
    heartbeat = {"group_id": GroupId("readers"), "generation_id": i32(1), "member_id": "m"}
    assert int(alice.call(12, 0, **heartbeat).error_code) == GROUP_DENIED
    assert allow(admin, acl(GROUP, "readers", READ)) == [OK]
    assert int(alice.call(10, 0, key="readers").error_code) == OK
    assert int(alice.call(12, 0, **heartbeat).error_code) == 25  # there is no such member
    fetched = alice.call(9, 2, group_id=GroupId("readers"), topics=None)
    assert int(fetched.error_code) == OK
    assert int(alice.call(9, 2, group_id=GroupId("others"), topics=None).error_code) == GROUP_DENIED


def test_a_pattern_finds_no_topic_that_is_hidden(admin: RawClient, alice: RawClient) -> None:
    def read(epoch: int) -> Any:
        """A heartbeat of a member that gives up at once what it is told to."""
        answer = alice.call(
            68,
            1,
            group_id=GroupId("watchers"),
            member_id="m",
            member_epoch=i32(epoch),
            rebalance_timeout=short_duration(10_000 if epoch == 0 else -1),
            subscribed_topic_names=None,
            subscribed_topic_regex=".*" if epoch == 0 else None,
            server_assignor=None,
            topic_partitions=(),
        )
        assert int(answer.error_code) == OK
        return answer

    def read_topics(answer: Any) -> set[str]:
        ids = {each.topic_id for each in answer.assignment.topic_partitions}
        every = admin.call(3, 12, topics=None, include_topic_authorized_operations=False).topics
        return {str(topic.name) for topic in every if topic.topic_id in ids}

    allow(admin, acl(GROUP, "watchers", READ), acl(TOPIC, "orders", READ, pattern=PREFIXED))
    joined = read(0)
    assert read_topics(joined) == {"orders", "orders-archive"}
    assert allow(admin, acl(TOPIC, "orders-archive", ALL, permission=DENY)) == [OK]
    narrowed = read(joined.member_epoch)
    assert read_topics(narrowed) == {"orders"}
    assert int(read(-1).error_code) == OK


def test_transactions_and_idempotence(admin: RawClient, alice: RawClient) -> None:
    def identify(transactional_id: str | None) -> int:
        given = None if transactional_id is None else TransactionalId(transactional_id)
        return int(
            alice.call(
                22, 0, transactional_id=given, transaction_timeout=short_duration(1000)
            ).error_code
        )

    assert identify("payments") == TRANSACTION_DENIED
    assert identify(None) == CLUSTER_DENIED
    assert allow(admin, acl(TRANSACTION, "payments", WRITE)) == [OK]
    assert identify("payments") == OK
    assert identify("others") == TRANSACTION_DENIED
    assert identify(None) == CLUSTER_DENIED
    # Whoever may write anywhere may write idempotently.
    assert allow(admin, acl(TOPIC, "orders", WRITE)) == [OK]
    assert identify(None) == OK


def test_topics_are_made_by_those_who_may(
    secured: Secured, admin: RawClient, alice: RawClient
) -> None:
    def make(name: str) -> int:
        alice.connection.sendall(create_topic(alice, name))
        answer = alice.answer()
        place = answer.index(name.encode()) + len(name)
        return int.from_bytes(answer[place : place + 2], "big")

    assert make("alices-1") == TOPIC_DENIED
    assert allow(admin, acl(TOPIC, "alices-", CREATE, pattern=PREFIXED)) == [OK]
    assert make("alices-1") == OK
    assert make("bobs-1") == TOPIC_DENIED
    assert allow(admin, acl(CLUSTER, "kafka-cluster", CREATE)) == [OK]
    assert make("bobs-1") == OK
    deleted = alice.call(20, 1, topic_names=(TopicName("alices-1"),), timeout=short_duration(1000))
    assert [int(each.error_code) for each in deleted.responses] == [TOPIC_DENIED]


def test_operations_are_told(admin: RawClient, alice: RawClient) -> None:
    assert allow(admin, acl(TOPIC, "orders", READ), acl(CLUSTER, "kafka-cluster", DESCRIBE))
    asked = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    told = alice.call(3, 8, **asked)
    assert told.cluster_authorized_operations == 1 << DESCRIBE
    (topic,) = told.topics
    assert topic.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    everything_told = admin.call(3, 8, **asked)
    assert everything_told.cluster_authorized_operations == sum(
        1 << code for code in (5, 7, 8, 9, 10, 11, 12)
    )


def test_rules_are_described_by_filters(admin: RawClient, alice: RawClient) -> None:
    assert (
        allow(
            admin,
            acl(TOPIC, "orders", READ),
            acl(TOPIC, "ord", WRITE, pattern=PREFIXED),
            acl(TOPIC, "*", DESCRIBE, who="User:*"),
            acl(TOPIC, "secret", ALL, permission=DENY),
            acl(GROUP, "orders", READ),
        )
        == [OK] * 5
    )

    def found(**given: Any) -> set[tuple[str, int]]:
        answer = admin.call(29, 1, **{**everything(), **given})
        assert int(answer.error_code) == OK
        return {(str(each.resource_name), each.pattern_type) for each in answer.resources}

    assert len(found()) == 4  # two of the five are about things of one name
    assert found(resource_type_filter=i8(TOPIC), resource_name_filter="orders") == {
        ("orders", LITERAL)
    }
    matching = found(
        resource_type_filter=i8(TOPIC), resource_name_filter="orders", pattern_type_filter=i8(MATCH)
    )
    assert matching == {("orders", LITERAL), ("ord", PREFIXED), ("*", LITERAL)}
    assert found(pattern_type_filter=i8(PREFIXED)) == {("ord", PREFIXED)}
    assert found(permission_type=i8(DENY)) == {("secret", LITERAL)}
    assert found(principal_filter="User:*") == {("*", LITERAL)}
    assert found(operation=i8(ALL)) == {("secret", LITERAL)}


@pytest.mark.parametrize(
    "flaw",
    [
        {"resource_type": i8(0)},
        {"resource_type": i8(9)},
        {"resource_pattern_type": i8(MATCH)},
        {"operation": i8(1)},
        {"permission_type": i8(1)},
        {"principal": "alice"},
        {"resource_name": ""},
        {"host": ""},
        {"resource_type": i8(CLUSTER)},
        {"resource_type": i8(GROUP), "operation": i8(WRITE)},
    ],
)
def test_rules_that_say_nothing_are_refused(admin: RawClient, flaw: dict[str, Any]) -> None:
    assert allow(admin, {**acl(TOPIC, "orders", READ), **flaw}) == [INVALID]


def test_passwords_are_set_by_those_who_may(admin: RawClient, alice: RawClient) -> None:
    assert int(alice.call(50, 0, users=None).error_code) == CLUSTER_DENIED
    names = {each.user for each in admin.call(50, 0, users=None).results}
    assert names == {ADMIN, "alice", "bob"}


def short_duration(ms: int) -> Any:

    return i32Timedelta.parse(timedelta(milliseconds=ms))
