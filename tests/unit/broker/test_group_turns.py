"""What happens to many members at once is spread over turns of the loop: counted, not timed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from group_world import SESSION_MS, GroupWorld
from step_runtime import StepRuntime

from pentalog.broker.groups import MEMBERS_PER_TURN
from pentalog.broker.port import Fence, Joined
from pentalog.broker.state import TOLD_PER_TURN, State
from pentalog.model.later import Later

MANY = 5 * MEMBERS_PER_TURN


@pytest.fixture
def world(open_state: Callable[[], State], runtime: StepRuntime) -> GroupWorld:
    return GroupWorld(open_state, runtime, group_initial_rebalance_delay_ms=100)


def fire(runtime: StepRuntime, delay_ms: int) -> None:
    """Let time pass, and every timer that is due then fire in one turn."""
    runtime.time_ms += delay_ms
    while runtime._timers and runtime._timers[0][0] <= runtime.time_ms:
        _, _, timer, run = heapq.heappop(runtime._timers)
        if not timer.cancelled:
            run()


def in_each_turn(runtime: StepRuntime, count: Callable[[], int]) -> list[int]:
    """By how much the count grew in each turn, until nothing is due."""
    grown = []
    while runtime._due:
        before = count()
        runtime._due.popleft()()
        grown.append(count() - before)
    return grown


def joined(world: GroupWorld, groups: int) -> list[tuple[str, str, Later[Joined]]]:
    found = []
    for number in range(MANY):
        group = f"g{number % groups}"
        found.append((group, *world.enter(group=group)))
    return found


@pytest.mark.parametrize("groups", [1, MANY])
def test_members_are_told_of_a_generation_some_per_turn(
    world: GroupWorld, runtime: StepRuntime, groups: int
) -> None:
    members = joined(world, groups)
    runtime.run()

    def ready() -> int:
        return sum(later.ready for _, _, later in members)

    while not ready():
        fire(runtime, 100)
    assert ready() == MEMBERS_PER_TURN
    assert max(in_each_turn(runtime, ready)) <= MEMBERS_PER_TURN
    assert ready() == MANY


def test_members_time_out_some_per_turn(world: GroupWorld, runtime: StepRuntime) -> None:
    members = joined(world, MANY)
    runtime.advance(1_000)
    for group, member_id, later in members:
        fence = Fence(member_id, later.value.generation)
        world.groups.sync(group, fence, {member_id: b"part"})
    runtime.run()
    assert all(view.state == "Stable" for view in world.groups.all())

    def empty() -> int:
        return sum(view.state == "Empty" for view in world.groups.all())

    fire(runtime, 2 * SESSION_MS)
    assert empty() <= MEMBERS_PER_TURN
    assert max(in_each_turn(runtime, empty)) <= MEMBERS_PER_TURN
    assert empty() == MANY


def test_one_who_is_heard_of_before_its_turn_stays(world: GroupWorld, runtime: StepRuntime) -> None:
    members = joined(world, MANY)
    runtime.advance(1_000)
    for group, member_id, later in members:
        fence = Fence(member_id, later.value.generation)
        world.groups.sync(group, fence, {member_id: b"part"})
    runtime.run()
    fire(runtime, 2 * SESSION_MS)
    waiting = [view.name for view in world.groups.all() if view.state == "Stable"]
    late = {group: Fence(member_id, 1) for group, member_id, _ in members}[waiting[-1]]
    world.groups.heartbeat(waiting[-1], late)
    runtime.run()
    assert [v.name for v in world.groups.all() if v.state == "Stable"] == [waiting[-1]]


def test_those_who_wait_for_a_commit_are_told_some_per_turn(
    open_state: Callable[[], State], runtime: StepRuntime
) -> None:
    state = open_state()
    waits = []
    for number in range(5 * TOLD_PER_TURN):
        state.write("INSERT INTO meta VALUES (?, '')", f"key {number}")
        waits.append(state.settle())

    def ready() -> int:
        return sum(wait.ready for wait in waits)

    in_each_turn(runtime, ready)
    (work, done) = runtime._work.popleft()
    work()
    done(None, None)
    assert ready() == TOLD_PER_TURN
    assert max(in_each_turn(runtime, ready)) <= TOLD_PER_TURN
    assert ready() == len(waits)
