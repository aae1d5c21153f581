"""The BlipMQ door under load: messages a second, and what each costs the broker in CPU time.

    python benchmarks/blipmq.py [--quick] [--only NAME]

Publishes of quality 1 wait for the disk, as pentalog ships.  CPU time is that of the whole broker
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
from brokers import Broker, open_doors, start_pentalog, stopping
from pentalog.clients.blipmq import BlipmqClient

KEY = "bench-key"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    load: str
    connections: int
    qos: int
    size: int
    messages: int
    """Of each connection."""
    step: int = 0
    """Publish: messages between two fences.  Deliver: polls pipelined."""
    aim: str = ""


ROWS = (
    Row("publish-0", "publish", 1, 0, 100, 2_000_000, 0, "0.6 us CPU"),
    Row("publish-0-4", "publish", 4, 0, 100, 500_000, 0, "0.6 us CPU"),
    Row("publish-0-1k", "publish", 1, 0, 1000, 400_000),
    Row("publish-1", "publish", 1, 1, 100, 2_000_000, 0, "1 us CPU"),
    Row("publish-1-4", "publish", 4, 1, 100, 500_000, 0, "1 us CPU"),
    Row("publish-1-1k", "publish", 1, 1, 1000, 400_000),
    Row("publish-1-fence-128", "publish", 1, 1, 100, 200_000, 128),
    Row("deliver-0", "deliver", 1, 0, 100, 1_000_000, 1000, "500,000/s"),
    Row("deliver-1", "deliver", 1, 1, 100, 1_000_000, 1000, "500,000/s"),
    Row("deliver-1-4", "deliver", 4, 1, 100, 250_000, 1000, "500,000/s"),
    Row("deliver-1-1k", "deliver", 1, 1, 1000, 200_000, 1000),
    Row("deliver-1-single", "deliver", 1, 1, 100, 20_000, 1),
)


@dataclass(frozen=True, slots=True)
class Result:
    row: str
    messages: int
    refused: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6


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
            started = start_pentalog(
                Path(work) / f"round-{number}",
                settings={
                    "blipmq_api_keys": KEY,
                    "topic_defaults": "subscription.lease.ms=60000",
                },
                arguments=open_doors("blipmq"),
            )
            with stopping(started):
                results += [measure(started, row, quick=asked.quick) for row in rows]
    save(results)
    show(rows, results)
    return 0


def measure(broker: Broker, row: Row, *, quick: bool) -> Result:
    address = broker.doors["blipmq"]
    count = row.messages // (10 if quick else 1)
    head = [str(machine.compiled("blipmq.c")), *address.split(":"), KEY]
    topics = [f"{row.name}-{place}" for place in range(row.connections)]
    publishing = [
        [*head, "publish", topic, str(row.qos), str(row.size), str(count), str(row.step)]
        for topic in topics
    ]
    commands = publishing
    with BlipmqClient(address, key=KEY) as client:
        # One subscriber, as in the figures of the original.
        subscriptions = [client.subscribe(topic, qos=row.qos) for topic in topics]
    if row.load == "deliver":
        for command in publishing:
            subprocess.run([*command[:-1], "0"], check=True, capture_output=True, env=os.environ)
        commands = [
            [*head, "deliver", str(number), str(row.qos), str(count), str(row.step)]
            for number in subscriptions
        ]
    machine.settle()
    cpu_before_s = broker.cpu_s
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        for command in commands
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]
    cpu_s = broker.cpu_s - cpu_before_s
    return Result(
        row.name,
        sum(answer["messages"] for answer in answers),
        sum(answer["refused"] for answer in answers),
        max(answer["seconds"] for answer in answers),
        cpu_s,
    )


def save(results: Sequence[Result]) -> None:
    described = machine.described()
    with (machine.CACHE / "blipmq.jsonl").open("a") as file:
        for result in results:
            figures = {"messages_per_s": result.rate, "cpu_us_per_message": result.cpu_us}
            file.write(json.dumps({"row": result.row, **figures, **described}) + "\n")


def show(rows: Sequence[Row], results: Sequence[Result]) -> None:
    table = Table(title="BlipMQ: medians; quality and connections are in the names")
    for heading in ("row", "messages/s", "broker CPU, us/message", "refused", "aim"):
        table.add_column(heading, justify="left" if heading in ("row", "aim") else "right")
    for row in rows:
        found = [result for result in results if result.row == row.name]
        rate = statistics.median(result.rate for result in found)
        cpu_us = statistics.median(result.cpu_us for result in found)
        refused = sum(result.refused for result in found)
        table.add_row(row.name, f"{rate:,.0f}", f"{cpu_us:.3f}", str(refused), row.aim)
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
