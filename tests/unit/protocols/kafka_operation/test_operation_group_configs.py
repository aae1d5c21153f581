"""Settings of single groups: listed, changed, kept, refused, and what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_bench import Bench

from pentalog.broker.port import Beat, TopicSpec
from pentalog.model.errors import UnknownMember

GROUP = 32
SET, DELETE, APPEND = range(3)
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
OWN, DEFAULT = 8, 5


def describe(bench: Bench, name: str = "g", *, version: int = 4) -> Any:
    resource = {"resource_type": GROUP, "resource_name": name, "configuration_keys": None}
    (result,) = (
        bench.connect()
        .ask(32, version, resources=[resource], include_synonyms=True, include_documentation=True)
        .results
    )
    if result.error_code:
        return result.error_code
    assert not any(each.read_only for each in result.configs)
    return {each.name: each for each in result.configs}


def values(bench: Bench, name: str = "g") -> dict[str, tuple[str, int]]:
    found = describe(bench, name)
    return {each.name: (each.value, each.config_source) for each in found.values()}


def change(
    bench: Bench, *configs: tuple[str, int, str | None], name: str = "g", dry: bool = False
) -> tuple[int, str | None]:
    given = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": given}
    (result,) = bench.connect().ask(44, 1, resources=[resource], validate_only=dry).responses
    return result.error_code, result.error_message


def replace(bench: Bench, name: str, configs: dict[str, str]) -> int:
    given = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": given}
    (result,) = bench.connect().ask(33, 2, resources=[resource], validate_only=False).responses
    code: int = result.error_code
    return code


def listed(bench: Bench, *kinds: int, version: int = 1) -> Any:
    answer = bench.connect().ask(74, version, resource_types=kinds)
    if answer.error_code:
        return answer.error_code
    return {
        (getattr(each, "resource_type", 16), each.resource_name) for each in answer.config_resources
    }


def test_a_group_has_the_settings_of_the_broker(bench: Bench) -> None:
    for version in range(1, 5):
        assert set(describe(bench, version=version)) == {SESSION, HEARTBEAT}
    assert values(bench) == {SESSION: ("45000", DEFAULT), HEARTBEAT: ("5000", DEFAULT)}
    entry = describe(bench)[SESSION]
    assert [(each.name, each.value) for each in entry.synonyms] == [(f"group.{SESSION}", "45000")]
    assert entry.documentation
    assert entry.config_type == 3


def test_settings_are_changed_kept_and_removed(
    bench: Bench, open_bench: Callable[..., Bench]
) -> None:
    assert change(bench, (SESSION, SET, "50000"), dry=True) == (0, None)
    assert values(bench)[SESSION] == ("45000", DEFAULT)
    assert change(bench, (SESSION, SET, "50000"), (HEARTBEAT, SET, "7000")) == (0, None)
    expected = {SESSION: ("50000", OWN), HEARTBEAT: ("7000", OWN)}
    assert values(bench) == expected
    assert values(bench, "other")[SESSION] == ("45000", DEFAULT)
    assert len(describe(bench)[SESSION].synonyms) == 2
    again = open_bench()
    assert values(again) == expected
    assert change(again, (SESSION, DELETE, None)) == (0, None)
    assert values(again) == {SESSION: ("45000", DEFAULT), HEARTBEAT: ("7000", OWN)}
    assert replace(again, "g", {SESSION: "46000"}) == 0
    assert values(again) == {SESSION: ("46000", OWN), HEARTBEAT: ("5000", DEFAULT)}
    assert replace(again, "g", {}) == 0
    assert listed(again, GROUP) == set()


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([(SESSION, SET, "44999")], 40),
        ([(SESSION, SET, "60001")], 40),
        ([(SESSION, SET, "soon")], 40),
        ([(HEARTBEAT, SET, "4999")], 40),
        ([(HEARTBEAT, SET, "15001")], 40),
        ([(SESSION, SET, "50000"), ("share.session.timeout.ms", SET, "50000")], 40),
        ([(SESSION, APPEND, "1")], 40),
        ([(SESSION, SET, None)], 42),
        ([(SESSION, SET, "50000"), (SESSION, SET, "50000")], 42),
    ],
)
def test_changes_refused(bench: Bench, configs: list[Any], code: int) -> None:
    error, text = change(bench, *configs)
    assert error == code
    assert text
    assert values(bench)[SESSION] == ("45000", DEFAULT)
    assert change(bench, (SESSION, SET, "50000"), name="")[0] == 42
    assert describe(bench, "") == 42


def test_what_has_settings_is_listed(bench: Bench) -> None:
    bench.topics.create(TopicSpec(name="t"))
    change(bench, (SESSION, SET, "50000"))
    node = str(bench.config.node_id)
    assert listed(bench) == {(2, "t"), (4, node), (32, "g")}
    assert listed(bench, 32) == {(32, "g")}
    assert listed(bench, 2, 4, 2) == {(2, "t"), (4, node)}
    assert listed(bench, 8, 16) == set()
    assert listed(bench, 3) == 35
    assert listed(bench, version=0) == set()


def test_members_are_told_and_watched_by_the_settings_of_their_group(bench: Bench) -> None:
    change(bench, (SESSION, SET, "60000"), (HEARTBEAT, SET, "9000"))

    def beat(group: str, epoch: int = 0) -> Any:
        joining = {"topics": frozenset({"t"}), "owned": {}, "rebalance_timeout_ms": 1000}
        later = bench.consumers.beat(
            group,
            Beat(member_id="m", epoch=epoch, **(joining if not epoch else {})),
        )
        bench.runtime.step()
        return later.value

    assert beat("g").interval_ms == 9000
    assert beat("other").interval_ms == 5000
    bench.runtime.advance(50_000)
    assert beat("g", 1).interval_ms == 9000
    with pytest.raises(UnknownMember):
        beat("other", 1)
    bench.runtime.advance(60_001)
    with pytest.raises(UnknownMember):
        beat("g", 1)
