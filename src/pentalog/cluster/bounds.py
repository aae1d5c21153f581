"""Where partitions begin and end: ListOffsets requests, version 4, written and read by hand."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Final

from pentalog.cluster.answers import read_partitions
from pentalog.cluster.fleet import ASKING, Fleet, by_topic
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Lost, Refused, Trouble, check
from pentalog.cluster.steps import Steps, all_of
from pentalog.cluster.topics import NO_LEADER, ClusterTopics
from pentalog.model.errors import PartitionNotFound, TopicNotFound
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Edge, Marks, Offset, Partition

KEY: Final = 2
VERSION: Final = 4

_EARLIEST: Final = -2
_LATEST: Final = -1
_UNCOMMITTED: Final = 0
_COMMITTED: Final = 1
_ASKED: Final = ((_UNCOMMITTED, _EARLIEST), (_COMMITTED, _LATEST), (_UNCOMMITTED, _LATEST))
"""A request asks one question of each partition: start, stable end, end."""
_HEAD: Final = struct.Struct(">ibi")
_TIME_MS_MAX: Final = (1 << 63) - 1
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_ASKED_PARTITION: Final = struct.Struct(">iiq")
_ANSWER: Final = struct.Struct(">ihqqi")
_NEWEST: Final = -3
_TRIES: Final = 2
_LOCATED_MAX: Final = 10_000
_BELIEVED_MS: Final = 5_000
"""A leader that dies takes with it what only it had."""


def request_body(at: Collection[Partition], *, isolation: int, when: int) -> Sequence[bytes]:
    topics = by_topic(at)
    pieces = [_HEAD.pack(-1, isolation, len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        pieces += (_I16.pack(len(name)), name, _I32.pack(len(indexes)))
        pieces += [_ASKED_PARTITION.pack(index, -1, when) for index in indexes]
    return (b"".join(pieces),)


def read_answer(data: memoryview) -> dict[Partition, Offset]:
    """Raises the first refusal in it."""
    found: dict[Partition, Offset] = {}
    try:
        answers, _ = read_partitions(data, _I32.size, _ANSWER)
        for topic, (index, code, _, offset, _) in answers:
            at = Partition(topic, index)
            if code:
                raise Refused(f"looking for the ends of {at}", ErrorCode(code))
            found[at] = offset
    except (struct.error, ValueError) as flaw:
        raise Lost(f"the cluster's answer to ListOffsets cannot be read: {flaw}") from flaw
    return found


class Bounds:
    """The marks of partitions as they were last told, by whatever answer."""

    def __init__(self, fleet: Fleet, topics: ClusterTopics) -> None:
        self._fleet = fleet
        self._topics = topics
        self._marks: dict[Partition, Marks] = {}
        self._acknowledged: dict[Partition, tuple[Offset, float]] = {}
        """Ends of what leaders alone have, and until when they are believed."""
        self._located: dict[tuple[Partition, Edge | int], tuple[Offset, int]] = {}
        topics.gone.append(self._forget)

    def marks(self, at: Partition) -> Marks:
        """Those last told; all zero if none were."""
        self._topics.leader(at)
        return self._marks.get(at, _UNKNOWN)

    def told(self, at: Partition, marks: Marks) -> None:
        """What may be read, as a leader says it; what it has beyond that is the end here too."""
        held = self._acknowledged.get(at)
        if held is not None:
            end, until_s = held
            if end <= marks.end or self._fleet.monotonic() > until_s:
                del self._acknowledged[at]
            else:
                marks = marks._replace(end=end)
        self._marks[at] = marks

    def _forget(self, topic: str) -> None:
        for at in [at for at in self._marks if at.topic == topic]:
            del self._marks[at]
            self._acknowledged.pop(at, None)

    def acknowledged(self, at: Partition, end: Offset) -> None:
        """A leader has taken a batch: whether others have it too is told by who reads."""
        marks = self._marks.get(at, _UNKNOWN)
        if end > marks.end:
            self._marks[at] = marks._replace(end=end)
            until_s = self._fleet.monotonic() + _BELIEVED_MS / 1000
            self._acknowledged[at] = (end, until_s)

    def located(self, at: Partition, when: Edge | int) -> tuple[Offset, int]:
        """Where `locate` has found this time; once."""
        self._topics.leader(at)
        return self._located.pop((at, when), (-1, -1))

    def locate(self, at: Partition, when: Edge | int) -> Steps[None]:
        """Ask where the first record at or after a time is, or the one with the newest."""
        doing = f"looking for a time in {at}"
        try:
            leader = self._topics.leader(at)
        except (TopicNotFound, PartitionNotFound):
            return
        asked = _NEWEST if isinstance(when, Edge) else max(0, min(when, _TIME_MS_MAX))
        place = {"partition_index": at.index, "current_leader_epoch": -1, "timestamp": asked}
        fields = {
            "replica_id": -1,
            "isolation_level": _UNCOMMITTED,
            "topics": [{"name": at.topic, "partitions": [place]}],
        }
        try:
            link = self._fleet.required(self._fleet.node(leader, ASKING), doing)
            answer = yield link.ask(KEY, fields)
            (found,) = answer.topics[0].partitions
            check(doing, found.error_code)
        except Trouble:
            yield from self._topics.refresh(at.topic)
            raise
        if len(self._located) >= _LOCATED_MAX:
            self._located.clear()
        self._located[at, when] = (found.offset, found.timestamp)

    def refresh(self, at: Collection[Partition]) -> Steps[None]:
        """Ask the leaders; partitions that are not there are left out."""
        for attempt in range(_TRIES):
            try:
                yield from self._ask(at)
                return
            except (TopicNotFound, PartitionNotFound):
                return
            except Refused as refused:
                if attempt == _TRIES - 1 or not refused.retriable:
                    raise
                for topic in by_topic(at):
                    yield from self._topics.refresh(topic)

    def _ask(self, at: Collection[Partition]) -> Steps[None]:
        by_link: dict[Link, list[Partition]] = {}
        for each in at:
            leader = self._topics.leader(each)
            link = None if leader == NO_LEADER else self._fleet.node(leader, ASKING)
            if link is None:
                raise Refused(f"asking for the ends of {each}", ErrorCode.leader_not_available)
            by_link.setdefault(link, []).append(each)
        asked: list[list[Later[memoryview]]] = [
            [
                link.exchange(KEY, VERSION, request_body(group, isolation=isolation, when=when))
                for isolation, when in _ASKED
            ]
            for link, group in by_link.items()
        ]
        for answers in asked:
            yield all_of(answers)
            starts, stables, ends = (read_answer(answer.value) for answer in answers)
            for each, end in ends.items():
                stable = min(stables.get(each, end), end)
                self.told(each, Marks(min(starts.get(each, 0), stable), stable, end, end))


_UNKNOWN: Final = Marks(0, 0, 0, 0)
