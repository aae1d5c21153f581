"""Writes to a cluster: acknowledged once it has them, there once, in order; whatever breaks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import ClusterWorld, is_produce, refused_produce, values_of

from pentalog.broker.port import Committed, TopicSpec
from pentalog.cluster import fleet, writing
from pentalog.cluster.engine import DESCRIBE_INTERVAL_MS
from pentalog.model import batch
from pentalog.model.errors import (
    NotEnoughReplicas,
    Overloaded,
    RecordTooLarge,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Partition, Record

NOT_LEADER = 6
MESSAGE_TOO_LARGE = 10
REFUSALS = (3, 6, 7, 10, 19)
AT = Partition("events", 0)
OTHER = Partition("events", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path)
    made.create("events", 2)
    yield made
    made.close()


def test_what_is_written_comes_back(world: ClusterWorld) -> None:
    first = world.append(AT, b"a", b"b")
    second = world.append(AT, b"c")
    assert not first.ready
    assert world.until(first)[1:3] == (0, 2)
    assert world.until(second)[1:3] == (2, 3)
    world.until(world.broker.knowledge.partitions("events"))
    assert world.broker.log.marks(AT) == (0, 3, 3, 3)
    assert world.broker.log.marks(OTHER) == (0, 0, 0, 0)
    reading = world.broker.log.open(AT, 1, bytes_max=1 << 20, horizon=Horizon.STABLE)
    opened = world.until(reading)
    assert opened.next_offset == 3
    assert values_of(opened.batches) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert world.kept(AT) == [b"a", b"b", b"c"]
    assert (world.passed.appended_batches, world.passed.appended_records) == (2, 3)
    assert world.passed.read_bytes > 0


def test_marks_hold_what_was_appended_before(world: ClusterWorld) -> None:
    world.append(AT, b"a", b"b")
    world.until(world.broker.knowledge.partitions("events", (0,)))
    assert world.broker.log.marks(AT).end == 2


@pytest.mark.parametrize("seed", range(6))
def test_broken_connections(world: ClusterWorld, seed: int) -> None:
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * 10]
    world.trouble = lambda frame: dice.choice(chances)
    asked = _write_much(world, dice)
    for at in (AT, OTHER):
        values: list[bytes] = []
        for written, later in asked[at]:
            assert world.until(later)[1:3] == (len(values), len(values) + len(written))
            values += written
        assert world.kept(at) == values


@pytest.mark.parametrize("seed", range(8))
def test_broken_connections_and_refusals(world: ClusterWorld, seed: int) -> None:
    """What is acknowledged is there once and in order; what is refused is there once or not."""
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * dice.randint(6, 30)]

    def trouble(frame: bytes) -> str | bytes | None:
        if is_produce(frame) and dice.random() < 0.1:
            return refused_produce(frame, dice.choice(REFUSALS))
        return dice.choice(chances)

    world.trouble = trouble
    asked = _write_much(world, dice)
    for at in (AT, OTHER):
        bases = []
        for written, later in asked[at]:
            try:
                base = world.until(later).base_offset
            except (RecordTooLarge, StorageFailed, TopicNotFound, NotEnoughReplicas):
                continue
            bases.append(base)
            assert world.kept(at)[base : base + len(written)] == written
        assert bases == sorted(set(bases))
        counts = Counter(world.kept(at))
        assert all(counts[written[0]] in (0, len(written)) for written, _ in asked[at])


def _write_much(
    world: ClusterWorld, dice: random.Random
) -> dict[Partition, list[tuple[list[bytes], Later[Appended]]]]:
    asked: dict[Partition, list[tuple[list[bytes], Later[Appended]]]] = {AT: [], OTHER: []}
    for number in range(80):
        at = dice.choice((AT, OTHER))
        values = [b"%d" % number] * dice.randint(1, 3)
        asked[at].append((values, world.append(at, *values)))
        if dice.random() < 0.3:
            world.runtime.run()
    return asked


def test_a_leader_that_has_moved(world: ClusterWorld) -> None:
    left = [3]

    def moved(frame: bytes) -> bytes | None:
        if not is_produce(frame) or not left[0]:
            return None
        left[0] -= 1
        return refused_produce(frame, NOT_LEADER)

    world.trouble = moved
    asked = [world.append(AT, b"%d" % number) for number in range(8)]
    for number, later in enumerate(asked):
        assert world.until(later).base_offset == number
    assert world.kept(AT) == [b"%d" % number for number in range(8)]


def test_a_node_that_wants_to_be_left_alone(world: ClusterWorld) -> None:
    asked_s: list[float] = []

    def throttled(frame: bytes) -> bytes | None:
        if not is_produce(frame):
            return None
        asked_s.append(world.runtime.monotonic())
        return refused_produce(frame, NOT_LEADER, 700) if len(asked_s) == 1 else None

    world.trouble = throttled
    world.until(world.append(AT, b"x"))
    assert len(asked_s) == 2
    assert asked_s[1] - asked_s[0] >= 0.7
    assert world.kept(AT) == [b"x"]


def test_one_refused_among_others_on_the_way(world: ClusterWorld) -> None:
    world.until(world.append(AT, b"first"))

    def refused(frame: bytes) -> bytes | None:
        return refused_produce(frame, MESSAGE_TOO_LARGE) if b"bad" in frame else None

    world.trouble = refused
    values = [b"1", b"bad", b"2", b"3", b"4", b"5", b"6", b"7"]
    asked = [world.append(AT, value) for value in values]
    for value, later in zip(values, asked, strict=True):
        if value == b"bad":
            with pytest.raises(RecordTooLarge):
                world.until(later)
        else:
            world.until(later)
    assert world.kept(AT) == [b"first", b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_refused_batch_and_a_broken_connection(world: ClusterWorld) -> None:
    broken = [True]

    def trouble(frame: bytes) -> str | bytes | None:
        if b"bad" in frame:
            return refused_produce(frame, MESSAGE_TOO_LARGE)
        if b"cut" in frame and broken.pop() is True:
            broken.append(False)
            return "after"
        if not broken:
            broken.append(False)
        return None

    world.trouble = trouble
    asked = [world.append(AT, value) for value in (b"1", b"bad", b"2", b"cut", b"3")]
    with pytest.raises(RecordTooLarge):
        world.until(asked[1])
    for later in (asked[0], asked[2], asked[3], asked[4]):
        world.until(later)
    assert sorted(world.kept(AT)) == [b"1", b"2", b"3", b"cut"]


def test_nothing_is_acknowledged_while_the_cluster_is_away(world: ClusterWorld) -> None:
    world.until(world.append(AT, b"before"))
    world.away = True
    for wire in list(world.wires):
        wire.lose()
    asked = world.append(AT, b"lost")
    world.runtime.advance(fleet.PATIENCE_MS // 2)
    assert not asked.ready
    with pytest.raises(StorageFailed, match="may be there or not"):
        world.until(asked)
    with pytest.raises(Overloaded):
        world.until(world.broker.knowledge.topics())
    world.away = False
    assert world.until(world.append(AT, b"found")).base_offset == 1
    assert world.kept(AT) == [b"before", b"found"]


def test_a_connection_on_which_nothing_comes_any_more(world: ClusterWorld) -> None:
    """A node without power closes nothing; there is patience left to ask whoever follows it."""
    world.until(world.append(AT, b"a"))
    silenced: list[bytes] = []

    def trouble(frame: bytes) -> str | None:
        if is_produce(frame) and not silenced:
            silenced.append(frame)
            return "silence"
        return None

    world.trouble = trouble
    world.runtime.advance(fleet.REQUEST_TIMEOUT_MS - 1_000)
    laters = [world.append(AT, b"%d" % each) for each in range(3)]
    for place, later in enumerate(laters, 1):
        assert world.until(later)[1] == place
    assert silenced
    assert world.kept(AT) == [b"a", b"0", b"1", b"2"]


def test_nobody_waits_for_the_patience_of_others(world: ClusterWorld) -> None:
    """What stands in line behind a batch without an answer is refused when its own time is up."""
    world.until(world.append(AT, b"a"))
    world.trouble = lambda frame: "silence" if is_produce(frame) else None
    flying: list[Later[Appended]] = []
    for _ in range(2):
        flying += [world.append(AT, b"x") for _ in range(writing.IN_FLIGHT_MAX)]
        world.runtime.run()
        world.runtime.advance(1_000)
    began_ms = world.runtime.time_ms
    behind = world.append(AT, b"behind")
    with pytest.raises(StorageFailed, match="it may be there or not"):
        world.until(behind)
    assert world.runtime.time_ms - began_ms <= fleet.PATIENCE_MS + 2_000
    for later in flying:
        with pytest.raises(StorageFailed):
            world.until(later)
    world.trouble = lambda frame: None
    world.until(world.append(AT, b"b"))
    assert world.kept(AT) == [b"a", b"b"]


def test_a_mistake_of_one_does_not_stop_the_others(world: ClusterWorld) -> None:
    def stumble(_: Later[Appended]) -> None:
        raise ZeroDivisionError

    first, second = world.append(AT, b"a"), world.append(OTHER, b"b")
    first.then(stumble)
    with pytest.raises(ZeroDivisionError):
        world.runtime.run()
    world.until(second)
    world.until(world.append(AT, b"c"))
    assert world.kept(AT) == [b"a", b"c"]
    assert world.kept(OTHER) == [b"b"]


def test_what_waits_for_the_cluster_is_limited(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "QUEUED_BYTES_MAX", 1000)
    world.append(AT, b"x" * 800)
    with pytest.raises(Overloaded, match="bytes wait"):
        world.append(AT, b"x" * 800)
    world.runtime.run()
    world.until(world.append(AT, b"x" * 800))


def test_one_batch_at_a_time(world: ClusterWorld) -> None:
    two = batch.build([Record(b"a")], timestamp_ms=0) + batch.build([Record(b"b")], timestamp_ms=0)
    with pytest.raises(RecordTooLarge, match="one batch"):
        world.broker.log.append(AT, memoryview(two))
    with pytest.raises(RecordTooLarge):
        world.append(AT, bytes(2 << 20))
    with pytest.raises(TopicNotFound):
        world.append(Partition("nothing", 0), b"x")


def test_an_ack_of_nobody_is_given_at_once(world: ClusterWorld) -> None:
    assert world.append(AT, b"x", ack=Ack.NONE).ready
    world.runtime.run()
    assert world.kept(AT) == [b"x"]


def test_topics_of_others_are_found(world: ClusterWorld) -> None:
    theirs = TopicSpec(name="theirs", partitions=1)
    world.disk.topics.create(theirs)
    with pytest.raises(TopicNotFound):
        world.broker.topics.get("theirs")
    world.until(world.broker.knowledge.topic("theirs"))
    assert world.broker.topics.get("theirs").partitions == 1
    with pytest.raises(TopicExists):
        world.broker.topics.prepare(theirs)
    world.disk.topics.delete("theirs")
    world.until(world.broker.knowledge.topics())
    assert [topic.name for topic in world.broker.topics.all()] == ["events"]


def test_what_others_change_is_seen(world: ClusterWorld) -> None:
    world.disk.topics.grow("events", 3)
    world.until(world.broker.knowledge.topic("events"))
    assert world.broker.topics.get("events").partitions == 2
    world.until(world.broker.knowledge.topic("events", 2))
    assert world.broker.topics.get("events").partitions == 3
    world.disk.topics.configure("events", {"max.message.bytes": "5000"})
    world.runtime.advance(DESCRIBE_INTERVAL_MS)
    world.runtime.run()
    assert world.broker.topics.get("events").settings.message_bytes_max == 5000
    with pytest.raises(RecordTooLarge):
        world.append(AT, bytes(6000))
    world.disk.topics.delete("events")
    with pytest.raises(TopicNotFound):
        world.until(world.append(AT, b"x"))


def test_offsets_are_the_clusters(world: ClusterWorld) -> None:
    offsets = world.broker.groups.offsets
    world.until(offsets.commit("readers", {AT: Committed(7)}))
    assert world.disk.broker.groups.offsets.committed("readers")[AT].offset == 7
    world.disk.broker.groups.offsets.commit("readers", {AT: Committed(9)})
    world.until(world.broker.knowledge.offsets("readers", (AT,)))
    assert offsets.committed("readers", (AT,))[AT].offset == 9
    with pytest.raises(TopicNotFound):
        world.until(offsets.commit("readers", {Partition("nothing", 0): Committed(1)}))


def test_the_health_of_a_cluster(world: ClusterWorld) -> None:
    assert world.until(world.engine.probe()) == ""
    world.away = True
    for wire in list(world.wires):
        wire.lose()
    first, second = world.engine.probe(), world.engine.probe()
    assert first is second
    assert "does not answer" in world.until(first)
    world.away = False
    world.runtime.advance(2_000)
    assert world.until(world.engine.probe()) == ""
