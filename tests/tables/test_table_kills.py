"""kill -9 of drivers, of Java and of brokers: whoever dies, nothing is lost and nothing doubled.

The tables are compared with the log by the formats' own libraries and an ordinary Kafka client.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from drivers import Java, Victim, command, end_group, finish
from lake import audit, make_topic, orders, places, produce, table
from test_write_back import records

import pentalog
from pentalog.tables.checkpoint import INGEST, Checkpoint
from pentalog.tables.pipeline import LAYERS, Pipeline, load

TORTURE = "PENTALOG_TORTURE" in os.environ
SEED = int(os.environ.get("PENTALOG_SEED", str(random.randrange(1 << 30))))
ROUNDS = 20 if TORTURE else 1
KILLS = ["broker"] * 3 + ["driver"] + ["java"]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 * (ROUNDS + 1))]

FILE = """
[pipeline.orders]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
sink = "{sink}"
batch_rows_max = {rows}
trigger = "1 second"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
{more}
"""
STARTING = 'starting = {{ "{topic}" = {{ "0" = 60, "1" = 60 }} }}'
GOLD = """
[pipeline.orders.gold.per_second]
window = "1 second"
watermark = "1 second"
aggregates = { n = "count(*)" }
"""
POINTS = ("after-files:2", *(f"after-commit:{layer}" for layer in LAYERS))
"""Before a commit is after the one before it, or after the files: nothing lies between."""


def pipeline_file(
    server: str, topic: str, folder: Path, *, sink: str = "delta", rows: int = 100, more: str = ""
) -> tuple[Path, Pipeline]:
    file = folder / "pipeline.toml"
    into = folder / "lake"
    text = FILE.format(server=server, topic=topic, into=into, sink=sink, rows=rows, more=more)
    file.write_text(text)
    return file, load(file)["orders"]


def dies(java: Java | None, point: str, *words: str) -> None:
    """Without a Java of ours a driver starts its own, which dies with it."""
    given = {} if java is None else java.environment()
    code, _, err = finish(command(*words, **given, FAILPOINT_STEP=point))
    assert code == -signal.SIGKILL, (point, err[-2000:])


def done(java: Java | None, *words: str) -> str:
    given = {} if java is None else java.environment()
    code, out, err = finish(command(*words, "--json", **given))
    assert code == 0, err[:2000]
    return out


def nothing_twice(declared: Pipeline) -> None:
    for layer in LAYERS:
        found = places(declared, layer)
        assert len(set(found)) == len(found), layer


@pytest.mark.parametrize("sink", ["delta", "parquet", "iceberg"] if TORTURE else ["delta"])
def test_killed_at_exact_lines(
    broker: pentalog.Broker, java: Java, topic: str, tmp_path: Path, sink: str
) -> None:
    """Between any two of a batch's steps: files, then three commits."""
    server = broker.address("kafka")
    make_topic(server, topic)
    values: list[str | bytes] = [b"bad" if one % 20 == 0 else each
                                 for one, each in enumerate(orders(0, 500))]  # fmt: skip
    produce(server, topic, values)
    file, declared = pipeline_file(server, topic, tmp_path, sink=sink)
    for number, point in enumerate(POINTS):
        dies(java, point, "run", str(file), "--once")
        nothing_twice(declared)
        if number == 0:
            assert len(places(declared, "bronze")) == 100
    lines = [json.loads(line) for line in done(java, "run", str(file), "--once").splitlines()]
    assert lines[-1]["lag"] == 0
    audit(declared, 500)
    assert len(places(declared, "dead_letters")) == 25


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
def test_gold_is_killed(broker: pentalog.Broker, topic: str, tmp_path: Path) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 1)
    first_ms = int(time.time() * 1000) // 1000 * 1000 - 3_600_000
    for one in range(10):
        produce(server, topic, orders(one * 40, 40), timestamp=first_ms + one * 1000)
    file, declared = pipeline_file(server, topic, tmp_path, rows=90, more=GOLD)
    for point in ("before-commit:gold/per_second:2", "after-commit:gold/per_second"):
        dies(None, point, "run", str(file), "--once")
    done(None, "run", str(file), "--once")
    audit(declared, 400)
    rows = table(declared, "gold/per_second").sort_by("window_start").to_pylist()
    # The last windows stay open: nothing newer than their watermark has come.
    assert len(rows) > 3
    assert [one["window_start"].timestamp() * 1000 for one in rows] == [
        first_ms + one * 1000 for one in range(len(rows))
    ]
    assert {one["n"] for one in rows} == {40}


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
def test_repairs_are_killed(
    broker: pentalog.Broker, java: Java, topic: str, tmp_path: Path
) -> None:
    """A backfill and a replay of dead letters, each cut short and gone on with."""
    server = broker.address("kafka")
    make_topic(server, topic)
    for one in range(10):
        produce(server, topic, [*orders(one * 40, 39), '{"id": 7, "amount": "1.5"}'])
    more = STARTING.format(topic=topic)
    file, declared = pipeline_file(server, topic, tmp_path, rows=90, more=more)
    done(java, "run", str(file), "--once")
    assert all(offset >= 60 for _, offset in places(declared, "bronze"))
    for point in ("before-commit:silver", "before-commit:dead_letters"):
        dies(java, point, "backfill", str(file), "orders", "--from", "earliest")
        nothing_twice(declared)
    done(java, "backfill", str(file), "orders", "--from", "earliest")
    audit(declared, 400)
    assert len(places(declared, "dead_letters")) == 10

    file.write_text(file.read_text().replace("amount DOUBLE", "amount STRING"))
    for point in ("after-files", "after-commit:silver", "after-commit:dead_letters"):
        dies(java, point, "replay-dlq", str(file), "orders")
        assert len(set(places(declared, "silver"))) == len(places(declared, "silver"))
        vacuum = finish(command("vacuum", str(file), "--older-than", "0 seconds"))
        assert vacuum[0] == (point != "after-commit:dead_letters"), vacuum
    done(java, "replay-dlq", str(file), "orders")
    audit(declared, 400)
    assert places(declared, "dead_letters") == []


class Writer:
    """Writes an order every few milliseconds, some of them bad, whatever becomes of the broker."""

    def __init__(self, address: str, topic: str) -> None:
        self.told: dict[tuple[int, int], bytes] = {}
        self.refused: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            value = b"bad" if number % 20 == 0 else json.dumps({"id": number, "amount": 1}).encode()
            self._producer.produce(
                self._topic, value, partition=number % 2, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            at = (message.partition(), message.offset())  # type: ignore[attr-defined]
            self.told[at] = message.value()  # type: ignore[attr-defined]

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "records are still not acknowledged"


def in_log(server: str, topic: str) -> dict[tuple[int, int], bytes]:
    consumer = Consumer({"bootstrap.servers": server, "group.id": "audit"})
    found: dict[tuple[int, int], bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
        ends = {i: consumer.get_watermark_offsets(TopicPartition(topic, i))[1] for i in range(2)}
        while len(found) < sum(ends.values()):
            for one in consumer.consume(1000, 5):
                assert one.error() is None
                found[one.partition() or 0, one.offset() or 0] = one.value() or b""
    finally:
        consumer.close()
    return found


def compare(declared: Pipeline, log: dict[tuple[int, int], bytes]) -> None:
    """Every record of the log is in the tables once, as it is, and nothing else."""
    bronze = table(declared, "bronze").to_pylist()
    assert len(bronze) == len(log)
    assert {(one["partition"], one["offset"]): one["value"] for one in bronze} == log
    bad = {at for at, value in log.items() if value == b"bad"}
    assert places(declared, "dead_letters") == sorted(bad)
    silver = table(declared, "silver").to_pylist()
    assert len(silver) == len(log) - len(bad)
    ids = {(one["_partition"], one["_offset"]): one["id"] for one in silver}
    assert ids == {at: json.loads(value)["id"] for at, value in log.items() if at not in bad}


def wait_for_batch(declared: Pipeline, process: subprocess.Popen[str]) -> None:
    """Until a driver has told of a batch of its own."""
    kept = Checkpoint(declared.checkpoint, INGEST)
    until = time.monotonic() + 600
    while kept.progress().get("pid") != process.pid:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "no batch came"
        time.sleep(0.1)


def test_killed_at_random_moments(java: Java, topic: str, tmp_path: Path) -> None:
    """A broker that comes back only delays; a driver or a Java that dies is started again."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    victim = Victim(tmp_path)
    victim.start()
    make_topic(victim.address, topic)
    make_topic(victim.address, f"{topic}.dlq")
    more = "dead_letter_topic = true"
    file, declared = pipeline_file(victim.address, topic, tmp_path, rows=1000, more=more)
    writer = Writer(victim.address, topic)
    words = ("run", str(file), "--json")
    running = command(*words, **java.environment())
    try:
        for kind in [one for _ in range(ROUNDS) for one in chance.sample(KILLS, len(KILLS))]:
            if kind == "broker" or chance.random() < 0.8:
                wait_for_batch(declared, running)
            time.sleep(chance.uniform(0, 1.5))
            if kind == "broker":
                victim.kill()
                time.sleep(chance.uniform(0, 1))
                victim.start()
                assert running.poll() is None, running.communicate()
                continue
            if kind == "java":
                java.kill()
                assert running.wait(60) == 1
            end_group(running)
            running = command(*words, **java.environment())
        wait_for_batch(declared, running)
    finally:
        end_group(running)
        writer.finish()
    assert writer.refused == []
    done(java, "run", str(file), "--once")
    log = in_log(victim.address, topic)
    letters = records(victim.address, f"{topic}.dlq", 2)
    victim.kill()
    assert writer.told.items() <= log.items()
    compare(declared, log)
    audit(declared, len(log))
    # Written back by transactions that record query and batch: once, whoever died.
    written = sorted(map(coordinates, letters))
    assert written == places(declared, "dead_letters")


def coordinates(letter: Any) -> tuple[int, int]:
    headers = dict(letter.headers())
    return int(headers["pentalog.partition"]), int(headers["pentalog.offset"])
