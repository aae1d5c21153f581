"""What a stream answers Spark: how far a trigger goes, what the group is told, what is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import pentalog
from pentalog.clients.kafka import Cluster, KafkaFailed, committed
from pentalog.model import batch
from pentalog.model.batch import Record
from pentalog.model.types import Partition
from pentalog.tables.options import OptionRefused
from pentalog.tables.positions import LostRecords
from pentalog.tables.source import Pentalog
from pentalog.tables.stream import TopicStream

SCHEMA = StructType().add("value", "binary")
AT = Partition("orders", 0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pentalog.Broker() as broker:
        address = broker.address("kafka")
        with Cluster(address) as cluster:
            cluster.create_topic(AT.topic, 1)
            made = batch.build([Record(b"x" * 1000)] * 100, timestamp_ms=int(time.time() * 1000))
            cluster.produce(AT, bytes(made))
        yield address


def stream(server: str, **options: str) -> TopicStream:
    found = Pentalog({"servers": server, "topics": AT.topic, **options}).streamReader(SCHEMA)
    assert isinstance(found, TopicStream)
    return found


def test_the_group_knows_of_every_batch_before_the_next_is_planned(server: str) -> None:
    reader = stream(server, group="g")
    with Cluster(server) as cluster:
        for done in (0, 40, 100):
            reader.latestOffset({"orders/0": done}, ReadAllAvailable())
            assert committed(cluster, "g")[AT].offset == done
    reader.stop()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_log_that_was_made_anew_is_lost_records(server: str, frozen: bool) -> None:
    reader = stream(server)
    if frozen:
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(LostRecords, match=r"offsets 100\.\.249 are lost"):
        reader.latestOffset({"orders/0": 250}, ReadAllAvailable())
    reader.stop()


def test_of_two_limits_the_narrower_counts(server: str) -> None:
    for rows, bytes_max, reached in (("50", "2k", 10), ("5", "2k", 5), ("50", "10m", 50)):
        reader = stream(server, maxRowsPerTrigger=rows, maxBytesPerTrigger=bytes_max)
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(int(rows))
        assert reader.latestOffset({"orders/0": 0}, limit) == {"orders/0": reached}
        reader.stop()


@pytest.mark.parametrize("option", [{"ending": "earliest"}, {"endingTimestampMs": "5"}])
def test_a_stream_has_no_end(server: str, option: dict[str, str]) -> None:
    with pytest.raises(OptionRefused, match="a stream ends with its trigger"):
        stream(server, **option)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"username": "me"}, "username needs saslMechanism"),
        ({"tlsAuthorities": "ca.pem"}, "needs tls = true"),
        ({"topics": "none"}, "'none' does not exist; there are: orders"),
        ({"tls": "true", "timeoutMs": "500"}, "does not answer in TLS"),
        ({"tls": "true", "tlsAuthorities": "no/file"}, "no/file: No such file"),
    ],
)
def test_connections_are_refused_with_what_to_do(
    server: str, option: dict[str, str], words: str
) -> None:
    def begin() -> None:
        reader = stream(server, **option)
        try:
            reader.initialOffset()
        finally:
            reader.stop()

    with pytest.raises((OptionRefused, KafkaFailed), match=words):
        begin()
