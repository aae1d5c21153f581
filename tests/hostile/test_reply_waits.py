"""Answers that wait for memory are served as soon as there is some, whatever came before."""

from __future__ import annotations

from pathlib import Path

from tests.hostile import cursus_wire
from tests.hostile.hostile_world import HostileWorld
from tests.hostile.rustlog_wire import RustLogClient, numbers, packed, produce

RECORD = b"x" * (1 << 20)


def test_a_page_over_half_of_the_memory_is_given(tmp_path: Path) -> None:
    """Memory that is reserved for an answer is not what the making of that answer waits for."""
    limits = ("--reply-bytes-max", str(12 << 20))
    with (
        HostileWorld(tmp_path, "rustlog", arguments=limits) as world,
        RustLogClient(world.connect("rustlog")) as client,
    ):
        client.ask(packed(0x05, "demo", tail=numbers(1)))
        for _ in range(11):
            client.ask(produce("demo", 0, [RECORD]))
        fetch = packed(0x02, "", "demo", tail=numbers(0, 0, 10 << 20, wide=1))
        assert len(client.ask(fetch)) > 8 << 20


def test_a_page_is_given_although_pages_stand_behind_it(tmp_path: Path) -> None:
    """Answers leave in order, so pages behind a long poll must not use up its memory."""
    with HostileWorld(tmp_path, "cursus") as world, world.connect("cursus") as client:
        for topic in ("full", "awaited"):
            cursus_wire.ask(client, f"CREATE topic={topic} partitions=1")
        for _ in range(5):
            cursus_wire.ask(client, b"PUBLISH topic=full producerId=p acks=1 message=" + RECORD)
        wait = "CONSUME topic=awaited partition=0 offset=0 member=m wait_ms=60000"
        page = "CONSUME topic=full partition=0 offset=0 member=m"
        for command in (wait, page, page, page):
            client.sendall(cursus_wire.frame(command.encode()))
        with world.connect("cursus") as other:
            # The pages are read from the log meanwhile, if at all.
            for _ in range(100):
                cursus_wire.ask(other, "LIST")
            cursus_wire.ask(other, "PUBLISH topic=awaited producerId=q acks=1 message=here")
        assert b"here" in cursus_wire.read_frame(client)
        for _ in range(3):
            assert len(cursus_wire.read_frame(client)) > 3 << 20
