"""The directories of topics: made and removed a few at a time, on disks that refuse."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest
from step_runtime import StepRuntime
from topic_lives import OpenLife, directories

from pentalog.broker.port import TopicSpec
from pentalog.broker.sites import DIRECTORIES_PER_TURN
from pentalog.config import Config
from pentalog.log.directories import StoreError
from pentalog.log.files import Handle, RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.errors import InvalidPartitions, StorageFailed, StorageFull, TopicNotFound
from pentalog.model.types import Partition


class FailingFiles(RealFiles):
    """A disk on which one directory cannot be made."""

    def make_directory(self, path: Path) -> None:
        if path.name == "a-2":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().make_directory(path)


def test_a_partition_that_cannot_be_made_undoes_the_others(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    life = live(files=FailingFiles())
    with pytest.raises(StorageFull, match="topic 'a'"):
        life.topics.create(TopicSpec(name="a", partitions=4))
    life.topics.create(TopicSpec(name="b", partitions=4))
    runtime.run()
    assert [topic.name for topic in life.topics.all()] == ["b"]
    assert directories(tmp_path) == {f"b-{index}" for index in range(4)}
    assert [topic.name for topic in live().topics.all()] == ["b"]


class Unwritable(RealFiles):
    """A disk on which one directory can be made, and nothing be written to the files in it."""

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        if file.path.parent.name == "a-0":
            raise OSError(errno.ENOSPC, "No space left on device", str(file.path))
        super().write(file, data, position)


def test_a_directory_that_cannot_be_filled_is_removed_again(live: OpenLife, tmp_path: Path) -> None:
    life = live(files=Unwritable())
    with pytest.raises(StorageFull, match="topic 'a'"):
        life.topics.create(TopicSpec(name="a"))
    assert directories(tmp_path) == set()
    assert live().topics.all() == ()


class FewFiles(RealFiles):
    """A process that may open no more files when it comes to the log of one partition."""

    full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if path.parent.name == "a-9" and path.suffix == ".log":
            self.full = True
        if self.full:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return super().open(path, create=create, writable=writable)

    def remove_directory(self, path: Path) -> None:
        if self.full:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        super().remove_directory(path)


def test_files_that_cannot_be_opened_leave_no_topic(live: OpenLife, runtime: StepRuntime) -> None:
    files = FewFiles()
    life = live(files=files)
    with pytest.raises(StorageFailed, match="raise that limit"):
        life.topics.create(TopicSpec(name="a", partitions=20))
    runtime.run()
    files.full = False
    assert live().topics.all() == ()


def test_no_more_partitions_are_made_than_the_next_start_can_open(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    life = live()
    life.store.files_max = 40
    life.topics.create(TopicSpec(name="a", partitions=10))
    prepared = life.topics.prepare(TopicSpec(name="b", partitions=15))
    for refused in (
        lambda: life.topics.create(TopicSpec(name="c", partitions=6)),
        lambda: life.topics.prepare(TopicSpec(name="c", partitions=20)),
        lambda: life.topics.grow("a", 16),
    ):
        with pytest.raises(InvalidPartitions, match=r"room for 5 more.*ulimit"):
            refused()
    runtime.run()
    assert prepared.ready
    life.topics.create(TopicSpec(name="b", partitions=15))
    life.topics.grow("a", 15)
    assert len(directories(tmp_path)) == 30


def test_a_start_that_could_not_open_every_partition_says_so(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    live().topics.create(TopicSpec(name="a", partitions=8))
    live().store.close()
    store = Store(tmp_path, RealFiles(), runtime, Metrics(), Config(data=tmp_path))
    store.files_max = 7
    with pytest.raises(StoreError, match=r"holds 8 partitions.*there may be 7; .*ulimit"):
        store.open()
    store.close()


def test_a_directory_with_nothing_in_it_is_no_topic(live: OpenLife, tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()
    (tmp_path / "notes-1").write_text("somebody's")
    life = live()
    assert life.topics.all() == ()
    life.topics.create(TopicSpec(name="a", partitions=2))
    assert directories(tmp_path) == {"a-0", "a-1", "notes-1"}


def test_directories_without_an_id_get_one(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    live().topics.create(TopicSpec(name="a", partitions=2))
    runtime.run()
    live()
    (tmp_path / "a-1" / "partition.metadata").unlink()
    life = live()
    assert set(life.store.found().values()) == {life.topics.get("a").topic_id}
    life = live()
    assert set(life.store.found().values()) == {life.topics.get("a").topic_id}


def made_in_each_turn(runtime: StepRuntime, tmp_path: Path) -> list[int]:
    """How many directories came or went in each turn of the loop, until nothing is due."""
    found = []
    while runtime._due:
        before = len(directories(tmp_path))
        runtime._due.popleft()()
        found.append(abs(len(directories(tmp_path)) - before))
    return found


def test_a_large_topic_is_prepared_some_directories_per_turn(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    runtime.run()
    count = 10 * DIRECTORIES_PER_TURN
    spec = TopicSpec(name="large", partitions=count)
    ready = topics.prepare(spec)
    assert topics.prepare(spec) is ready
    assert not ready.ready
    assert len(directories(tmp_path)) <= DIRECTORIES_PER_TURN
    assert max(made_in_each_turn(runtime, tmp_path)) <= DIRECTORIES_PER_TURN
    assert ready.ready
    with pytest.raises(TopicNotFound):
        topics.get("large")
    topic = topics.create(dataclasses.replace(spec, settings={"retention.ms": "7"}))
    assert len(directories(tmp_path)) == count
    found = live().topics
    assert found.get("large") == topic
    assert found._store.get(Partition("large", 5)).settings.retention_ms == 7


def test_a_topic_that_was_only_prepared_is_gone_in_the_next_life(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    assert not topics.prepare(TopicSpec(name="large", partitions=1000)).ready
    runtime.run()
    assert len(directories(tmp_path)) == 1000
    assert live().topics.all() == ()
    assert directories(tmp_path) == set()


def test_a_topic_created_while_it_is_prepared_is_whole(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    ready = topics.prepare(TopicSpec(name="a", partitions=100))
    assert topics.create(TopicSpec(name="a", partitions=100)).partitions == 100
    assert ready.ready
    assert len(directories(tmp_path)) == 100
    other = topics.prepare(TopicSpec(name="b", partitions=100))
    topics.create(TopicSpec(name="b", partitions=2))
    assert other.ready
    runtime.run()
    assert sum(name.startswith("b-") for name in directories(tmp_path)) == 2
    assert len(live().topics.all()) == 2


def test_growth_is_prepared_and_given_up_with_the_topic(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="a", partitions=3))
    ready = topics.prepare(TopicSpec(name="a", partitions=203))
    runtime.run()
    assert ready.ready
    assert topics.get("a").partitions == 3
    topics.grow("a", 203)
    assert len(directories(tmp_path)) == 203
    topics.prepare(TopicSpec(name="a", partitions=403))
    topics.delete("a")
    runtime.run()
    assert directories(tmp_path) == set()


def test_a_large_topic_is_removed_some_directories_per_turn(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live()
    topics = life.topics
    count = 10 * DIRECTORIES_PER_TURN + 2
    topics.create(TopicSpec(name="a", partitions=count))
    runtime.run()
    left: list[int] = []
    delete = life.store.delete

    def watch(at: Partition) -> None:
        delete(at)
        if len(directories(tmp_path)) % DIRECTORIES_PER_TURN == 2:
            runtime.soon(lambda: left.append(len(directories(tmp_path))))

    monkeypatch.setattr(life.store, "delete", watch)
    topics.delete("a")
    assert len(directories(tmp_path)) == count, "the deletion is not on the disk yet"
    runtime.run()
    assert left == list(range(count - DIRECTORIES_PER_TURN, 0, -DIRECTORIES_PER_TURN))
    topics.create(TopicSpec(name="a", partitions=100))
    runtime.run()
    topics.delete("a")
    # One of the same name finds nothing of it in its way.
    topics.create(TopicSpec(name="a", partitions=5))
    assert len(directories(tmp_path)) == 5
    runtime.run()
    assert len(directories(tmp_path)) == 5
    assert live().topics.get("a").partitions == 5


def test_a_preparation_that_fails_leaves_nothing(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    class Full(RealFiles):
        left = 50

        def make_directory(self, path: Path) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().make_directory(path)

    topics = live(files=Full()).topics
    ready = topics.prepare(TopicSpec(name="a", partitions=100))
    runtime.run()
    with pytest.raises(StorageFull, match="no space left"):
        _ = ready.value
    assert directories(tmp_path) == set()


def test_a_topic_does_not_take_the_id_of_another(live: OpenLife, tmp_path: Path) -> None:
    """A directory with another topic's metadata file is set aside: two topics never share an id."""
    life = live()
    for name in ("a", "b"):
        life.topics.create(TopicSpec(name=name))
    ids = {topic.name: topic.topic_id for topic in life.topics.all()}
    life.store.close()
    metadata = [tmp_path / f"{name}-0" / "partition.metadata" for name in ("a", "b")]
    metadata[0].write_bytes(metadata[1].read_bytes())
    again = live()
    assert {topic.name: topic.topic_id for topic in again.topics.all()} == ids
    assert (tmp_path / f"{ids['b'].hex}-0.stray").is_dir()


def test_a_topic_is_created_again_after_the_deletion_of_the_last_one_is_on_the_disk(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    life = live()
    life.topics.create(TopicSpec(name="a"))
    runtime.run()
    life.topics.delete("a")
    prepared = life.topics.prepare(TopicSpec(name="a"))
    assert not prepared.ready
    assert directories(tmp_path) == {"a-0"}, "a crash now brings the topic back"
    runtime.run()
    assert prepared.ready
    prepared.check()
