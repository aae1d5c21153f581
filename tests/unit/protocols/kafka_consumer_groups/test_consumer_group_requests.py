"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, byte for byte as clients send them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from disk_broker import Connection
from kafka_requests import request
from kafka_world import answer_of
from kio.schema.errors import ErrorCode

MINUTE = timedelta(minutes=1)
VERSIONS = pytest.mark.parametrize("version", [0, 1])


def beat(connection: Connection, version: int = 1, **fields: Any) -> Any:
    asked = {
        "group_id": "readers",
        "member_id": "a",
        "member_epoch": 0,
        "topic_partitions": None,
        **fields,
    }
    return answer_of(68, version, connection.ask(request(68, version, asked)))


def join(connection: Connection, version: int = 1, **fields: Any) -> Any:
    whole = {
        "rebalance_timeout": MINUTE,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    return beat(connection, version, **{**whole, **fields})


def describe(connection: Connection, version: int, *names: str, operations: bool = False) -> Any:
    asked = {"group_ids": list(names), "include_authorized_operations": operations}
    return answer_of(69, version, connection.ask(request(69, version, asked))).groups


def topic_id(connection: Connection) -> Any:
    return connection.broker.topics.get("orders").topic_id


@VERSIONS
def test_joining_staying_and_leaving(connection: Connection, version: int) -> None:
    answer = join(connection, version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    assert (answer.member_id, answer.member_epoch) == ("a", 1)
    assert answer.heartbeat_interval == timedelta(seconds=5)
    (held,) = answer.assignment.topic_partitions
    assert (held.topic_id, held.partitions) == (topic_id(connection), (0, 1, 2, 3))
    again = beat(connection, version, member_epoch=1)
    assert (again.member_epoch, again.assignment) == (1, None)
    left = beat(connection, version, member_epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch) == (ErrorCode.none, "a", -1)
    gone = beat(connection, version, member_epoch=1)
    assert gone.error_code == ErrorCode.unknown_member_id
    assert gone.error_message


def test_an_id_is_made_in_version_0_only(connection: Connection) -> None:
    made = join(connection, 0, member_id="")
    assert made.member_id
    assert made.member_epoch == 1
    assert join(connection, 1, member_id="").error_code == ErrorCode.invalid_request


def test_a_pattern_subscribes(connection: Connection) -> None:
    asked = join(connection, subscribed_topic_names=None, subscribed_topic_regex="^ord.*")
    assert asked.assignment.topic_partitions[0].topic_id == topic_id(connection)


INVALID: list[dict[str, Any]] = [
    {"group_id": ""},
    {"instance_id": ""},
    {"rack_id": ""},
    {"rebalance_timeout": timedelta(milliseconds=-1)},
    {"topic_partitions": None},
    {"subscribed_topic_names": None},
    {"member_epoch": -3},
    {"member_epoch": -2},
    {"member_id": "", "member_epoch": 1},
]


@pytest.mark.parametrize("flaw", INVALID, ids=str)
def test_invalid_requests(connection: Connection, flaw: dict[str, Any]) -> None:
    answer = join(connection, **flaw)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.error_message


def test_a_member_that_joins_owns_nothing(connection: Connection) -> None:
    owned = [{"topic_id": topic_id(connection), "partitions": [0]}]
    assert join(connection, topic_partitions=owned).error_code == ErrorCode.invalid_request


def test_the_codes_of_refusals(connection: Connection) -> None:
    refused = {
        ErrorCode.unsupported_assignor: join(connection, server_assignor="guess"),
        ErrorCode.invalid_regular_expression: join(connection, subscribed_topic_regex="("),
        ErrorCode.group_id_not_found: beat(connection, member_epoch=1),
    }
    join(connection, instance_id="one")
    refused[ErrorCode.fenced_member_epoch] = beat(connection, member_epoch=9)
    refused[ErrorCode.unreleased_instance_id] = join(connection, member_id="b", instance_id="one")
    refused[ErrorCode.fenced_instance_id] = beat(
        connection, member_id="b", instance_id="one", member_epoch=1
    )
    refused[ErrorCode.unknown_member_id] = beat(connection, member_id="b", member_epoch=1)
    for code, answer in refused.items():
        assert answer.error_code == code
        assert answer.error_message


def test_an_answer_waits_for_the_disk(connection: Connection) -> None:
    asked = {
        "group_id": "readers",
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout": MINUTE,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    before = len(connection.line.frames())
    connection.feed(request(68, 1, asked))
    assert len(connection.line.frames()) == before
    connection.run()
    assert len(connection.line.frames()) == before + 1
    # Nothing new is decided: nothing to wait for.
    connection.feed(request(68, 1, {**asked, "member_epoch": 1, "topic_partitions": None}))
    assert len(connection.line.frames()) == before + 2


@VERSIONS
def test_describing(connection: Connection, version: int) -> None:
    join(connection, instance_id="one", rack_id="r1", server_assignor="range")
    join(connection, member_id="b", subscribed_topic_regex="ord.*", subscribed_topic_names=[])
    group, missing = describe(connection, version, "readers", "nobody")
    assert missing.error_code == ErrorCode.group_id_not_found
    assert missing.group_id == "nobody"
    assert (group.error_code, group.group_id) == (ErrorCode.none, "readers")
    assert (group.group_state, group.assignor_name) == ("Reconciling", "range")
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    assert group.authorized_operations == -(1 << 31)
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id) == ("a", "one", "r1")
    assert (first.member_epoch, second.member_epoch) == (1, 2)
    assert first.subscribed_topic_names == ("orders",)
    assert second.subscribed_topic_regex == "ord.*"
    assert first.client_host.startswith("/")
    (held,) = first.assignment.topic_partitions
    assert (held.topic_name, held.partitions) == ("orders", (0, 1, 2, 3))
    assert second.assignment.topic_partitions == ()
    (target,) = second.target_assignment.topic_partitions
    assert target.partitions == (2, 3)
    if version >= 1:
        assert (first.member_type, second.member_type) == (1, 1)
    (allowed,) = describe(connection, version, "readers", operations=True)
    assert allowed.authorized_operations == sum(1 << bit for bit in (3, 6, 8, 10, 11))


def test_a_classic_group_is_not_described_here(connection: Connection) -> None:
    asked = {
        "group_id": "older",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": MINUTE,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}],
    }
    connection.feed(request(11, 3, asked))
    connection.broker.runtime.advance(1)
    (group,) = describe(connection, 1, "older")
    assert group.error_code == ErrorCode.group_id_not_found
