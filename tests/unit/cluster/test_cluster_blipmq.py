"""BlipMQ in front of a cluster: published anywhere, delivered by the owner through any gateway."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from blipmq_gateway import BlipConnection, BlipGateway
from cluster_world import ClusterWorld
from council_world import pass_time
from tests.support.blipmq_world import AUTH, HELLO

from pentalog.broker.port import TopicSpec
from pentalog.cluster import council, writing
from pentalog.cluster.subscriptions import PatientTopics
from pentalog.config import Config
from pentalog.model.types import Partition
from pentalog.protocols.blipmq import holding, session
from pentalog.protocols.blipmq.forwarding import FORWARDED

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "blipmq"))

sys.path.insert(0, str(Path(__file__).parents[2] / "golden" / "blipmq"))

from test_blipmq_golden import ORIGINAL
from test_blipmq_session import ack, frame, frames_of, nack, poll, publish

PING = frame(7, 77)
PONG = frame(8, 77)
LEASE_MS = 60_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fleet(world: ClusterWorld) -> list[BlipGateway]:
    """Two gateways; the first is the owner."""
    known: dict[str, BlipGateway] = {}
    gateways = [BlipGateway(world, name, known) for name in ("one", "two")]
    pass_time(world, gateways, lambda: any(each.broker.subscriptions.here for each in gateways))
    pass_time(world, gateways, lambda: all(each.council.owner is not None for each in gateways))
    return sorted(gateways, key=lambda each: not each.broker.subscriptions.here)


def subscribe(connection: BlipConnection, topic: bytes = b"demo", qos: int = 1) -> int:
    answer = connection.ask(frame(4, 3, len(topic).to_bytes(2, "big") + topic + bytes((qos,))))
    assert answer[4] == 5, answer
    return int.from_bytes(answer[-8:], "big")


def messages(answers: bytes) -> list[bytes]:
    """What was delivered, in order."""
    return [each[20:] for each in frames_of(answers) if each[4] == 3]


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_captured_conversation(fleet: list[BlipGateway], at: int, size: int) -> None:
    """With the original, byte for byte, in pieces; whoever keeps the subscriptions."""
    peer = BlipConnection(fleet[at])
    for exchange in ORIGINAL:
        answer = b""
        for start in range(0, len(exchange.sent), size):
            assert answer == b"", exchange.title
            answer = peer.ask_in_part(exchange.sent[start : start + size])
        assert answer.hex() == exchange.answer.hex(), exchange.title


@pytest.mark.parametrize("at", [0, 1], ids=["owner", "other"])
def test_the_whole_conversation_at_once(fleet: list[BlipGateway], at: int) -> None:
    sent = b"".join(exchange.sent for exchange in ORIGINAL)
    answers = b"".join(exchange.answer for exchange in ORIGINAL)
    assert BlipConnection(fleet[at]).ask(sent).hex() == answers.hex()


def delivered(peer: BlipConnection, number: int, count: int) -> list[bytes]:
    """Polls that had to wait for the cluster may find nothing: they are made again."""
    found: list[bytes] = []
    for _ in range(10):
        if len(found) < count:
            found += messages(peer.ask(poll(number) * (count - len(found)) + PING))
    return found


@pytest.mark.parametrize("at", [0, 1])
def test_a_subscription_is_used_through_any_gateway(fleet: list[BlipGateway], at: int) -> None:
    here, there = fleet[at].client(), fleet[1 - at].client()
    number = subscribe(here)
    assert number == 2
    assert there.ask(publish(b"a") + publish(b"b") + PING) == PONG
    assert messages(here.ask(poll(number, 1))) == [b"a"]
    assert messages(there.ask(poll(number, 2) + poll(number, 3) + PING)) == [b"b"]
    assert there.ask(ack(number, 1) + PING) == PONG
    refused = nack(1, 404, "unknown subscription or delivery tag")
    assert here.ask(ack(number, 1) + ack(number, 2) + PING) == refused + PONG
    assert subscribe(there, qos=0) == number + 1


@pytest.mark.parametrize("at", [0, 1])
def test_a_pipeline_is_answered_in_order(fleet: list[BlipGateway], at: int) -> None:
    peer = fleet[at].client()
    number = subscribe(peer)
    sent = b"".join(
        publish(b"%d" % each) + poll(number, each) + frame(7, each) for each in range(30)
    )
    expected = [
        one
        for each in range(30)
        for one in (publish(b"%d" % each, correlation=each + 1), frame(8, each))
    ]
    assert frames_of(peer.ask(sent)) == expected, "a delivery's correlation id is its tag"


def test_large_answers_pass_in_portions(fleet: list[BlipGateway]) -> None:
    owner, other = fleet
    slow = BlipConnection(other, full_bytes=150_000)
    slow.ask(HELLO + AUTH)
    number = subscribe(slow)
    bodies = [bytes([each]) * (each * 300) for each in range(60)] + [bytes(400_000)]
    writer = owner.client()
    for body in bodies:
        writer.ask(publish(body))
    writer.ask(PING)
    assert delivered(slow, number, 61) == bodies
    slow.ask(b"".join(ack(number, tag) for tag in range(1, 62)))
    for body in bodies:
        writer.ask(publish(body))
    writer.ask(PING)
    # A client that reads nothing: what comes from the owner waits there.
    slow.feed(poll(number) * 61)
    for _ in range(200):
        slow.broker.runtime.run()  # type: ignore[attr-defined]
        slow.pump()
    assert other.upstreams[-1].paused
    assert sum(len(each) for each in slow._line if isinstance(each, bytes)) < 400_000
    first = messages(slow.ask(PING))
    assert first + delivered(slow, number, 61 - len(first)) == bodies


def test_a_new_owner_delivers_again_what_was_not_acknowledged(
    world: ClusterWorld, fleet: list[BlipGateway]
) -> None:
    owner, heir = fleet
    peer = heir.client()
    number = subscribe(peer)
    peer.ask(b"".join(publish(b"%d" % each) for each in range(5)) + PING)
    assert len(messages(peer.ask(poll(number) * 4))) == 4
    assert peer.ask(ack(number, 1) + ack(number, 3) + PING) == PONG
    saved_ms = world.runtime.time_ms + 1_000
    pass_time(world, fleet, lambda: world.runtime.time_ms > saved_ms)
    owner.kill()
    answers = frames_of(peer.ask(poll(number) * 9 + PING))
    assert heir.broker.subscriptions.here
    assert messages(b"".join(answers)) == [b"1", b"3", b"4"]
    assert answers[-1] == PONG, "nothing was refused meanwhile"
    assert peer.ask(ack(number, 2) + ack(number, 4) + ack(number, 5) + PING) == PONG
    assert messages(peer.ask(poll(number) + PING)) == []
    assert subscribe(peer) > number


@pytest.mark.parametrize("taken", [4, 40])
def test_a_new_owner_delivers_nothing_of_quality_0_again(
    world: ClusterWorld, fleet: list[BlipGateway], taken: int
) -> None:
    owner, heir = fleet
    peer = heir.client()
    number = subscribe(peer, qos=0)
    bodies = [b"%d" % each for each in range(taken)]
    peer.ask(b"".join(map(publish, bodies)) + PING)
    assert messages(peer.ask(poll(number) * taken + PING)) == bodies
    owner.kill()
    assert messages(peer.ask(poll(number) * 9 + PING)) == []
    assert heir.broker.subscriptions.here
    peer.ask(publish(b"next") + PING)
    assert messages(peer.ask(poll(number) * 9 + PING)) == [b"next"]


def test_an_owner_that_stops_forgets_nothing(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    owner, heir = fleet
    peer = heir.client()
    number = subscribe(peer)
    peer.ask(publish(b"a") + publish(b"b") + PING)
    assert messages(peer.ask(poll(number) * 2 + PING)) == [b"a", b"b"]
    assert peer.ask(ack(number, 1) + PING) == PONG
    world.until(owner.engine.leave())
    took_ms = pass_time(world, fleet, lambda: heir.broker.subscriptions.here)
    assert took_ms < council.SESSION_MS / 2, "nobody has waited for its session to end"
    assert messages(peer.ask(poll(number) * 2 + PING)) == [b"b"]


def test_no_owner_no_deliveries(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    owner, other = fleet
    number = subscribe(owner.client())
    peer = owner.client()
    owner.dialer.cut()
    other.dialer.cut()
    pass_time(world, fleet, lambda: not owner.council.owned)
    assert not owner.broker.subscriptions.here
    answer = peer.ask(poll(number, 5))
    assert answer.startswith(nack(5, 500, "")[4:15], 4)
    assert b"no gateway owns them" in answer


def test_frames_wait_for_an_owner(world: ClusterWorld) -> None:
    """A client that comes before the gateways have met need not try again."""
    known: dict[str, BlipGateway] = {}
    gateways = [BlipGateway(world, name, known) for name in ("one", "two")]
    assert [subscribe(each.client()) for each in gateways] == [2, 3]


def test_nothing_is_forwarded_twice(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    _, other = fleet
    peer = BlipConnection(other)
    peer.ask(frame(1, int.from_bytes(FORWARDED, "big"), b"\0\1") + AUTH)
    answer = peer.ask(poll(3, 5) + PING)
    assert (answer, peer.ended) == (b"", True), "who came looks for the owner anew"
    assert not other.upstreams


def test_publishing_does_not_wait_for_an_owner(
    world: ClusterWorld, fleet: list[BlipGateway]
) -> None:
    owner, other = fleet
    poller, publisher = other.client(), other.client()
    number = subscribe(poller)
    publisher.ask(publish(b"before") + PING)
    owner.kill()
    poller.feed(poll(number))
    world.runtime.run()
    began_ms = world.runtime.time_ms
    sent = b"".join(publish(b"%d" % each) for each in range(100))
    assert publisher.ask(sent + PING) == PONG
    assert world.runtime.time_ms - began_ms < 100
    assert poller.take() == b"", "that one waits"
    assert messages(poller.ask(PING)) == [b"before"]


@pytest.mark.parametrize("kind", ["subscribe", "poll", "ack"])
def test_an_owner_that_says_nothing_any_more(
    world: ClusterWorld, fleet: list[BlipGateway], kind: str
) -> None:
    """Its connections stay open, as those of a machine without power."""
    owner, heir = fleet
    peer = heir.client()
    number = subscribe(peer)
    peer.ask(publish(b"a") + PING)
    assert messages(peer.ask(poll(number) + PING)) == [b"a"]
    saved_ms = world.runtime.time_ms + 1_000
    pass_time(world, fleet, lambda: world.runtime.time_ms > saved_ms)
    owner.dialer.cut()
    for upstream in heir.upstreams:
        upstream.stuck = True
    if kind == "subscribe":
        assert subscribe(peer) == number + 1
    elif kind == "poll":
        assert messages(peer.ask(poll(number) + PING)) == [b"a"]
    else:
        assert peer.ask(ack(number, 1) + PING) == PONG
        unknown = nack(1, 404, "unknown subscription or delivery tag")
        assert peer.ask(ack(number, 1) + poll(number) + PING) == unknown + PONG
    assert heir.broker.subscriptions.here


def test_an_owner_that_dies_in_the_middle_of_its_answers(
    world: ClusterWorld, fleet: list[BlipGateway]
) -> None:
    owner, heir = fleet
    peer = BlipConnection(heir, full_bytes=150_000)
    peer.ask(HELLO + AUTH)
    number = subscribe(peer)
    bodies = [bytes([each]) * 10_000 for each in range(60)]
    peer.ask(b"".join(publish(body) for body in bodies) + PING)
    peer.feed(poll(number) * 60 + PING)
    while not heir.upstreams[-1].paused:
        world.runtime.run()
    owner.kill()
    answers = frames_of(peer.ask(b""))
    first = messages(b"".join(answers))
    assert first == bodies[: len(first)]
    assert 0 < len(first) < 60
    assert answers[-1] == PONG, "the polls behind have found nothing"
    assert set(first) | set(delivered(peer, number, 60)) == set(bodies)


def test_one_looks_after_an_owner_for_all_that_wait(
    world: ClusterWorld, fleet: list[BlipGateway]
) -> None:
    owner, heir = fleet
    number = subscribe(heir.client())
    owner.kill()
    called = len(heir.upstreams)
    peers = [heir.client() for _ in range(50)]
    for peer in peers:
        peer.feed(poll(number) + PING)
        world.runtime.run()
    took_ms = pass_time(world, [heir], lambda: heir.broker.subscriptions.here)
    assert len(heir.upstreams) - called <= 2 + took_ms / 500
    assert [peer.ask(b"") for peer in peers] == [PONG] * 50


def test_patience_begins_anew_after_a_time_of_ones_own(
    world: ClusterWorld, fleet: list[BlipGateway]
) -> None:
    owner, heir = fleet
    peer = heir.client()
    number = subscribe(peer)
    owner.kill()
    assert peer.ask(poll(number) + PING) == PONG
    assert heir.broker.subscriptions.here
    later_ms = world.runtime.time_ms + 2 * holding.PATIENCE_MS
    pass_time(world, fleet, lambda: world.runtime.time_ms > later_ms)
    heir.dialer.cut()
    pass_time(world, fleet, lambda: not heir.broker.subscriptions.here)
    began_ms = world.runtime.time_ms
    assert frames_of(peer.ask(poll(number, 5)))[0].startswith(nack(5, 500, "")[4:15], 4)
    assert world.runtime.time_ms - began_ms >= holding.PATIENCE_MS


def test_patience_with_nobody_ends(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    owner, other = fleet
    peer = other.client()
    number = subscribe(peer)
    owner.kill()
    other.dialer.cut()
    began_ms = world.runtime.time_ms
    answers = frames_of(peer.ask(poll(number, 5) + PING))
    waited_ms = world.runtime.time_ms - began_ms
    assert answers[0].startswith(nack(5, 500, "")[4:15], 4)
    assert answers[1:] == [PONG]
    assert holding.PATIENCE_MS <= waited_ms < holding.PATIENCE_MS + 1_000
    other.dialer.away = False
    assert peer.ask(poll(number) + PING) == PONG, "and has begun anew"


def test_an_owner_with_other_keys(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    _, other = fleet
    peer = other.client()
    peer.session._login = lambda _: b"stolen"
    answer = peer.ask(poll(3, 5) + PING)
    assert b"gateway 1 does not let this one in: invalid API key" in answer
    assert answer.endswith(PONG)


def test_topics_are_made_when_first_named(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    owner, other = (each.client() for each in fleet)
    assert owner.ask(publish(b"x", topic=b"fresh") + PING) == PONG
    assert other.ask(publish(b"y", topic=b"fresh") + PING) == PONG
    assert world.kept(Partition("fresh", 0)) == [b"x", b"y"]
    assert subscribe(other, b"unheard") == 2
    refused = frames_of(other.ask(publish(b"x", topic=b"no/slash") + PING))
    assert refused[0][4] == 6
    assert refused[1] == PONG


def test_dead_letters(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    """Nobody acknowledges: what was delivered often enough is set aside in a topic of its own."""
    owner, _ = fleet
    peer = owner.client()
    settings = {"subscription.lease.ms": "1000", "subscription.attempts.max": "2"}
    world.disk.topics.create(TopicSpec(name="demo", partitions=1, settings=settings))
    number = subscribe(peer)
    peer.ask(publish(b"bad") + PING)
    seen = 0

    def set_aside() -> bool:
        nonlocal seen
        seen += len(messages(peer.ask(poll(number) + PING)))
        return "demo.dlq" in {topic.name for topic in world.disk.topics.all()}

    pass_time(world, fleet, set_aside)
    pass_time(world, fleet, lambda: world.kept(Partition("demo.dlq", 0)) == [b"bad"])
    assert seen == 2


def test_settings_that_no_kafka_knows(world: ClusterWorld, fleet: list[BlipGateway]) -> None:
    """The state keeps them; without, what the gateway says of all topics holds."""
    owner, _ = fleet
    number = subscribe(owner.client())
    tenure = owner.engine.state.tenure
    assert tenure is not None
    sql = "INSERT INTO topic_settings VALUES ('demo', ?, ?)"
    world.until(tenure.put(sql, [("subscription.lease.ms", "77"), ("retention.ms", "1")]))
    topics = PatientTopics(
        owner.engine._topics,
        tenure,
        Config(topic_defaults={"subscription.lease.ms": "5", "subscription.attempts.max": "9"}),
    )
    settings = topics.get("demo").settings
    assert (settings.delivery_lease_ms, settings.delivery_attempts_max) == (77, 9)
    assert settings.retention_ms != 1
    assert number


@pytest.mark.parametrize("seed", range(4))
def test_at_least_once_whatever_breaks(
    world: ClusterWorld, fleet: list[BlipGateway], seed: int
) -> None:
    """Owners that are cut off and come back: nothing published and acknowledged stays away."""
    chance = random.Random(seed)
    subscriber = fleet[1].client()
    number = subscribe(subscriber)
    published: list[bytes] = []
    seen: set[bytes] = set()

    def drain(peer: BlipConnection) -> None:
        for each in frames_of(peer.ask(poll(number) * 10 + PING)):
            if each[4] == 3:
                seen.add(each[20:])
                peer.ask(frame(5, int.from_bytes(each[5:13], "big"), number.to_bytes(8, "big")))

    for turn in range(12):
        gateway = chance.choice(fleet)
        body = b"%d" % turn
        if gateway.client().ask(publish(body) + PING) == PONG:
            published.append(body)
        drain(chance.choice(fleet).client())
        victim = chance.choice(fleet)
        if chance.random() < 0.4:
            victim.dialer.cut()
            until_ms = world.runtime.time_ms + chance.randrange(100, 9_000)
            pass_time(world, fleet, lambda until_ms=until_ms: world.runtime.time_ms > until_ms)
            victim.dialer.away = False
    pass_time(world, fleet, lambda: any(each.broker.subscriptions.here for each in fleet))
    for _ in range(20):
        drain(fleet[0].client())
        world.runtime.advance(LEASE_MS)
        if seen >= set(published):
            break
    assert published
    assert seen >= set(published)


def test_more_than_the_cluster_takes_waits_in_the_socket(
    world: ClusterWorld, fleet: list[BlipGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two million messages in one go were refused with 500 once 256 MiB of them waited."""
    monkeypatch.setattr(writing, "QUEUED_BYTES_MAX", 3_000)
    monkeypatch.setattr(session, "_UNWRITTEN_BYTES_MAX", 1_000)
    peer = BlipConnection(fleet[0])
    peer.ask(HELLO + AUTH)
    sent = [publish(b"x" * 100, topic=topic) for _ in range(50) for topic in (b"a", b"b")]
    assert peer.ask(b"".join(sent) + PING) == PONG
    ends = [world.disk.broker.log.marks(Partition(topic, 0)).end for topic in "ab"]
    assert ends == [50, 50]
