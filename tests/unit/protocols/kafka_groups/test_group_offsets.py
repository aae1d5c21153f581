"""OffsetCommit, OffsetFetch and OffsetDelete, in every version."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from group_line import GroupLine

from pentalog.broker.port import Committed
from pentalog.model.errors import StorageFailed
from pentalog.model.types import Partition

UNKNOWN_TOPIC, UNKNOWN_ID, METADATA_TOO_LARGE, UNSTABLE = 3, 100, 12, 88
UNKNOWN_MEMBER, GENERATION, SUBSCRIBED, NO_GROUP, NOT_AVAILABLE = 25, 22, 86, 69, 15


def commit(
    line: GroupLine,
    version: int,
    partitions: list[dict[str, Any]],
    *,
    topic: str = "t",
    topic_id: UUID | None = None,
    **changes: Any,
) -> list[int]:
    """The codes, in the order of the partitions."""
    parts = [
        {"committed_leader_epoch": -1, "committed_metadata": None, **part} for part in partitions
    ]
    named = {"name": topic, "topic_id": topic_id or line.topic_id, "partitions": parts}
    fields = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [named],
        **changes,
    }
    (answered,) = line.ask(8, version, **fields).topics
    if version >= 10:
        assert answered.topic_id == named["topic_id"]
    else:
        assert answered.name == topic
    assert [p.partition_index for p in answered.partitions] == [
        part["partition_index"] for part in partitions
    ]
    return [p.error_code for p in answered.partitions]


def part(index: int, offset: int, **more: Any) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": offset, **more}


def fetch(
    line: GroupLine, version: int, indexes: list[int] | None, *, group: str = "g", **changes: Any
) -> Any:
    """The one group of the answer: from version 8 on, or the answer itself."""
    topics = None
    if indexes is not None:
        topics = [{"name": "t", "topic_id": line.topic_id, "partition_indexes": indexes}]
    asked = {
        "group_id": group,
        "member_id": None,
        "member_epoch": -1,
        "topics": topics,
    }
    answer = line.ask(9, version, **asked, groups=[asked], **changes)
    if version >= 8:
        (answer,) = answer.groups
        assert answer.group_id == group
    return answer


@pytest.mark.parametrize("version", range(2, 11))
def test_committing(line: GroupLine, version: int) -> None:
    codes = commit(
        line,
        version,
        [
            part(0, 5, committed_metadata="note", committed_leader_epoch=0),
            part(2, 7),
            part(3, 1),
            part(1, 1, committed_metadata="x" * 4097),
        ],
    )
    assert codes == [0, 0, UNKNOWN_TOPIC, METADATA_TOO_LARGE]
    found = line.disk.groups.offsets.committed("g")
    now_ms = line.disk.runtime.now_ms()
    assert found == {
        Partition("t", 0): Committed(5, 0 if version >= 6 else -1, "note", now_ms),
        Partition("t", 2): Committed(7, -1, "", now_ms),
    }


def test_committing_to_topics_that_do_not_exist(line: GroupLine) -> None:
    assert commit(line, 9, [part(0, 1)], topic="none") == [UNKNOWN_TOPIC]
    assert commit(line, 10, [part(0, 1)], topic_id=UUID(int=7)) == [UNKNOWN_ID]
    assert list(line.disk.groups.all()) == []


def test_a_commit_is_answered_when_it_is_on_the_disk(line: GroupLine) -> None:
    asked = line.begin(
        8,
        2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=timedelta(milliseconds=-1),
        topics=[{"name": "t", "partitions": [part(0, 1, committed_metadata="")]}],
    )
    assert not asked.answered
    line.disk.runtime.run()
    assert asked.answered


def test_a_retention_time_is_kept(line: GroupLine) -> None:
    commit(line, 4, [part(0, 1)], retention_time=timedelta(seconds=5))
    (found,) = line.disk.groups.offsets.committed("g").values()
    assert found.expire_ms == line.disk.runtime.now_ms() + 5000


@pytest.mark.parametrize("version", range(2, 11))
def test_members_are_fenced(line: GroupLine, version: int) -> None:
    joined = line.member()
    mine = {
        "generation_id_or_member_epoch": joined.generation_id,
        "member_id": joined.member_id,
    }
    assert commit(line, version, [part(0, 1)], **mine) == [0]
    for changes, code in (
        ({"generation_id_or_member_epoch": 9}, GENERATION),
        ({"member_id": "who"}, UNKNOWN_MEMBER),
        ({"generation_id_or_member_epoch": -1, "member_id": ""}, UNKNOWN_MEMBER),
        ({"group_id": "none"}, NO_GROUP if version >= 9 else GENERATION),
    ):
        assert commit(line, version, [part(0, 1)], **{**mine, **changes}) == [code]


def test_a_failing_disk_is_worth_a_retry(line: GroupLine) -> None:
    line.disk.state._refusal = StorageFailed("gone")
    assert commit(line, 10, [part(0, 1)]) == [NOT_AVAILABLE]
    line.disk.state._refusal = None


@pytest.mark.parametrize("version", range(1, 11))
def test_fetching(line: GroupLine, version: int) -> None:
    commit(line, 10, [part(0, 5, committed_metadata="note", committed_leader_epoch=0), part(2, 7)])
    found = fetch(line, version, [2, 1, 0])
    (topic,) = found.topics
    assert [p.partition_index for p in topic.partitions] == [2, 1, 0]
    assert [p.committed_offset for p in topic.partitions] == [7, -1, 5]
    assert [p.metadata for p in topic.partitions] == ["", "", "note"]
    assert [p.error_code for p in topic.partitions] == [0, 0, 0]
    if version >= 5:
        assert [p.committed_leader_epoch for p in topic.partitions] == [-1, -1, 0]
    (nothing,) = fetch(line, version, [0], group="none").topics
    assert [p.committed_offset for p in nothing.partitions] == [-1]


@pytest.mark.parametrize("version", range(2, 11))
def test_fetching_everything(line: GroupLine, version: int) -> None:
    commit(line, 10, [part(0, 5), part(2, 7)])
    (topic,) = fetch(line, version, None).topics
    assert (topic.topic_id if version >= 10 else topic.name) == (
        line.topic_id if version >= 10 else "t"
    )
    assert {p.partition_index: p.committed_offset for p in topic.partitions} == {0: 5, 2: 7}
    assert fetch(line, version, None, group="none").topics == ()


@pytest.mark.parametrize("version", range(2, 10))
def test_what_other_doors_commit_is_told_if_it_has_room(line: GroupLine, version: int) -> None:
    told = {Partition(name, 3) for name in ("", "a/b", "\0\n", "x" * 32_767)}
    hidden = {Partition("x" * 32_768, 3), Partition("t", 1 << 31)}
    for group in ("g", "g" * 32_768):
        line.disk.groups.offsets.commit(group, dict.fromkeys(told | hidden, Committed(5)))
    found = fetch(line, version, None).topics
    assert {Partition(t.name, p.partition_index) for t in found for p in t.partitions} == told
    listed = line.begin(16, 5, states_filter=[], types_filter=[]).answer.groups
    assert [group.group_id for group in listed] == ["g"]


def test_fetching_for_several_groups(line: GroupLine) -> None:
    for group, offset in (("a", 1), ("b", 2)):
        commit(line, 10, [part(0, offset)], group_id=group)
    asked = [
        {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
        for group in ("b", "none", "a")
    ]
    groups = line.ask(9, 8, groups=asked).groups
    assert [group.group_id for group in groups] == ["b", "none", "a"]
    assert [[t.partitions[0].committed_offset for t in g.topics] for g in groups] == [[2], [], [1]]


def test_an_id_that_does_not_exist(line: GroupLine) -> None:
    topics = [{"topic_id": UUID(int=7), "partition_indexes": [0, 1]}]
    asked = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
    (group,) = line.ask(9, 10, groups=[asked]).groups
    (topic,) = group.topics
    assert [p.error_code for p in topic.partitions] == [UNKNOWN_ID] * 2


@pytest.mark.parametrize("version", range(7, 11))
def test_offsets_in_open_transactions(line: GroupLine, version: int) -> None:
    commit(line, 10, [part(0, 5), part(1, 6)])
    line.disk.groups.offsets.stage(9, "g", {Partition("t", 0): Committed(8)})
    (topic,) = fetch(line, version, [0, 1], require_stable=True).topics
    assert [p.error_code for p in topic.partitions] == [UNSTABLE, 0]
    assert [p.committed_offset for p in topic.partitions] == [-1, 6]
    (topic,) = fetch(line, version, [0, 1], require_stable=False).topics
    assert [p.committed_offset for p in topic.partitions] == [5, 6]
    line.disk.groups.offsets.finish(9, commit=True)
    (topic,) = fetch(line, version, [0, 1], require_stable=True).topics
    assert [p.committed_offset for p in topic.partitions] == [8, 6]


def delete(line: GroupLine, group: str, indexes: list[int], topic: str = "t") -> Any:
    partitions = [{"partition_index": index} for index in indexes]
    return line.ask(47, 0, group_id=group, topics=[{"name": topic, "partitions": partitions}])


def test_deleting_offsets(line: GroupLine) -> None:
    commit(line, 10, [part(0, 5), part(1, 6)])
    (topic,) = delete(line, "g", [0, 2, 3]).topics
    assert [p.error_code for p in topic.partitions] == [0, 0, UNKNOWN_TOPIC]
    assert list(line.disk.groups.offsets.committed("g")) == [Partition("t", 1)]
    assert delete(line, "none", [0]).error_code == NO_GROUP
    (topic,) = delete(line, "g", [0], topic="none").topics
    assert [p.error_code for p in topic.partitions] == [UNKNOWN_TOPIC]


def test_offsets_of_topics_that_are_read_stay(line: GroupLine) -> None:
    joined = line.member()
    commit(
        line,
        10,
        [part(0, 5)],
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
    )
    (topic,) = delete(line, "g", [0]).topics
    assert [p.error_code for p in topic.partitions] == [SUBSCRIBED]
    assert list(line.disk.groups.offsets.committed("g")) == [Partition("t", 0)]


def test_a_topic_made_again_has_no_offsets(line: GroupLine, tmp_path: Path) -> None:
    commit(line, 10, [part(0, 5)])
    line.ask(
        20,
        6,
        topics=[{"name": "t", "topic_id": None}],
        topic_names=["t"],
        timeout=timedelta(seconds=5),
    )
    assert list(line.disk.groups.all()) == []
