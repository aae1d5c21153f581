"""A million records in ten topics, with the groups that read them: to a cluster and back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kafka_node import Node, running

import pentalog
from pentalog.clients.kafka import EARLIEST, LATEST, Cluster, GroupOffset, commit, committed
from pentalog.clients.kafka.fetch import FetchFeed
from pentalog.model import batch
from pentalog.model.pieces import OPENED_BYTES_MAX
from pentalog.model.types import Partition, Record

pytestmark = [pytest.mark.trio, pytest.mark.timeout(1200)]

TOPICS = [f"million-{number}" for number in range(10)]
PARTITIONS = 2
BATCHES = 50
"""Of each partition."""
RECORDS = 1000
PLACES = [Partition(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
GROUPS = ("auditors", "readers")


def fill(cluster: Cluster) -> None:
    for topic in TOPICS:
        cluster.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
    for at in PLACES:
        for number in range(BATCHES):
            records = [
                Record(b"%d of %d of %s" % (each, number, str(at).encode()), b"%d" % each)
                for each in range(RECORDS)
            ]
            cluster.produce(at, bytes(batch.build(records, timestamp_ms=1_700_000_000_000)))
    for place, group in enumerate(GROUPS):
        commit(cluster, group, {at: GroupOffset(1000 * place + at.index, group) for at in PLACES})


def seen(cluster: Cluster) -> dict[Partition, tuple[int, int, str]]:
    """Start, end and a checksum of everything between, computed apart from the move."""
    found = {}
    for at in PLACES:
        start, end = (cluster.offsets({at: when})[at] for when in (EARLIEST, LATEST))
        digest = hashlib.sha256()
        feed = FetchFeed(cluster, at, start, end)
        while (piece := feed.read()) is not None:
            for offset, record in batch.records_of(piece.data, 0, bytes_max=OPENED_BYTES_MAX):
                digest.update(b"%d|%b|%b;" % (offset, record.key or b"", record.value or b""))
        feed.close()
        found[at] = (start, end, digest.hexdigest())
    return found


def offsets(cluster: Cluster) -> Mapping[str, Mapping[Partition, GroupOffset]]:
    return {group: committed(cluster, group) for group in GROUPS}


def move(*words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "pentalog", "move", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """With nobody else's topics: everything a cluster has comes back."""
    with running(tmp_path / "cluster") as started:
        yield started


def test_there_and_back(node: Node, tmp_path: Path) -> None:
    listen = ("kafka=127.0.0.1:0",)
    with pentalog.Broker(tmp_path / "one", listen=listen) as one, Cluster(one.address()) as cluster:
        fill(cluster)
        first, groups = seen(cluster), offsets(cluster)
    assert sum(end - start for start, end, _ in first.values()) == 1_000_000
    told = move("--data", str(tmp_path / "one"), "--to", f"kafka://{node.address}")
    assert told["records"] == 1_000_000
    with Cluster(node.address) as cluster:
        assert (seen(cluster), offsets(cluster)) == (first, groups)
    told = move("--server", node.address, "--into", str(tmp_path / "two"))
    assert told["records"] == 1_000_000
    with pentalog.Broker(tmp_path / "two", listen=listen) as two, Cluster(two.address()) as cluster:
        assert (seen(cluster), offsets(cluster)) == (first, groups)
