"""Committed offsets: who may commit, what a transaction holds back, what expires, what survives."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from group_world import GroupWorld, fence
from step_runtime import StepRuntime
from tests.support.state_files import accept_writes, refuse_writes

from pentalog.broker import state as state_module
from pentalog.broker import state_schema
from pentalog.broker.groups import SWEEP_INTERVAL_MS
from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.port import Committed, Fence, Leaving, Proposal, Topic
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.state_schema import MIGRATIONS
from pentalog.config import Config
from pentalog.model.errors import (
    GroupNotEmpty,
    GroupNotFound,
    GroupSubscribed,
    Rebalancing,
    StaleGeneration,
    StorageFailed,
    UnknownMember,
)
from pentalog.model.settings import LogSettings
from pentalog.model.types import Partition
from pentalog.runtime import Slices

T0, T1, U0 = Partition("t", 0), Partition("t", 1), Partition("u", 0)
NOBODY = Fence()
MINUTE_MS = 60_000


@pytest.fixture
def world(open_state: Callable[[], State], runtime: StepRuntime) -> GroupWorld:
    return GroupWorld(open_state, runtime, offsets_retention_minutes=60)


def offsets_of(world: GroupWorld, group: str = "g") -> dict[Partition, int]:
    return {at: c.offset for at, c in world.groups.offsets.committed(group).items()}


def commit(world: GroupWorld, at: Partition, offset: int, *, group: str = "g") -> None:
    world.groups.offsets.commit(group, {at: Committed(offset)})
    world.runtime.run()


def test_a_commit_is_ready_when_it_is_on_the_disk(world: GroupWorld) -> None:
    later = world.groups.commit("g", NOBODY, {T0: Committed(5, 2, "note"), T1: Committed(7)})
    assert not later.ready
    assert offsets_of(world) == {T0: 5, T1: 7}
    world.runtime.run()
    assert later.ready
    again = world.again()
    now_ms = world.runtime.now_ms()
    assert again.groups.offsets.committed("g", [T0, U0]) == {T0: Committed(5, 2, "note", now_ms)}
    assert offsets_of(again) == {T0: 5, T1: 7}
    assert again.groups.offsets.committed("other") == {}


def test_the_last_commit_wins_also_after_a_crash(world: GroupWorld) -> None:
    for offset in (3, 9, 4):
        commit(world, T0, offset)
    assert offsets_of(world) == offsets_of(world.again()) == {T0: 4}


def test_a_failing_disk_refuses_commits(world: GroupWorld) -> None:
    world.state._refusal = StorageFailed("the disk is gone")
    with pytest.raises(StorageFailed):
        world.groups.commit("g", NOBODY, {T0: Committed(5)})
    assert offsets_of(world) == {}


def test_members_commit_and_strangers_do_not(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    world.groups.commit("g", fence(member), {T0: Committed(1)})
    for stranger, refusal in (
        (NOBODY, UnknownMember),
        (Fence("who", member.generation), UnknownMember),
        (Fence("", member.generation), UnknownMember),
        (fence(member)._replace(generation=7), StaleGeneration),
        (fence(member)._replace(generation=-1), StaleGeneration),
    ):
        with pytest.raises(refusal):
            world.groups.commit("g", stranger, {T0: Committed(2)})
    assert offsets_of(world) == {T0: 1}


def test_while_others_meet_a_member_may_still_commit(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    world.enter()
    world.groups.commit("g", fence(member), {T0: Committed(1)})
    again = world.ask(member.member_id)
    with pytest.raises(StaleGeneration):
        world.groups.commit("g", fence(member), {T0: Committed(2)})
    with pytest.raises(Rebalancing):
        world.groups.commit("g", fence(again.value), {T0: Committed(2)})
    world.groups.check_commit("g", fence(again.value), transactional=True)


def test_committing_shows_that_a_member_lives(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    for _ in range(30):
        world.runtime.advance(1000)
        world.groups.commit("g", fence(member), {T0: Committed(1)})
    world.groups.heartbeat("g", fence(member))


def test_without_members_only_nobody_may_commit(world: GroupWorld) -> None:
    with pytest.raises(GroupNotFound):
        world.groups.commit("g", Fence("m", 3), {T0: Committed(1)})
    with pytest.raises(StaleGeneration):
        world.groups.commit("g", Fence("m", 3), {T0: Committed(1)}, epoch_aware=False)
    world.groups.commit("g", NOBODY, {T0: Committed(1)})
    with pytest.raises(StaleGeneration):
        world.groups.commit("g", Fence("m", 3), {T0: Committed(1)})
    (member,) = world.stable(1)
    world.groups.leave("g", [Leaving(member.member_id)])
    world.groups.commit("g", NOBODY, {T0: Committed(2)})
    assert offsets_of(world) == {T0: 2}


def test_transactions_may_commit_without_a_member(world: GroupWorld) -> None:
    world.stable(1)
    world.groups.check_commit("g", NOBODY, transactional=True)
    with pytest.raises(StaleGeneration):
        world.groups.check_commit("none", Fence("m", 3), transactional=True)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_staged_offsets_are_seen_when_the_transaction_ends(
    world: GroupWorld, committed: bool, crash: bool
) -> None:
    commit(world, T0, 1)
    later = world.groups.offsets.stage(77, "g", {T0: Committed(5), T1: Committed(6)})
    world.groups.offsets.stage(77, "h", {T0: Committed(8)})
    assert not later.ready
    world.runtime.run()
    assert later.ready
    if crash:
        world = world.again()
    offsets = world.groups.offsets
    assert offsets_of(world) == {T0: 1}
    assert list(offsets.staged()) == [77]
    assert [offsets.unstable("g", at) for at in (T0, T1, U0)] == [True, True, False]
    assert set(offsets.groups()) == {"g", "h"}
    offsets.finish(77, commit=committed)
    offsets.finish(77, commit=committed)
    world.runtime.run()
    world = world.again()
    assert offsets_of(world) == ({T0: 5, T1: 6} if committed else {T0: 1})
    assert offsets_of(world, "h") == ({T0: 8} if committed else {})
    assert not world.groups.offsets.staged()
    assert not world.groups.offsets.unstable("g", T0)


@pytest.mark.parametrize("step_ms", [10, 0, -2000])
def test_a_commit_after_staging_is_newer(world: GroupWorld, step_ms: int) -> None:
    world.groups.offsets.stage(77, "g", {T0: Committed(5), T1: Committed(5)})
    world.runtime.wall_step_ms += step_ms
    commit(world, T0, 9)
    world.groups.offsets.finish(77, commit=True)
    assert offsets_of(world) == {T0: 9, T1: 5}


@pytest.mark.parametrize("crash", [False, True])
def test_committed_transactions_follow_each_other_when_the_clock_is_set_back(
    world: GroupWorld, crash: bool
) -> None:
    for offset in (20, 40):
        world.groups.offsets.stage(77, "g", {T0: Committed(offset)})
        world.runtime.run()
        if crash:
            world = world.again()
        world.groups.offsets.finish(77, commit=True)
        world.runtime.run()
        world.runtime.wall_step_ms -= 2000
    assert offsets_of(world) == offsets_of(world.again()) == {T0: 40}


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_staged_last_wins_whichever_transaction_ends_last(
    world: GroupWorld, crash: bool
) -> None:
    for producer_id in (1, 2, 3):
        world.groups.offsets.stage(producer_id, "g", {T0: Committed(10 * producer_id)})
        world.runtime.wall_step_ms -= 2000
    world.runtime.run()
    for producer_id, expected in ((2, 20), (1, 20), (3, 30)):
        if crash:
            world = world.again()
        world.groups.offsets.finish(producer_id, commit=True)
        world.runtime.run()
        assert offsets_of(world) == {T0: expected}


def test_a_time_given_by_the_client_does_not_order_commits(world: GroupWorld) -> None:
    future_ms = world.runtime.now_ms() + MINUTE_MS
    world.groups.offsets.commit("g", {T0: Committed(1, timestamp_ms=future_ms)})
    world.groups.offsets.stage(77, "g", {T0: Committed(5)})
    world.groups.offsets.finish(77, commit=True)
    assert offsets_of(world) == {T0: 5}


@pytest.mark.parametrize("whole_group", [False, True])
def test_forgetting_an_offset_forgets_what_a_transaction_has_staged(
    world: GroupWorld, whole_group: bool
) -> None:
    commit(world, T0, 1)
    world.groups.offsets.stage(77, "g", {T0: Committed(5), T1: Committed(6)})
    world.groups.offsets.stage(77, "h", {T0: Committed(7)})
    world.groups.offsets.forget("g", None if whole_group else [T0])
    world.runtime.run()
    world = world.again()
    world.groups.offsets.finish(77, commit=True)
    assert offsets_of(world) == ({} if whole_group else {T1: 6})
    assert offsets_of(world, "h") == {T0: 7}


def hold_disk(world: GroupWorld) -> None:
    world.runtime.run()
    world.runtime.lanes_blocked = True


def release_disk(world: GroupWorld) -> None:
    world.runtime.lanes_blocked = False
    world.runtime.run()


def test_offsets_are_settled_when_they_are_on_the_disk(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    assert offsets.settled("g").ready, "there is nothing to write"
    hold_disk(world)
    offsets.commit("g", {T0: Committed(5)})
    settled = offsets.settled("g")
    assert not settled.ready
    assert offsets.settled("h").ready, "nothing of this group waits"
    release_disk(world)
    assert settled.value is None
    assert offsets.settled("g").ready


def test_a_group_is_settled_before_later_changes_of_others_are(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    hold_disk(world)
    offsets.commit("g", {T0: Committed(5)})
    world.runtime.run()
    offsets.commit("h", {T0: Committed(6)})
    order: list[str] = []
    offsets.settled("h").then(lambda _: order.append("h"))
    offsets.settled("g").then(lambda _: order.append("g"))
    release_disk(world)
    assert order == ["g", "h"]


def test_a_group_without_pauses_is_settled_too(world: GroupWorld) -> None:
    """A group that commits before every commit before is durable holds back no question."""
    offsets = world.groups.offsets
    hold_disk(world)
    offsets.commit("g", {T0: Committed(0)})
    world.runtime.run()
    asked = []
    for number in range(1, 4):
        asked.append(offsets.settled("g"))
        offsets.commit("g", {T0: Committed(number)})
        release_disk(world)
        world.runtime.lanes_blocked = True
        assert all(one.ready for one in asked)
    assert offsets._changed.keys() <= {"g"}


@pytest.mark.parametrize("change", ["forget", "forget some", "topic", "transaction"])
def test_every_change_is_waited_for(world: GroupWorld, change: str) -> None:
    offsets = world.groups.offsets
    commit(world, T0, 5)
    offsets.stage(77, "g", {T0: Committed(9)})
    hold_disk(world)
    assert offsets.settled("g").ready
    if change == "forget":
        offsets.forget("g")
    elif change == "forget some":
        offsets.forget("g", [T0])
    elif change == "topic":
        offsets.forget_topic("t")
    else:
        offsets.finish(77, commit=True)
    settled = offsets.settled("g")
    assert not settled.ready
    release_disk(world)
    assert settled.value is None
    assert offsets_of(world) == ({T0: 9} if change == "transaction" else {})


def test_what_is_staged_is_not_shown_and_not_waited_for(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    commit(world, T0, 5)
    hold_disk(world)
    offsets.stage(77, "g", {T0: Committed(9)})
    assert offsets.settled("g").ready
    release_disk(world)


def test_groups_that_are_settled_are_not_remembered(world: GroupWorld) -> None:
    for number in range(10):
        commit(world, T0, 5, group=f"g{number}")
    assert len(world.groups.offsets._changed) == 1


def test_a_question_about_a_file_that_cannot_be_written_is_refused(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    commit(world, T0, 5, group="h")
    refuse_writes(world.state)
    offsets.commit("g", {T0: Committed(5)})
    settled = offsets.settled("g")
    world.runtime.run()
    for refused in (settled, offsets.settled("g")):
        with pytest.raises(StorageFailed, match="cannot use"):
            _ = refused.value
    assert offsets.settled("h").value is None, "its offsets are on the disk"
    accept_writes(world.state)
    world.runtime.advance(state_module.RETRY_MS)
    assert offsets.settled("g").value is None


def test_a_question_does_not_wait_for_ever(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    hold_disk(world)
    offsets.commit("g", {T0: Committed(5)})
    settled = offsets.settled("g")
    world.runtime.advance(COMMIT_WAIT_MS_MAX - 1)
    assert not settled.ready
    world.runtime.advance(1)
    with pytest.raises(StorageFailed, match="not written"):
        _ = settled.value
    release_disk(world)
    assert offsets.settled("g").value is None


def test_offsets_of_an_older_file_keep_their_order_by_time(
    tmp_path: Path, runtime: StepRuntime, open_state: Callable[[], State]
) -> None:
    database = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    version = MIGRATIONS.index(state_schema._number_offsets)
    for migrate in MIGRATIONS[:version]:
        migrate(database)
    database.execute(f"PRAGMA user_version = {version}")
    for at, committed_ms in ((T0, 100), (T1, 300)):
        database.execute(
            "INSERT INTO offsets VALUES ('g', ?, ?, 1, -1, '', ?, -1)", (*at, committed_ms)
        )
        for producer_id in (8, 7):
            database.execute(
                "INSERT INTO staged_offsets VALUES (?, 'g', ?, ?, ?, -1, '', 200, -1)",
                (producer_id, *at, producer_id),
            )
    database.close()
    world = GroupWorld(open_state, runtime)
    for producer_id in (7, 8):
        world.groups.offsets.finish(producer_id, commit=True)
    commit(world, U0, 3)
    assert offsets_of(world) == {T0: 8, T1: 1, U0: 3}


def test_an_offset_is_unstable_until_the_last_transaction_ends(world: GroupWorld) -> None:
    offsets = world.groups.offsets
    for producer_id in (1, 2):
        offsets.stage(producer_id, "g", {T0: Committed(producer_id)})
        offsets.stage(producer_id, "g", {T0: Committed(10 + producer_id)})
    offsets.finish(1, commit=True)
    assert offsets.unstable("g", T0)
    offsets.finish(2, commit=False)
    assert not offsets.unstable("g", T0)
    assert offsets_of(world) == {T0: 11}


def test_a_deleted_topic_takes_its_offsets_along(world: GroupWorld) -> None:
    for at in (T0, T1, U0):
        commit(world, at, 3)
    commit(world, T0, 3, group="only-t")
    world.groups.offsets.stage(5, "g", {T0: Committed(9), U0: Committed(9)})
    world.groups.topic_deleted(topic("t"))
    world.runtime.run()
    world.groups.offsets.finish(5, commit=True)
    world.runtime.run()
    for life in (world, world.again()):
        assert offsets_of(life) == {U0: 9}
        assert {view.name for view in life.groups.all()} == {"g"}


def end_turns_early(world: GroupWorld) -> LocalOffsets:
    """Let each turn do one step of what is done in slices."""
    offsets = world.groups.offsets
    offsets._slices = Slices(world.runtime, cut=lambda: True)
    return offsets


def test_a_group_commits_again_while_offsets_of_a_deleted_topic_are_removed(
    world: GroupWorld,
) -> None:
    for at in (T0, T1):
        commit(world, at, 3)
    offsets = end_turns_early(world)
    world.groups.topic_deleted(topic("t"))
    offsets.forget("g")
    offsets.commit("g", {T0: Committed(8), T1: Committed(9)})
    world.runtime.run()
    assert offsets_of(world) == offsets_of(world.again()) == {T0: 8, T1: 9}


def test_a_stop_while_staged_offsets_become_real(world: GroupWorld) -> None:
    offsets = end_turns_early(world)
    offsets.stage(77, "g", {T0: Committed(5), T1: Committed(6), U0: Committed(7)})
    world.runtime.run()
    offsets.finish(77, commit=True)
    assert offsets_of(world) == {T0: 5}
    world.groups.close()
    world.state.close()
    world.runtime.run()
    world = world.again()
    assert offsets_of(world) == {T0: 5}
    world.groups.offsets.finish(77, commit=True)
    assert offsets_of(world) == {T0: 5, T1: 6, U0: 7}


def topic(name: str) -> Topic:
    return Topic(name=name, topic_id=uuid4(), partitions=2, overrides={}, settings=LogSettings())


def test_groups_are_listed_one_by_one(world: GroupWorld) -> None:
    """There may be hundreds of thousands: a listing pauses, and some are deleted meanwhile."""
    for name in ("a", "b", "c"):
        commit(world, T0, 3, group=name)
    listed = iter(world.groups.all())
    first = next(listed).name
    gone = next(name for name in ("a", "b", "c") if name != first)
    world.groups.delete(gone)
    assert {first, *(view.name for view in listed)} == {"a", "b", "c"} - {gone}


def test_a_group_of_offsets_alone_is_a_group(world: GroupWorld) -> None:
    commit(world, T0, 3)
    view = world.groups.view("g")
    assert (view.name, view.kind, view.state, view.protocol_type) == ("g", "classic", "Empty", "")
    assert [v.name for v in world.groups.all()] == ["g"]
    world.groups.delete("g")
    world.runtime.run()
    for life in (world, world.again()):
        assert list(life.groups.all()) == []
        with pytest.raises(GroupNotFound):
            life.groups.delete("g")


def test_deleting_a_group(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    world.groups.commit("g", fence(member), {T0: Committed(1)})
    with pytest.raises(GroupNotEmpty):
        world.groups.delete("g")
    world.groups.leave("g", [Leaving(member.member_id)])
    later = world.groups.delete("g")
    world.runtime.run()
    assert later.ready
    for life in (world, world.again()):
        assert list(life.groups.all()) == []
        assert offsets_of(life) == {}


def test_forgetting_offsets_of_topics_nobody_reads(world: GroupWorld) -> None:
    (member,) = world.stable(1)
    world.groups.commit("g", fence(member), {T0: Committed(1), U0: Committed(2)})
    refused = world.groups.forget("g", [T0, U0, T1])
    assert {at: type(refusal) for at, refusal in refused.items()} == {
        T0: GroupSubscribed,
        T1: GroupSubscribed,
    }
    world.runtime.run()
    assert offsets_of(world.again()) == {T0: 1}
    with pytest.raises(GroupNotFound):
        world.groups.forget("none", [T0])


def test_members_that_say_not_what_they_read_keep_all_offsets(world: GroupWorld) -> None:
    world.stable(1, proposals=(Proposal("range", b""),))
    with pytest.raises(GroupNotEmpty):
        world.groups.forget("g", [T0])


def sweep(world: GroupWorld, minutes: int) -> None:
    for _ in range(minutes * MINUTE_MS // SWEEP_INTERVAL_MS):
        world.runtime.advance(SWEEP_INTERVAL_MS)


def test_offsets_nobody_uses_expire(world: GroupWorld) -> None:
    commit(world, T0, 3)
    sweep(world, 50)
    commit(world, T1, 4)
    sweep(world, 10)
    assert offsets_of(world) == {T1: 4}
    world = world.again()
    assert offsets_of(world) == {T1: 4}
    sweep(world, 60)
    assert list(world.groups.all()) == []


def test_offsets_expire_by_the_time_the_group_became_empty(world: GroupWorld) -> None:
    (member,) = world.stable(1, session_timeout_ms=1_800_000)
    world.groups.commit("g", fence(member), {T0: Committed(1), U0: Committed(2)})
    for _ in range(9):
        sweep(world, 10)
        world.groups.heartbeat("g", fence(member))
    assert offsets_of(world) == {T0: 1}, "u is read by nobody, t by the member"
    world.groups.leave("g", [Leaving(member.member_id)])
    world.runtime.run()
    sweep(world, 50)
    world = world.again()
    assert offsets_of(world) == {T0: 1}
    sweep(world, 20)
    assert list(world.groups.all()) == []
    assert list(world.again().groups.all()) == []


def test_offsets_in_open_transactions_do_not_expire(world: GroupWorld) -> None:
    commit(world, T0, 3)
    world.groups.offsets.stage(5, "g", {T0: Committed(9)})
    sweep(world, 120)
    assert offsets_of(world) == {T0: 3}


def test_a_client_may_say_when_its_offset_expires(world: GroupWorld) -> None:
    now_ms = world.runtime.now_ms()
    world.groups.offsets.commit("g", {T0: Committed(1, expire_ms=now_ms + 15 * MINUTE_MS)})
    world.groups.offsets.commit("g", {T1: Committed(1, expire_ms=now_ms + 500 * MINUTE_MS)})
    world.runtime.run()
    world = world.again()
    sweep(world, 10)
    assert offsets_of(world) == {T0: 1, T1: 1}
    sweep(world, 100)
    assert offsets_of(world) == {T1: 1}


def test_a_commit_that_is_refused_at_once_is_not_told(tmp_path: Path) -> None:
    """Without syncs small commits are written in the same turn, or refused in it."""
    runtime = StepRuntime()
    state = State(tmp_path / FILE_NAME, runtime, synced=False)
    state.open()
    offsets = LocalOffsets(state, runtime, Config())
    refuse_writes(state)
    assert offsets.commit("g", {T0: Committed(5)}).ready
    with pytest.raises(StorageFailed):
        _ = offsets.settled("g").value
    accept_writes(state)
    runtime.advance(state_module.RETRY_MS)
    assert offsets.settled("g").value is None
    assert offsets.committed("g")[T0].offset == 5
    state.abandon()
