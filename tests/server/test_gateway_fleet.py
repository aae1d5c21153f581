"""Two gateways on real sockets, in front of a broker of ours: what one keeps the other brings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pentalog
from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.config import Config, parse_listen
from pentalog.gateway import Gateway
from pentalog.server import lifecycle

PATIENCE_S = 60
DEFAULTS = {"subscription.lease.ms": "600000"}


def patiently(attempt: Callable[[], int]) -> int:
    """Again while nobody keeps subscriptions."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except BlipmqError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def polled(client: BlipmqClient, number: int, count: int) -> dict[int, bytes]:
    """So many messages by their tags; polls find nothing while they are on their way."""
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline
        found.update({each.tag: each.message for each in client.poll(number, 50)})
    return found


def use(addresses: list[str]) -> int:
    """A subscription, opened and used through both; everything but the last is acknowledged."""
    one, two = (BlipmqClient(address, key="dev-key") for address in addresses)
    small = [b"%d" % number for number in range(300)]
    large = [bytes([number]) * 150_000 for number in range(30)] + [bytes(2 << 20)]
    with one, two:
        number = patiently(lambda: one.subscribe("demo"))
        for client, other in ((one, two), (two, one)):
            client.publish("demo", *small, *large)
            found = polled(other, number, len(small) + len(large))
            assert [found[tag] for tag in sorted(found)] == [*small, *large]
            assert client.acknowledge(number, *found) == []
            assert other.acknowledge(number, *found) == list(found)
        one.publish("demo", b"left")
        assert list(polled(two, number, 1).values()) == [b"left"]
    return number


def use_again(address: str, number: int) -> None:
    with BlipmqClient(address, key="dev-key") as client:
        found = patiently(lambda: min(polled(client, number, 1)))
        assert client.acknowledge(number, found) == []
        assert patiently(lambda: client.subscribe("demo")) == number + 1


def test_a_subscription_of_two_gateways(tmp_path: Path) -> None:
    broker = pentalog.Broker(tmp_path, listen=("kafka=127.0.0.1:0",))
    broker.start()

    async def run(loop: lifecycle.Loop) -> None:
        config = Config(
            engine=f"kafka://{broker.address()}",
            listen=(parse_listen("blipmq=127.0.0.1:0"),),
            topic_defaults=DEFAULTS,
        )
        gateways = [Gateway(config, loop) for _ in range(2)]
        try:
            for gateway in gateways:
                await gateway.start()
            addresses = [str(gateway.addresses["blipmq"]) for gateway in gateways]
            number = await loop.run_in_executor(None, use, addresses)
            # The owner leaves, and the other one takes over.
            deadline = time.monotonic() + PATIENCE_S
            while not any(owned := [gateway._engine.council.owned for gateway in gateways]):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert await gateways.pop(owned.index(True)).stop()
            address = str(gateways[0].addresses["blipmq"])
            await loop.run_in_executor(None, use_again, address, number)
        finally:
            for gateway in gateways:
                assert await gateway.stop()

    try:
        lifecycle.run(run)
    finally:
        broker.stop()
