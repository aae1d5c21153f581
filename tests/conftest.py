"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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
_WITHOUT_SPARK = (
    "tables/test_announcing.py",
    "tables/test_cluster.py",
    "tables/test_table_command.py",
)
"""They start what they need themselves, or need none."""
_WITH_DRIVERS = tuple(
    f"tables/test_{name}.py"
    for name in (
        *("table_kills", "write_back_crash", "table_jars", "table_verbs", "source_stream", "sql"),
        *("pipeline_run", "gold", "write_back"),
    )
)
"""Half of the time of `tables/`, and in it all that share a Java for drivers."""
_ONE_NODE = ("java/", "cluster/")
"""Folders whose files share a broker or a Java of the whole run."""
_LONGEST = (
    *("tables/test_table_kills.py", "tables/test_five_doors.py"),
    *("simulation/test_simulation.py", "hostile/test_walk_kafka.py", "tables/"),
)
_COMPUTING = ("fuzz/kernels/", "cli/test_demo.py", "crash/", "hostile/", "console/", "history/")
_WAITING = ("java/", "cluster/", "conformance/", "security/", "server/", "cli/")
"""For timers of clients and brokers, most of their time."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from walking over thousands of tests, now and while they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first, and what waits runs beside what computes; the quick fill up."""
    places = _places(dict.fromkeys(item.path for item in items))
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Every file stays on one worker, and so do all files that share what is slow to start.

    Otherwise every worker would start one: a Spark session, an Apache Kafka, a Java for clients.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _shared(file.removeprefix(f"{_HERE.name}/")) or file

    return Scheduling(config, log)


def _shared(name: str) -> str:
    """What a file shares with others, if that is slow to start."""
    if name.startswith("tables/") and name not in _WITHOUT_SPARK:
        return f"Spark session {1 + (name in _WITH_DRIVERS)}"
    return next((folder for folder in _ONE_NODE if name.startswith(folder)), "")


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
