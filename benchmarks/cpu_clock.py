"""CPU time of this process and of everything it starts, also of what has ended since.

Linux keeps that sum for every control group, so the benchmark makes one of its own where it may.
Elsewhere it adds up `/proc`, where a process that nobody waited for takes its time with it: a
figure between two readings is refused if that happened.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Unaccounted(Exception):
    """CPU time went away with a process, so that nothing can be said."""


class Clock(Protocol):
    name: str

    def begin(self) -> None: ...
    def spent_s(self) -> float:
        """CPU time since `begin`; raises `Unaccounted`."""


@contextlib.contextmanager
def running(others: Collection[int]) -> Iterator[Clock]:
    """A clock for this process and what it starts from now on.

    `others` are its children that do not count, such as brokers; they are there already.
    """
    group = _own_group()
    if group is None:
        yield Processes(others)
        return
    try:
        yield Group(group)
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(process)
        group.rmdir()


class Group:
    """The sum that Linux keeps of a control group."""

    name = "cgroup"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = 0

    def begin(self) -> None:
        self._begun = self._usage_us()

    def spent_s(self) -> float:
        return (self._usage_us() - self._begun) / 1e6

    def _usage_us(self) -> int:
        fields = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"])


def _own_group() -> Path | None:
    """A new control group (version 2) with this process in it; None if that is not allowed."""
    mount = re.search(r" (\S+) \S+ - cgroup2 ", Path("/proc/self/mountinfo").read_text())
    place = re.search(r"^0::(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    if mount is None or place is None:
        return None
    folder = Path(mount[1]) / place[1].lstrip("/") / f"pentalog-benchmark-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        Group(folder).begin()
    except (OSError, KeyError):
        folder.rmdir()
        return None
    return folder


class Ticks(NamedTuple):
    own: int
    waited: int
    """Of its children that have ended, and theirs."""


class Processes:
    """Everything under this process, as `/proc` tells it."""

    name = "/proc"

    def __init__(self, others: Collection[int]) -> None:
        self._others = frozenset(others)
        self._begun: dict[int, Ticks] = {}

    def begin(self) -> None:
        self._begun = self._now()

    def spent_s(self) -> float:
        return spent_ticks(self._begun, self._now()) / _TICKS_PER_S

    def _now(self) -> dict[int, Ticks]:
        children: dict[int, list[int]] = {}
        ticks: dict[int, Ticks] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    times = [int(one) for one in fields[11:15]]
                    ticks[int(entry.name)] = Ticks(sum(times[:2]), sum(times[2:]))
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
        found, waiting = {}, [os.getpid()]
        while waiting:
            one = waiting.pop()
            if one in ticks and one not in self._others:
                found[one] = ticks[one]
                waiting += children.get(one, [])
        return found


def spent_ticks(before: dict[int, Ticks], after: dict[int, Ticks]) -> int:
    """What was spent between two readings.

    Whoever waits for a child takes over its time; of processes that are gone, as much must have
    come to those that remain, or it is lost.
    """
    gone = sum(sum(ticks) for process, ticks in before.items() if process not in after)
    taken = sum(
        ticks.waited - before.get(process, Ticks(0, 0)).waited for process, ticks in after.items()
    )
    if taken < gone:
        raise Unaccounted(
            f"processes that used {gone / _TICKS_PER_S:.2f} s ended, of which only"
            f" {taken / _TICKS_PER_S:.2f} s are accounted for; measure again where control groups"
            " (version 2) may be made"
        )
    return sum(map(sum, after.values())) - sum(map(sum, before.values()))
