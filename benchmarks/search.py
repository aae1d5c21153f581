"""A search of a whole topic by the console's backend, beside a plain consumer that does the same.

Both look for one record at the end of a topic of records of 100 bytes.  Reported is wall time and
the CPU time of the process that searches; the broker is a process of its own.
"""

from __future__ import annotations

import argparse
import array
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

import brokers
from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.console.query import JsonCondition, Query
from pentalog.console.search import Search
from pentalog.kernels import Cells, Producing, encode_rows
from pentalog.model.types import Partition
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import ClusterOrigin, Origin
from pentalog.tables.segments import DirectoryOrigin

AT = Partition("searched", 0)
VALUE_BYTES = 100
BATCH_RECORDS = 150
NEEDLE = b"the-needle"
REPEATS = 5


class Row(NamedTuple):
    name: str
    wall_s: float
    cpu_s: float


def fill(cluster: Cluster, count: int) -> None:
    """Values in JSON, the last one with the needle, in batches as producers make them."""
    cluster.create_topic(AT.topic, 1)
    for start in range(0, count, 50_000):
        stop = min(start + 50_000, count)
        values = [value(one, last=one == count - 1) for one in range(start, stop)]
        ends = array.array("i", [0])
        for one in values:
            ends.append(ends[-1] + len(one))
        times = array.array("q", [int(time.time() * 1000)] * len(values)).tobytes()
        found = encode_rows(
            None, Cells(None, ends.tobytes(), b"".join(values), 0), None, times,
            bytes(4 * len(values)), len(values), bytearray(4), BATCH_RECORDS * (VALUE_BYTES + 8),
            Producing(-1, -1, 0),
        )  # fmt: skip
        for _, low, high, _ in found.batches:
            cluster.produce(AT, bytes(found.data[low:high]), acks=1)


def value(number: int, *, last: bool) -> bytes:
    head = b'{"id":%d,"text":"' % number
    tail = (NEEDLE if last else b"") + b'"}'
    return head + b"x" * (VALUE_BYTES - len(head) - len(tail)) + tail


def searched(origin: Origin, query: Query) -> None:
    search = Search(origin, [AT], query).start()
    search.wait()
    assert search.progress.state == "done", search.progress
    assert len(search.hits) == 1, search.progress


def consumed(server: str, count: int) -> None:
    """What a script does: poll, look, until the end."""
    consumer = Consumer(
        {"bootstrap.servers": server, "group.id": "search", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(AT.topic, AT.index, 0)])
    left, found = count, 0
    while left:
        for message in consumer.consume(10_000, 1.0):
            left -= 1
            if NEEDLE in message.value():
                found += 1
    consumer.close()
    assert found == 1


def measured(name: str, work: Callable[[], None]) -> Row:
    """The best of a few, as the rest is other people's noise."""
    rows = []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        rows.append(Row(name, time.perf_counter() - wall, time.process_time() - cpu))
    return min(rows, key=lambda row: row.cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        brokers.stopping(brokers.start_pentalog(Path(folder))) as broker,
    ):
        with Cluster(broker.address) as cluster:
            fill(cluster, given.records)
        data = str(broker.data)
        while DirectoryOrigin(data).ends([AT])[AT] < given.records:
            time.sleep(0.1)
        options = SourceOptions(servers=broker.address, topics=(AT.topic,), client=ClientOptions())
        text = Query(NEEDLE.decode())
        last = Query(condition=JsonCondition.parse(f"id = {given.records - 1}"))
        rows = [
            measured("console, files", lambda: searched(DirectoryOrigin(data), text)),
            measured("console, Kafka door", lambda: searched(ClusterOrigin(options), text)),
            measured("console, files, JSON path", lambda: searched(DirectoryOrigin(data), last)),
            measured("confluent-kafka loop", lambda: consumed(broker.address, given.records)),
        ]
    if given.json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    table = Table("search", "seconds", "CPU s", "times the loop's CPU")
    for row in rows:
        ratio = f"{row.cpu_s / rows[-1].cpu_s:.2f}"
        table.add_row(row.name, f"{row.wall_s:.2f}", f"{row.cpu_s:.2f}", ratio)
    Console().print(f"{given.records:,} records of {VALUE_BYTES} bytes, one matches, the last")
    Console().print(table)


if __name__ == "__main__":
    main()
