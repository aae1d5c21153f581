"""Topics filled for tests of the source, and what is in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from pentalog.clients.kafka import LATEST, Cluster, TransactionalProducer
from pentalog.log.checkpoints import CLEANED_OFFSETS, read_offsets, spell
from pentalog.log.files import RealFiles
from pentalog.log.reader import DirectoryReader
from pentalog.model import batch
from pentalog.model.types import Partition, Record

_ENOUGH_S = 120


def now_ms() -> int:
    return int(time.time() * 1000)


def records(first: int, count: int) -> list[Record]:
    """Numbered ones, with what can be odd about a record now and then."""
    return [
        Record(
            None if number % 17 == 0 else b'{"id": %d, "text": "n%d"}' % (number, number),
            None if number % 5 == 0 else b"key-%d" % (number % 7),
            (("cursus.seq", b"%d" % number), ("note", None)) if number % 3 == 0 else (),
        )
        for number in range(first, first + count)
    ]


def fill(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = 2,
    batches: int = 10,
    batch_records: int = 100,
    codecs: Sequence[int] = range(5),
    start_ms: int | None = None,
) -> int:
    """Batches in every compression, one second apart; returns the time of the first."""
    cluster.create_topic(topic, partitions)
    begun = start_ms if start_ms is not None else now_ms() - batches * 1000
    for index in range(partitions):
        for number in range(batches):
            data = batch.build(
                records(number * batch_records, batch_records),
                timestamp_ms=begun + number * 1000,
                codec=codecs[number % len(codecs)],
            )
            cluster.produce(Partition(topic, index), bytes(data))
    return begun


def transact(cluster: Cluster, at: Partition, name: str, *values: bytes, commit: bool) -> None:
    """Complete one transaction, and wait for its marker: Apache Kafka answers before it is written.

    No other transaction may be open in the partition.
    """
    producer = TransactionalProducer(cluster, name)
    wanted = [Record(value) for value in values]
    first = producer.produce(at, batch.build(wanted, timestamp_ms=now_ms()))
    if commit:
        producer.commit()
    else:
        producer.abort()
    marker, deadline = first + len(values), time.monotonic() + _ENOUGH_S
    while (stable := cluster.offsets({at: LATEST})[at]) <= marker:
        assert time.monotonic() < deadline, f"{at} is stable to {stable}, not beyond {marker}"
        time.sleep(0.01)


def published(data: Path, ends: dict[Partition, int]) -> None:
    """Wait until readers of the files may read that far."""
    reader = DirectoryReader(data)
    deadline = time.monotonic() + _ENOUGH_S
    while time.monotonic() < deadline:
        marks = reader.marks()
        if all(at in marks and marks[at].stable >= end for at, end in ends.items()):
            return
        time.sleep(0.05)
    raise AssertionError(f"the marks do not reach {ends}")


def compacted(data: Path, topic: str, *, bytes_max: int) -> None:
    """Wait until compaction has left that much of a topic, or less."""
    deadline = time.monotonic() + _ENOUGH_S
    while (left := _log_bytes(data, topic)) > bytes_max:
        assert time.monotonic() < deadline, f"compaction has left {left} bytes of {topic}"
        time.sleep(0.05)


def nothing_dirty(data: Path, at: Partition) -> None:
    """Wait until compaction has reached the active segment of a partition."""
    deadline = time.monotonic() + _ENOUGH_S
    while True:
        active = max(int(path.stem) for path in (data / spell(at)).glob("*.log"))
        cleaned = read_offsets(RealFiles(), data / CLEANED_OFFSETS).get(spell(at))
        if cleaned is not None and cleaned.offset >= active:
            return
        assert time.monotonic() < deadline, f"compaction has reached {cleaned}, not {active}"
        time.sleep(0.05)


def _log_bytes(data: Path, topic: str) -> int:
    total = 0
    for path in data.glob(f"{topic}-*/*.log"):
        # Compaction removes files between the listing and this look at them.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
