"""A short run of each door's fuzzer; `doors.py` beside this does long ones."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz.doors import fuzz

from pentalog.broker.groups import LocalGroups
from pentalog.broker.port import Broker
from pentalog.broker.state import State
from pentalog.broker.topics import LocalTopics
from pentalog.log.store import Store
from pentalog.protocols.kafka.session import KafkaSession


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("door", "frames", "answers_min", "hang_ups_min"),
    [
        ("kafka", 1_500, 300, 30),
        ("rustlog", 3_000, 800, 30),
        ("blipmq", 2_000, 250, 5),
        ("cursus", 1_500, 300, 10),
        ("fluvio", 1_500, 300, 30),
    ],
)
def test_any_bytes_are_answered_or_end_the_connection(
    door: str, frames: int, answers_min: int, hang_ups_min: int, seed: int
) -> None:
    run = fuzz(door, frames, seed)
    # A run that only hangs up, or never does, has not tested much.
    assert run.answers > answers_min
    assert run.hang_ups > hang_ups_min


def test_brokers_leave_nothing_behind() -> None:
    """What grows with the number of brokers in one process is a leak, however small.

    In a process of its own: others' brokers and their clients come and go as they like.
    """
    done = subprocess.run(
        [sys.executable, "-c", "from tests.fuzz.test_doors_fuzz import count; count()"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100, check=False,
        env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after <= before


def count() -> None:
    """Print how much is alive after one short run, and after a longer one."""
    logging.disable(logging.WARNING)
    kinds = (Broker, KafkaSession, Store, LocalGroups, LocalTopics, State)

    def alive() -> int:
        for _ in range(3):
            gc.collect()  # what a finalizer let go of is found by the next one only
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    fuzz("kafka", 50, 3)
    before = alive()
    fuzz("kafka", 200, 4)
    print(before, alive())
