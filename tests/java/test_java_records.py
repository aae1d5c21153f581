"""Java producers and consumers of plain records: codecs, acknowledgements, places, large ones."""

from __future__ import annotations

import pytest
from jvm import Clients, taken, until

pytestmark = [pytest.mark.clients, pytest.mark.java]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_written_is_read(clients: Clients, topic: str, codec: str) -> None:
    clients.admin()("create topic", topic=topic, partitions=1)
    producer = clients.producer(compression_type=codec, linger_ms=5)
    records = [[0, f"key-{i}", f"value-{i}-" + "x" * (i % 50)] for i in range(1000)]
    records += [[0, None, "no key"], [0, "no value", None], [0, "", ""]]
    placed = producer("send", topic=topic, records=records)
    assert placed == [[0, i] for i in range(len(records))]
    consumer = clients.consumer(check_crcs=True)
    consumer("assign", partitions=[[topic, 0]], beginning=True)
    read = taken(consumer, len(records))
    assert read == [[topic, 0, i, record[1], record[2]] for i, record in enumerate(records)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acknowledgement_works(clients: Clients, topic: str, acks: str) -> None:
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=1)
    producer = clients.producer(acks=acks, enable_idempotence=False)
    producer("send", topic=topic, records=[[0, None, f"{i}"] for i in range(50)])
    end = until(
        lambda: admin("offsets", partitions=[[topic, 0]], at="latest"),
        lambda found: found[0][2] == 50,
    )
    assert end == [[topic, 0, 50]]


def test_keys_decide_the_partition(clients: Clients, topic: str) -> None:
    clients.admin()("create topic", topic=topic, partitions=4)
    producer = clients.producer()
    records = [[None, f"key-{i % 10}", f"{i}"] for i in range(100)]
    placed = producer("send", topic=topic, records=records)
    homes = {(record[1], place[0]) for record, place in zip(records, placed, strict=True)}
    assert len(homes) == 10
    assert len({partition for _, partition in homes}) > 1


def test_a_consumer_goes_where_it_wants(clients: Clients, topic: str) -> None:
    clients.admin()("create topic", topic=topic, partitions=1)
    clients.producer()("send", topic=topic, records=[[0, None, f"{i}"] for i in range(100)])
    consumer = clients.consumer(max_poll_records=7)
    consumer("assign", partitions=[[topic, 0]], beginning=True)
    assert len(taken(consumer, 100)) == 100
    consumer("seek", partitions=[[topic, 0]], offset=90)
    assert [one[4] for one in taken(consumer, 10)] == [f"{i}" for i in range(90, 100)]
    assert consumer("positions") == [[topic, 0, 100]]


def test_large_records_pass(clients: Clients, topic: str) -> None:
    """Larger than a consumer's whole fetch, which must still make progress."""
    clients.admin()(
        "create topic", topic=topic, partitions=1, configs={"max.message.bytes": str(5 << 20)}
    )
    producer = clients.producer(max_request_size=5 << 20)
    large = "y" * (3 << 20)
    producer("send", topic=topic, records=[[0, None, large], [0, None, "after"]])
    consumer = clients.consumer(max_partition_fetch_bytes=1000, fetch_max_bytes=1000)
    consumer("assign", partitions=[[topic, 0]], beginning=True)
    assert [one[4] for one in taken(consumer, 2)] == [large, "after"]


def test_a_topic_is_made_when_it_is_first_used(clients: Clients, topic: str) -> None:
    placed = clients.producer()("send", topic=topic, records=[[None, None, "first"]])
    assert placed[0][1] == 0
    assert topic in clients.admin()("list topics")
