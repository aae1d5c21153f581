"""Patterns are matched in steps, once for all who use them, and again when topics change."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from uuid import UUID

from consumer_world import World

from pentalog.broker import topic_patterns
from pentalog.broker.topic_patterns import TopicPatterns


def finish(finding: Generator[int, None, frozenset[UUID]]) -> tuple[frozenset[UUID], int]:
    """What was found, and the number of steps."""
    steps = 0
    while True:
        try:
            next(finding)
            steps += 1
        except StopIteration as done:
            found: frozenset[UUID] = done.value
            return found, steps


def names(world: World, found: frozenset[UUID]) -> set[str]:
    return {world.topics.by_id(topic_id).name for topic_id in found}


def test_a_costly_pattern_takes_steps_and_is_found_at_once_afterwards(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(4):
        world.topic(f"t{number}-" + "a" * 200, 1)
    patterns = TopicPatterns(world.topics)
    costly = "t[0-2].*[ab]{180}"
    found, _ = finish(patterns.find(costly))
    assert {name[:2] for name in names(world, found)} == {"t0", "t1", "t2"}
    assert finish(patterns.find("(.{0,60}|x)" * 3))[1] > 1
    assert finish(patterns.find(costly)) == (found, 0)
    world.topic("t1-other", 1)
    world.topic("t2-" + "b" * 200, 1)
    assert len(finish(patterns.find(costly))[0]) == 4
    world.crash()


def test_what_is_kept_is_limited(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic("a", 1)
    world.topic("b", 1)
    patterns = TopicPatterns(world.topics)
    first, _ = finish(patterns.find(".*"))
    same, _ = finish(patterns.find("[ab]"))
    assert same is first
    for number in range(topic_patterns.FOUND_MAX // 100_000 + 3):
        finish(patterns.find(f"a{{{number}}}"))
    assert finish(patterns.find(".*"))[0] is first
    world.crash()
