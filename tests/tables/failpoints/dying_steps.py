"""In the place of `pentalog.tables.steps`: kills this process at a step that the tests name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

STEP = "FAILPOINT_STEP"
"""`NAME[:LAYER][:TIMES]`: die when this step is reached for the so-manieth time."""
FILE = "FAILPOINT_FILE"
"""A file of steps: the process that reaches one strikes it out and dies."""

_counts: dict[str, int] = {}


def reached(step: str) -> None:
    if _is_due(step) or _is_listed(step):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_due(step: str) -> bool:
    wanted = os.environ.get(STEP, "")
    name, _, times = wanted.rpartition(":")
    if not times.isdecimal():
        name, times = wanted, "1"
    if not wanted or not (step == name or step.startswith(f"{name}:")):
        return False
    _counts[step] = _counts.get(step, 0) + 1
    return _counts[step] == int(times)


def _is_listed(step: str) -> bool:
    file = Path(os.environ.get(FILE, "/nonexistent"))
    if not file.is_file():
        return False
    steps = file.read_text(encoding="utf-8").split()
    if step not in steps:
        return False
    steps.remove(step)
    file.write_text(" ".join(steps), encoding="utf-8")
    return True
