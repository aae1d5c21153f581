"""Attacks on the Cursus door: what costs its sender little must cost others nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.hostile.cursus_wire import ask, send_all
from tests.hostile.hostile_world import HostileWorld
from tests.support.cursus_world import Message, batch, messages_of

from pentalog.model import compression

BOMB_BYTES = 64 << 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileWorld]:
    data = tmp_path_factory.mktemp("hostile-cursus") / "data"
    with HostileWorld(data, "cursus", "cursus+auth") as opened:
        with opened.connect("cursus") as client:
            assert ask(client, "CREATE topic=t partitions=4").startswith(b"OK")
        yield opened


def bomb(codec: int) -> bytes:
    """A small frame that holds a batch of 64 MiB, or says so."""
    plain = batch([Message(b"\0" * 600_000) for _ in range(100)], topic="t")
    return compression.compress(codec, plain + bytes(max(0, BOMB_BYTES - len(plain))))


def assert_bounded(
    world: HostileWorld, attack: Callable[[], object], *, rulers: float, memory_mib: int
) -> None:
    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=rulers, memory_mib=memory_mib)


def in_parallel(acts: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("codec", [compression.GZIP, compression.ZSTD])
def test_compressed_frames_before_login(world: HostileWorld, codec: int) -> None:
    frames = [bomb(codec)[:60_000]] * 30

    def attack() -> None:
        with world.connect("cursus+auth") as client:
            answers = send_all(client, frames)
            assert all(b"batch_decode_failed" in answer for answer in answers)

    assert_bounded(world, attack, rulers=1, memory_mib=16)


def test_large_frames_before_login(world: HostileWorld) -> None:
    def attack() -> None:
        with world.connect("cursus+auth") as client:
            answers = send_all(client, [b"PUBLISH topic=t message=" + bytes(1 << 20)] * 30)
            assert answers[:1] == [b"ERROR: message_too_large size=1048600 max=671088"]

    assert_bounded(world, attack, rulers=1, memory_mib=16)


def test_compressed_frames_that_hold_much(world: HostileWorld) -> None:
    frames = [bomb(compression.ZSTD)] * 5

    def attack() -> None:
        with world.connect("cursus") as client:
            for answer in send_all(client, frames):
                assert json.loads(answer)["status"] == "ERROR"

    assert_bounded(world, lambda: in_parallel([attack] * 8), rulers=20, memory_mib=400)


def test_large_batches_do_not_keep_others_waiting(world: HostileWorld) -> None:
    body = batch([Message(b"x" * 600) for _ in range(60_000)], topic="t", partition=1)

    def attack() -> None:
        with world.connect("cursus") as client:
            assert json.loads(ask(client, body))["status"] == "OK"

    assert_bounded(world, attack, rulers=8, memory_mib=300)
    with world.connect("cursus") as client:
        last = messages_of(ask(client, "CONSUME topic=t partition=1 offset=59999 member=m"))
    assert last[0].offset == 59_999


def test_commands_of_many_words(world: HostileWorld) -> None:
    command = b"CREATE topic=t " + b"a=b " * 250_000

    def attack() -> None:
        with world.connect("cursus") as client:
            answers = send_all(client, [command] * 20)
            assert {answer.split()[1] for answer in answers} == {b"malformed_input"}

    assert_bounded(world, attack, rulers=4, memory_mib=64)


def test_keys_of_a_million_bytes(world: HostileWorld) -> None:
    command = b"PUBLISH topic=t producerId=p key=" + b"k" * 1_000_000 + b" message=x"

    def attack() -> None:
        with world.connect("cursus") as client:
            answers = send_all(client, [command] * 20)
            assert {answer.split()[1] for answer in answers} == {b"invalid_payload"}

    assert_bounded(world, attack, rulers=4, memory_mib=64)


def test_many_members_of_a_group(world: HostileWorld) -> None:
    commands = [b"JOIN_GROUP topic=t group=crowd member=m%d" % number for number in range(4_000)]

    def attack() -> None:
        with world.connect("cursus") as client:
            assert len(send_all(client, commands)) == len(commands)

    assert_bounded(world, attack, rulers=12, memory_mib=64)


def test_snapshots_that_are_not_awaited(world: HostileWorld) -> None:
    with world.connect("cursus") as client:
        assert ask(client, "CREATE topic=es partitions=1 event_sourcing=true").startswith(b"OK")
    command = b"SAVE_SNAPSHOT topic=es key=k%d version=0 message=" + b"s" * (1 << 20)

    def attack() -> None:
        with world.connect("cursus") as client:
            answers = send_all(client, [command % number for number in range(40)])
            assert len(answers) == 40

    assert_bounded(world, attack, rulers=20, memory_mib=64)


def test_heartbeats_of_a_generation_that_is_over(world: HostileWorld) -> None:
    """In a large group each change makes the heartbeats of all others stale."""
    with world.connect("cursus") as client:
        joins = [b"JOIN_GROUP topic=t group=stale member=m%d" % number for number in range(9_000)]
        first = send_all(client, joins)[0].split(b"member=")[1].split()[0]
    heartbeat = b"HEARTBEAT topic=t group=stale generation=1 member=" + first

    def attack() -> None:
        with world.connect("cursus") as client:
            answers = send_all(client, [heartbeat] * 500)
            assert {answer.split()[1] for answer in answers} == {b"GEN_MISMATCH"}

    assert_bounded(world, attack, rulers=4, memory_mib=64)


def test_snapshots_of_many_connections(world: HostileWorld) -> None:
    """They are written one at a time, so that those that wait stay where they were received."""
    with world.connect("cursus") as client:
        assert ask(client, "CREATE topic=es partitions=1 event_sourcing=true").startswith(b"OK")
    command = b"SAVE_SNAPSHOT topic=es key=k%d version=0 message=" + b"s" * 60_000

    def send() -> None:
        with world.connect("cursus") as client:
            assert len(send_all(client, [command % number for number in range(200)])) == 200

    cost = world.measure(lambda: in_parallel([send] * 10))
    print(cost)
    assert cost.memory_bytes <= 60 << 20, cost
