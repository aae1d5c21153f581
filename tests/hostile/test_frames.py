"""Frames that cost their sender little must cost the broker little."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.hostile_world import HostileWorld, request


def test_a_frame_of_zeros_costs_nothing(tmp_path: Path) -> None:
    with HostileWorld(tmp_path) as world:

        def attack() -> None:
            with world.connect() as client:
                client.sendall(request(3, 1, 1, bytes(1 << 20)))

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=1, memory_mib=32)
