"""What a connection remembers of its rights, and what it must not."""

from __future__ import annotations

import pytest

from pentalog.broker import rights, security
from pentalog.broker.security import (
    ANONYMOUS,
    Access,
    Kind,
    Operation,
    Principal,
    Unguarded,
    Verdict,
)
from pentalog.model.errors import Unauthorized

ALICE = Principal("User", "alice")


class Book(Unguarded):
    """Lets one do everything, and counts how often it is asked."""

    enforced = True

    def __init__(self) -> None:
        self.asked = 0
        self.denied: set[tuple[Operation, Kind]] = set()

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict:
        self.asked += 1
        return Verdict(who == ALICE and (operation, kind) not in self.denied, "")


def test_nobody_inherits_what_somebody_was_allowed() -> None:
    access = Access(Book(), ALICE)
    assert access.allows(Operation.READ, Kind.TOPIC, "orders")
    access.leave()
    assert access.who == ANONYMOUS
    assert not access.allows(Operation.READ, Kind.TOPIC, "orders")
    access.become(ALICE, "test")
    assert access.allows(Operation.READ, Kind.TOPIC, "orders")


def test_names_of_strangers_do_not_fill_the_memory() -> None:
    book = Book()
    access = Access(book)
    for number in range(security.KEPT_MAX + 10):
        access.allows(Operation.READ, Kind.TOPIC, str(number))
    assert len(access._kept) <= security.KEPT_MAX
    before, asked = len(access._kept), book.asked
    for _ in range(2):
        assert not access.allows(Operation.READ, Kind.TOPIC, "n" * 1_000_000)
    assert (len(access._kept), book.asked) == (before, asked + 2)


def test_a_refusal_does_not_repeat_what_is_too_long() -> None:
    with pytest.raises(Unauthorized) as refusal:
        Access(Book()).check(Operation.READ, Kind.TOPIC, "n" * 1_000_000)
    assert len(str(refusal.value)) < 500


def reading(topic: str) -> tuple[rights.Need, ...]:
    return (rights.read_topic(topic),)


def test_what_a_request_needs_is_asked_once_until_the_rules_change() -> None:
    book = Book()
    access = Access(book, ALICE)
    for _ in range(3):
        rights.check(access, reading("orders"))
        rights.check_for(access, reading, "orders")
    assert book.asked == 1
    book.version += 1
    book.denied = {(Operation.READ, Kind.TOPIC)}
    for _ in range(2):
        with pytest.raises(Unauthorized):
            rights.check_for(access, reading, "orders")
        with pytest.raises(Unauthorized):
            rights.check(access, reading("orders"))
    access.leave()
    book.denied = set()
    with pytest.raises(Unauthorized):
        rights.check_for(access, reading, "orders")


def test_quiet_questions_are_asked_once_until_the_rules_change_too() -> None:
    book = Book()
    access = Access(book, ALICE)
    for version in (1, 2):
        book.version = version
        for _ in range(3):
            assert rights.may(access, reading, "orders")
        assert book.asked == version
    book.version, book.denied = 3, {(Operation.READ, Kind.TOPIC)}
    assert not rights.may(access, reading, "orders")


def test_what_requests_need_does_not_fill_the_memory() -> None:
    access = Access(Book(), ALICE)
    for number in range(security.KEPT_MAX + 10):
        rights.check_for(access, reading, str(number))
    rights.check_for(access, reading, "n" * 1_000_000)
    assert len(access.remembered) <= security.KEPT_MAX
    assert max(len(str(question)) for question in access.remembered) < 1000


def test_a_login_that_was_taken_back_may_nothing_even_without_rules() -> None:
    access = Access(security.UNGUARDED, ALICE)
    rights.check_for(access, reading, "orders")
    access.shut()
    assert not access.allows(Operation.READ, Kind.TOPIC, "orders")
    assert not access.could(Operation.READ, Kind.TOPIC, "orders")
    assert not access.allows_any(Operation.READ, Kind.TOPIC)
    assert access.stamp != Access(security.UNGUARDED, ALICE).stamp
    access.become(ALICE, "test")
    assert access.allows(Operation.READ, Kind.TOPIC, "orders")


def test_who_may_create_in_the_cluster_may_create_every_topic() -> None:
    book = Book()
    needs = (rights.create_topic("orders"), rights.read_topic("orders"))
    book.denied = {(Operation.CREATE, Kind.TOPIC)}
    assert rights.missing(Access(book, ALICE), needs) is None
    book.denied = {(Operation.CREATE, Kind.CLUSTER)}
    assert rights.missing(Access(book, ALICE), needs) is None
    book.denied = {(Operation.CREATE, Kind.CLUSTER), (Operation.CREATE, Kind.TOPIC)}
    assert rights.missing(Access(book, ALICE), needs) == needs[0]
    book.denied = {(Operation.READ, Kind.TOPIC)}
    assert rights.missing(Access(book, ALICE), needs) == needs[1]
