"""Topics that were being made, grown or deleted at a crash: they are there wholly or not at all."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from tests.support.disks import DATA, BrokerBench, check_lives, everything

from pentalog.broker.port import TopicSpec
from pentalog.model.errors import TopicNotFound
from pentalog.model.types import Partition

EVENTS = [Partition("events", index) for index in range(3)]
ENDINGS = ["kill", "cut"]


def spec(partitions: int = 3) -> TopicSpec:
    return TopicSpec(name="events", partitions=partitions)


def write(bench: BrokerBench, at: Partition, count: int = 3) -> dict[int, bytes]:
    values = [b"%d of %d" % (number, at.index) for number in range(count)]
    return {bench.settled(value, at=at).base_offset: value for value in values}


@pytest.fixture
def bench(tmp_path: Path) -> BrokerBench:
    """A life that is not the first one on its disk."""
    bench = BrokerBench(tmp_path / "state")
    bench.topics.create(TopicSpec(name="other", partitions=1))
    bench.runtime.step()
    return bench.restart("stop")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_topic_whose_deletion_was_lost_has_all_records(bench: BrokerBench, ending: str) -> None:
    bench.topics.create(spec())
    bench.runtime.step()
    expected = {at: write(bench, at) for at in EVENTS}
    bench.runtime.held_lanes.add("state")
    bench.topics.delete("events")
    bench.runtime.advance(10_000)
    bench = bench.restart(ending, kept=everything)
    assert bench.topics.get("events").partitions == 3
    check_lives(bench, expected)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_deleted_topic_leaves_nothing(bench: BrokerBench, ending: str) -> None:
    bench.topics.create(spec())
    bench.runtime.step()
    for at in EVENTS:
        write(bench, at)
    bench.topics.delete("events")
    bench.runtime.held_lanes.add("sync")  # the files go later
    bench.runtime.step()
    # A cut brings the directories back under their old names.
    bench = bench.restart(ending)
    with pytest.raises(TopicNotFound):
        bench.topics.get("events")
    assert not [name for name in bench.names() if name.startswith("events")]
    bench.topics.create(spec())
    bench.runtime.step()
    check_lives(bench, {at: {} for at in EVENTS})


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("made", [1, 2, 3])
def test_a_topic_whose_creation_was_lost_vanishes_wholly(
    bench: BrokerBench, made: int, ending: str
) -> None:
    bench.runtime.held_lanes.add("state")
    bench.topics.create(spec(made))
    bench.runtime.step()
    bench = bench.restart(ending, kept=everything)
    with pytest.raises(TopicNotFound):
        bench.topics.get("events")
    assert not [name for name in bench.names() if name.startswith("events")]
    bench.topics.create(spec())
    bench.runtime.step()
    check_lives(bench, {at: {} for at in EVENTS})


def test_a_topic_does_not_get_the_id_of_a_creation_that_was_lost(bench: BrokerBench) -> None:
    bench.runtime.held_lanes.add("state")
    bench.topics.create(spec())
    bench.runtime.step()
    bench = bench.restart("cut", kept=everything)
    bench.topics.create(spec())
    bench.runtime.step()
    topic_id = bench.topics.get("events").topic_id
    # The new partition.metadata is not synced yet, so other files are asked for the id.
    bench = bench.restart("cut", kept=lambda path: not path.endswith("partition.metadata"))
    assert bench.topics.get("events").topic_id == topic_id
    check_lives(bench, {at: {} for at in EVENTS})


def test_partitions_whose_creation_was_lost_vanish(bench: BrokerBench) -> None:
    bench.topics.create(spec(1))
    bench.runtime.step()
    expected = {EVENTS[0]: write(bench, EVENTS[0])}
    bench.runtime.held_lanes.add("state")
    bench.topics.grow("events", 3)
    bench.runtime.step()
    bench = bench.restart("kill")
    assert bench.topics.get("events").partitions == 1
    assert "events-1" not in bench.names()
    bench.topics.grow("events", 3)
    bench.runtime.step()
    check_lives(bench, expected | {at: {} for at in EVENTS[1:]})


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_directory_of_another_topic_is_set_aside(bench: BrokerBench, ending: str) -> None:
    bench.topics.create(spec())
    bench.runtime.step()
    expected = {at: write(bench, at) for at in EVENTS}
    another = UUID(int=77)
    bench.store.identify(EVENTS[1], another)
    bench = bench.restart(ending, kept=everything)
    expected[EVENTS[1]] = {}
    assert bench.durable(EVENTS[1]) == {}
    strays = [name for name in bench.names() if name.endswith(".stray")]
    assert strays == [f"{another.hex}-1.stray"]
    assert bench.files.stat(DATA / strays[0] / f"{0:020}.log")[0] > 0, "its records are kept"
    check_lives(bench, expected)


def test_a_directory_without_an_id_is_set_aside(bench: BrokerBench) -> None:
    """The disk resisted the deletion of a topic, and a power cut took its unsynced id."""
    bench.topics.create(spec(1))
    bench.runtime.step()
    write(bench, EVENTS[0])
    bench.refuse = lambda call, path: call == "rename"
    bench.topics.delete("events")
    bench.runtime.step()
    bench.heal()
    bench.files.remove(DATA / "events-0" / "partition.metadata")
    bench = bench.restart("kill")
    with pytest.raises(TopicNotFound):
        bench.topics.get("events")
    (stray,) = [name for name in bench.names() if name.endswith(".stray")]
    assert bench.files.stat(DATA / stray / f"{0:020}.log")[0] > 0, "its records are kept"
    bench.topics.create(spec(1))
    bench.runtime.step()
    check_lives(bench, {EVENTS[0]: {}})


def test_a_directory_of_another_topic_makes_way(bench: BrokerBench) -> None:
    bench.topics.create(spec(1))
    bench.runtime.step()
    write(bench, EVENTS[0])
    topic_id = bench.topics.get("events").topic_id
    bench.refuse = lambda call, path: call == "rename"
    with pytest.raises(OSError, match="No space"):
        bench.store.delete(EVENTS[0])
    bench.heal()
    bench.store.create(EVENTS[0], UUID(int=78), bench.topics.get("events").settings)
    assert bench.durable(EVENTS[0]) == {}
    assert f"{topic_id.hex}-0.doomed" in bench.names()
    values = write(bench, EVENTS[0], 2)
    bench = bench.restart("kill")
    assert not [name for name in bench.names() if name.endswith((".doomed", ".stray"))]
    check_lives(bench, {EVENTS[0]: values})
