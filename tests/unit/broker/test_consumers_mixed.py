"""Members of both protocols in one group, and groups that change their kind under them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_world import GROUP, REBALANCE_MS, Modern, Older, World, settle

from pentalog.broker import embedded
from pentalog.broker.port import Fence, Joining, Leaving, Proposal
from pentalog.model.errors import (
    GroupInconsistent,
    GroupNotFound,
    InstanceFenced,
    Rebalancing,
    StaleGeneration,
    UnknownMember,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.topic("orders", 6)
    yield made
    made.crash()


def plan_of(*members: Older) -> dict[str, bytes]:
    """What a leader might plan: neighbours together."""
    count = 6 // len(members)
    return {
        member.member_id: embedded.assignment(
            1, {"orders": frozenset(range(number * count, (number + 1) * count))}
        )
        for number, member in enumerate(members)
    }


def classic_group(world: World, *members: Older) -> None:
    """A finished generation of members that plan for themselves."""
    waits = [member.ask_to_join() for member in members]
    world.runtime.advance(1)
    for member, later in zip(members, waits, strict=True):
        member.joined(later)
    fetch_parts(world, *members)


def fetch_parts(world: World, *members: Older) -> None:
    plan = plan_of(*members)
    waits = [
        world.groups.sync(GROUP, member.fence, plan if number == 0 else {})
        for number, member in enumerate(members)
    ]
    for member, later in zip(members, waits, strict=True):
        parts = embedded.assigned(world.value(later).assignment)
        member.reads = {topic: sorted(indexes) for topic, indexes in parts.items()}


def calm(*members: Modern | Older) -> None:
    """Heartbeats, and joins by those who are asked to, until nobody hears anything new."""
    for _ in range(12):
        news = False
        for member in members:
            if isinstance(member, Modern):
                before = (member.epoch, member.share)
                member.obey()
                news = news or before != (member.epoch, member.share)
                continue
            try:
                member.beat()
            except Rebalancing:
                news = True
                member.join()
        if not news:
            return
    raise AssertionError("the members never settle")


def all_read(*members: Modern | Older) -> list[int]:
    return sorted(index for member in members for index in member.reads.get("orders", []))


def kind(world: World) -> str:
    return world.groups.view(GROUP).kind


def test_a_group_is_upgraded_while_its_members_read_on(world: World) -> None:
    first, second = Older(world, "orders"), Older(world, "orders")
    classic_group(world, first, second)
    generation = first.generation
    assert kind(world) == "classic"
    new = Modern(world, "new", "orders").join()
    assert kind(world) == "consumer"
    assert new.epoch == generation + 1
    assert new.reads == {}
    with pytest.raises(Rebalancing):
        first.beat()
    calm(first, second, new)
    assert all_read(first, second, new) == [0, 1, 2, 3, 4, 5]
    assert len(new.reads["orders"]) == 2
    assert {view.classic for view in world.consumers.view(GROUP).members} == {True, False}
    assert world.consumers.view(GROUP).state == "Stable"


def test_one_that_keeps_partitions_gives_up_before_others_get(world: World) -> None:
    older = Older(world, "orders")
    classic_group(world, older)
    assert older.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    new = Modern(world, "new", "orders").join()
    with pytest.raises(Rebalancing):
        older.beat()
    generation = older.generation
    older.join()
    # It learns what it may keep at the old generation, and the others still get nothing.
    assert older.generation == generation
    assert len(older.reads["orders"]) == 3
    new.obey()
    assert new.reads == {}
    with pytest.raises(Rebalancing):
        older.beat()
    older.join()
    assert older.generation == generation + 1
    older.beat()
    new.obey()
    assert all_read(older, new) == [0, 1, 2, 3, 4, 5]


def test_one_that_gives_up_everything_first_joins_once(world: World) -> None:
    older = Older(world, "orders", eager=True)
    classic_group(world, older)
    new = Modern(world, "new", "orders").join()
    with pytest.raises(Rebalancing):
        older.beat()
    older.join()
    assert older.generation == new.epoch
    older.beat()
    new.obey()
    assert all_read(older, new) == [0, 1, 2, 3, 4, 5]


def test_an_older_member_joins_a_newer_group(world: World) -> None:
    new = Modern(world, "new", "orders").join()
    older = Older(world, "orders")
    joined = older.join()
    assert (joined.leader, joined.candidates) == ("", ())
    assert older.reads == {}
    older.beat()
    calm(new, older)
    assert all_read(new, older) == [0, 1, 2, 3, 4, 5]
    assert len(older.reads["orders"]) == 3


def test_an_older_member_is_told_when_what_it_waits_for_is_free(world: World) -> None:
    new = Modern(world, "new", "orders").join()
    older = Older(world, "orders")
    older.join()
    older.beat()
    new.beat()
    older.beat()
    new.obey()
    with pytest.raises(Rebalancing):
        older.beat()


def test_the_last_newer_member_leaves_the_others_to_themselves(world: World) -> None:
    first, second = Older(world, "orders"), Older(world, "orders")
    classic_group(world, first, second)
    new = Modern(world, "new", "orders").join()
    calm(first, second, new)
    epoch = new.epoch
    new.leave()
    assert kind(world) == "classic"
    with pytest.raises(GroupNotFound):
        world.consumers.view(GROUP)
    for member in (first, second):
        with pytest.raises(Rebalancing):
            member.beat()
    classic_group(world, first, second)
    assert first.generation > epoch
    assert all_read(first, second) == [0, 1, 2, 3, 4, 5]
    first.beat()
    second.beat()


def test_a_newer_member_that_dies_leaves_the_others_to_themselves(world: World) -> None:
    older = Older(world, "orders")
    classic_group(world, older)
    new = Modern(world, "new", "orders").join()
    calm(older, new)
    for _ in range(20):
        world.runtime.advance(5_000)
        try:
            older.beat()
        except Rebalancing:
            break
    assert kind(world) == "classic"
    classic_group(world, older)
    assert all_read(older) == [0, 1, 2, 3, 4, 5]


def test_a_downgrade_survives_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("orders", 6)
    older = Older(world, "orders")
    classic_group(world, older)
    new = Modern(world, "new", "orders").join()
    calm(older, new)
    new.leave()
    world.crash()
    after = World(tmp_path)
    assert kind(after) == "classic"
    (member,) = after.groups.view(GROUP).members
    assert member.member_id == older.member_id
    assert len(embedded.assigned(member.assignment)["orders"]) == 3
    after.crash()


def test_an_upgrade_survives_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("orders", 6)
    older = Older(world, "orders")
    classic_group(world, older)
    new = Modern(world, "new", "orders").join()
    world.crash()
    after = World(tmp_path)
    older.world = new.world = after
    assert kind(after) == "consumer"
    calm(older, new)
    assert all_read(older, new) == [0, 1, 2, 3, 4, 5]
    after.crash()


def test_a_silent_older_member_is_taken_for_dead(world: World) -> None:
    new = Modern(world, "new", "orders").join()
    older = Older(world, "orders")
    older.join()
    calm(new, older)
    world.runtime.advance(10_001)
    settle(new)
    assert new.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    with pytest.raises(UnknownMember):
        older.beat()


def test_an_older_member_that_does_not_join_again_is_sent_away(world: World) -> None:
    older = Older(world, "orders")
    classic_group(world, older)
    Modern(world, "new", "orders").join()
    new = Modern(world, "new2", "orders").join()
    for _ in range(REBALANCE_MS // 5_000 - 1):
        with pytest.raises(Rebalancing):
            older.beat()
        new.obey()
        world.runtime.advance(5_000)
    world.runtime.advance(5_000)
    with pytest.raises(UnknownMember):
        older.beat()


def test_older_members_leave_as_they_always_did(world: World) -> None:
    new = Modern(world, "new", "orders").join()
    older = Older(world, "orders")
    older.join()
    calm(new, older)
    (refusal,) = world.groups.leave(GROUP, [Leaving("new")])
    assert isinstance(refusal, UnknownMember)
    older.leave()
    settle(new)
    assert new.reads == {"orders": [0, 1, 2, 3, 4, 5]}


def test_a_static_member_changes_its_protocol(world: World) -> None:
    older = Older(world, "orders", instance_id="rack-7")
    classic_group(world, older)
    new = Modern(world, "new", "orders", instance_id="rack-7").join()
    assert new.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    assert len(world.consumers.view(GROUP).members) == 1
    with pytest.raises(InstanceFenced):
        older.beat()
    again = Older(world, "orders", instance_id="rack-7")
    later = again.ask_to_join()
    again.joined(later)
    assert kind(world) == "classic"
    with pytest.raises(Rebalancing):
        again.beat()
    classic_group(world, again)
    assert all_read(again) == [0, 1, 2, 3, 4, 5]


def test_static_members_are_removed_by_their_name(world: World) -> None:
    static = Modern(world, "new", "orders", instance_id="rack-7").join()
    outcomes = world.groups.leave(GROUP, [Leaving("", "rack-7"), Leaving("", "rack-8")])
    assert outcomes[0] is None
    assert isinstance(outcomes[1], UnknownMember)
    with pytest.raises(UnknownMember):
        static.beat()


def test_an_empty_group_of_either_kind_is_replaced(world: World) -> None:
    older = Older(world, "orders")
    classic_group(world, older)
    older.leave()
    new = Modern(world, "new", "orders").join()
    assert kind(world) == "consumer"
    new.leave()
    again = Older(world, "orders")
    classic_group(world, again)
    assert kind(world) == "classic"


def test_generations_of_older_members_are_checked(world: World) -> None:
    Modern(world, "new", "orders").join()
    older = Older(world, "orders")
    older.join()
    stale = Fence(older.member_id, older.generation - 1)
    for ask in (
        lambda: world.groups.heartbeat(GROUP, stale),
        lambda: world.groups.sync(GROUP, stale, {}),
        lambda: world.groups.check_commit(GROUP, stale, transactional=False),
    ):
        with pytest.raises(StaleGeneration):
            ask()
    world.groups.check_commit(GROUP, older.fence, transactional=False, epoch_aware=False)
    with pytest.raises(UnknownMember):
        world.groups.heartbeat(GROUP, Fence("new", 2))


def joining(protocol_type: str, *names: str, metadata: bytes = b"") -> Joining:
    return Joining(
        session_timeout_ms=10_000,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type=protocol_type,
        proposals=tuple(Proposal(name, metadata) for name in names),
        id_required=False,
    )


def test_members_that_share_nothing_are_refused(world: World) -> None:
    Modern(world, "new", "orders").join()
    Older(world, "orders").join()
    for asked in (
        joining("connect", "cooperative-sticky"),
        joining("consumer"),
        joining("consumer", "something-else", metadata=Older(world, "orders").subscription()),
        joining("consumer", "cooperative-sticky", metadata=b"\0"),
    ):
        with pytest.raises(GroupInconsistent):
            world.groups.join(GROUP, asked)
    assert len(world.consumers.view(GROUP).members) == 2


def test_a_group_that_is_not_of_consumers_stays_as_it_is(world: World) -> None:
    later = world.groups.join(GROUP, joining("connect", "v1", metadata=b"opaque"))
    world.runtime.advance(1)
    joined = world.value(later)
    with pytest.raises(GroupNotFound):
        Modern(world, "new", "orders").join()
    assert kind(world) == "classic"
    world.groups.heartbeat(GROUP, Fence(joined.member_id, joined.generation))


def test_a_bad_plan_of_a_leader_gives_no_partition_to_two(world: World) -> None:
    first, second = Older(world, "orders"), Older(world, "orders")
    waits = [first.ask_to_join(), second.ask_to_join()]
    world.runtime.advance(1)
    first.joined(waits[0])
    second.joined(waits[1])
    everything = embedded.assignment(1, {"orders": frozenset(range(6)), "gone": frozenset({0})})
    plan = {first.member_id: everything, second.member_id: everything}
    waiting = world.groups.sync(GROUP, second.fence, {})
    first.sync(plan)
    assert embedded.assigned(world.value(waiting).assignment)
    new = Modern(world, "new", "orders").join()
    second.reads = {"orders": [*range(6)]}
    calm(first, second, new)
    assert all_read(first, second, new) == [0, 1, 2, 3, 4, 5]


def test_subscriptions_and_assignments_of_all_versions_are_read() -> None:
    base = b"\0\0\0\1\0\1a\xff\xff\xff\xff"
    owned = b"\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\1"
    assert embedded.subscription(b"\0\0" + base) == (0, {"a"}, {}, None)
    assert embedded.subscription(b"\0\1" + base + owned) == (1, {"a"}, {"a": {0, 1}}, None)
    newest = b"\0\3" + base + owned + b"\0\0\0\5\0\2r1"
    assert embedded.subscription(newest) == (3, {"a"}, {"a": {0, 1}}, "r1")
    assert embedded.subscription(b"\0\7" + newest[2:] + b"more").version == 3
    parts = {"a": frozenset({1, 2}), "b": frozenset({0})}
    assert embedded.assigned(embedded.assignment(2, parts)) == parts
    assert embedded.assigned(b"") == {}
    for flawed in (b"", b"\0", b"\xff\xff" + base, newest[:-9], b"\0\0\x7f\xff\xff\xff"):
        with pytest.raises(GroupInconsistent):
            embedded.subscription(flawed)
