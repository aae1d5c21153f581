"""Frames of the largest size: memory for them must not be made, or copied, in one turn."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

from tests.hostile.hostile_world import HostileWorld, ask, request, string

FRAME_BYTES = 90 << 20


def test_memory_of_a_large_frame_is_not_copied_in_one_turn(tmp_path: Path) -> None:
    head = struct.pack(">ihhih", FRAME_BYTES, 0, 7, 1, -1)
    with HostileWorld(tmp_path) as world, world.connect() as client:

        def attack() -> None:
            before = world.memory_bytes()
            # Beyond 64 MiB: there the buffer used to be replaced by one for the whole frame.
            client.sendall(head + bytes(66 << 20))
            deadline_s = time.monotonic() + 60
            while world.memory_bytes() < before + (65 << 20) and time.monotonic() < deadline_s:
                time.sleep(0.01)

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=6, memory_mib=80)


def test_frames_that_stall_do_not_shut_out_other_addresses(tmp_path: Path) -> None:
    head = struct.pack(">ihhih", 8_000_000, 0, 7, 1, -1)
    limits = ("--receive-bytes-max", str(64 << 20), "--frame-bytes-max", str(8 << 20))
    with HostileWorld(tmp_path, arguments=limits) as world, contextlib.ExitStack() as stack:
        # The memory of each is four times what it sent: together these had all there is.
        for sent in (3 << 20,) * 8 + (300 << 10,) * 20 + (9 << 10,) * 8:
            attacker = stack.enter_context(world.connect())
            attacker.settimeout(0.5)
            with contextlib.suppress(OSError):
                attacker.sendall(head + bytes(sent))
        for _ in range(60):
            attacker = stack.enter_context(world.connect())
            attacker.sendall(struct.pack(">ihhih", 12_000, 0, 7, 1, -1) + bytes(9_000))
        names = struct.pack(">i", 300) + string("x" * 200) * 300
        with world.connect(source="127.0.0.2") as client:
            client.settimeout(10)
            assert ask(client, request(3, 4, 1, names + b"\0"))
