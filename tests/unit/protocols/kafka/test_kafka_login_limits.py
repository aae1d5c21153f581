"""Before a login: what is too long is refused before it is looked at, and guesses wait."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_broker import Connection, DiskBroker

from pentalog.broker import users
from pentalog.broker.attempts import LocalAttempts
from pentalog.protocols.kafka import login
from pentalog.protocols.kafka.mechanisms import MECHANISMS, MESSAGE_BYTES_MAX, read_bearer

NOT_AUTHENTICATED = 58
NAME_BYTES = 249


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DiskBroker]:
    made = DiskBroker(tmp_path, seed=1)
    made.broker.users.set_password("alice", "secret")
    made.runtime.run()
    yield made
    made.close()


def frame(key: int, body: bytes, version: int = 0) -> bytes:
    head = struct.pack(">hhih", key, version, 7, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def chosen(broker: DiskBroker, mechanism: str) -> Connection:
    connection = Connection(broker, "sasl")
    name = struct.pack(">h", len(mechanism)) + mechanism.encode()
    assert connection.ask(frame(17, name, 1))[4:6] == b"\0\0"
    return connection


def say(connection: Connection, message: bytes) -> int:
    """Send a message of a mechanism; returns the error code of the answer."""
    connection.feed(frame(36, struct.pack(">i", len(message)) + message))
    connection.run()
    connection.broker.runtime.advance(0)  # a refusal is held back
    answer = connection.line.frames()[-1]
    return int.from_bytes(answer[4:6], "big", signed=True)


def first(name: str) -> bytes:
    return f"n,,n={name},r=abcdef".encode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("n" * NAME_BYTES, True),
        ("=2C" * NAME_BYTES, True),
        ("n" * (NAME_BYTES + 1), False),
        ("=3D" * (NAME_BYTES + 1), False),
        ("a" + "\u0301" * (NAME_BYTES // 2 + 1), False),
    ],
    ids=["longest", "longest escaped", "too long", "too long escaped", "too many bytes"],
)
def test_long_names_are_refused_before_they_are_normalized(
    broker: DiskBroker,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    name: str,
    accepted: bool,
) -> None:
    normalized: list[str] = []
    import scramp.core

    prepare = scramp.core.saslprep

    def saslprep(text: str) -> str:
        normalized.append(text)
        return str(prepare(text))

    monkeypatch.setattr(scramp.core, "saslprep", saslprep)
    code = say(chosen(broker, mechanism), first(name))
    assert code == (0 if accepted else NOT_AUTHENTICATED)
    assert all(len(text.encode()) <= NAME_BYTES for text in normalized)
    assert bool(normalized) == accepted


def test_a_longest_name_can_be_created_and_log_in(broker: DiskBroker) -> None:
    name = "n" * NAME_BYTES
    broker.broker.users.set_password(name, "p" * 1024)
    broker.runtime.run()
    message = f"{name}\0{name}\0".encode() + b"p" * 1024
    assert len(message) == MECHANISMS["PLAIN"](broker.broker).bytes_max
    assert say(chosen(broker, "PLAIN"), message) == 0
    assert say(chosen(broker, "PLAIN"), message + b"p") == NOT_AUTHENTICATED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_long_messages_are_refused_unread(broker: DiskBroker, mechanism: str) -> None:
    connection = chosen(broker, mechanism)
    size = MECHANISMS[mechanism](broker.broker).bytes_max
    assert say(connection, b"\0" * (size + 1)) == NOT_AUTHENTICATED
    assert connection.line.hung_up


def test_long_frames_are_refused_by_their_first_bytes(broker: DiskBroker) -> None:
    largest = login._FRAME_BYTES_MAX
    assert MESSAGE_BYTES_MAX < largest <= 72 << 10
    accepted, refused = Connection(broker, "sasl"), Connection(broker, "sasl")
    accepted.feed(struct.pack(">i", largest))
    refused.feed(struct.pack(">i", largest + 1))
    assert not accepted.line.hung_up
    assert accepted.session.wanted == largest + 4
    assert refused.line.hung_up


def test_versions_are_asked_for_a_limited_number_of_times(broker: DiskBroker) -> None:
    connection = Connection(broker, "sasl")
    most = login._VERSIONS_REQUESTS_MAX
    connection.feed(frame(18, b"") * (most + 50))
    assert len(connection.line.frames()) == most
    assert connection.line.hung_up


def test_guesses_sent_at_once_are_checked_one_after_another(
    broker: DiskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def matches(mechanism: object, verifier: object, password: str) -> bool:
        checked.append(password)
        return password == "secret"

    monkeypatch.setattr(users, "_matches", matches)
    attempts = LocalAttempts(broker.runtime)
    guessers = [chosen(broker, "PLAIN") for _ in range(50)]
    for number, guesser in enumerate(guessers):
        guesser.session._context.access._attempts = attempts
        password = "secret" if number == 40 else f"guess {number}"
        message = f"\0alice\0{password}".encode()
        guesser.feed(frame(36, struct.pack(">i", len(message)) + message))
    broker.runtime.run()
    assert len(checked) <= 5
    broker.runtime.advance(25_000)
    assert len(checked) <= 12
    assert "secret" not in checked
    # Those who leave are not checked, and nobody waits behind them.
    for guesser in guessers[:40] + guessers[41:]:
        guesser.session.close()
    broker.runtime.advance(10_001)
    assert checked[-1] == "secret"
    assert not guessers[40].line.hung_up
    assert len(attempts) == 0
    guessers[40].session.close()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("n,,\x01auth=Bearer a.b.c\x01\x01", ("", "a.b.c")),
        ("n,a=alice,\x01auth=bearer  a.b.c\x01\x01", ("alice", "a.b.c")),
        ("n,,\x01host=h\x01auth=BEARER a\x01port=9\x01\x01", ("", "a")),
        ("n,,\x01auth=Bearer a\x01" + "x=\x01" * 63 + "\x01", ("", "a")),
        ("n,,\x01auth=Bearer a\x01" + "x=\x01" * 64 + "\x01", None),
        ("n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01", None),
        ("n,,\x01host=h\x01\x01", None),
        ("n,,\x01\x01", None),
        ("n,,\x01auth=Bearer a\x01", None),
        ("n,,\x01auth=Bearer a\x01\x01\x01", None),
        ("n,,\x01auth=Bearer a\x01x\x01\x01", None),
        ("n,,\x01auth=Bearer a\x011=x\x01\x01", None),
        ("n,,\x01auth=Basic a\x01\x01", None),
        ("n,,\x01auth=Bearer a b\x01\x01", None),
        ("n,,x\x01auth=Bearer a\x01\x01", None),
        ("n,b=alice,\x01auth=Bearer a\x01\x01", None),
        ("y,,\x01auth=Bearer a\x01\x01", None),
        ("n\x01auth=Bearer a\x01\x01", None),
        ("", None),
    ],
)
def test_messages_with_bearer_tokens(text: str, read: tuple[str, str] | None) -> None:
    assert read_bearer(text) == read
