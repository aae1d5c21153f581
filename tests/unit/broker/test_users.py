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
