"""Records written by a published client come back exactly, to itself and to every other client."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
import raw
from kafka_clients import CLIENTS, CODECS, Client, Event, Read

pytestmark = pytest.mark.clients

# An hour ago: a time that no client would pick, and that no retention has run out on.
T0 = int(time.time() * 1000) - 3_600_000
PAIRS = [(writer, reader) for writer in CLIENTS for reader in CLIENTS if writer is not reader]


def odd_events() -> list[Event]:
    """The corners of a record: null and empty everywhere, repeated headers, times out of order."""
    noise = random.Random(20_240_229)
    return [
        Event(b"key", b"value", (), T0),
        Event(None, b"no key", (), T0 + 1),
        Event(b"", b"empty key", (), T0 + 2),
        Event(b"deleted", None, (), T0 + 3),
        Event(b"empty value", b"", (), T0 + 4),
        Event(None, None, (), T0 + 5),
        Event(b"h", b"headers", (("a", b"1"), ("b", b"2"), ("a", b"3")), T0 + 6),
        Event(b"h", b"null header", (("none", None), ("empty", b""), ("none", None)), T0 + 7),
        Event(b"earlier", b"time runs backwards", (), T0 - 60_000),
        Event(
            "schl\u00fcssel".encode(), "\u4e8b\u4ef6".encode(), (("gr\u00f6\u00dfe", b"9"),), T0 + 8
        ),
        Event(b"large", b"abcdefgh" * 20_000, (), T0 + 9),
        Event(b"noise", bytes(noise.randrange(32, 127) for _ in range(5_000)), (), T0 + 10),
        *(Event(f"k{i}".encode(), f"v{i}".encode() * 10, (), T0 + 100 + i) for i in range(200)),
    ]


def written_by(client: Client) -> list[Event]:
    expressed = (client.expressible(event) for event in odd_events())
    return [event for event in expressed if event is not None]


def skip_if_missing(*clients: Client) -> None:
    for client in clients:
        if client.missing():
            pytest.skip(client.missing())


def assert_same(read: Sequence[Read], events: Sequence[Event], since_ms: int) -> None:
    assert [one.offset for one in read] == list(range(len(events)))
    until_ms = time.time() * 1000 + 1
    for got, event in zip(read, events, strict=True):
        if event.timestamp_ms is None:
            assert got.event.timestamp_ms is not None
            assert since_ms <= got.event.timestamp_ms <= until_ms
            event = event._replace(timestamp_ms=got.event.timestamp_ms)
        assert got.event == event


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_reads_back_what_it_wrote(
    broker: str, topic: str, client: Client, codec: str
) -> None:
    skip_if_missing(client)
    events = written_by(client)
    since_ms = int(time.time() * 1000)
    client.create_topic(broker, topic, partitions=1, settings={})
    client.write(broker, topic, events, codec=codec, partition=0)
    assert_same(client.read(broker, topic, partition=0, count=len(events)), events, since_ms)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_batches_stay_as_the_client_compressed_them(
    broker: str, topic: str, client: Client, codec: str
) -> None:
    """A client that finds the broker wanting sends plain records without a word."""
    skip_if_missing(client)
    client.create_topic(broker, topic, partitions=1, settings={})
    client.write(broker, topic, [Event(b"k", b"abcdefgh" * 500)] * 20, codec=codec, partition=0)
    assert {attributes & 7 for attributes in raw.batch_attributes(broker, topic)} == {
        CODECS.index(codec)
    }


@pytest.mark.parametrize(
    ("writer", "reader"), PAIRS, ids=[f"{w.name}-to-{r.name}" for w, r in PAIRS]
)
def test_a_client_reads_what_another_wrote(
    broker: str, topic: str, writer: Client, reader: Client
) -> None:
    skip_if_missing(writer, reader)
    events = written_by(writer)
    since_ms = int(time.time() * 1000)
    # All codecs in one partition: a reader meets them side by side.
    parts = [events[i :: len(CODECS)] for i in range(len(CODECS))]
    writer.create_topic(broker, topic, partitions=1, settings={})
    for codec, part in zip(CODECS, parts, strict=True):
        writer.write(broker, topic, part, codec=codec, partition=0)
    expected = [event for part in parts for event in part]
    assert_same(reader.read(broker, topic, partition=0, count=len(events)), expected, since_ms)


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.name != "kcat"], ids=lambda c: c.name
)
def test_partitions_keep_their_own_records(broker: str, topic: str, client: Client) -> None:
    skip_if_missing(client)
    client.create_topic(broker, topic, partitions=3, settings={})
    for partition in range(3):
        events = [Event(None, f"{partition}/{i}".encode(), (), T0 + i) for i in range(20)]
        client.write(broker, topic, events, codec="none", partition=partition)
    for partition in range(3):
        read = client.read(broker, topic, partition=partition, count=20)
        assert [one.event.value for one in read] == [f"{partition}/{i}".encode() for i in range(20)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_writing_to_an_unknown_topic_creates_it(broker: str, topic: str, client: Client) -> None:
    skip_if_missing(client)
    client.write(broker, topic, [Event(b"k", b"v")], codec="none", partition=0)
    (read,) = client.read(broker, topic, partition=0, count=1)
    assert (read.event.key, read.event.value) == (b"k", b"v")
