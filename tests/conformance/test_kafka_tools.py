"""Kafka's own command line tools against the broker: exit code and what matters of the output."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "java"))

from jvm import Client, Clients, Jvm, compile_driver, taken, until
from nodes import Node

import apache_kafka

pytestmark = [pytest.mark.clients, pytest.mark.java]

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PRODUCER_TEST = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_TEST = "org.apache.kafka.tools.ConsumerPerformance"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS_FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"

Run = Callable[..., str]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jvm, Node]]:
    """A Java process for the tools and the broker they talk to."""
    directory = tmp_path_factory.mktemp("tools")
    try:
        classes = compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    node = Node(directory / "node")
    with Jvm(classes, directory / "stderr") as jvm:
        yield jvm, node
    node.stop()


@pytest.fixture
def clients(workshop: tuple[Jvm, Node]) -> Iterator[Clients]:
    jvm, node = workshop
    clients = Clients(jvm, node.address)
    yield clients
    clients.close_all()


@pytest.fixture
def run(workshop: tuple[Jvm, Node], clients: Clients) -> Run:
    """Run a tool on the broker; gives what it printed."""
    toolbox = clients.open("toolbox", {})
    _, node = workshop

    def run(tool: str, *arguments: str, code: int = 0, given: str = "") -> str:
        where = ("--bootstrap-server", node.address)
        done = toolbox("run", tool=tool, arguments=[*where, *arguments], input=given)
        assert done["code"] == code, done["out"][-3000:] + done["errors"][-3000:]
        return str(done["out"] + done["errors"])

    return run


def filled(clients: Clients, topic: str, count: int = 10) -> Client:
    admin = clients.admin()
    admin("create topic", topic=topic, partitions=2)
    clients.producer()(
        "send", topic=topic, records=[[i % 2, f"{i}", f"value-{i}"] for i in range(2 * count)]
    )
    return admin


def test_kafka_topics(run: Run, topic: str) -> None:
    made = run(
        TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "segment.ms=9000"
    )
    assert f"Created topic {topic}." in made
    assert topic in run(TOPICS, "--list").splitlines()
    described = run(TOPICS, "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3", described)
    assert "segment.ms=9000" in described
    assert (
        len(re.findall(r"Partition: \d\s+Leader: (\d+)\s+Replicas: \1\s+Isr: \1", described)) == 3
    )
    run(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    again = until(
        lambda: run(TOPICS, "--describe", "--topic", topic),
        lambda text: "PartitionCount: 5" in text,
    )
    assert "PartitionCount: 5" in again
    assert "TopicExistsException" in run(TOPICS, "--create", "--topic", topic, code=1)
    for option in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert topic not in run(TOPICS, "--describe", option)
    run(TOPICS, "--delete", "--topic", topic)
    left = until(lambda: run(TOPICS, "--list"), lambda text: topic not in text)
    assert topic not in left


def test_kafka_configs(run: Run, clients: Clients, topic: str) -> None:
    filled(clients, topic)
    where = ("--entity-type", "topics", "--entity-name", topic)
    run(CONFIGS, *where, "--alter", "--add-config", "retention.ms=5000,segment.bytes=1100000")
    shown = until(
        lambda: run(CONFIGS, *where, "--describe"), lambda text: "retention.ms=5000" in text
    )
    assert "retention.ms=5000" in shown
    assert "segment.bytes=1100000" in shown
    run(CONFIGS, *where, "--alter", "--delete-config", "retention.ms")
    shown = until(
        lambda: run(CONFIGS, *where, "--describe"), lambda text: "retention.ms" not in text
    )
    assert "retention.ms" not in shown
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in run(CONFIGS, *where, "--describe", "--all")
    brokers = ("--entity-type", "brokers", "--entity-default")
    run(CONFIGS, *brokers, "--alter", "--add-config", "log.retention.ms=86400000")
    shown = until(
        lambda: run(CONFIGS, *brokers, "--describe"),
        lambda text: "log.retention.ms=86400000" in text,
    )
    assert "log.retention.ms=86400000" in shown
    run(CONFIGS, *brokers, "--alter", "--delete-config", "log.retention.ms")


def test_kafka_configs_keeps_quotas(run: Run, topic: str) -> None:
    who = ("--entity-type", "clients", "--entity-name", topic)
    run(CONFIGS, *who, "--alter", "--add-config", "producer_byte_rate=123456")
    shown = until(
        lambda: run(CONFIGS, *who, "--describe"),
        lambda text: "producer_byte_rate=123456" in text,
    )
    assert "producer_byte_rate=123456" in shown
    run(CONFIGS, *who, "--alter", "--delete-config", "producer_byte_rate")


@pytest.mark.parametrize(
    ("kind", "name", "setting"),
    [
        ("clients", "maker", "controller_mutation_rate=2.5"),
        ("ips", "10.9.8.7", "connection_creation_rate=5"),
        ("groups", "readers", "consumer.session.timeout.ms=50000"),
    ],
)
def test_kafka_configs_keeps_what_else_can_be_set(
    run: Run, kind: str, name: str, setting: str
) -> None:
    where = ("--entity-type", kind, "--entity-name", name)
    run(CONFIGS, *where, "--alter", "--add-config", setting)
    key = setting.partition("=")[0]
    # By its name, and as one of all that have any.
    for asked in (where, where[:2]):
        shown = until(
            lambda asked=asked: run(CONFIGS, *asked, "--describe"),  # type: ignore[misc]
            lambda text: setting in text,
        )
        assert setting in shown
        assert name in shown
    run(CONFIGS, *where, "--alter", "--delete-config", key)
    shown = until(lambda: run(CONFIGS, *where, "--describe"), lambda text: key not in text)
    assert key not in shown


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafka_consumer_groups(run: Run, clients: Clients, topic: str, protocol: str) -> None:
    filled(clients, topic)
    member = clients.consumer(group_id=topic, group_protocol=protocol)
    member("subscribe", topics=[topic])
    assert len(taken(member, 20)) == 20
    member("commit", offsets=[[topic, 0, 4], [topic, 1, 10]])
    group = ("--group", topic)
    assert topic in run(GROUPS, "--list").splitlines()
    described = run(GROUPS, "--describe", *group)
    assert re.search(rf"{topic}\s+{topic}\s+0\s+(- +)?4\s+10\s+6\s", described), described
    assert re.search(rf"{topic}\s+{topic}\s+1\s+(- +)?10\s+10\s+0\s", described), described
    assert member.name in run(GROUPS, "--describe", "--members", *group)
    assert re.search(r"Stable\s+1", run(GROUPS, "--describe", "--state", *group))
    topics = ("--topic", topic)
    busy = run(GROUPS, "--reset-offsets", "--to-earliest", "--execute", *group, *topics)
    assert "inactive" in busy
    clients.close(member)
    reset = run(GROUPS, "--reset-offsets", "--to-offset", "2", "--execute", *group, *topics)
    assert re.search(rf"{topic}\s+0\s+2", reset)
    assert "Successful" in run(GROUPS, "--delete-offsets", *group, "--topic", f"{topic}:0")
    assert "successful" in run(GROUPS, "--delete", *group)
    assert topic not in run(GROUPS, "--list")


def test_commits_as_the_tools_read_them(run: Run, clients: Clients, topic: str) -> None:
    filled(clients, topic)
    options = ("--reset-offsets", "--to-offset", "2", "--execute")
    run(GROUPS, *options, "--group", topic, "--topic", topic)
    described = run(TOPICS, "--describe", "--topic", "__consumer_offsets")
    assert "cleanup.policy=compact" in described
    assert "__consumer_offsets" not in run(TOPICS, "--list", "--exclude-internal")

    def read() -> str:
        reading = ("--from-beginning", "--timeout-ms", "3000", "--topic", "__consumer_offsets")
        return run(CONSOLE_CONSUMER, *reading, "--formatter", OFFSETS_FORMATTER)

    found = until(read, lambda text: text.count(f'"topic":"{topic}"') >= 2)
    for index in range(2):
        key = (
            f'"key":{{"type":1,"data":{{"group":"{topic}","topic":"{topic}","partition":{index}}}}}'
        )
        assert re.search(re.escape(key) + r',"value":{"version":3,"data":{"offset":2,', found), (
            found
        )


def test_kafka_groups(run: Run, clients: Clients, topic: str) -> None:
    admin = filled(clients, topic)
    admin("alter group offsets", group=topic, offsets=[[topic, 0, 1]])
    assert re.search(rf"{topic}\s+Classic", run(ALL_GROUPS, "--list"))
    assert topic not in run(ALL_GROUPS, "--list", "--group-type", "consumer")


def test_kafka_transactions(run: Run, clients: Clients, topic: str) -> None:
    filled(clients, topic)
    producer = clients.producer(transactional_id=topic)
    producer("init")
    producer("begin")
    producer("send", topic=topic, records=[[0, "k", "v"]])
    listed = run(TRANSACTIONS, "list")
    (number,) = re.findall(rf"{topic}\s+\d+\s+(\d+)\s+Ongoing", listed)
    described = run(TRANSACTIONS, "describe", "--transactional-id", topic)
    assert re.search(rf"{number}\s+\d+\s+Ongoing\s.*{topic}-0", described), described
    at = ("--topic", topic, "--partition", "0")
    producers = run(TRANSACTIONS, "describe-producers", *at)
    assert re.search(rf"{number}\s+\d+\s+\S+\s+\d+\s+\d+\s+10", producers), producers
    node = re.findall(rf"{topic}\s+(\d+)\s+{number}", listed)[0]
    hanging = run(TRANSACTIONS, "find-hanging", "--broker-id", node)
    assert topic not in hanging
    run(TRANSACTIONS, "abort", *at, "--start-offset", "10")
    after = run(TRANSACTIONS, "describe-producers", *at)
    assert re.search(rf"{number}\s+\d+\s+\S+\s+\d+\s+\S+\s+None", after), after


def test_producers_and_consumers_of_the_command_line(
    run: Run, clients: Clients, topic: str
) -> None:
    filled(clients, topic)
    run(CONSOLE_PRODUCER, "--topic", topic, given="one\ntwo\nthree\n")
    options = ("--topic", topic, "--from-beginning", "--timeout-ms", "15000")
    found = run(CONSOLE_CONSUMER, *options, "--max-messages", "23")
    assert {"one", "two", "three", "value-0"} <= set(found.splitlines())
    test = ("--topic", topic, "--num-records", "2000", "--record-size", "100")
    text = run(PRODUCER_TEST, *test, "--throughput", "-1", "--command-property", "acks=all")
    assert re.search(r"^2000 records sent, [\d.]+ records/sec", text, re.MULTILINE), text
    read = run(CONSUMER_TEST, "--topic", topic, "--num-records", "2000", "--timeout", "20000")
    assert re.search(r", 20\d\d, ", read), read


def test_transactional_producer_test(run: Run, clients: Clients, topic: str) -> None:
    filled(clients, topic)
    options = ("--topic", topic, "--num-records", "500", "--record-size", "100")
    ids = ("--transactional-id", topic, "--transaction-duration-ms", "50")
    text = run(PRODUCER_TEST, *options, "--throughput", "2000", *ids)
    assert "500 records sent" in text


def test_smaller_tools(run: Run, clients: Clients, topic: str, tmp_path: Path) -> None:
    filled(clients, topic)
    assert f"{topic}:0:10" in run(OFFSETS, "--topic", topic).splitlines()
    assert f"{topic}:1:0" in run(OFFSETS, "--topic", topic, "--time", "-2").splitlines()
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        f'{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": 0, "offset": 3}}]}}'
    )
    deleted = run(DELETE_RECORDS, "--offset-json-file", str(wanted))
    assert re.search(rf"{topic}-0\s+low_watermark: 3", deleted)
    assert f"{topic}:0:3" in run(OFFSETS, "--topic", topic, "--time", "-2").splitlines()
    sizes = run(LOG_DIRS, "--describe", "--topic-list", topic)
    assert re.search(rf'"partition":"{topic}-1","size":[1-9]', sizes), sizes
    versions = run(API_VERSIONS)
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", versions)
    assert "UNKNOWN" not in versions
    features = run(FEATURES, "describe")
    assert re.search(r"Feature: transaction.version.*FinalizedVersionLevel: 2", features)
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in run(ELECTION, *election)


def test_kafka_cluster(workshop: tuple[Jvm, Node], clients: Clients) -> None:
    """Its options come after a verb, unlike everybody else's."""
    _, node = workshop
    where = ["cluster-id", "--bootstrap-server", node.address]
    done = clients.open("toolbox", {})("run", tool=CLUSTER, arguments=where)
    assert re.search(r"Cluster ID: \S{22}", done["out"]), done
