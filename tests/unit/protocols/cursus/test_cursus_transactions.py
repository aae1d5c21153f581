"""Transactions: seen together or never, by this door and by readers of the log itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch

from pentalog.broker.port import Committed
from pentalog.broker.security import Access
from pentalog.model import batch as batches_of
from pentalog.model.errors import StorageFailed
from pentalog.model.types import Ack, Partition, Record
from pentalog.protocols.cursus import door
from pentalog.protocols.cursus.door import door_of

COMMITTED = "CONSUME topic=orders partition=0 offset=0 member=m"
UNCOMMITTED = COMMITTED + " isolation=read_uncommitted"


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=orders partitions=2")


class Transactional:
    def __init__(self, client: Client, name: str = "tx2") -> None:
        self.client = client
        self.name = name
        self.initialize()

    def initialize(self) -> None:
        answer = self.client.text(f"INIT_PRODUCER_ID transactional_id={self.name}")
        found = re.fullmatch(
            rf"OK transactional_id={self.name} producerId=(txn-[0-9a-f]{{16}}) epoch=(\d+)", answer
        )
        assert found, answer
        self.producer, self.epoch = found[1], int(found[2])

    @property
    def who(self) -> str:
        return f"transactional_id={self.name} producerId={self.producer} epoch={self.epoch}"

    def begin(self) -> str:
        return self.client.text(f"BEGIN_TXN {self.who}")

    def publish(self, payload: str, seq: int, partition: int | None = 0) -> str:
        place = "" if partition is None else f" partition={partition}"
        return self.client.text(
            f"TXN_PUBLISH {self.who} topic=orders{place} seqNum={seq} message={payload}"
        )

    def end(self, result: str = "commit") -> str:
        return self.client.text(f"END_TXN {self.who} result={result}")


def payloads(client: Client, command: str = COMMITTED) -> list[bytes]:
    return [message.payload for message in client.read(command)]


def test_nothing_is_seen_before_the_commit(client: Client) -> None:
    tx = Transactional(client)
    assert tx.producer == "txn-27ca64c092a959c7"
    assert tx.epoch == 0
    assert tx.begin() == (
        "OK transactional_id=tx2 state=open producerId=txn-27ca64c092a959c7 epoch=0"
    )
    assert tx.publish("a", 1) == (
        "OK transactional_id=tx2 staged_messages=1 topic=orders partition=0"
    )
    tx.publish("b", 2)
    client.publish(batch([Message(b"outside")], acks="-1"))
    assert payloads(client) == []
    assert client.text("TXN_STATUS transactional_id=tx2") == (
        "OK transactional_id=tx2 state=open messages=2 offsets=0"
    )
    assert tx.end() == "OK transactional_id=tx2 state=committed messages=2 offsets=0"
    assert payloads(client) == [b"a", b"b", b"outside"]
    assert tx.end() == "OK transactional_id=tx2 state=committed messages=2 offsets=0"
    assert tx.end("abort") == "ERROR: transaction_already_committed transactional_id=tx2"


def test_an_abort_hides_for_ever(client: Client) -> None:
    tx = Transactional(client)
    tx.begin()
    tx.publish("a", 1)
    assert tx.end("abort") == "OK transactional_id=tx2 state=aborted"
    assert tx.end("commit") == "ERROR: transaction_aborted transactional_id=tx2"
    client.publish(batch([Message(b"after")], acks="-1"))
    assert payloads(client) == [b"after"]
    assert payloads(client, UNCOMMITTED) == [b"after"]


def test_an_abort_behind_an_open_transaction_hides_too(client: Client) -> None:
    staying, going = Transactional(client, "stays"), Transactional(client, "goes")
    for tx, payload in ((staying, "a"), (going, "b")):
        tx.begin()
        tx.publish(payload, 1)
    going.end("abort")
    client.publish(batch([Message(b"outside")], acks="-1"))
    assert payloads(client) == []
    assert payloads(client, UNCOMMITTED) == [b"a", b"outside"]
    staying.end()
    assert payloads(client) == payloads(client, UNCOMMITTED) == [b"a", b"outside"]


def test_one_transaction_per_epoch(client: Client) -> None:
    tx = Transactional(client)
    tx.begin()
    again = "ERROR: producer_reinitialization_required transactional_id=tx2 epoch=0"
    assert tx.begin() == again
    tx.publish("a", 1)
    tx.end()
    assert tx.begin() == again
    tx.initialize()
    assert tx.epoch == 1
    tx.begin()
    tx.publish("b", 1)
    tx.end()
    assert payloads(client) == [b"a", b"b"]


def test_a_new_life_fences_the_old_and_aborts_what_it_left(client: Client) -> None:
    old = Transactional(client)
    old.begin()
    old.publish("lost", 1)
    new = Transactional(client)
    assert new.epoch > old.epoch
    assert old.publish("late", 2) == (
        'ERROR: transaction_publish_failed reason="producer fenced transactional_id=tx2 '
        f'current_epoch={new.epoch} requested_epoch=0"'
    )
    assert old.end().startswith("ERROR: producer_fenced")
    new.begin()
    new.publish("kept", 1)
    new.end()
    assert payloads(client) == [b"kept"]


def test_a_repeated_message_is_stored_once(client: Client) -> None:
    tx = Transactional(client)
    tx.begin()
    for _ in range(3):
        assert "staged_messages=1" in tx.publish("a", 1)
    assert "staged_messages=2" in tx.publish("other partition", 1, partition=1)
    tx.end()
    assert payloads(client) == [b"a"]


@pytest.mark.parametrize("asked", [None, -1])
def test_a_repetition_stays_in_the_partition_that_was_chosen(
    broker: CursusBroker, client: Client, asked: int | None
) -> None:
    tx = Transactional(client)
    tx.begin()
    first = tx.publish("a", 1, asked)
    tx.client = broker.connect()
    assert tx.publish("a", 1, asked) == first
    assert tx.publish("b", 2, asked).rpartition(" ")[2] != first.rpartition(" ")[2]
    assert tx.end() == "OK transactional_id=tx2 state=committed messages=2 offsets=0"
    found = [payloads(client, COMMITTED.replace("=0", f"={index}", 1)) for index in (0, 1)]
    assert sorted(found) == [[b"a"], [b"b"]]


def test_sequence_numbers_are_the_clients_own(client: Client) -> None:
    tx = Transactional(client)
    tx.begin()
    for seq in (5, 900, 7):
        tx.publish(f"{seq}", seq)
    tx.end()
    messages = client.read(COMMITTED)
    assert [(message.seq, message.epoch) for message in messages] == [(5, 0), (900, 0), (7, 0)]
    assert {message.producer for message in messages} == {tx.producer.encode()}


def test_offsets_become_real_with_the_transaction(broker: CursusBroker, client: Client) -> None:
    client.publish(batch([Message()] * 5, acks="-1"))
    joined = client.text("JOIN_GROUP topic=orders group=g member=m")
    member = joined.split()[2].removeprefix("member=")
    tx = Transactional(client)
    tx.begin()
    send = f"SEND_OFFSETS_TO_TXN {tx.who} topic=orders group=g member={member} generation="
    assert client.text(send + "1") == 'ERROR: invalid_txn_offsets reason="missing offset pairs"'
    assert client.text(send + "7 P0:3").startswith("ERROR: GEN_MISMATCH current=1 requested=7")
    assert client.text(send + "1 P0:3") == "OK transactional_id=tx2 staged_offsets=1"
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=g") == "OK offset=0"
    assert tx.end() == "OK transactional_id=tx2 state=committed messages=0 offsets=1"
    assert client.text("FETCH_OFFSET topic=orders partition=0 group=g") == "OK offset=3"
    at = Partition("orders", 0)
    assert broker.beside.groups.offsets.committed("g")[at] == Committed(
        3, timestamp_ms=broker.runtime.now_ms()
    )


def test_a_transaction_of_nothing(client: Client) -> None:
    tx = Transactional(client)
    assert tx.end().startswith("ERROR: transaction_not_found")
    tx.begin()
    assert tx.end() == "OK transactional_id=tx2 state=committed messages=0 offsets=0"
    assert tx.begin().startswith("ERROR: producer_reinitialization_required")


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("INIT_PRODUCER_ID", "missing_transactional_id command=INIT_PRODUCER_ID"),
        ("BEGIN_TXN transactional_id=t", "missing_producer_id command=BEGIN_TXN"),
        (
            "BEGIN_TXN txn=txZ producer_id=x",
            'transaction_begin_failed reason="transaction txZ is not initialized; call '
            'INIT_PRODUCER_ID first"',
        ),
        (
            "TXN_PUBLISH txn=t producerId=x topic=orders message=m",
            'invalid_seq_num command=TXN_PUBLISH reason="missing seqNum"',
        ),
        (
            "TXN_STATUS transaction=none",
            'transaction_not_found reason="transaction none not found"',
        ),
        ("END_TXN txn=t producerId=x result=zz", "invalid_transaction_result value=zz"),
        ("END_TXN txn=t producerId=x", 'transaction_not_found reason="transaction t not found"'),
    ],
)
def test_refusals(client: Client, command: str, answer: str) -> None:
    assert client.text(command) == f"ERROR: {answer}"


def test_publishing_needs_an_open_transaction(client: Client) -> None:
    tx = Transactional(client)
    assert tx.publish("x", 1) == (
        'ERROR: transaction_publish_failed reason="transaction tx2 is not open; call BEGIN_TXN '
        'first"'
    )
    tx.producer = "txn-somebody"
    assert "belongs to another producer" in tx.begin()


def test_a_transaction_of_kafka_is_isolated_here(broker: CursusBroker, client: Client) -> None:
    later = broker.beside.transactions.identify("kafka", timeout_ms=1000)
    broker.step()
    who = later.value
    at = Partition("orders", 0)
    broker.beside.transactions.enlist("kafka", who, (at,))
    built = batches_of.build(
        [Record(b"theirs")], timestamp_ms=broker.runtime.now_ms(), producer_id=who.producer_id,
        producer_epoch=who.epoch, base_sequence=0, transactional=True,
    )  # fmt: skip
    log = broker.beside.log
    log.settle(log.append(at, memoryview(built)), Ack.DURABLE)
    broker.step()
    assert payloads(client) == []
    assert payloads(client, UNCOMMITTED) == [b"theirs"]
    assert payloads(client, COMMITTED + " isolation_level=read_uncommitted") == [b"theirs"]
    broker.beside.transactions.end("kafka", who, commit=True, bump=False)
    broker.step()
    assert payloads(client) == [b"theirs"]


def begun(tmp_path: Path) -> tuple[CursusBroker, Transactional]:
    """A broker with an open transaction."""
    broker = CursusBroker(tmp_path / "again")
    client = broker.connect()
    client.text("CREATE topic=orders partitions=2")
    tx = Transactional(client)
    tx.begin()
    return broker, tx


def restarted(broker: CursusBroker, tx: Transactional, tmp_path: Path) -> CursusBroker:
    """The same broker after a restart; the transactional client has connected to it."""
    broker.close()
    again = CursusBroker(tmp_path / "again")
    tx.client = again.connect()
    return again


def test_an_open_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    first, tx = begun(tmp_path)
    tx.publish("before", 1)
    second = restarted(first, tx, tmp_path)
    assert tx.publish("after", 2).startswith("OK")
    assert tx.end().startswith("OK transactional_id=tx2 state=committed")
    assert payloads(tx.client) == [b"before", b"after"]
    second.close()


@pytest.mark.parametrize("asked", [None, 0, 1])
def test_a_repetition_is_recognised_after_a_restart(tmp_path: Path, asked: int | None) -> None:
    first, tx = begun(tmp_path)
    tx.publish("a", 1, asked)
    answer = tx.publish("b", 2, asked)
    second = restarted(first, tx, tmp_path)
    again = tx.publish("b", 2, asked)
    assert again.rpartition(" ")[2] == answer.rpartition(" ")[2]
    tx.publish("c", 3, asked)
    assert tx.end().startswith("OK transactional_id=tx2 state=committed")
    found = [
        payload
        for index in (0, 1)
        for payload in payloads(tx.client, COMMITTED.replace("=0", f"={index}", 1))
    ]
    assert sorted(found) == [b"a", b"b", b"c"]
    second.close()


def test_a_topic_of_an_open_transaction_is_deleted_before_a_restart(tmp_path: Path) -> None:
    first, tx = begun(tmp_path)
    tx.publish("a", 1, 1)
    tx.publish("b", 2, 0)
    tx.client.text("DELETE topic=orders")
    tx.client.text("CREATE topic=orders partitions=1")
    tx.publish("c", 3, 0)
    second = restarted(first, tx, tmp_path)
    assert tx.publish("c", 3, None).endswith("partition=0")
    assert tx.publish("d", 4, None).startswith("OK")
    assert tx.end().startswith("OK")
    assert payloads(tx.client) == [b"c", b"d"]
    second.close()


def test_remembered_lookups_are_bounded(tmp_path: Path) -> None:
    first, tx = begun(tmp_path)
    tx.publish("a", 1)
    second = restarted(first, tx, tmp_path)
    for number in range(1_500):
        tx.publish("b", 2, 2 + number)  # partitions that do not exist
    ((_, transaction),) = door_of(second.broker).transactions.items()
    assert 0 < len(transaction.known) <= 1_000
    assert tx.publish("a", 1).startswith("OK")
    assert tx.end().startswith("OK")
    assert payloads(tx.client) == [b"a"]
    second.close()


def test_a_message_that_cannot_be_read_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the message in the log is the repeated one is not known: nothing is written."""
    first, tx = begun(tmp_path)
    tx.publish("a", 1)
    second = restarted(first, tx, tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise StorageFailed("the disk failed")

    with monkeypatch.context() as broken:
        broken.setattr(second.log, "open", fail)
        assert tx.publish("a", 1) == (
            'ERROR: transaction_publish_failed reason="it is not known whether this message is in '
            'the transaction: the newest message of orders-0 cannot be read"'
        )
    assert tx.publish("a", 1).startswith("OK")
    assert tx.end().startswith("OK")
    assert payloads(tx.client) == [b"a"]
    second.close()


def test_a_client_with_many_transactions_does_not_end_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "TRANSACTIONS_MAX", 6)
    world = CursusBroker(tmp_path / "few")
    modest = Transactional(world.connect(Access(host="10.0.0.1")), "modest")
    modest.client.text("CREATE topic=orders partitions=2")
    assert modest.begin().startswith("OK")
    greedy = world.connect(Access(host="10.0.0.2"))
    for number in range(20):
        assert Transactional(greedy, f"greedy{number}").begin().startswith("OK")
        assert greedy.text("TXN_STATUS transactional_id=modest").startswith("OK")
    assert len(door_of(world.broker).transactions) <= 6
    assert modest.publish("a", 1).startswith("OK"), "it is still begun"
    assert modest.end().startswith("OK")
    assert payloads(modest.client) == [b"a"]
    world.close()
