"""The requests about transactions in every version: codes, shapes, dialects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

FENCED = {47: False, 90: True}


def shifted(who: Any, *, producer_id: int = 0, epoch: int = 0) -> Any:
    return SimpleNamespace(
        producer_id=who.producer_id + producer_id, producer_epoch=who.producer_epoch + epoch
    )


@pytest.mark.parametrize("version", range(6))
def test_an_identity_by_name(client: Any, version: int) -> None:
    first = client.init(version=version)
    second = client.init(version=version)
    assert (first.error_code, second.error_code) == (0, 0)
    assert first.producer_id == second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 1)
    assert client.init("", version=version).error_code == ErrorCode.invalid_request
    too_long = timedelta(days=1)
    refused = client.init(version=version, transaction_timeout=too_long)
    assert refused.error_code == ErrorCode.invalid_transaction_timeout == 50
    assert (refused.producer_id, refused.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
def test_a_known_identity_must_be_the_newest(client: Any, version: int, code: int) -> None:
    first = client.init(version=version)
    client.init(version=version)
    known = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    assert client.init(version=version, **known).error_code == code
    half = client.init(version=version, producer_id=first.producer_id, producer_epoch=-1)
    assert half.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(6))
def test_end_in_every_version(client: Any, version: int) -> None:
    who = client.init()
    assert client.add(who) == [0]
    assert client.write(who, version=11) == 0
    ended = client.end(who, version)
    assert ended.error_code == 0
    assert client.end(who, version).error_code == 0, "asked again"
    assert client.end(who, version, commit=False).error_code == ErrorCode.invalid_txn_state == 48
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (who.producer_id, 1)
    fenced = client.end(shifted(who, epoch=-1), version).error_code
    assert fenced == (90 if version >= 2 else 47)
    assert client.end(shifted(who, producer_id=1), version).error_code == 49
    assert client.end(who, version, name="other").error_code == 49
    assert client.end(who, version, name="").error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_all_or_none(client: Any, version: int) -> None:
    who = client.init()
    assert client.add(who, version, 0, 7, 1) == [55, 3, 55]
    assert client.write(who, version=9) == 48
    assert client.add(who, version, 0, topic="unknown") == [3]
    assert client.add(who, version, 0, 1) == [0, 0]
    assert client.write(who, version=9) == 0
    assert client.add(shifted(who, epoch=1), version) == [90 if version >= 2 else 47]
    assert client.add(shifted(who, producer_id=1), version) == [49]


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_for_several_transactions(client: Any, version: int) -> None:
    who, other = client.init(), client.init("y")

    def asked(name: str, owner: Any, *, verify: bool) -> dict[str, Any]:
        return {
            "transactional_id": name,
            "producer_id": owner.producer_id,
            "producer_epoch": owner.producer_epoch,
            "verify_only": verify,
            "topics": [{"name": "t", "partitions": [0, 2]}],
        }

    def codes(*transactions: dict[str, Any]) -> list[list[int]]:
        answer = client.ask(24, version, transactions=list(transactions))
        assert answer.error_code == 0
        return [
            [int(part.partition_error_code) for part in one.topic_results[0].results_by_partition]
            for one in answer.results_by_transaction
        ]

    absent = 120 if version >= 5 else 48
    stranger = shifted(other, epoch=3)
    verifying = asked("x", who, verify=True), asked("y", stranger, verify=True)
    assert codes(*verifying) == [[absent, absent], [90, 90]]
    assert codes(asked("x", who, verify=False)) == [[0, 0]]
    assert codes(asked("x", who, verify=True)) == [[0, 0]]


@pytest.mark.parametrize(
    ("version", "code"), [(3, 48), (7, 48), (9, 48), (10, 48), (11, 120), (12, 0)]
)
def test_whether_a_write_enlists_depends_on_the_version(
    client: Any, version: int, code: int
) -> None:
    who = client.init()
    assert client.write(who, version=version) == code
    assert client.write(who, version=version, name=None) == 53
    assert client.write(shifted(who, producer_id=1), version=version) == 49
    assert client.write(shifted(who, epoch=1), version=version) == 47
    ended = client.end(who).error_code
    assert ended == (0 if version >= 12 else 48)


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_transactional_id_with_the_producer_id_of_another_is_refused(
    client: Any, version: int
) -> None:
    who, other = client.init("x"), client.init("y")
    assert client.add(who) == [0]
    mapping = int(ErrorCode.invalid_producer_id_mapping)
    assert mapping == 49
    for _ in range(2):
        assert client.write(other, version=version) == mapping
        assert client.write(who, version=version, name="y") == mapping
        assert client.write(who, version=version, name="unknown") == mapping
        assert client.add(other) == [mapping]
        assert client.end(other).error_code == mapping
        group = {"transactional_id": "x", "group_id": "g", "producer_id": other.producer_id}
        group["producer_epoch"] = other.producer_epoch
        assert client.ask(25, 4, **group).error_code == mapping
        topics = [{"name": "t", "partitions": [_commit(0)]}]
        staged = client.ask(28, 5, **group, generation_id=-1, member_id="", topics=topics)
        assert staged.topics[0].partitions[0].error_code == mapping
        # The second time both have a transaction open.
        assert client.write(who, version=12) == 0
        assert client.write(other, version=12, name="y", partition=1) == 0
    views = [view for view in client.broker.transactions.all() if view]
    phases = {view.name: view.phase for view in views}
    assert phases == {"x": "Ongoing", "y": "Ongoing"}
    partitions = {view.name: list(view.partitions) for view in views}
    assert [at.index for at in partitions["x"]] == [0]
    assert [at.index for at in partitions["y"]] == [1]


def _commit(partition: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }


def test_a_write_that_meets_the_end_is_told_to_come_back(client: Any) -> None:
    who = client.init()
    assert client.write(who) == 0
    transactions = client.broker.transactions
    entry = transactions._by_name["x"]
    entry.undecided = True
    assert client.write(who, sequence=1) == ErrorCode.concurrent_transactions == 51
    assert client.write(who, sequence=1, version=11) == ErrorCode.not_enough_replicas
    assert client.add(who) == [51]
    entry.undecided = False
    assert client.write(who, sequence=1) == 0


def test_the_new_dialect_gives_an_epoch_with_every_end(client: Any) -> None:
    who = client.init()
    for epoch in range(1, 4):
        assert client.write(who) == 0
        late, who = who, client.end(who)
        assert who.producer_epoch == epoch
        assert client.write(late, sequence=1) == 47
    assert client.end(who, commit=True).error_code == 48
    aborted = client.end(who, commit=False)
    assert (aborted.error_code, aborted.producer_epoch) == (0, 4), "an empty one may be aborted"


def test_readers_are_told_what_to_hide(client: Any) -> None:
    who = client.init()
    client.write(who)
    open_part = client.read()
    assert (open_part.last_stable_offset, open_part.high_watermark) == (0, 1)
    assert not open_part.records
    after = client.end(who, commit=False)
    client.write(after)
    client.end(after)
    part = client.read()
    assert part.last_stable_offset == part.high_watermark == 4
    found = [(one.producer_id, one.first_offset) for one in part.aborted_transactions]
    assert found == [(who.producer_id, 0)]
    assert not client.read(2).aborted_transactions
    assert client.read(isolation=0).aborted_transactions is None


@pytest.mark.parametrize("version", range(5))
def test_a_group_is_added(client: Any, version: int) -> None:
    who = client.init()

    def add(owner: Any, name: str = "x") -> int:
        answer = client.ask(
            25,
            version,
            transactional_id=name,
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            group_id="g",
        )
        return int(answer.error_code)

    assert add(who) == 0
    assert FENCED[add(shifted(who, epoch=1))] == (version >= 2)
    assert add(who, "other") == 49
    assert add(who, "") == ErrorCode.invalid_request
    assert client.end(who).error_code == 0


@pytest.mark.parametrize("version", range(6))
def test_offsets_in_a_transaction(client: Any, version: int) -> None:
    who = client.init()

    def commit(offset: int, metadata: str | None = "m", **fields: Any) -> list[int]:
        place = {
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": metadata,
        }
        parts = [{"partition_index": index, **place} for index in (0, 9)]
        answer = client.ask(
            28,
            version,
            **{
                "transactional_id": "x",
                "group_id": "g",
                "producer_id": who.producer_id,
                "producer_epoch": who.producer_epoch,
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": "t", "partitions": parts}],
                **fields,
            },
        )
        (topic,) = answer.topics
        return [int(part.error_code) for part in topic.partitions]

    def committed() -> int | None:
        found = client.broker.groups.offsets.committed("g")
        return next((one.offset for one in found.values()), None)

    if version < 5:
        assert commit(5) == [48, 3]
        client.ask(
            25,
            3,
            transactional_id="x",
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            group_id="g",
        )
    assert commit(5) == [0, 3]
    assert commit(5, "m" * 5000) == [12, 12]
    assert commit(5, producer_epoch=who.producer_epoch + 1) == [47, 3]
    assert commit(5, transactional_id="other") == [49, 3]
    if version >= 3:
        assert commit(5, generation_id=4, member_id="stranger")[0] in (22, 25)
    assert commit(6, None) == [0, 3]
    assert committed() is None
    assert client.end(who).error_code == 0
    assert committed() == 6


@pytest.mark.parametrize("version", [1, 2])
def test_markers_by_hand(client: Any, version: int) -> None:
    who = client.init()
    client.write(who)

    def mark(epoch: int) -> list[int]:
        marker = {
            "producer_id": who.producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": "t", "partition_indexes": [0, 9]}],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        answer = client.ask(27, version, markers=[marker])
        (one,) = answer.markers
        return [int(part.error_code) for part in one.topics[0].partitions]

    assert mark(who.producer_epoch - 1) == [47, 3]
    assert client.read().last_stable_offset == 0
    assert mark(who.producer_epoch) == [0, 3]
    assert client.read().last_stable_offset == 2


def test_producers_of_partitions_are_told(client: Any) -> None:
    who = client.init()
    client.write(who)
    answer = client.ask(61, 0, topics=[{"name": "t", "partition_indexes": [0, 1, 9]}])
    first, second, third = answer.topics[0].partitions
    (producer,) = first.active_producers
    assert (producer.producer_id, producer.producer_epoch) == (who.producer_id, 0)
    assert (producer.last_sequence, producer.current_txn_start_offset) == (0, 0)
    assert (second.error_code, second.active_producers) == (0, ())
    assert third.error_code == 3


def test_transactions_are_described(client: Any) -> None:
    who = client.init()
    client.write(who)
    client.write(who, partition=2)
    asked = ["x", "other"]
    answer = client.ask(65, 0, transactional_ids=asked)
    found, missing = answer.transaction_states
    assert (found.transaction_state, found.producer_id) == ("Ongoing", who.producer_id)
    assert found.transaction_timeout == timedelta(seconds=60)
    assert [(one.topic, one.partitions) for one in found.topics] == [("t", (0, 2))]
    assert missing.error_code == ErrorCode.transactional_id_not_found
    client.end(who)
    # Kafka says -1 where no transaction is open, which kio cannot read.
    ended = client.raw(65, 0, transactional_ids=["x"])
    assert b"CompleteCommit" in ended
    assert (-1).to_bytes(8, "big", signed=True) in ended


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed(client: Any, version: int) -> None:
    who, idle = client.init("busy"), client.init("idle")
    client.write(who, name="busy")

    def names(**filters: Any) -> set[str]:
        fields = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
            **filters,
        }
        answer = client.ask(66, version, **fields)
        assert answer.error_code == 0
        return {one.transactional_id for one in answer.transaction_states}

    assert names() == {"busy", "idle"}
    assert names(state_filters=["Ongoing"]) == {"busy"}
    assert names(producer_id_filters=[idle.producer_id]) == {"idle"}
    unknown = client.ask(
        66, version, state_filters=["Empty", "Odd"], producer_id_filters=[],
        duration_filter=-1, transactional_id_pattern=None,
    )  # fmt: skip
    assert unknown.unknown_state_filters == ("Odd",)
    if version >= 1:
        client.broker.runtime.advance(5000)
        assert names(duration_filter=4000) == {"busy"}
        assert names(duration_filter=9000) == set()
    if version >= 2:
        assert names(transactional_id_pattern="b.*") == {"busy"}
        refused = client.ask(
            66, version, state_filters=[], producer_id_filters=[], duration_filter=-1,
            transactional_id_pattern="(",
        )  # fmt: skip
        assert refused.error_code == ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("version", [3, 4])
def test_the_dialects_are_announced(client: Any, version: int) -> None:
    answer = client.ask(18, version, client_software_name="test", client_software_version="1")
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized == {"group.version": 1, "transaction.version": 2}
    assert answer.finalized_features_epoch >= 0
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    assert supported["transaction.version"] == (0 if version >= 4 else 1, 2)


def test_a_restart_in_the_middle(open_client: Callable[..., Any]) -> None:
    client = open_client()
    who = client.init()
    client.write(who)
    client = open_client()
    assert client.read().last_stable_offset == 0
    assert client.write(who, sequence=1) == 0
    assert client.end(who).error_code == 0
    assert client.read().last_stable_offset == 3
    assert client.init().producer_id == who.producer_id
