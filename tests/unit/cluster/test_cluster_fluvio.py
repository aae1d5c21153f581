"""Fluvio in front of a cluster: what gateways share, and what a cluster that is away means."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from cluster_world import ClusterWorld, is_produce, refused_produce
from fluvio_gateway import FluvioPeer, GatewayClient, agreed, asked, until
from fluvio_world import (
    create_topic,
    produce,
    read_produced,
    read_streamed,
    stream_fetch,
    their_batch,
    topic_spec,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "fluvio"))

from test_fluvio_sc import (
    CREATE,
    DELETE,
    LIST,
    delete,
    listed,
    listing,
    read_update,
    status,
    unwrap,
    watching,
)
from test_fluvio_spu import FETCH, PRODUCE, STREAM
from tests.fuzz.fluvio.fluvio_fuzz import controller_corpus, spu_corpus

from pentalog.broker.port import TopicSpec
from pentalog.cluster import engine, fleet
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.kernels import batch_header, crc32c
from pentalog.model import compression
from pentalog.model.errors import UnsupportedVersion
from pentalog.model.types import Horizon, Partition
from pentalog.protocols.fluvio.codec import Reader, Writer

INVALID_RECORD = 87


def spus(sc: GatewayClient) -> list[tuple[int, str, int]]:
    """(id, host, port)."""
    reader = unwrap(sc.ask(LIST, listing("SPU")), "SPU")

    def one() -> tuple[int, str, int]:
        reader.text()
        number, _, port, _ = reader.i32(), reader.u8(), reader.u16(), reader.u32()
        host = reader.option(reader.text)
        for _ in range(2):
            reader.u8()
        reader.u16()
        reader.text()
        for _ in range(4):
            reader.u8()
        return number, host or "", port

    return reader.many(one)


def leaders(sc: GatewayClient, topic: str) -> list[int]:
    return [leader for leader, _ in partitions(sc, topic)]


def partitions(sc: GatewayClient, topic: str) -> list[tuple[int, int]]:
    """(leader, size in bytes) of its partitions, as they are listed."""
    reader = unwrap(sc.ask(LIST, listing("Partition", topic)), "Partition")

    def one() -> tuple[int, int]:
        reader.text()
        leader = reader.i32()
        assert (reader.u32(), reader.i32()) == (1, leader)
        for _ in range(6):
            reader.u8()
        assert (reader.u8(), reader.i32()) == (1, leader)
        for _ in range(2):
            reader.i64()
        reader.u32(), reader.u32()
        size = reader.i64()
        reader.boolean()
        reader.i64()
        return leader, size

    found = reader.many(one)
    reader.finish()
    return found


def test_every_gateway_is_an_spu(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    numbers = {each.council.me.number: each.name for each in gateways if each.council.me}
    assert sorted(numbers) == [1, 2]
    for each in gateways:
        own = each.council.me
        assert own is not None
        expected = [
            (5000 + number, "localhost", 19310)
            if number == own.number
            else (5000 + number, f"{numbers[number]}.example", 9010)
            for number in (1, 2)
        ]
        assert spus(each.sc()) == expected
    gateways[0].sc().ask(CREATE, create_topic("wide", topic_spec(4)))
    told = [leaders(each.sc(), "wide") for each in gateways]
    assert told[0] == told[1]
    assert sorted(told[0]) == [5001, 5001, 5002, 5002]


def test_sizes_are_those_of_the_clusters_files(
    world: ClusterWorld, gateways: list[FluvioPeer]
) -> None:
    one = gateways[0]
    one.sc().ask(CREATE, create_topic("wide", topic_spec(2)))
    one.spu().ask(PRODUCE, produce("wide", their_batch(b"x" * 1000)))
    size = world.disk.broker.log.size_bytes(Partition("wide", 0))
    assert size > 1000
    assert [told for _, told in partitions(one.sc(), "wide")] == [size, 0]
    with pytest.raises(UnsupportedVersion):  # it was not asked for here
        gateways[1].broker.log.size_bytes(Partition("wide", 0))
    # It is not believed for ever.
    world.runtime.advance(11_000)
    with pytest.raises(UnsupportedVersion):
        one.broker.log.size_bytes(Partition("wide", 0))


def test_a_gateway_that_has_not_met_the_others(
    world: ClusterWorld, known: dict[str, FluvioPeer]
) -> None:
    world.create("demo", 2)
    only = FluvioPeer(world, "one", known)
    assert only.council.me is not None
    assert only.council.me.number == 0
    sc = only.sc()
    only.council.close()
    assert [number for number, _, _ in spus(sc)] == [5001]
    assert leaders(sc, "demo") == [5001, 5001]


def test_watchers_are_told_who_comes_and_goes(
    world: ClusterWorld, known: dict[str, FluvioPeer]
) -> None:
    first = FluvioPeer(world, "one", known)
    agreed(world, [first])
    sc = first.sc()
    spu_watch, partitions = watching(sc, "SPU"), watching(sc, "Partition")
    sc.ask(CREATE, create_topic("demo", topic_spec(2)))
    assert leaders(sc, "demo") == [5001, 5001]
    sc.pushed()
    second = FluvioPeer(world, "two", known)
    agreed(world, [first, second])
    told = dict(sc.pushed())
    assert {spu_watch, partitions} <= told.keys()
    assert sorted(leaders(sc, "demo")) == [5001, 5002]
    second.council.close()
    until(world, [first], lambda: len(first.council.fleet) == 1)
    assert {spu_watch, partitions} <= dict(sc.pushed()).keys()
    assert leaders(sc, "demo") == [5001, 5001]


def test_what_one_gateway_writes_another_reads(gateways: list[FluvioPeer]) -> None:
    one, other = gateways
    one.sc().ask(CREATE, create_topic("demo"))
    reader = other.spu()
    assert read_produced(other.spu().ask(PRODUCE, produce("demo", their_batch(b"a")))) == [
        ("demo", [(0, 0, 0)])
    ]
    stream = reader.request(STREAM, stream_fetch("demo", 0))
    ((number, frame),) = reader.pushed()
    assert number == stream
    assert [value for _, _, value in read_streamed(frame).records] == [b"a"]
    answer = one.spu().ask(PRODUCE, produce("demo", their_batch(b"b"), their_batch(b"c", b"d")))
    assert read_produced(answer) == [("demo", [(0, 0, 1)])]
    follower = other.spu()
    follower.request(STREAM, stream_fetch("demo", 1))
    ((_, frame),) = follower.pushed()
    assert [value for _, _, value in read_streamed(frame).records] == [b"b", b"c", b"d"]


def batches_in(world: ClusterWorld, at: Partition) -> list[int]:
    """How many records each batch of a partition has."""
    opened = world.disk.broker.log.open(at, 0, bytes_max=1 << 20, horizon=Horizon.END).value
    found, position = [], 0
    while position < len(opened.batches):
        header = batch_header(opened.batches, position)
        found.append(header.records)
        position += header.size
    return found


def packed(data: bytes) -> bytes:
    """The same batch, compressed."""
    sent = bytearray(data[:57] + bytes(cramjam.zstd.compress(data[57:])))
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    struct.pack_into(">h", sent, 21, compression.ZSTD)
    struct.pack_into(">I", sent, 17, crc32c(bytes(sent[21:])))
    return bytes(sent)


@pytest.mark.parametrize("pack", [bytes, packed])
def test_what_comes_together_stays_together(
    gateways: list[FluvioPeer], pack: Callable[[bytes], bytes]
) -> None:
    one, world = gateways[0], gateways[0].world
    one.sc().ask(CREATE, create_topic("demo"))
    parts = [pack(their_batch(b"%d" % number, b"x" * 400)) for number in range(20)]
    answer = one.spu().ask(PRODUCE, produce("demo", *parts))
    assert read_produced(answer) == [("demo", [(0, 0, 0)])]
    assert batches_in(world, Partition("demo", 0)) == [40]
    reader = gateways[1].spu()
    reader.request(STREAM, stream_fetch("demo", 0))
    ((_, frame),) = reader.pushed()
    values = [value for _, _, value in read_streamed(frame).records]
    assert values == [value for number in range(20) for value in (b"%d" % number, b"x" * 400)]


def small_topic(gateway: FluvioPeer) -> None:
    spec = TopicSpec(name="small", settings={"max.message.bytes": "1000"})
    gateway.world.disk.topics.create(spec)


def test_more_than_one_batch_holds(gateways: list[FluvioPeer]) -> None:
    one = gateways[0]
    small_topic(one)
    parts = [their_batch(b"%d" % number + b"x" * 250) for number in range(7)]
    assert read_produced(one.spu().ask(PRODUCE, produce("small", *parts))) == [
        ("small", [(0, 0, 0)])
    ]
    assert batches_in(one.world, Partition("small", 0)) == [3, 3, 1]
    # If one of them cannot be written, none is.
    refused = one.spu().ask(PRODUCE, produce("small", *parts, their_batch(b"x" * 1000)))
    assert read_produced(refused) == [("small", [(0, 10, 0)])]
    assert len(one.world.kept(Partition("small", 0))) == 7


@pytest.mark.parametrize(
    ("failing", "kept"),
    [
        (0, "records 3..5 at offset 0, records 6..6 at offset 3"),
        (1, "records 0..2 at offset 0, records 6..6 at offset 3"),
        (2, "records 0..2 at offset 0, records 3..5 at offset 3"),
    ],
)
def test_a_part_that_is_refused_is_told(
    world: ClusterWorld, gateways: list[FluvioPeer], failing: int, kept: str
) -> None:
    one = gateways[0]
    small_topic(one)
    parts = [their_batch(b"%d" % number + b"x" * 250) for number in range(7)]
    count = 0

    def trouble(frame: bytes) -> bytes | None:
        nonlocal count
        if not is_produce(frame) or b"small" not in frame:
            return None
        count += 1
        return refused_produce(frame, INVALID_RECORD) if count == failing + 1 else None

    world.trouble = trouble
    answer = one.spu().ask(PRODUCE, produce("small", *parts))
    answer.u32(), answer.text(), answer.u32(), answer.u32()
    assert answer.i16() == 2
    told = answer.text()
    assert f"only a part was written: {kept}; the rest was refused" in told


def test_topics_of_others_come_with_their_settings(
    world: ClusterWorld, known: dict[str, FluvioPeer]
) -> None:
    only = FluvioPeer(world, "one", known)
    agreed(world, [only])
    sc = only.sc()
    topics = watching(sc, "Topic")
    sc.pushed()
    world.disk.topics.create(TopicSpec(name="hourly", settings={"retention.ms": "3600000"}))
    world.runtime.advance(engine.REFRESH_INTERVAL_MS)
    told = [read_update(frame, "Topic")[1] for number, frame in sc.pushed() if number == topics]
    assert told[0] == [(0, "hourly")]
    assert only.broker.topics.get("hourly").overrides == {"retention.ms": "3600000"}


def test_segments_are_as_small_as_the_cluster_keeps_them(gateways: list[FluvioPeer]) -> None:
    tail = bytes(Writer(19).u8(0).u8(1).u8(1).u32(4096).u8(0).u8(4).u8(0).u8(0).out)
    gateways[0].sc().ask(CREATE, create_topic("small", topic_spec(tail=tail)))
    assert gateways[0].broker.topics.get("small").overrides == {"segment.bytes": "1048576"}


def test_the_state_is_nobodys_topic(gateways: list[FluvioPeer]) -> None:
    sc, spu = gateways[0].sc(), gateways[0].spu()
    assert listed(sc, "Topic") == []
    answer = spu.ask(PRODUCE, produce(STATE_TOPIC, their_batch(b"x")))
    assert read_produced(answer) == [(STATE_TOPIC, [(0, 6, 0)])]
    spu.request(STREAM, stream_fetch(STATE_TOPIC))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame).error == 6
    asked = Writer(24).i32(0).i32(1).i32(1 << 20).u8(0).u32(1).text(STATE_TOPIC).u32(1).u32(0)
    answer = spu.ask(FETCH, bytes(asked.i32(-1).i64(0).i64(0).i32(1 << 20).u32(0).out))
    answer.skip(10)
    assert (answer.u32(), answer.text(), answer.u32()) == (1, STATE_TOPIC, 1)
    assert (answer.u32(), answer.i16()) == (0, 6)
    assert status(sc.ask(DELETE, delete("Topic", STATE_TOPIC)))[1] == 2001


def test_a_cluster_that_is_away(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    one = gateways[0]
    one.sc().ask(CREATE, create_topic("demo"))
    spu, sc = one.spu(), one.sc()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a")))
    world.away = True
    for wire in list(world.wires):
        wire.lose()
    written = spu.request(PRODUCE, produce("demo", their_batch(b"b"), timeout_ms=700))
    sc.request(LIST, listing("Topic"))
    for _ in range(fleet.PATIENCE_MS // 100):
        spu.run()
        sc.run()
    ((number, answer),) = spu.frames()
    assert number == written
    reader = Reader(memoryview(answer), 0, len(answer), 24)
    assert (reader.u32(), reader.text(), reader.u32(), reader.u32()) == (1, "demo", 1, 0)
    assert reader.i16() == 7
    assert sc.line.hung_up
    world.away = False
    spu = one.spu()
    asked(world, spu, PRODUCE, produce("demo", their_batch(b"c")))
    assert world.kept(Partition("demo", 0))[-1] == b"c"


@pytest.mark.parametrize("seed", range(2))
def test_damaged_requests(world: ClusterWorld, gateways: list[FluvioPeer], seed: int) -> None:
    """Nothing raises, and every connection goes on or ends."""
    dice = random.Random(seed)
    one = gateways[seed]
    one.sc().ask(CREATE, create_topic("orders", topic_spec(2)))
    for kind, corpus in ((one.sc, controller_corpus()), (one.spu, spu_corpus())):
        peer, ended = kind(), 0
        for _ in range(150):
            frame = bytearray(dice.choice(corpus))
            for _ in range(dice.randint(0, 3)):
                at = dice.randrange(4, len(frame))
                frame[at] = dice.choice((0, 127, 128, 255, dice.randrange(256)))
            peer.feed(bytes(frame))
            peer.run()
            peer.frames()
            if peer.line.hung_up:
                ended += 1
                peer.session.close()
                peer = kind()
        assert 20 < ended < 150
        assert kind().ask(18, b"", 0).i16() == 0
