"""The shipped RustLog client: what it sends and reads, byte for byte, and how patient it is."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pentalog.clients.rustlog import (
    AsyncRustLogClient,
    CircuitBreaker,
    CircuitOpen,
    ClientError,
    ConnectionLost,
    Fetched,
    FetchedRecord,
    PartitionSummary,
    Patience,
    Produced,
    RustLogClient,
    ServerError,
    TopicSummary,
)
from pentalog.testing.ports import reserve_port

CAPTURED = Path(__file__).parents[1] / "golden" / "rustlog" / "captured.txt"
HASTE = Patience(retries_max=3, first_delay_ms=1, delay_ms_max=4)
NEVER = Patience(retries_max=0)
PONG = bytes.fromhex("00000001ff")
REFUSED = (5, 6, 11, 15, 37)
"""Exchanges the original refused."""


def captured() -> dict[int, tuple[bytes, bytes]]:
    found: dict[int, tuple[bytes, bytes]] = {}
    number, asked = 0, b""
    for line in CAPTURED.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "#":
            number = int(rest.split()[0])
        elif kind == "C":
            asked = bytes.fromhex(rest)
        elif rest != "metrics":
            found[number] = asked, bytes.fromhex(rest)
    return found


def framed(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


class Script:
    """A server that knows its part: for each connection, requests and the bytes it answers."""

    def __init__(self, *connections: list[tuple[bytes, bytes | None]]) -> None:
        self.connections = connections
        self.heard: list[bytes] = []
        self.accepted = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        for part in self.connections:
            peer, _ = self._listening.accept()
            self.accepted += 1
            with peer:
                for asked, answer in part:
                    got = b""
                    while len(got) < len(asked):
                        piece = peer.recv(len(asked) - len(got))
                        if not piece:
                            return
                        got += piece
                    self.heard.append(got)
                    if answer is None:
                        break
                    # In two pieces: a reply need not come at once.
                    peer.sendall(answer[:3])
                    peer.sendall(answer[3:])

    def close(self) -> None:
        self._thread.join(10)
        self._listening.close()
        assert not self._thread.is_alive()


@contextmanager
def playing(*connections: list[tuple[bytes, bytes | None]]) -> Iterator[Script]:
    script = Script(*connections)
    try:
        yield script
    finally:
        script.close()


Ask = Callable[[RustLogClient], Any]
CASES: list[tuple[int, Ask, Any]] = [
    (1, lambda client: client.ping(), None),
    (3, lambda client: client.topics(), []),
    (4, lambda client: client.create_topic("demo", 2), None),
    (5, lambda client: client.create_topic("demo", 2), (11, "Topic 'demo' already exists")),
    (6, lambda client: client.create_topic("zero", 0), (12, "Invalid partition count: 0")),
    (
        9,
        lambda client: client.topics(),
        [TopicSummary("", 1), TopicSummary("a b/../é", 1), TopicSummary("demo", 2)],
    ),
    (
        10,
        lambda client: client.describe_topic("demo"),
        [PartitionSummary(0, 0), PartitionSummary(1, 0)],
    ),
    (
        11,
        lambda client: client.describe_topic("nope"),
        (13, "DescribeTopic failed: Topic 'nope' not found"),
    ),
    (
        12,
        lambda client: client.produce("demo", 0, [b"hello", b"from", b"rustlog"]),
        Produced(0, 3),
    ),
    (13, lambda client: client.produce("demo", 0, [b"a" * 10, b""]), Produced(3, 2)),
    (14, lambda client: client.produce("demo", 0, []), Produced(0, 0)),
    (
        15,
        lambda client: client.produce("nope", 0, [b"x"]),
        (10, "Topic or partition does not exist: topic=nope, partition=0"),
    ),
    (
        17,
        lambda client: client.fetch("demo", 0, 0),
        Fetched(
            [
                FetchedRecord(0, b"hello"),
                FetchedRecord(1, b"from"),
                FetchedRecord(2, b"rustlog"),
                FetchedRecord(3, b"a" * 10),
                FetchedRecord(4, b""),
            ],
            5,
        ),
    ),
    (18, lambda client: client.fetch("demo", 0, 1, bytes_max=33), Fetched([(1, b"from", None)], 2)),
    (20, lambda client: client.fetch("demo", 0, 0, bytes_max=0), Fetched([], 0)),
    (22, lambda client: client.fetch("demo", 0, 500), Fetched([], 500)),
    (25, lambda client: client.fetch("demo", 0, 0, group="g1"), Fetched([], 0)),
    (27, lambda client: client.committed("g1", "demo", 0), None),
    (28, lambda client: client.commit("g1", "demo", 0, 2), True),
    (29, lambda client: client.committed("g1", "demo", 0), 2),
    (
        33,
        lambda client: client.fetch("demo", 0, 0, group="g1"),
        Fetched(
            [FetchedRecord(2, b"rustlog"), FetchedRecord(3, b"a" * 10), FetchedRecord(4, b"")], 5
        ),
    ),
    (36, lambda client: client.describe_partition("demo", 0), PartitionSummary(0, 0)),
    (
        37,
        lambda client: client.describe_partition("demo", 5),
        (14, "DescribePartition failed: Partition 5 not found in topic 'demo'"),
    ),
]


@pytest.mark.parametrize(("number", "ask", "expected"), CASES, ids=[str(case[0]) for case in CASES])
def test_recorded_bytes_of_the_original(number: int, ask: Ask, expected: Any) -> None:
    asked, answer = captured()[number]
    with playing([(asked, answer)]) as script, RustLogClient(script.address) as client:
        if number in REFUSED:
            with pytest.raises(ClientError) as refusal:
                ask(client)
            assert (refusal.value.code, refusal.value.message) == expected
        else:
            assert ask(client) == expected
    assert script.heard == [asked]


def test_recorded_bytes_by_the_asynchronous_client() -> None:
    """It shares the calls; that it carries the bytes is shown by some of them."""

    async def talk(address: str) -> list[Any]:
        async with AsyncRustLogClient(address) as client:
            await client.ping()
            produced = await client.produce("demo", 0, [b"hello", b"from", b"rustlog"])
            found = await client.fetch("demo", 0, 0)
            return [produced, [record.value for record in found.records], found.next_offset]

    parts = [captured()[number] for number in (1, 12, 17)]
    with playing([(asked, answer) for asked, answer in parts]) as script:
        said = asyncio.run(talk(script.address))
    assert said == [Produced(0, 3), [b"hello", b"from", b"rustlog", b"a" * 10, b""], 5]
    assert script.heard == [asked for asked, _ in parts]


def test_requests_in_json() -> None:
    asked = framed(
        '{"type":"Produce","topic":"demo","partition":0,"records":["aGVsbG8=","ZnJvbQ=="]}'
    )
    answer = framed('{"type":"ProduceResponse","base_offset":7,"record_count":2,"later":1}')
    refused = framed(
        '{"type":"Error","code":404,"message":"Topic \'demo\' not found",'
        '"details":{"available_topics":[]}}'
    )
    fetch = framed(
        '{"type":"Fetch","group_id":"","topic":"demo","partition":0,"offset":1,"max_bytes":1048576}'
    )
    found = framed(
        '{"type":"FetchResponse","records":[{"offset":1,"timestamp":5000,'
        '"payload":"ZnJvbQ=="}],"next_offset":2}'
    )
    script = [(asked, answer), (asked, refused), (fetch, found)]
    with playing(script) as server, RustLogClient(server.address, dialect="json") as client:
        assert client.produce("demo", 0, [b"hello", b"from"]) == Produced(7, 2)
        with pytest.raises(ClientError) as refusal:
            client.produce("demo", 0, [b"hello", b"from"])
        assert refusal.value.details == {"available_topics": []}
        assert client.fetch("demo", 0, 1) == Fetched([FetchedRecord(1, b"from", 5000)], 2)


def test_a_lost_connection_is_made_again() -> None:
    ping = captured()[1][0]
    with (
        playing([(ping, None)], [(ping, PONG[:2])], [(ping, PONG)]) as script,
        RustLogClient(script.address, patience=HASTE) as client,
    ):
        client.ping()
    assert script.accepted == 3


def test_server_errors_are_tried_again_on_the_same_connection() -> None:
    ping = captured()[1][0]
    trouble = bytes.fromhex("0000000bfe01f40006") + b"broken"
    with (
        playing([(ping, trouble), (ping, trouble), (ping, PONG)]) as script,
        RustLogClient(script.address, patience=HASTE) as client,
    ):
        client.ping()
    assert script.accepted == 1


def test_patience_ends() -> None:
    ping = captured()[1][0]
    trouble = bytes.fromhex("0000000bfe01f40006") + b"broken"
    with (
        playing([(ping, trouble)] * 1) as script,
        RustLogClient(script.address, patience=NEVER) as client,
        pytest.raises(ServerError, match="broken"),
    ):
        client.ping()
    address = f"127.0.0.1:{reserve_port()}"
    with pytest.raises(ConnectionLost):
        RustLogClient(address, patience=HASTE).ping()
    with pytest.raises(ConnectionLost):
        asyncio.run(AsyncRustLogClient(address, patience=HASTE).ping())


@pytest.mark.parametrize(
    "answer",
    [
        bytes(4),
        bytes.fromhex("00a00001"),
        bytes.fromhex("0000000106"),
        bytes.fromhex("00000002fe00"),
        framed("{}"),
        framed('{"type":"Pong"'),
    ],
)
@pytest.mark.parametrize("dialect", ["binary", "json"])
def test_nonsense_is_a_lost_connection(dialect: str, answer: bytes) -> None:
    ping = captured()[1][0] if dialect == "binary" else framed('{"type":"Ping"}')
    with (
        playing([(ping, answer)]) as script,
        RustLogClient(script.address, dialect=dialect, patience=NEVER) as client,
        pytest.raises(ConnectionLost),
    ):
        client.ping()


def test_delays_double_up_to_their_most() -> None:
    delays = list(Patience(retries_max=6, first_delay_ms=100, delay_ms_max=1000).delays_ms())
    for delay, most in zip(delays, (100, 200, 400, 800, 1000, 1000), strict=True):
        assert most / 2 <= delay <= most


def test_the_breaker_opens_lets_one_through_and_closes() -> None:
    breaker = CircuitBreaker(failures_max=2, open_ms=1000)
    breaker.check(0.0)
    breaker.failed(0.0)
    breaker.check(0.0)
    breaker.failed(0.0)
    assert breaker.is_open
    with pytest.raises(CircuitOpen, match="2 attempts failed"):
        breaker.check(0.9)
    breaker.check(1.1)
    breaker.failed(1.1)
    with pytest.raises(CircuitOpen):
        breaker.check(1.2)
    breaker.check(2.2)
    breaker.succeeded()
    assert not breaker.is_open
    breaker.check(2.2)


def test_an_open_breaker_does_not_even_connect() -> None:
    breaker = CircuitBreaker(failures_max=2, open_ms=60_000)
    client = RustLogClient(f"127.0.0.1:{reserve_port()}", patience=HASTE, breaker=breaker)
    with pytest.raises(CircuitOpen):
        client.ping()


def test_addresses_and_dialects_are_checked() -> None:
    for wrong in ("localhost", "localhost:", ":9192", "localhost:x"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            RustLogClient(wrong)
    with pytest.raises(ValueError, match="json, binary"):
        RustLogClient(dialect="xml")
    with pytest.raises(ValueError, match="fewer records"):
        RustLogClient().produce("demo", 0, [bytes(11 << 20)])


def test_a_broker_that_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = "{}:{}".format(*mute.getsockname())
        lost = pytest.raises(ConnectionLost, match=f"{address}: timed out")
        patience = Patience(retries_max=0)
        with RustLogClient(address, timeout_s=0.05, patience=patience) as client, lost:
            client.ping()

        async def ask() -> None:
            async with AsyncRustLogClient(address, timeout_s=0.05, patience=patience) as client:
                await client.ping()

        with pytest.raises(ConnectionLost, match=f"{address}: timed out"):
            asyncio.run(ask())
