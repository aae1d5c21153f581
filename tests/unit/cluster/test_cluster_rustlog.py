"""The RustLog door on the cluster engine: the same conversations, with the cluster's answers."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import GatewayConnection, GatewayWorld, SecondGateway
from rustlog_world import (
    commit,
    committed,
    create,
    describe,
    failure,
    fetch,
    fetched,
    framed,
    produce,
    text,
)

from pentalog.cluster import fleet
from pentalog.model.types import Partition

sys.path.insert(0, str(Path(__file__).parents[2] / "golden" / "rustlog"))

from test_rustlog_golden import (
    JSON_CONVERSATION,
    METRICS,
    ORIGINAL,
    OURS,
    exchanges,
    failed,
    in_pieces_of,
    talk,
)


def unnameable(name: str) -> bytes:
    accepted = "a cluster takes 1 to 249 ASCII letters, digits, '.', '_' and '-'"
    said = f"Invalid topic name: topic name {name!r}: {accepted}, and no name of its own topics"
    return failed(12, said)


CLUSTER = {
    **ORIGINAL,
    **OURS,
    7: unnameable(""),
    8: unnameable("a b/../é"),
    9: framed(b"\x06" + struct.pack(">IH", 1, 4) + b"demo" + struct.pack(">I", 2)),
    30: failed(
        5, "Offset commit failed: topic 'nope' does not exist in the cluster: create it first"
    ),
    31: framed(b"\x04\0"),
}
"""A cluster has topics with Kafka's names only, and keeps no offsets of others."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GatewayWorld]:
    made = GatewayWorld(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_captured_conversation(world: GatewayWorld, size: int) -> None:
    answers = talk(world, in_pieces_of(size))  # type: ignore[arg-type]
    assert answers.pop(METRICS)[4] == 9
    assert answers == {number: CLUSTER[number] for number in answers}
    assert len(answers) == len(CLUSTER) - 1


def test_conversation_in_json(world: GatewayWorld) -> None:
    peer = world.connect()
    for asked, answer in JSON_CONVERSATION:
        assert peer.ask(framed(asked)) == answer
    assert peer.line.hung_up


def test_a_pipeline_reads_its_own_writes(world: GatewayWorld) -> None:
    peer = world.connect()
    asked = create("demo", 1) + b"".join(
        produce("demo", 0, b"%d" % number) + fetch("demo", 0, number) for number in range(20)
    )
    answers = peer.asks(asked)
    assert len(answers) == 41
    for number in range(20):
        assert answers[1 + 2 * number] == b"\x01" + struct.pack(">QI", number, 1)
        assert fetched(answers[2 + 2 * number]) == ([b"%d" % number], number + 1)


def test_answers_larger_than_a_buffer(world: GatewayWorld) -> None:
    peer = world.connect()
    peer.ask(create("demo", 1))
    values = [bytes([number]) * (number * 9_000) for number in range(30)]
    for value in values:
        peer.ask(produce("demo", 0, value))
    assert fetched(peer.ask(fetch("demo", 0, 0, 8 << 20))) == (values, 30)


def test_many_requests_are_few_batches(world: GatewayWorld) -> None:
    peer = world.connect()
    peer.ask(create("demo", 1))
    values = [b"%d" % number for number in range(500)]
    answers = peer.asks(b"".join(produce("demo", 0, value) for value in values))
    assert answers == [b"\x01" + struct.pack(">QI", number, 1) for number in range(500)]
    assert world.kept(Partition("demo", 0)) == values
    assert world.metrics.appended_batches < 5


def test_numbers_that_kafka_does_not_know(world: GatewayWorld) -> None:
    peer = world.connect()
    peer.ask(create("demo", 1))
    peer.ask(produce("demo", 0, b"a"))
    largest = (1 << 64) - 1
    assert fetched(peer.ask(fetch("demo", 0, largest))) == ([], largest)
    assert failure(peer.ask(fetch("demo", 0xFFFFFFFF, 0)))[0] == 10
    assert peer.ask(committed("g" * 40_000, "demo", 0)) == b"\x04\0"
    assert peer.ask(committed("g", "t" * 40_000, 0)) == b"\x04\0"
    assert peer.ask(committed("g", "demo", 0xFFFFFFFF)) == b"\x04\0"
    assert peer.ask(committed("", "demo", 0)) == b"\x04\0"
    assert failure(peer.ask(produce("t" * 40_000, 0, b"x")))[0] == 10
    assert failure(peer.ask(describe("demo", 0xFFFFFFFF)))[0] == 14


def test_topics_that_others_grow_and_delete(world: GatewayWorld) -> None:
    peer = world.connect()
    peer.ask(create("demo", 1))
    world.disk.topics.grow("demo", 2)
    assert peer.ask(produce("demo", 1, b"a")) == b"\x01" + struct.pack(">QI", 0, 1)
    world.disk.topics.grow("demo", 3)
    answer = peer.say(type="Produce", topic="demo", partition=2, records=["YQ=="])
    assert answer["base_offset"] == 0
    world.disk.topics.delete("demo")
    assert failure(peer.ask(describe("demo")))[0] == 13
    assert peer.ask(create("demo", 1))[0] == 5
    assert peer.ask(produce("demo", 0, b"b")) == b"\x01" + struct.pack(">QI", 0, 1)


def test_two_gateways(world: GatewayWorld) -> None:
    """A topic, records and offsets of one are seen at the other at once."""
    peer = world.connect()
    other = GatewayConnection(SecondGateway(world))
    peer.ask(create("demo", 1))
    peer.ask(produce("demo", 0, b"a"))
    assert fetched(other.ask(fetch("demo", 0, 0))) == ([b"a"], 1)
    assert other.ask(produce("demo", 0, b"b"))[1:9] == struct.pack(">Q", 1)
    assert fetched(peer.ask(fetch("demo", 0, 1))) == ([b"b"], 2)
    peer.ask(commit("readers", "demo", 0, 2))
    assert other.ask(committed("readers", "demo", 0)) == peer.ask(committed("readers", "demo", 0))


@pytest.mark.parametrize("seed", range(2))
def test_damaged_requests(world: GatewayWorld, seed: int) -> None:
    """Every one is answered, or ends its connection."""
    dice = random.Random(seed)
    frames = [frame for _, frame, _ in exchanges()]
    frames += [framed(asked) for asked, _ in JSON_CONVERSATION]
    world.create("demo", 2)
    peer = world.connect()
    ended = 0
    for _ in range(400):
        payload = bytearray(dice.choice(frames)[4:])
        for _ in range(min(dice.randint(0, 4), len(payload))):
            at = dice.randrange(len(payload))
            payload[at] = dice.choice((0, 127, 128, 255, dice.randrange(256)))
        before = len(peer.line.frames())
        peer.feed(framed(bytes(payload)))
        pass_time(world, peer, 100)
        assert len(peer.line.frames()) == before + 1
        if peer.line.hung_up:
            ended += 1
            peer.session.close()
            peer = world.connect()
    assert 10 < ended < 200


def test_a_cluster_that_is_away(world: GatewayWorld) -> None:
    peer = world.connect()
    peer.ask(create("demo", 1))
    world.away = True
    for wire in list(world.wires):
        wire.lose()
    peer.feed(text(type="ListTopics") + produce("demo", 0, b"x"))
    pass_time(world, peer, fleet.PATIENCE_MS * 3)
    listed, written = peer.line.frames()[-2:]
    assert b'"code":503' in listed
    assert failure(written)[0] == 500
    world.away = False
    peer.feed(produce("demo", 0, b"x"))
    pass_time(world, peer, 5_000)
    assert peer.line.frames()[-1] == b"\x01" + struct.pack(">QI", 0, 1)


def pass_time(world: GatewayWorld, peer: GatewayConnection, time_ms: int) -> None:
    for _ in range(time_ms // 20):
        world.runtime.advance(20)
        peer.run()
