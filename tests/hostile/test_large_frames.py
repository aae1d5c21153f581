"""Frames of the largest size: memory for them must not be made, or copied, in one turn."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from tests.hostile.hostile_world import HostileWorld

FRAME_BYTES = 90 << 20


def test_memory_of_a_large_frame_is_not_copied_in_one_turn(tmp_path: Path) -> None:
    head = struct.pack(">ihhih", FRAME_BYTES, 0, 7, 1, -1)
    with HostileWorld(tmp_path) as world, world.connect() as client:

        def attack() -> None:
            # Beyond 64 MiB: there the buffer used to be replaced by one for the whole frame.
            client.sendall(head + bytes(66 << 20))
            time.sleep(0.5)

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=6, memory_mib=80)
