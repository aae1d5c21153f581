"""DescribeClientQuotas and AlterClientQuotas, in every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_bench import Bench

Entity = dict[str, str | None]
EXACT, DEFAULT, ANY = range(3)


def alter(
    bench: Bench, entity: Entity, *, version: int = 1, dry: bool = False, **values: float | None
) -> tuple[int, str | None]:
    ops = [
        {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
        for key, value in values.items()
    ]
    named = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    (entry,) = (
        bench.connect()
        .ask(49, version, entries=[{"entity": named, "ops": ops}], validate_only=dry)
        .entries
    )
    assert {part.entity_type: part.entity_name for part in entry.entity} == entity
    return entry.error_code, entry.error_message


def describe(
    bench: Bench, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    asked = [
        {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components
    ]
    answer = bench.connect().ask(48, version, components=asked, strict=strict)
    if answer.error_code:
        assert answer.entries is None
        assert answer.error_message
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_kept_changed_and_removed(
    bench: Bench, open_bench: Callable[..., Bench], version: int
) -> None:
    entity: Entity = {"user": "u", "client-id": None}
    done = alter(bench, entity, version=version, producer_byte_rate=1000.0, request_percentage=0.5)
    assert done == (0, None)
    key = (("user", "u"), ("client-id", None))
    expected = {"producer_byte_rate": 1000.0, "request_percentage": 0.5}
    assert describe(bench, version=version) == {key: expected}
    assert alter(bench, entity, version=version, dry=True, producer_byte_rate=None)[0] == 0
    assert describe(bench, version=version) == {key: expected}
    again = open_bench()
    assert describe(again, version=version) == {key: expected}
    done = alter(again, entity, version=version, producer_byte_rate=None, consumer_byte_rate=2.0)
    assert done == (0, None)
    expected = {"request_percentage": 0.5, "consumer_byte_rate": 2.0}
    assert describe(again, version=version) == {key: expected}


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {"u", "u*", "*", "uc", "c", "*c"}),
        ([], True, set()),
        ([("user", EXACT, "u")], False, {"u", "u*", "uc"}),
        ([("user", EXACT, "u")], True, {"u"}),
        ([("user", DEFAULT, None)], False, {"*", "*c"}),
        ([("user", ANY, None)], True, {"u", "*"}),
        ([("user", ANY, None), ("client-id", ANY, None)], False, {"u*", "uc", "*c"}),
        ([("client-id", EXACT, "c")], True, {"c"}),
        ([("user", EXACT, "u"), ("client-id", DEFAULT, None)], True, {"u*"}),
        ([("ip", ANY, None)], False, set()),
    ],
)
def test_filters(bench: Bench, components: list[Any], strict: bool, expected: set[str]) -> None:
    entities: dict[str, Entity] = {
        "u": {"user": "u"},
        "u*": {"user": "u", "client-id": None},
        "*": {"user": None},
        "uc": {"user": "u", "client-id": "c"},
        "c": {"client-id": "c"},
        "*c": {"user": None, "client-id": "c"},
    }
    for entity in entities.values():
        assert alter(bench, entity, producer_byte_rate=5.0)[0] == 0
    found = describe(bench, *components, strict=strict)
    assert set(found) == {tuple(entities[name].items()) for name in expected}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", EXACT, None)], 42),
        ([("user", ANY, "u")], 42),
        ([("user", 3, None)], 42),
        ([("user", ANY, None), ("user", DEFAULT, None)], 42),
        ([("ip", ANY, None), ("user", ANY, None)], 42),
        ([("", ANY, None)], 42),
        ([("colour", ANY, None)], 35),
    ],
)
def test_filters_refused(bench: Bench, components: list[Any], code: int) -> None:
    for version in (0, 1):
        assert describe(bench, *components, version=version) == code


@pytest.mark.parametrize(
    ("entity", "values", "code"),
    [
        ({}, {"producer_byte_rate": 1.0}, 42),
        ({"colour": "red"}, {"producer_byte_rate": 1.0}, 35),
        ({"ip": "127.0.0.1"}, {"producer_byte_rate": 1.0}, 42),
        ({"ip": "127.0.0.1"}, {"connection_creation_rate": 1.5}, 42),
        ({"ip": "no.address"}, {"connection_creation_rate": 1.0}, 42),
        ({"ip": "127.0.0.1", "user": "u"}, {"connection_creation_rate": 1.0}, 42),
        ({"user": "u"}, {"connection_creation_rate": 1.0}, 42),
        ({"user": "u"}, {"no_such": 1.0}, 42),
        ({"user": "u"}, {"controller_mutation_rate": 0.0}, 42),
        ({"user": "u"}, {"producer_byte_rate": 0.0}, 42),
        ({"user": "u"}, {"producer_byte_rate": 1.5}, 42),
        ({"user": "u"}, {"request_percentage": -1.0}, 42),
        ({"user": "u"}, {"consumer_byte_rate": 5.0, "no_such": 1.0}, 42),
    ],
)
def test_changes_refused(bench: Bench, entity: Entity, values: dict[str, float], code: int) -> None:
    error, text = alter(bench, entity, **values)
    assert error == code
    assert text
    assert describe(bench) == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", None])
def test_addresses_have_a_quota_of_connections(
    bench: Bench, open_bench: Callable[..., Bench], address: str | None
) -> None:
    assert alter(bench, {"ip": address}, connection_creation_rate=3.0) == (0, None)
    assert alter(bench, {"user": "u"}, controller_mutation_rate=0.5) == (0, None)
    again = open_bench()
    expected = {(("ip", address),): {"connection_creation_rate": 3.0}}
    assert describe(again, ("ip", ANY, None)) == expected
    assert describe(again, ("user", ANY, None)) == {
        (("user", "u"),): {"controller_mutation_rate": 0.5}
    }
    # One that nobody knows can always be taken back.
    assert alter(again, {"user": "u"}, no_such=None) == (0, None)
