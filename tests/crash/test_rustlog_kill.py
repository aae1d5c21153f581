"""kill -9 a real broker under RustLog load, in both dialects, again and again.

Every acknowledged record is where it was said to be, and every acknowledged commit is there.  A
request whose answer was lost is sent again, so records may be there twice; none may be missing.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from tests.support.victims import Victim

from pentalog.clients.rustlog import CircuitBreaker, Patience, RustLogClient

CYCLES = int(os.environ.get("PENTALOG_CYCLES", "300" if "PENTALOG_TORTURE" in os.environ else "6"))
SEED = int(os.environ.get("PENTALOG_SEED", str(random.randrange(1 << 30))))
TOPIC = "killed"
GROUP = "survivors"
DIALECTS = ("binary", "json")
STUBBORN = Patience(retries_max=100_000, first_delay_ms=5, delay_ms_max=50)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 10 * CYCLES)]


def connect(address: str, dialect: str) -> RustLogClient:
    never = CircuitBreaker(failures_max=1 << 60)
    return RustLogClient(address, dialect=dialect, patience=STUBBORN, breaker=never, timeout_s=10)


class Writer:
    """Numbers its records, and remembers where each was acknowledged and what it committed."""

    def __init__(self, partition: int, address: str) -> None:
        self.partition = partition
        self.told: dict[int, bytes] = {}
        self.committed = 0
        self.sent = 0
        self.mistakes: list[BaseException] = []
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with connect(self._address, DIALECTS[self.partition]) as client:
                while not self._stop.is_set():
                    self._write(client)
        except BaseException as mistake:
            self.mistakes.append(mistake)

    def _write(self, client: RustLogClient) -> None:
        count = 1 + self.sent % 50
        records = [b"%d:" % (self.sent + index) + b"x" * index for index in range(count)]
        self.sent += count
        base, said = client.produce(TOPIC, self.partition, records)
        assert said == count
        for index, record in enumerate(records):
            assert self.told.setdefault(base + index, record) == record, "an offset was reused"
        assert client.commit(GROUP, TOPIC, self.partition, base + count)
        self.committed = base + count

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.mistakes:
            raise self.mistakes[0]


def test_kill_under_rustlog_load(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    victim = Victim(tmp_path)
    victim.start()
    with connect(victim.address, "json") as client:
        client.create_topic(TOPIC, len(DIALECTS))
    writers = [Writer(partition, victim.address) for partition in range(len(DIALECTS))]
    victim.die_often(CYCLES, chance, lambda: min(len(one.told) for one in writers), more=20)
    for writer in writers:
        writer.finish()
    victim.kill()
    victim.start()
    with connect(victim.address, "binary") as client:
        for writer in writers:
            _check(client, writer)
    victim.kill()


def _check(client: RustLogClient, writer: Writer) -> None:
    found = {record.offset: record.value for record in client.records(TOPIC, writer.partition)}
    assert sorted(found) == list(range(len(found)))
    lost = {at: value for at, value in writer.told.items() if found.get(at) != value}
    assert not lost
    numbers = [int(value.split(b":")[0]) for _, value in sorted(found.items())]
    # A request that is repeated starts again at its first number.
    assert list(dict.fromkeys(numbers)) == list(range(writer.sent))
    assert client.committed(GROUP, TOPIC, writer.partition) == writer.committed
