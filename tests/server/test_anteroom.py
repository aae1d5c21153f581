"""The http listener answers before the doors open, and tells how far recovery is."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Self

import pytest
from tests.server.broker_process import BrokerProcess
from tests.server.broker_process import pentalog as command

import pentalog
from pentalog.app import App
from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.config import Config, Listen
from pentalog.server.lifecycle import Loop
from pentalog.session import Address

PARTITIONS = 8
PATIENCE_S = 60.0


class SlowApp(App):
    """Takes the next step of its recovery only when a visitor has heard of the last."""

    def __init__(self, config: Config, loop: Loop, told: Callable[[str, Address], None]) -> None:
        super().__init__(config, loop)
        self.told = told
        self.answers = 0
        self.hurries = False

    async def start(self, listening: Callable[[str, Address], None] | None = None) -> None:
        assert listening is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pentalog.app._TURN_S", -1.0)
            patch.setattr("pentalog.app.turns", self._until_answered)
            await super().start(self.told)

    def _answer_early(self, data: memoryview) -> bytes | None:
        answer = super()._answer_early(data)
        self.answers += bytes(data).startswith(b"GET /ready ")
        return answer

    async def _until_answered(self, _: int) -> None:
        before = self.answers
        while self.answers == before and not self.hurries:  # noqa: ASYNC110  # set by a thread
            await asyncio.sleep(0.001)


class SlowBroker(pentalog.Broker):
    """Starts on another thread while it is looked at."""

    def __init__(self, data: Path) -> None:
        listen = (Listen("kafka", "127.0.0.1", 0), Listen("http", "127.0.0.1", 0))
        super().__init__(data, listen=listen)
        self.ports: dict[str, int] = {}
        self.app: SlowApp | None = None
        self._early = threading.Event()
        self._starting = threading.Thread(target=self.start)

    def __enter__(self) -> Self:
        self._starting.start()
        assert self._early.wait(PATIENCE_S)
        return self

    def stop(self) -> None:
        assert self.app is not None
        self.app.hurries = True
        self._starting.join(PATIENCE_S)
        super().stop()

    def _new_app(self, loop: Loop) -> App:
        self.app = SlowApp(self.config, loop, self._told)
        return self.app

    def _told(self, name: str, address: Address) -> None:
        self.ports[name] = address.port
        self._early.set()


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with (
        pentalog.Broker(tmp_path / "data") as broker,
        Cluster(broker.address("kafka"), ClientOptions()) as cluster,
    ):
        cluster.create_topic("orders", PARTITIONS)
    return tmp_path / "data"


def test_ready_tells_how_far_it_is_and_doors_open_last(data: Path) -> None:
    seen: list[tuple[int, str]] = []
    healths: set[str] = set()
    with SlowBroker(data) as broker:
        assert list(broker.ports) == ["http"]
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and not (seen and seen[-1][0] == 200):
            try:
                seen.append(ask(broker.ports["http"], "/ready"))
                healths.add(ask(broker.ports["http"], "/health")[1])
            except OSError:
                continue  # it changes hands just now
            if seen[-1][0] == 200:
                socket.create_connection(("127.0.0.1", broker.ports["kafka"])).close()
    assert seen[-1] == (200, "ready\n")
    told = [re.search(r"recovering, (\d+) of 8 partitions opened", text) for _, text in seen]
    steps = [int(one[1]) for one in told if one]
    assert steps == sorted(steps)
    assert {*steps} == {*range(1, PARTITIONS + 1)}, seen
    assert {status for status, _ in seen} == {200, 503}
    assert any(text.startswith("recovering") for text in healths), healths


def test_strange_visitors_get_answers(data: Path) -> None:
    expected = {
        b"nonsense\r\n\r\n": {b"400"},
        b"x" * 20_000: {b"431"},
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n": {b"503"},
    }
    with SlowBroker(data) as broker, ExitStack() as stack:
        where = ("127.0.0.1", broker.ports["http"])
        visitors = [
            stack.enter_context(socket.create_connection(where, PATIENCE_S)) for _ in expected
        ]
        for visitor, sent in zip(visitors, expected, strict=True):
            visitor.sendall(sent)
        for visitor, statuses in zip(visitors, expected.values(), strict=True):
            assert visitor.recv(4096).split(b" ")[1] in statuses


def test_visitors_who_say_nothing_keep_nobody_out(data: Path) -> None:
    with SlowBroker(data) as broker, ExitStack() as stack:
        where = ("127.0.0.1", broker.ports["http"])
        for _ in range(100):
            stack.enter_context(socket.create_connection(where, PATIENCE_S))
        assert ask(broker.ports["http"], "/health")[0] == 200


def test_a_directory_in_use_is_said_before_a_port_that_is_taken(tmp_path: Path, data: Path) -> None:
    """Whoever starts a second broker by mistake is told of the first one, not of a number."""
    with BrokerProcess(tmp_path / "used", "--listen", "http=127.0.0.1:0") as broker:
        port = next(one for one in broker.lines if one.startswith("http")).rpartition(":")[2]
        listen = ("--listen", f"http=127.0.0.1:{port}")
        second = command("start", "--data", str(tmp_path / "used"), *listen)
        assert second.returncode == 2
        assert "is in use by another broker" in second.stderr
        taken = command("start", "--data", str(data), *listen)
        assert taken.returncode == 2
        assert "the port is taken" in taken.stderr
        assert taken.stderr.count("\n") == 1
        # What was left cleanly is so still: the next start need not look at every file.
        assert (data / "pentalog.clean").exists()
