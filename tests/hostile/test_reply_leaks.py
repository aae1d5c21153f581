"""Clients of all protocols that read, do not read, and go away at any moment: no memory is lost."""

from __future__ import annotations

import contextlib
import gc
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hostile import blipmq_wire, cursus_wire, fluvio_wire, rustlog_wire
from tests.hostile.blipmq_wire import BlipmqClient
from tests.hostile.fluvio_wire import SPU_VERSION, STREAM_FETCH, FluvioClient
from tests.hostile.rustlog_wire import RustLogClient

import pentalog
from pentalog.server.reply_memory import ReplyMemory

TOPIC = "large"
REPLY_BYTES = 24 << 20
RECORD = b"x" * (1 << 20)
CLIENTS = 30
ACTIONS = 1_000
RESET = struct.pack("ii", 1, 0)

CURSUS_PAGE = f"CONSUME topic={TOPIC} partition=0 offset=0 member=m"
CURSUS_STREAM = f"STREAM topic={TOPIC} partition=0 offset=0 group=g"
RUSTLOG_PAGE = rustlog_wire.packed(
    0x02, "", TOPIC, tail=rustlog_wire.numbers(0, 0, 10 << 20, wide=1)
)

Connect = Callable[[str], socket.socket]


def cursus(connect: Connect, seed: random.Random) -> socket.socket:
    client = connect("cursus")
    kind = seed.choice((CURSUS_PAGE, CURSUS_PAGE + " wait_ms=5000", CURSUS_STREAM))
    client.sendall(cursus_wire.frame(kind.encode()) * seed.randrange(1, 5))
    return client


def rustlog(connect: Connect, seed: random.Random) -> socket.socket:
    client = connect("rustlog")
    client.sendall(RUSTLOG_PAGE * seed.randrange(1, 4))
    return client


def fluvio(connect: Connect, seed: random.Random) -> socket.socket:
    client = FluvioClient(connect("fluvio-spu"), SPU_VERSION)
    for _ in range(seed.randrange(1, 20)):
        client.send(STREAM_FETCH, fluvio_wire.stream_fetch(TOPIC, bytes_max=4 << 20))
    return client.socket


def blipmq(connect: Connect, seed: random.Random) -> socket.socket:
    client = BlipmqClient(connect("blipmq"))
    number = client.subscribe("pushed")
    for _ in range(seed.randrange(1, 4)):
        client.socket.sendall(blipmq_wire.publish("pushed", RECORD[: 1 << 19]))
    client.socket.sendall(blipmq_wire.poll(number) * 8)
    return client.socket


ASK = (cursus, rustlog, fluvio, blipmq)


def memories() -> list[ReplyMemory]:
    """Return those of all brokers in this process, some of which may have stopped."""
    return [found for found in gc.get_objects() if type(found) is ReplyMemory]


def fill(connect: Connect) -> None:
    with connect("cursus") as client:
        cursus_wire.ask(client, f"CREATE topic={TOPIC} partitions=1")
        for _ in range(12):
            cursus_wire.ask(
                client, f"PUBLISH topic={TOPIC} producerId=p acks=1 message=".encode() + RECORD
            )


def act(connect: Connect, seed: random.Random) -> None:
    """Open connections, read parts of what they asked for, and close them, all at random."""
    open_ones: list[socket.socket] = []
    for _ in range(ACTIONS):
        choice = seed.random()
        if len(open_ones) < CLIENTS and choice < 0.4:
            with contextlib.suppress(OSError, EOFError):
                open_ones.append(seed.choice(ASK)(connect, seed))
            continue
        if not open_ones:
            continue
        client = seed.choice(open_ones)
        try:
            if choice < 0.8:
                client.setblocking(False)
                client.recv(seed.choice((100, 1 << 20, 8 << 20)))
            elif choice < 0.85:
                client.shutdown(socket.SHUT_WR)
            else:
                open_ones.remove(client)
                if seed.random() < 0.5:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
        except OSError:
            pass  # it had nothing to read, or the broker has closed it
    for client in open_ones:
        client.close()


@pytest.mark.parametrize("number", range(3))
def test_memory_of_clients_that_have_gone_is_free(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = memories()
    with pentalog.Broker(tmp_path / "data", reply_bytes_max=REPLY_BYTES) as broker:
        (memory,) = (found for found in memories() if found not in before)

        def connect(name: str) -> socket.socket:
            host, _, port = broker.address(name).rpartition(":")
            return socket.create_connection((host, int(port)), timeout=60)

        fill(connect)
        used: list[int] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.001):
                used.append(memory.used_bytes)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            act(connect, random.Random(number))
            # Those who waited for others are served or gone: a new client gets its page at once.
            with connect("cursus") as client:
                assert len(cursus_wire.ask(client, CURSUS_PAGE)) > 3 << 20
            with RustLogClient(connect("rustlog")) as fetching:
                assert len(fetching.ask(RUSTLOG_PAGE)) > 8 << 20
            deadline_s = time.monotonic() + 60
            while memory.used_bytes and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert memory.used_bytes == 0
        finally:
            over.set()
            watching.join()
        # How much they used at once is seen only by chance, but not that some had to wait.  Those
        # who have gone before they were accepted have no address.
        assert f"of reply_bytes_max={REPLY_BYTES} no more is left for " in caplog.text
        assert max(used) <= REPLY_BYTES
