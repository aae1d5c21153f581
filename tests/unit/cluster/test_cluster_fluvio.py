"""Fluvio in front of a cluster: what gateways share, and what a cluster that is away means."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import cramjam
import pytest
from cluster_world import ClusterWorld, is_produce, refused_produce
from council_world import pass_time
from disk_broker import DiskBroker
from fluvio_gateway import FluvioPeer, GatewayClient, MemoryUpstream
from fluvio_world import (
    chain,
    create_topic,
    predefined,
    produce,
    read_produced,
    read_streamed,
    request,
    stream_fetch,
    their_batch,
    topic_spec,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "fluvio"))

from test_fluvio_sc import (
    CREATE,
    DELETE,
    LIST,
    create_module,
    delete,
    listed,
    listing,
    read_update,
    status,
    text_of,
    unwrap,
    watching,
)
from test_fluvio_spu import FETCH, PRODUCE, STREAM
from tests.fuzz.fluvio.fluvio_fuzz import controller_corpus, spu_corpus
from wat_modules import module

from pentalog.broker.council import ALONE
from pentalog.broker.port import TopicSpec
from pentalog.broker.security import (
    ANONYMOUS,
    CLUSTER_NAME,
    Access,
    Kind,
    Operation,
    Principal,
    Rule,
)
from pentalog.cluster import engine, fleet
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.kernels import batch_header, crc32c
from pentalog.model import compression
from pentalog.model.errors import UnsupportedVersion
from pentalog.model.types import Horizon, Partition
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.errors import NOT_LEADER
from pentalog.protocols.fluvio.forwarding import name_among
from pentalog.session import Context

INVALID_RECORD = 87


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path, flush_interval_ms=50)
    yield made
    made.close()


@pytest.fixture
def known() -> dict[str, FluvioPeer]:
    return {}


@pytest.fixture
def gateways(world: ClusterWorld, known: dict[str, FluvioPeer]) -> list[FluvioPeer]:
    """Two; the first is the owner."""
    made = [FluvioPeer(world, name, known) for name in ("one", "two")]
    agreed(world, made)
    return sorted(made, key=lambda each: not each.council.owned)


def agreed(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    def settled() -> bool:
        sizes = {len(each.council.fleet) for each in gateways}
        return sizes == {len(gateways)} and any(each.engine.state.owned for each in gateways)

    pass_time(world, list(gateways), settled)


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


def until(world: ClusterWorld, gateways: list[FluvioPeer], met: Callable[[], bool]) -> None:
    pass_time(world, list(gateways), met)


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


@pytest.mark.parametrize("at", [0, 1])
def test_modules_are_stored_through_any_gateway(
    world: ClusterWorld, gateways: list[FluvioPeer], at: int
) -> None:
    here, there = gateways[at], gateways[1 - at]
    sc = here.sc()
    assert status(asked(world, sc, CREATE, create_module("only-a", module("filter")))) == (
        "only-a",
        0,
    )
    assert [kept.name for kept in here.broker.smart_modules.all()] == ["only-a"]
    until(world, gateways, lambda: len(there.broker.smart_modules.all()) == 1)
    here.sc().ask(CREATE, create_topic("fruit"))
    for each in gateways:
        each.spu().ask(PRODUCE, produce("fruit", their_batch(b"apple", b"banana")))
        spu = each.spu()
        spu.request(STREAM, stream_fetch("fruit", modules=chain(predefined("only-a"))))
        ((_, frame),) = spu.pushed()
        values = [value for _, _, value in read_streamed(frame).records]
        assert values == [b"apple"] * (1 + gateways.index(each))
    assert status(asked(world, there.sc(), DELETE, delete("SmartModule", "only-a"))) == (
        "only-a",
        0,
    )
    assert not there.broker.smart_modules.all()
    until(world, gateways, lambda: not here.broker.smart_modules.all())
    rubbish = asked(world, sc, CREATE, create_module("rubbish", b"rubbish"))
    name, code = rubbish.text(), rubbish.i16()
    assert (name, code) == ("rubbish", 6002)


def asked(world: ClusterWorld, client: GatewayClient, key: int, body: bytes) -> Reader:
    """The answer, however long it takes."""
    number = client.request(key, body)
    for _ in range(400):
        client.run()
        for found, answer in client.frames():
            if found == number:
                return Reader(memoryview(answer), 0, len(answer), client.version)
    raise AssertionError("no answer")


def test_an_owner_that_does_not_answer(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    other = gateways[1]
    other.council.caller = None
    sc = other.sc()
    reader = asked(world, sc, CREATE, create_module("m", module("filter")))
    assert status(reader, text_of) == ("m", 2)
    # It is not passed on a second time by one who is asked in the owner's place.
    until(world, gateways, lambda: bool(other.council.secret))
    among = name_among(other.council)
    assert among == name_among(gateways[0].council) != name_among(ALONE)
    for name in (among, among[:-1], name_among(ALONE)):
        sc.feed(request(CREATE, create_module("m", module("filter")), 19, 77, name))
        sc.run()
        ((number, answer),) = sc.frames()
        assert number == 77
        # It says that it is not the owner by a number: the one that asks is to go elsewhere.
        assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("m", NOT_LEADER)
    assert not other.upstreams


def test_rules_are_asked_where_the_client_is(
    world: ClusterWorld, gateways: list[FluvioPeer], tmp_path: Path
) -> None:
    """The owner does not know who that is."""
    (tmp_path / "guarded").mkdir()
    guarded = DiskBroker(tmp_path / "guarded", authorization=True)
    rules = guarded.broker.rules
    anna = Principal("User", "anna")
    rules.add([Rule(Kind.CLUSTER, CLUSTER_NAME, False, anna, "*", Operation.ALTER, True)])
    owner, other = gateways
    for each, who in ((owner, ANONYMOUS), (other, anna)):
        made = partial(guarded_context, each.door.context, Access(rules, who))
        each.door.context = made  # type: ignore[method-assign]
    store = create_module("m", module("filter"))
    assert status(asked(world, other.sc(), CREATE, store)) == ("m", 0)
    assert status(asked(world, owner.sc(), CREATE, store)) == ("m", 13)
    pretended = owner.sc()
    name = name_among(ALONE) + "guessed"
    pretended.feed(request(CREATE, create_module("n", module("filter")), 19, 78, name))
    pretended.run()
    ((_, answer),) = pretended.frames()
    assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("n", NOT_LEADER)
    assert [each.name for each in owner.broker.smart_modules.all()] == ["m"]
    guarded.close()


def guarded_context(made: Callable[[str], Context], access: Access, listener: str) -> Context:
    return replace(made(listener), access=access)


class Move(NamedTuple):
    """Of the state, away from its owner while a request is on its way there."""

    owner: FluvioPeer
    asked: FluvioPeer
    """Whose client makes the request."""
    newcomer: FluvioPeer
    """Who is the owner next."""
    bystander: FluvioPeer
    """Of the two others the one that is not asked."""


@pytest.fixture(params=["this", "third"])
def move(world: ClusterWorld, known: dict[str, FluvioPeer], request: pytest.FixtureRequest) -> Move:
    """The gateway that was asked becomes the owner, or a third one does."""
    made = [FluvioPeer(world, name, known) for name in ("one", "two", "three")]
    agreed(world, made)
    owner = next(each for each in made if each.council.owned)
    first, second = sorted((each for each in made if each is not owner), key=number)
    asked, bystander = (first, second) if request.param == "this" else (second, first)
    return Move(owner, asked, first, bystander)


def number(gateway: FluvioPeer) -> int:
    assert gateway.council.me is not None
    return gateway.council.me.number


STORE = (CREATE, create_module("m", module("filter")))
DROP = (DELETE, delete("SmartModule", "m"))


def test_who_owns_no_more_sends_nobody_away(world: ClusterWorld, move: Move) -> None:
    """The gateway that is asked hears later of a new owner than the one it takes for the owner."""
    calls = 0

    def taken_for(peer: FluvioPeer) -> FluvioPeer:
        nonlocal calls
        calls += 1
        if calls == 4:
            move.owner.council.close()
        return peer if move.newcomer.council.owned else move.bystander

    move.asked.taken_for = taken_for
    assert status(asked(world, move.asked.sc(), *STORE)) == ("m", 0)
    assert calls >= 4
    assert move.newcomer.council.owned
    assert [kept.name for kept in move.asked.broker.smart_modules.all()] == ["m"]
    until(world, [move.bystander], lambda: len(move.bystander.broker.smart_modules.all()) == 1)


def test_an_owner_that_dies(world: ClusterWorld, move: Move) -> None:
    def taken_for(peer: FluvioPeer) -> FluvioPeer:
        if not move.owner.dead:
            move.owner.die()
        return peer

    move.asked.taken_for = taken_for
    assert status(asked(world, move.asked.sc(), *STORE)) == ("m", 0)
    assert len(move.asked.upstreams) > 2  # those that were refused
    assert move.newcomer.council.owned


def test_an_owner_that_never_answers(world: ClusterWorld, move: Move) -> None:
    """It is frozen; the wire stays."""
    sc = move.asked.sc()
    sc.request(*STORE)
    with patch.object(MemoryUpstream, "pump", lambda _: False):
        world.runtime.run()
        move.owner.dialer.cut()
        until(world, [move.asked, move.bystander], lambda: move.newcomer.council.owned)
    sc.run()
    while not (answers := sc.frames()):
        sc.run()
    ((_, answer),) = answers
    assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("m", 0)


def test_what_is_asked_twice_is_done_once(world: ClusterWorld, move: Move) -> None:
    sc = move.asked.sc()
    for what in (STORE, DROP):
        move.owner.lost_answers = 2
        assert status(asked(world, sc, *what)) == ("m", 0)
        assert move.owner.lost_answers == 0
    assert not move.asked.broker.smart_modules.all()
    assert status(asked(world, sc, *DROP), text_of) == ("m", 6001)


def test_no_owner_for_long(world: ClusterWorld, move: Move) -> None:
    """Somebody else is taken for the owner, and goes on saying that he is not."""
    move.asked.taken_for = lambda peer: move.bystander
    reader = asked(world, move.asked.sc(), *STORE)
    assert (reader.text(), reader.i16()) == ("m", 2)
    assert "not the owner" in reader.text()
    calls = len(move.asked.upstreams)
    assert calls <= 40_000 // 100
    world.runtime.advance(10_000)
    assert len(move.asked.upstreams) == calls


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
