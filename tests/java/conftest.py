"""One Java process and one broker for all these tests, and topics nobody else uses."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from jvm import Clients, Jvm, compile_driver
from nodes import Node

import apache_kafka


@pytest.fixture(scope="session")
def classes() -> Path:
    """The compiled driver."""
    try:
        return compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def jvm(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    with Jvm(classes, tmp_path_factory.mktemp("jvm") / "stderr") as jvm:
        yield jvm


@pytest.fixture(scope="session")
def node(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The broker under test."""
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    assert node.broker.process.poll() is None, f"the broker ended; see {node.broker.log}"
    node.stop()


@pytest.fixture
def clients(jvm: Jvm, node: Node) -> Iterator[Clients]:
    """Makes clients of the broker; they are closed after the test."""
    clients = Clients(jvm, node.address)
    yield clients
    clients.close_all()


@pytest.fixture
def mortal(classes: Path, tmp_path: Path, node: Node) -> Iterator[tuple[Jvm, Clients]]:
    """A second Java process, for clients that are to die."""
    with Jvm(classes, tmp_path / "mortal.stderr") as second:
        yield second, Clients(second, node.address)


@pytest.fixture
def topic() -> str:
    """A name for a topic, a group or a transactional id that belongs to this test alone."""
    return f"java-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def own(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker whose death troubles no other module."""
    node = Node(tmp_path_factory.mktemp("own"))
    yield node
    node.stop()
