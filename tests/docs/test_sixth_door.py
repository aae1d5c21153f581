"""The door that docs/adding-a-protocol.md builds opens, answers, refuses and can be watched."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pentalog
from pentalog import app, embedded
from pentalog.clients.rustlog import RustLogClient
from pentalog.config import Listen
from pentalog.server.metering import metered

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-protocol.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANSWER = struct.Struct(">IHQ")


@pytest.fixture
def built() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "ends"}
    for text in BLOCK.findall(PAGE.read_text()):
        exec(text, names)
    return names


@pytest.fixture
def opened(
    built: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pentalog.Broker]:
    """A broker to start, with this door and the one that the test writes through."""
    (endpoint,) = built["PROTOCOL"].endpoints
    # Were it loaded now for the first time, brokers of later tests would have this door as well.
    assert embedded.ENDPOINTS is app.ENDPOINTS
    monkeypatch.setattr(app, "ENDPOINTS", {**app.ENDPOINTS, endpoint.name: metered(endpoint)})
    listen = tuple(Listen(name, "127.0.0.1", 0) for name in ("ends", "rustlog"))

    def open_with(**settings: object) -> pentalog.Broker:
        return pentalog.Broker(listen=listen, **settings)

    return open_with


def ask(address: str, *topics: str) -> list[tuple[int, int]]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        for topic in topics:
            peer.sendall(struct.pack(">I", len(topic)) + topic.encode())
        found = []
        for _ in topics:
            size, code, offset = ANSWER.unpack(peer.recv(ANSWER.size, socket.MSG_WAITALL))
            assert size == ANSWER.size - 4
            found.append((code, offset))
        return found


def test_it_answers(opened: Callable[..., pentalog.Broker], built: dict[str, Any]) -> None:
    with opened() as broker:
        with RustLogClient(broker.address("rustlog")) as client:
            client.create_topic("orders", partitions=1)
            client.produce("orders", 0, [b"one", b"two"])
        asked = ask(broker.address("ends"), "orders", "absent", "orders")
    assert asked == [(0, 2), (built["NO_SUCH_TOPIC"], 0), (0, 2)]


def test_it_asks_the_rules(opened: Callable[..., pentalog.Broker], built: dict[str, Any]) -> None:
    with opened(super_users="User:admin") as broker:
        assert ask(broker.address("ends"), "orders") == [(built["NOT_ALLOWED"], 0)]


def test_it_hangs_up_on_frames_that_are_too_large(opened: Callable[..., pentalog.Broker]) -> None:
    with opened() as broker:
        host, _, port = broker.address("ends").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as peer:
            peer.sendall(struct.pack(">I", 250))
            assert peer.recv(1) == b""


def test_its_frames_have_names(built: dict[str, Any]) -> None:
    inspector = built["EndsInspector"]()
    assert inspector.request(memoryview(b"orders"), 6).topic == "orders"
    assert inspector.reply(memoryview(b"\0\0"), 10).name == "Ask"
