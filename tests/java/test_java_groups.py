"""Groups of Java consumers, in the classic protocol and in the new one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from jvm import Client, Clients, JavaError, Jvm, taken, until
from nodes import Node

pytestmark = [pytest.mark.clients, pytest.mark.java]

PARTITIONS = 6
EAGER = "org.apache.kafka.clients.consumer.RangeAssignor"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
PROTOCOLS = [
    pytest.param({"partition_assignment_strategy": EAGER}, id="eager"),
    pytest.param({"partition_assignment_strategy": COOPERATIVE}, id="cooperative"),
    pytest.param({"group_protocol": "consumer"}, id="consumer"),
    pytest.param(
        {"group_protocol": "consumer", "group_remote_assignor": "range"}, id="consumer-range"
    ),
]
Settings = dict[str, Any]


def make(clients: Clients, topic: str, *, count: int = 0, partitions: int = PARTITIONS) -> Client:
    """A topic with `count` records spread over its partitions."""
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=partitions)
    if count:
        fill(clients, topic, 0, count, partitions)
    return admin


def fill(clients: Clients, topic: str, start: int, count: int, partitions: int) -> None:
    records = [[i % partitions, f"{i}", f"value-{i}"] for i in range(start, start + count)]
    clients.producer()("send", topic=topic, records=records)


def joined(clients: Clients, topic: str, settings: Settings) -> Client:
    member = clients.consumer(group_id=topic, **settings)
    member("subscribe", topics=[topic])
    return member


def shares(*members: Client) -> list[list[list[Any]]]:
    return [sorted(member("state")["assignment"]) for member in members]


def commit(member: Client) -> None:
    """Commit where the member is; while a rebalance is going on it has to ask again."""

    def answer() -> str:
        try:
            member("commit")
        except JavaError as refused:
            if refused.kind != "RebalanceInProgressException":
                raise
            return refused.kind
        return ""

    assert until(answer, lambda found: found == "") == ""


def all_partitions(topic: str, count: int = PARTITIONS) -> list[list[Any]]:
    return [[topic, partition] for partition in range(count)]


def settled(topic: str, *members: Client, timeout_s: float = 30) -> list[list[list[Any]]]:
    """The members' shares, once everything is somebody's and nobody goes without."""

    def fair(found: list[list[list[Any]]]) -> bool:
        owned = sorted(one for share in found for one in share)
        sizes = [len(share) for share in found]
        return owned == all_partitions(topic) and max(sizes) - min(sizes) <= 1

    found = until(lambda: shares(*members), fair, timeout_s)
    assert fair(found), (found, [member("state") for member in members])
    return list(found)


@pytest.mark.parametrize("settings", PROTOCOLS)
def test_members_join_and_leave(clients: Clients, topic: str, settings: Settings) -> None:
    make(clients, topic)
    first = joined(clients, topic, settings)
    settled(topic, first)
    second = joined(clients, topic, settings)
    third = joined(clients, topic, settings)
    settled(topic, first, second, third)
    clients.close(second)
    settled(topic, first, third)
    for member in (first, third):
        assert member("state")["failures"] == []
    generations = {member("state")["generation"] for member in (first, third)}
    assert len(generations) == 1


@pytest.mark.parametrize("settings", PROTOCOLS)
def test_a_dead_members_share_goes_to_the_living(
    clients: Clients, mortal: tuple[Jvm, Clients], topic: str, settings: Settings
) -> None:
    make(clients, topic)
    jvm, others = mortal
    survivor = joined(clients, topic, settings)
    victim = joined(others, topic, settings)
    settled(topic, survivor, victim)
    jvm.kill()
    settled(topic, survivor)


@pytest.mark.parametrize("settings", PROTOCOLS)
def test_every_record_is_read_once_through_a_rebalance(
    clients: Clients, topic: str, settings: Settings
) -> None:
    make(clients, topic, count=600)
    first = joined(clients, topic, settings)
    read = taken(first, 600)
    first("commit")
    second = joined(clients, topic, settings)
    settled(topic, first, second)
    fill(clients, topic, 600, 600, PARTITIONS)
    both: list[Any] = []

    def more() -> list[Any]:
        both.extend(first("take"))
        both.extend(second("take"))
        return both

    until(more, lambda have: len(have) >= 600)
    read += both
    assert Counter(one[4] for one in read) == Counter(f"value-{i}" for i in range(1200))
    first("commit")
    second("commit")
    committed = first("committed", partitions=all_partitions(topic))
    assert sorted(committed) == [[topic, partition, 200, ""] for partition in range(PARTITIONS)]


@pytest.mark.parametrize("settings", PROTOCOLS)
def test_a_static_member_comes_back_to_its_share(
    clients: Clients, topic: str, settings: Settings
) -> None:
    make(clients, topic)
    stays = joined(clients, topic, settings | {"group_instance_id": "stays"})
    goes = joined(clients, topic, settings | {"group_instance_id": "goes"})
    before = settled(topic, stays, goes)
    count = len(stays("state")["rebalances"])
    clients.close(goes)
    back = joined(clients, topic, settings | {"group_instance_id": "goes"})
    after = settled(topic, stays, back)
    assert after == before
    assert len(stays("state")["rebalances"]) == count


def test_a_second_life_fences_the_first_static_one(clients: Clients, topic: str) -> None:
    make(clients, topic)
    first = joined(clients, topic, {"group_instance_id": "one"})
    settled(topic, first)
    second = joined(clients, topic, {"group_instance_id": "one"})
    settled(topic, second)
    state = until(lambda: first("state"), lambda state: bool(state["failures"]))
    assert state["failures"][0].startswith("FencedInstanceIdException")


def test_the_new_protocol_refuses_a_second_static_life(clients: Clients, topic: str) -> None:
    make(clients, topic)
    settings = {"group_protocol": "consumer", "group_instance_id": "one"}
    first = joined(clients, topic, settings)
    settled(topic, first)
    second = joined(clients, topic, settings)
    state = until(lambda: second("state"), lambda state: bool(state["failures"]))
    assert state["failures"][0].startswith("UnreleasedInstanceIdException")
    settled(topic, first)


def test_a_pattern_is_matched_by_the_broker(clients: Clients, topic: str) -> None:
    admin = make(clients, f"{topic}.north", partitions=2)
    admin("create topic", topic=f"{topic}.south", partitions=2)
    admin("create topic", topic=f"other-{topic}.north", partitions=2)
    member = clients.consumer(group_id=topic, group_protocol="consumer")
    member("subscribe pattern", pattern=rf"{topic}\.(?P<side>north|south)")
    expected = [[f"{topic}.{side}", i] for side in ("north", "south") for i in range(2)]
    assert until(lambda: shares(member), lambda found: found == [expected]) == [expected]


def test_a_pattern_finds_topics_made_later(clients: Clients, topic: str) -> None:
    admin = make(clients, f"{topic}-1", partitions=1)
    member = clients.consumer(group_id=topic, group_protocol="consumer", metadata_max_age_ms=500)
    member("subscribe pattern", pattern=f"{topic}-.*")
    expected = [[f"{topic}-1", 0]]
    assert until(lambda: shares(member), lambda found: found == [expected]) == [expected]
    admin("create topic", topic=f"{topic}-2", partitions=1)
    expected.append([f"{topic}-2", 0])
    # Kafka itself looks at patterns again every ten minutes unless a heartbeat makes it look.
    other = clients.consumer(group_id=topic, group_protocol="consumer")
    other("subscribe pattern", pattern=f"{topic}-[0-9]")

    def owned() -> list[list[Any]]:
        return sorted(one for share in shares(member, other) for one in share)

    assert until(owned, lambda found: found == expected) == expected


def test_a_bad_pattern_is_refused(clients: Clients, topic: str) -> None:
    member = clients.consumer(group_id=topic, group_protocol="consumer")
    member("subscribe pattern", pattern="(unclosed")
    state = until(lambda: member("state"), lambda state: bool(state["failures"]))
    assert state["failures"][0].startswith("InvalidRegularExpression")


def test_a_pattern_matched_by_the_client(clients: Clients, topic: str) -> None:
    admin = make(clients, f"{topic}-a", partitions=2)
    admin("create topic", topic=f"{topic}-b", partitions=1)
    member = clients.consumer(group_id=topic)
    member("subscribe java pattern", pattern=f"{topic}-[ab]")
    expected = [[f"{topic}-a", 0], [f"{topic}-a", 1], [f"{topic}-b", 0]]
    assert until(lambda: shares(member), lambda found: found == [expected]) == [expected]


def test_new_partitions_are_handed_out(clients: Clients, topic: str) -> None:
    admin = make(clients, topic, partitions=2)
    settings: Settings = {"group_protocol": "consumer"}
    member = joined(clients, topic, settings)
    until(lambda: shares(member), lambda found: found == [all_partitions(topic, 2)])
    admin("create partitions", topic=topic, count=PARTITIONS)
    settled(topic, member)


def test_a_group_moves_to_the_new_protocol_and_back(clients: Clients, topic: str) -> None:
    """Online: members of both kinds share a group while one after the other is replaced."""
    admin = make(clients, topic)
    old: Settings = {"partition_assignment_strategy": COOPERATIVE}
    new: Settings = {"group_protocol": "consumer"}
    old_first, old_second = joined(clients, topic, old), joined(clients, topic, old)
    settled(topic, old_first, old_second)
    assert admin("describe group", group=topic)["type"] == "Classic"
    old_first("commit", offsets=[[topic, 0, 17]])
    new_first = joined(clients, topic, new)
    settled(topic, old_first, old_second, new_first)
    assert admin("describe group", group=topic)["type"] == "Consumer"
    clients.close(old_first)
    settled(topic, old_second, new_first)
    assert new_first("committed", partitions=[[topic, 0]]) == [[topic, 0, 17, ""]]
    clients.close(new_first)
    settled(topic, old_second)
    assert admin("describe group", group=topic)["type"] == "Classic"


def test_stale_members_cannot_commit(clients: Clients, topic: str) -> None:
    make(clients, topic)
    first = clients.consumer(group_id=topic, max_poll_interval_ms=60_000)
    first("subscribe", topics=[topic])
    settled(topic, first)
    outsider = clients.consumer(group_id=topic)
    outsider("assign", partitions=[[topic, 0]])
    with pytest.raises(JavaError) as refused:
        outsider("commit", offsets=[[topic, 0, 5]])
    assert refused.value.kind in ("CommitFailedException", "UnknownMemberIdException")


@pytest.mark.parametrize("settings", PROTOCOLS[1:3])
@pytest.mark.parametrize("death", ["stop", "kill"])
def test_groups_go_on_after_a_restart(
    jvm: Jvm, own: Node, topic: str, settings: Settings, death: str
) -> None:
    clients = Clients(jvm, own.address)
    admin = make(clients, topic)
    first, second = joined(clients, topic, settings), joined(clients, topic, settings)
    settled(topic, first, second)
    fill(clients, topic, 0, 120, PARTITIONS)
    read = taken(first, 60) + taken(second, 60)
    for member in (first, second):
        commit(member)
    own.kill() if death == "kill" else own.stop()
    own.start()
    fill(clients, topic, 120, 120, PARTITIONS)
    settled(topic, first, second)
    rest: list[Any] = []

    def more() -> set[Any]:
        rest.extend(first("take"))
        rest.extend(second("take"))
        return {one[4] for one in rest}

    # Uncommitted records may come twice when the restart ended the session; committed ones not.
    until(more, lambda have: len(have) >= 120)
    assert Counter(one[4] for one in read) == Counter(f"value-{i}" for i in range(120))
    assert {one[4] for one in rest} == {f"value-{i}" for i in range(120, 240)}
    for member in (first, second):
        commit(member)
    offsets = [[topic, partition, 40, ""] for partition in range(PARTITIONS)]
    assert sorted(admin("group offsets", group=topic)) == offsets
    clients.close(first, second)
    late = joined(clients, topic, settings)
    settled(topic, late)
    fill(clients, topic, 240, 6, PARTITIONS)
    assert {one[4] for one in taken(late, 6)} == {f"value-{i}" for i in range(240, 246)}
    clients.close_all()
