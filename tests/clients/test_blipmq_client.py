"""The shipped BlipMQ client: against the door, against recorded bytes, and in trouble."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pentalog
from pentalog.clients.blipmq import (
    AsyncBlipmqClient,
    BlipmqClient,
    CircuitBreaker,
    CircuitOpen,
    ClientError,
    ConnectionLost,
    Delivery,
    Patience,
    ServerError,
)
from pentalog.clients.blipmq.exchanges import Reader
from pentalog.config import Listen
from pentalog.testing.ports import reserve_port

GOLDEN = Path(__file__).parents[1] / "golden" / "blipmq" / "original.txt"
HASTE = Patience(retries_max=3, first_delay_ms=1, delay_ms_max=4)
NEVER = Patience(retries_max=0)
GREETING = bytes.fromhex(
    "0000000b01000000000000000100010000001202000000000000000200076465762d6b6579"
)
GREETED = bytes.fromhex(
    "000000110500000000000000010000000000000000000000110500000000000000020000000000000000"
)


def ping(number: int) -> bytes:
    return bytes.fromhex(f"0000000907{number:016x}")


def pong(number: int) -> bytes:
    return bytes.fromhex(f"0000000908{number:016x}")


def recorded() -> dict[str, bytes]:
    """What the original answered, by the title of the exchange."""
    found: dict[str, bytes] = {}
    title = ""
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("# "):
            title = line[2:]
        elif line.startswith("S"):
            found[title] = bytes.fromhex(line[1:])
    return found


class Script:
    """A server that knows its part: for each connection, what it expects and what it answers."""

    def __init__(self, *connections: list[tuple[bytes, bytes]]) -> None:
        self._connections = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(20)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.flaws: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for part in self._connections:
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                self.flaws.append("nobody came")
                return
            with accepted:
                accepted.settimeout(20)
                for expected, answer in part:
                    got = b""
                    while len(got) < len(expected):
                        data = accepted.recv(len(expected) - len(got))
                        if not data:
                            break
                        got += data
                    if got != expected:
                        self.flaws.append(f"{got.hex()} instead of {expected.hex()}")
                        return
                    # In crumbs, so that frames arrive cut.
                    for position in range(0, len(answer), 7):
                        accepted.sendall(answer[position : position + 7])

    def finish(self) -> None:
        self._thread.join(30)
        self._listener.close()
        assert self.flaws == []


@contextmanager
def scripted(*connections: list[tuple[bytes, bytes]]) -> Iterator[str]:
    script = Script(*connections)
    try:
        yield script.address
    finally:
        script.finish()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    listen = (Listen("blipmq", "127.0.0.1", 0),)
    # A busy machine must not make acknowledgements late.
    defaults = {"subscription.lease.ms": "60000"}
    directory = tmp_path_factory.mktemp("data")
    with pentalog.Broker(directory, listen=listen, topic_defaults=defaults) as broker:
        yield broker.address("blipmq")


def test_a_round(address: str) -> None:
    with BlipmqClient(address) as client:
        client.ping()
        number = client.subscribe("round")
        client.publish("round", b"a", b"", "ü".encode())
        client.publish("round", b"fleeting", qos=0)
        found = client.poll(number, 10)
        assert found == [
            Delivery("round", b"a", 1, 1),
            Delivery("round", b"", 1, 2),
            Delivery("round", "ü".encode(), 1, 3),
            Delivery("round", b"fleeting", 0, 0),
        ]
        assert client.acknowledge(number, 1, 2, 3) == []
        assert client.acknowledge(number, 3, 77) == [3, 77]
        assert client.poll(number) == []


def test_a_round_in_asyncio(address: str) -> None:
    async def story() -> None:
        async with AsyncBlipmqClient(address) as client:
            await client.ping()
            number = await client.subscribe("async round")
            await asyncio.gather(*(client.publish("async round", b"%d" % at) for at in range(50)))
            found = await client.poll(number, 100)
            assert sorted(each.message for each in found) == sorted(b"%d" % at for at in range(50))
            assert await client.acknowledge(number, *(each.tag for each in found)) == []

    asyncio.run(story())


def test_many_messages_go_in_several_exchanges(address: str) -> None:
    with BlipmqClient(address) as client:
        number = client.subscribe("many")
        messages = [b"%d" % at + bytes(500) for at in range(3000)]
        client.publish("many", *messages)
        got: list[bytes] = []
        while len(got) < 3000:
            found = client.poll(number, 5000)
            assert len(found) <= 1000
            got += [each.message for each in found]
            client.acknowledge(number, *(each.tag for each in found))
        assert got == messages


def test_deliveries_are_acknowledged_one_by_one(address: str) -> None:
    with BlipmqClient(address) as client:
        number = client.subscribe("stream")
        client.publish("stream", b"a", b"b", b"c")
        stream = client.deliveries(number, count=2)
        assert [next(stream).message for _ in range(3)] == [b"a", b"b", b"c"]
        with BlipmqClient(address) as other:
            assert other.acknowledge(number, 1, 2) == [1, 2]
            assert other.acknowledge(number, 3) == []

    async def story() -> None:
        async with AsyncBlipmqClient(address) as client:
            number = await client.subscribe("stream")
            publishing = asyncio.create_task(client.publish("stream", b"d", b"e"))
            got = []
            async for delivery in client.deliveries(number):
                got.append(delivery.message)
                if len(got) == 2:
                    break
            assert got == [b"d", b"e"]
            await publishing

    asyncio.run(story())


def test_refusals_of_the_door(address: str) -> None:
    with BlipmqClient(address) as client:
        with pytest.raises(ClientError, match="empty topic") as refused:
            client.publish("", b"x")
        assert refused.value.code == 400
        with pytest.raises(ClientError, match="bookkeeping"):
            client.subscribe("__consumer_offsets")
        with pytest.raises(ValueError, match="quality 2"):
            client.publish("t", b"x", qos=2)
        with pytest.raises(ValueError, match="at most"):
            client.publish("t", bytes(16 << 20))
        client.ping()
    with BlipmqClient(address, key="wrong") as client, pytest.raises(ClientError, match="API key"):
        client.ping()
    with pytest.raises(ValueError, match="HOST:PORT"):
        BlipmqClient("nowhere")


def test_subscriptions_outlive_clients(address: str) -> None:
    with BlipmqClient(address) as first:
        number = first.subscribe("lasting")
        first.publish("lasting", b"x")
    with BlipmqClient(address) as second:
        assert [each.message for each in second.poll(number)] == [b"x"]


def test_answers_of_the_original() -> None:
    original = recorded()
    subscribe = bytes.fromhex("00000010040000000000000003000464656d6f01")
    publish = bytes.fromhex("0000001203000000000000000501000464656d6f6869")
    poll = bytes.fromhex("000000110900000000000000070000000000000002")
    ack = bytes.fromhex("000000110500000000000000010000000000000002")
    part = [
        (GREETING, GREETED),
        (subscribe + ping(4), original["SUBSCRIBE demo qos1"] + pong(4)),
        (publish + ping(6), pong(6)),
        (poll + ping(8), original["POLL -> delivery tag"] + pong(8)),
        (ack + ping(9), pong(9)),
        (ack + ping(10), original["ACK duplicate"] + pong(10)),
    ]
    with scripted(part) as where, BlipmqClient(where, patience=NEVER) as client:
        assert client.subscribe("demo") == 2
        client.publish("demo", b"hi")
        assert client.poll(2) == [Delivery("demo", b"hi", 1, 1)]
        assert client.acknowledge(2, 1) == []
        assert client.acknowledge(2, 1) == [1]


@pytest.mark.parametrize("title", ["AUTH bad key", "HELLO wrong version 2"])
def test_handshakes_the_original_refused(title: str) -> None:
    part = [(GREETING, recorded()[title])]
    with (
        scripted(part) as where,
        BlipmqClient(where, patience=NEVER) as client,
        pytest.raises(ClientError),
    ):
        client.ping()


def test_storms_of_the_original_are_sent_again() -> None:
    text = b"durable publish failed: wal overload: wal channel full"
    body = (500).to_bytes(2, "big") + len(text).to_bytes(2, "big") + text
    storm = (9 + len(body)).to_bytes(4, "big") + b"\x06" + (3).to_bytes(8, "big") + body

    def publish(number: int) -> bytes:
        return bytes.fromhex(f"0000001203{number:016x}01000464656d6f6869")

    part = [
        (GREETING, GREETED),
        (publish(3) + ping(4), storm + pong(4)),
        (publish(5) + ping(6), pong(6)),
    ]
    with scripted(part) as where, BlipmqClient(where, patience=HASTE) as client:
        client.publish("demo", b"hi")
    with (
        scripted(part[:2]) as where,
        BlipmqClient(where, patience=NEVER) as client,
        pytest.raises(ServerError, match="wal channel full"),
    ):
        client.publish("demo", b"hi")


def test_lost_connections_are_made_again() -> None:
    lost = [(GREETING, GREETED), (ping(3), b"")]
    good = [(GREETING, GREETED), (ping(3), pong(3))]
    with scripted(lost, lost, good) as where, BlipmqClient(where, patience=HASTE) as client:
        client.ping()

    async def story(where: str) -> None:
        async with AsyncBlipmqClient(where, patience=HASTE) as client:
            await client.ping()

    with scripted(lost, good) as where:
        asyncio.run(story(where))


def test_patience_has_an_end() -> None:
    where = f"127.0.0.1:{reserve_port()}"
    with BlipmqClient(where, patience=HASTE) as client, pytest.raises(ConnectionLost):
        client.ping()


def test_a_broken_circuit_is_not_tried() -> None:
    where = f"127.0.0.1:{reserve_port()}"
    breaker = CircuitBreaker(failures_max=2, open_ms=60_000)
    with (
        BlipmqClient(where, patience=HASTE, breaker=breaker) as client,
        pytest.raises(CircuitOpen, match="2 attempts failed"),
    ):
        client.ping()

    async def story() -> None:
        async with AsyncBlipmqClient(where, patience=HASTE, breaker=breaker) as client:
            with pytest.raises(CircuitOpen):
                await client.ping()

    asyncio.run(story())


@pytest.mark.parametrize("answer", ["ffffffff0000000000000000ff", "00000009020000000000000001"])
def test_somebody_else_answers(answer: str) -> None:
    part = [(GREETING, bytes.fromhex(answer))]
    with (
        scripted(part) as where,
        BlipmqClient(where, patience=NEVER) as client,
        pytest.raises(ConnectionLost, match="not a BlipMQ broker"),
    ):
        client.ping()


def test_frames_are_found_however_they_are_cut() -> None:
    data = b"".join(recorded().values())
    whole = Reader().feed(data)
    for size in (1, 2, 3, 13, 50):
        reader = Reader()
        found = []
        for position in range(0, len(data), size):
            found += reader.feed(data[position : position + size])
        assert found == whole
