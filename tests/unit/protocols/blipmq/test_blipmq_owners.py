"""Subscriptions belong to the principal that opened them."""

from __future__ import annotations

import dataclasses
import sqlite3
import sys
from pathlib import Path

import pytest
from test_blipmq_session import ack, frame, frames_of, poll, publish, subscribe
from tests.support.blipmq_world import AUTH, HELLO, BlipBroker, Connection

from pentalog.broker.security import Kind, Operation, Principal, Unguarded, Verdict
from pentalog.broker.state import FILE_NAME
from pentalog.security_settings import Secrets

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from blipmq_gateway import BlipConnection, BlipFleet, BlipGateway

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
NOBODYS = 999


class Readers(Unguarded):
    """Rules that let some read every topic, and administrators do everything."""

    enforced = True

    def __init__(self, *readers: Principal, administrators: tuple[Principal, ...] = ()) -> None:
        self._readers = readers
        self._administrators = administrators

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict:
        may = who in self._administrators or (kind is Kind.TOPIC and who in self._readers)
        return Verdict(may, "as the test says")


def connect(broker: BlipBroker, who: Principal) -> Connection:
    connection = broker.connect()
    connection.session._context.access.who = who
    connection.ask(HELLO + AUTH)
    assert connection.session._context.access.who == who
    return connection


def guard(broker: BlipBroker, rules: Unguarded) -> None:
    broker.broker = dataclasses.replace(broker.broker, rules=rules)


def delivered(connection: Connection, number: int) -> list[int]:
    """Types of what a poll is answered with, before the PONG behind it."""
    answers = frames_of(connection.ask(poll(number) + frame(7, 1)))
    return [answer[4] for answer in answers[:-1]]


def test_another_principal_finds_nothing(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    alice, bob = connect(broker, ALICE), connect(broker, BOB)
    number = subscribe(alice)
    alice.ask(publish(b"secret"))
    assert delivered(bob, number) == delivered(bob, NOBODYS) == []
    assert delivered(alice, number) == [3]
    mine, nobodys = bob.ask(ack(number, 1)), bob.ask(ack(NOBODYS, 1))
    assert mine == nobodys
    assert mine[4] == 6
    assert alice.ask(ack(number, 1)) == b""
    broker.stop()


def test_connections_of_one_principal_share_a_subscription(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    one, other = connect(broker, ALICE), connect(broker, ALICE)
    number = subscribe(one)
    one.ask(publish(b"x"))
    assert delivered(other, number) == [3]
    assert one.ask(ack(number, 1)) == b""
    broker.stop()


def test_owners_survive_a_restart(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    alice = connect(broker, ALICE)
    number = subscribe(alice)
    alice.ask(publish(b"x"))
    broker.stop()
    broker = BlipBroker(tmp_path)
    assert delivered(connect(broker, BOB), number) == []
    assert delivered(connect(broker, ALICE), number) == [3]
    broker.stop()


def left_without_owner(tmp_path: Path) -> int:
    """The number of a subscription as an older version left it, with one message."""
    broker = BlipBroker(tmp_path)
    alice = connect(broker, ALICE)
    number = subscribe(alice)
    alice.ask(publish(b"x"))
    broker.stop()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("UPDATE subscriptions SET owner = NULL")
    database.close()
    return number


def test_the_first_who_may_read_adopts_what_an_older_version_left(tmp_path: Path) -> None:
    number = left_without_owner(tmp_path)
    broker = BlipBroker(tmp_path)
    guard(broker, Readers(BOB))
    assert delivered(connect(broker, ALICE), number) == []
    refused = connect(broker, ALICE).ask(ack(number, 1))
    assert b"demo" not in refused
    assert refused == connect(broker, ALICE).ask(ack(NOBODYS, 1))
    assert delivered(connect(broker, BOB), number) == [3]
    broker.stop()
    broker = BlipBroker(tmp_path)
    assert delivered(connect(broker, ALICE), number) == []
    assert delivered(connect(broker, BOB), number) == [3]
    broker.stop()


def test_administrators_may_use_every_subscription(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    number = subscribe(connect(broker, ALICE))
    connect(broker, ALICE).ask(publish(b"x"))
    guard(broker, Readers(ALICE, administrators=(BOB,)))
    assert delivered(connect(broker, BOB), number) == [3]
    broker.stop()


def test_a_right_that_was_taken_back_is_told_to_the_owner(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path)
    number = subscribe(connect(broker, ALICE))
    guard(broker, Readers())
    answers = frames_of(connect(broker, ALICE).ask(poll(number)))
    assert [answer[4] for answer in answers] == [6]
    broker.stop()


def connect_to(gateway: BlipGateway, who: Principal) -> BlipConnection:
    connection = BlipConnection(gateway)
    connection.session._context.access.who = who
    connection.ask(HELLO + AUTH)
    return connection


def test_a_client_is_the_same_principal_at_every_gateway(tmp_path: Path) -> None:
    """It is known by its certificate, which the gateway that takes its frames on does not have."""
    fleet = BlipFleet(tmp_path, "one", "two")
    keeper = next(each for each in fleet.gateway._fleet.values() if each.keeps)
    assert keeper is not fleet.gateway
    number = subscribe(connect_to(fleet.gateway, ALICE))
    connect_to(fleet.gateway, ALICE).ask(publish(b"x"))
    for gateway in (fleet.gateway, keeper):
        assert delivered(connect_to(gateway, BOB), number) == []
    assert delivered(connect_to(keeper, ALICE), number) == [3]
    assert connect_to(fleet.gateway, ALICE).ask(ack(number, 1)) == b""
    fleet.stop()


@pytest.mark.parametrize("secret", ["", "wrong"])
def test_only_gateways_may_say_who_a_client_is(tmp_path: Path, secret: str) -> None:
    fleet = BlipFleet(tmp_path, "one")
    key = f"pentalog gateway {secret}\nUser:alice".encode()
    connection = fleet.connect()
    connection.ask(HELLO)
    answer = connection.ask(frame(2, 2, len(key).to_bytes(2, "big") + key))
    assert answer[4] == 6
    fleet.stop()


@pytest.mark.parametrize("key", ["", "shared"])
def test_clients_of_one_shared_principal_are_told_apart_by_address(
    tmp_path: Path, key: str
) -> None:
    """The development key makes clients anonymous; a key of the configuration `User:blipmq`."""
    settings = {"blipmq_api_keys": Secrets((key,))} if key else {}
    broker = BlipBroker(tmp_path, subscriptions_max=4, **settings)
    auth = frame(2, 2, len(key).to_bytes(2, "big") + key.encode()) if key else AUTH

    def connect_from(host: str) -> Connection:
        connection = broker.connect()
        connection.session._context.access.host = host
        connection.ask(HELLO + auth)
        return connection

    greedy, modest = connect_from("10.0.0.1"), connect_from("10.0.0.2")
    subscribe(greedy)
    subscribe(greedy)
    (refused,) = frames_of(greedy.ask(frame(4, 3, b"\0\4demo\1")))
    assert refused[4] == 6
    assert b"principal_share_percent" in refused
    subscribe(modest)
    broker.stop()
