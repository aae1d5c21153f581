"""`pentalog user`, `acl` and `quota` on a directory whose broker does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pentalog import Broker
from pentalog.cli.directory import Directory
from pentalog.cli.verbs import app


def run(*arguments: str, data: Path, stdin: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--data", str(data)], input=stdin)
    assert done.exit_code == code, (done.output, done.stderr)
    return done.stderr if code else done.stdout


def shown(*arguments: str, data: Path) -> Any:
    return json.loads(run(*arguments, "--json", data=data))


def test_a_user_from_the_first_password_to_the_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("user", "add", "alice", "--password", "correct horse", data=data)
    run("user", "add", "bob", stdin="battery staple\n", data=data)
    both = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert [(user["user"], user["mechanisms"]) for user in shown("user", "list", data=data)] == [
        ("alice", both),
        ("bob", both),
    ]
    assert "passwd alice" in run("user", "add", "alice", stdin="x\n", code=1, data=data)
    assert "user add carol" in run("user", "passwd", "carol", stdin="x\n", code=1, data=data)
    run("user", "passwd", "bob", stdin="another\n", data=data)
    run("user", "delete", "bob", data=data)
    assert "no user" in run("user", "delete", "bob", code=1, data=data)
    assert [user["user"] for user in shown("user", "list", data=data)] == ["alice"]


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("user", "add", "alice", stdin="pw\n", data=data)
    key = run("user", "key", "alice", "--label", "laptop", data=data).strip()
    (user,) = shown("user", "list", data=data)
    assert [kept["label"] for kept in user["keys"]] == ["laptop"]
    kept = b"".join(path.read_bytes() for path in data.iterdir())
    assert key.encode() not in kept
    assert key not in run("user", "list", data=data)
    fingerprint = user["keys"][0]["fingerprint"]
    assert "has no key" in run("user", "key", "alice", "--remove", "beef", code=1, data=data)
    run("user", "key", "alice", "--remove", fingerprint, data=data)
    assert shown("user", "list", data=data)[0]["keys"] == []


def test_no_password_at_all_is_a_misuse(tmp_path: Path) -> None:
    assert "no password" in run("user", "add", "alice", code=2, data=tmp_path / "data")


def test_rules_are_added_listed_and_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    alice = ("--principal", "User:alice")
    run("acl", "add", *alice, "--operation", "read,Write", "--topic", "a", data=data)
    run("acl", "add", *alice, "--operation", "all", "--group", "g", "--prefixed", data=data)
    run("acl", "add", *alice, "--operation", "alter_configs", "--cluster", "--deny", data=data)
    rules = shown("acl", "list", data=data)
    assert sorted((rule["operation"], rule["resource"], rule["permission"]) for rule in rules) == [
        ("all", "group", "allow"),
        ("alter-settings", "cluster", "deny"),
        ("read", "topic", "allow"),
        ("write", "topic", "allow"),
    ]
    assert len(shown("acl", "list", "--topic", "a", data=data)) == 2
    assert shown("acl", "remove", "--topic", "a", "--operation", "read", data=data)["removed"]
    assert "no rule is like that" in run("acl", "remove", "--topic", "b", code=1, data=data)
    run("acl", "remove", "--all", data=data)
    assert shown("acl", "list", data=data) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("acl", "add", "--operation", "read", "--topic", "a"), "--principal"),
        (
            ("acl", "add", "--principal", "alice", "--operation", "read", "--topic", "a"),
            "KIND:NAME",
        ),
        (("acl", "add", "--principal", "User:a", "--operation", "eat", "--topic", "a"), "'eat'"),
        (
            (
                "acl",
                "remove",
            ),
            "--all",
        ),
        (("quota", "set", "--write", "5"), "--user NAME"),
        (("quota", "set", "--user", "a"), "--write"),
        (("quota", "set", "--user", "a", "--address", "::1", "--write", "5"), "--address"),
        (("user", "key", "a", "--label", "b", "--remove", "c"), "--label"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in run(*arguments, code=2, data=tmp_path / "data")


def test_what_the_broker_would_refuse_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wrong = ("--principal", "User:a", "--operation", "write", "--group", "g")
    assert "nothing one can do" in run("acl", "add", *wrong, code=1, data=data)
    assert "larger than 0" in run("quota", "set", "--user", "a", "--write", "0", code=1, data=data)


def test_quotas_are_set_listed_and_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("quota", "set", "--user", "alice", "--write", "1000", "--work", "12.5", data=data)
    run("quota", "set", "--user", "*", "--client", "app", "--read", "5", data=data)
    run("quota", "set", "--address", "127.0.0.1", "--connections", "3", data=data)
    assert shown("quota", "list", data=data) == [
        {"address": "127.0.0.1", "connections": 3.0},
        {"user": "*", "client": "app", "read": 5.0},
        {"user": "alice", "write": 1000.0, "work": 12.5},
    ]
    run("quota", "remove", "--user", "alice", data=data)
    assert "has no quota" in run("quota", "remove", "--user", "alice", code=1, data=data)


def test_a_running_broker_keeps_its_directory_to_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run("user", "add", "alice", "--password", "pw", data=data)
    with Broker(data):
        said = run("user", "add", "bob", "--password", "pw", code=1, data=data)
        assert "--server HOST:PORT" in said
    with Directory(data) as directory:
        assert [user.name for user in directory.users()] == ["alice"]
