"""Leader-planned groups: the barrier, the plan, heartbeats, and what is left after a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import RANGE, REBALANCE_MS, SESSION_MS, GroupWorld, fence
from step_runtime import StepRuntime

from pentalog.broker.port import Fence, Leaving, Proposal
from pentalog.broker.state import State
from pentalog.model.errors import (
    BrokerError,
    GroupFull,
    GroupInconsistent,
    GroupNotFound,
    InvalidGroup,
    InvalidSessionTimeout,
    MemberIdRequired,
    Rebalancing,
    StaleGeneration,
    Stopping,
    StorageFailed,
    UnknownMember,
)

OpenState = Callable[[], State]


@pytest.fixture
def world(open_state: OpenState, runtime: StepRuntime) -> GroupWorld:
    return GroupWorld(open_state, runtime)


def test_a_new_member_is_told_its_id_and_leads_alone(world: GroupWorld) -> None:
    member_id, wait = world.enter()
    assert member_id.startswith("client-")
    world.runtime.advance(0)
    joined = wait.value
    assert (joined.member_id, joined.leader, joined.generation) == (member_id, member_id, 1)
    assert [candidate.member_id for candidate in joined.candidates] == [member_id]
    assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
    assert world.state_of() == "CompletingRebalance"


def test_old_members_join_without_an_id(world: GroupWorld) -> None:
    wait = world.ask(id_required=False)
    world.runtime.advance(0)
    assert wait.value.generation == 1


def test_only_the_leader_is_told_who_is_there(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    assert {candidate.member_id for candidate in leader.candidates} == {
        leader.member_id,
        follower.member_id,
    }
    assert not follower.candidates
    assert follower.leader == leader.member_id


def test_a_part_of_the_plan_waits_for_the_plan_and_the_disk(world: GroupWorld) -> None:
    waits = [world.enter()[1] for _ in range(2)]
    world.runtime.advance(0)
    leader, follower = sorted((w.value for w in waits), key=lambda j: j.member_id != j.leader)
    early = world.groups.sync("g", fence(follower), {})
    assert not early.ready
    world.runtime.lanes_blocked = True
    planned = world.groups.sync("g", fence(leader), {follower.member_id: b"all"})
    world.runtime.run()
    assert not planned.ready
    assert not early.ready
    world.runtime.lanes_blocked = False
    world.runtime.run()
    assert early.value.assignment == b"all"
    assert planned.value.assignment == b""
    assert world.state_of() == "Stable"
    assert world.groups.sync("g", fence(follower), {}).value.assignment == b"all"


def test_a_plan_that_cannot_be_kept_is_planned_again(world: GroupWorld) -> None:
    _, wait = world.enter()
    world.runtime.advance(0)
    world.state._refusal = StorageFailed("the disk is gone")
    synced = world.groups.sync("g", fence(wait.value), {})
    with pytest.raises(StorageFailed):
        _ = synced.value
    assert world.state_of() == "PreparingRebalance"


def test_a_newcomer_makes_everybody_meet_again(world: GroupWorld) -> None:
    first, second = world.stable(2)
    _, third = world.enter()
    assert world.state_of() == "PreparingRebalance"
    with pytest.raises(Rebalancing):
        world.groups.heartbeat("g", fence(first))
    with pytest.raises(Rebalancing):
        world.groups.sync("g", fence(first), {})
    waits = [world.ask(first.member_id), world.ask(second.member_id)]
    assert [wait.value.generation for wait in (*waits, third)] == [2, 2, 2]
    with pytest.raises(StaleGeneration):
        world.groups.heartbeat("g", fence(first))


def test_who_does_not_come_in_time_is_out(world: GroupWorld) -> None:
    first, second = world.stable(2)
    again = world.ask(first.member_id)
    for _ in range(REBALANCE_MS // 5000):
        with pytest.raises(Rebalancing):
            world.groups.heartbeat("g", fence(second))
        world.runtime.advance(5000)
    assert [c.member_id for c in again.value.candidates] == [first.member_id]
    with pytest.raises(UnknownMember):
        world.groups.heartbeat("g", fence(second))


def test_a_silent_member_is_missed(world: GroupWorld) -> None:
    first, second = world.stable(2)
    world.beat_for([first], SESSION_MS - 1000)
    assert world.state_of() == "Stable"
    world.runtime.advance(1000)
    assert world.state_of() == "PreparingRebalance"
    again = world.ask(first.member_id)
    assert again.value.generation == 2
    with pytest.raises(UnknownMember):
        world.groups.heartbeat("g", fence(second))


def test_a_member_that_waits_is_alive(world: GroupWorld) -> None:
    first, second = world.stable(2)
    waiting = world.ask(first.member_id)
    for _ in range(5):
        world.runtime.advance(SESSION_MS // 2)
        with pytest.raises(Rebalancing):
            world.groups.heartbeat("g", fence(second))
    assert not waiting.ready
    world.ask(second.member_id)
    assert len(waiting.value.candidates) == 2


def test_who_never_fetches_its_part_is_out(world: GroupWorld) -> None:
    waits = [world.enter()[1] for _ in range(2)]
    world.runtime.advance(0)
    leader, follower = sorted((w.value for w in waits), key=lambda j: j.member_id != j.leader)
    world.groups.sync("g", fence(leader), {})
    world.runtime.run()
    for _ in range(REBALANCE_MS // 5000 - 1):
        world.runtime.advance(5000)
        world.groups.heartbeat("g", fence(leader))
        world.groups.heartbeat("g", fence(follower))
    world.runtime.advance(5000)
    with pytest.raises(UnknownMember):
        world.groups.heartbeat("g", fence(follower))
    assert world.state_of() == "PreparingRebalance"


def test_an_id_that_is_never_used_holds_up_nobody_for_long(world: GroupWorld) -> None:
    (first,) = world.stable(1)
    with pytest.raises(MemberIdRequired):
        world.ask()
    again = world.ask(first.member_id)
    assert not again.ready
    world.runtime.advance(SESSION_MS)
    assert again.value.generation == 2


def test_a_group_nobody_joined_is_not_there(world: GroupWorld) -> None:
    with pytest.raises(MemberIdRequired):
        world.ask()
    world.runtime.advance(SESSION_MS)
    assert list(world.groups.all()) == []
    with pytest.raises(GroupInconsistent):
        world.ask(proposals=())
    assert list(world.groups.all()) == []


def test_the_first_members_wait_for_others(open_state: OpenState, runtime: StepRuntime) -> None:
    world = GroupWorld(open_state, runtime, group_initial_rebalance_delay_ms=3000)
    _, first = world.enter()
    runtime.advance(2000)
    _, second = world.enter()
    runtime.advance(1000)
    assert not first.ready, "somebody came meanwhile, so there may be more"
    runtime.advance(3000)
    assert first.value.generation == second.value.generation == 1


def test_waiting_for_others_ends(open_state: OpenState, runtime: StepRuntime) -> None:
    world = GroupWorld(open_state, runtime, group_initial_rebalance_delay_ms=3000)
    _, first = world.enter(rebalance_timeout_ms=10_000)
    for _ in range(10):
        assert not first.ready
        world.enter(rebalance_timeout_ms=10_000)
        runtime.advance(1000)
    assert first.ready


def test_a_lost_answer_is_given_again(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    assert world.ask(follower.member_id).value == follower
    assert world.state_of() == "Stable"
    changed = (Proposal("range", b"other", frozenset({"u"})),)
    assert not world.ask(follower.member_id, proposals=changed).ready
    assert world.state_of() == "PreparingRebalance"
    assert world.ask(leader.member_id).value.generation == 2


def test_a_leader_that_joins_again_wants_a_new_plan(world: GroupWorld) -> None:
    leader, _ = world.stable(2)
    assert not world.ask(leader.member_id).ready
    assert world.state_of() == "PreparingRebalance"


def test_the_answer_to_a_join_asked_twice_goes_to_the_last(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    lost = world.ask(leader.member_id)
    kept = world.ask(leader.member_id)
    with pytest.raises(Rebalancing):
        _ = lost.value
    world.ask(follower.member_id)
    assert kept.value.generation == 2


def test_the_protocol_most_members_like_best(world: GroupWorld) -> None:
    a, b, c = (Proposal(name, name.encode()) for name in "abc")
    waits = [world.enter(proposals=proposals)[1] for proposals in ((a, b), (b, a, c), (c, b, a))]
    world.runtime.advance(0)
    joined = [wait.value for wait in waits]
    assert {one.protocol for one in joined} == {"b"}
    (leader,) = [one for one in joined if one.candidates]
    assert {candidate.metadata for candidate in leader.candidates} == {b"b"}
    with pytest.raises(GroupInconsistent):
        world.ask(proposals=(c,))
    with pytest.raises(GroupInconsistent):
        world.ask(protocol_type="connect")


def test_a_plan_for_another_protocol_is_refused(world: GroupWorld) -> None:
    _, wait = world.enter()
    world.runtime.advance(0)
    for wrong in ({"protocol_type": "connect"}, {"protocol": "sticky"}):
        with pytest.raises(GroupInconsistent):
            world.groups.sync("g", fence(wait.value), {}, **wrong)
    assert not world.groups.sync(
        "g", fence(wait.value), {}, protocol_type="consumer", protocol="range"
    ).ready


def test_leaving(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    outcomes = world.groups.leave("g", [Leaving(leader.member_id), Leaving("who")])
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownMember]
    again = world.ask(follower.member_id)
    assert again.value.leader == follower.member_id
    assert world.groups.leave("g", [Leaving(follower.member_id)]) == [None]
    assert world.state_of() == "Empty"
    with pytest.raises(UnknownMember):
        world.groups.leave("other", [Leaving("who")])


def test_an_empty_group_fills_again_and_its_generation_grows(world: GroupWorld) -> None:
    (first,) = world.stable(1)
    world.groups.leave("g", [Leaving(first.member_id)])
    (second,) = world.stable(1)
    assert second.generation == 3


def test_limits(open_state: OpenState, runtime: StepRuntime) -> None:
    world = GroupWorld(open_state, runtime, group_size_max=2)
    first, second = world.stable(2)
    with pytest.raises(GroupFull):
        world.ask()
    assert world.ask(second.member_id).ready
    world.groups.leave("g", [Leaving(first.member_id)])
    world.enter()
    for timeout_ms in (5999, 1_800_001):
        with pytest.raises(InvalidSessionTimeout):
            world.ask(session_timeout_ms=timeout_ms)
    with pytest.raises(InvalidGroup):
        world.ask(group="")


@pytest.mark.parametrize("call", ["heartbeat", "sync", "join"])
def test_strangers(world: GroupWorld, call: str) -> None:
    def do(group: str, member_id: str) -> None:
        if call == "heartbeat":
            world.groups.heartbeat(group, Fence(member_id, 1))
        elif call == "sync":
            world.groups.sync(group, Fence(member_id, 1), {})
        else:
            world.ask(member_id, group=group)

    world.stable(1)
    for group in ("g", "nowhere"):
        with pytest.raises(UnknownMember):
            do(group, "stranger")


def test_members_are_described(world: GroupWorld) -> None:
    leader, _ = world.stable(2)
    view = world.groups.view("g")
    assert (view.kind, view.state, view.protocol_type, view.protocol) == (
        "classic",
        "Stable",
        "consumer",
        "range",
    )
    (shown,) = [member for member in view.members if member.member_id == leader.member_id]
    assert shown.metadata == RANGE[0].metadata
    assert shown.assignment == leader.member_id.encode()
    assert (shown.client_id, shown.client_host) == ("client", "/127.0.0.1")
    world.enter()
    assert {member.assignment for member in world.groups.view("g").members} == {b""}
    with pytest.raises(GroupNotFound):
        world.groups.view("nowhere")


def test_a_crash_is_not_noticed_by_members(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    world = world.again()
    assert world.state_of() == "Stable"
    world.groups.heartbeat("g", fence(leader))
    parts = [world.groups.sync("g", fence(m), {}).value.assignment for m in (leader, follower)]
    assert parts == [leader.member_id.encode(), follower.member_id.encode()]
    assert world.ask(follower.member_id).value == follower
    world.beat_for([leader], SESSION_MS - 1000)
    world.runtime.advance(1000)
    assert world.state_of() == "PreparingRebalance", "the one that is gone is missed"
    assert world.ask(leader.member_id).value.generation == 2


def test_a_crash_before_the_plan_is_kept_goes_back_a_generation(world: GroupWorld) -> None:
    (leader,) = world.stable(1)
    assert world.ask(leader.member_id).value.generation == 2
    world = world.again()
    with pytest.raises(StaleGeneration):
        world.groups.heartbeat("g", fence(leader)._replace(generation=2))
    assert world.ask(leader.member_id).value.generation == 2


def test_an_emptied_group_keeps_its_generation_through_a_crash(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    world.groups.leave("g", [Leaving(member.member_id)])
    world.runtime.run()
    world = world.again()
    assert world.state_of() == "Empty"
    (member,) = world.stable(1)
    assert member.generation == 3


def test_a_stop_sends_away_who_waits(world: GroupWorld) -> None:
    leader, follower = world.stable(2)
    waiting = world.ask(leader.member_id)
    world.groups.stop_waiting()
    with pytest.raises(Stopping):
        _ = waiting.value
    with pytest.raises(Stopping):
        world.ask(follower.member_id)
    world.groups.close()
    world.state.close()
    world.runtime.run()
    world.runtime.advance(10 * REBALANCE_MS)


def test_many_groups_do_not_mix(world: GroupWorld) -> None:
    waits = {name: world.enter(group=name)[1] for name in (f"g{n}" for n in range(50))}
    world.runtime.advance(0)
    for name, wait in waits.items():
        joined = wait.value
        world.groups.sync(name, fence(joined), {joined.member_id: name.encode()})
    world.runtime.run()
    assert {view.name for view in world.groups.all()} == set(waits)
    for name in waits:
        assert [member.assignment for member in world.groups.view(name).members] == [name.encode()]


def test_refusals_say_what_to_do(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    refusals: list[BrokerError] = []
    for stale in (fence(member)._replace(generation=0), fence(member)._replace(member_id="x")):
        with pytest.raises(BrokerError) as caught:
            world.groups.heartbeat("g", stale)
        refusals.append(caught.value)
    assert all("'g'" in str(refusal) and "join it" in str(refusal) for refusal in refusals)
