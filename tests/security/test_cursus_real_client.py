"""PyPI's cursus-client, which can say nothing of itself, as whom its listener takes it for."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.guarded_world import GuardedBroker, guarded

from pentalog.broker.security import ANY, Kind, Principal, Rule
from pentalog.model.types import Partition

cursus = pytest.importorskip("cursus")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
    ),
]
EDGE = Principal("User", "edge")


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded(
        tmp_path_factory.mktemp("cursus"),
        ("cursus",),
        super_users="User:admin",
        listener_principals="cursus=User:edge",
    ) as started:
        started.topic("orders")
        yield started
    with warnings.catch_warnings():
        # The client leaves sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def producer(broker: GuardedBroker) -> Any:
    config = cursus.ProducerConfig(
        topic="orders",
        brokers=[broker.broker.address("cursus")],
        partitions=1,
        linger_ms=5,
        batch_size=50,
    )
    return cursus.Producer(config)


def end(broker: GuardedBroker) -> int:
    return broker.call(lambda: broker.facade.log.marks(Partition("orders", 0)).end)


def test_it_writes_what_its_listener_may_write(broker: GuardedBroker) -> None:
    broker.set_rules([Rule(Kind.TOPIC, "orders", False, EDGE, ANY, None, True)])
    sending = producer(broker)
    for number in range(20):
        sending.send(f"message {number}")
    sending.flush()
    sending.close()
    assert end(broker) == 20
