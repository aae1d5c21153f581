"""kill -9 of gateways and of the cluster behind them: nothing acknowledged is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from gateway_process import GatewayProcess
from kafka_node import Node

from pentalog.clients.rustlog import CircuitBreaker, Patience, RustLogClient

GROUP = "survivors"
STUBBORN = Patience(retries_max=100_000, first_delay_ms=5, delay_ms_max=50)
DIALECTS = ("binary", "json")

pytestmark = [pytest.mark.crash, pytest.mark.java, pytest.mark.timeout(900)]


class Writer:
    """Numbers its records, and remembers where each was acknowledged and what it committed."""

    def __init__(self, topic: str, partition: int, address: str) -> None:
        self.partition = partition
        self.told: dict[int, bytes] = {}
        self.committed = 0
        self.sent = 0
        self._topic = topic
        self._address = address
        self._stop = threading.Event()
        self._mistakes: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        never = CircuitBreaker(failures_max=1 << 60)
        try:
            with RustLogClient(
                self._address,
                dialect=DIALECTS[self.partition],
                patience=STUBBORN,
                breaker=never,
                timeout_s=120,
            ) as client:
                while not self._stop.is_set():
                    self._write(client)
        except BaseException as mistake:
            self._mistakes.append(mistake)

    def _write(self, client: RustLogClient) -> None:
        count = 1 + self.sent % 50
        records = [b"%d:" % (self.sent + index) + b"x" * index for index in range(count)]
        self.sent += count
        base, said = client.produce(self._topic, self.partition, records)
        assert said == count
        for index, record in enumerate(records):
            assert self.told.setdefault(base + index, record) == record, "an offset was reused"
        assert client.commit(GROUP, self._topic, self.partition, base + count)
        self.committed = base + count

    def wait_for(self, more: int) -> None:
        """Until so many more records are acknowledged."""
        wanted = len(self.told) + more
        deadline = time.monotonic() + 120
        while len(self.told) < wanted and not self._mistakes:
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.01)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive()
        if self._mistakes:
            raise self._mistakes[0]


def numbers_found(client: RustLogClient, topic: str, writer: Writer) -> list[int]:
    """What is there, once it is sure that everything acknowledged is."""
    found = {record.offset: record.value for record in client.records(topic, writer.partition)}
    lost = {at: value for at, value in writer.told.items() if found.get(at) != value}
    assert not lost
    assert client.committed(GROUP, topic, writer.partition) == writer.committed
    return [int(value.split(b":")[0]) for _, value in sorted(found.items())]


def test_gateways_that_are_killed(
    node: Node, gateways: Callable[[str | None], GatewayProcess], topic: str
) -> None:
    """A request whose answer was lost is sent again by its client, and may be there twice."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = gateways(node.address)
    with RustLogClient(gateway.address) as client:
        client.create_topic(topic, len(DIALECTS))
    writers = [Writer(topic, partition, gateway.address) for partition in range(len(DIALECTS))]
    for _ in range(4):
        for writer in writers:
            writer.wait_for(chance.randrange(20, 200))
        gateway.kill()
        gateway.start()
    for writer in writers:
        writer.finish()
    with RustLogClient(gateway.address) as client:
        for writer in writers:
            numbers = numbers_found(client, topic, writer)
            # A request that is repeated starts again at its first number.
            assert list(dict.fromkeys(numbers)) == list(range(writer.sent))


def test_a_cluster_that_is_killed(
    node: Node, gateways: Callable[[str | None], GatewayProcess], topic: str
) -> None:
    """The gateway itself sends again what was not answered: everything is there exactly once."""
    gateway = gateways(node.address)
    with RustLogClient(gateway.address) as client:
        client.create_topic(topic, len(DIALECTS))
    writers = [Writer(topic, partition, gateway.address) for partition in range(len(DIALECTS))]
    for writer in writers:
        writer.wait_for(300)
    node.kill()
    node.start()
    for writer in writers:
        writer.wait_for(300)
        writer.finish()
    with RustLogClient(gateway.address) as client:
        for writer in writers:
            assert numbers_found(client, topic, writer) == list(range(writer.sent))
