"""OffsetFetch answers with an offset only when no power cut can take it back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from disk_broker import Connection
from group_line import Asked, GroupLine
from kafka_requests import request
from kafka_world import answer_of
from tests.support.state_files import accept_writes, refuse_writes

from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.broker.port import Committed
from pentalog.broker.state import RETRY_MS
from pentalog.model.types import Partition

NOT_COORDINATOR, UNSTABLE = 16, 88
VERSIONS = [1, 2, 7, 8, 10]


@pytest.fixture
def held(line: GroupLine) -> GroupLine:
    """Group g has committed 4 and it is durable; the state file accepts nothing more."""
    commit(line, 4)
    line.disk.runtime.run()
    line.disk.runtime.held_lanes.add("state")
    return line


def commit_fields(offset: int, group: str = "g") -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [{"name": "t", "partitions": [part]}],
    }


def commit(line: GroupLine, offset: int, group: str = "g") -> Asked:
    return line.begin(8, 8, **commit_fields(offset, group))


def fetch_fields(line: GroupLine, *groups: str, stable: bool = False) -> dict[str, Any]:
    topics = [{"name": "t", "topic_id": line.topic_id, "partition_indexes": [0]}]
    asked = [
        {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
        for group in groups
    ]
    return {**asked[0], "groups": asked, "require_stable": stable}


def fetch(line: GroupLine, version: int = 10, *groups: str) -> Asked:
    return line.begin(9, version, **fetch_fields(line, *(groups or ("g",))))


def told(answer: Any) -> list[tuple[int, int]]:
    """The error and the offset of each group."""
    found = []
    for group in getattr(answer, "groups", None) or [answer]:
        parts = [part for topic in group.topics for part in topic.partitions]
        code = max([getattr(group, "error_code", 0), *(part.error_code for part in parts)])
        found.append((code, parts[0].committed_offset if parts else -1))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_is_shown_once_it_is_durable(held: GroupLine, version: int) -> None:
    committing, asked = commit(held, 9), fetch(held, version)
    held.disk.runtime.run()
    assert not committing.answered
    assert not asked.answered, "a power cut could bring 4 back"
    held.disk.runtime.release()
    held.disk.runtime.run()
    assert told(asked.answer) == [(0, 9)]


def test_an_offset_that_is_durable_is_shown_at_once(held: GroupLine) -> None:
    commit(held, 9, "other")
    assert told(fetch(held).answer) == [(0, 4)]


def test_the_answer_is_what_was_found(held: GroupLine) -> None:
    """A commit that comes during the wait is not in the answer: it may not be durable."""
    commit(held, 9)
    held.disk.runtime.run()
    asked = fetch(held)
    commit(held, 12)
    held.disk.runtime.release()
    held.disk.runtime.run()
    assert told(asked.answer) == [(0, 9)]


def test_a_question_after_a_commit_on_the_same_connection(held: GroupLine) -> None:
    connection = Connection(held.disk)
    connection.feed(
        request(8, 8, commit_fields(9))
        + request(9, 7, fetch_fields(held, "g"))
        + request(18, 0, {})
    )
    held.disk.runtime.run()
    assert connection.line.frames() == []
    held.disk.runtime.release()
    held.disk.runtime.run()
    committed, fetched, _ = connection.line.frames()
    assert answer_of(8, 8, committed).topics[0].partitions[0].error_code == 0
    assert told(answer_of(9, 7, fetched)) == [(0, 9)]


def test_an_offset_that_was_deleted_is_gone_for_good(held: GroupLine) -> None:
    held.disk.groups.offsets.forget("g", [Partition("t", 0)])
    asked = fetch(held)
    held.disk.runtime.run()
    assert not asked.answered
    held.disk.runtime.release()
    held.disk.runtime.run()
    assert told(asked.answer) == [(0, -1)]


def test_an_offset_of_a_finished_transaction(held: GroupLine) -> None:
    offsets = held.disk.groups.offsets
    offsets.stage(77, "g", {Partition("t", 0): Committed(9)})
    assert told(fetch(held).answer) == [(0, 4)]
    offsets.finish(77, commit=True)
    asked = fetch(held)
    held.disk.runtime.run()
    assert not asked.answered
    held.disk.runtime.release()
    held.disk.runtime.run()
    assert told(asked.answer) == [(0, 9)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_that_cannot_be_written(line: GroupLine, version: int) -> None:
    """Only the group whose offset is not durable is refused, with an error clients retry."""
    line.ask(8, 8, **commit_fields(5, "other"))
    refuse_writes(line.disk.state)
    commit(line, 9)
    asked = fetch(line, version)
    line.disk.runtime.run()
    assert told(asked.answer) == [(NOT_COORDINATOR, -1)]
    assert told(fetch(line, version).answer) == [(NOT_COORDINATOR, -1)], "while it is so"
    assert told(fetch(line, version, "other").answer) == [(0, 5)]
    accept_writes(line.disk.state)
    line.disk.runtime.advance(RETRY_MS)
    assert told(fetch(line, version).answer) == [(0, 9)]


@pytest.mark.parametrize("version", [7, 10])
def test_a_consumer_that_requires_stable_offsets_is_told_to_retry(
    line: GroupLine, version: int
) -> None:
    """Not all consumers retry an error of the whole request; all retry this one."""
    refuse_writes(line.disk.state)
    commit(line, 9)
    asked = line.begin(9, version, **fetch_fields(line, "g", stable=True))
    line.disk.runtime.run()
    assert told(asked.answer) == [(UNSTABLE, -1)]
    accept_writes(line.disk.state)
    line.disk.runtime.advance(RETRY_MS)
    assert told(line.ask(9, version, **fetch_fields(line, "g", stable=True))) == [(0, 9)]


def test_of_several_groups_only_one_is_refused(line: GroupLine) -> None:
    line.ask(8, 8, **commit_fields(5, "other"))
    refuse_writes(line.disk.state)
    commit(line, 9)
    asked = fetch(line, 10, "g", "other")
    line.disk.runtime.run()
    assert told(asked.answer) == [(NOT_COORDINATOR, -1), (0, 5)]
    accept_writes(line.disk.state)
    line.disk.runtime.advance(RETRY_MS)


def test_a_disk_that_does_not_answer(held: GroupLine) -> None:
    commit(held, 9)
    asked = fetch(held)
    held.disk.runtime.advance(COMMIT_WAIT_MS_MAX - 1)
    assert not asked.answered
    held.disk.runtime.advance(1)
    assert told(asked.answer) == [(NOT_COORDINATOR, -1)]
    held.disk.runtime.release()
    held.disk.runtime.run()
    assert told(fetch(held).answer) == [(0, 9)]
