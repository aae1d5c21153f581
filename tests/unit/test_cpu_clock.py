"""CPU time of processes that have ended is counted, or no figure is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cpu_clock
from cpu_clock import Ticks, Unaccounted, spent_ticks

BUSY = "import time\nwhile time.process_time() < 0.2: pass"


def test_a_child_that_was_waited_for_counts() -> None:
    clock = cpu_clock.Processes([])
    clock.begin()
    subprocess.run([sys.executable, "-c", BUSY], check=True, env=os.environ)
    assert clock.spent_s() >= 0.2


def test_a_child_that_is_left_out_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"{BUSY}\ninput()"], stdin=subprocess.PIPE, env=os.environ
    ) as one:
        clock = cpu_clock.Processes([one.pid])
        clock.begin()
        every = cpu_clock.Processes([])
        every.begin()
        assert one.pid in every._begun
        assert one.pid not in clock._begun
        one.communicate(b"\n")


def test_time_that_went_away_is_refused() -> None:
    before = {1: Ticks(10, 0), 2: Ticks(50, 5)}
    assert spent_ticks(before, {1: Ticks(12, 60)}) == 7
    with pytest.raises(Unaccounted, match=r"0\.55 s"):
        spent_ticks(before, {1: Ticks(12, 54)})


def test_a_group_of_our_own_where_it_is_allowed() -> None:
    """In a process of its own: this one must stay where it is."""
    program = (
        "import subprocess, sys, cpu_clock\n"
        "with cpu_clock.running([]) as clock:\n"
        "    clock.begin()\n"
        "    subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
        "    print(clock.name, clock.spent_s() >= 0.2)\n"
    )
    folder = Path(cpu_clock.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program, BUSY], cwd=folder, capture_output=True, text=True,
        check=True, env=os.environ,
    )  # fmt: skip
    assert done.stdout.split() in (["cgroup", "True"], ["/proc", "True"])
