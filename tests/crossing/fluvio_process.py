"""What the real Fluvio client does for the crossing: `write` or `read`, as JSON on the pipes."""

from __future__ import annotations

import json
import os
import sys

from fluvio import Compression, Fluvio, FluvioConfig, Offset, Record, TopicProducerConfigBuilder


def write(client: Fluvio, topic: str, codec: str, pairs: list[list[str]]) -> None:
    builder = TopicProducerConfigBuilder().linger(20)
    if codec:
        builder = builder.compression(getattr(Compression, codec.capitalize()))
    producer = client.topic_producer_with_config(topic, builder.build())
    records = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in pairs]
    for output in producer.send_all(records):
        output.wait()
    producer.flush()


def read(client: Fluvio, topics: dict[str, int]) -> dict[str, list[list[str]]]:
    found = {}
    for topic, count in topics.items():
        stream = client.partition_consumer(topic, 0).stream(Offset.beginning())
        records = [next(stream) for _ in range(count)]
        found[topic] = [[key_of(one).hex(), bytes(one.value()).hex()] for one in records]
    return found


def key_of(record: Record) -> bytes:
    key = bytes(record.key())
    return b"" if key == b"No key" else key  # so the client shows a null key


def main() -> None:
    name, address = sys.argv[1:]
    config = FluvioConfig.new(address)
    config.disable_tls()
    client = Fluvio.connect_with_config(config)
    what = json.load(sys.stdin)
    if name == "write":
        write(client, *what)
    else:
        print(json.dumps(read(client, what)))
    sys.stdout.flush()
    # The client's threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
