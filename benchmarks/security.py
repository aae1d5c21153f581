"""What rules cost at every door: the broker's work per request with rules, and without.

    python benchmarks/security.py [--instructions] [--only WORD]

Three brokers get the same requests in turn, a few milliseconds each: one with rules, two without.
Each slice of the first is compared with the two slices beside it, and the middle of all these
ratios counts, so that what else the machine does falls on all three alike.  The same ratio of the
two brokers without rules is printed beside it: what it differs from 0 by is noise.  The exit code
is 1 if rules cost more than 5 % anywhere, beyond that noise where time is measured.

`--instructions` counts instructions instead, by valgrind: no noise, and slow.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cursus_door
from brokers import Broker, open_doors, start_pentalog, stopping
from fluvio_door import fluvio_head, text
from pentalog import kernels
from pentalog.broker.security import ANONYMOUS, ANY, Kind, Operation, Principal, Rule
from pentalog.cli.directory import Directory
from pentalog.model.batch import build
from pentalog.model.types import Record

TOPIC = "measured"
KEY = "bench-key"
OTHER_RULES = 1000
MOST_PERCENT = 5.0
DOORS = ("kafka", "rustlog", "blipmq", "cursus", "fluvio-spu")
WITHOUT, CONTROL, WITH = "off", "control", "on"
VALUE = b"x" * 100


def framed(body: bytes) -> bytes:
    """Every door frames the same way."""
    return struct.pack(">I", len(body)) + body


def kafka(key: int, version: int, body: bytes) -> bytes:
    return framed(struct.pack(">hhi", key, version, 1) + text("bench") + body)


def kafka_produce(records: int) -> bytes:
    batch = bytes(build([Record(VALUE)] * records, timestamp_ms=1))
    body = struct.pack(">hhii", -1, 1, 1000, 1) + text(TOPIC)
    return kafka(0, 7, body + struct.pack(">iii", 1, 0, len(batch)) + batch)


def kafka_fetch() -> bytes:
    body = struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, 1) + text(TOPIC)
    return kafka(1, 4, body + struct.pack(">iiqi", 1, 0, 0, 4096))


def kafka_metadata() -> bytes:
    return kafka(3, 1, struct.pack(">i", 1) + text(TOPIC))


def rustlog_produce() -> bytes:
    record = struct.pack(">I", len(VALUE)) + VALUE
    return framed(b"\x01" + text(TOPIC) + struct.pack(">II", 0, 1) + record)


def rustlog_fetch() -> bytes:
    return framed(b"\x02" + text("g") + text(TOPIC) + struct.pack(">IQI", 0, 0, 4096))


def blipmq(kind: int, payload: bytes) -> bytes:
    return framed(struct.pack(">BQ", kind, 1) + payload)


def blipmq_publish() -> bytes:
    return blipmq(3, b"\x01" + text(TOPIC) + VALUE)


def blipmq_poll(subscribed: bytes) -> bytes:
    return blipmq(9, subscribed[9:17])


def cursus_batch() -> bytes:
    body = cursus_door.batch(TOPIC.encode(), b"1", 1, idempotent=False, document=False)
    return framed(body)


def cursus(command: str) -> bytes:
    return framed(b"\0\0" + command.encode())


def fluvio_produce() -> bytes:
    built = build([Record(VALUE)] * 100, timestamp_ms=1)
    sent, _ = kernels.log_to_fluvio(built, 0, len(built), 0)
    body = b"\0" + struct.pack(">hii", 1, 30_000, 1) + text(TOPIC)
    body += struct.pack(">iii", 1, 0, len(sent)) + sent + bytes(4)
    return framed(fluvio_head(0, 24, 1) + body)


def fluvio_fetch() -> bytes:
    body = struct.pack(">iiiBI", 0, 0, 1 << 20, 0, 1) + text(TOPIC) + struct.pack(">I", 1)
    body += struct.pack(">IiqqiI", 0, -1, 0, 0, 4096, 0)
    return framed(fluvio_head(1, 24, 1) + body)


BLIPMQ_LOGIN = (blipmq(1, b"\0\1"), blipmq(2, text(KEY)))


def nothing(answer: bytes) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    door: str
    request: bytes
    requests: int
    """In a slice."""
    at_once: int = 1
    before: tuple[bytes, ...] = ()
    """Sent once to each connection, each answered once."""
    then: Callable[[bytes], bytes] = nothing
    """What follows each request, made of the last answer to these."""


ROWS = (
    Row("Kafka produce, 1 record, pipelined", "kafka", kafka_produce(1), 10_000, 50),
    Row("Kafka produce, 100 records", "kafka", kafka_produce(100), 300),
    Row("Kafka fetch, 4 KB", "kafka", kafka_fetch(), 300),
    Row("RustLog produce, 1 record, pipelined", "rustlog", rustlog_produce(), 10_000, 50),
    Row("RustLog fetch, 4 KB", "rustlog", rustlog_fetch(), 300),
    Row(
        "BlipMQ publish, 50, and a ping",
        "blipmq",
        blipmq_publish() * 50 + blipmq(7, b""),
        200,
        before=BLIPMQ_LOGIN,
    ),
    Row(
        "BlipMQ publish and poll",
        "blipmq",
        blipmq_publish(),
        300,
        before=(*BLIPMQ_LOGIN, blipmq(4, text(TOPIC) + b"\0")),
        then=blipmq_poll,
    ),
    Row("Cursus batch, 1,000 messages", "cursus", cursus_batch(), 50),
    Row("Cursus consume", "cursus", cursus(f"CONSUME {TOPIC} 0 0"), 100),
    Row("Fluvio produce, 100 records", "fluvio-spu", fluvio_produce(), 200),
    Row("Fluvio fetch, 4 KB", "fluvio-spu", fluvio_fetch(), 200),
)


class Client:
    """One connection to one door."""

    def __init__(self, ports: dict[str, int], row: Row) -> None:
        self._socket = socket.create_connection(("127.0.0.1", ports[row.door]), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._row = row
        last = b""
        for request in row.before:
            self._socket.sendall(request)
            last = self._answer()
        self._requests = (row.request + row.then(last)) * row.at_once

    def exchange(self, count: int) -> None:
        """Send the request so many times, some at once, and read all answers."""
        row = self._row
        for _ in range(count // row.at_once):
            self._socket.sendall(self._requests)
            for _ in range(row.at_once):
                self._answer()

    def _answer(self) -> bytes:
        (size,) = struct.unpack(">I", self._answers.read(4))
        return self._answers.read(size)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Measured:
    """A broker, and its port by door."""

    broker: Broker
    ports: dict[str, int]


def write_rules(data: Path) -> None:
    rules = [
        Rule(Kind.TOPIC, f"other-{i}", i % 2 == 0, Principal("User", f"user-{i}"), "*", None, True)
        for i in range(OTHER_RULES)
    ]
    for who in (ANONYMOUS, Principal("User", "blipmq")):
        rules += [
            Rule(Kind.TOPIC, TOPIC, False, who, "*", operation, True)
            for operation in (Operation.WRITE, Operation.READ, Operation.CREATE)
        ]
        rules.append(Rule(Kind.GROUP, ANY, False, who, "*", Operation.READ, True))
    with Directory(data) as directory:
        directory.add_rules(rules)


@contextlib.contextmanager
def running(directory: Path, name: str, under: tuple[str, ...] = ()) -> Iterator[Measured]:
    settings = {"flush_interval_ms": "0", "blipmq_api_keys": KEY}
    if name == WITH:
        write_rules(directory / "data")
        settings["authorization"] = "true"
    listen = open_doors(*DOORS[1:])
    # The order of sets must not differ from broker to broker.
    fixed = {"PYTHONHASHSEED": "0"}
    with stopping(
        start_pentalog(
            directory, settings=settings, arguments=listen, environment=fixed, under=under
        )
    ) as broker:
        ports = {door: int(at.rpartition(":")[2]) for door, at in broker.doors.items()}
        first = Client(ports, replace(ROWS[1], before=(kafka_metadata(),)))
        first.exchange(20)
        first.close()
        yield Measured(broker, ports)


def percent(ratios: list[float]) -> float:
    return (statistics.median(ratios) - 1) * 100


def time_slices(row: Row, three: dict[str, Measured], rounds: int) -> dict[str, list[float]]:
    """CPU of each broker per request, in microseconds, slice by slice."""
    clients = {name: Client(each.ports, row) for name, each in three.items()}
    found: dict[str, list[float]] = {name: [] for name in three}
    order = list(three)
    for number in range(-2, rounds):
        for name in order if number % 2 else reversed(order):
            broker = three[name].broker
            before_s = broker.cpu_s
            clients[name].exchange(row.requests)
            if number >= 0:
                found[name].append((broker.cpu_s - before_s) / row.requests * 1e6)
        order.append(order.pop(0))
    for client in clients.values():
        client.close()
    return found


def compare_times(rows: list[Row], directory: Path, rounds: int, sets: int) -> bool:
    """Print a line for each row; False if rules cost too much anywhere."""
    slices: dict[str, dict[str, list[float]]] = {
        row.title: {name: [] for name in (WITHOUT, CONTROL, WITH)} for row in rows
    }
    for number in range(sets):
        with contextlib.ExitStack() as stack:
            three = {
                name: stack.enter_context(running(directory / f"{name}-{number}", name))
                for name in (WITHOUT, CONTROL, WITH)
            }
            for row in rows:
                for name, found in time_slices(row, three, rounds).items():
                    slices[row.title][name] += found
    print("CPU of the broker per request, in microseconds; more: with rules, and without (noise)")
    fine = True
    for title, found in slices.items():
        without = [sum(pair) / 2 for pair in zip(found[WITHOUT], found[CONTROL], strict=True)]
        more = percent([a / b for a, b in zip(found[WITH], without, strict=True)])
        noise = percent([a / b for a, b in zip(found[CONTROL], found[WITHOUT], strict=True)])
        fine = fine and more <= MOST_PERCENT + abs(noise)
        off, on = statistics.median(without), statistics.median(found[WITH])
        print(f"{title:38} off {off:8.2f}  on {on:8.2f}  {more:+5.1f} %  (noise {noise:+5.1f} %)")
    return fine


def count_instructions(rows: list[Row], directory: Path, name: str) -> dict[str, float]:
    """Instructions of the broker per request."""
    directory.mkdir(parents=True)
    written = directory / "counted"
    under = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={written}")
    found: dict[str, float] = {}
    with running(directory, name, under) as measured:
        control = ("callgrind_control", str(measured.broker.process.pid))
        for number, row in enumerate(rows, 1):
            client = Client(measured.ports, row)
            count = row.at_once * 100
            client.exchange(count)
            subprocess.run([*control, "-z"], check=True, capture_output=True, env=os.environ)
            client.exchange(count)
            subprocess.run([*control, "-d"], check=True, capture_output=True, env=os.environ)
            client.close()
            said = written.with_name(f"{written.name}.{number}").read_text()
            total = re.search(r"^(?:totals|summary): (\d+)", said, re.MULTILINE)
            assert total is not None, "valgrind has written no total"
            found[row.title] = int(total[1]) / count
    return found


def compare_instructions(rows: list[Row], directory: Path) -> bool:
    counted = {
        name: count_instructions(rows, directory / name, name) for name in (WITHOUT, CONTROL, WITH)
    }
    print("instructions of the broker per request; more: with rules, and without (noise)")
    fine = True
    for row in rows:
        off, control, on = (counted[name][row.title] for name in (WITHOUT, CONTROL, WITH))
        more = percent([on / ((off + control) / 2)])
        noise = percent([control / off])
        fine = fine and more <= MOST_PERCENT
        print(f"{row.title:38} off {off:9.0f}  on {on:9.0f}  {more:+5.1f} %  ({noise:+5.1f} %)")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", action="store_true", help="count them, by valgrind")
    parser.add_argument("--only", default="", metavar="WORD", help="rows whose titles have it")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sets", type=int, default=2, help="brokers are started anew so often")
    asked = parser.parse_args()
    rows = [row for row in ROWS if asked.only in row.title]
    if not rows:
        sys.exit(f"no such row; there are {', '.join(row.title for row in ROWS)}")
    with tempfile.TemporaryDirectory(prefix="pentalog-bench-") as work:
        if asked.instructions:
            fine = compare_instructions(rows, Path(work))
        else:
            fine = compare_times(rows, Path(work), asked.rounds, asked.sets)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
