"""Rules: who may do what, and that a rule book outlives the broker."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_runtime import StepRuntime

from pentalog.broker.rules import LocalRules
from pentalog.broker.security import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    Access,
    Kind,
    Operation,
    Principal,
    Rule,
    Unaudited,
    Verdict,
)
from pentalog.broker.state import State
from pentalog.model.errors import InvalidConfig, Unauthorized

Open = Callable[[], State]
ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
EVERYBODY = Principal("User", ANY)


def rule(
    principal: Principal = ALICE,
    operation: Operation | None = Operation.READ,
    name: str = "orders",
    *,
    allowed: bool = True,
    prefixed: bool = False,
    kind: Kind = Kind.TOPIC,
    host: str = ANY,
) -> Rule:
    return Rule(kind, name, prefixed, principal, host, operation, allowed)


def book(state: State, *, open_to_all: bool = False) -> LocalRules:
    made = LocalRules(state, enforced=True, super_users=[ROOT], everyone_without_rule=open_to_all)
    made.open()
    return made


@pytest.fixture
def rules(open_state: Open) -> LocalRules:
    return book(open_state())


def may(
    rules: LocalRules,
    who: Principal,
    operation: Operation,
    name: str = "orders",
    *,
    host: str = "10.0.0.1",
    kind: Kind = Kind.TOPIC,
) -> bool:
    return rules.judge(who, host, operation, kind, name).allowed


def test_nobody_may_anything_without_a_rule_but_super_users(rules: LocalRules) -> None:
    assert not may(rules, ALICE, Operation.READ)
    assert may(rules, ROOT, Operation.READ)


def test_a_resource_no_rule_names_can_be_open_to_all(open_state: Open) -> None:
    rules = book(open_state(), open_to_all=True)
    assert may(rules, BOB, Operation.READ)
    rules.add([rule(ALICE)])
    assert not may(rules, BOB, Operation.READ)
    assert may(rules, BOB, Operation.READ, "other")
    rules.remove([rule(ALICE)])
    assert may(rules, BOB, Operation.READ)


@pytest.mark.parametrize(
    ("made", "name", "allowed"),
    [
        (rule(), "orders", True),
        (rule(), "orders2", False),
        (rule(name=ANY), "anything", True),
        (rule(name="or", prefixed=True), "orders", True),
        (rule(name="ordersx", prefixed=True), "orders", False),
        (rule(name=ANY, prefixed=True), "orders", False),
        (rule(EVERYBODY), "orders", True),
        (rule(BOB), "orders", False),
        (rule(Principal("Group", "alice")), "orders", False),
        (rule(host="10.0.0.1"), "orders", True),
        (rule(host="10.0.0.2"), "orders", False),
        (rule(operation=None), "orders", True),
        (rule(operation=Operation.WRITE), "orders", False),
        (rule(kind=Kind.GROUP), "orders", False),
    ],
)
def test_what_a_rule_covers(rules: LocalRules, made: Rule, name: str, allowed: bool) -> None:
    rules.add([made])
    assert may(rules, ALICE, Operation.READ, name) is allowed


def test_a_denial_wins_but_denies_only_itself(rules: LocalRules) -> None:
    rules.add([rule(EVERYBODY, None), rule(ALICE, Operation.READ, allowed=False)])
    assert not may(rules, ALICE, Operation.READ)
    assert may(rules, ALICE, Operation.WRITE)
    assert may(rules, ALICE, Operation.DESCRIBE)
    assert may(rules, BOB, Operation.READ)
    rules.add([rule(EVERYBODY, None, "ord", prefixed=True, allowed=False)])
    assert not may(rules, BOB, Operation.READ)
    assert may(rules, ROOT, Operation.READ)


@pytest.mark.parametrize(
    "given_operation",
    [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE, None],
)
def test_doing_includes_describing(rules: LocalRules, given_operation: Operation | None) -> None:
    rules.add([rule(operation=given_operation)])
    assert may(rules, ALICE, Operation.DESCRIBE)


def test_altering_settings_includes_describing_them(rules: LocalRules) -> None:
    rules.add([rule(operation=Operation.ALTER_SETTINGS)])
    assert may(rules, ALICE, Operation.DESCRIBE_SETTINGS)
    assert not may(rules, ALICE, Operation.DESCRIBE)


@pytest.mark.parametrize(
    "bad",
    [
        rule(name=""),
        rule(name="x" * 1025),
        rule(Principal("User", "n" * 1020)),
        rule(host="h" * 1025),
        rule(operation=Operation.CREATE_TOKENS),
        rule(kind=Kind.CLUSTER, operation=Operation.ALTER, name="other"),
        rule(kind=Kind.CLUSTER, operation=Operation.ALTER, name=CLUSTER_NAME, prefixed=True),
    ],
)
def test_rules_without_meaning_are_refused_and_nothing_is_added(
    rules: LocalRules, bad: Rule
) -> None:
    with pytest.raises(InvalidConfig):
        rules.add([rule(), bad])
    assert rules.all() == ()


def test_a_rule_book_outlives_the_broker(open_state: Open, runtime: StepRuntime) -> None:
    first = book(open_state())
    kept = rule(BOB, None, "or", prefixed=True, allowed=False, host="::1")
    first.add([rule(), kept])
    first.remove([rule()])
    settled = first.settle()
    runtime.run()
    assert settled.ready
    assert set(book(open_state()).all()) == {kept}


def test_any_topic(rules: LocalRules) -> None:
    def any_topic() -> bool:
        return rules.judge_any(ALICE, "h", Operation.WRITE, Kind.TOPIC)

    assert not any_topic()
    rules.add([rule(operation=Operation.WRITE, name="ab", prefixed=True)])
    assert any_topic()
    denial = rule(operation=None, name="a", prefixed=True, allowed=False)
    rules.add([denial])
    assert not any_topic()
    rules.remove([denial])
    rules.add([rule(operation=Operation.WRITE, name=ANY, allowed=False)])
    assert not any_topic()
    assert rules.judge_any(ROOT, "h", Operation.WRITE, Kind.TOPIC)


def test_a_connection_asks_once_until_the_rules_change(rules: LocalRules) -> None:
    denied: list[tuple[object, ...]] = []

    class Noted(Unaudited):
        def denied(self, access: Access, *about: object) -> None:
            denied.append((access.who, access.host, *about))

    access = Access(rules, ALICE, "h", audit=Noted())
    with patch.object(rules, "judge", wraps=rules.judge) as judge:
        for _ in range(3):
            assert not access.allows(Operation.READ, Kind.TOPIC, "orders")
    assert judge.call_count == 1
    verdict = Verdict(False, "no rule allows it")
    # Each is told, and counted where it is written down.
    assert denied == [(ALICE, "h", Operation.READ, Kind.TOPIC, "orders", verdict)] * 3
    rules.add([rule()])
    access.check(Operation.READ, Kind.TOPIC, "orders")
    assert access.sees(Kind.TOPIC, "orders")
    access.become(BOB, "PLAIN")
    with pytest.raises(Unauthorized, match=r"User:bob may not read topic 'orders'"):
        access.check(Operation.READ, Kind.TOPIC, "orders")


NAMES = st.sampled_from(["a", "ab", "abc", "b", ANY])
HOSTS = st.sampled_from(["1", "2", ANY])
RULES = st.builds(
    rule,
    st.sampled_from([ALICE, BOB, EVERYBODY]),
    st.sampled_from([None, *sorted(OPERATIONS[Kind.TOPIC], key=str)]),
    NAMES,
    allowed=st.booleans(),
    prefixed=st.booleans(),
    host=HOSTS,
)


def expected(rules: list[Rule], operation: Operation, name: str, host: str) -> bool:
    """The same rules, said as plainly as can be."""
    includes = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_SETTINGS: {Operation.ALTER_SETTINGS},
    }.get(operation, set())
    hits = [
        one
        for one in rules
        if (name.startswith(one.name) if one.prefixed else one.name in (name, ANY))
        and one.principal in (ALICE, EVERYBODY)
        and one.host in (host, ANY)
    ]
    if any(not one.allowed and one.operation in (None, operation) for one in hits):
        return False
    return any(
        one.allowed and (one.operation in (None, operation) or one.operation in includes)
        for one in hits
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_rules=st.lists(RULES, max_size=6),
    gone=st.lists(RULES, max_size=3),
    operation=st.sampled_from(sorted(OPERATIONS[Kind.TOPIC], key=str)),
    name=st.sampled_from(["a", "ab", "abc", "b", "c"]),
    host=st.sampled_from(["1", "2"]),
)
def test_any_rules_are_judged_as_the_plain_words_say(
    open_state: Open,
    given_rules: list[Rule],
    gone: list[Rule],
    operation: Operation,
    name: str,
    host: str,
) -> None:
    rules = LocalRules(open_state(), enforced=True)
    rules.add(given_rules)
    rules.remove(gone)
    left = [one for one in given_rules if one not in gone]
    assert may(rules, ALICE, operation, name, host=host) is expected(left, operation, name, host)
