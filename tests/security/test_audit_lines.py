"""Every denial, every administrative action and every login leaves one line."""

from __future__ import annotations

import json
import logging
import shlex
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.create_topics.v2.request import CreatableTopic
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta
from secured import RawClient
from tests.security.guarded_world import GuardedBroker, guarded
from tests.security.matrix.matrix_blipmq import answers, frame, log_in, text
from tests.security.matrix.matrix_cursus import say
from tests.security.matrix.matrix_fluvio import Pair
from tests.support.runtimes import SteppedRuntime
from tests.unit.protocols.fluvio.fluvio_world import create_topic, produce, their_batch

from pentalog.broker.audit import LogAudit
from pentalog.broker.repetitions import LINES_MAX
from pentalog.broker.security import (
    ANY,
    Access,
    Kind,
    Operation,
    Principal,
    Rule,
    Unguarded,
    Verdict,
)

pytestmark = pytest.mark.clients
EDGE = Principal("User", "edge")
RULE = Rule(Kind.TOPIC, "orders", False, EDGE, ANY, Operation.WRITE, False)


class Lines:
    """What the audit has said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self, **wanted: str) -> list[dict[str, str]]:
        """The lines that say all this."""
        records = (one for one in self._caplog.records if one.name == "pentalog.audit")
        found = [dict(word.split("=", 1) for word in shlex.split(one.message)) for one in records]
        return [line for line in found if wanted.items() <= line.items()]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "pentalog.audit")
    return Lines(caplog)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    listeners = ("kafka", "rustlog", "blipmq", "cursus", "fluvio-sc", "fluvio-spu")
    principals = ",".join(f"{name}=User:edge" for name in listeners if name != "cursus")
    with guarded(
        tmp_path_factory.mktemp("audited"),
        listeners,
        super_users="User:admin",
        listener_principals=principals,
        flush_interval_ms=0,
    ) as started:
        started.topic("orders")
        started.set_rules([RULE])
        yield started


def refused_by_rustlog(broker: GuardedBroker) -> None:
    asked = {"type": "Produce", "topic": "orders", "partition": 0, "records": ["eA=="]}
    wire = broker.connect("rustlog")
    for _ in range(3):
        assert b"may not" in wire.ask(json.dumps(asked).encode())


def refused_by_blipmq(broker: GuardedBroker) -> None:
    wire = broker.connect("blipmq")
    log_in(wire, "dev-key")
    assert answers(wire, frame(3, 4, b"\1" + text("orders") + b"x"))[0][0] == 6


def refused_by_cursus(broker: GuardedBroker) -> None:
    wire = broker.connect("cursus")
    say(wire, f"AUTH principal=edge token={broker.key_of('edge')}")
    assert b"NOT_AUTHORIZED" in say(wire, "PUBLISH topic=orders producerId=p message=x")


def refused_by_fluvio(broker: GuardedBroker) -> None:
    pair = Pair(broker.connect("fluvio-sc"), broker.connect("fluvio-spu"))
    pair.ask(0, produce("orders", their_batch(b"x")))


@pytest.mark.parametrize(
    ("listener", "refused", "times"),
    [
        ("rustlog", refused_by_rustlog, 3),
        ("blipmq", refused_by_blipmq, 1),
        ("cursus", refused_by_cursus, 1),
        ("fluvio-spu", refused_by_fluvio, 1),
    ],
)
def test_a_denial_says_who_where_what_and_why(
    broker: GuardedBroker, lines: Lines, listener: str, refused: object, times: int
) -> None:
    assert callable(refused)
    refused(broker)
    line = {
        "who": "User:edge",
        "host": "127.0.0.1",
        "listener": listener,
        "event": "denied",
        "action": "write",
        "what": "topic orders",
        "rule": "deny User:edge from * write topic orders",
    }
    assert lines(event="denied") == [line] * times


def test_administration_is_written_down(broker: GuardedBroker, lines: Lines) -> None:
    create = Rule(Kind.CLUSTER, "kafka-cluster", False, EDGE, ANY, None, True)
    every = Rule(Kind.TOPIC, ANY, False, EDGE, ANY, None, True)
    broker.set_rules([create, every])
    try:
        wire = broker.connect("rustlog")
        wire.ask(json.dumps({"type": "CreateTopic", "topic": "a", "partition_count": 1}).encode())
        pair = Pair(broker.connect("fluvio-sc"), broker.connect("fluvio-spu"))
        pair.ask_controller(1001, create_topic("b"))
        cursus = broker.connect("cursus")
        say(cursus, f"AUTH principal=edge token={broker.key_of('edge')}")
        say(cursus, "CREATE topic=c auth_policy=deny_write")
        say(cursus, "DELETE topic=c")
    finally:
        broker.set_rules([RULE])
    told = [(one["listener"], one["action"], one["what"]) for one in lines(event="administration")]
    assert told == [
        ("rustlog", "create topic", "a"),
        ("fluvio-sc", "create topic", "b"),
        ("cursus", "change rules", "topic c"),
        ("cursus", "create topic", "c"),
        ("cursus", "delete topic", "c"),
    ]


def test_logins_are_written_down(broker: GuardedBroker, lines: Lines) -> None:
    wire = broker.connect("cursus")
    assert b"authentication_failed" in say(wire, "AUTH principal=eve token=guess")
    assert b"OK" in say(wire, f"AUTH principal=edge token={broker.key_of('edge')}")
    (refused,) = lines(event="login refused")
    assert (refused["what"], refused["action"], refused["listener"]) == ("eve", "AUTH", "cursus")
    (accepted,) = lines(event="login")
    assert accepted["who"] == "User:edge"


def test_what_is_refused_again_is_counted(tmp_path: Path, lines: Lines) -> None:
    """Requests on two connections; what was not written yet is when the broker stops."""
    produced = {"type": "Produce", "topic": "orders", "partition": 0, "records": ["eA=="]}
    packed = b"\x01" + text("orders") + bytes(4) + struct.pack(">II", 1, 1) + b"x"
    with guarded(tmp_path, ("rustlog", "blipmq"), super_users="User:admin") as started:
        started.topic("orders")
        for _ in range(2):
            wire = started.connect("rustlog")
            for _ in range(LINES_MAX // 2):
                assert b"may not" in wire.ask(json.dumps(produced).encode())
                assert b"may not" in wire.ask(packed)
        blipmq = started.connect("blipmq")
        log_in(blipmq, "dev-key")
        publish = frame(3, 4, b"\1" + text("orders") + b"x")
        for _ in range(4):
            assert len(answers(blipmq, publish)) == 1
    told = [(one["listener"], one.get("repeated", "")) for one in lines(event="denied")]
    counted = [("rustlog", str(LINES_MAX)), ("blipmq", "4")]
    assert told == [*[("rustlog", "")] * LINES_MAX, *counted]


def test_no_name_breaks_a_line(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    access = Access(Unguarded(), EDGE, "::1", listener="x")
    name = 'a"b\n c=d\\ \x1b[31m' + "é" * 1000
    LogAudit(SteppedRuntime()).denied(
        access, Operation.READ, Kind.TOPIC, name, Verdict(False, "no rule")
    )
    (record,) = caplog.records
    assert len(record.message.splitlines()) == 1
    assert record.message.isascii()
    assert record.message.isprintable()
    assert len(record.message) < 5_000
    assert vars(record)["what"].startswith("topic a")


def test_what_nobody_forbids_leaves_no_line(
    tmp_path: Path, lines: Lines, broker: GuardedBroker
) -> None:
    wire = broker.connect("rustlog")
    assert wire.ask(b"\xff") == b"\xff"
    assert wire.ask(b"\x06")  # a listing hides and says nothing
    assert lines() == []


def test_administration_by_kafka_says_how_it_ended(broker: GuardedBroker, lines: Lines) -> None:
    broker.set_rules([Rule(Kind.TOPIC, "mine", True, EDGE, ANY, None, True)])
    client = RawClient(broker.connect("kafka").socket)

    def create(*names: str, dry_run: bool = False) -> None:
        wanted = tuple(
            CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(1),
                replication_factor=i16(1),
                assignments=(),
                configs=(),
            )
            for name in names
        )
        client.call(
            19, 2, topics=wanted, timeout=i32Timedelta.parse(timedelta(0)), validate_only=dry_run
        )

    try:
        create("mine-a", "mine-b")  # waits for the disk
        create("mine-a")
        create("mine-a", "mine-c", "theirs")
        create("mine-d", dry_run=True)
        create("theirs")
        groups = (GroupId("no-group"),)
        assert int(client.call(42, 0, groups_names=groups).results[0].error_code)
    finally:
        broker.set_rules([RULE])
    told = [
        (one["action"], one["what"], one["outcome"])
        for one in lines(event="administration", listener="kafka")
    ]
    there, denied = "topic_already_exists", "topic_authorization_failed"
    assert told == [
        ("create topics", "mine-a,mine-b", "done"),
        ("create topics", "mine-a", f"refused: {there}"),
        (
            "create topics",
            "mine-a,mine-c,theirs",
            f"done, except mine-a {there},theirs {denied}",
        ),
        ("create topics", "mine-d", "checked"),
        ("create topics", "theirs", f"refused: {denied}"),
        ("delete groups", "no-group", "refused: group_authorization_failed"),
    ]
