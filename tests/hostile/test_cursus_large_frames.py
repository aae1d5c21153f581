"""Large Cursus frames: what one client's frames keep of the memory that all of them share."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator

import pytest
from tests.hostile.cursus_wire import ask, read_frame
from tests.hostile.hostile_world import HostileWorld
from tests.support.cursus_world import Message, batch, frame, numbered

from pentalog.model import compression

MIB = 1 << 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileWorld]:
    data = tmp_path_factory.mktemp("hostile-cursus-frames") / "data"
    with HostileWorld(data, "cursus") as opened:
        with opened.connect("cursus") as client:
            assert ask(client, "CREATE topic=t partitions=4").startswith(b"OK")
        yield opened


def test_a_refused_command_in_a_large_compressed_frame(world: HostileWorld) -> None:
    """The connection serves on, and a batch that comes too early is refused as before."""
    refused = compression.compress(compression.GZIP, b"PUBLISH " + b"a=b " * 50_000)
    with world.connect("cursus") as client:
        client.sendall(frame(refused) + frame(b"LIST"))
        assert read_frame(client).startswith(b"ERROR: malformed_input")
        assert read_frame(client) == b"OK count=1 topics=t"
        # Gaps of a client wait for its frames that are being opened.
        early = ask(client, numbered(5, topic="t"))
        assert "must have seqNum 1" in json.loads(early)["error"]


@pytest.mark.parametrize("padding", [b" message=", b" junk="])
def test_waiting_reads_keep_no_memory(world: HostileWorld, padding: bytes) -> None:
    size = 60 * MIB if padding == b" message=" else MIB - 1_000
    command = b"CONSUME topic=t partition=3 offset=0 member=m wait_ms=60000" + padding
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(world.connect("cursus")) for _ in range(5)]
        for reader in readers:
            for _ in range(1 if size > MIB else 60):
                reader.sendall(frame(command + b"x" * size))
        for source in ("127.0.0.9", ""):
            client = stack.enter_context(world.connect("cursus", source))
            payload = b"y" * 200_000
            answer = ask(client, b"PUBLISH topic=t partition=1 producerId=p message=" + payload)
            assert json.loads(answer)["status"] == "OK"


def test_compressed_frames_of_many_connections(world: HostileWorld) -> None:
    """Frames that wait to be opened are not copied before it is their turn."""
    body = frame(compression.compress(compression.GZIP, os.urandom(30 * MIB), level=0))

    def send() -> None:
        with world.connect("cursus") as client, contextlib.suppress(OSError, EOFError):
            client.sendall(body)
            assert b"ERROR" in read_frame(client)[:20]

    def attack() -> None:
        threads = [threading.Thread(target=send, daemon=True) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()

    cost = world.measure(attack)
    print(cost)
    assert cost.memory_bytes < 1_000 * MIB, cost


def test_a_batch_after_the_attacks(world: HostileWorld) -> None:
    with world.connect("cursus") as client:
        body = batch([Message(b"x" * 600) for _ in range(5_000)], topic="t", partition=2)
        answer = ask(client, compression.compress(compression.LZ4, body))
        assert json.loads(answer)["status"] == "OK"
