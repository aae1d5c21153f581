"""Groups: they settle, stay settled, and offsets go forward."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch

from pentalog.broker.port import Committed
from pentalog.model.types import Partition


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=orders partitions=3")
    for partition in range(3):
        client.publish(batch([Message()] * 9, partition=partition, acks="-1"))


class Member:
    """A member as released clients are: it comes back whenever it is told to."""

    def __init__(self, client: Client, name: str, *, base: bool = False) -> None:
        self.client = client
        self.name = name
        self.base = base
        """Comes back under the name it first gave, not under the one it got."""
        self.member = name
        self.generation = 0
        self.partitions: list[int] = []
        self.joins = 0
        self.join()

    def join(self) -> None:
        name = self.name if self.base else self.member
        answer = self.client.text(f"JOIN_GROUP topic=orders group=g member={name}")
        found = re.fullmatch(r"OK generation=(\d+) member=(\S+) assignments=\[([\d ]*)\]", answer)
        assert found, answer
        self.generation, self.member = int(found[1]), found[2]
        self.partitions = [int(word) for word in found[3].split()]
        self.joins += 1

    def beat(self) -> None:
        answer = self.client.text(
            f"HEARTBEAT topic=orders group=g member={self.member} generation={self.generation}"
        )
        if "GEN_MISMATCH" in answer or "member_not_found" in answer:
            self.join()
        else:
            assert answer == f"OK member={self.member} generation={self.generation}"


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("kind", ["python", "java", "both"])
def test_groups_settle_within_two_heartbeats_and_stay_settled(
    broker: CursusBroker, client: Client, count: int, kind: str
) -> None:
    """Members of PyPI's client, of the Java client, and of both in one group, for a minute."""
    members = []
    for number in range(count):
        base = kind == "java" or (kind == "both" and number % 2 == 0)
        name = str(uuid.UUID(int=number + 1)) if base else f"w{number}"
        members.append(Member(client, name, base=base))
    for _ in range(2):
        for member in members:
            member.beat()
    generation = members[0].generation
    joins = [member.joins for member in members]
    for _ in range(30):
        broker.advance(3_000)
        for member in members:
            member.beat()
    assert {member.generation for member in members} == {generation}
    assert [member.joins for member in members] == joins
    owned = sorted(index for member in members for index in member.partitions)
    assert owned == [0, 1, 2]
    status = json.loads(client.text("GROUP_STATUS group=g"))
    assert (status["member_count"], status["state"]) == (count, "Stable")
    assert status["generation"] == count


@pytest.mark.parametrize("step_ms", [0, 3_600_000, -3_600_000])
def test_a_member_is_silent_for_half_a_minute_before_it_is_dead(
    broker: CursusBroker, client: Client, step_ms: int
) -> None:
    Member(client, "a")
    broker.runtime.wall_step_ms += step_ms
    broker.advance(29_000)
    assert json.loads(client.text("GROUP_STATUS group=g"))["state"] == "Stable"
    broker.advance(10_000)
    assert json.loads(client.text("GROUP_STATUS group=g"))["state"] == "Dead"


def test_ranges_by_the_order_of_ids(client: Client) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    first.beat()
    assert (first.partitions, second.partitions) == ([0, 1], [2])


def test_a_silent_member_loses_its_partitions(broker: CursusBroker, client: Client) -> None:
    stays, goes = Member(client, "a"), Member(client, "b")
    stays.beat()
    for _ in range(20):
        broker.advance(3_000)
        stays.beat()
    assert stays.partitions == [0, 1, 2]
    goes.beat()
    assert goes.joins == 2, "it is a stranger now, and joins anew"


def test_two_processes_with_one_name_are_two_members(client: Client) -> None:
    first = Member(client, "same")
    second = Member(client, "same")
    assert first.member != second.member


def test_a_member_that_was_fenced_comes_back_under_its_first_name(client: Client) -> None:
    first = Member(client, "plain", base=True)
    Member(client, "other")
    first.beat()
    assert first.joins == 2
    assert len(json.loads(client.text("GROUP_STATUS group=g"))["members"]) == 2


def test_resuming_with_a_generation(client: Client) -> None:
    member = Member(client, "a")
    command = f"JOIN_GROUP topic=orders group=g member={member.member} generation="
    assert client.text(command + "1") == (
        f"OK generation=1 member={member.member} assignments=[0 1 2] resumed=true"
    )
    assert client.text(command + "7") == (
        f"ERROR: GEN_MISMATCH current=1 requested=7 group=g member={member.member}"
    )
    stranger = "JOIN_GROUP topic=orders group=g member=zz generation=1"
    assert client.text(stranger) == "ERROR: member_not_found member=zz group=g"
    sync = f"SYNC_GROUP topic=orders group=g member={member.member} generation=1"
    assert client.text(sync) == f"OK generation=1 member={member.member} assignments=[0 1 2]"


def test_leaving_needs_no_generation(client: Client) -> None:
    member = Member(client, "a")
    left = f"OK group=g member={member.member} left=true"
    leave = f"LEAVE_GROUP topic=orders group=g member={member.member}"
    assert client.text(leave + " generation=9").startswith("ERROR: GEN_MISMATCH current=1")
    assert client.text(leave) == left
    assert client.text(leave) == f"ERROR: member_not_found member={member.member} group=g"
    assert json.loads(client.text("GROUP_STATUS group=g"))["state"] == "Dead"


def test_a_grown_topic_is_shared_out_anew(client: Client) -> None:
    member = Member(client, "a")
    client.text("CREATE topic=orders partitions=5")
    member.beat()
    assert member.partitions == [0, 1, 2, 3, 4]


def test_a_deleted_topic_takes_its_members_along(client: Client) -> None:
    member = Member(client, "a")
    client.text("DELETE topic=orders")
    client.text("CREATE topic=orders partitions=1")
    beat = f"HEARTBEAT topic=orders group=g member={member.member} generation=1"
    assert client.text(beat) == "ERROR: group_not_found group=g"


def test_the_default_group_spans_topics(client: Client) -> None:
    client.text("CREATE topic=second partitions=1")
    for topic in ("orders", "second"):
        answer = client.text(f"JOIN_GROUP topic={topic} group=default-group member=m")
        assert answer.startswith("OK generation=1")
    fetch = "FETCH_OFFSET topic=second partition=0 group=default-group"
    assert client.text(fetch) == "OK offset=0"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("JOIN_GROUP group=g member=m", "missing_topic command=JOIN_GROUP"),
        ("JOIN_GROUP topic=orders member=m", "missing_group command=JOIN_GROUP"),
        ("JOIN_GROUP topic=orders group=g", "missing_member command=JOIN_GROUP"),
        ("JOIN_GROUP topic=nope group=g member=m", "topic_not_found topic=nope"),
        ("SYNC_GROUP topic=orders group=g member=m", "missing_generation command=SYNC_GROUP"),
        (
            "SYNC_GROUP topic=orders group=g member=m generation=x",
            "invalid_generation command=SYNC_GROUP",
        ),
        ("HEARTBEAT topic=orders group=nog member=m generation=1", "group_not_found group=nog"),
        ("GROUP_STATUS group=nog", "group_status_failed reason=\"group 'nog' not found\""),
        ("FETCH_OFFSET topic=orders group=g", "missing_partition command=FETCH_OFFSET"),
        ("FETCH_OFFSET topic=orders partition=0 group=nog", "group_not_found group=nog"),
        (
            "FETCH_OFFSET topic=orders partition=x group=g",
            "invalid_partition command=FETCH_OFFSET",
        ),
        ("REGISTER_GROUP topic=nope group=g", "topic_not_found topic=nope"),
    ],
)
def test_refusals(client: Client, command: str, answer: str) -> None:
    assert client.text(command) == f"ERROR: {answer}"


def test_commits_go_forward_only(client: Client) -> None:
    member = Member(client, "a")
    who = f"generation={member.generation} member={member.member}"
    commit = f"COMMIT_OFFSET topic=orders partition=0 group=g {who} offset="
    assert client.text(commit + "5") == "OK"
    assert client.text(commit + "5") == "OK"
    assert client.text(commit + "3") == (
        'ERROR: offset_regression reason="offset regression group=g topic=orders partition=0 '
        'current=5 got=3"'
    )
    assert client.text(commit + "10") == "ERROR: invalid_offset partition=0 offset=10 end=9"
    assert client.text(commit + "6 validate_only=true") == "OK validated=true"
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=g") == "OK offset=5"


def test_commits_of_several_partitions_are_all_or_nothing(client: Client) -> None:
    member = Member(client, "a")
    commit = (
        f"BATCH_COMMIT topic=orders group=g member={member.member} generation={member.generation} "
    )
    assert client.text(commit + "P0:3,P1:2") == "OK batched=2"
    assert client.text(commit + "P0:4,P1:1").startswith("ERROR: offset_regression")
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=g") == "OK offset=3"
    assert client.text(commit + "P1") == 'ERROR: invalid_batch_commit_entry entry="P1"'
    assert client.text(commit + "1:4") == 'ERROR: invalid_partition entry="1:4"'
    assert client.text(commit + "P1:x") == 'ERROR: invalid_offset entry="P1:x"'
    assert client.text(commit + "P1:4,P1:5") == (
        "ERROR: duplicate_partition partition=1 group=g topic=orders"
    )
    assert client.text(commit) == "ERROR: no_valid_offsets command=BATCH_COMMIT"


def test_only_the_owner_commits(client: Client) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    first.beat()
    who = f"generation=2 member={first.member}"
    assert client.text(f"COMMIT_OFFSET topic=orders partition=2 group=g offset=1 {who}") == (
        f"ERROR: NOT_OWNER partition=2 member={first.member} group=g generation=2"
    )
    who = f"generation=1 member={second.member}"
    stale = f"COMMIT_OFFSET topic=orders partition=2 group=g offset=1 {who}"
    assert client.text(stale) == (
        f"ERROR: GEN_MISMATCH current=2 requested=1 group=g member={second.member}"
    )


def test_offsets_are_everybodys(broker: CursusBroker, client: Client) -> None:
    broker.beside.groups.offsets.commit("shared", {Partition("orders", 1): Committed(7)})
    assert client.text("FETCH_OFFSET topic=orders partition=1 group=shared") == "OK offset=7"
    assert client.text("COMMIT orders shared 1 8") == "OK"
    at = Partition("orders", 1)
    assert broker.beside.groups.offsets.committed("shared")[at].offset == 8
    assert client.text("LIST_GROUPS") == "OK count=1 groups=shared"


def test_groups_and_their_generation_outlive_a_restart(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "again")
    client = first.connect()
    client.text("CREATE topic=orders partitions=1")
    assert client.text("REGISTER_GROUP topic=orders group=r") == (
        "OK group=r topic=orders registered=true"
    )
    client.text("JOIN_GROUP topic=orders group=g member=m")
    first.close()
    second = CursusBroker(tmp_path / "again")
    client = second.connect()
    assert client.text("LIST_GROUPS") == "OK count=2 groups=g,r"
    answer = client.text("JOIN_GROUP topic=orders group=g member=m")
    assert answer.startswith("OK generation=2")
    second.close()


def test_offsets_of_a_group_with_members_do_not_expire(tmp_path: Path) -> None:
    broker = CursusBroker(tmp_path / "long", offsets_retention_minutes=1)
    client = broker.connect()
    client.text("CREATE topic=orders partitions=1")
    client.publish(batch([Message()], acks="-1"))
    member = Member(client, "a")
    for group in ("g", "gone"):
        client.text(f"COMMIT orders {group} 0 1")
    for _ in range(60):
        broker.advance(20_000)
        member.beat()
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=g") == "OK offset=1"
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=gone").startswith("ERROR")
    broker.close()
