"""Groups the broker plans: epochs, partitions that change hands, members that die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_world import GROUP, REBALANCE_MS, SESSION_MS, Modern, World, settle

from pentalog.broker.port import Committed, Fence
from pentalog.model.errors import (
    GroupFull,
    GroupNotFound,
    InstanceFenced,
    InstanceUnreleased,
    InvalidPattern,
    MemberEpochFenced,
    MemberEpochStale,
    UnknownMember,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from pentalog.model.types import Partition


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.topic("orders", 6)
    yield made
    made.crash()


def state(world: World) -> str:
    return world.consumers.view(GROUP).state


def test_one_member_gets_everything_at_once(world: World) -> None:
    alone = Modern(world, "a", "orders").join()
    assert alone.epoch == 1
    assert alone.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    assert state(world) == "Stable"


def test_a_heartbeat_with_no_news_tells_nothing(world: World) -> None:
    alone = Modern(world, "a", "orders").join()
    assert alone.beat().share is None
    assert alone.obey().share is None
    whole = alone.beat(
        owned=alone.share, topics=frozenset({"orders"}), rebalance_timeout_ms=REBALANCE_MS
    )
    assert whole.share is not None
    assert alone.epoch == 1


def test_an_id_is_made_for_those_who_have_none(world: World) -> None:
    member = Modern(world, "", "orders").join()
    ((made, *_),) = world.consumers.view(GROUP).members
    assert made
    member.member_id = made
    assert member.beat().epoch == 1


def test_partitions_are_given_only_after_the_former_owner_let_go(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    assert second.epoch == 2
    assert second.reads == {}
    assert state(world) == "Reconciling"
    told = first.beat()
    assert (told.epoch, first.reads) == (1, {"orders": [0, 1, 2]})
    assert second.obey().share is None
    # A heartbeat that says nothing about partitions confirms nothing.
    assert first.beat().epoch == 1
    assert first.obey().epoch == 2
    assert second.obey().share is not None
    assert second.reads == {"orders": [3, 4, 5]}
    assert state(world) == "Stable"


def test_one_that_still_reads_what_it_must_give_up_stays_behind(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    everything = dict(first.share)
    second = Modern(world, "b", "orders").join()
    first.beat()
    assert first.beat(owned=everything).epoch == 1
    assert second.obey().epoch == 2
    assert second.reads == {}


def test_a_member_that_never_lets_go_is_fenced(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    first.beat()
    for _ in range(4):
        world.runtime.advance(REBALANCE_MS / 4)
        second.obey()
        try:
            first.beat()
        except UnknownMember:
            break
    with pytest.raises(UnknownMember):
        first.beat()
    settle(second)
    assert second.reads == {"orders": [0, 1, 2, 3, 4, 5]}


def test_a_member_that_lets_go_in_time_is_not_fenced(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    first.beat()
    settle(first, second)
    for _ in range(10):
        world.runtime.advance(REBALANCE_MS / 4)
        settle(first, second)
    assert len(first.reads["orders"]) == len(second.reads["orders"]) == 3


def test_a_silent_member_is_taken_for_dead(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    settle(first, second)
    for _ in range(3):
        world.runtime.advance(SESSION_MS / 2)
        second.obey()
    settle(second)
    assert second.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    with pytest.raises(UnknownMember):
        first.beat()


def test_one_that_leaves_makes_room(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    settle(first, second)
    first.leave()
    second.obey()
    assert second.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    second.leave()
    assert state(world) == "Empty"
    again = Modern(world, "c", "orders").join()
    assert again.epoch > second.epoch
    assert again.epoch > 3


def test_epochs_that_are_not_the_members_are_fenced(world: World) -> None:
    member = Modern(world, "a", "orders").join()
    for epoch in (member.epoch + 1, 7):
        member.epoch = epoch
        with pytest.raises(MemberEpochFenced):
            member.beat()
    member.epoch = 0
    assert member.join().reads == {"orders": [0, 1, 2, 3, 4, 5]}


def test_an_answer_that_got_lost_is_given_again(world: World) -> None:
    first = Modern(world, "a", "orders").join()
    world.topic("more", 2)
    before = dict(first.share)
    first.beat(topics=frozenset({"orders", "more"}))
    assert first.epoch == 2
    first.epoch = 1
    with pytest.raises(MemberEpochFenced):
        first.beat()
    whole = first.beat(
        owned=before,
        topics=frozenset({"orders", "more"}),
        rebalance_timeout_ms=REBALANCE_MS,
    )
    assert whole.epoch == 2
    assert first.reads == {"orders": [0, 1, 2, 3, 4, 5], "more": [0, 1]}


def test_strangers_and_groups_nobody_made(world: World) -> None:
    stranger = Modern(world, "x", "orders")
    stranger.epoch = 3
    with pytest.raises(GroupNotFound):
        stranger.beat()
    Modern(world, "a", "orders").join()
    with pytest.raises(UnknownMember):
        stranger.beat()
    with pytest.raises(UnknownMember):
        stranger.leave()
    with pytest.raises(GroupNotFound):
        world.consumers.view("nobody")


def test_what_cannot_be_asked_for(world: World) -> None:
    with pytest.raises(UnsupportedAssignor):
        Modern(world, "a", "orders", assignor="guess").join()
    with pytest.raises(InvalidPattern):
        Modern(world, "a", pattern="(").join()
    with pytest.raises(GroupNotFound):
        world.consumers.view(GROUP)


def test_a_group_has_a_largest_size(tmp_path: Path) -> None:
    small = World(tmp_path / "small", group_size_max=1)
    small.topic("orders", 2)
    first = Modern(small, "a", "orders").join()
    with pytest.raises(GroupFull):
        Modern(small, "b", "orders").join()
    first.join()
    small.crash()


def test_the_assignor_asked_for_is_used(world: World) -> None:
    world.topic("bills", 6)
    first = Modern(world, "a", "orders", "bills", assignor="range").join()
    second = Modern(world, "b", "orders", "bills", assignor="range").join()
    settle(first, second)
    assert first.reads == {"orders": [0, 1, 2], "bills": [0, 1, 2]}
    assert second.reads == {"orders": [3, 4, 5], "bills": [3, 4, 5]}
    assert world.consumers.view(GROUP).assignor == "range"


def test_members_hear_of_topics_that_come_grow_and_go(world: World) -> None:
    member = Modern(world, "a", "orders", "later").join()
    world.topic("unrelated", 3)
    member.obey()
    assert member.epoch == 1
    world.topic("later", 1)
    member.obey()
    assert member.reads == {"orders": [0, 1, 2, 3, 4, 5], "later": [0]}
    world.topics.grow("later", 2)
    member.obey()
    assert member.reads["later"] == [0, 1]
    world.topics.delete("orders")
    member.obey()
    later = world.topics.get("later").topic_id
    assert member.share == {later: frozenset({0, 1})}
    member.obey()
    assert state(world) == "Stable"


def test_a_topic_made_again_is_another_topic(world: World) -> None:
    member = Modern(world, "a", "orders").join()
    old = world.topics.get("orders").topic_id
    world.topics.delete("orders")
    world.topic("orders", 2)
    settle(member)
    assert old not in member.share
    assert member.reads == {"orders": [0, 1]}


def test_patterns_follow_the_topics(world: World) -> None:
    member = Modern(world, "a", pattern="ord.*|new-.*").join()
    assert member.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    world.topic("new-things", 1)
    world.topic("old-things", 1)
    member.obey()
    assert member.reads == {"orders": [0, 1, 2, 3, 4, 5], "new-things": [0]}
    member.beat(pattern="old.*")
    settle(member)
    assert member.reads == {"old-things": [0]}
    member.beat(pattern="", topics=frozenset({"orders"}))
    settle(member)
    assert member.reads == {"orders": [0, 1, 2, 3, 4, 5]}


def test_unsubscribing_takes_partitions_away_at_once(world: World) -> None:
    world.topic("bills", 2)
    member = Modern(world, "a", "orders", "bills").join()
    member.beat(topics=frozenset({"bills"}), owned=dict(member.share))
    assert member.reads == {"bills": [0, 1]}
    settle(member)
    assert state(world) == "Stable"


def test_a_static_member_gets_its_own_back(world: World) -> None:
    other = Modern(world, "b", "orders").join()
    static = Modern(world, "a1", "orders", instance_id="rack-7").join()
    settle(other, static)
    had, epoch = static.reads, static.epoch
    with pytest.raises(InstanceUnreleased):
        Modern(world, "a2", "orders", instance_id="rack-7").join()
    static.leave(-2)
    other.obey()
    assert len(other.reads["orders"]) == 3
    back = Modern(world, "a2", "orders", instance_id="rack-7").join()
    assert (back.reads, back.epoch) == (had, epoch)
    static.epoch = epoch
    with pytest.raises(InstanceFenced):
        static.beat(instance_id="rack-7")
    with pytest.raises(UnknownMember):
        static.beat()


def test_a_static_member_that_does_not_come_back_is_dead(world: World) -> None:
    static = Modern(world, "a1", "orders", instance_id="rack-7").join()
    static.leave(-2)
    world.runtime.advance(SESSION_MS + 1)
    assert state(world) == "Empty"
    assert Modern(world, "a2", "orders", instance_id="rack-7").join().epoch > 1


def test_a_member_takes_a_name_later(world: World) -> None:
    member = Modern(world, "a", "orders").join()
    member.more = {"instance_id": "rack-7"}
    member.join()
    member.more = {"instance_id": "rack-8"}
    member.join()
    other = Modern(world, "b", "orders", instance_id="rack-7").join()
    settle(member, other)
    assert len(member.reads["orders"]) == len(other.reads["orders"]) == 3
    assert {view.instance_id for view in world.consumers.view(GROUP).members} == {
        "rack-7",
        "rack-8",
    }


def test_a_static_member_may_leave_for_good(world: World) -> None:
    static = Modern(world, "a1", "orders", instance_id="rack-7").join()
    static.leave()
    assert state(world) == "Empty"


def test_commits_are_fenced_by_the_epoch(world: World) -> None:
    def check(member_id: str, epoch: int, *, aware: bool = True, transaction: bool = False) -> None:
        world.groups.check_commit(
            GROUP, Fence(member_id, epoch), transactional=transaction, epoch_aware=aware
        )

    member = Modern(world, "a", "orders").join()
    check("a", 1)
    world.groups.check_fetch(GROUP, Fence("a", 1))
    world.groups.check_fetch(GROUP, Fence())
    check("", -1, transaction=True)
    for epoch in (0, 2):
        with pytest.raises(MemberEpochStale):
            check("a", epoch)
        with pytest.raises(MemberEpochStale):
            world.groups.check_fetch(GROUP, Fence("a", epoch))
    with pytest.raises(UnknownMember):
        check("", -1)
    with pytest.raises(UnknownMember):
        world.groups.check_fetch(GROUP, Fence("b", 1))
    with pytest.raises(UnsupportedVersion):
        check("a", 1, aware=False)
    member.leave()
    check("", -1)


def test_a_commit_may_cross_the_answer_to_a_heartbeat(world: World) -> None:
    def commit(epoch: int, *indexes: int) -> None:
        offsets = {Partition("orders", index): Committed(7) for index in indexes}
        world.value(world.groups.commit(GROUP, Fence("a", epoch), offsets))

    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    first.beat()
    commit(1, *range(6))
    settle(first, second)
    assert first.epoch == 2
    commit(1, *first.reads["orders"])
    commit(2, *range(6))
    for epoch, indexes in ((1, range(6)), (0, first.reads["orders"]), (3, [0])):
        with pytest.raises(MemberEpochStale):
            commit(epoch, *indexes)
    second.leave()
    settle(first)
    with pytest.raises(MemberEpochStale):
        commit(2, *range(6))
    commit(2, 0, 1, 2)


def test_a_commit_shows_that_a_member_lives(world: World) -> None:
    Modern(world, "a", "orders").join()
    for _ in range(4):
        world.runtime.advance(SESSION_MS / 2)
        world.groups.check_commit(GROUP, Fence("a", 1), transactional=False)


def test_epochs_and_plans_survive_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("orders", 6)
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders", instance_id="rack-7").join()
    settle(first, second)
    third = Modern(world, "c", pattern="ord.*").join()
    first.beat()
    before = world.consumers.view(GROUP)
    world.crash()

    after = World(tmp_path)
    found = after.consumers.view(GROUP)
    assert found._replace(members=sorted(found.members)) == before._replace(
        members=sorted(before.members)
    )
    for member in (first, second, third):
        member.world = after
    epoch = third.epoch
    settle(first, second, third)
    assert (first.epoch, second.epoch, third.epoch) == (epoch, epoch, epoch)
    assert sorted(i for m in (first, second, third) for i in m.reads["orders"]) == [*range(6)]
    after.crash()


def test_members_that_died_with_the_broker_are_noticed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("orders", 6)
    first = Modern(world, "a", "orders").join()
    second = Modern(world, "b", "orders").join()
    first.beat()
    world.crash()
    after = World(tmp_path)
    second.world = after
    for _ in range(3):
        after.runtime.advance(SESSION_MS / 2)
        second.obey()
    assert second.reads == {"orders": [0, 1, 2, 3, 4, 5]}
    after.crash()


def test_a_group_without_members_can_be_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("orders", 1)
    member = Modern(world, "a", "orders").join()
    member.leave()
    world.value(world.groups.delete(GROUP))
    with pytest.raises(GroupNotFound):
        world.consumers.view(GROUP)
    world.crash()
    after = World(tmp_path)
    with pytest.raises(GroupNotFound):
        after.consumers.view(GROUP)
    after.crash()


def test_many_members_settle(world: World) -> None:
    world.topic("large", 100)
    members = [Modern(world, f"m{number}", "large").join() for number in range(20)]
    settle(*members)
    assert [len(member.reads["large"]) for member in members] == [5] * 20
    assert sorted(i for m in members for i in m.reads["large"]) == [*range(100)]
    for member in members[:10]:
        member.leave()
    settle(*members[10:])
    assert sorted(i for m in members[10:] for i in m.reads["large"]) == [*range(100)]
