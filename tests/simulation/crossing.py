"""What readers of one protocol see of records that another one wrote, handed to the judge.

Some protocols show values only: no keys, no headers, not even offsets.  Every value that a
simulated client writes ends with its identity, so its writer can be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.judge import ANYWHERE, Judge, Outcome, TopicLife
from tests.simulation.kafka_wire import ID_HEADER, Read
from tests.simulation.violation import Violation

from pentalog.model.types import Record

if TYPE_CHECKING:
    from tests.simulation.world import World

_NO_PRODUCER: Final = -1


class Shown(NamedTuple):
    """One record as a client of another protocol than Kafka's sees it."""

    value: bytes
    """Empty if the value is null."""
    offset: int | None = None
    """None if the protocol does not show it."""
    keyed: bool = False
    """The protocol shows keys."""
    key: bytes | None = None


def observe_committed(
    judge: Judge,
    topic: TopicLife,
    index: int,
    shown: Sequence[Shown],
    *,
    start: int,
    end: int,
    floor: int,
) -> None:
    """Check records that a reader of committed records got for `start..end`.

    `floor` is the start that had been acknowledged when the reading began.
    """
    reads = _reads(judge, topic, index, shown, start, end)
    judge.observe(topic, index, reads, start=start, end=end, floor=floor, whole=False)
    judge.observe_committed(topic, index, reads, start=start, end=end)


def check_uncommitted(
    judge: Judge, topic: TopicLife, index: int, shown: Sequence[Shown], *, start: int, end: int
) -> None:
    """Check records that need not be durable: a power cut may take them back.

    Records of transactions that have not committed are not shown to such a reader either.
    """
    seen = set()
    for read in _reads(judge, topic, index, shown, start, end):
        found = judge.find(read.record.value or b"")
        assert found is not None
        sent, number = found
        seen.add(read.offset)
        place = f"offset {read.offset} of {topic.label}-{index}"
        if sent.items[number].key != read.record.key:
            raise Violation("changed", f"{place} is not what was sent as {sent}")
        if sent.loose:
            continue
        if sent.offset is not None and sent.offset != read.offset - number:
            raise Violation("duplicate", f"{place} holds record {number} of {sent}")
        if sent.absent:
            raise Violation("returned", f"{place} holds {sent}, which was not there before")
        transaction = sent.transaction
        if transaction is None or transaction.broken:
            continue
        if transaction.outcome in (Outcome.ABORTED, Outcome.OPEN):
            raise Violation("uncommitted data", f"{place} holds {sent}: {transaction.outcome}")
    if topic.compact or topic.unsure:
        return
    for sent in topic.model(index).sents:
        if sent.offset is None or not sent.required or sent.transaction is not None:
            continue
        for offset in range(max(start, sent.offset), min(end, sent.next_offset)):
            if offset not in seen:
                raise Violation("lost", f"offset {offset} is missing: {sent}")


def _reads(
    judge: Judge, topic: TopicLife, index: int, shown: Sequence[Shown], start: int, end: int
) -> list[Read]:
    """Records in order; those whose offset cannot be told are left out."""
    without_gap = end - start == len(shown)
    reads: list[Read] = []
    last = start - 1
    for number, entry in enumerate(shown):
        if entry.offset is None and without_gap:
            entry = entry._replace(offset=start + number)
        read = _read(judge, topic, index, entry)
        if read is None:
            continue
        if not last < read.offset < end:
            raise Violation(
                "out of order",
                f"offset {read.offset} of {topic.label}-{index} follows {last}; "
                f"{start} to {end} was read",
            )
        last = read.offset
        reads.append(read)
    return reads


def _read(judge: Judge, topic: TopicLife, index: int, shown: Shown) -> Read | None:
    """A record as it was written; None if that cannot be told."""
    if not shown.value:
        return None  # the tombstone of a compacted topic: every other value has an identity
    entry = judge.find(shown.value)
    if entry is None:
        raise Violation(
            "phantom", f"no client wrote what is in {topic.label}-{index}: {shown.value[-60:]!r}"
        )
    sent, number = entry
    item = sent.items[number]
    judge.find_in(topic, index, sent)
    offset = shown.offset
    if offset is None:
        if sent.offset is None or sent.loose:
            return None
        offset = sent.offset + number
    key = shown.key if shown.keyed else item.key
    record = Record(shown.value, key, ((ID_HEADER, item.identity),))
    return Read(offset, record, _NO_PRODUCER, transactional=False)


def low(topic: TopicLife, index: int) -> int:
    """Where a reading may start: records before this may have been deleted."""
    model = topic.model(index)
    return max(model.floor, model.floor_maybe if model.floor_maybe < ANYWHERE else 0)


def check_progress(
    world: World, topic: TopicLife, index: int, start: int, end: int, promised: int
) -> None:
    """A read of `start..end` ended before `promised`, which is right in some states only."""
    lasting = not (topic.compact or topic.retention or topic.unsure)
    moved = topic.model(index).floor_maybe > start
    failed = world.files.faults.sync_failed
    if lasting and not (moved or failed) and not world.judge.transactions_in(topic, index):
        world.violate(
            "not readable",
            f"a read of {topic.label}-{index} at {start} ends at {end}; "
            f"up to {promised} was acknowledged before",
        )


class Ends:
    """Ends of partitions that clients of one protocol were shown: they must not go back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shown: dict[tuple[int, int], int] = {}
        """By the number of a topic and the index of a partition."""

    def disconnect(self) -> None:
        judge, faults = self._world.judge, self._world.files.faults
        if judge.lossy or (faults.sync_failed and not judge.synced):
            self._shown.clear()

    def show(self, topic: TopicLife, index: int, end: int, promised: int) -> None:
        """A client was told an end; `promised` was required when it asked."""
        self._world.tell(f"{topic.label}-{index} ends at {end}")
        if end < promised and not self._world.files.faults.sync_failed:
            self._world.violate(
                "not readable",
                f"{topic.label}-{index} is said to end at {end}; "
                f"up to {promised} was acknowledged before",
            )
        place = (topic.number, index)
        self._shown[place] = max(end, self._shown.get(place, 0))

    def check(self, topic: TopicLife, index: int, end: int) -> None:
        """Compare with an end that was asked for with nothing under way."""
        shown = self._shown.get((topic.number, index), 0)
        if end < shown:
            raise Violation(
                "end went back",
                f"{topic.label}-{index} ends at {end}; a client was told {shown} before",
            )
