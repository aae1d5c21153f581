"""The RustLog door under load: records a second, and what each costs the broker in CPU time.

    python benchmarks/rustlog.py [--quick] [--only NAME]

Acknowledgements wait for the disk, as pentalog ships.  CPU time is that of the whole broker
process, threads that sync included, so it can be quoted from a busy machine; rates cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import machine
from brokers import Broker, start_pentalog, stopping
from pentalog.clients.rustlog import RustLogClient

BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    load: str
    dialect: str
    connections: int
    batch: int
    size: int
    requests: int
    """Produce: per connection.  Fetch: requests that fill the topic before."""
    aim: str = ""


ROWS = (
    Row("produce-binary", "produce", "binary", 1, 100, 100, 20_000, "0.3 us CPU"),
    Row("produce-binary-4", "produce", "binary", 4, 100, 100, 6_000, "0.3 us CPU"),
    Row("produce-binary-1k", "produce", "binary", 1, 100, 1000, 4_000),
    Row("produce-binary-single", "produce", "binary", 1, 1, 100, 400_000),
    Row("produce-json", "produce", "json", 1, 100, 100, 10_000, "1 us CPU"),
    Row("produce-json-4", "produce", "json", 4, 100, 100, 3_000, "1 us CPU"),
    Row("fetch-binary", "fetch", "binary", 1, 100, 100, 10_000, "2,000,000/s"),
    Row("fetch-binary-4", "fetch", "binary", 4, 100, 100, 3_000),
    Row("fetch-json", "fetch", "json", 1, 100, 100, 10_000, "500,000/s"),
    Row("fetch-json-4", "fetch", "json", 4, 100, 100, 3_000),
)


@dataclass(frozen=True, slots=True)
class Result:
    row: str
    records: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.records * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round")
    parser.add_argument("--only", action="append", metavar="NAME", help="rows to run")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    rows = [row for row in ROWS if not asked.only or row.name in asked.only]
    if not rows:
        sys.exit(f"no such row; there are {', '.join(row.name for row in ROWS)}")
    machine.CACHE.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=machine.CACHE) as work:
        for number in range(1 if asked.quick else asked.repeats):
            directory = Path(work) / f"round-{number}"
            started = start_pentalog(directory)
            with stopping(started):
                results += [measure(started, row, quick=asked.quick) for row in rows]
    save(results)
    show(rows, results)
    return 0


def measure(broker: Broker, row: Row, *, quick: bool) -> Result:
    # The Kafka port serves RustLog too.
    host, _, port = broker.address.rpartition(":")
    requests = max(1, row.requests // (10 if quick else 1))
    with RustLogClient(broker.address, dialect=row.dialect) as client:
        topic = f"{row.name}-{len(client.topics())}"
        client.create_topic(topic, row.connections)
    head = [str(machine.compiled("rustlog.c")), host, port]
    fill = [*head, "produce", row.dialect, topic, str(row.connections)]
    fill += [str(row.batch), str(row.size), str(requests)]
    command = fill
    if row.load == "fetch":
        subprocess.run(fill, check=True, capture_output=True, env=os.environ)
        command = [*head, "fetch", row.dialect, topic, str(row.connections), str(BYTES_MAX), "3"]
    machine.settle()
    cpu_before_s = broker.cpu_s
    said = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ
    ).stdout
    cpu_s = broker.cpu_s - cpu_before_s
    answer = json.loads(said)
    return Result(row.name, answer["records"], answer["seconds"], cpu_s)


def save(results: Sequence[Result]) -> None:
    described = machine.described()
    with (machine.CACHE / "rustlog.jsonl").open("a") as file:
        for result in results:
            figures = {"records_per_s": result.rate, "cpu_us_per_record": result.cpu_us}
            file.write(json.dumps({"row": result.row, **figures, **described}) + "\n")


def show(rows: Sequence[Row], results: Sequence[Result]) -> None:
    table = Table(title="RustLog: medians; 100 records a request unless named otherwise")
    for heading in ("row", "records/s", "broker CPU, us/record", "aim"):
        table.add_column(heading, justify="left" if heading in ("row", "aim") else "right")
    for row in rows:
        found = [result for result in results if result.row == row.name]
        rate = statistics.median(result.rate for result in found)
        cpu_us = statistics.median(result.cpu_us for result in found)
        table.add_row(row.name, f"{rate:,.0f}", f"{cpu_us:.3f}", row.aim)
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
