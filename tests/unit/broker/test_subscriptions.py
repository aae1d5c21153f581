"""Leased subscriptions: what is delivered, when again, what is set aside, what a crash leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker
from tests.support.runtimes import SteppedRuntime

from pentalog import kernels
from pentalog.broker.deliveries import UNSUBSCRIBED, Subscription
from pentalog.broker.port import TopicSpec
from pentalog.broker.windows import WINDOW_OFFSETS_MAX
from pentalog.model import batch
from pentalog.model.errors import Overloaded, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Horizon, Partition, Record

AT = Partition("t", 0)
IDS = (99).to_bytes(8, "big")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlipBroker]:
    broker = BlipBroker(tmp_path)
    broker.topic("t")
    yield broker
    broker.stop()


def subscribe(broker: BlipBroker, topic: str = "t", *, leased: bool = True) -> Subscription:
    later = broker.subscriptions.open(topic, leased=leased, owner="User:ANONYMOUS")
    broker.runtime.step()
    found = broker.subscriptions.get(later.value)
    assert found is not None
    return found


def take(broker: BlipBroker, subscription: Subscription, count: int) -> dict[int, bytes]:
    """Up to `count` deliveries: tag to message."""
    found: dict[int, bytes] = {}
    while len(found) < count:
        stretch = subscription.stretch()
        if isinstance(stretch, Later):
            broker.runtime.step()
            assert stretch.ready
            continue
        if stretch is None:
            return found
        delivered = kernels.deliver_blipmq(
            stretch.batches,
            stretch.batch,
            stretch.record,
            stretch.offset,
            stretch.stop,
            IDS * (count - len(found)),
            topic=subscription.topic.encode(),
            qos=int(subscription.leased),
            tag_shift=stretch.tag_shift,
            timestamp_min=stretch.timestamp_min,
            bytes_max=1 << 20,
            frame_bytes_max=16 << 20,
            again=stretch.again,
            states=stretch.states,
            floor=stretch.floor,
            doubtful_end=stretch.doubtful_end,
            zero_end=stretch.zero_end,
        )
        subscription.took(stretch, delivered)
        position = 0
        while position < len(delivered.frames):
            size = 4 + int.from_bytes(delivered.frames[position : position + 4], "big")
            tag = int.from_bytes(delivered.frames[position + 5 : position + 13], "big")
            start = position + 16 + len(subscription.topic.encode())
            found[tag] = delivered.frames[start : position + size]
            position += size
    return found


def acknowledge(subscription: Subscription, *tags: int) -> list[int]:
    unknown = subscription.acknowledge(b"".join(tag.to_bytes(8, "big") for tag in tags))
    return [int.from_bytes(unknown[at : at + 8], "big") for at in range(0, len(unknown), 8)]


def letters(broker: BlipBroker, topic: str = "t") -> list[tuple[bytes | None, dict[str, bytes]]]:
    try:
        broker.topics.get(f"{topic}.dlq")
    except TopicNotFound:
        return []
    return [
        (record.value, {name: value or b"" for name, value in record.headers})
        for _, record in broker.records(Partition(f"{topic}.dlq", 0))
    ]


def test_begins_at_the_end_and_counts_tags_from_one(broker: BlipBroker) -> None:
    broker.append(AT, b"before")
    subscription = subscribe(broker)
    assert take(broker, subscription, 5) == {}
    broker.append(AT, b"a", b"b")
    assert take(broker, subscription, 5) == {1: b"a", 2: b"b"}
    assert take(broker, subscription, 5) == {}
    assert acknowledge(subscription, 1, 2) == []
    assert acknowledge(subscription, 1, 3, 0) == [1, 3, 0]


def test_delivers_no_more_than_asked_for(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.append(AT, b"a", b"b", b"c")
    assert take(broker, subscription, 1) == {1: b"a"}
    assert take(broker, subscription, 1) == {2: b"b"}
    assert take(broker, subscription, 9) == {3: b"c"}


def test_unleased_deliveries_are_made_once(broker: BlipBroker) -> None:
    subscription = subscribe(broker, leased=False)
    broker.append(AT, b"a")
    assert list(take(broker, subscription, 2).values()) == [b"a"]
    broker.runtime.advance(5_000)
    assert take(broker, subscription, 2) == {}
    assert broker.subscriptions.all()[0].unsettled == 0


def test_every_subscription_gets_everything(broker: BlipBroker) -> None:
    first, second = subscribe(broker), subscribe(broker)
    broker.append(AT, b"a")
    assert take(broker, first, 2) == take(broker, second, 2) == {1: b"a"}


def test_all_partitions_are_delivered(broker: BlipBroker) -> None:
    broker.topic("wide", partitions=3)
    subscription = subscribe(broker, "wide")
    for index in range(3):
        broker.append(Partition("wide", index), b"%d-0" % index, b"%d-1" % index)
    found = take(broker, subscription, 10)
    assert sorted(found.values()) == [b"0-0", b"0-1", b"1-0", b"1-1", b"2-0", b"2-1"]
    assert acknowledge(subscription, *found) == []
    assert broker.subscriptions.all()[0].unsettled == 0


def test_new_partitions_are_seen(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.topics.grow("t", 2)
    broker.append(Partition("t", 1), b"new")
    assert list(take(broker, subscription, 2).values()) == [b"new"]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_leases_do_not_follow_a_clock_that_is_set(broker: BlipBroker, step_ms: int) -> None:
    broker.topic("patient", subscription_lease_ms="1000")
    subscription = subscribe(broker, "patient")
    broker.append(Partition("patient", 0), b"first")
    take(broker, subscription, 1)
    broker.runtime.wall_step_ms += step_ms
    broker.runtime.advance(800)
    assert take(broker, subscription, 1) == {}
    broker.runtime.advance(400)
    assert take(broker, subscription, 1) == {1: b"first"}


def test_leases_double_and_go_behind_what_is_queued(broker: BlipBroker) -> None:
    broker.topic("patient", subscription_attempts_max="-1")
    subscription = subscribe(broker, "patient")
    broker.append(Partition("patient", 0), b"first")
    take(broker, subscription, 1)
    broker.append(Partition("patient", 0), b"second")
    broker.runtime.advance(200)
    broker.append(Partition("patient", 0), b"third")
    order = [take(broker, subscription, 1) for _ in range(3)]
    assert order == [{2: b"second"}, {1: b"first"}, {3: b"third"}]
    acknowledge(subscription, 2, 3)
    waits = []
    for _ in range(4):
        waited = 0
        while not take(broker, subscription, 1):
            broker.runtime.advance(200)
            waited += 200
        waits.append(waited)
    assert waits == [200, 400, 800, 1600]


def test_acknowledged_late_is_unknown(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.append(AT, b"a")
    take(broker, subscription, 1)
    broker.runtime.advance(400)
    assert acknowledge(subscription, 1) == [1]
    assert take(broker, subscription, 1) == {1: b"a"}
    assert acknowledge(subscription, 1) == []


def test_third_attempt_goes_to_the_dead_letters(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    data = batch.build(
        [Record(b"bad", b"key", (("own", b"header"),), 1_600_000_000_000), Record(b"good")],
        timestamp_ms=broker.runtime.now_ms(),
    )
    broker.log.append(AT, memoryview(data))
    broker.runtime.advance(200)
    seen = 0
    for _ in range(20):
        found = take(broker, subscription, 5)
        seen += 1 in found
        acknowledge(subscription, *(tag for tag in found if tag != 1))
        broker.runtime.advance(200)
    assert seen == 3
    ((value, headers),) = letters(broker)
    assert value == b"bad"
    assert headers == {
        "own": b"header",
        "dead.reason": b"attempts",
        "dead.attempts": b"3",
        "dead.topic": b"t",
        "dead.partition": b"0",
        "dead.offset": b"0",
        "dead.subscription": b"%d" % subscription.subscription_id,
    }
    ((_, letter),) = broker.records(Partition("t.dlq", 0))
    assert (letter.key, letter.timestamp_ms) == (b"key", 1_600_000_000_000)
    assert broker.metrics.dead_letters == 1
    assert broker.subscriptions.all()[0].unsettled == 0


def test_a_clock_that_was_set_back_keeps_no_dead_letter_back(broker: BlipBroker) -> None:
    """Found by seed 5004086 of the simulator."""
    subscription = subscribe(broker)
    broker.append(AT, b"bad")
    broker.runtime.wall_step_ms = -7_200_000
    for _ in range(20):
        take(broker, subscription, 5)
        broker.runtime.advance(200)
    assert [value for value, _ in letters(broker)] == [b"bad"]


@pytest.mark.parametrize("topic", ["a/b", "..", "\0\n", "x" * 300], ids=ascii)
def test_topics_of_any_name_have_dead_letters(broker: BlipBroker, topic: str) -> None:
    broker.topic(topic)
    subscription = subscribe(broker, topic)
    broker.append(Partition(topic, 0), b"bad")
    for _ in range(6):
        take(broker, subscription, 1)
        broker.runtime.advance(1_000)
    ((value, headers),) = letters(broker, topic)
    assert (value, headers["dead.topic"]) == (b"bad", topic.encode())


def test_a_name_without_room_for_dead_letters_has_none(broker: BlipBroker) -> None:
    topic = "x" * 65_532
    broker.topic(topic)
    subscription = subscribe(broker, topic)
    broker.append(Partition(topic, 0), b"kept")
    for _ in range(6):
        while not take(broker, subscription, 1):
            broker.runtime.advance(200)
    assert letters(broker, topic) == []


def test_dead_letters_do_not_die_again(broker: BlipBroker) -> None:
    broker.topic("t.dlq")
    subscription = subscribe(broker, "t.dlq")
    broker.append(Partition("t.dlq", 0), b"a")
    for _ in range(6):
        while not take(broker, subscription, 1):
            broker.runtime.advance(200)
    assert [topic.name for topic in broker.topics.all()] == ["t", "t.dlq"]


def test_expired_records_are_set_aside(broker: BlipBroker) -> None:
    broker.topic("short", subscription_ttl_ms="1000")
    at = Partition("short", 0)
    subscription = subscribe(broker, "short")
    broker.append(at, b"old", b"older")
    broker.runtime.advance(1_500)
    broker.append(at, b"new")
    assert take(broker, subscription, 5) == {3: b"new"}
    broker.runtime.step()
    found = letters(broker, "short")
    assert [value for value, _ in found] == [b"old", b"older"]
    assert {headers["dead.reason"] for _, headers in found} == {b"expired"}


def test_overflow_sets_the_oldest_aside(broker: BlipBroker) -> None:
    broker.topic("small", subscription_backlog_max="1024")
    at = Partition("small", 0)
    subscription = subscribe(broker, "small")
    for start in range(0, 1500, 100):
        broker.append(at, *(b"%d" % number for number in range(start, start + 100)))
    found = take(broker, subscription, 2_000)
    assert list(found.values()) == [b"%d" % number for number in range(476, 1500)]
    assert list(found) == list(range(477, 1501))
    broker.runtime.step()
    dead = letters(broker, "small")
    assert [value for value, _ in dead] == [b"%d" % number for number in range(476)]
    assert dead[0][1]["dead.reason"] == b"overflow"


def test_changed_settings_hold_at_once(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.topics.configure("t", {"subscription.lease.ms": "5000"})
    broker.append(AT, b"a")
    take(broker, subscription, 1)
    broker.runtime.advance(4_000)
    assert acknowledge(subscription, 1) == []


def test_only_stable_records_are_delivered(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    later = broker.transactions.identify("name", timeout_ms=60_000)
    broker.runtime.step()
    who = later.value

    def write(value: bytes, sequence: int) -> None:
        broker.transactions.enlist("name", who, [AT])
        broker.append(
            AT,
            value,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    write(b"aborted", 0)
    broker.append(AT, b"plain")
    assert take(broker, subscription, 5) == {}
    broker.transactions.end("name", who, commit=False, bump=False)
    broker.runtime.step()
    assert list(take(broker, subscription, 5).values()) == [b"plain"]
    write(b"committed", 1)
    broker.transactions.end("name", who, commit=True, bump=False)
    broker.runtime.step()
    broker.append(AT, b"last")
    assert list(take(broker, subscription, 5).values()) == [b"committed", b"last"]
    assert take(broker, subscription, 5) == {}


def test_compressed_batches_of_others(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    for codec in range(5):
        broker.append(AT, b"x" * 50, b"codec %d" % codec, codec=codec)
    found = list(take(broker, subscription, 20).values())
    assert found[1::2] == [b"codec %d" % codec for codec in range(5)]


def test_a_window_is_bounded(broker: BlipBroker) -> None:
    broker.topics.configure("t", {"subscription.lease.ms": "600000"})
    subscription = subscribe(broker)
    size = 1_000
    for _ in range(WINDOW_OFFSETS_MAX // size + 2):
        broker.append(AT, *[b"x"] * size)
    found = take(broker, subscription, 2 * WINDOW_OFFSETS_MAX)
    assert len(found) == WINDOW_OFFSETS_MAX
    assert acknowledge(subscription, *range(2, 50)) == []
    assert take(broker, subscription, 5) == {}
    assert acknowledge(subscription, 1) == []
    assert len(take(broker, subscription, 100)) == 49


def test_gaps_larger_than_a_window(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    data = batch.build([Record(b"a"), Record(b"b")], timestamp_ms=broker.runtime.now_ms())
    # As compaction leaves it: the records between the first and the last are gone.
    payload, header = batch.payload_of(data, 0, bytes_max=1 << 20)
    far = 3 * WINDOW_OFFSETS_MAX
    gapped = batch.rebuild(header._replace(last_offset_delta=far), payload, count=2, codec=0)
    facts = kernels.check_batches(data, 0, len(data))._replace(offsets=far + 1)
    broker.log.append(AT, memoryview(gapped), facts)
    broker.append(AT, b"behind")
    found = take(broker, subscription, 5)
    assert list(found.values()) == [b"a", b"b"]
    acknowledge(subscription, *found)
    assert list(take(broker, subscription, 5).values()) == [b"behind"]


def test_trimmed_records_are_passed_over(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.append(AT, b"a", b"b", b"c")
    take(broker, subscription, 1)
    broker.append(AT, b"d")
    broker.topics.trim(AT, 3)
    broker.topics.settle()
    broker.runtime.advance(400)
    assert take(broker, subscription, 5) == {4: b"d"}


@pytest.mark.parametrize("step_ms", [0, 3_600_000, -3_600_000])
def test_idle_subscriptions_are_closed(tmp_path: Path, step_ms: int) -> None:
    broker = BlipBroker(tmp_path, subscription_idle_ms_max=10_000)
    broker.topic("t")
    used, abandoned = subscribe(broker), subscribe(broker)
    broker.runtime.wall_step_ms += step_ms
    broker.runtime.advance(8_000)
    used.stretch()
    assert broker.subscriptions.get(abandoned.subscription_id) is abandoned
    for _ in range(2):
        broker.runtime.advance(4_000)
        used.stretch()
    assert broker.subscriptions.get(used.subscription_id) is used
    assert broker.subscriptions.get(abandoned.subscription_id) is None
    assert broker.metrics.subscriptions_expired == 1
    assert abandoned.stretch() is None
    assert acknowledge(abandoned, 1) == [1]
    broker.stop()


def test_there_is_a_largest_number(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=1)
    broker.topic("t")
    subscription = subscribe(broker)
    with pytest.raises(Overloaded, match="subscriptions_max"):
        broker.subscriptions.open("t", leased=True, owner="User:ANONYMOUS")
    broker.subscriptions.close(subscription.subscription_id)
    subscribe(broker)
    broker.stop()


def test_a_deleted_topic_takes_its_subscriptions_along(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    broker.append(AT, b"a")
    take(broker, subscription, 1)
    broker.topics.delete("t")
    broker.runtime.advance(1_000)
    assert broker.subscriptions.get(subscription.subscription_id) is None
    broker.topics.create(TopicSpec(name="t"))
    assert subscribe(broker).subscription_id == subscription.subscription_id + 1


def test_a_broker_without_subscriptions() -> None:
    with pytest.raises(TopicNotFound):
        UNSUBSCRIBED.open("t", leased=True, owner="User:ANONYMOUS")
    assert UNSUBSCRIBED.get(1) is None
    assert UNSUBSCRIBED.all() == ()


def test_a_clean_stop_keeps_everything(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    broker.topic("t")
    number = subscribe(broker).subscription_id
    subscription = broker.subscriptions.get(number)
    assert subscription is not None
    broker.append(AT, b"a", b"b", b"c", b"d")
    take(broker, subscription, 3)
    acknowledge(subscription, 2)
    broker.stop()

    again = BlipBroker(tmp_path)
    found = again.subscriptions.get(number)
    assert found is not None
    assert take(again, found, 9) == {1: b"a", 3: b"c", 4: b"d"}
    assert acknowledge(found, 1, 3, 4) == []
    assert subscribe(again).subscription_id == number + 1
    again.stop()


def test_a_delivery_of_an_earlier_life_is_acknowledged(tmp_path: Path) -> None:
    """Whoever had it then need not be given it again, nor anybody else."""
    broker = BlipBroker(tmp_path)
    broker.topic("t")
    subscription = subscribe(broker)
    broker.append(AT, b"a", b"b", b"c", b"d")
    take(broker, subscription, 3)
    acknowledge(subscription, 2)
    broker.stop()

    again = BlipBroker(tmp_path)
    found = again.subscriptions.get(subscription.subscription_id)
    assert found is not None
    assert acknowledge(found, 3, 2, 4, 5, 1 << 48 | 1, 0) == [2, 4, 5, 1 << 48 | 1, 0]
    assert acknowledge(found, 3) == [3]
    assert take(again, found, 9) == {1: b"a", 4: b"d"}
    assert acknowledge(found, 4, 1, 1) == [1]
    again.runtime.advance(1_000_000)
    assert take(again, found, 9) == {}
    again.stop()


def test_a_crash_forgets_no_unacknowledged_delivery(tmp_path: Path) -> None:
    """At any moment: what was durable and not acknowledged is delivered again under its tag."""
    dice = random.Random(7)
    broker = BlipBroker(tmp_path)
    broker.topic("t", subscription_attempts_max="-1")
    number = subscribe(broker).subscription_id
    written = 0
    settled: set[int] = set()
    for _ in range(12):
        subscription = broker.subscriptions.get(number)
        assert subscription is not None
        for _ in range(dice.randrange(1, 6)):
            count = dice.randrange(1, 40)
            broker.append(AT, *(b"%d" % (written + place) for place in range(count)))
            written += count
            found = take(broker, subscription, dice.randrange(60))
            chosen = [tag for tag in found if dice.random() < 0.7]
            settled |= set(chosen) - set(acknowledge(subscription, *chosen))
            broker.runtime.advance(dice.choice((0, 50, 150, 300)))
        broker.crash()
        broker = BlipBroker(tmp_path)
    subscription = broker.subscriptions.get(number)
    assert subscription is not None
    got = take(broker, subscription, 10 * written)
    assert got == {tag: b"%d" % (tag - 1) for tag in got}
    assert set(range(1, written + 1)) - settled <= set(got)
    broker.stop()


def test_dead_letters_are_finished_after_a_crash(tmp_path: Path) -> None:
    runtime = SteppedRuntime()
    broker = BlipBroker(tmp_path, runtime=runtime)
    broker.topic("t", subscription_attempts_max="1")
    subscription = subscribe(broker)
    broker.append(AT, b"bad")
    take(broker, subscription, 1)
    # The copy is written but never becomes durable in this life.
    runtime.held_lanes.update({"sync", "journal"})
    runtime.advance(1_000)
    broker.crash()
    again = BlipBroker(tmp_path)
    again.runtime.advance(1_000)
    found = again.subscriptions.get(subscription.subscription_id)
    assert found is not None
    values = [value for value, _ in letters(again)]
    assert b"bad" in values or take(again, found, 1) == {1: b"bad"}
    again.stop()


def test_begun_behind_what_a_power_cut_took(tmp_path: Path) -> None:
    """New records get the offsets of those lost, and are delivered all the same."""
    broker = BlipBroker(tmp_path)
    broker.topic("t")
    broker.append(AT, b"durable")
    number = subscribe(broker).subscription_id
    subscription = broker.subscriptions.get(number)
    assert subscription is not None
    window = subscription.windows[0]  # type: ignore[attr-defined]
    window.first = window.floor = 100
    window.changed = True
    broker.subscriptions.changed(subscription)  # type: ignore[arg-type]
    broker.stop()
    again = BlipBroker(tmp_path)
    found = again.subscriptions.get(number)
    assert found is not None
    again.append(AT, b"new")
    again.crash()
    third = BlipBroker(tmp_path)
    found = third.subscriptions.get(number)
    assert found is not None
    assert take(third, found, 2) == {1: b"new"}
    third.stop()


def test_what_is_underway_is_told(broker: BlipBroker) -> None:
    subscription = subscribe(broker)
    data = batch.build([Record(b"a")], timestamp_ms=broker.runtime.now_ms())
    broker.log.append(AT, memoryview(data))
    assert subscription.stretch() is None
    assert subscription.underway() == {AT: 1}
    assert take(broker, subscription, 1) == {}
    waiting = broker.log.wait({AT: 0}, bytes_min=1, horizon=Horizon.DURABLE, timeout_ms=1_000)
    broker.runtime.step()
    assert waiting.value
    assert take(broker, subscription, 1) == {1: b"a"}
    assert take(broker, subscription, 1) == {}
    assert subscription.underway() == {}
