"""The internal topic of commits: what is in it, who may touch it, and what its next life finds."""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from step_runtime import StepRuntime

from pentalog.broker import offsets_topic
from pentalog.broker.groups import LocalGroups
from pentalog.broker.log import LocalLog
from pentalog.broker.offsets_topic import OffsetsTopic
from pentalog.broker.port import Committed, TopicSpec
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import LocalTopics
from pentalog.config import Config
from pentalog.log.checkpoints import CLEAN_STOP
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.errors import InvalidTopic, TopicExists, TopicNotFound
from pentalog.model.internal import INTERNAL, OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from pentalog.model.types import Horizon, Partition, Record

AT = Partition(OFFSETS_TOPIC, 0)
T0, T1 = Partition("t", 0), Partition("t", 1)


class Life:
    """One life of a broker, as far as commits go."""

    def __init__(self, directory: Path, runtime: StepRuntime) -> None:
        config = Config(data=directory)
        self.runtime = runtime
        self.store = Store(directory, RealFiles(), runtime, Metrics(), config)
        self.store.open()
        self.state = State(directory / FILE_NAME, runtime)
        self.state.open()
        self.topics = LocalTopics(self.store, self.state, runtime, config)
        self.topics.open()
        self.log = LocalLog(self.store, runtime, Metrics())
        self.groups = LocalGroups(self.state, runtime, config)
        self.groups.open()
        self.offsets = self.groups.offsets
        self.offsets.topic = OffsetsTopic(self.topics, self.store, runtime, self.offsets.entries)
        self.topics.on_deleted.append(self.groups.topic_deleted)

    def close(self) -> None:
        self.groups.close()
        self.state.close()
        self.runtime.run()
        self.store.close()
        self.runtime.run()

    def records(self) -> list[Record]:
        for _ in range(10):
            self.runtime.advance(offsets_topic.DELAY_MS)
        opened = self.log.open(AT, 0, bytes_max=1 << 20, horizon=Horizon.END).value
        found: list[Record] = []
        position = 0
        while position < len(opened.batches):
            found += [r for _, r in batch.records_of(opened.batches, position, bytes_max=1 << 20)]
            (length,) = struct.unpack_from(">i", opened.batches, position + 8)
            position += 12 + length
        return found

    def newest(self) -> dict[tuple[str, Partition], int | None]:
        """What somebody knows who has read the whole topic."""
        known: dict[tuple[str, Partition], int | None] = {}
        for record in self.records():
            assert record.key is not None
            value = record.value
            known[read_key(record.key)] = None if value is None else read_offset(value)
        return known


def read_key(key: bytes) -> tuple[str, Partition]:
    version, size = struct.unpack_from(">hh", key)
    assert version == 1
    group = key[4 : 4 + size].decode()
    (topic_size,) = struct.unpack_from(">h", key, 4 + size)
    topic = key[6 + size : 6 + size + topic_size].decode()
    (index,) = struct.unpack_from(">i", key, 6 + size + topic_size)
    assert len(key) == 10 + size + topic_size
    return group, Partition(topic, index)


def read_offset(value: bytes) -> int:
    version, offset = struct.unpack_from(">hq", value)
    assert version in (1, 3)
    return int(offset)


OpenLife = Callable[..., Life]


@pytest.fixture
def live(tmp_path: Path, runtime: StepRuntime) -> Iterator[OpenLife]:
    lives: list[Life] = []

    def start(*, killed: bool = False) -> Life:
        while lives:
            lives.pop().close()
        if killed:
            (tmp_path / CLEAN_STOP).unlink()
        lives.append(Life(tmp_path, runtime))
        return lives[-1]

    yield start
    while lives:
        lives.pop().close()


def test_there_is_none_until_somebody_looks_for_a_group(live: OpenLife) -> None:
    life = live()
    life.offsets.commit("g", {T0: Committed(5)})
    with pytest.raises(TopicNotFound):
        life.topics.get(OFFSETS_TOPIC)
    life.offsets.publish()
    assert life.topics.get(OFFSETS_TOPIC).partitions == 1
    assert life.newest() == {("g", T0): 5}, "what was committed before is in it too"


def test_it_is_made_when_there_is_room_again(
    live: OpenLife, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live()
    life.offsets.commit("g", {T0: Committed(5)})
    full = [True]
    make_directory = RealFiles.make_directory

    def make(files: RealFiles, path: Path) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        make_directory(files, path)

    monkeypatch.setattr(RealFiles, "make_directory", make)
    life.offsets.publish()
    full[0] = False
    life.offsets.publish()
    with pytest.raises(TopicNotFound):
        life.topics.get(OFFSETS_TOPIC)
    runtime.advance(offsets_topic.RETRY_MS)
    life.offsets.publish()
    assert life.newest() == {("g", T0): 5}


def test_a_directory_that_was_just_being_made_is_not_a_kafkas(
    live: OpenLife, tmp_path: Path
) -> None:
    (tmp_path / f"{OFFSETS_TOPIC}-0").mkdir()
    life = live()
    life.offsets.commit("g", {T0: Committed(5)})
    life.offsets.publish()
    assert life.newest() == {("g", T0): 5}


def test_many_offsets_are_written_over_several_turns(live: OpenLife, runtime: StepRuntime) -> None:
    life = live()
    count = 3 * offsets_topic.RECORDS_PER_BATCH + 1
    life.offsets.commit("g", {Partition("t", i): Committed(i) for i in range(count)})
    life.offsets.publish()
    # Committed and forgotten while the others are still on their way: the newest counts.
    last = Partition("t", count - 1)
    life.offsets.commit("g", {last: Committed(1_000_000)})
    life.offsets.forget("g", [Partition("t", count - 2)])
    found = life.newest()
    assert len(found) == count
    assert found["g", last] == 1_000_000
    assert found["g", Partition("t", count - 2)] is None
    assert len(life.records()) < 2 * count


def test_commits_and_what_is_forgotten(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g", {T0: Committed(5, 2, "note"), T1: Committed(7, expire_ms=99)})
    noted, expiring = life.records()
    now_ms = life.offsets.committed("g")[T0].timestamp_ms
    assert noted.value == struct.pack(">hqih4sq", 3, 5, 2, 4, b"note", now_ms)
    assert expiring.value == struct.pack(">hqhqq", 1, 7, 0, now_ms, 99)
    life.offsets.forget("g", [T0, Partition("t", 9)])
    assert life.newest() == {("g", T0): None, ("g", T1): 7}
    life.topics.create(TopicSpec(name="t", partitions=2))
    life.topics.delete("t")
    assert life.newest() == {("g", T0): None, ("g", T1): None}
    life.offsets.commit("h", {T0: Committed(1)})
    life.offsets.forget("h")
    assert life.newest()["h", T0] is None


def test_offsets_of_a_transaction_are_in_it_when_they_are_real(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.stage(1, "g", {T0: Committed(5)})
    life.offsets.stage(2, "g", {T1: Committed(6)})
    assert life.newest() == {}
    life.offsets.finish(1, commit=True)
    life.offsets.finish(2, commit=False)
    assert life.newest() == {("g", T0): 5}


def test_names_too_long_for_kafkas_form_are_left_out(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g" * 40_000, {T0: Committed(5)})
    life.offsets.commit("g", {T0: Committed(6)})
    assert life.newest() == {("g", T0): 6}


def test_nobody_else_may_write_or_delete_it(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    built = memoryview(batch.build([Record(b"v", b"k")], timestamp_ms=1))
    with pytest.raises(InvalidTopic):
        life.log.append(AT, built)
    with pytest.raises(InvalidTopic):
        life.topics.delete(OFFSETS_TOPIC)
    with pytest.raises(InvalidTopic):
        life.topics.grow(OFFSETS_TOPIC, 2)
    with pytest.raises(InvalidTopic):
        life.topics.trim(AT, 0)
    with pytest.raises(TopicExists):
        life.topics.create(TopicSpec(name=OFFSETS_TOPIC))
    assert life.newest() == {}


def test_only_those_who_ask_for_it_have_it_listed(live: OpenLife) -> None:
    life = live()
    life.topics.create(TopicSpec(name="t"))
    life.offsets.publish()
    assert [topic.name for topic in life.topics.all()] == ["t"]
    listed = life.topics.all(internal=True)
    assert [(topic.name, topic.internal) for topic in listed] == [
        (OFFSETS_TOPIC, True),
        ("t", False),
    ]


@pytest.mark.parametrize("row_lost", [False, True])
def test_the_next_life_goes_on_with_it(live: OpenLife, row_lost: bool) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g", {T0: Committed(5)})
    life.runtime.run()
    if row_lost:
        life.state.write("DELETE FROM topics")
        life.state.write("DELETE FROM topic_settings")
    second = live()
    found = second.topics.get(OFFSETS_TOPIC)
    assert found.topic_id == OFFSETS_TOPIC_ID
    assert found.overrides == INTERNAL[OFFSETS_TOPIC]
    second.offsets.publish()
    second.offsets.commit("g", {T1: Committed(6)})
    assert second.newest() == {("g", T0): 5, ("g", T1): 6}


def test_a_directory_that_kafka_left_is_left_alone(
    live: OpenLife, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / f"{OFFSETS_TOPIC}-0"
    left.mkdir()
    (left / "partition.metadata").write_text("version: 0\ntopic_id: L_9FlodxR1-BNMujRgFcCw\n")
    with caplog.at_level(logging.WARNING):
        life = live()
        life.offsets.publish()
        life.offsets.publish()
    assert sum("cannot be read as records" in text for text in caplog.messages) == 1
    life.offsets.commit("g", {T0: Committed(5)})
    assert life.offsets.committed("g")[T0].offset == 5
    assert [each.name for each in left.iterdir()] == ["partition.metadata"]


def test_only_the_newest_of_a_moment_is_written(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    for offset in range(10):
        life.offsets.commit("g", {T0: Committed(offset)})
    assert [read_offset(record.value or b"") for record in life.records()] == [9]
    life.offsets.commit("g", {T0: Committed(10)})
    assert [read_offset(record.value or b"") for record in life.records()] == [9, 10]


def test_a_clean_stop_leaves_nothing_unwritten(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g", {T0: Committed(5)})
    second = live()
    assert len(second.records()) == 1
    assert second.newest() == {("g", T0): 5}


def test_after_a_crash_everything_is_written_again(
    live: OpenLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g", {T0: Committed(5)})
    assert life.newest() == {("g", T0): 5}
    life.offsets.commit("g", {T0: Committed(6), T1: Committed(7)})
    life.runtime.run()
    # As if it had been killed before the moment was over.
    monkeypatch.setattr(OffsetsTopic, "close", lambda _: None)
    second = live(killed=True)
    assert not second.store.stopped_cleanly
    assert second.newest() == {("g", T0): 6, ("g", T1): 7}


def test_what_the_disk_refuses_is_tried_again(
    live: OpenLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live()
    life.offsets.publish()
    monkeypatch.setattr(life.store.get(AT), "failed", "no disk", raising=True)
    later = life.offsets.commit("g", {T0: Committed(5)})
    assert life.newest() == {}
    assert later.ready, "the commit itself does not depend on it"
    monkeypatch.undo()
    life.runtime.advance(offsets_topic.RETRY_MS)
    assert life.newest() == {("g", T0): 5}


def test_what_is_forgotten_is_written_before_the_state_file_forgets(live: OpenLife) -> None:
    life = live()
    life.offsets.publish()
    life.offsets.commit("g", {T0: Committed(5)})
    assert life.newest() == {("g", T0): 5}
    life.offsets.forget("g")
    end = life.store.get(AT).marks.end
    assert end == 2, "although nothing has had its turn yet"
    assert life.newest() == {("g", T0): None}


def test_a_stop_in_the_middle_of_writing_everything_writes_the_rest(live: OpenLife) -> None:
    life = live()
    count = 3 * offsets_topic.RECORDS_PER_BATCH + 1
    life.offsets.commit("g", {Partition("t", i): Committed(i) for i in range(count)})
    life.offsets.publish()
    assert len(live().newest()) == count
