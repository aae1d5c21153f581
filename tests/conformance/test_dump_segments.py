"""Segment files are Kafka's own: its tools read ours, and we read what it wrote."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import subjects
from kafka_clients import CLIENTS, CODECS, Event, aio
from kafka_clients.confluent import write
from tests.support.compactions import COMPACTED, compact
from tests.support.logs import LogBench

import apache_kafka
import brokers

pytestmark = [pytest.mark.clients, pytest.mark.java]

CONFLUENT = CLIENTS[0]
DUMP = "org.apache.kafka.tools.DumpLogSegments"
# Recent, so that no retention runs out on them.
T0 = int(time.time() * 1000) - 3_600_000
PER_CODEC = 1000
SEGMENT_SETTINGS = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}


@pytest.fixture(autouse=True, scope="module")
def _jars() -> None:
    try:
        apache_kafka.jars()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))


def events() -> list[Event]:
    """Records that codecs make smaller, but not small, so that several segments fill."""
    noise = random.Random(7)
    return [
        Event(
            f"key-{i}".encode(),
            noise.randbytes(700) + bytes(300),
            (("n", f"{i}".encode()),),
            T0 + i,
        )
        for i in range(PER_CODEC * len(CODECS))
    ]


def write_all(address: str, topic: str, records: Sequence[Event]) -> None:
    CONFLUENT.create_topic(address, topic, partitions=1, settings=SEGMENT_SETTINGS)
    for number, codec in enumerate(CODECS):
        part = records[number * PER_CODEC : (number + 1) * PER_CODEC]
        # aiokafka compresses whatever the broker says about itself.
        compression = None if codec == "none" else codec
        aio.write(address, topic, part, {"compression_type": compression}, 0)


def dump(files: Sequence[Path], *options: str) -> str:
    done = apache_kafka.run_tool(DUMP, [*options, "--files", ",".join(map(str, files))])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for complaint in ("isvalid: false", "Mismatch", "non-consecutive", "out of order", "invalid"):
        assert complaint not in done.stdout, done.stdout[-3000:]
    # The tool starts every file at -1 and calls a later segment's first offset a gap; no other.
    assert set(re.findall(r"(-?\d+) is followed by", done.stderr)) <= {"-1"}, done.stderr
    for line in done.stderr.splitlines():
        assert "is followed by" in line or "Non-consecutive offsets in" in line, done.stderr
    return done.stdout


def test_kafkas_tool_reads_our_segments(tmp_path: Path, topic: str) -> None:
    written = events()
    broker = subjects.start(tmp_path)
    with brokers.stopping(broker):
        write_all(broker.address, topic, written)
        directory = subjects.partition_directory(broker, topic, 0)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 2, "the test must cover more than one segment"

    text = dump(logs, "--deep-iteration")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE)]
    assert offsets == list(range(len(written)))
    times = [int(found) for found in re.findall(r"^\| .*CreateTime: (\d+) ", text, re.MULTILINE)]
    assert times == [event.timestamp_ms for event in written]
    codecs = set(re.findall(r"compresscodec: (\w+)", text))
    assert codecs == set(CODECS)
    bases = [int(log.stem) for log in logs]
    starts = [
        int(found) for found in re.findall(r"^Log starting offset: (\d+)", text, re.MULTILINE)
    ]
    assert starts == bases


def test_kafkas_tool_accepts_our_indexes(tmp_path: Path, topic: str) -> None:
    broker = subjects.start(tmp_path)
    with brokers.stopping(broker):
        write_all(broker.address, topic, events())
        directory = subjects.partition_directory(broker, topic, 0)
    indexes = sorted(directory.glob("*.index"))
    time_indexes = sorted(directory.glob("*.timeindex"))
    assert len(indexes) == len(time_indexes) == len(list(directory.glob("*.log")))
    # Each entry is looked up in the log beside it; a wrong one is printed as a mismatch.
    text = dump([*indexes, *time_indexes])
    assert len(re.findall(r"^offset: \d+ position: \d+", text, re.MULTILINE)) > len(indexes)
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", text, re.MULTILINE)) > len(indexes)
    checked = dump([*indexes, *time_indexes], "--index-sanity-check")
    assert checked.count("passed sanity check") == 2 * len(indexes)


def test_kafkas_tool_finds_the_delete_horizon_of_tombstones(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED, delete_retention_ms=60_000)
    now = bench.runtime.now_ms()
    written_ms = now - 3_600_000
    times: dict[int, int] = {}
    for number in range(len(CODECS)):
        values = (b"value", None)
        at = bench.append(
            *values,
            keys=[b"%d" % number, b"%d-gone" % number],
            codec=number,
            timestamp_ms=written_ms,
        ).base_offset
        times |= {at: written_ms, at + 1: written_ms}
    times[bench.append(b"kept", keys=[b"kept"], timestamp_ms=written_ms + 1).base_offset] = (
        written_ms + 1
    )
    partition.roll()
    assert compact(bench)
    bench.store.close()

    text = dump([partition.segments[0].path(".log")], "--deep-iteration")
    horizons = re.findall(r"deleteHorizonMs: (\S+)", text)
    assert horizons == [f"OptionalLong[{now + 60_000}]"] * len(CODECS) + ["OptionalLong.empty"]
    found = re.findall(r"^\| offset: (\d+) CreateTime: (\d+) ", text, re.MULTILINE)
    assert {int(offset): int(time_ms) for offset, time_ms in found} == times


def test_a_directory_written_by_kafka_reads_back_equal(tmp_path: Path, topic: str) -> None:
    written = events()
    kafka = apache_kafka.start(tmp_path / "kafka", is_brief=True)
    with brokers.stopping(kafka):
        write_all(kafka.address, topic, written)
        source = subjects.partition_directory(kafka, topic, 0)
    data = tmp_path / "ours" / "data"
    data.mkdir(parents=True)
    shutil.copytree(source, data / source.name)
    broker = brokers.start_pentalog(tmp_path / "ours")
    with brokers.stopping(broker):
        read = CONFLUENT.read(broker.address, topic, partition=0, count=len(written))
        assert [one.offset for one in read] == list(range(len(written)))
        assert [one.event for one in read] == written
        at = T0 + len(written) // 2
        assert CONFLUENT.at_time(broker.address, topic, 0, at) == len(written) // 2
        # And the log goes on where Kafka left it.
        assert write(broker.address, topic, [Event(b"next", b"one")], {}, 0) == [len(written)]
