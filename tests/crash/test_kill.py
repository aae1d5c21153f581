"""kill -9 a real broker under load, again and again.

Real idempotent producers keep writing through every death.  Afterwards each record they were
told about is where they were told, nothing is there twice, and nothing changed places.
"""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.victims import Victim

CYCLES = int(
    os.environ.get("PENTALOG_CYCLES", "1000" if "PENTALOG_TORTURE" in os.environ else "15")
)
SEED = int(os.environ.get("PENTALOG_SEED", str(random.randrange(1 << 30))))
PARTITIONS = 4
TOPIC = "killed"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 10 * CYCLES)]


class Writer:
    """One producer that numbers its records and remembers where each was acknowledged."""

    def __init__(self, name: int, address: str) -> None:
        self.name = name
        self.told: dict[tuple[int, int], int] = {}
        self.refused: list[str] = []
        self.sent = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "socket.timeout.ms": 5000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) < 2000:
                partition = self.sent % PARTITIONS
                value = b"%d:%d:" % (self.name, self.sent) + b"x" * (self.sent % 300)
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._told)
                self.sent += 1
            self._producer.poll(0 if self.sent % 20 else 0.002)

    def _told(self, error: KafkaException | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        number = int((message.value() or b"").split(b":")[1])
        place = (message.partition() or 0, message.offset() or 0)
        if self.told.setdefault(place, number) != number:
            self.refused.append(f"offset {place} was given twice")

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "records are still not acknowledged"


def test_kill_under_load(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    victim = Victim(tmp_path)
    victim.start()
    admin = AdminClient({"bootstrap.servers": victim.address})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        future.result()
    writers = [Writer(name, victim.address) for name in range(2)]
    victim.die_often(CYCLES, chance, lambda: sum(len(one.told) for one in writers), more=20)
    for writer in writers:
        writer.finish()
        assert not writer.refused
    victim.kill()
    victim.start()
    found = _read_all(victim.address)
    victim.kill()
    _check(writers, found)


def _read_all(address: str) -> dict[tuple[int, int], tuple[int, int]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
        | {"enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: dict[tuple[int, int], tuple[int, int]] = {}
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None, "the log cannot be read to its end"
        if message.error():
            ended.add(message.partition())
            continue
        name, number, _ = (message.value() or b"").split(b":")
        place = (message.partition() or 0, message.offset() or 0)
        found[place] = (int(name), int(number))
    consumer.close()
    return found


def _check(writers: list[Writer], found: dict[tuple[int, int], tuple[int, int]]) -> None:
    told = {
        place: (writer.name, number) for writer in writers for place, number in writer.told.items()
    }
    assert len(told) == sum(len(writer.told) for writer in writers), "an offset was reused"
    lost = {place: record for place, record in told.items() if found.get(place) != record}
    assert not lost
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (partition, _), (name, number) in sorted(found.items()):
        numbers[name, partition].append(number)
    for in_order in numbers.values():
        assert in_order == sorted(set(in_order)), "records were reordered or doubled"
    assert sum(map(len, numbers.values())) == sum(writer.sent for writer in writers)
