"""Named producers, shared rosters and aggregates below any protocol: limits and lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cursus_world import CursusBroker
from tests.support.logs import crooked, plant

from pentalog.broker import aggregates, named_producers, shared_rosters
from pentalog.broker.port import TopicSpec
from pentalog.broker.sourcing import UNSOURCED, Conflict, Extent, Snapshot
from pentalog.kernels import check_batches
from pentalog.model import batch
from pentalog.model.errors import (
    BrokerError,
    GroupFull,
    GroupNotFound,
    Overloaded,
    ProducerFenced,
    RecordTooLarge,
    StorageFailed,
)
from pentalog.model.types import Identity, Partition, Record

AT = Partition("events", 0)


@contextlib.contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[CursusBroker]:
    world = CursusBroker(directory, **settings)
    world.topics.create(TopicSpec(name="events", partitions=3))
    yield world
    world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusBroker]:
    with opened(tmp_path) as world:
        yield world


def event(key: bytes, version: int, value: bytes = b"v") -> bytearray:
    """A batch with one event, as the Cursus door builds it."""
    headers = (("cursus.aggregate_version", b"%d" % version),)
    built = batch.build([Record(value, key, headers)], timestamp_ms=1)
    payload, header = batch.payload_of(built, 0, bytes_max=200_000)
    marked = header._replace(attributes=batch.DOORS.index("cursus") << batch.DOOR_SHIFT)
    return batch.rebuild(marked, payload, count=1, codec=0)


def add(world: CursusBroker, key: bytes, version: int, owner: str = "") -> object:
    data = event(key, version)
    later = world.aggregates.append(
        AT, key, version, memoryview(data), check_batches(data, 0, len(data)), owner=owner
    )
    world.step()
    return later.value


def extent(world: CursusBroker, key: bytes) -> Extent:
    later = world.aggregates.extent(AT, key)
    world.step()
    return later.value


def test_identities_repeat_and_differ(world: CursusBroker) -> None:
    named = world.broker.sourcing.producers
    first = named.who(b"p", 1)
    assert first == named.who(b"p", 1)
    assert len({first, named.who(b"p", 2), named.who(b"q", 1), named.who(b"1:p", 1)}) == 4
    assert 1 << 62 <= first.producer_id < 1 << 63
    assert named.written(AT, first) == ()


def test_the_newest_epoch_fences(world: CursusBroker) -> None:
    named = world.broker.sourcing.producers
    entered = named.enter(b"p", 5)
    assert named.enter(b"p", 5) is entered, "still on its way to the disk"
    world.step()
    assert entered.ready
    assert named.enter(b"p", 5).ready
    with pytest.raises(ProducerFenced, match="fenced by epoch 5"):
        named.enter(b"p", 4)
    assert (named.epoch(b"p"), named.epoch(b"q")) == (5, None)


def test_only_so_many_names_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_producers, "NAMES_MAX", 3)
    with opened(tmp_path) as world:
        named = world.broker.sourcing.producers
        for number in range(5):
            named.enter(b"%d" % number, 1)
        world.step()
        assert [named.epoch(b"%d" % number) for number in range(5)] == [None, None, 1, 1, 1]
        rows = world.state.rows("SELECT name FROM named_producers ORDER BY number")
        assert rows == [(b"2",), (b"3",), (b"4",)]


def test_a_client_that_floods_names_loses_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_producers, "NAMES_MAX", 6)
    greedy, modest = "User:ANONYMOUS@10.0.0.1", "User:ANONYMOUS@10.0.0.2"
    with opened(tmp_path) as world:
        named = world.broker.sourcing.producers
        named.enter(b"modest", 7, charged=modest)
        named.enter(b"alice", 7, "User:alice")
        for number in range(20):
            named.enter(b"%d" % number, 1, charged=greedy)
        assert (named.epoch(b"modest"), named.epoch(b"alice")) == (7, 7)
        assert [named.epoch(b"%d" % number) for number in range(16, 20)] == [None, 1, 1, 1]
        assert (named.owner(b"alice"), named.owner(b"modest")) == ("User:alice", "")
        world.step()
    again = CursusBroker(tmp_path)
    named = again.broker.sourcing.producers
    for number in range(20, 40):
        named.enter(b"%d" % number, 1, "User:eve")
    assert (named.epoch(b"alice"), named.owner(b"alice")) == (7, "User:alice")
    again.step()
    again.close()


def test_versions_and_extents(world: CursusBroker) -> None:
    assert extent(world, b"a") == Extent()
    assert add(world, b"a", 2) == Conflict(0)
    add(world, b"a", 1)
    add(world, b"b", 1)
    add(world, b"a", 2)
    assert extent(world, b"a") == Extent(2, 0, 3)
    assert extent(world, b"b") == Extent(1, 1, 2)


@pytest.mark.parametrize("codec", [0, 4])
def test_an_index_skips_what_cannot_be_read(tmp_path: Path, codec: int) -> None:
    first = CursusBroker(tmp_path / "poisoned")
    first.topics.create(TopicSpec(name="events", partitions=1))
    add(first, b"a", 1)
    plant(first.store.get(AT), crooked([Record(b"v", b"k")] * 3, bytearray.clear, codec=codec))
    first.close()
    second = CursusBroker(tmp_path / "poisoned")
    second.state.write("DELETE FROM aggregate_marks")
    second.state.write("DELETE FROM aggregates")
    second.close()
    third = CursusBroker(tmp_path / "poisoned")
    assert extent(third, b"a") == Extent(1, 0, 1)
    assert add(third, b"a", 2) != Conflict(1)
    assert extent(third, b"a") == Extent(2, 0, 5)
    assert third.metrics.unreadable_batches
    third.close()


def test_an_index_that_is_ahead_of_the_log_is_made_anew(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "ahead")
    first.topics.create(TopicSpec(name="events", partitions=1))
    add(first, b"a", 1)
    first.state.write("UPDATE aggregate_marks SET next_offset = 99")
    first.state.write("UPDATE aggregates SET version = 77, next_offset = 99")
    first.close()
    second = CursusBroker(tmp_path / "ahead")
    assert extent(second, b"a") == Extent(1, 0, 1)
    second.close()


def test_catching_up_takes_several_turns(
    world: CursusBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "_CHUNK_BYTES", 200)
    for version in range(1, 40):
        world.log.append(AT, memoryview(event(b"a", version)))
    asked = [world.aggregates.extent(AT, b"a") for _ in range(3)]
    world.step()
    assert [later.value.version for later in asked] == [39, 39, 39]


def test_what_is_not_durable_is_not_saved(world: CursusBroker) -> None:
    world.runtime.held_lanes |= {"sync"}
    data = event(b"a", 1)
    later = world.aggregates.append(
        AT, b"a", 1, memoryview(data), check_batches(data, 0, len(data))
    )
    world.step()
    assert not later.ready
    assert world.state.rows("SELECT * FROM aggregates") == []
    world.runtime.held_lanes.clear()
    world.step()
    assert later.ready
    assert len(world.state.rows("SELECT * FROM aggregates")) == 1


def test_trimmed_events_do_not_count_back(world: CursusBroker) -> None:
    for version in (1, 2, 3):
        add(world, b"a", version)
    world.topics.trim(AT, 2)
    world.topics.settle()
    assert extent(world, b"a").version == 3
    assert add(world, b"a", 3) == Conflict(3)


def test_the_index_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "INDEX_BYTES_MAX", 700)
    with opened(tmp_path) as world:
        add(world, b"a", 1)
        add(world, b"b", 1)
        with pytest.raises(Overloaded, match="602 of 700"):
            add(world, b"c", 1)
        add(world, b"a", 2)
        world.topics.delete("events")
        world.topics.create(TopicSpec(name="events", partitions=1))
        add(world, b"c", 1)


def test_a_deleted_topic_is_not_charged_for_what_is_read_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "INDEX_BYTES_MAX", 1_300)
    with opened(tmp_path) as world:
        for _ in range(2):
            world.log.append(AT, memoryview(event(b"a", 1, bytes(100_000))))
        world.aggregates.extent(AT, b"a")  # read in several turns, of which one is over
        world.topics.delete("events")
        world.topics.create(TopicSpec(name="events", partitions=3))
        for key in (b"b", b"c"):
            world.log.append(AT, memoryview(event(key, 1)))
        world.step()
        add(world, b"d", 1)
        add(world, b"e", 1)
        with pytest.raises(Overloaded, match="1204 of 1300"):
            add(world, b"f", 1)


def test_aggregates_of_one_client_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "INDEX_BYTES_MAX", 1_300)
    with opened(tmp_path) as world:
        add(world, b"a", 1, "User:eve")
        add(world, b"b", 1, "User:eve")
        with pytest.raises(Overloaded, match="principal_share_percent"):
            add(world, b"c", 1, "User:eve")
        add(world, b"b", 2, "User:eve")
        add(world, b"d", 1, "User:bob")
        world.topics.delete("events")
        world.topics.create(TopicSpec(name="events", partitions=1))
        add(world, b"c", 1, "User:eve")
        add(world, b"d", 1, "User:eve")
        with pytest.raises(Overloaded):
            add(world, b"e", 1, "User:eve")
    again = CursusBroker(tmp_path)
    add(again, b"e", 1, "User:eve")  # aggregates of an earlier life count for the total only
    assert add(again, b"c", 2, "User:bob")
    again.close()


def test_events_published_as_batches_leave_room_for_other_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the log says which client made them."""
    monkeypatch.setattr(aggregates, "INDEX_BYTES_MAX", 1_300)
    with opened(tmp_path) as world:
        world.topics.create(TopicSpec(name="others", partitions=1))
        for key in (b"a", b"b", b"c"):
            world.log.append(Partition("others", 0), memoryview(event(key, 1)))
        later = world.aggregates.extent(Partition("others", 0), b"a")
        world.step()
        with pytest.raises(Overloaded, match="topic 'others' has 602 of the 650"):
            later.check()
        add(world, b"a", 1)
    again = CursusBroker(tmp_path)
    assert add(again, b"b", 1)
    again.close()


def test_snapshots(world: CursusBroker) -> None:
    world.aggregates.save_snapshot("events", b"a", Snapshot(1, b"old"))
    world.aggregates.save_snapshot("events", b"a", Snapshot(2, b"new"))
    later = world.aggregates.snapshot("events", b"a")
    world.step()
    assert later.value == Snapshot(2, b"new")
    large = Snapshot(1, bytes(aggregates.SNAPSHOT_BYTES_MAX + 1))
    with pytest.raises(RecordTooLarge):
        world.aggregates.save_snapshot("events", b"a", large)


def test_a_missing_partition_is_refused(world: CursusBroker) -> None:
    with pytest.raises(BrokerError):
        world.aggregates.extent(Partition("nope", 0), b"a")


def test_looking_up_needs_the_file(world: CursusBroker) -> None:
    later = world.state.look_up("SELECT nothing FROM nowhere")
    world.step()
    with pytest.raises(StorageFailed):
        _ = later.value


def test_members_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rosters, "MEMBERS_MAX", 2)
    monkeypatch.setattr(shared_rosters, "MEMBERS_TOTAL_MAX", 3)
    with opened(tmp_path) as world:
        rosters = world.rosters
        first, _ = rosters.join("g", "events", "a")
        rosters.join("g", "events", "b")
        with pytest.raises(GroupFull):
            rosters.join("g", "events", "c")
        rosters.join("h", "events", "a")
        with pytest.raises(Overloaded):
            rosters.join("i", "events", "a")
        rosters.leave("g", "events", first.member_id)
        rosters.join("i", "events", "a")


def test_groups_nobody_is_in_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rosters, "ROSTERS_MAX", 2)
    world = CursusBroker(tmp_path, offsets_retention_minutes=1)
    world.topics.create(TopicSpec(name="events", partitions=3))
    rosters = world.rosters
    rosters.register("old", "events")
    world.advance(61_000)
    rosters.register("new", "events")
    rosters.register("newer", "events")
    assert {group for group, _ in rosters.all()} == {"new", "newer"}
    with pytest.raises(Overloaded):
        rosters.register("newest", "events")
    world.close()


def test_dead_members_go_together(world: CursusBroker) -> None:
    rosters = world.rosters
    for name in ("a", "b", "c"):
        share, _ = rosters.join("g", "events", name)
    world.advance(20_000)
    rosters.heartbeat("g", "events", share.member_id, 3)
    world.advance(20_000)
    view = rosters.view("g", "events")
    assert [member.member_id for member in view.members] == [share.member_id]
    assert view.generation == 4
    assert list(view.members[0].partitions) == [0, 1, 2]


def test_a_broker_without_it_refuses_by_name() -> None:
    assert UNSOURCED.producers.epoch(b"p") is None
    assert UNSOURCED.producers.who(b"p", 1) == Identity(-1, -1)
    assert UNSOURCED.rosters.topics("g") == ()
    assert UNSOURCED.rosters.all() == ()
    assert UNSOURCED.options.get("t") == {}
    with pytest.raises(ProducerFenced):
        UNSOURCED.producers.enter(b"p", 1)
    for call in (
        lambda: UNSOURCED.rosters.register("g", "t"),
        lambda: UNSOURCED.rosters.join("g", "t", "m"),
        lambda: UNSOURCED.rosters.leave("g", "t", "m"),
        lambda: UNSOURCED.rosters.view("g", "t"),
    ):
        with pytest.raises(GroupNotFound):
            call()
    with pytest.raises(BrokerError, match="keeps no aggregates"):
        UNSOURCED.aggregates.extent(AT, b"k")


def test_one_principal_cannot_take_all_groups_and_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rosters, "ROSTERS_MAX", 4)
    monkeypatch.setattr(shared_rosters, "MEMBERS_TOTAL_MAX", 6)
    with opened(tmp_path) as world:
        rosters = world.rosters
        for group in ("a", "b"):
            rosters.register(group, "events", "User:eve")
        rosters.register("a", "events", "User:eve")
        with pytest.raises(Overloaded, match="groups that read topics: User:eve has 2 of the 2"):
            rosters.register("c", "events", "User:eve")
        for name in ("m", "n", "o"):
            rosters.join("a", "events", name, owner="User:eve")
        with pytest.raises(Overloaded, match="members of groups: User:eve has 3 of the 3"):
            rosters.join("a", "events", "p", owner="User:eve")
        rosters.join("c", "events", "p", owner="User:bob")
        rosters.leave("a", "events", "m")
        rosters.join("a", "events", "p", owner="User:eve")
        world.advance(120_000)
        rosters.join("a", "events", "q", owner="User:eve")  # those that were silent have left
        world.topics.delete("events")
        world.topics.create(TopicSpec(name="events", partitions=1))
        rosters.register("d", "events", "User:eve")
        world.step()
    again = CursusBroker(tmp_path)
    again.rosters.register("e", "events", "User:eve")
    again.rosters.register("f", "events", "User:eve")
    with pytest.raises(Overloaded, match="principal_share_percent"):
        again.rosters.register("g", "events", "User:eve")
    again.rosters.register("g", "events", "User:bob")
    again.close()


def test_members_share_all_partitions_as_neighbours(world: CursusBroker) -> None:
    rosters = world.rosters
    world.topics.create(TopicSpec(name="wide", partitions=17))
    ids = [rosters.join("g", "wide", f"m{number}")[0].member_id for number in range(25)]
    while ids:
        shares = {
            member.member_id: member.partitions for member in rosters.view("g", "wide").members
        }
        assert list(shares) == sorted(ids)
        assert [index for share in shares.values() for index in share] == list(range(17))
        assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1
        generation = rosters.view("g", "wide").generation
        assert rosters.sync("g", "wide", ids[0], generation).partitions == shares[ids[0]]
        rosters.leave("g", "wide", ids.pop(len(ids) // 2))


def test_many_silent_members_are_removed_over_several_turns(world: CursusBroker) -> None:
    rosters = world.rosters
    for number in range(1_200):
        rosters.join("g", "events", f"m{number}")
    kept = rosters.join("g", "events", "kept")[0]
    generation = kept.generation
    world.advance(20_000)
    rosters.sync("g", "events", kept.member_id, generation)
    world.advance(20_000)
    view = rosters.view("g", "events")
    assert [member.member_id for member in view.members] == [kept.member_id]
    assert view.generation == generation + 3
