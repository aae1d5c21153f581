"""Clients that ask for much and do not read: the memory of all their answers has one bound."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from tests.hostile import cursus_wire
from tests.hostile.hostile_world import HostileWorld

REPLY_MIB = 64
LIMITS = ("--reply-bytes-max", str(REPLY_MIB << 20), "--connections-max-idle-ms", "8000")
CLIENTS = 40
SILENT = 10
PAGE_BYTES = 4 << 20
CONSUME = "CONSUME topic=large partition=0 offset=0 member=m"


def fill(world: HostileWorld) -> None:
    """Write more than a page to a topic."""
    with world.connect("cursus") as client:
        assert b"ERROR" not in cursus_wire.ask(client, "CREATE topic=large partitions=1")
        for _ in range(6):
            answer = cursus_wire.ask(
                client, b"PUBLISH topic=large producerId=p acks=1 message=" + b"x" * (1 << 20)
            )
            assert b'"status":"OK"' in answer, answer[:200]


def consume(world: HostileWorld, stack: contextlib.ExitStack, source: str = "") -> socket.socket:
    """Ask for a page, and do not read it."""
    client = stack.enter_context(world.connect("cursus", source))
    client.sendall(cursus_wire.frame(CONSUME.encode()))
    return client


def test_pages_that_are_not_read_do_not_fill_the_memory(tmp_path: Path) -> None:
    with (
        HostileWorld(tmp_path, "cursus", arguments=LIMITS) as world,
        contextlib.ExitStack() as stack,
    ):
        fill(world)
        clients: list[socket.socket] = []

        def attack() -> None:
            clients.extend(consume(world, stack) for _ in range(CLIENTS))
            # A client of another address gets its page, whatever the others hold.
            with world.connect("cursus", source="127.0.0.2") as reader:
                assert len(cursus_wire.ask(reader, CONSUME)) > PAGE_BYTES

        cost = world.measure(attack)
        assert cost.memory_bytes < REPLY_MIB << 20, cost
        # The others wait for the memory of clients that do not read, and those are closed.
        served, closed = 0, 0
        for client in clients[SILENT:]:
            client.settimeout(60)
            try:
                served += len(cursus_wire.read_frame(client)) > PAGE_BYTES
            except (ConnectionError, EOFError):
                closed += 1
        assert served + closed == CLIENTS - SILENT
        assert served, f"{closed} clients were closed"
        with world.connect("cursus") as reader:
            assert len(cursus_wire.ask(reader, CONSUME)) > PAGE_BYTES
