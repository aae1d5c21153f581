"""What a subscription knows of one partition: from the first unsettled offset to the cursor.

One byte an offset tells whether it is settled, on lease (and for which attempt), waiting to be
delivered again or to be set aside; `kernels/blipmq_facts.py` has the numbers.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.broker.deliveries import Stretch
from pentalog.kernels import AGAIN, ATTEMPT_MAX, DEAD_ATTEMPTS, DEAD_TOO_LARGE, Delivered
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition

WINDOW_OFFSETS_MAX: Final = 65_536
"""Offsets a subscription keeps states of in one partition; beyond that it waits for answers."""
WINDOW_OFFSETS_MIN: Final = 256
"""The same for a client whose subscriptions have too many states together."""
TAG_PARTITION_SHIFT: Final = 48
RESERVED_MIN: Final = 16
RESERVED_MAX: Final = 65_536
"""Offsets reserved at a time, by how fast they are used; a crash may cost as many of quality 0."""
_EXPIRED_PER_CALL: Final = 256
_LEASE_MS_MAX: Final = 24 * 3600 * 1000
_DEAD: Final = bytes(range(DEAD_ATTEMPTS, DEAD_TOO_LARGE + 1))


class Lease(NamedTuple):
    """Everything delivered in this range for the `attempt`-th time is due back."""

    due_ms: int
    """By the monotonic clock: a lease does not end early when the wall clock is set."""
    start: Offset
    end: Offset
    attempt: int


class Repeat(NamedTuple):
    """What is to be delivered again in this range."""

    start: Offset
    end: Offset
    attempt: int
    """The last attempt that was made."""
    behind: Offset
    """It stands behind everything before this offset."""


class Opening:
    """Batches that were opened and are being given out."""

    __slots__ = ("batch", "batches", "begin", "end", "record")

    def __init__(self, begin: Offset, end: Offset, batches: kernels.Buffer) -> None:
        self.begin = begin
        self.end = end
        self.batches = batches
        self.batch = 0
        self.record = 0


class Window:
    __slots__ = (
        "at",
        "block",
        "blocked_at",
        "changed",
        "dead",
        "doubtful_end",
        "first",
        "floor",
        "inherited",
        "leases",
        "opening",
        "repeated",
        "repeats",
        "reread",
        "reserved",
        "reserved_at",
        "reserved_end",
        "reserving",
        "states",
        "weight",
    )

    def __init__(self, at: Partition, first: Offset, floor: Offset, states: bytearray) -> None:
        self.at = at
        self.first = first
        """Tags count from here."""
        self.floor = floor
        self.states = states
        self.weight = 0
        """States that are counted for the client."""
        self.inherited: Offset = 0
        """Up to here an earlier life has delivered; who has it from there still acknowledges it."""
        self.leases: dict[int, deque[Lease]] = {}
        """By attempt, so that each line is in the order of time."""
        self.repeats: deque[Repeat] = deque()
        self.dead: deque[tuple[Offset, Offset]] = deque()
        """Ranges with records to be set aside."""
        self.opening: Opening | None = None
        self.reread: Opening | None = None
        self.repeated = b""
        """States of the range that is being delivered again, as they were before."""
        self.changed = False
        """Since it was written to the state file."""
        self.reserved: Offset = 0
        """Up to here the state file allows deliveries of quality 0."""
        self.reserved_at: Offset = floor
        """The cursor when the newest reservation was asked for."""
        self.reserved_end: Offset = 0
        """Where that one ends, in the state file or on its way there."""
        self.block = RESERVED_MIN
        """Offsets in the newest reservation."""
        self.reserving: Later[None] | None = None
        """Ready when the newest reservation is in the state file, or cannot be."""
        self.doubtful_end: Offset = 0
        """Before this an earlier life may have delivered more than its states tell."""
        self.blocked_at: Offset = -1
        """Where a delivery of quality 0 last met the end of the reservation."""

    @property
    def cursor(self) -> Offset:
        return self.floor + len(self.states)

    @property
    def unsettled(self) -> int:
        return len(self.states) - self.states.count(0)

    @property
    def alive(self) -> int:
        """Of the unsettled, those that are not to be set aside."""
        return self.unsettled - sum(map(self.states.count, _DEAD))

    @property
    def tag_shift(self) -> int:
        return (self.at.index << TAG_PARTITION_SHIFT) + 1 - self.first

    def reserve(self, *, ahead: bool = True) -> Offset:
        """Where the next reservation ends: the more were used of the newest one, the further on.

        Nothing of quality 0 is delivered from there on until another one is in the state file.  So
        after a crash the file covers every such delivery, without a commit for each.
        """
        used = self.cursor - self.reserved_at
        self.block = min(max(4 * used, self.block // 2, RESERVED_MIN), RESERVED_MAX)
        self.reserved_at = self.cursor
        end = max(self.cursor + (self.block if ahead else 0), self.doubtful_end)
        self.reserved_end = end
        # Less than before takes effect at once: the state file has the one or the other.
        self.reserved = min(self.reserved, end)
        return end

    @property
    def unwritten(self) -> bool:
        """Is there something to write, or a large reservation to be made smaller?"""
        return self.changed or self.block > RESERVED_MIN

    @property
    def short(self) -> bool:
        """Is it time for another reservation, so that deliveries need not wait for it?"""
        used = self.blocked_at >= 0 and self.reserving is None
        return used and self.reserved - self.cursor < self.block // 2

    @property
    def blocked(self) -> bool:
        """Is the next record of quality 0 and not reserved?"""
        return self.cursor >= self.reserved and self.blocked_at == self.cursor

    def restore(self) -> None:
        """After a restart nothing is on lease: what was waits to be delivered again."""
        attempts = [number for number in range(1, ATTEMPT_MAX + 1) if number in self.states]
        for attempt in attempts:
            self.states = self.states.replace(bytes((attempt,)), bytes((attempt | AGAIN,)))
        for attempt in sorted({state & ~AGAIN for state in set(self.states) if state >= AGAIN}):
            if attempt <= ATTEMPT_MAX:
                self.repeats.append(Repeat(self.floor, self.cursor, attempt, self.floor))
        if any(state in self.states for state in _DEAD):
            self.dead.append((self.floor, self.cursor))

    def settle_inherited(self, offset: Offset) -> bool:
        """Settle what an earlier life delivered and waits to be delivered again, if it does."""
        index = offset - self.floor
        if (
            index < 0
            or offset >= self.inherited
            or not 0 < self.states[index] ^ AGAIN <= ATTEMPT_MAX
        ):
            return False
        self.states[index] = 0
        return True

    def skip(self, to: Offset, state: int = 0) -> None:
        """Move the cursor on without a delivery."""
        count = to - self.cursor
        if count <= 0:
            return
        self.changed = True
        if state:
            self.dead.append((self.cursor, to))
            self.states += bytes((state,)) * count
        elif self.states:
            self.states += bytes(count)
        else:
            self.floor = to

    def lose(self, start: Offset) -> int:
        """The log begins at `start` by now; returns how many were not yet delivered."""
        lost = max(0, start - self.cursor)
        gone = min(start - self.floor, len(self.states))
        if gone > 0:
            del self.states[:gone]
            self.floor += gone
            self.changed = True
        self.skip(start)
        self.opening = self.reread = None
        return lost

    def first_time(self, timestamp_min: int, stop: Offset) -> Stretch:
        opening = self.opening
        assert opening is not None
        return Stretch(
            self.at,
            opening.batches,
            opening.batch,
            opening.record,
            self.cursor,
            stop,
            self.tag_shift,
            timestamp_min,
            doubtful_end=self.doubtful_end,
            zero_end=self.reserved,
        )

    def next_repeat(self) -> Repeat | None:
        """The first in line of what is to be delivered again, from where there is something."""
        while self.repeats:
            repeat = self.repeats[0]
            low, high = repeat.start - self.floor, repeat.end - self.floor
            found = self.states.find(repeat.attempt | AGAIN, max(low, 0), max(high, 0))
            if found >= 0:
                if found > low:
                    self.repeats[0] = repeat = repeat._replace(start=self.floor + found)
                return repeat
            self.repeats.popleft()
        return None

    def again(self, repeat: Repeat, reread: Opening) -> Stretch:
        low = repeat.start - self.floor
        self.repeated = bytes(self.states[low : repeat.end - self.floor])
        return Stretch(
            self.at,
            reread.batches,
            0,
            0,
            repeat.start,
            min(repeat.end, reread.end),
            self.tag_shift,
            -(1 << 63),
            repeat.attempt | AGAIN,
            self.states,
            self.floor,
        )

    def took_first(self, stretch: Stretch, delivered: Delivered, now_ms: int, base_ms: int) -> None:
        opening, start = self.opening, self.cursor
        assert opening is not None
        if start == delivered.offset < stretch.stop and delivered.batch < len(opening.batches):
            self.blocked_at = start
        opening.batch, opening.record = delivered.batch, delivered.record
        self.changed = True
        if delivered.leased or self.states or delivered.states.strip(b"\0"):
            self.states += delivered.states
        else:
            self.floor = delivered.offset
        if delivered.leased:
            self.lease(start, delivered.offset, 1, now_ms, base_ms)
        if delivered.states and max(delivered.states) >= DEAD_ATTEMPTS:
            self.dead.append((start, delivered.offset))
        if delivered.batch >= len(opening.batches):
            self.skip(min(opening.end, stretch.stop))
        if self.cursor >= opening.end:
            self.opening = None

    def took_again(self, stretch: Stretch, delivered: Delivered, now_ms: int, base_ms: int) -> None:
        repeat = self.repeats.popleft()
        end = delivered.offset
        self.changed = True
        if delivered.batch >= len(stretch.batches):
            end = stretch.stop
        # One lease for each run of records: what lies between them may be on another one.
        attempt = min(repeat.attempt + 1, ATTEMPT_MAX)
        waited = re.compile(re.escape(bytes((repeat.attempt | AGAIN,))) + b"+")
        for run in waited.finditer(self.repeated, 0, delivered.offset - repeat.start):
            first, last = repeat.start + run.start(), repeat.start + run.end()
            self.lease(first, last, attempt, now_ms, base_ms)
        # What the log no longer has (compacted, trimmed) cannot be delivered again.
        self.change(repeat.start, end, repeat.attempt | AGAIN, 0)
        if end < repeat.end:
            self.repeats.appendleft(repeat._replace(start=end))
        else:
            self.reread = None

    def lease(self, start: Offset, end: Offset, attempt: int, now_ms: int, base_ms: int) -> None:
        due_ms = now_ms + min(base_ms << (attempt - 1), _LEASE_MS_MAX)
        line = self.leases.setdefault(attempt, deque())
        if line and line[-1].due_ms == due_ms and line[-1].end == start:
            line[-1] = line[-1]._replace(end=end)
        else:
            line.append(Lease(due_ms, start, end, attempt))

    def change(self, start: Offset, end: Offset, before: int, after: int) -> int:
        """Turn one state into another in a range; returns how often."""
        low, high = max(start - self.floor, 0), min(end - self.floor, len(self.states))
        if low >= high:
            return 0
        part = self.states[low:high]
        count = part.count(before)
        if count:
            self.changed = True
            self.states[low:high] = part.replace(bytes((before,)), bytes((after,)))
        return count

    def is_due(self, now_ms: int) -> bool:
        return any(line[0].due_ms <= now_ms for line in self.leases.values())

    def expire(self, now_ms: int, behind: Offset, attempts_max: int) -> bool:
        """Take back some of what is due; what was delivered often enough is to be set aside."""
        due: list[Lease] = []
        while self.leases and len(due) < _EXPIRED_PER_CALL:
            line = min(self.leases.values(), key=lambda line: _urgency(line[0]))
            if line[0].due_ms > now_ms:
                break
            lease = line.popleft()
            due.append(lease)
            if not line:
                del self.leases[lease.attempt]
        changed = False
        for lease in due:
            dead = 0 < attempts_max <= lease.attempt
            after = DEAD_ATTEMPTS if dead else lease.attempt | AGAIN
            if not self.change(lease.start, lease.end, lease.attempt, after):
                continue
            changed = True
            if dead:
                self.dead.append((lease.start, lease.end))
            else:
                self._repeat(Repeat(lease.start, lease.end, lease.attempt, behind))
        return changed

    def _repeat(self, repeat: Repeat) -> None:
        """Stand in line, as one with the last if it lies directly behind it."""
        last = self.repeats[-1] if self.repeats else None
        if (
            last is not None
            and (last.attempt, last.behind) == (repeat.attempt, repeat.behind)
            and last.end == repeat.start
        ):
            self.repeats[-1] = last._replace(end=repeat.end)
        else:
            self.repeats.append(repeat)

    def trim(self) -> None:
        """Forget what is settled at the beginning."""
        if self.states and not self.states[0]:
            count = kernels.settled_prefix(self.states)
            del self.states[:count]
            self.floor += count


def _urgency(lease: Lease) -> tuple[int, int]:
    return lease.due_ms, lease.attempt
