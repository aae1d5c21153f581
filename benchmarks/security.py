"""What rules cost: the broker's CPU per produce and fetch request with rules, and without.

Both brokers get the same requests, in turn; of each the least of several rounds counts, which is
the one that other programs disturbed least.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
import tempfile
from pathlib import Path

from brokers import Broker, start_pentalog, stopping
from pentalog.broker.security import ANONYMOUS, Kind, Operation, Principal, Rule
from pentalog.cli.directory import Directory
from pentalog.model.batch import build
from pentalog.model.types import Record

TOPIC = b"measured"
OTHER_RULES = 1000
PIPELINED = 50
MOST_PERCENT = 5.0


def frame(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, 1, 5) + b"bench"
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce_request(records: int) -> bytes:
    batch = bytes(build([Record(b"x" * 100)] * records, timestamp_ms=1))
    body = struct.pack(">hhii", -1, 1, 1000, 1) + struct.pack(">h", len(TOPIC)) + TOPIC
    return frame(0, 7, body + struct.pack(">iii", 1, 0, len(batch)) + batch)


def fetch_request() -> bytes:
    body = struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, 1) + struct.pack(">h", len(TOPIC)) + TOPIC
    return frame(1, 4, body + struct.pack(">iiqi", 1, 0, 0, 4096))


def metadata_request() -> bytes:
    return frame(3, 1, struct.pack(">i", 1) + struct.pack(">h", len(TOPIC)) + TOPIC)


def exchange(client: socket.socket, request: bytes, count: int, pipelined: int) -> None:
    """Send a request so many times, some at once, and read all answers."""
    answers = client.makefile("rb")
    left = count
    while left:
        now = min(pipelined, left)
        client.sendall(request * now)
        for _ in range(now):
            (size,) = struct.unpack(">i", answers.read(4))
            answers.read(size)
        left -= now


def cpu_us(broker: Broker, request: bytes, count: int, pipelined: int) -> float:
    host, port = broker.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as client:
        exchange(client, request, count // 10, pipelined)
        before = broker.cpu_s
        exchange(client, request, count, pipelined)
        return (broker.cpu_s - before) / count * 1e6


def write_rules(data: Path) -> None:
    rules = [
        Rule(Kind.TOPIC, f"other-{i}", i % 2 == 0, Principal("User", f"user-{i}"), "*", None, True)
        for i in range(OTHER_RULES)
    ]
    rules += [
        Rule(Kind.TOPIC, TOPIC.decode(), False, ANONYMOUS, "*", operation, True)
        for operation in (Operation.WRITE, Operation.READ, Operation.CREATE)
    ]
    with Directory(data) as directory:
        directory.add_rules(rules)


ROWS = {
    "produce, 1 record, pipelined": (produce_request(1), PIPELINED),
    "produce, 100 records": (produce_request(100), 1),
    "fetch, 4 KB": (fetch_request(), 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_rules(directory / "on" / "data")
        settings = {"flush_interval_ms": "0"}
        brokers = {
            name: stack.enter_context(
                stopping(start_pentalog(directory / name, settings={**settings, **own}))
            )
            for name, own in {"off": {}, "on": {"authorization": "true"}}.items()
        }
        for broker in brokers.values():
            cpu_us(broker, metadata_request(), 10, 1)
        failed = False
        print("CPU of the broker per request, in microseconds; the least of all rounds")
        for title, (request, pipelined) in ROWS.items():
            least = {"off": float("inf"), "on": float("inf")}
            for number in range(given.rounds):
                for name in ("off", "on") if number % 2 else ("on", "off"):
                    taken = cpu_us(brokers[name], request, given.requests, pipelined)
                    least[name] = min(least[name], taken)
            more = (least["on"] / least["off"] - 1) * 100
            failed |= more > MOST_PERCENT
            print(
                f"{title:32} rules off {least['off']:7.2f}  on {least['on']:7.2f}  {more:+5.1f} %"
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
