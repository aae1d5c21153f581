"""A broker killed, its files torn and flipped, and everything it acknowledged looked for.

Three kinds of rounds, in turn:

    kill   kill -9 under load
    tear   kill -9, then what a power cut may do: the newest segments lose bytes that only the
           journal is known to hold on the disk, and end in half a batch
    flip   kill -9, then one bit of a copy of the data is flipped: at most the batch it hit may be
           missing, and nothing wrong may be served
"""

from __future__ import annotations

import random
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pentalog import kernels
from pentalog.cli.broker_process import BrokerProcess
from pentalog.cli.client import Client
from pentalog.cli.consume import read
from pentalog.cli.output import Refused
from pentalog.cli.segments import headers, walked
from pentalog.clients.kafka.cluster import Cluster
from pentalog.log import checkpoints
from pentalog.log.files import RealFiles
from pentalog.log.journal import Journal
from pentalog.model import batch
from pentalog.model.types import Partition, Record

KINDS: Final = ("kill", "tear", "flip")
_TOPIC: Final = "torture"
_PARTITIONS: Final = 3
_JOURNAL_BYTES: Final = 1 << 20
_SETTINGS: Final = {
    # Small, so that the journal goes round and segments roll many times.
    "journal_bytes": str(_JOURNAL_BYTES),
    "topic_defaults": "segment.bytes=200000",
}
_WRITE_S: Final = (0.05, 0.4)
_RECORDS_MAX: Final = 40
_TIMEOUT_MS: Final = 20_000


@dataclass(slots=True)
class Report:
    rounds: int = 0
    kills: int = 0
    tears: int = 0
    torn_bytes: int = 0
    flips: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    """Records that were served with another value than was written there."""
    flips_detected: int = 0
    flips_harmless: int = 0
    """In bytes that nothing depends on: every record was still served as written."""
    damaged: int = 0
    """Records in batches that a flip hit: given up, and said so."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.lost and not self.wrong and not self.problems


def value_of(partition: int, number: int) -> bytes:
    """What is written there: nothing else has it."""
    text = b"%d:%d:" % (partition, number)
    return text + b"%08x" % zlib.crc32(text) + b"x" * (number * 7 % 200)


class Torment:
    def __init__(self, directory: Path, seed: int) -> None:
        self.report = Report()
        self._directory = directory
        self._chance = random.Random(seed)
        self._told: dict[tuple[int, int], int] = {}
        """The number acknowledged at each partition and offset."""
        self._next = [0] * _PARTITIONS
        self._broker = BrokerProcess(directory / "data", directory / "broker.log", _SETTINGS)

    def run(self, rounds: int, advance: Callable[[], None]) -> None:
        with self._broker:
            self._broker.start()
            with Cluster(self._broker.address) as cluster:
                cluster.create_topic(_TOPIC, _PARTITIONS)
            for number in range(rounds):
                self._round(KINDS[number % len(KINDS)])
                self.report.rounds += 1
                advance()
            self._look(self._broker.address, self._told)

    def _round(self, kind: str) -> None:
        self._write(self._chance.uniform(*_WRITE_S))
        self._broker.kill()
        self.report.kills += 1
        if kind == "tear":
            self._tear()
        elif kind == "flip":
            self._flip()
        self._broker.start()
        if kind != "flip":
            self._look(self._broker.address, self._told)

    # Load

    def _write(self, seconds: float) -> None:
        """One writer per partition, until the broker is killed under its hands."""
        stop = threading.Event()
        writers = [
            threading.Thread(target=self._write_to, args=(index, stop), daemon=True)
            for index in range(_PARTITIONS)
        ]
        before, deadline = len(self._told), time.monotonic() + _TIMEOUT_MS / 1000
        for writer in writers:
            writer.start()
        while len(self._told) == before and time.monotonic() < deadline:
            time.sleep(0.005)  # a kill before anything was acknowledged would show nothing
        time.sleep(seconds)
        self._broker.kill()
        stop.set()
        for writer in writers:
            writer.join(_TIMEOUT_MS / 1000)
        self.report.acknowledged = len(self._told)

    def _write_to(self, index: int, stop: threading.Event) -> None:
        chance = random.Random(f"{index} {self._next[index]}")
        at = Partition(_TOPIC, index)
        try:
            with Client(self._broker.address, timeout_ms=_TIMEOUT_MS) as client:
                client.topic(_TOPIC)
                while not stop.is_set():
                    first, count = self._next[index], chance.randint(1, _RECORDS_MAX)
                    self._next[index] += count
                    records = [Record(value_of(index, first + step)) for step in range(count)]
                    built = bytes(batch.build(records, timestamp_ms=int(time.time() * 1000)))
                    base = client.produce(_TOPIC, index, built, acks=-1)
                    for step in range(count):
                        place = (index, base + step)
                        if self._told.setdefault(place, first + step) != first + step:
                            self.report.problems.append(f"{at} offset {base + step} given twice")
        except Refused:
            return  # the broker has died, as it should

    # Reading back

    def _look(self, address: str, told: dict[tuple[int, int], int]) -> set[tuple[int, int]]:
        """Compare what is served with what was acknowledged; gives what is missing."""
        found = dict(_served(address))
        wrong = {
            place for place, number in told.items() if place in found and found[place] != number
        }
        missing = {place for place in told if place not in found}
        self.report.wrong += len(wrong) + sum(number is None for number in found.values())
        if told is self._told:
            self.report.lost += len(missing)
        return missing

    # What a power cut does

    def _tear(self) -> None:
        kept = _journaled(self._broker.data)
        points = checkpoints.read_offsets(
            RealFiles(), self._broker.data / checkpoints.RECOVERY_POINTS
        )
        for index in range(_PARTITIONS):
            directory = self._broker.data / f"{_TOPIC}-{index}"
            path = max(directory.glob("*.log"), default=None)
            if path is None:
                continue
            with walked(path) as found:
                batches = list(headers(found))
                end = found.end
            start = end
            for position, header in reversed(batches):
                point = points.get(directory.name)
                known = point is not None and header.base_offset < point.offset
                told = (index, header.base_offset) in self._told
                if known or (told and (index, header.base_offset) not in kept):
                    break
                start = position
            self._cut(path, self._chance.randint(start, end), end)
        self.report.tears += 1

    def _cut(self, path: Path, position: int, end: int) -> None:
        """Leave the start of something behind `position`, as a write that was interrupted does."""
        data = path.read_bytes()
        half = data[: self._chance.randrange(0, 200)]
        path.write_bytes(data[:position] + half)
        self.report.torn_bytes += end - position

    # What a bad disk does

    def _flip(self) -> None:
        copy = self._directory / "flipped"
        shutil.copytree(self._broker.data, copy)
        logs = [path for path in sorted(copy.glob("*/*.log")) if path.stat().st_size]
        sizes = [path.stat().st_size for path in logs]
        path = self._chance.choices(logs, sizes)[0]
        bit = self._chance.randrange(path.stat().st_size * 8)
        with walked(path) as found:
            hit = _batch_at(found.data, bit // 8)
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        index = int(path.parent.name.rpartition("-")[2])
        self.report.flips += 1
        with BrokerProcess(copy, self._directory / "flipped.log", _SETTINGS) as broker:
            broker.start()
            missing = self._look(broker.address, dict(self._told))
        inside = {(index, offset) for offset in hit}
        beyond = missing - inside
        if beyond:
            self.report.lost += len(beyond)
            where = f"bit {bit} of {path.parent.name}/{path.name}"
            self.report.problems.append(f"{where} cost {len(beyond)} records it did not hit")
        if missing:
            self.report.flips_detected += 1
            self.report.damaged += len(missing)
        else:
            self.report.flips_harmless += 1
        shutil.rmtree(copy)


def _served(address: str) -> Iterator[tuple[tuple[int, int], int | None]]:
    """The number at every place; None if the value is none that was ever written."""
    with Client(address, timeout_ms=_TIMEOUT_MS) as client:
        client.topic(_TOPIC)
        indexes = list(range(_PARTITIONS))
        starts = client.offsets(_TOPIC, dict.fromkeys(indexes, -2))
        ends = client.offsets(_TOPIC, dict.fromkeys(indexes, -1))
        for item in read(client, _TOPIC, starts, ends):
            if item is None:
                continue
            index, offset, record = item
            yield (index, offset), _number(index, record.value or b"")


def _number(index: int, value: bytes) -> int | None:
    words = value.split(b":")
    if len(words) != 3 or not words[1].isdigit():
        return None
    number = int(words[1])
    return number if value == value_of(index, number) else None


def _batch_at(data: kernels.Buffer, position: int) -> range:
    """Offsets of the batch that a byte lies in."""
    at = 0
    while at + batch.HEADER_BYTES <= len(data):
        header = kernels.batch_header(data, at)
        if position < at + header.size:
            return range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
        at += header.size
    return range(0)


def _journaled(data: Path) -> set[tuple[int, int]]:
    """(partition, base offset) of every batch that the journal would give back."""
    found: set[tuple[int, int]] = set()
    for entry in Journal(data / "journal", RealFiles(), _JOURNAL_BYTES).recover():
        at = 0
        while at + batch.HEADER_BYTES <= len(entry.payload):
            header = kernels.batch_header(entry.payload, at)
            found.add((entry.partition, header.base_offset))
            at += header.size
    return found
