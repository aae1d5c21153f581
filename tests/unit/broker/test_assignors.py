"""Plans are complete, fair and steady, whoever comes and goes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.broker import assignors
from pentalog.broker.assignors import Assignor, Plan, Planned, whole

Assign = Callable[[Mapping[str, Planned], Mapping[UUID, int], Plan], Plan]


def in_one(steps: Assignor) -> Assign:
    return lambda members, partitions, before: whole(steps(members, partitions, before))


ASSIGNORS = {name: in_one(steps) for name, steps in assignors.ASSIGNORS.items()}
uniform, ranges = ASSIGNORS["uniform"], ASSIGNORS["range"]
A, B, C = (UUID(int=number) for number in (1, 2, 3))


def planned(*topics: UUID, instance: str | None = None) -> Planned:
    return Planned(frozenset(topics), instance)


def sizes(plan: Plan) -> dict[str, int]:
    return {member: sum(map(len, share.values())) for member, share in plan.items()}


def moved(before: Plan, after: Plan) -> int:
    """Partitions that were read by somebody and are now read by another."""
    owner = {(t, i): m for m, share in before.items() for t, s in share.items() for i in s}
    return sum(
        owner.get((topic, index), member) != member
        for member, share in after.items()
        for topic, indexes in share.items()
        for index in indexes
    )


def check_complete(plan: Plan, members: dict[str, Planned], partitions: dict[UUID, int]) -> None:
    assert plan.keys() == members.keys()
    given = [(t, i) for share in plan.values() for t, indexes in share.items() for i in indexes]
    wanted = {topic for member in members.values() for topic in member.topics}
    assert sorted(given) == sorted((t, i) for t in wanted for i in range(partitions[t]))
    for member, share in plan.items():
        assert share.keys() <= members[member].topics
        assert all(share.values())


worlds = st.fixed_dictionaries(
    {
        "partitions": st.fixed_dictionaries({t: st.integers(1, 12) for t in (A, B, C)}),
        "rounds": st.lists(
            st.dictionaries(
                st.sampled_from([f"m{number}" for number in range(7)]),
                st.builds(Planned, st.frozensets(st.sampled_from([A, B, C]))),
                max_size=7,
            ),
            min_size=1,
            max_size=4,
        ),
    }
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(world=worlds)
def test_every_partition_has_one_reader_who_asked_for_it(name: str, world: dict) -> None:
    before: Plan = {}
    for members in world["rounds"]:
        before = ASSIGNORS[name](members, world["partitions"], before)
        check_complete(before, members, world["partitions"])


@given(world=worlds)
def test_uniform_leaves_no_move_that_would_help(world: dict) -> None:
    before: Plan = {}
    for members in world["rounds"]:
        before = uniform(members, world["partitions"], before)
        load = sizes(before)
        for giver, share in before.items():
            for topic in share:
                for taker, member in members.items():
                    if topic in member.topics:
                        assert load[giver] - load[taker] <= 1


@given(st.integers(1, 20), st.integers(0, 60))
def test_uniform_is_even_where_all_read_the_same(count: int, partitions: int) -> None:
    members = {f"m{number}": planned(A) for number in range(count)}
    load = sizes(uniform(members, {A: partitions}, {}))
    assert max(load.values()) - min(load.values()) <= 1


@given(st.integers(1, 20), st.integers(1, 60))
def test_one_more_member_takes_only_its_own_share(count: int, partitions: int) -> None:
    members = {f"m{number}": planned(A) for number in range(count)}
    before = uniform(members, {A: partitions}, {})
    after = uniform(members | {"new": planned(A)}, {A: partitions}, before)
    assert moved(before, after) == sizes(after)["new"]


@given(st.integers(2, 20), st.integers(1, 60))
def test_one_member_less_moves_only_what_it_had(count: int, partitions: int) -> None:
    members = {f"m{number}": planned(A) for number in range(count)}
    before = uniform(members, {A: partitions}, {})
    gone = before["m0"]
    del members["m0"]
    after = uniform(members, {A: partitions}, before)
    assert moved(before, after) == sum(map(len, gone.values()))


def test_uniform_gives_new_partitions_without_moving_old_ones() -> None:
    members = {"a": planned(A), "b": planned(A)}
    before = uniform(members, {A: 4}, {})
    after = uniform(members, {A: 8}, before)
    assert moved(before, after) == 0
    assert sizes(after) == {"a": 4, "b": 4}


def test_uniform_settles_two_claims_to_one_partition() -> None:
    both = {"a": {A: frozenset({0, 1})}, "b": {A: frozenset({0, 1})}}
    members = {"a": planned(A), "b": planned(A)}
    check_complete(uniform(members, {A: 2}, both), members, {A: 2})


def test_ranges_are_neighbours_and_topics_of_one_size_are_split_alike() -> None:
    plan = ranges({"b": planned(A, B), "a": planned(A, B)}, {A: 5, B: 5}, {})
    assert plan["a"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}
    assert plan["b"] == {A: frozenset({3, 4}), B: frozenset({3, 4})}


def test_ranges_follow_the_instance_through_a_restart() -> None:
    first = {"x": planned(A, instance="one"), "y": planned(A, instance="two")}
    again = {"z": planned(A, instance="one"), "y": planned(A, instance="two")}
    assert ranges(first, {A: 4}, {})["x"] == ranges(again, {A: 4}, {})["z"]


def test_nobody_is_planned_for_nothing() -> None:
    for assignor in ASSIGNORS.values():
        assert assignor({}, {A: 3}, {}) == {}
        assert assignor({"a": planned()}, {A: 3}, {}) == {"a": {}}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_large_group_is_planned(name: str) -> None:
    dice = random.Random(1)
    topics = {UUID(int=number): 10 for number in range(100)}
    everything = frozenset(topics)
    same = {f"m{number}": Planned(everything) for number in range(200)}
    plan = ASSIGNORS[name](same, topics, {})
    check_complete(plan, same, topics)
    some = {member: Planned(frozenset(dice.sample(sorted(topics), 50))) for member in same}
    check_complete(ASSIGNORS[name](some, topics, plan), some, topics)
