"""Who may use what: producer names, hidden topics, frames before a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import CursusBroker, Message, batch, frame, numbered

from pentalog.broker import named_producers
from pentalog.broker.rules import LocalRules
from pentalog.broker.security import Access, Kind, Operation, Principal, Rule
from pentalog.model import compression
from pentalog.protocols.cursus.inspection import CursusInspector
from pentalog.protocols.cursus.verbs import VERBS

ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
LARGEST = (1 << 63) - 1
REFUSED = "NOT_AUTHORIZED_FOR_OPERATION command=BATCH permission=producer producer=p1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusBroker]:
    opened = CursusBroker(tmp_path)
    opened.connect().text("CREATE topic=orders partitions=2")
    yield opened
    opened.close()


def rules_of(world: CursusBroker, *rules: Rule) -> LocalRules:
    found = LocalRules(world.state, enforced=True, super_users=[ROOT])
    found.add(rules)
    return found


def allow(kind: Kind, name: str, operation: Operation, who: Principal = BOB) -> Rule:
    return Rule(kind, name, False, who, "*", operation, True)


# Producer names


def test_a_name_belongs_to_the_principal_that_used_it_first(world: CursusBroker) -> None:
    alice, bob = (world.connect(Access(who=who)) for who in (ALICE, BOB))
    assert alice.publish(numbered(1))["status"] == "OK"
    fenced = bob.publish(numbered(1, epoch=LARGEST))
    assert fenced["error"].startswith(REFUSED)
    said = bob.text(
        f"PUBLISH topic=orders partition=0 producerId=p1 seqNum=1 epoch={LARGEST} "
        "isIdempotent=true message=x"
    )
    assert said.startswith("ERROR: NOT_AUTHORIZED_FOR_OPERATION command=PUBLISH")
    assert world.connect().publish(numbered(2))["error"].startswith(REFUSED)
    assert alice.publish(numbered(2))["last_offset"] == 1


def test_super_users_may_use_any_name_and_do_not_get_it(world: CursusBroker) -> None:
    rules = rules_of(
        world,
        allow(Kind.TOPIC, "orders", Operation.WRITE, ALICE),
        allow(Kind.TOPIC, "orders", Operation.WRITE, BOB),
    )
    alice, bob, root = (world.connect(Access(rules, who)) for who in (ALICE, BOB, ROOT))
    assert alice.publish(numbered(1))["status"] == "OK"
    assert root.publish(numbered(2))["status"] == "OK"
    assert bob.publish(numbered(3))["error"].startswith(REFUSED)
    assert alice.publish(numbered(3))["status"] == "OK"


def test_a_name_without_an_owner_goes_to_the_next_that_uses_it(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "old")
    first.connect().text("CREATE topic=orders partitions=2")
    assert first.connect().publish(numbered(1))["status"] == "OK"
    assert first.connect().publish(numbered(2))["status"] == "OK", "all are anonymous"
    first.close()
    second = CursusBroker(tmp_path / "old")
    alice, bob = (second.connect(Access(who=who)) for who in (ALICE, BOB))
    assert alice.publish(numbered(3))["status"] == "OK"
    assert bob.publish(numbered(4))["error"].startswith(REFUSED)
    second.close()
    third = CursusBroker(tmp_path / "old")
    bob = third.connect(Access(who=BOB))
    assert bob.publish(numbered(4))["error"].startswith(REFUSED), "it is kept with the name"
    third.close()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Access(who=ALICE), Access(who=BOB)),
        (Access(who=ALICE), Access(host="10.0.0.2")),
        (Access(host="10.0.0.1"), Access(host="10.0.0.2")),
        (Access(host="fd00:1::1"), Access(host="fd00:2::1")),
    ],
)
def test_one_client_cannot_make_the_broker_forget_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: Access, other: Access
) -> None:
    monkeypatch.setattr(named_producers, "NAMES_MAX", 6)
    world = CursusBroker(tmp_path / "few")
    alice, bob = world.connect(one), world.connect(other)
    alice.text("CREATE topic=orders partitions=2")
    assert alice.publish(numbered(1))["status"] == "OK"
    for number in range(9):
        assert bob.publish(numbered(1, producer=b"b%d" % number))["status"] == "OK"
    producers = world.broker.sourcing.producers
    assert producers.epoch(b"p1") is not None
    known = [number for number in range(9) if producers.epoch(b"b%d" % number) is not None]
    assert known == [6, 7, 8]
    world.close()


# Hidden topics

ASKED = {
    "CREATE": "topic={topic} partitions=9",
    "LIST": "topic={topic}",
    "FIND_COORDINATOR": "group=g topic={topic}",
    "PUBLISH": "topic={topic} producerId=p message=x",
    "CONSUME": "topic={topic} partition=0 offset=0 member=m group=g",
    "STREAM": "topic={topic} partition=0 group=g",
    "GROUP_STATUS": "group=g topic={topic}",
    "FETCH_OFFSET": "topic={topic} partition=0 group=g",
    "COMMIT": "topic={topic} group=g partition=0 offset=0",
    "COMMIT_OFFSET": "topic={topic} group=g partition=0 offset=0 member=m generation=1",
    "BATCH_COMMIT": "topic={topic} group=g member=m generation=1 P0:0",
    "TXN_PUBLISH": "transactional_id=t producerId=p epoch=0 topic={topic} seqNum=1 message=x",
    "SEND_OFFSETS_TO_TXN": (
        "transactional_id=t producerId=p epoch=0 topic={topic} group=g member=m generation=1 P0:0"
    ),
    "APPEND_STREAM": "topic={topic} key=k version=1 message=x",
    "SAVE_SNAPSHOT": "topic={topic} key=k version=0 message=x",
    "NEGOTIATE": "version=1",
}
OTHERWISE = "topic={topic} group=g member=m generation=1 key=k"


@pytest.mark.parametrize("pattern", ["{topic}", "{topic}*", "?{topic}"])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_refusals_do_not_tell_whether_a_hidden_topic_exists(
    world: CursusBroker, verb: str, pattern: str
) -> None:
    owner = world.connect()
    owner.text("CREATE topic=hidden partitions=2 event_sourcing=true")
    owner.text("JOIN_GROUP topic=hidden group=g member=m")
    owner.text("COMMIT topic=hidden group=g partition=0 offset=0")
    rules = rules_of(
        world,
        *(allow(Kind.GROUP, "g", operation) for operation in (Operation.READ, Operation.DESCRIBE)),
        allow(Kind.TRANSACTION, "t", Operation.WRITE),
        allow(Kind.TRANSACTION, "t", Operation.DESCRIBE),
    )
    form = ASKED.get(verb, OTHERWISE)
    answers = []
    for topic in ("hidden", "absent"):
        client = world.connect(Access(rules, BOB))
        name = pattern.format(topic=topic)
        found = client.ask(f"{verb} {form.format(topic=name)}")
        answers.append([answer.replace(topic.encode(), b"NAME") for answer in found])
    assert answers[0] == answers[1]


def test_a_batch_does_not_tell_it_either(world: CursusBroker) -> None:
    rules = rules_of(world)
    bob = world.connect(Access(rules, BOB))
    hidden, absent = (bob.publish(batch([Message()], topic=name)) for name in ("orders", "absent"))
    assert hidden["error"] == "NOT_AUTHORIZED_FOR_TOPIC operation=write topic=orders"
    assert absent["error"] == "NOT_AUTHORIZED_FOR_TOPIC operation=write topic=absent"


def test_a_member_whose_topic_was_hidden_may_still_leave(world: CursusBroker) -> None:
    joined = world.connect().text("JOIN_GROUP topic=orders group=g member=m")
    member = joined.split()[2].removeprefix("member=")
    bob = world.connect(Access(rules_of(world, allow(Kind.GROUP, "g", Operation.READ)), BOB))
    beat = bob.text(f"HEARTBEAT topic=orders group=g member={member} generation=1")
    assert beat == f"OK member={member} generation=1"
    left = bob.text(f"LEAVE_GROUP topic=orders group=g member={member}")
    assert left == f"OK group=g member={member} left=true"


# Before a login


def test_only_what_a_login_needs_is_served_before_it(world: CursusBroker) -> None:
    stranger = world.connect(None, "auth")
    for verb in sorted(VERBS):
        if verb in ("AUTH", "HELP", "PROTOCOL_INFO", "NEGOTIATE", "EXIT"):
            continue
        (answer,) = stranger.ask(f"{verb} topic=orders")
        assert b"authentication_required command=" + verb.encode() in answer
    refused = stranger.publish(batch([Message()]))
    assert refused["error"] == "authentication_required command=BATCH"


def test_compressed_frames_before_a_login_are_small(world: CursusBroker) -> None:
    stranger = world.connect(None, "auth")
    help_ = compression.compress(compression.GZIP, b"HELP")
    assert stranger.ask(help_)[0].startswith(b"OK commands=")
    bomb = compression.compress(compression.ZSTD, bytes(1 << 20))
    assert "65536 bytes once decompressed" in stranger.publish(bomb)["error"]
    stranger.feed(frame(bytes(671_089)))
    assert stranger.line.hung_up
    assert stranger.frames() == [b"ERROR: message_too_large size=671089 max=671088"]


# The inspector


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_the_inspector_shows_nothing_of_a_compressed_frame(codec: int) -> None:
    secret = compression.compress(codec, b"AUTH principal=alice token=s3cret")
    told = CursusInspector().request(memoryview(secret), len(secret))
    assert (told.name, told.secret) == ("compressed", True)


@pytest.mark.parametrize("blank", [b"\x0b", b"\x0c", b"\xc2\xa0", b"\xe2\x80\x83"])
def test_the_inspector_shows_nothing_of_a_command_behind_odd_blanks(blank: bytes) -> None:
    body = blank + b"AUTH principal=alice token=s3cret"
    assert CursusInspector().request(memoryview(body), len(body)).secret
