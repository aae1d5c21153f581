"""Clients without a login, or with one small right, cannot make logins costly for others."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.hostile.hostile_world import HostileWorld, ask, compact, flexible, string, uvarint
from tests.server.broker_process import answer, request

from pentalog.broker.credentials import Mechanism, Verifier
from pentalog.broker.users import ITERATIONS_MAX
from pentalog.cli.directory import Directory

PASSWORD = "correct horse"
ELSEWHERE = "127.0.0.2"
"""Another address of this machine, for the client that attacks nobody."""
COMBINING = "a" + "\u0301\u0327" * 30_000
INVALID_REQUEST, POLICY_VIOLATION, NOT_AUTHENTICATED = 42, 44, 58
SASL = "kafka+sasl"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    """A broker with every mechanism, and the users `alice` and `costly`.

    The password of the second takes thirty times as long to check.
    """
    data, settings, keys = (tmp_path / name for name in ("data", "settings.toml", "keys.json"))
    with Directory(data) as directory:
        directory.set_password("alice", PASSWORD)
        costly = Verifier(b"s" * 16, bytes(64), bytes(64), ITERATIONS_MAX)
        directory._users.set_verifier("costly", Mechanism.SHA_512, costly)
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    keys.write_text(f'{{"keys": [{jwt.algorithms.ECAlgorithm.to_jwk(public)}]}}')
    settings.write_text(
        'sasl_mechanisms = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"\n'
        f"oauth_jwks_file = {json.dumps(str(keys))}\n"
        'delegation_token_secret = "a secret of tokens"\n'
        "delegation_tokens_per_user_max = 300\n"
    )
    # Nobody reads what the broker logs, so it must not log much.
    quietly = ("--config", str(settings), "--log-level", "warning")
    with HostileWorld(data, SASL, arguments=quietly) as started:
        yield started


def begin(world: HostileWorld, mechanism: str, source: str = "127.0.0.1") -> socket.socket:
    """Connect and choose a mechanism."""
    port = world.port(SASL)
    client = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
    assert ask(client, request(17, 1, 1, string(mechanism)))[:2] == b"\0\0"
    return client


def message(content: bytes) -> bytes:
    """A SaslAuthenticate request."""
    return request(36, 0, 2, struct.pack(">i", len(content)) + content)


def plain(name: str, password: str) -> bytes:
    return message(f"\0{name}\0{password}".encode())


def hear_end(client: socket.socket) -> None:
    """Wait until the broker has refused what was sent, by an answer or by hanging up."""
    with contextlib.suppress(EOFError, ConnectionError):
        answer(client)
    client.close()


def log_in(world: HostileWorld, source: str = "127.0.0.1") -> socket.socket:
    client = begin(world, "PLAIN", source)
    assert ask(client, plain("alice", PASSWORD))[:2] == b"\0\0"
    return client


@pytest.mark.parametrize(
    ("mechanism", "content"),
    [
        ("SCRAM-SHA-256", b"n,,n=" + COMBINING.encode() + b",r=nonce"),
        ("SCRAM-SHA-512", b"n,,n=a,r=" + b"x" * 500_000),
        ("SCRAM-SHA-256", b"n,,n=a,r=x," + b"x=," * 150_000),
        ("PLAIN", b"\0alice\0" + COMBINING.encode()),
        ("PLAIN", b"\0" + COMBINING.encode() + b"\0x"),
        ("OAUTHBEARER", b"n,,\x01" + b"auth=bearer a\x01" * 4_000 + b"x"),
        ("OAUTHBEARER", b"n,,\x01" + b"a=\x01" * 20_000 + b"x"),
        ("OAUTHBEARER", b"n,,\x01auth=bearer " + b"W1tb" * 12_000 + b".e30.AAAA\x01\x01"),
    ],
    ids=["name", "nonce", "extensions", "password", "user", "bearers", "pairs", "nested"],
)
def test_messages_that_are_costly_to_read(
    world: HostileWorld, mechanism: str, content: bytes
) -> None:
    def attack() -> None:
        clients = [begin(world, mechanism) for _ in range(3)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(message(content))
        for client in clients:
            hear_end(client)

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=1, memory_mib=16)


def test_parallel_guesses_wait_for_each_other(world: HostileWorld) -> None:
    """One of them is right: it must not be heard before its turn."""
    clients = [begin(world, "PLAIN") for _ in range(300)]
    right = clients[150]
    for client in clients:
        client.sendall(plain("alice", PASSWORD if client is right else "wrong"))
    answered = set()
    deadline_s = time.monotonic() + 3
    while (left_s := deadline_s - time.monotonic()) > 0:
        waiting = [client for client in clients if client not in answered]
        answered.update(select.select(waiting, [], [], left_s)[0])
    assert answered, "the first guess is answered at once"
    assert right not in answered
    assert len(answered) <= 15
    for client in clients:
        client.close()


def test_a_flood_of_passwords_delays_no_login_from_elsewhere(world: HostileWorld) -> None:
    alone = [timed_login(world) for _ in range(5)]
    waits = []

    def attack() -> None:
        clients = [begin(world, "PLAIN") for _ in range(300)]
        for client in clients:
            client.sendall(plain("costly", "wrong"))
        waits.extend(timed_login(world) for _ in range(5))
        for client in clients:
            client.close()

    cost = world.measure(attack)
    print(cost, f"{max(alone)=} {max(waits)=}")
    assert max(waits) <= 10 * max(alone) + 3 * cost.ruler_s
    cost.assert_bounded(rulers=6, memory_mib=64)


def timed_login(world: HostileWorld) -> float:
    """How long an unrelated client needs to log in."""
    start_s = time.monotonic()
    log_in(world, ELSEWHERE).close()
    return time.monotonic() - start_s


def create_token(renewers: list[str]) -> bytes:
    named = b"".join(compact("User") + compact(name) + b"\0" for name in renewers)
    return flexible(38, 2, 3, uvarint(len(renewers) + 1) + named + struct.pack(">q", -1) + b"\0")


def code(body: bytes) -> int:
    """The error code that a flexible answer begins with."""
    return int.from_bytes(body[1:3], "big", signed=True)


def test_renewers_of_tokens_take_no_memory(world: HostileWorld) -> None:
    many = create_token([f"{number:05}" for number in range(60_000)])
    long = create_token(["r" * 500_000])
    codes = set()

    def attack() -> None:
        with log_in(world) as client:
            for each in (many, many, long, long):
                codes.add(code(ask(client, each)))

    cost = world.measure(attack)
    print(cost, codes)
    assert codes == {INVALID_REQUEST}
    cost.assert_bounded(rulers=20, memory_mib=128)


def test_tokens_of_one_user_are_limited(world: HostileWorld) -> None:
    codes = []

    def attack() -> None:
        with log_in(world) as client:
            for _ in range(4):
                client.sendall(create_token(["bob"] * 10) * 100)
                codes.extend(code(answer(client)[1]) for _ in range(100))
            described = ask(client, flexible(41, 2, 4, b"\0\0"))
            assert described[1:5] == b"\0\0" + uvarint(300 + 1)

    cost = world.measure(attack)
    print(cost)
    assert codes.count(0) == 300
    assert set(codes) == {0, POLICY_VIOLATION}
    cost.assert_bounded(rulers=10, memory_mib=32)
