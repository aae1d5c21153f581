"""Batches that name the door which wrote them are ordinary ones to published Kafka clients."""

from __future__ import annotations

import struct
import time

import pytest
from crc32c import crc32c
from kafka_clients import CLIENTS, Client, Event

from pentalog.clients.kafka import Cluster
from pentalog.model import batch
from pentalog.model.types import Partition, Record


def named(data: bytearray, door: int) -> bytes:
    """The batch as the door of that number builds it."""
    (attributes,) = struct.unpack_from(">h", data, 21)
    struct.pack_into(">h", data, 21, attributes | door << batch.DOOR_SHIFT)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: str(client.name))
def test_every_client_reads_what_other_doors_wrote(broker: str, topic: str, client: Client) -> None:
    if client.missing():
        pytest.skip(client.missing())
    now_ms = int(time.time() * 1000)
    events = [
        Event(b"k%d" % number, b"v%d" % number, (("h", b"%d" % number),), now_ms)
        for number in range(2 * len(batch.DOORS))
    ]
    with Cluster(broker) as cluster:
        cluster.create_topic(topic, 1)
        for door in range(len(batch.DOORS)):
            pair = [
                Record(event.value, event.key, event.headers, now_ms)
                for event in events[2 * door : 2 * door + 2]
            ]
            data = batch.build(pair, timestamp_ms=now_ms, codec=door)
            cluster.produce(Partition(topic, 0), named(data, door))
    found = client.read(broker, topic, partition=0, count=len(events))
    assert [one.offset for one in found] == list(range(len(events)))
    assert [one.event for one in found] == events
