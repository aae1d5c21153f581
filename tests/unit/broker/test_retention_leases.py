"""Groups that ask for records to be kept: by whom, from where, for how long, how many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import GroupWorld
from step_runtime import StepRuntime

from pentalog.broker.port import Committed
from pentalog.broker.retention_leases import find_leases
from pentalog.broker.state import State
from pentalog.log.retention import Lease
from pentalog.model.types import Partition

T0, T1 = Partition("t", 0), Partition("t", 1)


@pytest.fixture
def world(open_state: Callable[[], State], runtime: StepRuntime) -> GroupWorld:
    return GroupWorld(open_state, runtime)


def commit(world: GroupWorld, group: str, at: Partition, offset: int, metadata: str) -> None:
    world.groups.offsets.commit(group, {at: Committed(offset, metadata=metadata)})
    world.runtime.run()


def leases(world: GroupWorld, later_ms: int = 0) -> dict[Partition, Lease]:
    return find_leases(world.groups.offsets, world.runtime.now_ms() + later_ms)


def test_the_lease_that_reaches_back_furthest_counts(world: GroupWorld) -> None:
    commit(world, "a", T0, 70, "pentalog.lease=60000;bytes=1000")
    commit(world, "b", T0, 50, "pentalog.lease=60000;bytes=400")
    commit(world, "b", T1, 5, "pentalog.lease=60000")
    commit(world, "c", T0, 1, "somebody's own note")
    assert leases(world) == {T0: Lease(50, 1000), T1: Lease(5, 10 << 30)}


def test_a_lease_ends_and_is_renewed_by_a_commit(world: GroupWorld) -> None:
    commit(world, "a", T0, 7, "pentalog.lease=1000")
    assert leases(world, 500) == {T0: Lease(7, 10 << 30)}
    assert leases(world, 1500) == {}
    commit(world, "a", T0, 9, "pentalog.lease=1000\0")
    assert leases(world, 500) == {T0: Lease(9, 10 << 30)}


def test_a_commit_without_one_gives_the_lease_back(world: GroupWorld) -> None:
    commit(world, "a", T0, 7, "pentalog.lease=60000")
    commit(world, "a", T0, 8, "")
    assert leases(world) == {}


def test_a_group_that_is_gone_holds_nothing(world: GroupWorld) -> None:
    commit(world, "a", T0, 7, "pentalog.lease=60000")
    world.groups.offsets.forget("a")
    world.runtime.run()
    assert leases(world) == {}


@pytest.mark.parametrize(
    "text", ["pentalog.lease=", "pentalog.lease=x", "pentalog.lease=1;bytes=-1"]
)
def test_what_is_not_understood_is_no_lease(world: GroupWorld, text: str) -> None:
    commit(world, "a", T0, 7, text)
    assert leases(world) == {}
