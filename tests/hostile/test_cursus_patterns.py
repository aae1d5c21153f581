"""Patterns of Cursus commands over many topics with long names."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.cursus_wire import ask, send_all
from tests.hostile.hostile_world import HostileWorld

TOPICS = 3_000


def test_patterns_over_long_names(tmp_path: Path) -> None:
    """Each place of a name that begins like a piece of the pattern is tried."""
    names = [f"{'a' * 240}{number:06d}" for number in range(TOPICS)]
    patterns = [f"*{'a' * (110 + number)}b*" for number in range(10)]
    commands = [f"HEARTBEAT topic={text} group=p member=m generation=1" for text in patterns]
    with HostileWorld(tmp_path / "data", "cursus") as world:
        with world.connect("cursus") as client:
            creates = [f"CREATE topic={name} partitions=1".encode() for name in names]
            assert all(answer.startswith(b"OK") for answer in send_all(client, creates))
            found = ask(client, f"JOIN_GROUP topic=*{'a' * 100}*00777 group=p member=m")
            assert found.startswith(b"OK generation=1"), found
            several = ask(client, "JOIN_GROUP topic=a*0 group=p member=m")
            assert b"matches 300 topics" in several

        def attack() -> None:
            with world.connect("cursus") as client:
                answers = send_all(client, [command.encode() for command in commands])
                assert all(b"no topics match" in answer for answer in answers)

        cost = world.measure(attack)
        print(cost)
        cost.assert_wait(0.4)
