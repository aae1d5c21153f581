"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell has what it starts in the background ignore SIGINT, and our children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of Pythons; each would compile every module anew if none might keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_HERE = Path(__file__).parent
_LONGEST = ("tables/test_table_kills.py", "tables/test_five_doors.py")
_COMPUTING = ("fuzz/kernels/", "tables/", "cli/test_demo.py", "crash/", "console/", "history/")
_WAITING = ("java/", "conformance/", "cluster/", "security/", "server/", "cli/")
"""For timers of clients and brokers, most of their time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first, and what waits runs beside what computes; the quick fill up."""
    places = _places(dict.fromkeys(item.path for item in items))
    items.sort(key=lambda item: places[item.path])


def _places(paths: Iterable[Path]) -> dict[Path, tuple[int, float]]:
    names = {
        path: path.relative_to(_HERE).as_posix() if path.is_relative_to(_HERE) else ""
        for path in paths
    }
    found: dict[Path, tuple[int, float]] = {}
    for stage, groups in enumerate([[_LONGEST], [_COMPUTING, _WAITING]]):
        for group in groups:
            chosen = [
                path
                for start in group
                for path, name in names.items()
                if name.startswith(start) and path not in found
            ]
            found |= {path: (stage, at / len(chosen)) for at, path in enumerate(chosen)}
    return {path: found.get(path, (2, 0.0)) for path in names}
