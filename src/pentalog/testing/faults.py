"""What shall go wrong: faults that a test has ordered, and which requests they are for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pentalog.testing.sessions import FaultySession


@dataclass(eq=False)
class Fault:
    """Something that goes wrong until it is cancelled, or has happened often enough.

    `with broker.fail(...):` cancels it at the end of the block.
    """

    door: str | None
    """None: every one."""
    request: str | None
    """None: any."""
    delay_ms: float = 0
    error: str | int | None = None
    hangs_up: bool = False
    serves: bool = False
    """Hang up only after the request was served; its answer is lost."""
    times: int | None = None
    """How often at most; None: until cancelled."""
    hits: int = 0
    """How often it has happened."""
    _faults: Faults | None = field(default=None, repr=False)

    def matches(self, door: str, request: str) -> bool:
        return self.door in (None, door) and self.request in (None, request)

    def cancel(self) -> None:
        if self._faults is not None:
            self._faults.remove(self)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


class Faults:
    """The faults of one broker; ordered by tests' threads, met with on the broker's."""

    def __init__(self) -> None:
        self.ordered: tuple[Fault, ...] = ()
        self.sessions: set[FaultySession] = set()
        """Of all connections; the broker's thread alone looks at it."""
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        fault._faults = self
        with self._lock:
            self.ordered = (*self.ordered, fault)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._lock:
            self.ordered = tuple(one for one in self.ordered if one is not fault)

    def clear(self) -> None:
        with self._lock:
            self.ordered = ()

    def matching(self, door: str, request: str) -> list[Fault]:
        return [fault for fault in self.ordered if fault.matches(door, request)]

    def happened(self, fault: Fault) -> None:
        fault.hits += 1
        if fault.times is not None and fault.hits >= fault.times:
            self.remove(fault)
