"""Patterns find only topics that the member may see, as the rules are at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_world import GROUP, Modern, World, settle

from pentalog.broker.port import Beaten
from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule, Sight

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


class Watched(Modern):
    """A member of which the rules are asked."""

    def __init__(self, world: World, member_id: str, who: Principal, *topics: str) -> None:
        super().__init__(world, member_id, *topics, pattern=".*")
        self.who = who

    def beat(self, **fields: Any) -> Beaten:
        return super().beat(sight=Sight(self.who, "127.0.0.1", self.world.rules), **fields)


def seeing(who: Principal, name: str, *, prefixed: bool = False) -> Rule:
    return Rule(Kind.TOPIC, name, prefixed, who, ANY, Operation.DESCRIBE, True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, guarded=True)
    made.topic("orders", 2)
    made.topic("secret", 2)
    yield made
    made.crash()


def test_a_pattern_finds_what_the_member_may_see(world: World) -> None:
    world.rules.add([seeing(ALICE, "ord", prefixed=True)])
    alice = Watched(world, "a", ALICE).join()
    assert alice.reads == {"orders": [0, 1]}
    world.topic("ordered", 1)
    world.topic("other", 1)
    settle(alice)
    assert alice.reads == {"orders": [0, 1], "ordered": [0]}
    assert not world.groups.found(GROUP).reads("secret")  # type: ignore[union-attr]


def test_a_change_of_the_rules_changes_what_it_finds(world: World) -> None:
    secret = seeing(ALICE, "secret")
    world.rules.add([seeing(ALICE, "orders"), secret])
    alice = Watched(world, "a", ALICE).join()
    assert alice.reads == {"orders": [0, 1], "secret": [0, 1]}
    world.rules.remove([secret])
    settle(alice)
    assert alice.reads == {"orders": [0, 1]}
    world.rules.add([secret])
    settle(alice)
    assert alice.reads == {"orders": [0, 1], "secret": [0, 1]}


def test_what_one_member_must_not_see_any_more_another_reads(world: World) -> None:
    every, secret = seeing(BOB, ANY), seeing(ALICE, "secret")
    world.rules.add([every, secret])
    alice, bob = Watched(world, "a", ALICE).join(), Watched(world, "b", BOB).join()
    settle(alice, bob)
    assert alice.reads == {"secret": [0, 1]}
    world.rules.remove([secret])  # the topics that are read stay the same
    settle(alice, bob)
    assert alice.reads == {}
    assert bob.reads == {"orders": [0, 1], "secret": [0, 1]}
    world.rules.add([secret])
    settle(alice, bob)
    assert alice.reads == {"secret": [0, 1]}


def test_rules_that_change_nothing_here_start_no_new_plan(world: World) -> None:
    world.rules.add([seeing(ALICE, "orders")])
    alice = Watched(world, "a", ALICE).join()
    epoch = alice.epoch
    world.rules.add([seeing(BOB, "secret")])
    assert alice.obey().share is None
    assert alice.epoch == epoch


def test_somebody_else_who_goes_on_as_the_member_sees_what_he_may(world: World) -> None:
    world.rules.add([seeing(ALICE, ANY), seeing(BOB, "orders")])
    member = Watched(world, "a", ALICE).join()
    assert set(member.reads) == {"orders", "secret"}
    member.who = BOB
    settle(member)
    assert set(member.reads) == {"orders"}


def test_a_new_life_remembers_who_sees_what(tmp_path: Path) -> None:
    before = World(tmp_path / "data", guarded=True)
    before.topic("orders", 2)
    before.topic("secret", 2)
    before.rules.add([seeing(BOB, ANY), seeing(ALICE, "orders")])
    alice, bob = Watched(before, "a", ALICE).join(), Watched(before, "b", BOB).join()
    settle(alice, bob)
    epoch, had = bob.epoch, bob.reads
    before.crash()
    after = World(tmp_path / "data", guarded=True)
    alice.world = bob.world = after
    settle(bob)  # while nothing was heard of the other
    assert (bob.epoch, bob.reads) == (epoch, had)
    settle(alice, bob)
    assert (alice.epoch, set(alice.reads)) == (epoch, {"orders"})
    after.crash()
