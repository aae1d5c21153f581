"""Every record, written through every door, read through every door, as the document says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import apache_kafka
import brokers

pytest.importorskip("fluvio")

from crossing_doors import READERS, WRITERS, Addresses, BlipmqReader, write_after
from crossing_shapes import ABORTED, SHAPES, SHOWS, WRITES, Seen, expected

from pentalog.protocols import PROTOCOLS

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

DOORS = tuple(WRITERS)
LISTENERS = ("fluvio-sc", "fluvio-spu", "cursus", "rustlog", "blipmq")


class Crossing(NamedTuple):
    topic: str
    writer: str
    shape: str

    @property
    def count(self) -> int:
        return 1 if self.shape == ABORTED else len(SHAPES[self.shape])


CROSSINGS = [
    Crossing(f"{writer}-{number}", writer, shape)
    for number, shape in enumerate(SHAPES)
    for writer in DOORS
    if WRITES[shape][writer] == "yes"
]


@pytest.fixture(scope="module", params=["local", "cluster"])
def addresses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Addresses]:
    """The doors on a directory, and the same doors in front of Apache Kafka."""
    directory = tmp_path_factory.mktemp("crossing")
    with on_directory(directory) if request.param == "local" else on_cluster(directory) as found:
        yield found


@contextlib.contextmanager
def on_directory(directory: Path) -> Iterator[Addresses]:
    settings = {"topic_defaults": "max.message.bytes=4194304"}
    words = brokers.open_doors(*LISTENERS)
    started = brokers.start_pentalog(directory, settings=settings, arguments=words)
    with brokers.stopping(started):
        yield started.doors
        assert started.process.poll() is None, f"the broker ended; see {started.log}"


@contextlib.contextmanager
def on_cluster(directory: Path) -> Iterator[Addresses]:
    settings = {"message.max.bytes": "4194304", "group.initial.rebalance.delay.ms": "0"}
    try:
        node = apache_kafka.start(directory / "kafka", settings=settings, is_brief=True)
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    with brokers.stopping(node):
        words = brokers.open_doors(*LISTENERS)
        gateway = brokers.start_gateway(directory / "gateway", node.address, words)
        with brokers.stopping(gateway):
            yield {**gateway.doors, "kafka": node.address}
            assert gateway.process.poll() is None, f"the gateway ended; see {gateway.log}"


@pytest.fixture(scope="module")
def views(addresses: Addresses) -> Mapping[str, Mapping[str, list[Seen]]]:
    """What every door shows of every topic, once all are written."""
    topics = {crossing.topic: crossing.count for crossing in CROSSINGS}
    admin = AdminClient({"bootstrap.servers": addresses["kafka"]})
    for made in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        made.result(30)
    subscriber = BlipmqReader(addresses, list(topics))
    for crossing in CROSSINGS:
        WRITERS[crossing.writer](addresses, crossing.topic, crossing.shape)
        if crossing.shape == ABORTED:
            write_after(addresses, crossing.topic)
    readers = {**READERS, "blipmq": subscriber.read}
    return {door: read(addresses, topics) for door, read in readers.items()}


def test_the_document_names_every_door_and_every_record() -> None:
    assert {protocol.name for protocol in PROTOCOLS} == set(DOORS)
    for table in (WRITES, SHOWS):
        assert list(table) == list(SHAPES)
        assert all(tuple(row) == DOORS for row in table.values())
    assert {cell for row in WRITES.values() for cell in row.values()} == {"yes", "-"}


@pytest.mark.parametrize("reader", DOORS)
@pytest.mark.parametrize(
    "crossing", CROSSINGS, ids=lambda one: f"{one.shape} by {one.writer}".replace(" ", "-")
)
def test_a_record_crosses(
    views: Mapping[str, Mapping[str, list[Seen]]], crossing: Crossing, reader: str
) -> None:
    shown = SHOWS[crossing.shape][reader]
    found = views[reader][crossing.topic]
    wanted = expected(crossing.shape, shown)
    if shown == "nothing" and reader in ("fluvio", "cursus"):
        wanted = [one._replace(key=b"") for one in wanted]
    assert found == wanted


ODD_NAMES = ("a/b", "..", "two words", "grüße", "\x1b[31m\t", "x" * 300)
SPELLABLE = {"cursus": ("a/b", "..", "grüße", "x" * 300)}
"""A command of Cursus ends a name at white space."""


@pytest.fixture(scope="module")
def named(addresses: Addresses) -> Mapping[str, Mapping[str, list[Seen]]]:
    """What every door shows of topics whose names only BlipMQ can make."""
    subscriber = BlipmqReader(addresses, ODD_NAMES)
    for topic in ODD_NAMES:
        for writer in ("blipmq", "kafka", "rustlog"):
            WRITERS[writer](addresses, topic, "one byte")
    readers = {**READERS, "blipmq": subscriber.read}
    return {
        door: read(
            addresses, dict.fromkeys(SPELLABLE.get(door, ODD_NAMES), 3 * len(SHAPES["one byte"]))
        )
        for door, read in readers.items()
    }


ON_DIRECTORY = pytest.mark.parametrize("addresses", ["local"], indirect=True)
"""A cluster has Kafka's names only."""


@ON_DIRECTORY
@pytest.mark.parametrize("door", DOORS)
def test_any_name_is_read_by_those_who_know_it(
    named: Mapping[str, Mapping[str, list[Seen]]], door: str
) -> None:
    sent = [one.value for one in SHAPES["one byte"]]
    for topic, seen in named[door].items():
        assert [one.value for one in seen] == sent * 3, topic


@ON_DIRECTORY
@pytest.mark.usefixtures("named")
def test_lists_of_kafka_have_names_of_kafka(addresses: Addresses) -> None:
    admin = AdminClient({"bootstrap.servers": addresses["kafka"]})
    assert not set(ODD_NAMES) & set(admin.list_topics(timeout=30).topics)
    assert set(admin.list_topics("a/b", timeout=30).topics["a/b"].partitions) == {0}
