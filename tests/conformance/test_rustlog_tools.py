"""What RustLog commits is shown and moved by Kafka's own consumer group tool."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "java"))

from jvm import Clients, Jvm, compile_driver
from nodes import Node

import apache_kafka
from pentalog.clients.rustlog import RustLogClient

pytestmark = [pytest.mark.clients, pytest.mark.java]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jvm, Node]]:
    directory = tmp_path_factory.mktemp("rustlog-tools")
    try:
        classes = compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    node = Node(directory / "node")
    with Jvm(classes, directory / "stderr") as jvm:
        yield jvm, node
    node.stop()


def test_the_group_tool_and_rustlog_agree(workshop: tuple[Jvm, Node], topic: str) -> None:
    jvm, node = workshop
    clients = Clients(jvm, node.address)
    toolbox = clients.open("toolbox", {})

    def groups(*arguments: str) -> str:
        where = ["--bootstrap-server", node.address, "--group", "rusty"]
        done = toolbox("run", tool=GROUPS, arguments=[*where, *arguments], input="")
        assert done["code"] == 0, done["out"] + done["errors"]
        return str(done["out"] + done["errors"])

    try:
        # The Kafka port serves RustLog too.
        with RustLogClient(node.address, dialect="json") as client:
            client.create_topic(topic, 2)
            client.produce(topic, 1, [b"x"] * 10)
            assert client.commit("rusty", topic, 1, 4)
            shown = groups("--describe")
            assert re.search(rf"rusty\s+{topic}\s+1\s+4\s+10\s+6\s", shown), shown
            groups("--reset-offsets", "--to-offset", "7", "--topic", topic, "--execute")
            assert client.committed("rusty", topic, 1) == 7
            groups("--delete")
            assert client.committed("rusty", topic, 1) is None
    finally:
        clients.close_all()
