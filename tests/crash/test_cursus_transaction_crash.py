"""Cursus transactions across kills and power cuts: acknowledged messages are there, once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.simulation import cursus_wire, kafka_wire
from tests.simulation.plan import plan
from tests.simulation.wire import Connection, Reply
from tests.simulation.world import World
from tests.support.disks import cut_power, nothing

pytestmark = pytest.mark.crash

_TURNS_MAX = 100_000
_QUIET = {
    "flush_interval_ms": 100,
    "segment_bytes": 16384,
    "journal_pays_after": 1000,
    "slow": 0.0,
    "pauses": 0.0,
    "cold": 0.0,
}


class SmallWorld(World):
    """A world of the simulator in which a test decides what happens."""

    def __init__(self, **settings: Any) -> None:
        planned = plan(1, lives=1, length=1)
        super().__init__(
            replace(planned, settings=replace(planned.settings, **(_QUIET | settings)))
        )
        self._start()

    def _start(self) -> None:
        self.random = Random(1)
        self._recovery = []
        self._open()

    def die(self, *, cut: bool = False, kept: Callable[[str], bool] = nothing) -> None:
        """Kill the broker, maybe with a power cut, and start it again."""
        self.dead = True
        self.runtime.kill()
        for connection in self.connections:
            connection.lose()
        self.connections.clear()
        self.database.kill()
        if cut:
            cut_power(self.disk, kept=kept)
        self._start()

    def answer(self, reply: Reply) -> bytes:
        for _ in range(_TURNS_MAX):
            if reply.ready:
                return reply.value
            if not self.runtime.step():
                self.runtime.advance(self.clock.elapsed_ms + 1)
        raise AssertionError("no answer")

    def ask(self, connection: Connection, text: str, message: bytes | None = None) -> str:
        return self.answer(connection.ask(cursus_wire.command(text, message))).decode()

    def committed(self, index: int) -> list[bytes]:
        """The values that a read_committed consumer of Kafka gets."""
        frame = kafka_wire.fetch("t", index, 0, committed=True, bytes_max=1 << 20)
        found = kafka_wire.fetched(self.answer(self.connect().ask(frame)), 0)
        kept = kafka_wire.committed_only(found)
        return [bytes(each.record.value or b"") for each in kept if not kafka_wire.is_marker(each)]


class Producer:
    """A transactional client; `reconnect` gives it another connection."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self.reconnect()
        assert world.ask(self.connection, "CREATE topic=t partitions=2").startswith("OK")
        answer = world.ask(self.connection, "INIT_PRODUCER_ID transactional_id=x")
        found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
        assert found, answer
        self.who = f"transactional_id=x producerId={found[1]} epoch={found[2]}"
        assert world.ask(self.connection, f"BEGIN_TXN {self.who}").startswith("OK")

    def reconnect(self) -> None:
        self.connection = self.world.connect("cursus")

    def command(self, seq: int, partition: int | None = None) -> str:
        place = "" if partition is None else f" partition={partition}"
        return f"TXN_PUBLISH {self.who} topic=t{place} seqNum={seq}"

    def publish(self, message: bytes, seq: int, partition: int | None = None) -> str:
        return self.world.ask(self.connection, self.command(seq, partition), message)

    def end(self, result: str = "commit") -> str:
        return self.world.ask(self.connection, f"END_TXN {self.who} result={result}")


def test_an_acknowledged_message_survives_a_power_cut() -> None:
    world = SmallWorld()
    producer = Producer(world)
    assert producer.publish(b"one", 1, 0).startswith("OK")
    assert producer.publish(b"two", 2, 1).startswith("OK")
    assert producer.publish(b"three", 3, 0).startswith("OK")
    world.die(cut=True)
    producer.reconnect()
    assert producer.end().startswith("OK transactional_id=x state=committed")
    assert world.committed(0) == [b"one", b"three"]
    assert world.committed(1) == [b"two"]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("asked", [0, 1, -1, None])
@pytest.mark.parametrize("cold", [0.0, 1.0])
def test_a_repetition_is_recognised_after_a_crash(
    cut: bool, asked: int | None, cold: float
) -> None:
    world = SmallWorld(cold=cold)
    producer = Producer(world)
    producer.publish(b"one", 1, asked)
    first = producer.publish(b"two", 2, asked)
    for _ in range(2):
        world.die(cut=cut)
        producer.reconnect()
        assert producer.publish(b"two", 2, asked).rpartition(" ")[2] == first.rpartition(" ")[2]
    assert producer.publish(b"three", 3, asked).startswith("OK")
    assert producer.end().startswith("OK")
    assert sorted(world.committed(0) + world.committed(1)) == [b"one", b"three", b"two"]


def test_a_repetition_is_answered_when_it_is_durable() -> None:
    """A kill leaves the message in the page cache, and the repetition acknowledges it."""
    world = SmallWorld(flush_interval_ms=60_000)
    producer = Producer(world)
    producer.publish(b"one", 1, 0)
    producer.connection.send_frame(cursus_wire.command(producer.command(2, 0), b"two"))
    for _ in range(_TURNS_MAX):
        if world.broker.log.marks(world.broker.transactions.view("x").partitions[0]).end == 2:
            break
        assert world.runtime.step()
    world.die()
    producer.reconnect()
    assert producer.publish(b"two", 2, 0).startswith("OK")
    world.die(cut=True)
    producer.reconnect()
    assert producer.end().startswith("OK")
    assert world.committed(0) == [b"one", b"two"]


def test_requests_behind_a_repetition_keep_their_order() -> None:
    """What is in the log is read from a slow disk; the end of the transaction waits for it."""
    world = SmallWorld(cold=1.0)
    producer = Producer(world)
    producer.publish(b"one", 1, 0)
    world.die()
    producer.reconnect()
    replies = [
        producer.connection.ask(cursus_wire.command(producer.command(1, 0), b"one")),
        producer.connection.ask(cursus_wire.command(producer.command(2, 0), b"two")),
        producer.connection.ask(cursus_wire.command(f"END_TXN {producer.who} result=commit")),
    ]
    answers = [world.answer(reply).decode() for reply in replies]
    assert [answer.split()[2] for answer in answers] == [
        "staged_messages=1",
        "staged_messages=2",
        "state=committed",
    ]
    assert world.committed(0) == [b"one", b"two"]


@pytest.mark.parametrize("result", ["commit", "abort"])
def test_a_repeated_end_is_answered_after_a_crash(result: str) -> None:
    """The marker is in the log; the row of the state file did not reach the disk."""
    world = SmallWorld()
    producer = Producer(world)
    producer.publish(b"one", 1, 0)
    world.files.faults.errors["sql"] = 1.0
    end = cursus_wire.command(f"END_TXN {producer.who} result={result}")
    reply = producer.connection.ask(end)
    world.runtime.run_for(500)
    assert not reply.ready or reply.value.startswith(b"ERROR")
    world.die()
    producer.reconnect()
    for _ in range(2):
        assert producer.end(result).startswith(f"OK transactional_id=x state={result}")
    assert world.committed(0) == [b"one"] * (result == "commit")


@pytest.mark.parametrize("written", [False, True])
def test_a_transaction_that_took_too_long_is_not_confirmed_after_a_crash(written: bool) -> None:
    """The broker aborts it; if that did not reach the state file, it is still open."""
    world = SmallWorld()
    producer = Producer(world)
    producer.publish(b"one", 1, 0)
    world.files.faults.errors["sql"] = 0.0 if written else 1.0
    world.runtime.run_for(62_000)
    world.die()
    producer.reconnect()
    answer = producer.end()
    assert answer.startswith("ERROR: producer_fenced" if written else "OK")
    assert world.committed(0) == ([] if written else [b"one"])
