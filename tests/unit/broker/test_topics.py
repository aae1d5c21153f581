"""Topics over a real store: creating, changing, deleting, and the next life of the broker."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from step_runtime import StepRuntime
from topic_lives import Life, OpenLife, directories

from pentalog import kernels
from pentalog.broker.port import TopicSpec
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import DELETED_KEPT_MS, PARTITIONS_MAX
from pentalog.model import batch
from pentalog.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    PartitionNotFound,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from pentalog.model.types import Partition, Record


def test_a_created_topic_is_there_with_its_directories(live: OpenLife, tmp_path: Path) -> None:
    topics = live().topics
    before = topics.version
    topic = topics.create(TopicSpec(name="a", partitions=3, settings={"retention.ms": "5"}))
    assert topic.partitions == 3
    assert topic.settings.retention_ms == 5
    assert topics.get("a") == topics.by_id(topic.topic_id) == topic
    assert topics.version > before
    assert directories(tmp_path) == {"a-0", "a-1", "a-2"}


def test_topics_survive(live: OpenLife, runtime: StepRuntime) -> None:
    first = live().topics
    first.create(TopicSpec(name="a", partitions=3, settings={"cleanup.policy": "compact"}))
    first.create(TopicSpec(name="b"))
    settled = first.settle()
    runtime.run()
    assert settled.ready
    second = live().topics
    assert second.all() == first.all()
    assert [topic.name for topic in second.all()] == ["a", "b"]


def test_settled_only_when_on_the_disk(live: OpenLife, runtime: StepRuntime) -> None:
    topics = live().topics
    runtime.run()
    topics.create(TopicSpec(name="a"))
    settled = topics.settle()
    assert not settled.ready
    runtime.run()
    assert settled.ready


def test_a_dry_run_changes_nothing(live: OpenLife, tmp_path: Path) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="b"))
    version = topics.version
    planned = topics.create(TopicSpec(name="a", settings={"retention.ms": "5"}), dry_run=True)
    topics.grow("b", 3, dry_run=True)
    topics.configure("b", {"retention.ms": "5"}, dry_run=True)
    assert planned.settings.retention_ms == 5
    assert topics.version == version
    assert directories(tmp_path) == {"b-0"}
    with pytest.raises(TopicNotFound):
        topics.get("a")


@pytest.mark.parametrize("name", ["a" * 65_536, "é" * 32_768, "a\ud800", "__consumer_offsets"])
def test_bad_names_are_refused(live: OpenLife, name: str) -> None:
    with pytest.raises(InvalidTopic) as refused:
        live().topics.create(TopicSpec(name=name))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "name",
    [
        *("a", "...", "a b", "a-0", "grüße", "é" * 41, "a" * 249),
        *("", ".", "..", "a/b", "../../a", "/", "\0\n", "\x7f", "\x1b[31m", "%", "%sha256-0"),
        *("a" * 250, "é" * 42, "x" * 300, "/" * 65_535, "a" * 65_531 + ".dlq"),
    ],
    ids=lambda name: ascii(name[:20]),
)
def test_good_names_survive(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path, name: str
) -> None:
    created = live().topics.create(TopicSpec(name=name, partitions=2))
    runtime.run()
    assert live().topics.all() == (created,)
    (tmp_path / FILE_NAME).unlink()  # the directories alone tell as much
    found = live().topics.get(name)
    assert (found.topic_id, found.partitions) == (created.topic_id, 2)
    live().topics.delete(name)
    runtime.run()
    assert live().topics.all() == ()
    assert directories(tmp_path) == set()


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1])
def test_bad_partition_counts_are_refused(live: OpenLife, count: int) -> None:
    topics = live().topics
    with pytest.raises(InvalidPartitions):
        topics.create(TopicSpec(name="a", partitions=count))
    topics.create(TopicSpec(name="a"))
    with pytest.raises(InvalidPartitions):
        topics.grow("a", count)


def test_the_default_partition_count(live: OpenLife) -> None:
    assert live(partitions=4).topics.create(TopicSpec(name="a")).partitions == 4
    with pytest.raises(InvalidConfig):
        live(partitions=0)


def test_bad_settings_are_refused_and_leave_nothing(live: OpenLife, tmp_path: Path) -> None:
    topics = live().topics
    for settings in ({"retention.days": "1"}, {"retention.ms": "soon"}):
        with pytest.raises(InvalidConfig):
            topics.create(TopicSpec(name="a", settings=settings))
    assert directories(tmp_path) == set()


def test_a_topic_exists_once(live: OpenLife) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="a"))
    for dry_run in (True, False):
        with pytest.raises(TopicExists):
            topics.create(TopicSpec(name="a"), dry_run=dry_run)


def test_unknown_topics_are_refused(live: OpenLife) -> None:
    topics = live().topics
    for refused in (
        lambda: topics.get("a"),
        lambda: topics.by_id(uuid4()),
        lambda: topics.delete("a"),
        lambda: topics.grow("a", 2),
        lambda: topics.configure("a", {}),
        lambda: topics.settings("a"),
        lambda: topics.trim(Partition("a", 0), 0),
    ):
        with pytest.raises(TopicNotFound):
            refused()


def test_a_deleted_topic_stays_deleted(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    topic = topics.create(TopicSpec(name="a", partitions=2))
    version = topics.version
    topics.delete("a")
    assert topics.version > version
    assert topics.all() == ()
    with pytest.raises(TopicNotFound):
        topics.by_id(topic.topic_id)
    assert directories(tmp_path) == {"a-0", "a-1"}, "the deletion is not on the disk yet"
    runtime.run()
    assert directories(tmp_path) == set()
    assert live().topics.all() == ()


def test_a_topic_made_again_is_another_one(live: OpenLife, runtime: StepRuntime) -> None:
    topics = live().topics
    first = topics.create(TopicSpec(name="a", partitions=2, settings={"retention.ms": "5"}))
    topics.delete("a")
    second = topics.create(TopicSpec(name="a"))
    assert second.topic_id != first.topic_id
    runtime.run()
    assert live().topics.all() == (second,)


def test_growing(live: OpenLife, runtime: StepRuntime, tmp_path: Path) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="a", settings={"retention.ms": "5"}))
    version = topics.version
    topics.grow("a", 3)
    assert topics.version > version
    assert topics.get("a").partitions == 3
    assert directories(tmp_path) == {"a-0", "a-1", "a-2"}
    for count in (1, 3):
        with pytest.raises(InvalidPartitions, match="give 4 to"):
            topics.grow("a", count)
    runtime.run()
    grown = live().topics.get("a")
    assert grown.partitions == 3
    assert grown.overrides == {"retention.ms": "5"}


def test_configuring(live: OpenLife, runtime: StepRuntime) -> None:
    topics = live(defaults={"retention.ms": "9"}).topics
    topics.create(TopicSpec(name="a", settings={"retention.ms": "5", "flush.ms": "1"}))
    version = topics.version
    topics.configure("a", {"retention.ms": None, "segment.ms": " 7 "})
    assert topics.version > version
    assert topics.get("a").overrides == {"flush.ms": "1", "segment.ms": "7"}
    assert topics.get("a").settings.retention_ms == 9
    runtime.run()

    topics = live().topics
    assert topics.get("a").overrides == {"flush.ms": "1", "segment.ms": "7"}
    assert topics.get("a").settings.retention_ms == 7 * 24 * 3600 * 1000
    topics.configure("a", {"retention.ms": "6"}, replace=True)
    assert topics.get("a").overrides == {"retention.ms": "6"}
    runtime.run()
    assert live().topics.get("a").overrides == {"retention.ms": "6"}


def test_a_bad_change_of_settings_changes_nothing(live: OpenLife) -> None:
    topics = live().topics
    topic = topics.create(TopicSpec(name="a", settings={"retention.ms": "5"}))
    for changes in (
        {"flush.ms": "1", "retention.ms": "x"},
        {"flush.ms": "1", "nothing": "1"},
        {"flush.ms": "1", "nothing": None},
    ):
        for replace in (True, False):
            with pytest.raises(InvalidConfig):
                topics.configure("a", changes, replace=replace)
    assert topics.get("a") == topic


def test_settings_are_listed_with_their_defaults(live: OpenLife) -> None:
    topics = live(defaults={"retention.ms": "9"}).topics
    topics.create(TopicSpec(name="a", settings={"flush.ms": "5"}))
    listed = {setting.name: setting for setting in topics.settings("a")}
    assert listed["retention.ms"].value == listed["retention.ms"].default == "9"
    assert listed["flush.ms"].value == "5"
    assert listed["flush.ms"].overridden
    plain = {setting.name: setting.value for setting in topics.defaults()}
    assert plain["retention.ms"] == "9"
    assert plain["flush.ms"] == str((1 << 63) - 1)


def test_bad_defaults_are_refused_at_open(live: OpenLife) -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.ms"):
        live(defaults={"retention.ms": "never"})


def test_trimming_knows_the_partitions(live: OpenLife) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="a"))
    assert topics.trim(Partition("a", 0), 0) == 0
    for index in (1, -1):
        with pytest.raises(PartitionNotFound):
            topics.trim(Partition("a", index), 0)


def test_directories_without_a_row_are_adopted(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = live().topics.create(TopicSpec(name="copied", partitions=3))
    runtime.run()
    live().state.close()
    runtime.run()
    for file in tmp_path.glob(FILE_NAME + "*"):
        file.unlink()
    adopted = live().topics.get("copied")
    assert any(message.endswith("not known: copied") for message in caplog.messages)
    assert adopted.topic_id == topic.topic_id
    assert adopted.partitions == 3
    runtime.run()
    assert live().topics.get("copied") == adopted


def test_missing_directories_are_made_again(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    topic = topics.create(TopicSpec(name="a", partitions=3))
    runtime.run()
    live()
    shutil.rmtree(tmp_path / "a-1")
    life = live()
    assert life.topics.all() == (topic,)
    assert directories(tmp_path) == {"a-0", "a-1", "a-2"}
    assert life.store.get(Partition("a", 1)).marks.end == 0


def lose(state: State) -> None:
    """Forget the changes that were not committed, as a crash does."""
    state._queued.clear()


def write_one(life: Life, at: Partition) -> None:
    data = memoryview(batch.build([Record(b"value")], timestamp_ms=1))
    life.store.get(at).append(data, kernels.check_batches(data, 0, len(data)))


def test_a_creation_lost_in_a_crash_leaves_nothing(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    life = live()
    life.topics.create(TopicSpec(name="a", partitions=2))
    lose(life.state)
    assert live().topics.all() == ()
    runtime.run()
    assert directories(tmp_path) == set()


def test_a_creation_lost_in_a_crash_leaves_a_topic_that_was_written_to(live: OpenLife) -> None:
    life = live()
    topic = life.topics.create(TopicSpec(name="a", partitions=3))
    write_one(life, Partition("a", 1))
    lose(life.state)
    found = live().topics.get("a")
    assert (found.topic_id, found.partitions) == (topic.topic_id, 3)


@pytest.mark.parametrize("written", [False, True])
def test_a_growth_lost_in_a_crash_is_seen_in_directories_that_were_written_to(
    live: OpenLife, runtime: StepRuntime, written: bool
) -> None:
    life = live()
    topic = life.topics.create(TopicSpec(name="a", settings={"retention.ms": "5"}))
    runtime.run()
    life.topics.grow("a", 3)
    if written:
        write_one(life, Partition("a", 1))
    lose(life.state)
    found = live().topics.get("a")
    assert (found.topic_id, found.partitions) == (topic.topic_id, 3 if written else 1)
    assert found.overrides == {"retention.ms": "5"}
    runtime.run()
    assert live().topics.get("a") == found


def test_a_topic_deleted_and_made_again_before_a_crash_keeps_its_new_id(
    live: OpenLife, runtime: StepRuntime
) -> None:
    life = live()
    life.topics.create(TopicSpec(name="a"))
    runtime.run()
    life.topics.delete("a")
    again = life.topics.create(TopicSpec(name="a"))
    lose(life.state)
    assert live().topics.get("a").topic_id == again.topic_id


def test_a_deleted_directory_that_comes_back_is_deleted_again(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    topics = live().topics
    topics.create(TopicSpec(name="a"))
    runtime.run()
    live()
    shutil.copytree(tmp_path / "a-0", tmp_path / "kept")
    life = live()
    life.topics.delete("a")
    runtime.run()
    live()
    (tmp_path / "kept").rename(tmp_path / "a-0")
    assert live().topics.all() == ()
    assert "a-0" not in directories(tmp_path)


def test_deleted_ids_are_forgotten_in_the_end(live: OpenLife, runtime: StepRuntime) -> None:
    life = live()
    life.topics.create(TopicSpec(name="a"))
    life.topics.delete("a")
    runtime.run()
    count = "SELECT count(*) FROM deleted_topics"
    assert live().state.rows(count) == [(1,)]
    runtime.advance(DELETED_KEPT_MS + 1)
    live()
    assert live().state.rows(count) == [(0,)]


def test_while_the_state_cannot_be_written_nothing_changes(
    live: OpenLife, runtime: StepRuntime, tmp_path: Path
) -> None:
    life = live()
    topics = life.topics
    topics.create(TopicSpec(name="a"))
    runtime.run()
    assert life.state._database is not None
    life.state._database.execute("PRAGMA query_only = ON")
    topics.configure("a", {"retention.ms": "5"})
    settled = topics.settle()
    runtime.run()
    with pytest.raises(StorageFailed):
        _ = settled.value
    topic = topics.get("a")
    for refused in (
        lambda: topics.create(TopicSpec(name="b")),
        lambda: topics.grow("a", 2),
        lambda: topics.configure("a", {"retention.ms": "6"}),
        lambda: topics.delete("a"),
    ):
        with pytest.raises(StorageFailed):
            refused()
    assert topics.all() == (topic,)
    assert directories(tmp_path) == {"a-0"}

    life.state._database.execute("PRAGMA query_only = OFF")
    runtime.advance(1_000)
    assert topics.settle().ready
    assert live().topics.all() == (topic,)
