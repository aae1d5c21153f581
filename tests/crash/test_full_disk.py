"""The disk is full for a while and is then used on: nothing acknowledged is lost, now or later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.contents import nested
from tests.support.disks import BrokerBench, DiskBench, check_lives, everything
from tests.support.logs import AT

from pentalog.broker.port import TopicSpec
from pentalog.log.compaction import plan
from pentalog.log.retention import apply_retention
from pentalog.model.errors import StorageFailed, StorageFull
from pentalog.model.settings import LogSettings

DAY_MS = 24 * 3600 * 1000
LARGE = b"L" * 700
"""Of these a segment has room for two."""
SMALL = b"small"
OLD = TopicSpec(name=AT.topic, partitions=1, settings={"segment.bytes": "2000"})
NEW = TopicSpec(name=AT.topic, partitions=1)


# Rolls


def roll_by_append(bench: DiskBench) -> None:
    with pytest.raises(StorageFull):
        bench.append(LARGE)


def roll_by_retention(bench: DiskBench) -> None:
    bench.runtime.wall_step_ms += 2 * DAY_MS
    bench.partition(segment_bytes=2000, retention_ms=DAY_MS)
    with pytest.raises(OSError, match="No space"):
        apply_retention(bench.store.get(AT), bench.runtime.now_ms())
    bench.partition(segment_bytes=2000)


def roll_by_compaction(bench: DiskBench) -> None:
    bench.runtime.wall_step_ms += 2 * DAY_MS
    bench.partition(segment_bytes=2000, cleanup_compact=True, compaction_lag_ms_max=DAY_MS)
    with pytest.raises(OSError, match="No space"):
        plan(bench.store.get(AT), None, bench.runtime.now_ms())
    bench.partition(segment_bytes=2000)


REFUSED: dict[str, Callable[[str, str], bool]] = {
    "the index is sealed": lambda call, path: call == "write" and path.endswith(".index"),
    "the time index is sealed": lambda call, path: call == "write" and path.endswith(".timeindex"),
    "the new index is made": lambda call, path: call == "create" and path.endswith(".timeindex"),
    "the new segment stays": lambda call, path: (
        call == "remove" or (call == "write" and path.endswith("index"))
    ),
}


@pytest.mark.parametrize("roll", [roll_by_append, roll_by_retention, roll_by_compaction])
@pytest.mark.parametrize("refused", REFUSED)
def test_a_roll_that_fails_hides_no_records(
    roll: Callable[[DiskBench], None], refused: str
) -> None:
    bench = DiskBench()
    bench.partition(segment_bytes=2000, index_interval_bytes=200)
    values = {bench.settled(value).base_offset: value for value in (LARGE, LARGE)}
    bench.refuse = REFUSED[refused]
    roll(bench)
    # There is room for these in the blocks of the old segment, which grows beyond the new one.
    values |= {bench.settled(SMALL).base_offset: SMALL for _ in range(3)}
    roll(bench)
    bench.heal()
    for value in (SMALL, LARGE, LARGE, SMALL, LARGE, LARGE, LARGE):
        values[bench.settled(value).base_offset] = value
    assert len(bench.store.get(AT).segments) >= 3
    check_lives(bench, {AT: values}, ("stop", "kill", "stop", "cut"))


# Writes


@pytest.mark.parametrize("cuttable", [True, False], ids=["cut at once", "cut later"])
def test_a_write_that_fails_leaves_nothing_behind_the_next_one(cuttable: bool) -> None:
    bench = DiskBench()
    bench.partition()
    values = {bench.settled(SMALL).base_offset: SMALL for _ in range(3)}
    bench.disk.space_pages = 2
    bench.refuse = lambda call, path: call == "truncate" and not cuttable
    with pytest.raises(StorageFull):
        bench.append(nested(4))
    bench.disk.space_pages = None
    bench.refuse = lambda call, path: False
    values[bench.settled(SMALL).base_offset] = SMALL
    bench = bench.restart("kill")
    check_lives(bench, {AT: values})


# Deleted topics


DELETION: dict[str, Callable[[str, str], bool]] = {
    "checkpoints": lambda call, path: call in ("create", "write") and "checkpoint" in path,
    "names": lambda call, path: call == "rename",
}


@pytest.mark.parametrize("refused", DELETION)
@pytest.mark.parametrize("again", ["while it is full", "when there is room", "after a restart"])
def test_a_topic_made_again_has_no_old_records(tmp_path: Path, refused: str, again: str) -> None:
    bench = BrokerBench(tmp_path / "state")
    bench.topics.create(OLD)
    for number in range(20):
        bench.settled(b"old %d " % number * 50)
    bench.topics.trim(AT, 4)
    bench.topics.settle()
    bench.runtime.step()
    bench.refuse = DELETION[refused]
    bench.topics.delete(AT.topic)
    bench.runtime.step()
    if again == "after a restart":
        bench = bench.restart("kill")
    if again == "while it is full" and refused == "names":
        with pytest.raises(StorageFailed):
            bench.topics.create(NEW)
    bench.refuse = lambda call, path: False
    bench.topics.create(NEW)
    bench.runtime.step()
    values = {bench.settled(b"new").base_offset: b"new" for _ in range(3)}
    assert list(values) == [0, 1, 2]
    check_lives(bench, {AT: values}, ("stop", "kill", "stop", "cut"))


# Deleted records


def test_records_stay_if_their_deletion_was_refused(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path / "state")
    bench.topics.create(OLD)
    bench.runtime.step()
    values = {bench.settled(LARGE).base_offset: LARGE for _ in range(10)}
    bench.refuse = lambda call, path: call == "write" and "log-start" in path
    bench.topics.trim(AT, 7)
    with pytest.raises(StorageFull):
        _ = bench.topics.settle().value
    # Consumers must not skip records that a power cut restores.
    assert bench.store.get(AT).start_offset == 0
    assert bench.durable(AT) == values
    bench = bench.restart("cut", kept=everything)
    assert bench.store.get(AT).start_offset == 0
    assert bench.durable(AT) == values
    bench.topics.trim(AT, 7)
    _ = bench.topics.settle().value
    bench.runtime.advance(LogSettings().file_delete_delay_ms)
    assert bench.names("events-0")[0].startswith("00000000000000000006"), "the segments are gone"
    check_lives(bench, {AT: {offset: value for offset, value in values.items() if offset >= 7}})
