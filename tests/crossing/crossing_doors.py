"""How a test writes and reads through each door: with a real client where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import cramjam
from confluent_kafka import Consumer, Producer, TopicPartition
from crossing_shapes import ABORTED, AFTER, CODECS, COMMITTED, SHAPES, Seen, Sent
from cursus_subject import Wire as CursusWire
from fluvio_wire import Wire as FluvioWire
from fluvio_world import produce, read_produced, their_batch
from tests.support.cursus_world import Message, batch, messages_of

from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.rustlog import RustLogClient

DEADLINE_S: Final = 60.0
OWN: Final = ("cursus.", "fluvio.", "blipmq.")
"""Headers that carry fields of one protocol; the table of fields speaks of them."""

Addresses = Mapping[str, str]
Topics = Mapping[str, int]
"""Names, and how many records to wait for."""
COMPRESSORS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "gzip": cramjam.gzip.compress,
    "snappy": cramjam.snappy.compress_raw,
    "lz4": cramjam.lz4.compress,
    "zstd": cramjam.zstd.compress,
}


def write_kafka(at: Addresses, topic: str, shape: str) -> None:
    settings: dict[str, object] = {"bootstrap.servers": at["kafka"]}
    if shape in CODECS:
        settings |= {"compression.type": shape, "linger.ms": 50}
    if shape in (COMMITTED, ABORTED):
        settings["transactional.id"] = topic
    producer = Producer(settings | {"message.max.bytes": 4 << 20})
    if shape in (COMMITTED, ABORTED):
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    for sent in SHAPES[shape]:
        producer.produce(topic, sent.value, sent.key, 0, headers=list(sent.headers))
    assert producer.flush(DEADLINE_S) == 0
    if shape == COMMITTED:
        producer.commit_transaction(DEADLINE_S)
    if shape == ABORTED:
        producer.abort_transaction(DEADLINE_S)


def write_after(at: Addresses, topic: str) -> None:
    """The record that shows that nothing came before it."""
    producer = Producer({"bootstrap.servers": at["kafka"]})
    producer.produce(topic, AFTER.value, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def read_kafka(at: Addresses, topics: Topics) -> dict[str, list[Seen]]:
    consumer = Consumer(
        {"bootstrap.servers": at["kafka"], "group.id": "crossing", "enable.auto.commit": False}
        | {"isolation.level": "read_committed", "check.crcs": True}
    )
    found: dict[str, list[Seen]] = {topic: [] for topic in topics}
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
    deadline = time.monotonic() + DEADLINE_S
    while any(len(found[topic]) < count for topic, count in topics.items()):
        assert time.monotonic() < deadline, found
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            headers = [pair for pair in message.headers() or () if not pair[0].startswith(OWN)]
            seen = Seen(message.value(), message.key(), tuple(headers))
            found[message.topic()].append(seen)
    consumer.close()
    return found


def write_fluvio(at: Addresses, topic: str, shape: str) -> None:
    records = SHAPES[shape]
    if all(sent.key is not None for sent in records):
        pairs = [[sent.key.hex(), (sent.value or b"").hex()] for sent in records if sent.key]
        pairs = pairs or [["", (records[0].value or b"").hex()]]
        _fluvio_process("write", at, [topic, shape if shape in CODECS else "", pairs])
        return
    # The client of PyPI gives every record a key, so those without one go by hand.
    spu = FluvioWire(int(at["fluvio-spu"].rpartition(":")[2]), 24)
    sent_bytes = their_batch(*(sent.value or b"" for sent in records))
    request = produce(topic, sent_bytes, isolation=-1, timeout_ms=30_000)
    ((_, ((_, error, _),)),) = read_produced(spu.ask(0, request))
    assert error == 0
    spu.close()


def read_fluvio(at: Addresses, topics: Topics) -> dict[str, list[Seen]]:
    found = json.loads(_fluvio_process("read", at, topics))
    return {
        topic: [Seen(bytes.fromhex(value), bytes.fromhex(key)) for key, value in records]
        for topic, records in found.items()
    }


def _fluvio_process(name: str, at: Addresses, what: object) -> str:
    """The real client holds the interpreter while it waits, so it gets a process of its own."""
    script = Path(__file__).with_name("fluvio_process.py")
    done = subprocess.run(
        [sys.executable, str(script), name, at["fluvio-sc"]],
        input=json.dumps(what),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_cursus(at: Addresses, topic: str, shape: str) -> None:
    with CursusWire(at["cursus"]) as wire:
        if shape in (COMMITTED, ABORTED):
            _transact(wire, topic, SHAPES[shape], "commit" if shape == COMMITTED else "abort")
            return
        messages = [Message(sent.value or b"", key=sent.key or b"") for sent in SHAPES[shape]]
        body = batch(messages, topic=topic, acks="-1")
        if shape in CODECS:
            body = bytes(COMPRESSORS[shape](body))  # type: ignore[call-overload]
        assert wire.publish(body)["status"] == "OK"


def _transact(wire: CursusWire, topic: str, records: Sequence[Sent], result: str) -> None:
    words = wire.text(f"INIT_PRODUCER_ID transactional_id=cursus-{topic}").split()
    who = f"transactional_id=cursus-{topic} {words[2]} {words[3]}"
    commands = [f"BEGIN_TXN {who}"]
    for number, sent in enumerate(records, 1):
        text = (sent.value or b"").decode()
        where = f"topic={topic} partition=0 seqNum={number}"
        commands.append(f"TXN_PUBLISH {who} {where} message={text}")
    for command in (*commands, f"END_TXN {who} result={result}"):
        assert wire.text(command).startswith("OK"), command


def read_cursus(at: Addresses, topics: Topics) -> dict[str, list[Seen]]:
    with CursusWire(at["cursus"]) as wire:
        found = {}
        for topic in topics:
            command = f"CONSUME topic={topic} partition=0 offset=0 member=m wait_ms=1000 batch=500"
            found[topic] = [
                Seen(message.payload, message.key, metadata=message.metadata.decode())
                for message in messages_of(wire.ask(command))
            ]
        return found


def write_rustlog(at: Addresses, topic: str, shape: str) -> None:
    with RustLogClient(at["rustlog"]) as client:
        client.produce(topic, 0, [sent.value or b"" for sent in SHAPES[shape]])


def read_rustlog(at: Addresses, topics: Topics) -> dict[str, list[Seen]]:
    found = {}
    for dialect in ("json", "binary"):
        with RustLogClient(at["rustlog"], dialect=dialect) as client:
            for topic in topics:
                seen = [Seen(record.value) for record in client.records(topic, 0)]
                assert found.setdefault(topic, seen) == seen, "the dialects differ"
    return found


def write_blipmq(at: Addresses, topic: str, shape: str) -> None:
    with BlipmqClient(at["blipmq"]) as client:
        client.publish(topic, *(sent.value or b"" for sent in SHAPES[shape]))


class BlipmqReader:
    """Subscribes before anything is written: a subscription begins at the end."""

    def __init__(self, at: Addresses, topics: Sequence[str]) -> None:
        self._client = BlipmqClient(at["blipmq"])
        self._numbers = {topic: self._client.subscribe(topic) for topic in topics}

    def read(self, _at: Addresses, topics: Topics) -> dict[str, list[Seen]]:
        found: dict[str, list[Seen]] = {topic: [] for topic in topics}
        deadline = time.monotonic() + DEADLINE_S
        for topic, count in topics.items():
            while len(found[topic]) < count:
                assert time.monotonic() < deadline, (topic, found[topic])
                for delivery in self._client.poll(self._numbers[topic], 100):
                    found[topic].append(Seen(delivery.message))
                    self._client.acknowledge(self._numbers[topic], delivery.tag)
        self._client.close()
        return found


WRITERS: Final[Mapping[str, Callable[[Addresses, str, str], None]]] = {
    "kafka": write_kafka,
    "fluvio": write_fluvio,
    "cursus": write_cursus,
    "rustlog": write_rustlog,
    "blipmq": write_blipmq,
}
READERS: Final[Mapping[str, Callable[[Addresses, Topics], dict[str, list[Seen]]]]] = {
    "kafka": read_kafka,
    "fluvio": read_fluvio,
    "cursus": read_cursus,
    "rustlog": read_rustlog,
}
"""All but BlipMQ's, which must subscribe first."""
