"""Static members: they come back to their part of the plan, and only one process is each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import REBALANCE_MS, SESSION_MS, GroupWorld, fence
from step_runtime import StepRuntime

from pentalog.broker.port import Joined, Leaving, Proposal
from pentalog.broker.state import State
from pentalog.model.errors import InstanceFenced, UnknownMember
from pentalog.model.later import Later


@pytest.fixture
def world(open_state: Callable[[], State], runtime: StepRuntime) -> GroupWorld:
    return GroupWorld(open_state, runtime)


@pytest.fixture
def pair(world: GroupWorld) -> list[Joined]:
    """Two static members, `one` and `two`, planned; `one` leads."""
    waits = [world.ask(instance_id="one"), world.ask(instance_id="two")]
    world.runtime.advance(0)
    joined = [wait.value for wait in waits]
    world.plan(joined)
    return joined


def back(world: GroupWorld, wait: Later[Joined]) -> Joined:
    world.runtime.run()
    return wait.value


def test_a_static_member_needs_no_second_request(pair: list[Joined]) -> None:
    assert pair[0].member_id.startswith("one-")
    assert pair[0].leader == pair[0].member_id
    assert {c.instance_id for c in pair[0].candidates} == {"one", "two"}


def test_coming_back_changes_nothing_for_the_others(world: GroupWorld, pair: list[Joined]) -> None:
    two = back(world, world.ask(instance_id="two"))
    assert two.generation == 1
    assert two.member_id != pair[1].member_id
    assert not two.candidates
    assert world.state_of() == "Stable"
    part = world.groups.sync("g", fence(two, "two"), {}).value
    assert part.assignment == pair[1].member_id.encode()
    world.groups.heartbeat("g", fence(pair[0], "one"))


def test_the_process_before_is_fenced(world: GroupWorld, pair: list[Joined]) -> None:
    two = back(world, world.ask(instance_id="two"))
    with pytest.raises(InstanceFenced):
        world.groups.heartbeat("g", fence(pair[1], "two"))
    with pytest.raises(InstanceFenced):
        world.groups.sync("g", fence(pair[1], "two"), {})
    with pytest.raises(InstanceFenced):
        world.ask(pair[1].member_id, instance_id="two")
    with pytest.raises(InstanceFenced):
        world.groups.check_commit("g", fence(pair[1], "two"), transactional=False)
    assert [type(o) for o in world.groups.leave("g", [Leaving(pair[1].member_id, "two")])] == [
        InstanceFenced
    ]
    world.groups.heartbeat("g", fence(two, "two"))
    with pytest.raises(UnknownMember):
        world.groups.heartbeat("g", fence(two, "three"))


def test_a_waiting_process_is_fenced_too(world: GroupWorld, pair: list[Joined]) -> None:
    first = world.ask(pair[0].member_id, instance_id="one")
    second = world.ask(instance_id="one")
    with pytest.raises(InstanceFenced):
        _ = first.value
    assert not second.ready
    world.ask(pair[1].member_id, instance_id="two")
    assert second.value.generation == 2


def test_a_leader_that_comes_back_is_told_not_to_plan(
    world: GroupWorld, pair: list[Joined]
) -> None:
    new = back(world, world.ask(instance_id="one", plan_skippable=True))
    assert new.skip_plan
    assert new.leader == new.member_id
    assert {c.instance_id for c in new.candidates} == {"one", "two"}


def test_an_old_leader_that_comes_back_does_not_know_that_it_leads(
    world: GroupWorld, pair: list[Joined]
) -> None:
    new = back(world, world.ask(instance_id="one"))
    assert new.leader == pair[0].member_id != new.member_id
    assert not new.candidates


def test_another_protocol_needs_a_new_generation(world: GroupWorld, pair: list[Joined]) -> None:
    both = (Proposal("sticky", b""), Proposal("range", b"sub", frozenset({"t"})))
    assert back(world, world.ask(instance_id="two", proposals=both)).generation == 1
    wait = world.ask(instance_id="one", proposals=both)
    world.runtime.run()
    assert not wait.ready
    assert world.state_of() == "PreparingRebalance"


def test_one_who_is_late_stays(world: GroupWorld, pair: list[Joined]) -> None:
    again = world.ask(pair[0].member_id, instance_id="one", session_timeout_ms=REBALANCE_MS)
    for _ in range(REBALANCE_MS // 5000):
        with pytest.raises(Exception, match="next generation"):
            world.groups.heartbeat("g", fence(pair[1], "two"))
        world.runtime.advance(5000)
    assert {c.instance_id for c in again.value.candidates} == {"one", "two"}


def test_one_who_is_silent_is_missed(world: GroupWorld, pair: list[Joined]) -> None:
    for _ in range(SESSION_MS // 1000):
        world.runtime.advance(1000)
        if world.state_of() == "Stable":
            world.groups.heartbeat("g", fence(pair[0], "one"))
    assert {m.instance_id for m in world.groups.view("g").members} == {"one"}


def test_leaving_by_name(world: GroupWorld, pair: list[Joined]) -> None:
    outcomes = world.groups.leave("g", [Leaving("", "two"), Leaving("", "three")])
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownMember]
    assert {m.instance_id for m in world.groups.view("g").members} == {"one"}


def test_names_and_parts_survive_a_crash(world: GroupWorld, pair: list[Joined]) -> None:
    two = back(world, world.ask(instance_id="two"))
    world = world.again()
    with pytest.raises(InstanceFenced):
        world.groups.heartbeat("g", fence(pair[1], "two"))
    part = world.groups.sync("g", fence(two, "two"), {}).value
    assert part.assignment == pair[1].member_id.encode()
    new = back(world, world.ask(instance_id="one", plan_skippable=True))
    assert new.generation == 1
    assert new.skip_plan
