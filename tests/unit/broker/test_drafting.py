"""Plans that take several turns: the same plans, few of them, and nobody forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_world import GROUP, REBALANCE_MS, SESSION_MS, Modern, Older, World, settle

from pentalog.broker import drafting
from pentalog.broker.planning import Planning
from pentalog.broker.port import Beat, Beaten
from pentalog.model.errors import Stopping, UnknownMember
from pentalog.model.later import Later

TOPICS = [f"topic-{number}" for number in range(12)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A broker to which every plan is a lot of work."""
    monkeypatch.setattr(drafting, "_LIGHT_WORK", -1)
    monkeypatch.setattr(drafting, "WORK_PER_TURN", 25)
    made = World(tmp_path)
    for number, name in enumerate(TOPICS):
        made.topic(name, 1 + number % 3)
    yield made
    made.crash()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The work done in each step of each plan, in order; 0 begins a plan."""
    found: list[int] = []
    steps = Planning.steps

    def counted(planning: Planning) -> Iterator[int]:
        found.append(0)
        for work in steps(planning):
            found.append(work)
            yield work

    monkeypatch.setattr(Planning, "steps", counted)
    return found


def ask(world: World, member_id: str, topics: list[str], **fields: Any) -> Later[Beaten]:
    """A beat of one that joins, without waiting for anything."""
    beat = Beat(
        member_id=member_id,
        epoch=0,
        topics=frozenset(topics),
        owned={},
        rebalance_timeout_ms=REBALANCE_MS,
        **fields,
    )
    return world.consumers.beat(GROUP, beat)


def turn(world: World) -> bool:
    """One turn of the loop; False if nothing was due."""
    runtime = world.runtime
    due, runtime._soon = runtime._soon, type(runtime._soon)()
    for run in due:
        run()
    return bool(due)


def everything(world: World) -> list[tuple[str, int]]:
    return [(name, index) for name in TOPICS for index in range(world.topics.get(name).partitions)]


def held(*members: Modern) -> list[tuple[str, int]]:
    return sorted(
        (name, index)
        for member in members
        for name, indexes in member.reads.items()
        for index in indexes
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_all_partitions_are_dealt_out(world: World, assignor: str) -> None:
    wants = [TOPICS, TOPICS[:8], TOPICS[4:], TOPICS[:1]]
    members = [
        Modern(world, f"m{number}", *topics, assignor=assignor).join()
        for number, topics in enumerate(wants)
    ]
    settle(*members)
    assert held(*members) == sorted(everything(world))
    members.pop().leave()
    settle(*members)
    assert held(*members) == sorted(everything(world))
    world.topic("other", 3)
    world.topics.grow(TOPICS[0], 9)
    settle(*members)
    assert held(*members) == sorted(everything(world))
    assert world.consumers.view(GROUP).state == "Stable"


def test_a_topic_nobody_reads_is_no_reason_for_an_epoch(world: World) -> None:
    member = Modern(world, "m", *TOPICS).join()
    epoch = member.epoch
    world.topic("other", 3)
    assert member.beat().epoch == epoch


def test_a_burst_of_members_is_planned_together(world: World, plans: list[int]) -> None:
    laters = [ask(world, f"m{number}", TOPICS[number % 6 :]) for number in range(60)]
    assert not any(later.ready for later in laters)
    world.runtime.step()
    assert all(later.value.epoch > 0 for later in laters)
    assert plans.count(0) == 1


def test_no_turn_does_much_more_than_its_share(world: World, plans: list[int]) -> None:
    for number in range(30):
        ask(world, f"m{number}", TOPICS[number % 6 :])
    done: list[int] = []
    while True:
        before = sum(plans)
        if not turn(world):
            break
        done.append(sum(plans) - before)
    assert len(done) > 10
    assert max(done) <= 2 * (drafting.WORK_PER_TURN + max(plans))


def test_who_comes_while_a_plan_is_made_gets_the_next_one(world: World, plans: list[int]) -> None:
    first = ask(world, "a", TOPICS)
    for _ in range(3):
        turn(world)
    second = ask(world, "b", TOPICS)
    assert plans.count(0) == 1
    world.runtime.step()
    assert plans.count(0) == 2
    assert first.value.epoch == 1
    assert second.value.epoch == 2


def test_who_is_gone_when_the_plan_is_there_is_told_so(world: World) -> None:
    kept, lost = ask(world, "a", TOPICS), ask(world, "b", TOPICS)
    turn(world)
    world.consumers.beat(GROUP, Beat(member_id="b", epoch=-1))
    world.runtime.step()
    with pytest.raises(UnknownMember):
        _ = lost.value
    # The plan was begun for both, before the third epoch.
    assert kept.value.epoch == 2
    alone = Modern(world, "a", *TOPICS)
    alone.epoch = 2
    alone.share = dict(kept.value.share or {})
    settle(alone)
    assert held(alone) == sorted(everything(world))


def test_a_static_member_that_comes_back_meanwhile_keeps_its_part(world: World) -> None:
    static = Modern(world, "s", *TOPICS, instance_id="one").join()
    other = Modern(world, "o", *TOPICS).join()
    settle(static, other)
    static.leave(-2)
    joining = ask(world, "x", TOPICS[:3])
    for _ in range(3):
        turn(world)
    again = ask(world, "s2", TOPICS, instance_id="one")
    world.runtime.step()
    newcomer, back = Modern(world, "x", *TOPICS[:3]), Modern(world, "s2", *TOPICS)
    back.more = {"instance_id": "one"}
    for member, told in ((newcomer, joining.value), (back, again.value)):
        member.epoch = told.epoch
        member.share = dict(told.share or {})
    settle(newcomer, back, other)
    assert held(newcomer, back, other) == sorted(everything(world))


def test_who_waits_is_answered_when_the_broker_stops(world: World) -> None:
    waiting = ask(world, "a", TOPICS)
    world.groups.close()
    with pytest.raises(Stopping):
        _ = waiting.value


def test_a_member_that_waits_for_a_plan_is_watched(world: World) -> None:
    waiting = ask(world, "a", TOPICS)
    world.runtime.advance(SESSION_MS + 1)
    assert waiting.ready
    assert world.consumers.view(GROUP).state == "Empty"


def test_members_of_the_older_protocol_wait_too(world: World) -> None:
    modern = Modern(world, "m", *TOPICS).join()
    older = Older(world, *TOPICS)
    for _ in range(3):
        modern.obey()
        older.join()
    found = sorted((name, index) for name, indexes in older.reads.items() for index in indexes)
    assert found
    assert sorted(found + held(modern)) == sorted(everything(world))
