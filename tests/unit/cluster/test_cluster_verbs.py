"""Topics, times, waits and groups of a cluster: what doors ask of them besides records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import ClusterWorld, HeldLine, SecondGateway, values_of

from pentalog.broker.port import Committed
from pentalog.cluster import polling
from pentalog.cluster.log import ClusterLog
from pentalog.model.errors import InvalidConfig, InvalidPartitions, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Edge, Horizon, Partition
from pentalog.observation import DoorView
from pentalog.protocols.http.session import HttpSession
from pentalog.session import Address, Context

AT = Partition("events", 0)
OTHER = Partition("events", 1)
HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path)
    made.create("events", 2)
    yield made
    made.close()


def test_a_topic_is_deleted(world: ClusterWorld) -> None:
    topics = world.broker.topics
    topics.delete("events")
    world.until(topics.settle())
    with pytest.raises(TopicNotFound):
        topics.get("events")
    assert "events" not in [topic.name for topic in world.disk.topics.all()]
    with pytest.raises(TopicNotFound):
        topics.delete("events")
    world.create("events", 1)


def test_a_deletion_whose_answer_is_lost(world: ClusterWorld) -> None:
    lost: list[bytes] = []

    def trouble(frame: bytes) -> str | None:
        if frame[4:6] == b"\0\x14" and not lost:
            lost.append(frame)
            return "after"
        return None

    world.trouble = trouble
    world.broker.topics.delete("events")
    world.until(world.broker.topics.settle())
    assert lost


def test_what_others_have_deleted(world: ClusterWorld) -> None:
    world.disk.topics.delete("events")
    world.broker.topics.delete("events")
    with pytest.raises(TopicNotFound):
        world.until(world.broker.topics.settle())
    assert world.broker.topics.settle().ready


def test_a_topic_grows(world: ClusterWorld) -> None:
    topics = world.broker.topics
    with pytest.raises(InvalidPartitions):
        topics.grow("events", 2)
    topics.grow("events", 5, dry_run=True)
    assert topics.settle().ready
    topics.grow("events", 5)
    world.until(topics.settle())
    assert topics.get("events").partitions == 5
    assert world.until(world.append(Partition("events", 4), b"x")).base_offset == 0


def test_a_topic_is_configured(world: ClusterWorld) -> None:
    topics = world.broker.topics
    with pytest.raises(InvalidConfig):
        topics.configure("events", {"nothing": "1"})
    topics.configure("events", {"retention.ms": "1000", "cleanup.policy": "compact"})
    world.until(topics.settle())
    assert topics.get("events").settings.retention_ms == 1000
    assert world.disk.topics.get("events").settings.cleanup_compact
    topics.configure("events", {"retention.ms": None})
    world.until(topics.settle())
    assert topics.get("events").overrides == {"cleanup.policy": "compact"}
    topics.configure("events", {"retention.ms": "5"}, replace=True)
    world.until(topics.settle())
    assert topics.get("events").overrides == {"retention.ms": "5"}
    assert world.disk.topics.get("events").overrides == {"retention.ms": "5"}


def test_a_refusal_is_told_to_whoever_asked(world: ClusterWorld) -> None:
    """Not to the next one who changes something."""
    topics = world.broker.topics
    world.disk.topics.delete("events")
    topics.grow("events", 3)
    settled = topics.settle()
    world.create("other", 1)
    topics.grow("other", 2)
    world.until(topics.settle())
    with pytest.raises(TopicNotFound):
        world.until(settled)


def test_the_beginning_is_given_up(world: ClusterWorld) -> None:
    for value in (b"a", b"b", b"c"):
        world.until(world.append(AT, value))
    assert world.broker.topics.trim(AT, 2) == 2
    world.until(world.broker.topics.settle())
    world.until(world.broker.knowledge.partitions("events"))
    assert world.broker.log.marks(AT).start == 2
    assert world.disk.broker.log.marks(AT).start == 2


def test_offsets_by_time(world: ClusterWorld) -> None:
    log, knowledge = world.broker.log, world.broker.knowledge
    start_ms = world.runtime.now_ms()
    for value in (b"a", b"b", b"c"):
        world.append(AT, value)
        world.until(world.broker.knowledge.partitions("events"))
        world.runtime.advance(HOUR_MS)
    wanted: list[tuple[Edge | int, int]] = [
        (0, 0),
        (start_ms + HOUR_MS // 2, 1),
        (start_ms + 10 * HOUR_MS, -1),
        (Edge.NEWEST_TIMESTAMP, 2),
    ]
    for when, offset in wanted:
        world.until(knowledge.located(AT, when))
        assert log.locate(AT, when).value[0] == offset
    world.until(knowledge.partitions("events"))
    assert log.locate(AT, Edge.END).value == (3, -1)


def test_a_wait_ends_with_what_is_written(world: ClusterWorld) -> None:
    log = world.broker.log
    waiting = log.wait({AT: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000)
    pass_time(world, 3 * polling.POLL_MS)
    assert not waiting.ready
    asked: list[bytes] = []
    world.trouble = lambda frame: asked.append(frame) if frame[4:6] == b"\0\x01" else None
    written = SecondGateway(world)
    world.until(_append(world, written, b"a"))
    assert world.until(waiting) is True
    assert log.marks(AT).end == 1
    # What ended the wait is what is read next: nobody is asked again.
    asked.clear()
    opened = log.open(AT, 0, bytes_max=1 << 20, horizon=Horizon.STABLE)
    assert opened.ready
    assert values_of(opened.value.batches) == [(0, b"a")]
    assert not asked


def test_waits_that_end_without_records(world: ClusterWorld) -> None:
    log = world.broker.log
    waits = [
        log.wait({AT: 0}, bytes_min=1, horizon=horizon, timeout_ms=2_500)
        for horizon in (Horizon.STABLE, Horizon.DURABLE)
    ]
    given_up = log.wait({AT: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=2_500)
    pass_time(world, 2_000)
    given_up.cancel()
    pass_time(world, 1_000)
    assert [wait.value for wait in waits] == [False, False]
    assert not given_up.ready


def test_a_wait_without_time_asks_the_cluster_nothing(world: ClusterWorld) -> None:
    asked: list[bytes] = []
    world.trouble = lambda frame: asked.append(frame) if frame[4:6] == b"\0\x01" else None
    for at in (AT, Partition("nothing", 0)):
        waiting = world.broker.log.wait({at: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=0)
        assert waiting.value is False
    pass_time(world, 1_000)
    assert not asked


def test_what_a_leader_acknowledged_is_waited_for(world: ClusterWorld) -> None:
    log = world.broker.log
    assert isinstance(log, ClusterLog)
    log._bounds.acknowledged(AT, 1)
    assert log.ends([AT, Partition("nothing", 0)]).value == {AT: 1}
    waits = [
        log.wait({AT: offset}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=0)
        for offset in (0, 1)
    ]
    assert [wait.ready for wait in waits] == [False, True]
    world.until(world.append(AT, b"a"))
    assert world.until(waits[0]) is True


def test_many_wait_for_the_same_node(world: ClusterWorld) -> None:
    """More than there are connections for it."""
    log = world.broker.log
    waits = []
    for _ in range(3 * polling.CONNECTIONS_MAX):
        waits.append(log.wait({OTHER: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000))
        pass_time(world, 30)
    assert len(world.wires) <= polling.CONNECTIONS_MAX + 3
    world.until(world.append(OTHER, b"a"))
    assert [world.until(wait) for wait in waits] == [True] * len(waits)


def test_a_wait_beyond_the_end(world: ClusterWorld) -> None:
    waiting = world.broker.log.wait({AT: 2}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000)
    for value in (b"a", b"b"):
        world.until(world.append(AT, value))
        pass_time(world, 2_000)
        assert not waiting.ready
    world.until(world.append(AT, b"c"))
    assert world.until(waiting) is True


def test_waits_over_broken_connections(world: ClusterWorld) -> None:
    waiting = world.broker.log.wait(
        {AT: 0, OTHER: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000
    )
    pass_time(world, 100)
    for wire in list(world.wires):
        wire.lose()
    pass_time(world, 3_000)
    assert not waiting.ready
    world.until(world.append(OTHER, b"a"))
    assert world.until(waiting) is True


def test_a_wait_ends_when_its_topic_does(world: ClusterWorld) -> None:
    waiting = world.broker.log.wait({AT: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000)
    world.broker.topics.delete("events")
    world.until(world.broker.topics.settle())
    assert world.until(waiting) is True


def test_groups_and_what_they_forget(world: ClusterWorld) -> None:
    offsets, knowledge = world.broker.groups.offsets, world.broker.knowledge
    world.until(offsets.commit("readers", {AT: Committed(1), OTHER: Committed(2)}))
    other = SecondGateway(world).broker
    world.until(other.knowledge.groups())
    assert other.groups.offsets.groups() == {"readers"}
    world.until(other.knowledge.offsets("readers"))
    found = other.groups.offsets.committed("readers")
    assert {at: committed.offset for at, committed in found.items()} == {AT: 1, OTHER: 2}
    world.until(other.groups.offsets.forget("readers", (AT,)))
    world.until(knowledge.offsets("readers"))
    assert list(offsets.committed("readers")) == [OTHER]
    world.until(offsets.forget("readers"))
    world.until(offsets.forget("strangers"))
    world.until(other.knowledge.offsets("readers"))
    assert not other.groups.offsets.committed("readers")


def _append(world: ClusterWorld, gateway: SecondGateway, value: bytes) -> Later[object]:
    ours, world.broker = world.broker, gateway.broker
    try:
        world.until(gateway.broker.knowledge.topic("events"))
        return world.append(AT, value)  # type: ignore[return-value]
    finally:
        world.broker = ours


def pass_time(world: ClusterWorld, time_ms: int) -> None:
    for _ in range(time_ms // 20):
        world.runtime.advance(20)
        world.runtime.run()


def test_copies_are_the_clusters_own_business(world: ClusterWorld) -> None:
    world.broker.topics.configure("events", {"min.insync.replicas": "2"})
    world.until(world.broker.topics.settle())
    topic = world.broker.topics.get("events")
    assert topic.overrides["min.insync.replicas"] == "2"
    assert topic.settings.insync_replicas_min == 1


def test_what_is_observed_of_a_cluster(world: ClusterWorld) -> None:
    world.until(world.append(AT, b"a", b"b", b"c"))
    world.until(world.broker.groups.offsets.commit("readers", {AT: Committed(1)}))
    other = SecondGateway(world)
    line = HeldLine()
    context = Context(
        broker=other.broker,
        runtime=world.runtime,
        config=world.config,
        metrics=world.metrics,
        peer="test",
        listener="http",
        advertised=lambda endpoint: Address("localhost", 1),
        observation=NothingToSee(),  # type: ignore[arg-type]
    )
    session = HttpSession(context, line)
    session.receive(memoryview(bytearray(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")))
    for _ in range(20):
        world.runtime.advance(50)
    told = line.sent().decode()
    assert 'pentalog_topic_records_total{topic="events"} 3' in told
    assert 'pentalog_group_lag_records{group="readers",topic="events",partition="0"} 2' in told
    assert "__pentalog_state" not in told


class NothingToSee:
    """An `Observation` of a server without connections."""

    started_ms = 0
    ready = True
    console_key = "secret"

    def doors(self) -> list[DoorView]:
        return []
