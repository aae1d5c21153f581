"""Users, rules and quotas changed by commands while the gateways' owner is killed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet_member import FleetMember
from kafka_node import Node

from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.groups import described
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.council import GROUP
from pentalog.model.types import Partition

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

PATIENCE_S = 90
OWNED = Partition(STATE_TOPIC, 0)


@pytest.fixture
def pair(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[FleetMember]]:
    monkeypatch.setenv("PENTALOG_AUTHORIZATION", "true")
    members = [FleetMember(tmp_path / name, node.address, ["blipmq"]) for name in ("one", "two")]
    yield members
    for member in members:
        assert member.stop() == 0


def pentalog(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own.

    A thread must not run one in this process: parsing its options changes the environment, which
    is not safe while other threads start processes.
    """
    command = [sys.executable, "-m", "pentalog", *words, "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ, check=False
    )


def until(what: str, met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def owned(cluster: Cluster) -> list[bool]:
    """Which of the gateways there are has the state, as Kafka says."""
    found = described(cluster, GROUP)
    return [] if found is None else sorted(OWNED in each.partitions for each in found.members)


class Clerk:
    """Makes users with key, rule and quota, and removes every third, until told to stop."""

    def __init__(self, engine: str, tail: str) -> None:
        self.keys: dict[str, str] = {}
        """Of users that are there."""
        self.gone: dict[str, str] = {}
        self.refused: list[str] = []
        self.done = 0
        self._engine = engine
        self._tail = tail
        self._stop = threading.Event()
        self._mistakes: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._mistakes:
            raise self._mistakes[0]

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._employ(f"clerk-{number}-{self._tail}", dismiss=number % 3 == 2)
        except BaseException as mistake:
            self._mistakes.append(mistake)

    def _employ(self, name: str, *, dismiss: bool) -> None:
        self._command("user", "add", name, "--password", "secret")
        key = self._command("user", "key", name)["key"]
        rule = ("--principal", f"User:{name}", "--operation", "write", "--topic", name)
        self._command("acl", "add", *rule)
        self._command("quota", "set", "--user", name, "--write", "1e9", "--read", "1e9")
        if dismiss:
            self._command("user", "delete", name)
            self.gone[name] = key
        else:
            self.keys[name] = key

    def _command(self, *words: str) -> dict[str, str]:
        """Again until it is done: what was refused has changed nothing."""
        while True:
            ran = pentalog(*words, "--server", self._engine)
            self.done += 1
            if ran.returncode == 0:
                return dict(json.loads(ran.stdout))
            assert ran.returncode == 1, (words, ran.stdout, ran.stderr)
            assert "Traceback" not in ran.stderr, ran.stderr
            self.refused.append(ran.stderr)
            assert len(self.refused) < 20, self.refused


def may(member: FleetMember, key: str, topic: str) -> bool:
    """Is one with this key let in, and let write there?  None of it, if not all of it."""
    try:
        with BlipmqClient(member.addresses["blipmq"], key=key) as client:
            client.publish(topic, b"x")
    except BlipmqError as refusal:
        if refusal.code != 401:
            raise
        return False
    return True


def test_the_owner_is_killed_in_the_middle(
    node: Node, pair: list[FleetMember], topic: str, tmp_path: Path
) -> None:
    engine = f"kafka://{node.address}"
    with Cluster(node.address) as cluster:
        until("two gateways", lambda: owned(cluster) == [False, True])
        clerk = Clerk(engine, topic)
        try:
            for victim in pair:  # one of them is the owner, then the other
                wanted = clerk.done + 5
                until("commands", lambda wanted=wanted: clerk.done >= wanted)
                victim.kill()
                until("an owner", lambda: owned(cluster) == [True])
                victim.start()
                until("two gateways", lambda: owned(cluster) == [False, True])
            until("users, some of them removed", lambda: bool(clerk.keys and clerk.gone))
        finally:
            clerk.finish()
        for name in clerk.keys:
            cluster.create_topic(name, 1, {})
    assert clerk.refused == [], "commands need no owner"
    ran = pentalog("user", "list", "--server", engine)
    listed = {user["user"]: user["mechanisms"] for user in json.loads(ran.stdout)}
    ours = {name: found for name, found in listed.items() if name.endswith(topic)}
    assert ours.keys() == clerk.keys.keys()
    assert len({tuple(found) for found in ours.values()}) == 1, "each by all mechanisms"
    ran = pentalog("quota", "list", "--server", engine)
    quotas = [each for each in json.loads(ran.stdout) if each["user"] in ours]
    assert len(quotas) == len(ours)
    assert all((each["write"], each["read"]) == (1e9, 1e9) for each in quotas)
    for member in pair:
        for name, key in clerk.keys.items():
            until(name, lambda key=key, name=name, at=member: may(at, key, name))
        # One only: who tries many wrong keys is made to wait.
        name, key = list(clerk.gone.items())[-1]
        assert not may(member, key, name)
