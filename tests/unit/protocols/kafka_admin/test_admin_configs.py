"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from admin_line import AdminLine

from pentalog.broker.port import TopicSpec
from pentalog.broker.settings import DEFINITIONS

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture(autouse=True)
def topic(line: AdminLine) -> None:
    line.broker.topics.create(TopicSpec(name="a", settings={"flush.ms": "5"}))


def describe(
    line: AdminLine,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> Any:
    (result,) = line.ask(
        32,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        include_synonyms=synonyms,
        include_documentation=documentation,
    ).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_settings(line: AdminLine, version: int) -> None:
    result = describe(line, TOPIC, "a", version=version)
    assert result.error_code == 0
    found = {each.name: each for each in result.configs}
    assert set(found) == set(DEFINITIONS)
    assert [(found[name].value, found[name].config_source) for name in (
        "flush.ms", "retention.ms", "cleanup.policy"
    )] == [("5", 1), ("9", 4), ("delete", 5)]  # fmt: skip
    assert not any(each.read_only or each.is_sensitive for each in result.configs)
    assert all(each.synonyms == () for each in result.configs)
    if version >= 3:
        types = [found[name].config_type for name in (
            "compression.type", "segment.bytes", "flush.ms", "min.cleanable.dirty.ratio",
            "cleanup.policy",
        )]  # fmt: skip
        assert types == [2, 3, 5, 6, 7]
        assert all(each.documentation is None for each in result.configs)


def test_synonyms_and_documentation_when_asked(line: AdminLine) -> None:
    result = describe(line, TOPIC, "a", synonyms=True, documentation=True)
    found = {
        each.name: [(other.name, other.value, other.source) for other in each.synonyms]
        for each in result.configs
    }
    longest = str((1 << 63) - 1)
    assert found["flush.ms"] == [("flush.ms", "5", 1), ("log.flush.interval.ms", longest, 5)]
    week = str(7 * 24 * 3600 * 1000)
    assert found["retention.ms"] == [("log.retention.ms", "9", 4), ("log.retention.ms", week, 5)]
    assert all(each.documentation for each in result.configs)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["flush.ms", "unknown"], {"flush.ms"}), ([], set(DEFINITIONS)), (["unknown"], set())],
)
def test_only_the_keys_asked_for(line: AdminLine, keys: list[str], expected: set[str]) -> None:
    assert {each.name for each in describe(line, TOPIC, "a", keys).configs} == expected


def test_the_brokers_settings(line: AdminLine) -> None:
    result = describe(line, BROKER, "3", synonyms=True)
    found = {each.name: each for each in result.configs}
    assert found["num.partitions"].value == "2"
    assert found["log.retention.ms"].value == "9"
    assert found["auto.create.topics.enable"].value == "true"
    assert found["node.id"].value == "3"
    assert found["node.id"].read_only
    assert not found["log.retention.ms"].read_only
    assert all(each.synonyms for each in result.configs)
    assert len(found) == len(result.configs)
    assert describe(line, BROKER, "").configs == ()


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "b", 3),
        (TOPIC, "b!", 17),
        (BROKER, "4", 42),
        (BROKER, "x", 42),
        (8, "3", 42),
        (0, "", 42),
    ],
)
def test_what_cannot_be_described(line: AdminLine, kind: int, name: str, code: int) -> None:
    for version in range(1, 5):
        result = describe(line, kind, name, version=version)
        assert result.error_code == code
        assert result.error_message
        assert result.configs == ()


def replace_all(
    line: AdminLine, version: int, kind: int, name: str, dry: bool = False, **configs: str | None
) -> Any:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": given}
    return line.ask(33, version, resources=[resource], validate_only=dry).responses[0]


def overrides(line: AdminLine) -> dict[str, str]:
    return dict(line.broker.topics.get("a").overrides)


@pytest.mark.parametrize("version", range(3))
def test_replacing_all_settings(line: AdminLine, version: int) -> None:
    dry = replace_all(line, version, TOPIC, "a", dry=True, segment_ms="7")
    assert dry.error_code == 0
    assert overrides(line) == {"flush.ms": "5"}
    done = replace_all(line, version, TOPIC, "a", segment_ms="7")
    assert (done.error_code, done.error_message) == (0, None)
    assert (done.resource_type, done.resource_name) == (TOPIC, "a")
    assert overrides(line) == {"segment.ms": "7"}
    assert line.placed == 1


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "b", {"flush_ms": "1"}, 3),
        (TOPIC, "a", {"flush_ms": "x"}, 40),
        (TOPIC, "a", {"no_such": "1"}, 40),
        (TOPIC, "a", {"flush_ms": None}, 42),
        (BROKER, "3", {"node_id": "1"}, 42),
        (BROKER, "4", {"log_retention_ms": "1"}, 42),
        (8, "3", {}, 42),
    ],
)
def test_replacing_refused(
    line: AdminLine, kind: int, name: str, configs: dict[str, str | None], code: int
) -> None:
    for version in range(3):
        refused = replace_all(line, version, kind, name, **configs)
        assert refused.error_code == code
        assert refused.error_message
    assert overrides(line) == {"flush.ms": "5"}


def change(
    line: AdminLine,
    *configs: tuple[str, int, str | None],
    version: int = 1,
    kind: int = TOPIC,
    name: str = "a",
    dry: bool = False,
) -> Any:
    given = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": given}
    return line.ask(44, version, resources=[resource], validate_only=dry).responses[0]


@pytest.mark.parametrize("version", range(2))
def test_changing_some_settings(line: AdminLine, version: int) -> None:
    done = change(line, ("segment.ms", SET, "7"), version=version)
    assert (done.error_code, done.resource_name) == (0, "a")
    assert overrides(line) == {"flush.ms": "5", "segment.ms": "7"}
    done = change(line, ("flush.ms", DELETE, None), ("retention.ms", DELETE, ""), version=version)
    assert done.error_code == 0
    assert overrides(line) == {"segment.ms": "7"}
    assert change(line, ("segment.ms", SET, "8"), version=version, dry=True).error_code == 0
    assert overrides(line) == {"segment.ms": "7"}


def test_appending_and_subtracting(line: AdminLine) -> None:
    assert change(line, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert overrides(line)["cleanup.policy"] == "delete,compact"
    assert change(line, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert overrides(line)["cleanup.policy"] == "delete,compact"
    assert change(line, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert overrides(line)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([("flush.ms", SET, "x")], 40),
        ([("flush.ms", APPEND, "1")], 40),
        ([("flush.ms", SUBTRACT, "1")], 40),
        ([("cleanup.policy", APPEND, "burn")], 40),
        ([("no.such", SET, "1")], 40),
        ([("no.such", APPEND, "1")], 40),
        ([("flush.ms", SET, None)], 42),
        ([("flush.ms", 4, "1")], 42),
        ([("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], 42),
        ([("segment.ms", SET, "1"), ("flush.ms", SET, "x")], 40),
    ],
)
def test_changes_refused(
    line: AdminLine, configs: list[tuple[str, int, str | None]], code: int
) -> None:
    refused = change(line, *configs)
    assert refused.error_code == code
    assert refused.error_message
    assert overrides(line) == {"flush.ms": "5"}


def test_a_setting_that_is_none_can_be_taken_back(line: AdminLine) -> None:
    """As Kafka 4.3 answers: nothing is there to take back."""
    assert change(line, ("no.such", DELETE, None)).error_code == 0
    assert overrides(line) == {"flush.ms": "5"}


def test_what_has_no_default_of_the_broker_has_no_synonyms(line: AdminLine) -> None:
    name = "remote.storage.enable"
    assert change(line, (name, SET, "FALSE")).error_code == 0
    (found,) = describe(line, TOPIC, "a", [name], synonyms=True).configs
    assert (found.value, found.config_source, found.config_type) == ("false", 1, 1)
    assert [(other.name, other.source) for other in found.synonyms] == [(name, 1)]
    assert change(line, (name, DELETE, None)).error_code == 0
    (found,) = describe(line, TOPIC, "a", [name], synonyms=True).configs
    assert (found.value, found.config_source, found.synonyms) == ("false", 5, ())


def test_only_topics_that_exist_can_be_changed(line: AdminLine) -> None:
    assert change(line, ("flush.ms", SET, "1"), name="b").error_code == 3
    refused = change(line, ("node.id", SET, "1"), kind=BROKER, name="3")
    assert refused.error_code == 42
    assert "restart" in refused.error_message


def test_a_resource_named_twice_is_refused(line: AdminLine) -> None:
    config = {"name": "flush.ms", "config_operation": SET, "value": "1"}
    resource = {"resource_type": TOPIC, "resource_name": "a", "configs": [config]}
    answers = line.ask(44, 1, resources=[resource, resource], validate_only=False).responses
    assert [each.error_code for each in answers] == [42, 42]
    assert overrides(line) == {"flush.ms": "5"}
