"""Peers that hang about or never read their answers cost little and slow nobody down."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import subjects
from kafka_clients import CLIENTS, Event
from kafka_clients.confluent import write
from raw import connect, fetch, metadata

import brokers

pytestmark = pytest.mark.clients

IDLE = 1_000
FETCHES = 2_000
METADATA_REQUESTS = 50_000
# A Java heap grows for reasons of its own; ours has none.
GROWTH_BYTES_MAX = (768 if subjects.STANDS_IN else 256) << 20
# Runs differ by themselves; a stall would be far more.
SLOWER_MAX = 5.0


@pytest.fixture(autouse=True)
def _descriptors() -> Iterator[None]:
    """Room for the connections on both ends; the broker inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * IDLE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} file descriptors, the limit is {hard}; raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def push(peer: socket.socket, data: bytes) -> int:
    """Send until the broker has stopped taking it; gives the bytes it took."""
    peer.setblocking(False)
    sent = 0
    quiet_until = time.monotonic() + 1
    while sent < len(data) and time.monotonic() < quiet_until:
        try:
            sent += peer.send(data[sent : sent + 65536])
            quiet_until = time.monotonic() + 1
        except BlockingIOError:
            time.sleep(0.01)
    return sent


def seconds_for_writing(address: str, topic: str) -> float:
    records = [Event(None, b"x" * 200)] * 5_000
    started = time.monotonic()
    write(address, topic, records, {"batch.num.messages": 100}, 0)
    return time.monotonic() - started


def times_slower(crowded: str, alone: str, topic: str) -> float:
    """By turns, and the best of each: whatever else the machine does slows both, never one."""
    pairs = [
        (seconds_for_writing(crowded, topic), seconds_for_writing(alone, topic)) for _ in range(15)
    ]
    return min(one for one, _ in pairs) / min(one for _, one in pairs)


@pytest.mark.alone
def test_idle_peers_and_peers_that_never_read(tmp_path: Path, topic: str) -> None:
    broker, other = (subjects.start(tmp_path / name) for name in ("crowded", "alone"))
    with brokers.stopping(broker), brokers.stopping(other), contextlib.ExitStack() as stack:
        address = broker.address
        for where, name in ((address, topic), (address, "busy"), (other.address, "busy")):
            CLIENTS[0].create_topic(where, name, partitions=1, settings={})
        write(address, topic, [Event(None, bytes(10_000))] * 2_000, {}, 0)
        times_slower(address, other.address, "busy")
        before = broker.rss_bytes

        for _ in range(IDLE):
            peer = stack.enter_context(connect(address))
            peer.sendall(metadata(0))
        silent = [stack.enter_context(connect(address)) for _ in range(2)]
        push(silent[0], b"".join(fetch(topic, i) for i in range(FETCHES)))
        push(silent[1], b"".join(metadata(i) for i in range(METADATA_REQUESTS)))

        slower = times_slower(address, other.address, "busy")
        assert broker.rss_bytes - before < GROWTH_BYTES_MAX
        assert broker.rss_peak_bytes - before < GROWTH_BYTES_MAX
        assert slower < SLOWER_MAX, f"{slower:.1f} times slower in company"
        # The peers were idle, not forgotten: each still gets an answer.
        peer.settimeout(30)
        assert len(peer.recv(4)) == 4


def test_a_frame_longer_than_allowed_ends_only_its_connection(broker: str) -> None:
    with connect(broker) as greedy, connect(broker) as modest:
        greedy.sendall(struct.pack(">i", 0x7FFF_FFFF))
        greedy.settimeout(30)
        assert greedy.recv(1) == b""
        modest.sendall(metadata(1))
        modest.settimeout(30)
        assert len(modest.recv(4)) == 4
