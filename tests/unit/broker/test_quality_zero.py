"""Quality 0 is at most once: what may have been delivered before a crash is not delivered again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker, Connection

from pentalog.broker import subscription_rows as rows
from pentalog.broker.windows import RESERVED_MIN
from pentalog.model import batch
from pentalog.model.errors import StorageFull
from pentalog.model.types import Ack, Partition, Record

AT = Partition("t", 0)
ZERO = (("blipmq.qos", b"0"),)


class World:
    """A broker that is stopped or killed, and started again on the same directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.broker = BlipBroker(directory)
        self.broker.topic("t", subscription_attempts_max="-1")
        self._count = 0

    def subscribe(self, *, leased: bool) -> int:
        later = self.broker.subscriptions.open("t", leased=leased, owner="User:ANONYMOUS")
        self.broker.runtime.step()
        return later.value

    def publish(self, count: int, *, mixed: bool = False) -> list[bytes]:
        """Messages with numbers; if mixed, every other one has quality 0."""
        numbers = range(self._count, self._count + count)
        self._count += count
        made = [Record(b"%d" % n, None, ZERO if mixed and n % 2 else ()) for n in numbers]
        data = batch.build(made, timestamp_ms=self.broker.runtime.now_ms())
        self.broker.log.settle(self.broker.log.append(AT, memoryview(data)), Ack.DURABLE)
        self.broker.runtime.step()
        return [b"%d" % n for n in numbers]

    def poll(self, subscription: int, count: int) -> list[bytes]:
        frames = b"".join(
            b"\0\0\0\x11\x09" + bytes(8) + subscription.to_bytes(8, "big") for _ in range(count)
        )
        return _messages(self.broker.client().ask(frames))

    def crash(self) -> None:
        self.broker.crash()
        self.broker = BlipBroker(self._directory)

    def restart(self) -> None:
        self.broker.stop()
        self.broker = BlipBroker(self._directory)


def _messages(answers: bytes) -> list[bytes]:
    found = []
    position = 0
    while position < len(answers):
        end = position + 4 + int.from_bytes(answers[position : position + 4], "big")
        assert answers[position + 4] == 3, answers[position:end]
        found.append(answers[position + 17 : end])
        position = end
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("taken", [1, 5, RESERVED_MIN, 100])
def test_nothing_is_delivered_twice_after_a_crash(world: World, taken: int) -> None:
    subscription = world.subscribe(leased=False)
    published = world.publish(10_000)
    assert world.poll(subscription, taken) == published[:taken]
    world.crash()
    rest = world.poll(subscription, 10_000)
    lost = len(published) - taken - len(rest)
    assert 0 <= lost <= max(RESERVED_MIN, 8 * taken), "the cost follows the consumer's speed"
    assert rest == published[taken + lost :]


def test_a_consumer_that_keeps_up_loses_nothing(world: World) -> None:
    subscription = world.subscribe(leased=False)
    for _ in range(3):
        published = world.publish(5)
        assert world.poll(subscription, 9) == published
        world.crash()
    published = world.publish(100)
    assert world.poll(subscription, 200) == published


def test_a_clean_stop_loses_nothing(world: World) -> None:
    subscription = world.subscribe(leased=False)
    published = world.publish(1000)
    for start in range(0, 1000, 250):
        assert world.poll(subscription, 250) == published[start : start + 250]
        world.restart()
    assert world.poll(subscription, 10) == []


@pytest.mark.parametrize("taken", [1, 5, 200])
def test_of_mixed_qualities_only_quality_1_is_delivered_again(world: World, taken: int) -> None:
    subscription = world.subscribe(leased=True)
    published = world.publish(1000, mixed=True)
    before = world.poll(subscription, taken)
    assert before == published[:taken]
    world.crash()
    after = world.poll(subscription, 2000)
    assert not {message for message in before if int(message) % 2} & set(after)
    assert [message for message in after if int(message) % 2 == 0] == published[::2]


def test_a_second_crash_does_not_bring_back_what_the_first_passed_over(world: World) -> None:
    subscription = world.subscribe(leased=True)
    published = world.publish(1000, mixed=True)
    before = world.poll(subscription, 100)
    seen = [message for message in before if int(message) % 2]
    for _ in range(3):
        world.crash()
        again = world.poll(subscription, 10)
        world.broker.runtime.advance(300)
        assert not {message for message in again if int(message) % 2}
    world.restart()
    rest = world.poll(subscription, 2000)
    assert not set(seen) & set(rest)
    assert set(rest) >= set(published[::2])


def test_a_fast_consumer_does_not_cost_a_commit_for_each_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = world.subscribe(leased=False)
    published = world.publish(50_000)
    written = _counted(monkeypatch)
    assert world.poll(subscription, 50_000) == published
    assert written() <= 10


def _counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    count = 0
    write = rows.write_window

    def counting(*arguments: object) -> None:
        nonlocal count
        count += 1
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "write_window", counting)
    return lambda: count


def test_what_a_crash_costs_becomes_small_again_after_a_burst(world: World) -> None:
    subscription = world.subscribe(leased=False)
    assert len(world.poll(subscription, 10_000)) == 0
    world.publish(10_000)
    assert len(world.poll(subscription, 10_000)) == 10_000
    world.broker.runtime.advance(5_000)
    published = world.publish(1000)
    world.crash()
    assert world.poll(subscription, 2000) == published[RESERVED_MIN:]


def test_a_full_disk_delivers_no_more_than_was_reserved(world: World) -> None:
    subscription = world.subscribe(leased=False)
    published = world.publish(100)
    world.broker.state._refusal = StorageFull("no space")
    before = world.poll(subscription, 50)
    assert before == published[:RESERVED_MIN]
    world.broker.state._refusal = None
    assert world.poll(subscription, 84) == published[RESERVED_MIN:]


def test_a_full_disk_does_not_hold_up_quality_1(world: World) -> None:
    subscription = world.subscribe(leased=True)
    published = world.publish(100)
    world.broker.state._refusal = StorageFull("no space")
    assert world.poll(subscription, 200) == published
    mixed = world.publish(100, mixed=True)
    assert world.poll(subscription, 200) == mixed[:1], "the next one has quality 0"
    world.broker.state._refusal = None
    assert world.poll(subscription, 200) == mixed[1:]


def test_quality_1_costs_no_reservations(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = world.subscribe(leased=True)
    published = world.publish(10_000)
    written = _counted(monkeypatch)
    assert world.poll(subscription, 10_000) == published
    assert written() == 0


def test_a_poll_waits_for_its_reservation_in_line(world: World) -> None:
    subscription = world.subscribe(leased=False)
    published = world.publish(100)
    client: Connection = world.broker.client()
    world.broker.runtime.held_lanes.add("state")
    poll = b"\0\0\0\x11\x09" + bytes(8) + subscription.to_bytes(8, "big")
    assert _messages(client.ask(poll * 100)) == published[:RESERVED_MIN]
    ping = b"\0\0\0\x09\x07" + (7).to_bytes(8, "big")
    assert client.ask(ping) == b""
    world.broker.runtime.held_lanes.clear()
    world.broker.runtime.step()
    answers = client.take()
    assert answers.endswith(b"\0\0\0\x09\x08" + (7).to_bytes(8, "big"))
    assert _messages(answers[:-13]) == published[RESERVED_MIN:]
