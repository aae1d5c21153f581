"""The same doors on both engines: what a record costs a gateway, next to the local engine.

    python benchmarks/gateway.py [--quick] [--only DOOR] [--repeats 3]

The gateway stands in front of one Apache Kafka on this machine; only the gateway's own CPU time
counts, threads included, so the ratio can be quoted from a busy machine.  Aim: at most 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import apache_kafka
import blipmq
import cursus_door
import fluvio_door
import machine
import rustlog
from brokers import Broker, open_doors, start_gateway, start_pentalog, stopping

DOORS = ("rustlog", "blipmq", "cursus", "fluvio-sc", "fluvio-spu")
SETTINGS = {
    "blipmq_api_keys": blipmq.KEY,
    "topic_defaults": "subscription.lease.ms=60000",
}
RUSTLOG_ROWS = ("produce-binary", "produce-json", "fetch-binary", "fetch-json")
BLIPMQ_ROWS = ("publish-0", "publish-1", "deliver-1")
AIM = 2.0


class Figure(NamedTuple):
    row: str
    cpu_us: float
    """For each record."""


class Doors(NamedTuple):
    """One process under load, and where its doors are."""

    broker: Broker

    def at(self, door: str) -> Broker:
        return dataclasses.replace(self.broker, address=self.broker.doors[door])

    def port(self, door: str) -> int:
        return int(self.broker.doors[door].rpartition(":")[2])


def of_rustlog(doors: Doors, quick: bool) -> Iterator[Figure]:
    for row in rustlog.ROWS:
        if row.name in RUSTLOG_ROWS:
            found = rustlog.measure(doors.at("rustlog"), row, quick=quick)
            yield Figure(f"rustlog {row.name}", found.cpu_us)


def of_blipmq(doors: Doors, quick: bool) -> Iterator[Figure]:
    for row in blipmq.ROWS:
        if row.name in BLIPMQ_ROWS:
            found = blipmq.measure(doors.broker, row, quick=quick)
            yield Figure(f"blipmq {row.name}", found.cpu_us)


def of_cursus(doors: Doors, quick: bool) -> Iterator[Figure]:
    address = doors.broker.doors["cursus"]
    for found in cursus_door.rows(address, doors.broker, 50 if quick else 500):
        yield Figure(f"cursus {found.row}", found.cpu_us)


def of_fluvio(doors: Doors, quick: bool) -> Iterator[Figure]:
    batches, spu = 200 if quick else 8_000, doors.port("fluvio-spu")
    fluvio_door.create_topic(doors.port("fluvio-sc"))
    wrote = fluvio_door.produce(doors.broker, "fluvio", spu, batches)
    read = fluvio_door.consume_fluvio(doors.broker, spu, (batches + 20) * fluvio_door.RECORDS)
    for found in (wrote, read):
        yield Figure(found.row, found.cpu_s / found.records * 1e6)


LOADS: Mapping[str, Callable[[Doors, bool], Iterator[Figure]]] = {
    "rustlog": of_rustlog,
    "blipmq": of_blipmq,
    "cursus": of_cursus,
    "fluvio": of_fluvio,
}


def one_round(directory: Path, wanted: Sequence[str], *, quick: bool) -> dict[str, list[Figure]]:
    """Both engines, one after the other, on fresh ports and files."""
    found: dict[str, list[Figure]] = {}
    for engine in ("local", "cluster"):
        words = open_doors(*DOORS)
        if engine == "local":
            broker = start_pentalog(directory / engine, settings=SETTINGS, arguments=words)
            with stopping(broker):
                found[engine] = loaded(Doors(broker), wanted, quick)
            continue
        with stopping(apache_kafka.start(directory / "kafka")) as node:
            gateway = start_gateway(directory / engine, node.address, words, settings=SETTINGS)
            with stopping(gateway):
                found[engine] = loaded(Doors(gateway), wanted, quick)
    return found


def loaded(doors: Doors, wanted: Sequence[str], quick: bool) -> list[Figure]:
    return [figure for name in wanted for figure in LOADS[name](doors, quick)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round")
    parser.add_argument("--only", action="append", choices=list(LOADS), help="doors to load")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    machine.CACHE.mkdir(parents=True, exist_ok=True)
    rounds = []
    with tempfile.TemporaryDirectory(dir=machine.CACHE) as work:
        for number in range(1 if asked.quick else asked.repeats):
            directory = Path(work) / f"round-{number}"
            rounds.append(one_round(directory, asked.only or list(LOADS), quick=asked.quick))
    show(rounds)
    return 0


def show(rounds: Sequence[Mapping[str, Sequence[Figure]]]) -> None:
    table = Table(title=f"CPU of a record, us; medians of {len(rounds)} rounds")
    for heading in ("row", "local engine", "gateway", "ratio", "aim"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    for place, figure in enumerate(rounds[0]["local"]):
        local, cluster = (
            statistics.median(each[engine][place].cpu_us for each in rounds)
            for engine in ("local", "cluster")
        )
        ratio = f"{cluster / local:.2f}"
        table.add_row(figure.row, f"{local:.3f}", f"{cluster:.3f}", ratio, f"{AIM:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
