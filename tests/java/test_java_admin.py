"""Kafka's Java administrator: topics, settings, groups, offsets and the cluster."""

from __future__ import annotations

import pytest
from jvm import Client, Clients, JavaError, until
from nodes import Node

pytestmark = [pytest.mark.clients, pytest.mark.java]


def refusal(admin: Client, what: str, **given: object) -> str:
    with pytest.raises(JavaError) as refused:
        admin(what, **given)
    return refused.value.kind


def filled(clients: Clients, topic: str, count: int = 10) -> Client:
    """A topic with `count` records in each of two partitions."""
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=2)
    records = [[i % 2, f"{i}", f"value-{i}"] for i in range(2 * count)]
    clients.producer()("send", topic=topic, records=records)
    return admin


def ends(admin: Client, topic: str, at: str = "latest") -> list[list[object]]:
    return sorted(admin("offsets", partitions=[[topic, 0], [topic, 1]], at=at))


def test_the_cluster_describes_itself(clients: Clients, node: Node) -> None:
    admin = clients.admin()
    cluster = admin("cluster")
    ((number, address),) = cluster["nodes"]
    assert address == node.address
    assert len(cluster["id"]) == 22
    assert cluster["controller"] == number
    features = admin("features")
    assert features["transaction.version"] == 2
    assert features["group.version"] == 1


def test_topics_come_and_go(clients: Clients, topic: str) -> None:
    admin = clients.admin()
    made = admin("create topic", topic=topic, partitions=7, configs={"retention.ms": "1000"})
    assert made["partitions"] == 7
    assert topic in admin("list topics")
    described = admin("describe topics", topics=[topic])[topic]
    assert described["id"] == made["id"]
    assert not described["internal"]
    node = admin("cluster")["nodes"][0][0]
    assert described["partitions"] == [[i, node, [node], [node]] for i in range(7)]
    assert refusal(admin, "create topic", topic=topic) == "TopicExistsException"
    assert refusal(admin, "create topic", topic="a/b") == "InvalidTopicException"
    bad = {"retention.ms": "soon"}
    wrong = refusal(admin, "create topic", topic=f"{topic}-b", configs=bad)
    assert wrong == "InvalidConfigurationException"
    admin("create partitions", topic=topic, count=9)
    found = until(
        lambda: admin("describe topics", topics=[topic])[topic]["partitions"],
        lambda partitions: len(partitions) == 9,
    )
    assert len(found) == 9
    less = refusal(admin, "create partitions", topic=topic, count=3)
    assert less == "InvalidPartitionsException"
    admin("delete topics", topics=[topic])
    gone = until(lambda: topic in admin("list topics"), lambda found: not found)
    assert not gone
    assert refusal(admin, "describe topics", topics=[topic]) == "UnknownTopicOrPartitionException"
    missing = refusal(admin, "delete topics", topics=[topic])
    assert missing == "UnknownTopicOrPartitionException"


def test_topic_settings_change(clients: Clients, topic: str) -> None:
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=1)
    where = {"type": "TOPIC", "name": topic}
    assert admin("configs", **where)["retention.ms"] == ["604800000", "DEFAULT_CONFIG"]
    admin("alter configs", **where, set={"retention.ms": "60000", "max.message.bytes": "2000"})
    changed = until(
        lambda: admin("configs", **where),
        lambda found: found["max.message.bytes"][1] == "DYNAMIC_TOPIC_CONFIG",
    )
    assert changed["retention.ms"] == ["60000", "DYNAMIC_TOPIC_CONFIG"]
    admin("alter configs", **where, append={"cleanup.policy": "compact"})
    admin("alter configs", **where, delete=["retention.ms"])
    after = until(
        lambda: admin("configs", **where),
        lambda found: found["retention.ms"][1] == "DEFAULT_CONFIG",
    )
    assert after["retention.ms"] == ["604800000", "DEFAULT_CONFIG"]
    assert sorted(after["cleanup.policy"][0].split(",")) == ["compact", "delete"]
    too_big = [[0, None, "x" * 3000]]
    with pytest.raises(JavaError) as refused:
        clients.producer()("send", topic=topic, records=too_big)
    assert refused.value.kind == "RecordTooLargeException"
    bad = refusal(admin, "alter configs", **where, set={"no.such.setting": "1"})
    assert bad == "InvalidConfigurationException"


def test_broker_settings_change(clients: Clients) -> None:
    admin = clients.admin()
    name = str(admin("cluster")["nodes"][0][0])
    where = {"type": "BROKER", "name": name}
    assert "log.retention.ms" in admin("configs", **where) or "log.retention.hours" in admin(
        "configs", **where
    )
    admin("alter configs", **where, set={"log.cleaner.delete.retention.ms": "123456"})
    changed = until(
        lambda: admin("configs", **where)["log.cleaner.delete.retention.ms"],
        lambda found: found[0] == "123456",
    )
    assert changed == ["123456", "DYNAMIC_BROKER_CONFIG"]
    admin("alter configs", **where, delete=["log.cleaner.delete.retention.ms"])


def test_records_are_deleted_up_to_an_offset(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    assert ends(admin, topic) == [[topic, 0, 10], [topic, 1, 10]]
    assert admin("delete records", offsets=[[topic, 0, 4]]) == [[topic, 0, 4]]
    assert ends(admin, topic, "earliest") == [[topic, 0, 4], [topic, 1, 0]]
    # -1 means all there is now.
    assert admin("delete records", offsets=[[topic, 1, -1]]) == [[topic, 1, 10]]
    beyond = refusal(admin, "delete records", offsets=[[topic, 0, 99]])
    assert beyond == "OffsetOutOfRangeException"


def test_offsets_are_found_by_time(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    assert ends(admin, topic, "0") == [[topic, 0, 0], [topic, 1, 0]]
    future = str(2**50)
    assert ends(admin, topic, future) == [[topic, 0, -1], [topic, 1, -1]]
    assert all(0 <= int(str(row[2])) < 10 for row in ends(admin, topic, "max timestamp"))


def test_log_directories_show_what_topics_take(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    sizes = admin("log dirs", node=admin("cluster")["nodes"][0][0])
    assert sizes[f"{topic}-0"] > 100
    assert sizes[f"{topic}-1"] > 100


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_described(clients: Clients, topic: str, protocol: str) -> None:
    admin = filled(clients, topic)
    settings: dict[str, object] = {"group_protocol": protocol, "group_instance_id": "one"}
    if protocol == "classic":
        settings["partition_assignment_strategy"] = (
            "org.apache.kafka.clients.consumer.RangeAssignor"
        )
    member = clients.consumer(group_id=topic, **settings)
    member("subscribe", topics=[topic])
    until(lambda: member("state")["assignment"], lambda found: len(found) == 2)
    found = until(
        lambda: admin("describe group", group=topic), lambda group: group["state"] == "Stable"
    )
    assert found["type"] == protocol.capitalize()
    assert found["assignor"] == {"classic": "range", "consumer": "uniform"}[protocol]
    (only,) = found["members"]
    assert only["client"] == member.name
    assert only["instance"] == "one"
    assert only["host"] == "/127.0.0.1"
    assert sorted(only["assignment"]) == [[topic, 0], [topic, 1]]
    assert only["id"] == member("state")["member"]
    if protocol == "consumer":
        assert sorted(only["target"]) == [[topic, 0], [topic, 1]]
        assert only["epoch"] == found["epoch"]
    listed = admin("list groups")[topic]
    assert listed == [protocol.capitalize(), "Stable", "consumer"]
    assert topic in admin("list groups", states=["Stable"])
    assert topic not in admin("list groups", states=["Empty"])
    assert topic in admin("list groups", types=[protocol])
    other = "consumer" if protocol == "classic" else "classic"
    assert topic not in admin("list groups", types=[other])
    assert refusal(admin, "delete groups", groups=[topic]) == "GroupNotEmptyException"


def test_offsets_of_groups_are_managed(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    admin("alter group offsets", group=topic, offsets=[[topic, 0, 3, "note"], [topic, 1, 7]])
    assert sorted(admin("group offsets", group=topic)) == [
        [topic, 0, 3, "note"],
        [topic, 1, 7, ""],
    ]
    assert admin("list groups")[topic][1] == "Empty"
    admin("delete group offsets", group=topic, partitions=[[topic, 1]])
    assert admin("group offsets", group=topic) == [[topic, 0, 3, "note"]]
    reader = clients.consumer(group_id=topic)
    reader("subscribe", topics=[topic])
    until(lambda: reader("state")["assignment"], lambda found: len(found) == 2)
    busy = refusal(admin, "delete group offsets", group=topic, partitions=[[topic, 0]])
    assert busy == "GroupSubscribedToTopicException"
    altered = refusal(admin, "alter group offsets", group=topic, offsets=[[topic, 0, 1]])
    assert altered == "UnknownMemberIdException"
    clients.close(reader)
    admin("delete groups", groups=[topic])
    assert topic not in admin("list groups")
    assert refusal(admin, "delete groups", groups=[topic]) == "GroupIdNotFoundException"
    assert refusal(admin, "describe group", group=topic) == "GroupIdNotFoundException"


def test_static_members_are_removed(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    member = clients.consumer(group_id=topic, group_instance_id="one", session_timeout_ms=60_000)
    member("subscribe", topics=[topic])
    until(lambda: member("state")["assignment"], lambda found: len(found) == 2)
    clients.close(member)
    assert len(admin("describe group", group=topic)["members"]) == 1
    admin("remove from group", group=topic, instances=["one"])
    assert admin("describe group", group=topic)["members"] == []


def test_a_single_node_says_so(clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    node = admin("cluster")["nodes"][0][0]
    chosen = [[topic, 0]]
    assert refusal(admin, "elect leaders", partitions=chosen) == "ElectionNotNeededException"
    assert admin("reassignments") == 0
    admin("reassign", partitions=chosen, replicas=[node])
    elsewhere = refusal(admin, "reassign", partitions=chosen, replicas=[node + 5])
    assert elsewhere == "InvalidReplicaAssignmentException"
    none = refusal(admin, "reassign", partitions=chosen, replicas=[])
    assert none == "NoReassignmentInProgressException"
