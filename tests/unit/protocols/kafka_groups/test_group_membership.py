"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and FindCoordinator, in every version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from disk_broker import Connection
from group_line import (
    SESSION_MS,
    GroupLine,
    fence_fields,
    join_fields,
    subscription,
    sync_fields,
)
from kafka_requests import request

from pentalog.protocols.kafka.coordination import subscribed_topics

INVALID_GROUP, UNKNOWN_MEMBER, GENERATION, REBALANCING = 24, 25, 22, 27
INVALID_TIMEOUT, INCONSISTENT, FENCED, NOT_AVAILABLE = 26, 23, 82, 15


@pytest.mark.parametrize("version", range(10))
def test_joining_alone(line: GroupLine, version: int) -> None:
    asked = line.join(version)
    if version >= 4:
        told = asked.answer
        assert told.error_code == 79
        asked = line.join(version, member_id=told.member_id)
    assert not asked.answered
    line.disk.runtime.advance(0)
    joined = asked.answer
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    (shown,) = joined.members
    assert (shown.member_id, shown.metadata) == (joined.member_id, subscription("t"))
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join(line: GroupLine, version: int) -> None:
    for changes, code in (
        ({"session_timeout": timedelta(milliseconds=1)}, INVALID_TIMEOUT),
        ({"group_id": ""}, INVALID_GROUP),
        ({"member_id": "who"}, UNKNOWN_MEMBER),
        ({"protocols": []}, INCONSISTENT),
    ):
        refused = line.join(version, **changes).answer
        assert (refused.error_code, refused.generation_id) == (code, -1)
        assert refused.protocol_name == (None if version >= 7 else "")
        assert refused.member_id == changes.get("member_id", "")
        assert refused.members == ()


@pytest.mark.parametrize("version", range(6))
def test_syncing(line: GroupLine, version: int) -> None:
    asked = line.enter()
    line.disk.runtime.advance(0)
    joined = asked.answer
    plan = [{"member_id": joined.member_id, "assignment": b"all of it"}]
    waiting = line.begin(14, version, **sync_fields(joined, assignments=plan))
    assert not waiting.answered, "the plan is not on the disk yet"
    line.disk.runtime.run()
    synced = waiting.answer
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        wrong = line.ask(14, version, **sync_fields(joined, protocol_name="sticky"))
        assert wrong.error_code == INCONSISTENT
    stale = line.ask(14, version, **sync_fields(joined, generation_id=9))
    assert (stale.error_code, stale.assignment) == (GENERATION, b"")


@pytest.mark.parametrize("version", range(5))
def test_heartbeats(line: GroupLine, version: int) -> None:
    joined = line.member()

    def beat(**changes: Any) -> int:
        return int(line.ask(12, version, **fence_fields(joined, **changes)).error_code)

    assert beat() == 0
    assert beat(generation_id=7) == GENERATION
    assert beat(member_id="who") == UNKNOWN_MEMBER
    assert beat(group_id="none") == UNKNOWN_MEMBER
    assert beat(group_id="") == INVALID_GROUP
    line.enter()
    assert beat() == REBALANCING


@pytest.mark.parametrize("version", range(6))
def test_leaving(line: GroupLine, version: int) -> None:
    joined = line.member()
    fields: dict[str, Any] = {"group_id": "g", "member_id": joined.member_id}
    who = {"member_id": joined.member_id, "group_instance_id": None}
    stranger = {"member_id": "who", "group_instance_id": None}
    fields["members"] = [who, stranger]
    left = line.ask(13, version, **fields)
    assert left.error_code == 0
    if version >= 3:
        assert [member.error_code for member in left.members] == [0, UNKNOWN_MEMBER]
        assert [member.member_id for member in left.members] == [joined.member_id, "who"]
    again = line.ask(13, version, **fields)
    if version >= 3:
        assert [member.error_code for member in again.members] == [UNKNOWN_MEMBER] * 2
    else:
        assert again.error_code == UNKNOWN_MEMBER


def test_static_members_are_fenced_by_name(line: GroupLine) -> None:
    asked = line.join(9, group_instance_id="one")
    line.disk.runtime.advance(0)
    joined = asked.answer
    line.ask(14, 5, **sync_fields(joined, group_instance_id="one"))
    back = line.join(9, group_instance_id="one")
    line.disk.runtime.run()
    new = back.answer
    assert new.skip_assignment
    assert (new.generation_id, new.leader) == (1, new.member_id)
    old = fence_fields(joined, group_instance_id="one")
    assert line.ask(12, 4, **old).error_code == FENCED
    left = line.ask(13, 5, group_id="g", members=[{"member_id": "", "group_instance_id": "one"}])
    assert [member.error_code for member in left.members] == [0]


def test_a_later_request_on_the_line_waits_for_the_join(line: GroupLine) -> None:
    connection = Connection(line.disk)
    connection.feed(request(11, 0, join_fields()) + request(16, 0, {}))
    assert connection.line.frames() == []
    line.disk.runtime.advance(0)
    assert len(connection.line.frames()) == 2


def test_an_old_member_counts_its_session_as_rebalance_time(line: GroupLine) -> None:
    first = line.join(0)
    line.disk.runtime.advance(0)
    joined = first.answer
    line.ask(14, 0, **sync_fields(joined))
    second = line.join(0)
    for _ in range(SESSION_MS // 1000):
        assert not second.answered
        assert line.ask(12, 0, **fence_fields(joined)).error_code == REBALANCING
        line.disk.runtime.advance(1000)
    assert second.answer.generation_id == 2


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("kind", [0, 1])
def test_we_keep_every_group_and_transaction(line: GroupLine, version: int, kind: int) -> None:
    found = line.ask(10, version, key="g", key_type=kind, coordinator_keys=["g", "h"])
    if version >= 4:
        assert [one.key for one in found.coordinators] == ["g", "h"]
        found = found.coordinators[1]
    assert (found.error_code, found.node_id) == (0, 0)
    assert (found.host, found.port) == ("host.example", 9092)


def test_share_groups_are_nobodys(line: GroupLine) -> None:
    (found,) = line.ask(10, 6, key_type=2, coordinator_keys=["g:id:0"]).coordinators
    assert (found.error_code, found.node_id, found.port) == (42, -1, -1)


def test_a_stop_answers_members_that_wait(line: GroupLine) -> None:
    waiting = line.enter()
    line.disk.groups.stop_waiting()
    assert waiting.answer.error_code == NOT_AVAILABLE


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription(), set()),
        (subscription("a", "bc"), {"a", "bc"}),
        (b"\x00\x03" + subscription("a")[2:] + b"owned and more", {"a"}),
        (b"", None),
        (subscription("abc")[:9], None),
        (b"\x00\x00\x7f\xff\xff\xff", None),
        (b"\x00\x00\x00\x00\x00\x01\xff\xff", None),
        (b"\x00\x00\x00\x00\x00\x01\x00\x01\xff", None),
    ],
)
def test_what_a_member_reads_is_in_its_metadata(metadata: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics("consumer", metadata) == topics
    assert subscribed_topics("connect", metadata) is None
