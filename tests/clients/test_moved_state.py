"""Users, rules and subscriptions taken from a directory to a cluster and to another directory."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import pentalog
from pentalog.cli.verbs import app
from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.messages import ms
from pentalog.clients.kafka.moving import configure, overrides
from pentalog.cluster.council import GROUP


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, (done.output, done.stderr)
    return done.stderr if code else done.stdout


def filled(data: Path) -> int:
    """A directory with a user, a rule and a subscription that has two of four records left."""
    run("user", "add", "ann", "--password", "secret", "--data", str(data))
    run(
        "acl",
        "add",
        "--principal",
        "User:ann",
        "--operation",
        "read",
        "--topic",
        "t",
        "--data",
        str(data),
    )
    with pentalog.Broker(data) as broker, BlipmqClient(broker.address("blipmq")) as client:
        subscription = client.subscribe("t")
        client.publish("t", b"1", b"2", b"3", b"4")
        for delivery in client.poll(subscription, 2):
            client.acknowledge(subscription, delivery.tag)
        with Cluster(broker.address()) as cluster:
            configure(cluster, "t", {"subscription.lease.ms": "12345"})
    return subscription


def test_there_and_back(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    subscription = filled(first)
    with pentalog.Broker(tmp_path / "cluster", listen=("kafka=127.0.0.1:0",)) as cluster:
        to = f"kafka://{cluster.address()}"
        words = ("move", "--data", str(first), "--to", to, "--json")
        told = json.loads(run(*words))
        assert (told["users"], told["rules"], told["subscriptions"]) == (1, 1, 1)
        assert json.loads(run(*words)) == told
        with Cluster(cluster.address()) as asked:
            # As on a cluster that never knew it: only the gateways' rows have it.
            configure(asked, "t", {"subscription.lease.ms": "54321"})
        run("move", "--server", cluster.address(), "--into", str(second), "--json")
    users, rules = (
        json.loads(run(*verb, "list", "--data", str(second), "--json"))
        for verb in (("user",), ("acl",))
    )
    assert [user["user"] for user in users] == ["ann"]
    assert len(rules) == 1
    with pentalog.Broker(second) as broker, BlipmqClient(broker.address("blipmq")) as client:
        assert [one.message for one in client.poll(subscription, 10)] == [b"3", b"4"]
        with Cluster(broker.address()) as asked:
            assert overrides(asked, "t")["subscription.lease.ms"] == "12345"


def test_not_under_a_gateway_that_runs(tmp_path: Path) -> None:
    filled(tmp_path / "first")
    with pentalog.Broker(tmp_path / "cluster", listen=("kafka=127.0.0.1:0",)) as cluster:
        with Cluster(cluster.address()) as asked:
            joined = {
                "group_id": GROUP,
                "session_timeout": ms(30_000),
                "rebalance_timeout": ms(30_000),
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "pentalog", "metadata": b""}],
                "reason": None,
            }
            named = asked.coordinator(GROUP, 0).ask(11, joined).member_id
            asked.coordinator(GROUP, 0).ask(11, joined | {"member_id": named})
        words = ("move", "--data", str(tmp_path / "first"), "--to", f"kafka://{cluster.address()}")
        assert "1 gateways use this cluster" in run(*words, code=1)


def test_what_a_running_broker_keeps_is_said(tmp_path: Path) -> None:
    filled(tmp_path / "first")
    with pentalog.Broker(tmp_path / "first") as broker:
        words = ("move", "--server", broker.address(), "--into", str(tmp_path / "second"))
        done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0
    assert "users, rules and subscriptions" in done.stderr
    assert "--data" in done.stderr


def test_two_targets_or_none(tmp_path: Path) -> None:
    both = ("--to", "kafka://127.0.0.1:1", "--into", str(tmp_path))
    for words in ((), both):
        assert "either --to" in run("move", *words, code=2)


def test_users_of_gateways_that_may_run(tmp_path: Path) -> None:
    with pentalog.Broker(tmp_path / "cluster", listen=("kafka=127.0.0.1:0",)) as cluster:
        at = ("--server", f"kafka://{cluster.address()}")
        assert json.loads(run("user", "list", *at, "--json")) == []
        run("user", "add", "ann", "--password", "secret", *at)
        run("user", "add", "bob", "--password", "secret", *at)
        run("acl", "add", "--principal", "User:ann", "--operation", "read", "--topic", "t", *at)
        run("quota", "set", "--user", "ann", "--write", "100", *at)
        run("user", "delete", "bob", *at)
        assert [each["user"] for each in json.loads(run("user", "list", *at, "--json"))] == ["ann"]
        assert len(json.loads(run("acl", "list", *at, "--json"))) == 1
        assert len(json.loads(run("quota", "list", *at, "--json"))) == 1
    assert "is not kafka://" in run("user", "list", "--server", "http://x", code=2)
