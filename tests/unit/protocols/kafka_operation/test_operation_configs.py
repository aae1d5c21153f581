"""The broker's own settings: listed, changed while it runs, kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from operator_bench import Bench

from pentalog.broker.port import TopicSpec
from pentalog.config import SETTINGS
from pentalog.protocols.kafka.broker_configs import OWN
from pentalog.protocols.kafka.configs import SYNONYMS

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
SYNONYM = tuple[str, str, int]


def describe(bench: Bench, kind: int, name: str, *, version: int = 4) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = (
        bench.connect()
        .ask(32, version, resources=[resource], include_synonyms=True, include_documentation=True)
        .results
    )
    assert result.error_code == 0
    found = {each.name: each for each in result.configs}
    assert len(found) == len(result.configs)
    return found


def synonyms(entry: Any) -> list[SYNONYM]:
    return [(other.name, other.value, other.source) for other in entry.synonyms]


def change(
    bench: Bench,
    *configs: tuple[str, int, str | None],
    name: str = "3",
    version: int = 1,
    dry: bool = False,
) -> tuple[int, str | None]:
    given = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": given}
    (result,) = bench.connect().ask(44, version, resources=[resource], validate_only=dry).responses
    return result.error_code, result.error_message


def replace(bench: Bench, name: str, version: int = 2, **configs: str) -> tuple[int, str | None]:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": given}
    (result,) = (
        bench.connect().ask(33, version, resources=[resource], validate_only=False).responses
    )
    return result.error_code, result.error_message


def test_every_setting_is_listed(bench: Bench) -> None:
    for version in range(1, 5):
        found = describe(bench, BROKER, "3", version=version)
        assert set(found) >= set(OWN) | set(SYNONYMS.values())
        assert set(OWN.values()) | {"topic_defaults"} == set(SETTINGS)
        assert all(synonyms(each)[-1][2] == 5 for each in found.values())
        assert all(synonyms(each)[0][1] == each.value for each in found.values())
    assert all(each.documentation for each in found.values())
    values = {
        name: (each.value, each.config_source, each.read_only) for name, each in found.items()
    }
    assert values["num.partitions"] == ("2", 4, False)
    assert values["log.retention.ms"] == ("9", 4, False)
    assert values["node.id"] == ("3", 4, True)
    assert values["auto.create.topics.enable"] == ("true", 5, False)
    assert values["pentalog.flush.interval.ms"] == ("100", 5, True)
    assert values["default.replication.factor"] == ("1", 5, True)
    kinds = {name: each.config_type for name, each in found.items()}
    assert kinds["auto.create.topics.enable"] == 1
    assert kinds["log.dirs"] == 2
    assert kinds["node.id"] == 3
    assert kinds["max.connections"] == 5
    assert kinds["log.cleanup.policy"] == 7
    assert describe(bench, BROKER, "") == {}


@pytest.mark.parametrize("version", [0, 1])
def test_a_change_for_one_is_stronger_than_one_for_all(bench: Bench, version: int) -> None:
    assert change(bench, ("num.partitions", SET, "5"), name="", version=version) == (0, None)
    assert bench.topics.create(TopicSpec(name="five")).partitions == 5
    assert change(bench, ("num.partitions", SET, "4"), version=version) == (0, None)
    assert bench.topics.create(TopicSpec(name="four")).partitions == 4
    entry = describe(bench, BROKER, "3")["num.partitions"]
    assert (entry.value, entry.config_source) == ("4", 2)
    assert synonyms(entry) == [
        ("num.partitions", "4", 2),
        ("num.partitions", "5", 3),
        ("num.partitions", "2", 4),
        ("num.partitions", "1", 5),
    ]
    (everywhere,) = describe(bench, BROKER, "").values()
    assert (everywhere.name, everywhere.value, everywhere.config_source) == (
        "num.partitions", "5", 3,
    )  # fmt: skip
    assert change(bench, ("num.partitions", DELETE, None), version=version) == (0, None)
    assert describe(bench, BROKER, "3")["num.partitions"].value == "5"


def test_topics_without_their_own_follow_at_once_and_after_a_restart(
    bench: Bench, open_bench: Callable[..., Bench]
) -> None:
    bench.topics.create(TopicSpec(name="follows"))
    bench.topics.create(TopicSpec(name="own", settings={"retention.ms": "7"}))
    version = bench.topics.version
    assert change(bench, ("log.retention.ms", SET, "1000"), ("log.roll.ms", SET, "50"))[0] == 0
    assert bench.topics.version > version

    def retentions(bench: Bench) -> list[int]:
        return [bench.topics.get(name).settings.retention_ms for name in ("follows", "own")]

    assert retentions(bench) == [1000, 7]
    described = describe(bench, TOPIC, "follows")
    assert (described["retention.ms"].value, described["retention.ms"].config_source) == (
        "1000", 2,
    )  # fmt: skip
    assert synonyms(describe(bench, TOPIC, "own")["retention.ms"]) == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "1000", 2),
        ("log.retention.ms", "9", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    again = open_bench(node_id=3)
    assert retentions(again) == [1000, 7]
    assert describe(again, BROKER, "3")["log.roll.ms"].config_source == 2
    assert change(again, ("log.retention.ms", DELETE, None))[0] == 0
    assert retentions(again) == [604800000, 7]


def test_changes_reach_the_partitions_themselves(bench: Bench) -> None:
    bench.topics.create(TopicSpec(name="a", partitions=1))
    assert change(bench, ("message.max.bytes", SET, "77"))[0] == 0
    ((_, partition),) = bench.store._partitions.items()
    assert partition.settings.message_bytes_max == 77


@pytest.mark.parametrize("version", [0, 1, 2])
def test_replacing_takes_back_what_is_not_named(bench: Bench, version: int) -> None:
    assert change(bench, ("num.partitions", SET, "4"), ("log.roll.ms", SET, "50"))[0] == 0
    assert replace(bench, "3", version, log_roll_ms="60") == (0, None)
    found = describe(bench, BROKER, "3")
    assert (found["num.partitions"].value, found["log.roll.ms"].value) == ("2", "60")


def test_lists_grow_and_shrink(bench: Bench) -> None:
    assert change(bench, ("log.cleanup.policy", APPEND, "compact"))[0] == 0
    assert describe(bench, BROKER, "3")["log.cleanup.policy"].value == "delete,compact"
    assert change(bench, ("log.cleanup.policy", SUBTRACT, "delete"))[0] == 0
    assert describe(bench, BROKER, "3")["log.cleanup.policy"].value == "compact"
    assert change(bench, ("num.partitions", APPEND, "1"))[0] == 40


@pytest.mark.parametrize("automatic", ["true", "false"])
def test_topic_creation_can_be_switched(bench: Bench, automatic: str) -> None:
    assert change(bench, ("auto.create.topics.enable", SET, automatic))[0] == 0
    peer = bench.connect()
    for _ in range(2):  # the first one creates it
        answer = peer.ask(3, 4, topics=[{"name": "fresh"}], allow_auto_topic_creation=True)
    assert (answer.topics[0].error_code == 0) == (automatic == "true")


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("3", ("node.id", SET, "4"), "restart"),
        ("3", ("default.replication.factor", SET, "3"), "restart"),
        ("3", ("pentalog.journal.bytes", SET, "4"), "restart"),
        ("3", ("no.such", SET, "4"), "no broker setting"),
        ("3", ("num.partitions", SET, "0"), "accepted"),
        ("", ("log.retention.ms", SET, "x"), "retention.ms"),
        ("3", ("num.partitions", SET, None), "no value"),
        ("4", ("num.partitions", SET, "4"), "the only one is 3"),
    ],
)
def test_changes_refused(
    bench: Bench, name: str, config: tuple[str, int, str | None], text: str
) -> None:
    before = bench.settings.live
    error, message = change(bench, config, name=name)
    assert error == 42
    assert message is not None
    assert text in message
    assert change(bench, config, name=name, dry=True)[0] == 42
    assert bench.settings.live == before


def test_a_default_some_topic_cannot_live_with_is_refused(bench: Bench) -> None:
    bench.topics.create(TopicSpec(name="a", settings={"max.compaction.lag.ms": "50"}))
    error, message = change(bench, ("log.cleaner.min.compaction.lag.ms", SET, "60"))
    assert error == 42
    assert message is not None
    assert "topic 'a'" in message
    assert bench.topics.get("a").settings.compaction_lag_ms_min == 0


def test_taking_back_what_was_never_set_is_no_mistake(bench: Bench) -> None:
    assert change(bench, ("leader.replication.throttled.rate", DELETE, None)) == (0, None)


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    before = bench.settings.live
    assert change(bench, ("num.partitions", SET, "9"), dry=True) == (0, None)
    assert bench.settings.live == before
    assert describe(bench, BROKER, "3")["num.partitions"].value == "2"


def test_answers_wait_for_the_disk(bench: Bench) -> None:
    client = bench.connect()
    bench.runtime.held_lanes.add("state")
    resource = {
        "resource_type": BROKER,
        "resource_name": "3",
        "configs": [{"name": "num.partitions", "config_operation": SET, "value": "9"}],
    }
    client.feed(client.request(44, 1, resources=[resource], validate_only=False))
    entity = [{"entity_type": "user", "entity_name": "u"}]
    ops = [{"key": "producer_byte_rate", "value": 5.0, "remove": False}]
    entries = [{"entity": entity, "ops": ops}]
    client.feed(client.request(49, 1, entries=entries, validate_only=False))
    assert client.answers() == []
    bench.runtime.held_lanes.clear()
    bench.runtime.advance(timedelta(seconds=0).total_seconds())
    assert len(client.answers()) == 2
