"""Java producers: idempotence, and transactions in the dialect that Kafka 4 speaks."""

from __future__ import annotations

from typing import Any

import pytest
from jvm import Client, Clients, JavaError, Jvm, taken, until
from nodes import IS_KAFKA, Node

pytestmark = [pytest.mark.clients, pytest.mark.java]

FENCED = ("ProducerFencedException", "InvalidProducerEpochException")


def rows(first: int, count: int, partition: int = 0) -> list[list[Any]]:
    return [[partition, f"{i}", f"value-{i}"] for i in range(first, first + count)]


def values(first: int, count: int) -> list[str]:
    return [f"value-{i}" for i in range(first, first + count)]


def made(clients: Clients, topic: str, partitions: int = 1) -> Client:
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=partitions)
    return admin


def reader(clients: Clients, topic: str, partitions: int = 1, **settings: object) -> Client:
    """A consumer of whole topic from its beginning; committed records only unless told."""
    consumer = clients.consumer(**{"isolation_level": "read_committed", **settings})
    consumer("assign", partitions=[[topic, i] for i in range(partitions)], beginning=True)
    return consumer


def transactional(clients: Clients, topic: str, **settings: object) -> Client:
    producer = clients.producer(transactional_id=topic, **settings)
    producer("init")
    return producer


def ends(admin: Client, topic: str) -> tuple[int, int]:
    """The last stable offset and the end of partition 0."""
    stable = admin("offsets", partitions=[[topic, 0]], at="latest", committed=True)
    end = admin("offsets", partitions=[[topic, 0]], at="latest")
    return stable[0][2], end[0][2]


def test_idempotent_writes_are_numbered(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    producer = clients.producer(enable_idempotence=True, batch_size=100)
    assert producer("send", topic=topic, records=rows(0, 200)) == [[0, i] for i in range(200)]
    (state,) = admin("describe producers", partitions=[[topic, 0]])
    assert state["sequence"] == 199
    assert state["start"] == -1


def test_a_transaction_is_seen_when_it_is_committed(clients: Clients, topic: str) -> None:
    admin = made(clients, topic, 2)
    consumer = reader(clients, topic, 2)
    dirty = reader(clients, topic, 2, isolation_level="read_uncommitted")
    producer = transactional(clients, topic)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 10) + rows(10, 10, partition=1))
    assert len(taken(dirty, 20)) == 20
    assert ends(admin, topic) == (0, 10)
    assert consumer("take") == []
    producer("commit")
    assert sorted(one[4] for one in taken(consumer, 20)) == sorted(values(0, 20))
    # The marker takes a place too.
    assert ends(admin, topic) == (11, 11)


def test_an_aborted_transaction_is_never_seen(clients: Clients, topic: str) -> None:
    made(clients, topic)
    producer = transactional(clients, topic)
    for number in range(6):
        producer("begin")
        producer("send", topic=topic, records=rows(number * 5, 5))
        producer("abort" if number % 2 else "commit")
    expected = values(0, 5) + values(10, 5) + values(20, 5)
    assert [one[4] for one in taken(reader(clients, topic), 15)] == expected
    dirty = reader(clients, topic, isolation_level="read_uncommitted")
    assert [one[4] for one in taken(dirty, 30)] == values(0, 30)


def test_many_transactions_in_a_row(clients: Clients, topic: str) -> None:
    """Each end raises the epoch, so ends and beginnings must agree on it every time."""
    admin = made(clients, topic, 3)
    producer = transactional(clients, topic)
    for number in range(50):
        producer("begin")
        producer("send", topic=topic, records=rows(number, 1, partition=number % 3))
        producer("commit")
    found = taken(reader(clients, topic, 3), 50)
    assert sorted(one[4] for one in found) == sorted(values(0, 50))
    described = admin("describe transaction", transactional_id=topic)
    assert described["state"] == "CompleteCommit"
    assert described["epoch"] >= 50


def test_an_empty_transaction_ends_well(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    producer = transactional(clients, topic)
    for end in ("commit", "abort", "commit"):
        producer("begin")
        producer(end)
    assert ends(admin, topic) == (0, 0)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_process_produce(clients: Clients, topic: str, protocol: str) -> None:
    """Offsets are committed with the records they led to, or not at all."""
    made(clients, topic)
    output = f"{topic}-output"
    admin = made(clients, output)
    clients.producer()("send", topic=topic, records=rows(0, 30))
    settings = {"group_id": topic, "group_protocol": protocol}
    member = clients.consumer(isolation_level="read_committed", **settings)
    member("subscribe", topics=[topic])
    read = taken(member, 30)
    assert [one[4] for one in read] == values(0, 30)
    producer = transactional(clients, topic)
    for first, end in ((0, "commit"), (10, "abort"), (10, "commit")):
        producer("begin")
        records = [[0, one[3], f"processed-{one[4]}"] for one in read[first : first + 10]]
        producer("send", topic=output, records=records)
        producer("send offsets", offsets=[[topic, 0, first + 10]], member=member.name)
        producer(end)
        expected = first + 10 if end == "commit" else first
        assert admin("group offsets", group=topic) == [[topic, 0, expected, ""]]
    clients.close(member)
    found = taken(reader(clients, output), 20)
    assert [one[4] for one in found] == [f"processed-{value}" for value in values(0, 20)]
    again = clients.consumer(**settings)
    again("subscribe", topics=[topic])
    assert [one[4] for one in taken(again, 10)] == values(20, 10)


def test_offsets_of_a_stranger_are_refused(clients: Clients, topic: str) -> None:
    made(clients, topic)
    gone = clients.consumer(group_id=topic)
    gone("subscribe", topics=[topic])
    until(lambda: gone("state"), lambda state: state["assignment"] != [])
    gone("unsubscribe")
    other = clients.consumer(group_id=topic)
    other("subscribe", topics=[topic])
    until(lambda: other("state"), lambda state: state["assignment"] != [])
    producer = transactional(clients, topic)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 1))
    with pytest.raises(JavaError) as refused:
        producer("send offsets", offsets=[[topic, 0, 1]], member=gone.name)
    assert refused.value.kind == "CommitFailedException"
    producer("abort")


def test_a_new_life_fences_the_old_one(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    old = transactional(clients, topic)
    old("begin")
    old("send", topic=topic, records=rows(0, 5))
    new = transactional(clients, topic)
    assert ends(admin, topic) == (6, 6)
    with pytest.raises(JavaError) as fenced:
        old("commit")
    assert fenced.value.kind in FENCED
    new("begin")
    new("send", topic=topic, records=rows(10, 5))
    new("commit")
    assert [one[4] for one in taken(reader(clients, topic), 5)] == values(10, 5)


def test_an_administrator_fences_a_producer(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    producer = transactional(clients, topic)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 5))
    admin("fence producers", transactional_ids=[topic])
    with pytest.raises(JavaError) as fenced:
        producer("commit")
    assert fenced.value.kind in FENCED
    assert until(lambda: ends(admin, topic), lambda found: found == (6, 6)) == (6, 6)


def test_a_transaction_that_takes_too_long_is_aborted(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    producer = transactional(clients, topic, transaction_timeout_ms=1000)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 5))
    assert ends(admin, topic) == (0, 5)
    assert until(lambda: ends(admin, topic), lambda found: found == (6, 6)) == (6, 6)
    with pytest.raises(JavaError) as refused:
        producer("commit")
    assert refused.value.kind in (*FENCED, "InvalidTxnStateException")
    assert admin("describe transaction", transactional_id=topic)["state"] == "CompleteAbort"
    assert taken(reader(clients, topic), 1, timeout_s=1) == []


def test_a_dead_producers_transaction_does_not_hang(
    clients: Clients, mortal: tuple[Jvm, Clients], topic: str
) -> None:
    admin = made(clients, topic)
    jvm, others = mortal
    victim = transactional(others, topic, transaction_timeout_ms=2000)
    victim("begin")
    victim("send", topic=topic, records=rows(0, 5))
    jvm.kill()
    clients.producer()("send", topic=topic, records=rows(5, 1))
    assert [one[4] for one in taken(reader(clients, topic), 1)] == values(5, 1)
    assert ends(admin, topic) == (7, 7)


def test_administrators_see_transactions(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    idle = f"{topic}-idle"
    clients.producer(transactional_id=idle)("init")
    producer = transactional(clients, topic, transaction_timeout_ms=45_000)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 5))
    described = admin("describe transaction", transactional_id=topic)
    assert described["state"] == "Ongoing"
    assert described["timeout_ms"] == 45_000
    assert described["partitions"] == [[topic, 0]]
    assert described["started"]
    (state,) = admin("describe producers", partitions=[[topic, 0]])
    assert (state["id"], state["epoch"]) == (described["producer"], described["epoch"])
    assert (state["sequence"], state["start"]) == (4, 0)
    listed = admin("list transactions")
    assert listed[topic] == "Ongoing"
    assert listed[idle] == "Empty"
    ongoing = admin("list transactions", states=["Ongoing"])
    assert topic in ongoing
    assert idle not in ongoing
    assert set(admin("list transactions", pattern=f"{topic}.*")) == {topic, idle}
    with pytest.raises(JavaError) as unknown:
        admin("describe transaction", transactional_id=f"{topic}-none")
    assert unknown.value.kind == "TransactionalIdNotFoundException"
    producer("commit")


def test_an_administrator_ends_a_hanging_transaction(clients: Clients, topic: str) -> None:
    admin = made(clients, topic)
    producer = transactional(clients, topic)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 5))
    (state,) = admin("describe producers", partitions=[[topic, 0]])
    admin(
        "abort transaction",
        partitions=[[topic, 0]],
        producer=state["id"],
        epoch=state["epoch"],
        coordinator=0,
    )
    assert ends(admin, topic) == (6, 6)
    assert taken(reader(clients, topic), 1, timeout_s=1) == []


@pytest.mark.parametrize("death", ["stop", "kill"])
def test_transactions_go_on_after_a_restart(jvm: Jvm, own: Node, topic: str, death: str) -> None:
    clients = Clients(jvm, own.address)
    admin = made(clients, topic, 3)
    producer = transactional(clients, topic)
    producer("begin")
    producer("send", topic=topic, records=rows(0, 9))
    producer("commit")
    producer("begin")
    producer("send", topic=topic, records=rows(9, 9, partition=1))
    own.kill() if death == "kill" else own.stop()
    own.start()
    producer("send", topic=topic, records=rows(18, 9, partition=2))
    producer("commit")
    producer("begin")
    producer("send", topic=topic, records=rows(27, 9))
    producer("abort")
    consumer = reader(clients, topic, 3)
    assert sorted(one[4] for one in taken(consumer, 27)) == sorted(values(0, 27))
    assert ends(admin, topic) == (20, 20)
    clients.close_all()


@pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka takes longer than half a minute for it")
def test_an_open_transaction_of_the_dead_ends_after_a_restart(
    jvm: Jvm, own: Node, classes: Any, tmp_path: Any, topic: str
) -> None:
    clients = Clients(jvm, own.address)
    admin = made(clients, topic)
    with Jvm(classes, tmp_path / "mortal.stderr") as mortal:
        victim = transactional(Clients(mortal, own.address), topic, transaction_timeout_ms=3000)
        victim("begin")
        victim("send", topic=topic, records=rows(0, 5))
    own.kill()
    own.start()
    assert until(lambda: ends(admin, topic), lambda found: found == (6, 6)) == (6, 6)
    assert taken(reader(clients, topic), 1, timeout_s=1) == []
    clients.close_all()
