"""Topics by text: what is answered to good and bad wishes, in the words clients look for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch

from pentalog.broker.port import TopicSpec

PARTITIONS = "invalid_partitions"
POLICY = (
    "cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl= write_acl= "
    "retention_hours=0 retention_bytes=0"
)


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    assert (
        client.text("CREATE topic=orders partitions=3") == f"OK topic=orders partitions=3 {POLICY}"
    )


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("CREATE", 'missing_topic expected="CREATE topic=<name> [partitions=<N>]"'),
        ("CREATE topic=a partitions=0", 'invalid_partitions reason="must be a positive integer"'),
        ("CREATE topic=a partitions=x", 'invalid_partitions reason="must be a positive integer"'),
        ("CREATE topic=a partitions=65536", f'{PARTITIONS} reason="at most 65535 are accepted"'),
        (
            "CREATE topic=orders partitions=1",
            "create_topic_failed topic=orders reason=\"cannot decrease partition count for topic "
            "'orders': 3 -> 1\"",
        ),
        (
            "CREATE topic=a cleanup_policy=zip",
            'invalid_topic_policy reason="invalid cleanup policy \\"zip\\""',
        ),
        (
            "CREATE topic=a partitioner=best",
            'invalid_topic_policy reason="invalid partitioner \\"best\\""',
        ),
        (
            "CREATE topic=a retention_hours=-1",
            'invalid_topic_policy reason="retention_hours must be >= 0"',
        ),
        ("CREATE topic=a retention_hours=x", "invalid_retention_hours value=x"),
        ("CREATE topic=a retention_bytes=x", "invalid_retention_bytes value=x"),
        (
            "CREATE topic=a replication_factor=0",
            'invalid_replication_factor reason="must be a positive integer"',
        ),
        (
            "CREATE topic=a event_sourcing=true cleanup_policy=compact",
            'invalid_topic_policy field=cleanup_policy reason="compaction is not supported for '
            'event-sourcing topics"',
        ),
        (
            "CREATE topic=a/b",
            'invalid_topic_name topic="a/b" reason="topic name \\"a/b\\" contains unsupported '
            'characters"',
        ),
        (
            "CREATE topic=..",
            'invalid_topic_name topic=".." reason="topic name \\"..\\" contains unsupported '
            'characters"',
        ),
        ("DELETE", 'missing_topic expected="DELETE topic=<name>"'),
        ("DELETE topic=nope", "topic_not_found topic=nope"),
        ("DESCRIBE topic=nope", "topic_not_found topic=nope"),
        ("DESCRIBE", 'missing_topic expected="DESCRIBE topic=<name>"'),
        ("METADATA", "missing_topic command=METADATA"),
        ("METADATA topic=nope", "topic_not_found topic=nope"),
        ("LIST_OFFSETS", "missing_topic command=LIST_OFFSETS"),
        ("LIST_OFFSETS topic=nope", "topic_not_found topic=nope"),
        ("LIST_OFFSETS topic=orders partition=9", "partition_not_found partition=9"),
        ("LIST_OFFSETS topic=orders partition=x", "invalid_partition command=LIST_OFFSETS"),
        ("FIND_COORDINATOR", "missing_coordinator_key command=FIND_COORDINATOR"),
        ("BOGUS topic=x", 'unknown_command command="BOGUS topic=x"'),
        ("LIST_CLUSTER", "distribution_not_enabled"),
        ("ELECT_LEADER x=1", "distribution_required command=ELECT_LEADER"),
        ("LIST_SNAPSHOTS topic=a", "internal_command_unauthorized command=LIST_SNAPSHOTS"),
        ("AUTH principal=a token=b", "authentication_failed mechanism=PLAIN"),
        ("AUTH principal=a", "invalid_auth command=AUTH"),
    ],
)  # fmt: skip
def test_refusals(client: Client, command: str, answer: str) -> None:
    assert client.text(command) == f"ERROR: {answer}"


def test_a_plain_create_resets_nothing(client: Client) -> None:
    made = client.text(
        "CREATE topic=kept partitions=2 retention_hours=5 retention_bytes=1000 "
        "auth_policy=deny_write partitioner=round_robin read_acl=a,b cleanup_policy=delete,compact"
    )
    assert made == (
        "OK topic=kept partitions=2 cleanup_policy=delete,compact partitioner=round_robin "
        "auth_policy=deny_write read_acl=a,b write_acl= retention_hours=5 retention_bytes=1000"
    )
    assert client.text("CREATE topic=kept partitions=2") == made
    grown = client.text("create topic=kept partitions=4 retention_hours=0")
    assert "partitions=4" in grown
    assert "retention_hours=0" in grown
    assert "auth_policy=deny_write" in grown


def test_options_survive_a_restart(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "again")
    before = first.connect().text("CREATE topic=t partitions=1 partitioner=round_robin write_acl=x")
    first.close()
    second = CursusBroker(tmp_path / "again")
    client = second.connect()
    assert client.text("CREATE topic=t partitions=1") == before
    client.text("DELETE topic=t")
    assert "partitioner=hash_key" in client.text("CREATE topic=t partitions=1")
    second.close()


def test_topics_are_listed_described_and_deleted(broker: CursusBroker, client: Client) -> None:
    broker.beside.topics.create(TopicSpec(name="naïve", partitions=1))
    broker.beside.topics.create(TopicSpec(name="__internal", partitions=1))
    client.text("CREATE topic=a-b")
    assert client.text("LIST") == "OK count=2 topics=a-b,orders"
    assert client.text("LIST topic=orders") == "OK count=1 topics=orders partitions=3"
    described = json.loads(client.text("DESCRIBE topic=orders"))
    assert described["partitions"][2] == {
        "id": 2, "leader": "", "replicas": None, "isr": None, "leo": 0, "hwm": 0,
    }  # fmt: skip
    assert client.text("DELETE topic=orders") == "OK topic=orders deleted=true"
    assert client.text("LIST") == "OK count=1 topics=a-b"


def test_where_topics_are(client: Client) -> None:
    address = "localhost:9000"
    assert client.text("METADATA topic=orders") == (
        f"OK topic=orders partitions=3 leaders={address},{address},{address} epochs=0,0,0 {POLICY}"
    )
    assert client.text("FIND_COORDINATOR txn=x") == (
        "OK coordinator_id=standalone coordinator_type=transaction host=localhost port=9000"
    )


def test_offsets_are_listed(client: Client) -> None:
    client.publish(batch([Message(), Message()], partition=1, acks="-1"))
    assert client.text("LIST_OFFSETS topic=orders partition=1") == (
        "OK topic=orders partitions=1 offsets=P1:earliest=0:latest=2:leo=2:hwm=2"
    )


def test_policies_hold(client: Client) -> None:
    client.text("CREATE topic=pol partitions=1 auth_policy=deny_write")
    answer = client.publish(batch([Message()], topic="pol"))
    assert answer["error"] == "NOT_AUTHORIZED_FOR_TOPIC operation=write topic=pol"
    client.text("CREATE topic=pol auth_policy=deny_read")
    assert client.publish(batch([Message()], topic="pol"))["status"] == "OK"
    refused = "ERROR: NOT_AUTHORIZED_FOR_TOPIC operation=read topic=pol"
    assert client.text("CONSUME topic=pol partition=0 offset=0 member=m") == refused
    assert client.text("STREAM topic=pol partition=0 group=g") == refused


def test_negotiation_and_structured_errors(client: Client) -> None:
    assert client.text("DELETE topic=x") == "ERROR: topic_not_found topic=x"
    answers = {
        "NEGOTIATE": "missing_protocol_version class=validation retryable=false command=NEGOTIATE",
        "NEGOTIATE version=2":
            "UNSUPPORTED_PROTOCOL_VERSION class=validation retryable=false requested=2 min=1 max=1",
        "NEGOTIATE version=x":
            'invalid_protocol_version class=validation retryable=false requested="x"',
        "NEGOTIATE version=1 features=foo_v1 require_features=true":
            "UNSUPPORTED_FEATURE class=validation retryable=false features=foo_v1",
        "NEGOTIATE version=1 features=foo-v1":
            "invalid_protocol_features class=validation retryable=false "
            'reason="invalid feature name \\"foo-v1\\""',
        "NEGOTIATE version=1 require_features=maybe":
            'invalid_require_features class=validation retryable=false value="maybe"',
    }  # fmt: skip
    for command, answer in answers.items():
        assert client.text(command) == f"ERROR: {answer}"
    assert client.text("NEGOTIATE version=1 features=structured_errors_v1,foo_v1") == (
        "OK protocol_version=1 enabled=structured_errors_v1 unsupported=foo_v1"
    )
    assert client.text("DELETE topic=x") == (
        "ERROR: topic_not_found class=not_found retryable=false topic=x"
    )
    assert client.text("HEARTBEAT topic=orders group=g member=m generation=1") == (
        "ERROR: group_not_found class=not_found retryable=false group=g"
    )


def test_leaving(client: Client) -> None:
    assert client.ask("EXIT") == [b"OK"]
    assert client.line.hung_up


def test_help_names_everything_that_works(client: Client) -> None:
    words = client.text("HELP").removeprefix("OK commands=").split(",")
    assert {"CREATE", "STREAM", "END_TXN", "READ_STREAM"} <= set(words)
    assert "RAFT_APPLY" not in words


def test_a_description_is_json_as_the_original_writes_it(client: Client) -> None:
    client.text("CREATE topic=described partitions=3 retention_hours=5")
    text = client.text("DESCRIBE topic=described")
    assert text == json.dumps(json.loads(text), indent=2)


def test_a_pattern_with_many_stars_is_refused(client: Client) -> None:
    ask = "CONSUME topic={} partition=0 offset=0 member=m"
    assert "9 stars; 8 are accepted" in client.text(ask.format("a*" * 9))
    assert "no topics match" in client.text(ask.format("a*" * 8))


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*", True), ("sh.ape=1-x", True), ("sh?ape*", True), ("*-x", True), ("sh*=*x", True),
        ("s*a*e*1*", True), ("**ape**", True), ("shxape*", False), ("*ape", False), ("ape*", False),
        ("sh?", False), ("s*e*a*", False), ("[s]h*", False),
    ],
)  # fmt: skip
def test_patterns(tmp_path: Path, pattern: str, matches: bool) -> None:
    world = CursusBroker(tmp_path / "patterns")
    reader = world.connect()
    reader.text("CREATE topic=sh.ape=1-x partitions=1")
    (answer,) = reader.ask(f"CONSUME topic={pattern} partition=0 offset=0 member=m")
    assert (b"no topics match" not in answer and b"not exist" not in answer) is matches
    world.close()
