"""`pentalog user`, `acl`, `token` and `quota` through a running broker that asks who one is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.guarded_world import Authority, GuardedBroker, guarded
from tests.security.matrix.matrix_blipmq import frame, log_in, text
from typer.testing import CliRunner

from pentalog.cli.directory import Directory
from pentalog.cli.verbs import app
from pentalog.protocols.blipmq.frames import FrameType

pytestmark = pytest.mark.clients
PASSWORD = "correct horse"
LISTENERS = ("kafka+sasl", "kafka+sasl+tls", "blipmq")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[GuardedBroker]:
    """Its first user was made before it was ever started."""
    data = tmp_path_factory.mktemp("data")
    with Directory(data) as directory:
        directory.set_password("admin", PASSWORD)
        directory.set_password("eve", "guess")
    with guarded(
        data,
        LISTENERS,
        super_users="User:admin",
        delegation_token_secret="a secret of tokens",
        tls_certificate=str(authority.server()),
    ) as started:
        yield started


class Shell:
    def __init__(self, broker: GuardedBroker, environment: dict[str, str]) -> None:
        self._broker = broker
        self._environment = environment

    def __call__(self, *arguments: str, stdin: str = "", code: int = 0, **more: str) -> str:
        environment = {
            "PENTALOG_SERVER": self._broker.broker.address("kafka+sasl"),
            **self._environment,
            **more,
        }
        done = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        assert done.exit_code == code, (done.output, done.stderr)
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def run(broker: GuardedBroker) -> Shell:
    login = {"PENTALOG_LOGIN_USER": "admin", "PENTALOG_LOGIN_PASSWORD": PASSWORD}
    return Shell(broker, login)


def test_users(run: Shell) -> None:
    run("user", "add", "alice", stdin="first\n")
    assert "alice" in {user["user"] for user in run.json("user", "list")}
    alice = {"PENTALOG_LOGIN_USER": "alice", "PENTALOG_LOGIN_PASSWORD": "first"}
    assert run("topic", "list", **alice) == ""
    run("user", "passwd", "alice", stdin="second\n")
    refused = run("topic", "list", code=1, **alice)
    assert "SASL_AUTHENTICATION_FAILED" in refused
    assert "first" not in refused
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        second = {**alice, "PENTALOG_LOGIN_PASSWORD": "second"}
        run("topic", "list", PENTALOG_LOGIN_MECHANISM=mechanism, **second)
    run("user", "delete", "alice")
    assert "alice" not in {user["user"] for user in run.json("user", "list")}
    assert "RESOURCE_NOT_FOUND" in run("user", "delete", "alice", code=1)


def test_keys(run: Shell, broker: GuardedBroker) -> None:
    made = run.json("user", "key", "robot", "--label", "arm")
    wire = broker.connect("blipmq")
    log_in(wire, made["key"])
    (listed,) = [user for user in run.json("user", "list") if user["user"] == "robot"]
    assert listed["mechanisms"] == []
    (key,) = listed["keys"]
    assert key["label"] == "arm"
    assert made["key"] not in run("user", "list")
    wrong = " ".join(run("user", "key", "robot", "--remove", "3f2a9c01b7de", code=1).split())
    assert f"it has {key['fingerprint']}" in wrong
    run("user", "key", "robot", "--remove", key["fingerprint"])
    assert wire.closed
    again = broker.connect("blipmq")
    assert again.ask(frame(FrameType.HELLO, 1, b"\0\1"))[0] == FrameType.ACK
    assert b"invalid API key" in again.ask(frame(FrameType.AUTH, 2, text(made["key"])))


def test_a_user_who_has_keys_only_is_deleted(run: Shell, broker: GuardedBroker) -> None:
    wires = []
    for _ in range(2):
        wires.append(broker.connect("blipmq"))
        log_in(wires[-1], run.json("user", "key", "robot")["key"])
    run("user", "delete", "robot")
    assert all(wire.closed for wire in wires)
    assert "robot" not in {user["user"] for user in run.json("user", "list")}


def test_rules(run: Shell) -> None:
    who = ("--principal", "User:bob")
    run("acl", "add", *who, "--operation", "read,write", "--topic", "o-", "--prefixed")
    run("acl", "add", *who, "--operation", "all", "--cluster", "--deny", "--host", "10.0.0.1")
    rules = run.json("acl", "list", *who)
    shown = [(rule["operation"], rule["pattern"], rule["permission"]) for rule in rules]
    assert sorted(shown) == [
        ("all", "literal", "deny"),
        ("read", "prefixed", "allow"),
        ("write", "prefixed", "allow"),
    ]
    run("acl", "remove", *who, "--prefixed")
    assert [rule["permission"] for rule in run.json("acl", "list", *who)] == ["deny"]
    run("acl", "remove", *who)
    assert run.json("acl", "list", *who) == []


def test_quotas(run: Shell) -> None:
    run("quota", "set", "--user", "bob", "--client", "*", "--read", "5000", "--work", "50")
    assert {"user": "bob", "client": "*", "read": 5000.0, "work": 50.0} in run.json("quota", "list")
    run("quota", "remove", "--user", "bob", "--client", "*")
    assert run.json("quota", "list") == []


def test_tokens(run: Shell) -> None:
    made = run.json("token", "create", "--for", "1h", "--renewer", "User:bob")
    assert made["owner"] == "User:admin"
    assert made["renewers"] == ["User:bob"]
    assert [one["token"] for one in run.json("token", "list")] == [made["token"]]
    assert made["secret"] not in run("token", "list")
    renewed = run.json("token", "renew", made["token"], "--for", "30m")
    assert renewed["expires_ms"] <= made["expires_ms_max"]
    run("token", "expire", made["token"])
    assert "no token" in run("token", "renew", made["token"], code=1)
    for_another = run.json("token", "create", "--owner", "User:bob")
    assert for_another["owner"] == "User:bob"
    run("token", "expire", for_another["token"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("user", "list"),
        ("user", "delete", "admin"),
        ("user", "key", "admin"),
        ("acl", "list"),
        ("acl", "add", "--principal", "User:eve", "--operation", "all", "--cluster"),
        ("quota", "list"),
        ("quota", "set", "--user", "eve", "--write", "1e9"),
        ("token", "create", "--owner", "User:admin"),
    ],
)
def test_who_may_not_is_told_so_in_one_line(run: Shell, arguments: tuple[str, ...]) -> None:
    eve = {"PENTALOG_LOGIN_USER": "eve", "PENTALOG_LOGIN_PASSWORD": "guess"}
    refused = run(*arguments, code=1, **eve)
    assert "AUTHORIZATION_FAILED" in refused
    assert len(refused.splitlines()) == 1


def test_over_tls(run: Shell, broker: GuardedBroker, authority: Authority) -> None:
    server = broker.broker.address("kafka+sasl+tls")
    assert "admin" in run(
        "user", "list", PENTALOG_SERVER=server, PENTALOG_LOGIN_CA=str(authority.file)
    )


Refusal = tuple[dict[str, str], tuple[str, ...], str, int]


@pytest.mark.parametrize(
    "refusal",
    [
        ({"PENTALOG_LOGIN_USER": ""}, ("user", "list"), "pentalog profile add", 1),
        ({"PENTALOG_LOGIN_MECHANISM": "NONE"}, ("user", "list"), "is not one of", 2),
        ({"PENTALOG_SERVER": "127.0.0.1:1"}, ("acl", "list"), "pentalog start", 1),
        ({}, ("token", "create", "--for", "soon"), "30m", 2),
        ({}, ("token", "create", "--owner", "alice"), "KIND:NAME", 2),
    ],
)
def test_what_goes_wrong_is_said(run: Shell, refusal: Refusal) -> None:
    environment, arguments, said, code = refusal
    assert said in run(*arguments, code=code, **environment)
