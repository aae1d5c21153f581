"""Threads for SmartModules, shared fairly: owners take turns, and each has a share of everything.

An owner is a principal, or an address where clients are anonymous.  One that starts many slow
programs waits for its own, not others for it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pentalog.broker.principal_limits import PrincipalLimits, share_of
from pentalog.model.errors import Overloaded
from pentalog.runtime import Runtime

INSTANCES_MAX: Final = 200
"""Programs that may run at a time, and uploads that wait to be checked."""
OWNER_WAITING_BYTES_MAX: Final = 64 << 20
"""Programs of one owner that wait to be compiled; one is always accepted."""
MEMORY_SHARES: Final = 32
"""The memory of all programs, in memories of one program at its limit."""
_DERIVED: Final = "derived topics"
"""What programs that the broker runs by itself are charged to: all of them share one share."""

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class _Job(NamedTuple):
    work: Work
    done: Done


class Lanes:
    """Runs jobs on a few lanes, one each at a time; owners with jobs take turns."""

    def __init__(self, runtime: Runtime, names: Sequence[str]) -> None:
        self._runtime = runtime
        self._free = list(names)
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()

    def submit(self, owner: str, work: Work, done: Done) -> None:
        """Run `work` on a lane when it is the owner's turn, then `done` with its outcome."""
        self._waiting.setdefault(owner, deque()).append(_Job(work, done))
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            owner, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs
            self._begin(self._free.pop(), job)

    def _begin(self, lane: str, job: _Job) -> None:
        def finished(value: Any, error: BaseException | None) -> None:
            self._free.append(lane)
            try:
                job.done(value, error)
            finally:
                self._next()

        self._runtime.offload(lane, job.work, finished)


class Shares:
    """Counts what each owner has of a limited number of programs and of memory."""

    def __init__(self, memory_bytes: int, share_percent: int) -> None:
        """`memory_bytes` is what one program may have."""
        self._memory_max = MEMORY_SHARES * memory_bytes
        self._owner_memory_max = share_of(self._memory_max, share_percent)
        self._instances = PrincipalLimits(
            "running SmartModules", INSTANCES_MAX, share_percent=share_percent
        )
        self._waiting_bytes: Counter[str] = Counter()
        self._memory: Counter[str] = Counter()

    def take(self, owner: str, instances: int, waiting_bytes: int) -> None:
        """Raise `Overloaded` if the owner, or all together, have too much already."""
        self._instances.check(owner or _DERIVED, instances)
        waiting = self._waiting_bytes[owner]
        if waiting and waiting + waiting_bytes > OWNER_WAITING_BYTES_MAX:
            raise Overloaded(
                f"{waiting} bytes of SmartModules wait to be compiled for this client; accepted "
                f"are {OWNER_WAITING_BYTES_MAX}: try again when some have been"
            )
        self._instances.add(owner or _DERIVED, instances)
        self._waiting_bytes[owner] += waiting_bytes

    def compiled(self, owner: str, waiting_bytes: int) -> None:
        """These no longer wait to be compiled."""
        self._reduce(self._waiting_bytes, owner, waiting_bytes)

    def give_back(self, owner: str, instances: int) -> None:
        self._instances.release(owner or _DERIVED, instances)

    def resize(self, owner: str, before_bytes: int, after_bytes: int) -> None:
        """The memory of an owner's programs has grown or shrunk."""
        self._reduce(self._memory, owner, before_bytes - after_bytes)

    def check_memory(self, owner: str) -> None:
        """Raise `Overloaded` if running programs have too much memory."""
        own, every = self._memory[owner], self._memory.total()
        # Who has more than the average pays for too much memory, not who asks next.
        large = own * len(self._memory) >= every
        if own > self._owner_memory_max or (large and every > self._memory_max):
            raise Overloaded(
                f"the SmartModules of this client have {own} bytes of memory, all together "
                f"{every}; accepted are {self._owner_memory_max} and {self._memory_max}: end some"
            )

    @staticmethod
    def _reduce(counter: Counter[str], owner: str, amount: int) -> None:
        counter[owner] -= amount
        if not counter[owner]:
            del counter[owner]
