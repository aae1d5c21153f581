"""Cursus' door at several gateways in front of one cluster, and while connections break."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import HeldLine, is_produce
from cursus_gateway import CursusGateway, GatewayClient, OtherGateway, opened_gateway
from tests.golden.cursus.test_cursus_golden import CONVERSATIONS, GOLDEN, body_of, spoken
from tests.support.cursus_world import Message, batch, frame, messages_of, numbered

from pentalog.broker.port import Beat
from pentalog.cluster import registrations
from pentalog.cluster.produce import read_answer
from pentalog.model.errors import GroupNotFound
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Partition
from pentalog.protocols.cursus import rights

CONSUME = "CONSUME topic=orders partition={} offset={} member=m"
AT = Partition("orders", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusGateway]:
    with opened_gateway(tmp_path) as made:
        yield made


@pytest.fixture
def other(world: CursusGateway) -> OtherGateway:
    return OtherGateway(world)


def masked(lines: list[str]) -> list[str]:
    """Members are drawn at random, and longer here."""
    return [re.sub(r"(c\d|pc|0001)-[0-9a-f]{12,20}\b", r"\1-*", line) for line in lines]


def test_captured_conversations(tmp_path: Path) -> None:
    world = CursusGateway(tmp_path)
    got = masked(spoken(world.connect()))
    world.close()
    assert got == masked(GOLDEN.read_text().splitlines())


@pytest.mark.parametrize("seed", range(2))
def test_damaged_requests(world: CursusGateway, seed: int) -> None:
    """Every one is answered, or ends its connection."""
    dice = random.Random(seed)
    bodies = [
        body_of(line.replace("{member}", "m")) for lines in CONVERSATIONS.values() for line in lines
    ]
    bodies += [
        b"TXN_PUBLISH transactional_id=t producerId=p epoch=0 topic=orders seqNum=1 message=x",
        b"INIT_PRODUCER_ID transactional_id=t",
        b"GROUP_STATUS group=g",
        b"PUBLISH topic=orders producerId=p isIdempotent=true seqNum=1 message=x",
    ]
    client = world.connect()
    for _ in range(300):
        body = bytearray(dice.choice(bodies))
        for _ in range(dice.randint(0, 3)):
            body[dice.randrange(len(body))] = dice.choice((0, 32, 127, 255, dice.randrange(256)))
        client.feed(frame(bytes(body)))
        answers: list[bytes] = []
        for _ in range(1_000):
            world.advance(10)
            answers = client.frames()
            if answers or client.line.hung_up:
                break
        assert answers or client.line.hung_up or client.session.stream, bytes(body)
        if client.line.hung_up or client.session.stream:
            client.session.close()
            client = world.connect()


def joined(client: GatewayClient, name: str, group: str = "g") -> tuple[str, int, list[int]]:
    answer = client.text(f"JOIN_GROUP topic=orders group={group} member={name}")
    return shared(answer)


def shared(answer: str) -> tuple[str, int, list[int]]:
    found = re.fullmatch(
        r"OK generation=(\d+) member=(\S+) assignments=\[(.*)\](?: resumed=true)?", answer
    )
    assert found is not None, answer
    return found[2], int(found[1]), [int(index) for index in found[3].split()]


def test_records_cross_gateways(world: CursusGateway, other: OtherGateway) -> None:
    here, there = world.connect(), other.connect()
    assert here.publish(batch([Message(b"a")], acks="-1"))["last_offset"] == 0
    assert there.publish(batch([Message(b"b")], acks="-1"))["last_offset"] == 1
    for client in (here, there):
        found = client.read(CONSUME.format(0, 0))
        assert [message.payload for message in found] == [b"a", b"b"]


def test_what_was_fetched_is_read_to_its_end(world: CursusGateway) -> None:
    """Nodes give whole batches: one who reads a little of them need not fetch them each time."""
    here = world.connect()
    sizes = (100, 30, 3, 70)
    for size in sizes:
        here.publish(batch([Message(b"x" * 1_000) for _ in range(size)], acks="-1"))
    fetched = 0

    def count(request: bytes) -> None:
        nonlocal fetched
        fetched += request[4:6] == b"\0\1" and b"orders" in request

    world.trouble = count
    offset = 0
    while offset < sum(sizes):
        found = here.read(CONSUME.format(0, offset) + " batch=7")
        assert [message.offset for message in found] == list(range(offset, offset + len(found)))
        offset += len(found)
    assert fetched <= len(sizes)
    first = CONSUME.format(0, 0)
    for pause_ms, more in ((0, 1), (900, 0), (200, 1)):
        world.advance(pause_ms)
        before = fetched
        assert here.read(f"{first} batch=7")[0].offset == 0
        assert fetched - before == more
    world.topics.trim(AT, 5)
    world.advance(10)
    assert here.text(f"{first} batch=7").startswith("ERROR: OFFSET_OUT_OF_RANGE")


def test_a_producer_changes_gateways(world: CursusGateway, other: OtherGateway) -> None:
    """Its repetitions are known, its gaps too, and its earlier lives are fenced."""
    here, there = world.connect(), other.connect()
    assert here.publish(numbered(1, 2))["last_offset"] == 1
    assert there.publish(numbered(1, 2))["last_offset"] == 1
    assert there.publish(numbered(3))["last_offset"] == 2
    assert "expected 4, got 7" in there.publish(numbered(7))["error"]
    assert here.publish(numbered(3))["last_offset"] == 2
    assert here.publish(numbered(2, 3, 4))["last_offset"] == 3
    assert here.publish(numbered(1, epoch=2))["last_offset"] == 4
    assert "stale_producer_epoch" in there.publish(numbered(5))["error"]
    assert "stale_producer_epoch" in here.publish(numbered(5))["error"]
    stored = [message.seq for message in there.read(CONSUME.format(0, 0))]
    assert stored == [1, 2, 3, 4, 1]


def test_a_reader_is_woken_by_another_gateway(world: CursusGateway, other: OtherGateway) -> None:
    here, there = world.connect(), other.connect()
    assert there.ask(CONSUME.format(0, 0) + " wait_ms=60000") == []
    stream = other.connect()
    assert stream.ask("STREAM topic=orders partition=0 group=s member=m offset=0") == []
    here.publish(batch([Message(b"a")], acks="-1"))
    world.advance(50)
    for client in (there, stream):
        (answer,) = client.frames()
        assert [message.payload for message in messages_of(answer)] == [b"a"]


def test_members_at_two_gateways_share(world: CursusGateway, other: OtherGateway) -> None:
    here, there = world.connect(), other.connect()
    first, generation, partitions = joined(here, "a")
    assert partitions == [0, 1, 2, 3]
    second, _, _ = joined(there, "b")
    beat = "HEARTBEAT topic=orders group=g member={} generation={}"
    for _ in range(20):
        world.advance(1_000)
        first, generation, partitions = joined(here, first)
        second, other_generation, others = joined(there, second)
        if others:
            break
    assert (partitions, others) == ([0, 1], [2, 3])
    commit = "COMMIT_OFFSET topic=orders partition={} group=g offset=0 generation={} member={}"
    assert here.text(commit.format(partitions[0], generation, first)) == "OK"
    assert there.text(commit.format(others[0], other_generation, second)) == "OK"
    assert "NOT_OWNER" in here.text(commit.format(others[0], generation, first))
    status = json.loads(here.text("GROUP_STATUS group=g"))
    assert status["member_count"] == 2
    described = world.disk.broker.consumers.view("g")
    assert {member.member_id for member in described.members} == {first, second}
    there.text(f"LEAVE_GROUP topic=orders group=g member={second}")
    world.advance(6_000)
    assert "GEN_MISMATCH" in here.text(beat.format(first, generation))
    assert joined(here, first)[2] == [0, 1, 2, 3]


def test_a_registered_group_is_every_gateways(world: CursusGateway, other: OtherGateway) -> None:
    here, there = world.connect(), other.connect()
    assert "registered=true" in there.text("REGISTER_GROUP topic=orders group=r")
    assert here.text("FETCH_OFFSET topic=orders partition=0 group=r") == "OK offset=0"
    assert "subscribed=true" in here.text("SUBSCRIBE topic=orders group=s")
    left, _, _ = joined(there, "a", "j")
    there.text(f"LEAVE_GROUP topic=orders group=j member={left}")
    later = OtherGateway(world).connect()
    for client in (here, there, later):
        assert client.text("LIST_GROUPS") == "OK count=3 groups=j,r,s"
        status = json.loads(client.text("GROUP_STATUS group=s"))
        assert (status["topic_name"], status["state"]) == ("orders", "Dead")
    here.text("DELETE topic=orders")
    for client in (here, there, later):
        assert "not found" in client.text("GROUP_STATUS group=r")


def test_only_so_many_groups_are_registered(
    world: CursusGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "REGISTERED_MAX", 3)
    here = world.connect()
    for number in range(5):
        world.advance(10)
        here.text(f"REGISTER_GROUP topic=orders group=r{number}")
    assert here.text("LIST_GROUPS") == "OK count=3 groups=r2,r3,r4"


def test_a_commit_of_nobody_where_all_members_are_elsewhere(
    world: CursusGateway, other: OtherGateway
) -> None:
    here, there = world.connect(), other.connect()
    here.publish(batch([Message(), Message(), Message()], acks="-1"))
    joined(there, "a")
    joined(there, "b")
    world.advance(10_000)
    for offset in (1, 2):
        assert here.text(f"COMMIT orders g 0 {offset}") == "OK"
        fetch = "FETCH_OFFSET topic=orders partition=0 group=g"
        assert there.text(fetch) == here.text(fetch) == f"OK offset={offset}"
        joined(there, "c")  # they are in another epoch from now on


def test_a_member_of_kafkas_own_shares_too(world: CursusGateway) -> None:
    here = world.connect()
    member, generation, partitions = joined(here, "a")
    assert len(partitions) == 4
    consumers = world.disk.broker.consumers
    topic_id = world.disk.topics.get("orders").topic_id
    beat = Beat(
        member_id="kafka", epoch=0, rebalance_timeout_ms=60_000, topics=frozenset({"orders"}),
        assignor="range", owned={},
    )  # fmt: skip
    told = world.until(consumers.beat("g", beat))
    for _ in range(10):
        world.advance(1_000)
        here.text(f"HEARTBEAT topic=orders group=g member={member} generation={generation}")
        beat = Beat(member_id="kafka", epoch=told.epoch)
        told = world.until(consumers.beat("g", beat))
        if told.share:
            break
    assert told.share is not None
    assert len(told.share[topic_id]) == 2
    assert len(joined(here, member)[2]) == 2


def test_a_member_moves_to_another_gateway(world: CursusGateway, other: OtherGateway) -> None:
    """A stranger there joins under the id it has, and is the same one to the cluster."""
    member, generation, _ = joined(world.connect(), "a")
    there = other.connect()
    beat = f"HEARTBEAT topic=orders group=g member={member} generation={generation}"
    assert there.text(beat) == f"ERROR: member_not_found member={member} group=g"
    again, _, partitions = joined(there, member)
    assert (again, partitions) == (member, [0, 1, 2, 3])
    assert len(world.disk.broker.consumers.view("g").members) == 1


def test_a_member_leaves_whose_gateway_is_dead(world: CursusGateway, other: OtherGateway) -> None:
    member, _, _ = joined(world.connect(), "a")
    there = other.connect()
    leave = "LEAVE_GROUP topic=orders group=g member={}"
    assert there.text(leave.format("a")) == "ERROR: member_not_found member=a group=g"
    assert there.text(leave.format(member)) == f"OK group=g member={member} left=true"
    assert not world.disk.broker.consumers.view("g").members
    again = f"ERROR: member_not_found member={member} group=g"
    assert OtherGateway(world).connect().text(leave.format(member)) == again


def test_nobody_is_let_in_who_may_not(
    world: CursusGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster hears nothing of one who lacks the right."""
    monkeypatch.setattr(rights, "allowed", lambda call: False)
    client = world.connect()
    refused = client.text("JOIN_GROUP topic=orders group=g member=a")
    assert refused.startswith("ERROR: member_not_found")
    with pytest.raises(GroupNotFound):
        world.disk.broker.consumers.view("g")


@pytest.mark.parametrize("step_ms", [0, 3_600_000, -3_600_000])
def test_a_silent_member_leaves_the_cluster(world: CursusGateway, step_ms: int) -> None:
    here = world.connect()
    joined(here, "a")
    joined(here, "b")
    world.runtime.wall_step_ms += step_ms
    world.advance(29_000)
    assert len(world.disk.broker.consumers.view("g").members) == 2
    world.advance(8_000)
    assert not world.disk.broker.consumers.view("g").members


def test_a_transaction_changes_gateways(world: CursusGateway, other: OtherGateway) -> None:
    here, there = world.connect(), other.connect()
    answer = here.text("INIT_PRODUCER_ID transactional_id=tx")
    found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
    assert found is not None
    who = f"transactional_id=tx producerId={found[1]} epoch={found[2]}"
    assert here.text(f"BEGIN_TXN {who}").startswith("OK")
    publish = f"TXN_PUBLISH {who} topic=orders partition=0 seqNum={{}} message={{}}"
    assert "staged_messages=1" in here.text(publish.format(1, "a"))
    assert there.text("TXN_STATUS transactional_id=tx").startswith(
        "OK transactional_id=tx state=open"
    )
    assert there.text(publish.format(2, "b")).startswith("OK")
    assert there.read(CONSUME.format(0, 0)) == []
    assert there.text(f"END_TXN {who} result=commit").startswith("OK")
    found_there = there.read(CONSUME.format(0, 0))
    assert [message.payload for message in found_there] == [b"a", b"b"]
    there.text("INIT_PRODUCER_ID transactional_id=tx")
    assert "ERROR" in here.text(publish.format(3, "c"))
    world.advance(100)
    assert len(here.read(CONSUME.format(0, 0))) == 2


def test_offsets_of_a_transaction(world: CursusGateway, other: OtherGateway) -> None:
    """As they were until it ends, and nobody waits for that."""
    here, there = world.connect(), other.connect()
    for index in (0, 1):
        here.publish(batch([Message(), Message()], partition=index, acks="-1"))
    member, generation, _ = joined(here, "a")
    answer = here.text("INIT_PRODUCER_ID transactional_id=tx")
    found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
    assert found is not None
    who = f"transactional_id=tx producerId={found[1]} epoch={found[2]}"
    here.text(f"BEGIN_TXN {who}")
    send = f"SEND_OFFSETS_TO_TXN {who} topic=orders group=g member={member} generation={generation}"
    before_ms = world.runtime.now_ms()
    assert "staged_offsets=1" in here.text(f"{send} P0:1")
    assert "staged_offsets=3" in here.text(f"{send} P0:2,P1:1")
    fetch = "FETCH_OFFSET topic=orders partition=0 group=g"
    assert there.text(fetch) == here.text(fetch) == "OK offset=0"
    assert world.runtime.now_ms() - before_ms < 1_000
    assert here.text(f"END_TXN {who} result=commit").startswith("OK")
    assert there.text(fetch) == here.text(fetch) == "OK offset=2"


def test_the_gateways_own_names_are_theirs(world: CursusGateway) -> None:
    refused = world.connect().text("INIT_PRODUCER_ID transactional_id=pentalog-events")
    assert refused.startswith("ERROR: invalid_transactional_id")


def test_events_are_the_owners(world: CursusGateway, other: OtherGateway) -> None:
    other.sit("two", ("two.example", 9002))
    here, there = world.connect(), other.connect()
    redirected = "ERROR: NOT_LEADER LEADER_IS one.example:9000"
    create = "CREATE topic=events partitions=2 event_sourcing=true"
    assert there.text(create) == redirected
    assert here.text(create).startswith("OK topic=events")
    append = "APPEND_STREAM topic=events key=k version={} message=m{}"
    assert here.text(append.format(1, 1)).startswith("OK version=1")
    world.advance(500)
    assert there.text(append.format(2, 2)) == redirected
    (refused,) = there.ask("READ_STREAM topic=events key=k")
    assert json.loads(refused)["error"] == redirected.removeprefix("ERROR: ")
    assert there.text("DELETE topic=events") == redirected
    assert there.text(create).startswith("OK"), "what is so already needs no owner"
    leaders = re.search(r"leaders=(\S+)", there.text("METADATA topic=orders"))
    assert leaders is not None
    assert leaders[1] == ",".join(["one.example:9000", "two.example:9002"] * 2)
    sourced = there.text("METADATA topic=events")
    assert "leaders=one.example:9000,one.example:9000 " in sourced
    told = {client.text("FIND_COORDINATOR group=g") for client in (here, there)}
    assert len(told) == 1


def test_the_next_owner_goes_on_with_the_versions(
    world: CursusGateway, other: OtherGateway
) -> None:
    other.sit("two", ("two.example", 9002))
    here, there = world.connect(), other.connect()
    here.text("CREATE topic=events partitions=1 event_sourcing=true")
    append = "APPEND_STREAM topic=events key=k version={} message=m{}"
    for version in (1, 2, 3):
        assert here.text(append.format(version, version)).startswith("OK")
    here.text("SAVE_SNAPSHOT topic=events key=k version=2 message=so-far")
    world.engine.council.close()
    for _ in range(200):
        world.advance(100)
        if other.engine.state.owned:
            break
    assert there.text(append.format(3, 3)) == "ERROR: version_conflict current=3 expected=3"
    assert there.text(append.format(4, 4)).startswith("OK version=4")
    assert here.text(append.format(5, 5)).startswith("ERROR")
    envelope, body = there.ask("READ_STREAM topic=events key=k")
    assert json.loads(envelope)["snapshot"]["payload"] == "so-far"
    assert [message.version for message in messages_of(body)] == [3, 4]


def test_what_an_earlier_owner_sent_comes_too_late(
    world: CursusGateway, other: OtherGateway
) -> None:
    """It is refused by the partition itself, whoever may have sent it and whenever it arrives."""
    other.sit("two", ("two.example", 9002))
    here, there = world.connect(), other.connect()
    here.text("CREATE topic=events partitions=1 event_sourcing=true")
    append = "APPEND_STREAM topic=events key=k version={} message=m{}"
    assert here.text(append.format(1, 1)).startswith("OK version=1")
    late: list[bytes] = []

    def swallow(request: bytes) -> bytes | None:
        if is_produce(request) and b"mlate" in request:
            late.append(request)
            return b""
        return None

    world.trouble = swallow
    here.feed(frame(append.format(2, "late").encode()))
    world.advance(100)
    assert len(late) == 1
    world.trouble = lambda request: None
    world.engine.council.close()
    for _ in range(200):
        world.advance(100)
        if other.engine.state.owned:
            break
    assert there.text(append.format(2, 2)).startswith("OK version=2")
    answer = HeldLine()
    world.disk.connect(answer).receive(memoryview(bytearray(late[0])))
    world.advance(100)
    assert read_answer(memoryview(answer.sent())[8:])[0][0].code is ErrorCode.invalid_producer_epoch
    _, body = there.ask("READ_STREAM topic=events key=k")
    assert [message.payload for message in messages_of(body)] == [b"m1", b"m2"]


@pytest.mark.parametrize("seed", range(4))
def test_events_while_connections_break(world: CursusGateway, seed: int) -> None:
    """Versions have no gap and none is there twice, whatever was answered."""
    here = world.connect()
    here.text("CREATE topic=events partitions=1 event_sourcing=true")
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * 25]
    world.trouble = lambda frame: dice.choice(chances)
    acknowledged = 0
    version = 1
    for _ in range(12):
        here.feed(frame(f"APPEND_STREAM topic=events key=k version={version} message=m".encode()))
        answers: list[bytes] = []
        for _ in range(3_000):
            world.advance(20)
            answers = here.frames()
            if answers:
                break
        answer = answers[0].decode()
        if answer.startswith("OK"):
            acknowledged = version
            version += 1
        elif conflict := re.search(r"current=(\d+)", answer):
            version = int(conflict[1]) + 1
    world.trouble = lambda frame: None
    world.owns()
    world.advance(70_000)
    _, body = here.ask("READ_STREAM topic=events key=k")
    versions = [message.version for message in messages_of(body)]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) >= acknowledged > 0


@pytest.mark.parametrize("seed", range(4))
def test_idempotent_batches_while_connections_break(world: CursusGateway, seed: int) -> None:
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * 12]
    world.trouble = lambda frame: dice.choice(chances)
    here = world.connect()
    sent = 1
    for _ in range(25):
        size = dice.randint(1, 3)
        body = numbered(*range(sent, sent + size), acks="-1")
        while True:
            here.feed(frame(body))
            answers: list[bytes] = []
            for _ in range(4_000):
                world.advance(20)
                answers = here.frames()
                if answers:
                    break
            if json.loads(answers[0])["status"] == "OK":
                break
        sent += size
    world.trouble = lambda frame: None
    stored = [message.seq for message in here.read(CONSUME.format(0, 0))]
    assert stored == list(range(1, sent))


@pytest.mark.parametrize("seed", range(2))
def test_groups_settle_after_connections_broke(
    world: CursusGateway, other: OtherGateway, seed: int
) -> None:
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * 8]
    clients = [world.connect(), world.connect(), other.connect()]
    names = ["a", "b", "c"]
    world.trouble = lambda frame: dice.choice(chances)
    for _ in range(5):
        for client in clients:
            client.feed(
                frame(b"JOIN_GROUP topic=orders group=g member=" + dice.randbytes(4).hex().encode())
            )
        world.advance(4_000)
    world.trouble = lambda frame: None
    world.advance(45_000)
    for client in clients:
        client.frames()
    shares: list[list[int]] = []
    for _ in range(20):
        world.advance(2_000)
        shares = []
        for number, client in enumerate(clients):
            names[number], _, share = joined(client, names[number])
            shares.append(share)
        if sorted(index for share in shares for index in share) == [0, 1, 2, 3]:
            break
    assert sorted(index for share in shares for index in share) == [0, 1, 2, 3]
    assert len(world.disk.broker.consumers.view("g").members) == 3


@pytest.mark.parametrize("seed", range(3))
def test_transactions_while_connections_break(world: CursusGateway, seed: int) -> None:
    """Both of its messages are there, or none; both if its end was acknowledged."""
    dice = random.Random(seed)
    chances = ["before", "after", *[None] * 20]
    world.trouble = lambda frame: dice.choice(chances)
    here = world.connect()

    def text(command: str) -> str:
        here.feed(frame(command.encode()))
        for _ in range(4_000):
            world.advance(20)
            answers = here.frames()
            if answers:
                return answers[0].decode()
        raise AssertionError(command)

    committed: list[int] = []
    for number in range(10):
        found = re.search(r"producerId=(\S+) epoch=(\d+)", text("INIT_PRODUCER_ID txn=tx"))
        if found is None:
            continue
        who = f"txn=tx producerId={found[1]} epoch={found[2]}"
        answers = [text(f"BEGIN_TXN {who}")]
        for seq in (1, 2):
            place = f"topic=orders partition={seq} seqNum={seq}"
            answers.append(text(f"TXN_PUBLISH {who} {place} message={number}"))
        if all(answer.startswith("OK") for answer in answers):
            result = dice.choice(("commit", "commit", "abort"))
            ended = text(f"END_TXN {who} result={result}")
            if ended.startswith("OK") and result == "commit":
                committed.append(number)
    world.trouble = lambda frame: None
    world.advance(70_000)
    first, second = (
        [int(message.payload) for message in here.read(CONSUME.format(index, 0))]
        for index in (1, 2)
    )
    assert first == second
    assert set(committed) <= set(first)
    assert len(set(first)) == len(first)
    assert committed
