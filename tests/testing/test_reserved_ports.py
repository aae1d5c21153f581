"""Reserved ports: free for the server they are meant for, taken for every other process."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from pentalog.server.listener import ListenFailed
from pentalog.testing import Broker
from pentalog.testing.ports import reserve_port


def listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def assert_taken(port: int) -> None:
    """The kernel treats the port as taken, as it does when it picks one for a process."""
    with socket.socket() as stranger, pytest.raises(OSError) as refusal:
        stranger.bind(("127.0.0.1", port))
    assert refusal.value.errno == errno.EADDRINUSE


def test_a_server_returns_to_a_reserved_port() -> None:
    port = reserve_port()
    for _ in range(3):
        with listen(port) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
        assert_taken(port)


def test_nobody_answers_at_a_reserved_port() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserve_port()))


def test_a_reserved_port_is_given_out_once() -> None:
    ports = [reserve_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)


def test_a_broker_keeps_its_ports_while_it_is_down(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        addresses = {name: broker.address(name) for name in ("kafka", "rustlog", "http")}
        broker.crash()
        for address in addresses.values():
            assert_taken(int(address.rpartition(":")[2]))
        broker.restart()
        assert {name: broker.address(name) for name in addresses} == addresses


def test_a_broker_that_cannot_listen_holds_no_ports() -> None:
    broker = Broker(listen=["kafka=127.0.0.1:0", "rustlog=nowhere.invalid:0"])
    with pytest.raises(ListenFailed, match="host is unknown"):
        broker.start()
    assert not broker._reserved
    assert not broker.data.exists()
