"""A backup taken under load is whole: started on, it has all that had been acknowledged."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import pentalog
from pentalog.cli import backups
from pentalog.cli.client import Client
from pentalog.cli.cluster import reached
from pentalog.cli.consume import read
from pentalog.cli.output import Refused
from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.kafka import LATEST
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.log import checkpoints
from pentalog.log.checkpoints import Checkpointed
from pentalog.log.files import RealFiles
from pentalog.model import batch
from pentalog.model.types import Partition, Record

Run = Callable[..., Any]
PARTITIONS = 3
TOPIC = "kept"
SETTINGS = {"topic_defaults": "segment.bytes=60000"}


class Writer(threading.Thread):
    """Writes numbered records, and counts those acknowledged."""

    def __init__(self, address: str, index: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self._address, self._index = address, index
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with Client(self._address) as client:
                client.topic(TOPIC)
                while not self._stop_asked.is_set():
                    numbers = range(self.acknowledged, self.acknowledged + 50)
                    records = [Record(b"%d:" % number + b"x" * 100) for number in numbers]
                    built = bytes(batch.build(records, timestamp_ms=int(time.time() * 1000)))
                    base = client.produce(TOPIC, self._index, built, acks=-1)
                    assert base == numbers.start
                    self.acknowledged += len(numbers)
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


def all_at(writers: list[Writer], count: int) -> bool:
    return all(one.failure or one.acknowledged > count for one in writers)


def wait_until(condition: Callable[[], bool]) -> None:
    """For as long as the test may run."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def test_backups_under_load_hold_all_that_was_acknowledged(tmp_path: Path) -> None:
    told: list[dict[int, int]] = []
    with pentalog.Broker(tmp_path / "data", **SETTINGS) as broker:
        address = broker.address("kafka")
        with reached(address) as cluster:
            cluster.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
        writers = [Writer(address, index) for index in range(PARTITIONS)]
        base: Path | None = None
        for number in range(3):
            wait_until(partial(all_at, writers, 1000 * (number + 1)))
            with reached(address) as cluster:
                commit(cluster, "readers", {Partition(TOPIC, 0): GroupOffset(500 + number)})
            told.append({index: writer.acknowledged for index, writer in enumerate(writers)})
            summary = backups.take(broker.data, tmp_path / f"backup{number}", base=base)
            assert summary.damages == ()
            assert summary.partitions == PARTITIONS + 1, "and the commits' own topic"
            assert bool(summary.linked) == bool(base)
            base = tmp_path / f"backup{number}"
        for writer in writers:
            writer.finish()
    for number, acknowledged in enumerate(told):
        check(tmp_path, number, acknowledged)


def check(tmp_path: Path, number: int, acknowledged: dict[int, int]) -> None:
    data = tmp_path / f"restored{number}"
    backups.restore(tmp_path / f"backup{number}", data)
    with pentalog.Broker(data) as broker, Client(broker.address("kafka")) as client:
        client.topic(TOPIC)
        starts = dict.fromkeys(acknowledged, 0)
        found: dict[int, list[int]] = {index: [] for index in acknowledged}
        ends = client.offsets(TOPIC, dict.fromkeys(acknowledged, -1))
        for item in read(client, TOPIC, starts, ends):
            if item is not None:
                index, offset, record = item
                assert offset == len(found[index])
                found[index].append(int((record.value or b"").split(b":")[0]))
        for index, count in acknowledged.items():
            assert len(found[index]) >= count
            assert found[index] == list(range(len(found[index])))
        with reached(broker.address("kafka")) as cluster:
            kept = committed(cluster, "readers")
            assert kept[Partition(TOPIC, 0)].offset == 500 + number
            # It is a broker like any other: it takes more.
            end = cluster.produce(Partition(TOPIC, 0), bytes(one_record()))
            assert end == len(found[0])


def one_record() -> bytearray:
    return batch.build([Record(b"more")], timestamp_ms=int(time.time() * 1000))


def test_a_transaction_is_whole_or_not_in_a_backup(tmp_path: Path) -> None:
    """Three partitions in every transaction: whatever a backup shows, it shows in all of them."""
    with pentalog.Broker(tmp_path / "data") as broker:
        address = broker.address("kafka")
        with reached(address) as cluster:
            cluster.create_topic(TOPIC, PARTITIONS)
        stop = threading.Event()
        counted: list[int] = []
        writer = threading.Thread(target=write_transactions, args=(address, stop, counted))
        writer.start()
        sure: list[int] = []
        for number in range(5):
            wait_until(lambda n=5 * (number + 1): len(counted) >= n or not writer.is_alive())
            sure.append(len(counted))
            backups.take(broker.data, tmp_path / f"backup{number}")
        stop.set()
        writer.join(60)
        assert not writer.is_alive()
    for number, least in enumerate(sure):
        backups.restore(tmp_path / f"backup{number}", tmp_path / f"restored{number}")
        with pentalog.Broker(tmp_path / f"restored{number}") as broker:
            seen = committed_numbers(broker.address("kafka"))
        assert seen[0] == seen[1] == seen[2]
        assert seen[0] == list(range(len(seen[0])))
        assert len(seen[0]) >= least


def write_transactions(address: str, stop: threading.Event, counted: list[int]) -> None:
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": "writer", "linger.ms": 0}
    )
    producer.init_transactions(30)
    number = 0
    while not stop.is_set():
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce(TOPIC, b"%d" % number, partition=index)
        producer.commit_transaction(30)
        number += 1
        counted.append(number)


def committed_numbers(address: str) -> list[list[int]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            found[message.partition() or 0].append(int(message.value() or b""))
    consumer.close()
    return found


def small_backup(run: Run, tmp_path: Path) -> Path:
    with pentalog.Broker(tmp_path / "data") as broker:
        with reached(broker.address("kafka")) as cluster:
            cluster.create_topic(TOPIC, 1)
            cluster.produce(Partition(TOPIC, 0), bytes(one_record()))
        run("backup", str(tmp_path / "backup"), "--data", str(broker.data))
    return tmp_path / "backup"


def test_a_damaged_backup_is_not_restored(run: Run, tmp_path: Path) -> None:
    backup = small_backup(run, tmp_path)
    segment = next(backup.glob(f"{TOPIC}-0/*.log"))
    sound = segment.read_bytes()
    for bad in (sound[:-1], sound[:-1] + bytes([sound[-1] ^ 1]), sound + b"x"):
        segment.write_bytes(bad)
        for arguments in (("backup", str(backup), "--check"), ("restore", str(backup))):
            extra = ("--data", str(tmp_path / "new")) if arguments[0] == "restore" else ()
            assert "cannot be used" in run(*arguments, *extra, code=1).said
    segment.unlink()
    with pytest.raises(Refused, match="is missing"):
        backups.verify(backup)
    assert not (tmp_path / "new").exists()


def test_a_manifest_names_no_files_elsewhere(run: Run, tmp_path: Path) -> None:
    backup = small_backup(run, tmp_path)
    manifest = json.loads((backup / backups.MANIFEST).read_text())
    manifest["files"]["../outside"] = {"bytes": 0, "sha256": ""}
    (backup / backups.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Refused, match="no file of a backup"):
        backups.restore(backup, tmp_path / "new")


def test_damage_in_the_log_is_told_and_backed_up(run: Run, tmp_path: Path) -> None:
    with pentalog.Broker(tmp_path / "data") as broker, reached(broker.address("kafka")) as cluster:
        cluster.create_topic(TOPIC, 1)
        for _ in range(3):
            cluster.produce(Partition(TOPIC, 0), bytes(one_record()))
    segment = next((tmp_path / "data").glob(f"{TOPIC}-0/*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    arguments = ("backup", str(tmp_path / "backup"), "--data", str(tmp_path / "data"))
    done = run(*arguments, "--json", code=1)
    assert len(json.loads(done.stdout)["damages"]) == 1
    assert "damaged in the log" in done.said
    run("restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new"), code=1)
    assert (tmp_path / "new" / "pentalog.format").exists()


def test_topics_of_long_names_are_restored(run: Run, tmp_path: Path) -> None:
    name = "x/" * 200
    with pentalog.Broker(tmp_path / "data") as broker:
        with BlipmqClient(broker.address("blipmq")) as publisher:
            publisher.publish(name, b"kept")
        run("backup", str(tmp_path / "backup"), "--data", str(tmp_path / "data"))
    run("restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new"))
    with pentalog.Broker(tmp_path / "new") as broker, reached(broker.address("kafka")) as cluster:
        (topic,) = cluster.topics([name])
        ends = cluster.offsets({Partition(name, 0): LATEST})
        assert (topic.name, ends) == (name, {Partition(name, 0): 1})


def test_what_is_compacted_meanwhile_may_have_gaps(tmp_path: Path) -> None:
    data, draft = tmp_path / "data", tmp_path / "draft"
    first, second = uuid4(), uuid4()
    for directory, offsets in (
        (data, {"a-0": Checkpointed(7, first), "b-1": Checkpointed(9, second)}),
        (draft, {"a-0": Checkpointed(5, first)}),
    ):
        directory.mkdir()
        text = checkpoints.offsets_text(offsets)
        (directory / checkpoints.CLEANED_OFFSETS).write_text(text)
    backups._note_compacted(data, draft)
    kept = checkpoints.read_offsets(RealFiles(), draft / checkpoints.CLEANED_OFFSETS)
    assert kept == {"a-0": Checkpointed(5, first), "b-1": Checkpointed(0, second)}


def test_a_run_that_did_not_finish_is_in_nobodys_way(run: Run, tmp_path: Path) -> None:
    backup = small_backup(run, tmp_path)
    (tmp_path / "other.partial").mkdir()
    arguments = ("backup", str(tmp_path / "other"), "--data", str(tmp_path / "data"))
    assert "remove it" in run(*arguments, code=1).said
    shutil.rmtree(tmp_path / "other.partial")
    run(*arguments)
    assert backups.verify(tmp_path / "other").records == backups.verify(backup).records
