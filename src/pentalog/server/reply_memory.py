"""Memory of answers that clients have not read yet: one bound for all connections, by address.

`connection_reply_bytes_max` bounds one connection; thousands of clients that ask and do not read
would still fill the memory.  So every connection charges what it has queued to its address, and an
answer that is read from the log is reserved before it is read.  Large answers to an address that
holds too much wait until it has read some of them, or until connections that do not read are
closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Final, Protocol

from pentalog.runtime import Job, Slices
from pentalog.server.fair_memory import FairMemory

UNCOUNTED_BYTES: Final = 64 << 10
"""What each connection may have queued without being charged: most answers leave at once."""
_PROGRESS_SHARE: Final = 100
"""A client that others wait for must read a hundredth of its answers between two sweeps."""
_SLOW_SWEEPS: Final = 2
"""Sweeps in a row that find a client too slow before it is closed.

A socket reports in steps what its peer has read: at 20 KiB/s about every five seconds.
"""
_WOKEN: Final = 64
"""Waiters, and addresses, that are served in one turn when memory is given back."""
_JUDGED: Final = 64
"""Connections that one step of a sweep looks at."""
_UNDER_WAY_MAX: Final = 16
"""Long requests of one address that are under way at a time, each with a part of its answer."""


class Reader(Protocol):
    """A connection, as far as the memory of its answers is concerned."""

    @property
    def queued_bytes(self) -> int:
        """What is queued in memory for the client."""

    @property
    def taken_bytes(self) -> int:
        """What the client's side has received since it connected."""

    def give_up(self) -> None:
        """Close: the client does not read, and others wait for its memory."""


class ReplyMemory:
    """Counts the answers of all connections and says who has to wait; one per server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bytes_max: int,
        warn: Callable[[str, str], None],
    ) -> None:
        self.bytes_max = bytes_max
        self.scarce = False
        """Some address may have to wait; if not, there is no need to ask for one."""
        self.soon = loop.call_soon
        self._warn = warn
        self._memory = FairMemory()
        self._readers: dict[Reader, _Pace] = {}
        """Those that are charged."""
        self._waiting: OrderedDict[str, OrderedDict[object, tuple[int, Callable[[], None]]]] = (
            OrderedDict()
        )
        """By address, in order: how much is waited for, and what is called then."""
        self._waking = False
        self._unasked = 0
        """Addresses that may fit since memory was given back, and have not been asked."""

    @property
    def used_bytes(self) -> int:
        return self._memory.used_bytes

    def resize(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._judge_scarcity()
        self._wake_soon()

    def short(self, block: str) -> bool:
        """Must clients of this address wait before they are given more answers?"""
        return self.scarce and not self.fits(block, 1)

    def fits(self, block: str, size: int) -> bool:
        """May clients of this address be given an answer of `size` bytes more?

        An address that holds nothing gets what is free, and if nothing is in use any size fits:
        otherwise a large answer could never be given.
        """
        memory = self._memory
        free = self.bytes_max - memory.used_bytes
        held = memory.held(block)
        return held + size <= free - size or (not held and size <= free) or not memory.used_bytes

    def grants(self, block: str, size: int) -> bool:
        """May `size` bytes be reserved at once?  Not before those that wait already.

        Otherwise small answers would overtake a large one for ever.
        """
        return block not in self._waiting and self.fits(block, size)

    def charge(self, reader: Reader, block: str, size: int) -> None:
        """Count `size` bytes more, or fewer, for a connection."""
        if size > 0:
            self._memory.charge(block, size)
            if reader not in self._readers:
                self._readers[reader] = _Pace(block, reader.taken_bytes)
        else:
            self._memory.give_back(block, -size)
            self._wake_soon()
        self._judge_scarcity()

    def forget(self, reader: Reader) -> None:
        """Judge a connection that holds nothing any longer by no sweep."""
        self._readers.pop(reader, None)

    def wait(self, block: str, waiter: object, size: int, run: Callable[[], None]) -> None:
        """Call `run` once, in a later turn, when `size` bytes fit; in order for one address."""
        self._waiting.setdefault(block, OrderedDict())[waiter] = (size, run)
        self._warn(
            "replies",
            f"of reply_bytes_max={self.bytes_max} no more is left for {block}: its clients are "
            "not served until they have read what they asked for; raise reply_bytes_max",
        )

    def stop_waiting(self, block: str, waiter: object) -> None:
        waiting = self._waiting.get(block)
        if waiting is not None and waiting.pop(waiter, None) is not None:
            if not waiting:
                del self._waiting[block]
            # The one behind it may want less.
            self._wake_soon()

    def sweep(self) -> Iterator[None]:
        """Close connections that hold memory which others wait for and that do not read.

        Run every few seconds, step by step: closing thousands of connections takes long.
        """
        least_bytes = self._least_of_waiting()
        for number, (reader, pace) in enumerate(tuple(self._readers.items())):
            if self._readers.get(reader) is not pace:
                continue
            pace.note(reader)
            held_bytes = self._memory.held(pace.block)
            if pace.slow_sweeps >= _SLOW_SWEEPS and held_bytes >= least_bytes:
                self._warn(
                    "unread",
                    f"a client of {pace.block} closed: it does not read its answers, of which "
                    f"{reader.queued_bytes} bytes are in memory that others wait for",
                )
                reader.give_up()
            elif number % _JUDGED:
                continue
            yield
            least_bytes = self._least_of_waiting()

    def _least_of_waiting(self) -> float:
        """What the address holds that has the least of those that wait; infinite if none does."""
        return min((self._memory.held(block) for block in self._waiting), default=inf)

    def _judge_scarcity(self) -> None:
        # An address holds at most all that is used, so below half none is short.
        self.scarce = 2 * self._memory.used_bytes >= self.bytes_max

    def _wake_soon(self) -> None:
        self._unasked = len(self._waiting)
        if self._unasked and not self._waking:
            self._waking = True
            self.soon(self._wake)

    def _wake(self) -> None:
        """Ask addresses in turn whether their first waiter fits, a few in each turn of the loop."""
        self._waking = False
        for _ in range(_WOKEN):
            if not self._unasked or not self._waiting:
                return
            block, waiting = next(iter(self._waiting.items()))
            self._waiting.move_to_end(block)
            waiter, (size, run) = next(iter(waiting.items()))
            if self.fits(block, size):
                self.stop_waiting(block, waiter)
                run()
            else:
                self._unasked -= 1
        if self._unasked and not self._waking:
            self._waking = True
            self.soon(self._wake)


class _Pace:
    """How a client that is charged reads, from sweep to sweep."""

    __slots__ = ("_taken_bytes", "block", "slow_sweeps")

    def __init__(self, block: str, taken_bytes: int) -> None:
        self.block = block
        self.slow_sweeps = 0
        """The last so many sweeps found it too slow."""
        self._taken_bytes = taken_bytes

    def note(self, reader: Reader) -> None:
        """Compare with the last sweep."""
        taken_bytes = reader.taken_bytes
        moved_bytes, self._taken_bytes = taken_bytes - self._taken_bytes, taken_bytes
        slow = moved_bytes < reader.queued_bytes // _PROGRESS_SHARE
        self.slow_sweeps = self.slow_sweeps + 1 if slow else 0


class ReplyAccount:
    """What one connection holds of the reply memory: answers that are queued, or being read."""

    __slots__ = (
        "_block",
        "_granted",
        "_memory",
        "_queued_bytes",
        "_reader",
        "_reserved_bytes",
        "_waits",
        "charged_bytes",
    )

    def __init__(self, memory: ReplyMemory, block: str, reader: Reader) -> None:
        self._memory = memory
        self._block = block
        self._reader = reader
        self._queued_bytes = 0
        self._reserved_bytes = 0
        self._waits = False
        self._granted: Reservation | None = None
        self.charged_bytes = 0

    @property
    def over(self) -> bool:
        """Must this connection wait before it is given more answers?

        One that holds nothing is not asked to: small requests are served whatever others of its
        address hold, and what may have a large answer is reserved or run in slices.
        """
        return bool(self.charged_bytes) and self._memory.short(self._block)

    def grants(self, size: int) -> bool:
        """May `size` bytes be reserved now?"""
        return self._granted is not None or self._memory.grants(self._block, size)

    def queued(self, size: int) -> None:
        """So much is queued now."""
        self._queued_bytes = size
        self._charge()

    def reserve(self, size: int) -> Reservation:
        """Charge an answer before it is read, unless that was done when memory was freed."""
        granted, self._granted = self._granted, None
        if granted is not None:
            return granted
        self._reserved_bytes += size
        self._charge()
        return Reservation(self, size)

    def release(self, size: int) -> None:
        if self._reserved_bytes:
            self._reserved_bytes -= size
            self._charge()

    def wait(self, run: Callable[[], None]) -> None:
        """Call `run` when this is not over any longer, unless it is to be called already."""
        if not self._waits:
            self._waits = True
            self._memory.wait(self._block, self, 1, partial(self._freed, 0, run))

    def await_grant(self, size: int, run: Callable[[], None]) -> None:
        """Charge `size` bytes as soon as they fit and call `run`, which is to reserve them."""
        if not self._waits:
            self._waits = True
            self._memory.wait(self._block, self, size, partial(self._freed, size, run))

    def close(self) -> None:
        """Give everything back; what is released later is not counted any more."""
        self._memory.stop_waiting(self._block, self)
        self._reserved_bytes = 0
        self.queued(0)

    def _freed(self, size: int, run: Callable[[], None]) -> None:
        self._waits = False
        if size:
            # At once: the next one that is woken must not be given the same memory.
            self._granted = self.reserve(size)
        run()

    def _charge(self) -> None:
        held_bytes = self._queued_bytes + self._reserved_bytes
        owed_bytes = held_bytes if held_bytes > UNCOUNTED_BYTES else 0
        if owed_bytes != self.charged_bytes:
            more_bytes, self.charged_bytes = owed_bytes - self.charged_bytes, owed_bytes
            self._memory.charge(self._reader, self._block, more_bytes)
            if not owed_bytes:
                self._memory.forget(self._reader)


class Reservation:
    """Memory for an answer that is being read; calling it gives the memory back, once."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: ReplyAccount, size: int) -> None:
        self._account: ReplyAccount | None = account
        self._size = size

    def __call__(self) -> None:
        account, self._account = self._account, None
        if account is not None:
            account.release(self._size)


class AddressSlices(Slices):
    """Runs the long requests of one address, a few at a time, while it may be given answers.

    What a long request has made of its answer is in no queue yet.  So few are under way at a time,
    and none is started while the address has to wait for memory.
    """

    __slots__ = ("__weakref__", "_all", "_block", "_memory", "_under_way", "_unstarted", "_waits")

    def __init__(self, all_slices: Slices, memory: ReplyMemory, block: str) -> None:
        self._all = all_slices
        self._memory = memory
        self._block = block
        self._under_way: set[Job] = set()
        self._unstarted: dict[Job, None] = {}
        self._waits = False

    @property
    def waiting(self) -> int:
        return self._all.waiting + len(self._unstarted)

    def run(
        self,
        steps: Iterator[None],
        done: Callable[[Exception | None], None],
        owner: object = None,
        *,
        unconditional: bool = False,
    ) -> Callable[[], None]:
        owner = self._block if owner is None else owner
        if unconditional:
            return self._all.run(steps, done, owner)
        job = Job(steps, done, owner)
        self.start(job)
        return partial(self._abandon, job)

    def start(self, job: Job) -> None:
        job.done = partial(self._ended, job, job.done)
        self._unstarted[job] = None
        self._start()

    def _start(self) -> None:
        while self._unstarted and len(self._under_way) < _UNDER_WAY_MAX:
            if self._memory.short(self._block):
                if not self._waits:
                    self._waits = True
                    self._memory.wait(self._block, self, 1, self._memory_freed)
                return
            job = next(iter(self._unstarted))
            del self._unstarted[job]
            self._under_way.add(job)
            self._all.start(job)

    def _memory_freed(self) -> None:
        self._waits = False
        self._start()

    def _ended(
        self, job: Job, done: Callable[[Exception | None], None], error: Exception | None
    ) -> None:
        self._leave(job)
        done(error)

    def _abandon(self, job: Job) -> None:
        job.abandon()
        self._leave(job)

    def _leave(self, job: Job) -> None:
        if job in self._unstarted:
            del self._unstarted[job]
            if self._waits and not self._unstarted:
                self._waits = False
                self._memory.stop_waiting(self._block, self)
        elif job in self._under_way:
            self._under_way.discard(job)
            if self._unstarted:
                # In a later turn: a job that ends at once would start the next one inside it.
                self._memory.soon(self._start)
