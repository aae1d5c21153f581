"""Users: passwords, verifiers and keys, of which nothing secret is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from scramp import ScramClient, ScramMechanism
from step_runtime import StepRuntime

from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.users import LocalUsers, Mechanism, Verifier
from pentalog.model.errors import InvalidConfig, UserNotFound

Open = Callable[[], State]


@pytest.fixture
def users(open_state: Open, runtime: StepRuntime) -> LocalUsers:
    made = LocalUsers(open_state(), runtime)
    made.open()
    return made


def verified(users: LocalUsers, runtime: StepRuntime, name: str, password: str) -> bool:
    later = users.verify(name, password)
    runtime.run()
    return later.value


def owner(users: LocalUsers, key: bytes) -> str | None:
    found = users.by_key(key)
    return None if found is None else found.user


def test_a_password_proves_its_user_and_nobody_else(
    users: LocalUsers, runtime: StepRuntime
) -> None:
    later = users.set_password("alice", "wönder land")
    runtime.run()
    assert later.value is None
    assert verified(users, runtime, "alice", "wönder land")
    assert not verified(users, runtime, "alice", "wonder land")
    assert not verified(users, runtime, "bob", "wönder land")
    assert not verified(users, runtime, "alice", "")
    assert not verified(users, runtime, "alice", "\x00\u0378")
    assert not verified(users, runtime, "alice", "x" * 5000)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_its_verifiers_serve_a_client_that_keeps_the_password_to_itself(
    users: LocalUsers, runtime: StepRuntime, mechanism: Mechanism
) -> None:
    users.set_password("alice", "secret")
    runtime.run()
    found = users.verifier("alice", mechanism)
    assert found is not None
    client = ScramClient([mechanism.value], "alice", "secret")
    server = ScramMechanism(mechanism.value).make_server(lambda _name: tuple(found))
    server.set_client_first(client.get_client_first())
    client.set_server_first(server.get_server_first())
    server.set_client_final(client.get_client_final())
    client.set_server_final(server.get_server_final())


def test_users_outlive_the_broker_and_their_secrets_are_nowhere(
    users: LocalUsers, open_state: Open, runtime: StepRuntime, tmp_path: Path
) -> None:
    users.set_password("alice", "correct horse")
    key = users.add_key("robot", "nightly job")
    runtime.run()
    again = LocalUsers(open_state(), runtime)
    again.open()
    assert again.names() == ["alice", "robot"]
    assert verified(again, runtime, "alice", "correct horse")
    assert owner(again, key.encode()) == "robot"
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        dump = "\n".join(database.iterdump())
    database.close()
    assert "alice" in dump
    assert "correct horse" not in dump
    assert key not in dump


def test_a_changed_password_replaces_the_old_one(users: LocalUsers, runtime: StepRuntime) -> None:
    for password in ("old", "new"):
        users.set_password("alice", password)
        runtime.run()
    assert verified(users, runtime, "alice", "new")
    assert not verified(users, runtime, "alice", "old")


def test_keys(users: LocalUsers) -> None:
    first, second = users.add_key("robot", "a"), users.add_key("robot", "b")
    assert owner(users, first.encode()) == "robot"
    assert owner(users, first[:-1].encode()) is None
    view = next(view for view in sorted(users.keys()) if view.label == "a")
    users.drop_key(view.fingerprint)
    assert owner(users, first.encode()) is None
    assert owner(users, second.encode()) == "robot"
    with pytest.raises(UserNotFound):
        users.drop_key(view.fingerprint)


def test_dropping(users: LocalUsers, runtime: StepRuntime) -> None:
    users.set_password("alice", "secret")
    runtime.run()
    key = users.add_key("alice", "")
    users.drop_verifier("alice", Mechanism.SHA_512)
    assert list(users.mechanisms("alice")) == [Mechanism.SHA_256]
    assert verified(users, runtime, "alice", "secret")
    with pytest.raises(UserNotFound):
        users.drop_verifier("alice", Mechanism.SHA_512)
    users.drop("alice")
    assert users.names() == []
    assert owner(users, key.encode()) is None
    assert not verified(users, runtime, "alice", "secret")
    for call in (users.drop, users.mechanisms):
        with pytest.raises(UserNotFound):
            call("alice")


def test_the_last_verifier_takes_the_keys_with_it(users: LocalUsers, runtime: StepRuntime) -> None:
    users.set_password("alice", "secret")
    runtime.run()
    key = users.add_key("alice", "")
    for mechanism in Mechanism:
        assert owner(users, key.encode()) == "alice"
        users.drop_verifier("alice", mechanism)
    assert owner(users, key.encode()) is None
    assert users.names() == []


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("n" * 250, "x"), ("a\nb", "x"), ("a", ""), ("a", "p" * 1025)]
)
def test_what_cannot_be_a_user_is_refused(users: LocalUsers, name: str, password: str) -> None:
    with pytest.raises(InvalidConfig):
        users.set_password(name, password)


def test_a_password_the_mechanism_forbids_is_refused_without_being_quoted(
    users: LocalUsers, runtime: StepRuntime
) -> None:
    later = users.set_password("alice", "hush\u0007hush")
    runtime.run()
    with pytest.raises(InvalidConfig) as refusal:
        _ = later.value
    assert "hush" not in str(refusal.value)
    assert users.names() == []


@pytest.mark.parametrize(
    "bad",
    [
        Verifier(b"", bytes(32), bytes(32), 4096),
        Verifier(b"salt" * 4, bytes(31), bytes(32), 4096),
        Verifier(b"salt" * 4, bytes(32), bytes(64), 4096),
        Verifier(b"salt" * 4, bytes(32), bytes(32), 4095),
        Verifier(b"salt" * 4, bytes(32), bytes(32), 16_385),
    ],
)
def test_verifiers_made_elsewhere_are_looked_at(users: LocalUsers, bad: Verifier) -> None:
    with pytest.raises(InvalidConfig):
        users.set_verifier("alice", Mechanism.SHA_256, bad)
    assert users.names() == []


def challenge(users: LocalUsers, name: str, mechanism: Mechanism) -> tuple[bytes, int]:
    """What a client is shown that wants to log in as somebody."""
    found = users.verifier(name, mechanism) or users.decoy(name, mechanism)
    return found.salt, found.iterations


def test_users_that_do_not_exist_look_like_those_that_do(
    users: LocalUsers, open_state: Open, runtime: StepRuntime
) -> None:
    users.set_password("alice", "secret")
    users.set_password("bob", "secret")
    runtime.run()
    users.drop_verifier("bob", Mechanism.SHA_512)
    runtime.run()
    shown = {
        (name, mechanism): challenge(users, name, mechanism)
        for name in ("alice", "bob", "nobody", "no\udcffone", "n" * 100_000)
        for mechanism in Mechanism
    }
    assert {len(salt) for salt, _ in shown.values()} == {32}
    assert {iterations for _, iterations in shown.values()} == {4096}
    assert len({salt for salt, _ in shown.values()}) == len(shown), "no salt is shown twice"
    again = LocalUsers(open_state(), runtime)
    again.open()
    for (name, mechanism), seen in shown.items():
        assert challenge(users, name, mechanism) == seen
        assert challenge(again, name, mechanism) == seen, "after a restart"


def test_no_proof_fits_a_decoy(users: LocalUsers) -> None:
    seen = {users.decoy("nobody", Mechanism.SHA_256)[1:3] for _ in range(10)}
    assert len(seen) == 10
    assert all(len(key) == 32 for keys in seen for key in keys)


def test_decoys_look_like_what_other_tools_make(users: LocalUsers) -> None:
    """Kafka's tools make salts of letters and digits, and iterations are chosen."""
    mechanism = Mechanism.SHA_512
    for number in range(30):
        salt = f"{number:02}abcdefghijklmnopqrstuvwx".encode()
        users.set_verifier(f"k{number}", mechanism, Verifier(salt, bytes(64), bytes(64), 8192))
    for number in range(10):
        salt = bytes([number]) * 16
        users.set_verifier(f"o{number}", mechanism, Verifier(salt, bytes(64), bytes(64), 4096))
    shown = [challenge(users, f"nobody{number}", mechanism) for number in range(400)]
    like_kafka = [salt for salt, iterations in shown if iterations == 8192]
    others = [salt for salt, iterations in shown if iterations == 4096]
    assert len(like_kafka) + len(others) == len(shown)
    assert 200 <= len(like_kafka) <= 380, "about three of four"
    assert all(len(salt) == 26 and salt.isalnum() for salt in like_kafka)
    assert all(len(salt) == 16 and not salt.isalnum() for salt in others)
    # A name keeps what it shows though users are added.
    users.set_verifier("new", mechanism, Verifier(b"\1" * 16, bytes(64), bytes(64), 4096))
    now = [challenge(users, f"nobody{number}", mechanism) for number in range(400)]
    assert sum(one != other for one, other in zip(shown, now, strict=True)) < 20


def test_a_password_takes_as_long_for_users_that_do_not_exist(
    users: LocalUsers, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.set_verifier("alice", Mechanism.SHA_512, Verifier(b"s" * 16, bytes(64), bytes(64), 8192))
    spent: list[tuple[str, int]] = []

    def salted(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        spent.append((digest, iterations))
        return bytes(64)

    monkeypatch.setattr("hashlib.pbkdf2_hmac", salted)
    for name in ("alice", "nobody", "n" * 100_000):
        assert not verified(users, runtime, name, "x")
    assert spent == [("sha512", 8192)] * 3
