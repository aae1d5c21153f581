"""A cluster that says nothing for a minute: refused in each door's own words, and then goes on."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cursus_subject import Wire as CursusWire
from fleet_member import FleetMember
from fluvio_wire import Wire as FluvioWire
from fluvio_world import produce, their_batch
from kafka_node import Node
from tests.support.blipmq_world import AUTH, HELLO
from tests.support.cursus_world import Message, batch

from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.patience import Patience
from pentalog.clients.rustlog import RustLogClient, RustLogError

pytestmark = [pytest.mark.trio, pytest.mark.timeout(900)]

DOORS = ("rustlog", "blipmq", "cursus", "fluvio-spu", "fluvio-sc", "http")
AWAY_S = 60
ANSWERED_S = 70
"""30 in which a gateway tries, 15 for a last answer, and what a busy machine needs."""
GROWTH_BYTES_MAX = 256 << 20
FLOOD_BYTES = 512 << 20


@pytest.fixture
def gateway(node: Node, tmp_path: Path) -> Iterator[FleetMember]:
    member = FleetMember(tmp_path / "one", node.address, DOORS)
    yield member
    assert member.stop() == 0


ONCE = Patience(retries_max=0)


def by_rustlog(gateway: FleetMember, topic: str) -> str:
    with RustLogClient(gateway.addresses["rustlog"], timeout_s=120, patience=ONCE) as client:
        try:
            client.produce(topic, 0, [b"x"])
        except RustLogError as refusal:
            return str(refusal)
    return ""


def by_blipmq(gateway: FleetMember, topic: str) -> str:
    with BlipmqClient(gateway.addresses["blipmq"], timeout_s=120, patience=ONCE) as client:
        try:
            client.publish(topic, b"x")
        except BlipmqError as refusal:
            return str(refusal)
    return ""


def by_cursus(gateway: FleetMember, topic: str) -> str:
    with CursusWire(gateway.addresses["cursus"]) as wire:
        wire.socket.settimeout(120)
        answer = wire.publish(batch([Message(b"x", seq=1, producer=b"p")], topic=topic, acks="-1"))
    return "" if answer["status"] == "OK" else str(answer)


def by_fluvio(gateway: FleetMember, topic: str) -> str:
    wire = FluvioWire(int(gateway.addresses["fluvio-spu"].rpartition(":")[2]), 24, 120)
    try:
        answer = wire.ask(0, produce(topic, their_batch(b"x"), isolation=-1, timeout_ms=15_000))
        assert (answer.u32(), answer.text(), answer.u32(), answer.u32()) == (1, topic, 1, 0)
        error = answer.i16()
    finally:
        wire.close()
    return f"error {error}" if error else ""


def by_http(gateway: FleetMember, topic: str) -> str:
    try:
        url = f"http://{gateway.addresses['http']}/health"
        with urllib.request.urlopen(url, timeout=120):
            return ""
    except urllib.error.HTTPError as refusal:
        return str(refusal.code)


WAYS: dict[str, Callable[[FleetMember, str], str]] = {
    "rustlog": by_rustlog,
    "blipmq": by_blipmq,
    "cursus": by_cursus,
    "fluvio": by_fluvio,
    "http": by_http,
}


def timed(way: Callable[[FleetMember, str], str], gateway: FleetMember, topic: str) -> float:
    """How long a refusal takes."""
    began_s = time.monotonic()
    refusal = way(gateway, topic)
    assert refusal, "nothing was acknowledged by anybody"
    return time.monotonic() - began_s


def flood(address: str, topic: str, stop: threading.Event) -> int:
    """Publish for as long as somebody reads it; the bytes that were taken."""
    host, _, port = address.rpartition(":")
    body = len(topic).to_bytes(2, "big") + topic.encode() + b"\0" + bytes(10_000)
    frames = (9 + len(body)).to_bytes(4, "big") + b"\3" + bytes(8) + body
    sent = 0
    with socket.create_connection((host, int(port)), timeout=0.5) as wire:
        wire.sendall(HELLO + AUTH)
        while sent < FLOOD_BYTES and not stop.is_set():
            try:
                sent += wire.send(frames * 100)
            except TimeoutError:
                continue
            except OSError:
                break
    return sent


def rss_bytes(gateway: FleetMember) -> int:
    pages = Path(f"/proc/{gateway.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """So that nobody waits for floods when a check has failed."""
    try:
        yield
    finally:
        stop.set()


def test_a_minute_of_silence(node: Node, gateway: FleetMember, topic: str) -> None:
    with RustLogClient(gateway.addresses["rustlog"]) as client:
        client.create_topic(topic)
    for name, way in WAYS.items():
        assert way(gateway, topic) == "", name
    with BlipmqClient(gateway.addresses["blipmq"]) as client:
        number = client.subscribe(topic)
    before = rss_bytes(gateway)
    stop = threading.Event()
    os.kill(node.broker.process.pid, signal.SIGSTOP)
    try:
        until_s = time.monotonic() + AWAY_S
        with ThreadPoolExecutor(4 + len(WAYS)) as pool, stopping(stop):
            address = gateway.addresses["blipmq"]
            floods = [pool.submit(flood, address, topic, stop) for _ in range(4)]
            taken: dict[str, Future[float]] = {
                name: pool.submit(timed, way, gateway, topic) for name, way in WAYS.items()
            }
            for name, future in taken.items():
                assert future.result(ANSWERED_S + 30) < ANSWERED_S, name
            with BlipmqClient(address, timeout_s=120, patience=ONCE) as client:
                began_s = time.monotonic()
                with pytest.raises(BlipmqError, match="try again"):
                    client.poll(number, 1)
                assert time.monotonic() - began_s < ANSWERED_S
            while time.monotonic() < until_s:
                assert rss_bytes(gateway) - before < GROWTH_BYTES_MAX
                time.sleep(0.5)
            stop.set()
            assert sum(future.result() for future in floods) < 4 * FLOOD_BYTES, "it stopped reading"
    finally:
        os.kill(node.broker.process.pid, signal.SIGCONT)
    deadline = time.monotonic() + 120
    for name, way in WAYS.items():
        while (refusal := way(gateway, topic)) != "":
            assert time.monotonic() < deadline, (name, refusal)
    with BlipmqClient(gateway.addresses["blipmq"], timeout_s=60) as client:
        while not client.poll(number, 1):
            assert time.monotonic() < deadline
