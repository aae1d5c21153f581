"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests start hundreds of Pythons; each would compile every module anew if none might keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_HERE = Path(__file__).parent
_LONGEST = (
    "tables/test_table_kills.py",
    "tables/test_five_doors.py",
    "fuzz/kernels/",
    "tables/",
    "cli/test_demo.py",
    "crash/",
    "console/",
    "history/",
    "java/",
    "conformance/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker ends long after the others."""
    places = {path: _place(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: places[item.path])


def _place(path: Path) -> int:
    name = path.relative_to(_HERE).as_posix() if path.is_relative_to(_HERE) else ""
    found = (place for place, start in enumerate(_LONGEST) if name.startswith(start))
    return next(found, len(_LONGEST))
