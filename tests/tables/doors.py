"""Writing values through every door of a broker; a new door is one more entry in `WRITERS`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pentalog

_CHUNK = 1000
_FLUVIO = """
import sys
from fluvio import Fluvio, FluvioConfig, TopicProducerConfigBuilder
config = FluvioConfig.new(sys.argv[1])
config.disable_tls()
patient = TopicProducerConfigBuilder().timeout(60_000).build()
producer = Fluvio.connect_with_config(config).topic_producer_with_config(sys.argv[2], patient)
values = sys.stdin.buffer.read().split(b"\\n")
for start in range(0, len(values), 1000):
    producer.send_all([(b"", value) for value in values[start : start + 1000]])
producer.flush()
"""

_CURSUS = """
import sys
from cursus import Acks, Producer, ProducerConfig
producer = Producer(ProducerConfig(
    topic=sys.argv[2], brokers=[sys.argv[1]], partitions=int(sys.argv[3]), acks=Acks.ALL,
    linger_ms=5, buffer_size=100_000,
))
for value in sys.stdin.read().split("\\n"):
    producer.send(value)
producer.flush()
producer.close()
"""

Write = Callable[[pentalog.Broker, str, int, Sequence[bytes]], None]
"""(broker, topic, its partitions, values): returns when every value is safe."""


def _chunks(values: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]


def kafka(broker: pentalog.Broker, topic: str, _: int, values: Sequence[bytes]) -> None:
    from confluent_kafka import Producer

    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address("kafka"), "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failed == []


def _program(text: str, values: Sequence[bytes], *arguments: str) -> None:
    """Clients that hold the interpreter's lock, or start threads, have a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        input=b"\n".join(values),
        capture_output=True,
        timeout=120,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr.decode()


def fluvio(broker: pentalog.Broker, topic: str, _: int, values: Sequence[bytes]) -> None:
    _program(_FLUVIO, values, broker.address("fluvio-sc"), topic)


def cursus(broker: pentalog.Broker, topic: str, partitions: int, values: Sequence[bytes]) -> None:
    _program(_CURSUS, values, broker.address("cursus"), topic, str(partitions))


def rustlog(broker: pentalog.Broker, topic: str, partitions: int, values: Sequence[bytes]) -> None:
    from pentalog.clients.rustlog import RustLogClient

    with RustLogClient(broker.address("rustlog")) as client:
        for number, chunk in enumerate(_chunks(values)):
            client.produce(topic, number % partitions, chunk)


def blipmq(broker: pentalog.Broker, topic: str, _: int, values: Sequence[bytes]) -> None:
    from pentalog.clients.blipmq import BlipmqClient

    with BlipmqClient(broker.address("blipmq")) as client:
        for chunk in _chunks(values):
            client.publish(topic, *chunk)


WRITERS: Mapping[str, Write] = {
    "kafka": kafka,
    "fluvio": fluvio,
    "cursus": cursus,
    "rustlog": rustlog,
    "blipmq": blipmq,
}
"""By the word that the column `door` has for it."""
