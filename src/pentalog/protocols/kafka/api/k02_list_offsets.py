"""ListOffsets: where a partition starts, ends, or holds a time.

1: one offset per partition.  2: isolation level.  4: leader epoch.  6: flexible.
7: newest timestamp (-3).  8: earliest local (-4).  9: latest tiered (-5).  10: timeout.
11: earliest to be uploaded (-6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pentalog.broker.security import Operation
from pentalog.model.later import Later
from pentalog.model.types import Edge, Horizon, Partition
from pentalog.protocols.kafka.administration import ends_of
from pentalog.protocols.kafka.authorization import find
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps

_LATEST: Final = -1
_EARLIEST: Final = -2
_NEWEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING: Final = -6
_VERSION_MIN: Final = {
    _NEWEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING: 11,
}
_BEFORE_END: Final = frozenset({_EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING})
"""Questions whose answer new records do not change."""
_NOWHERE: Final = (-1, -1)
_LOCATE_COST: Final = 8
"""Of finding a time: an index, and maybe a batch, is read."""


def serve(call: Call) -> Steps[None]:
    named = Counter(
        (topic.name, asked.partition_index)
        for topic in call.body.topics
        for asked in topic.partitions
    )
    topics: list[dict[str, Any]] = []
    found: list[Found] = []
    for topic in call.body.topics:

        def begin(asked: Any, topic: str = topic.name) -> dict[str, Any]:
            answer = {
                "partition_index": asked.partition_index,
                "error_code": 0,
                "timestamp": -1,
                "offset": -1,
                "leader_epoch": -1,
            }
            try:
                if named[topic, asked.partition_index] > 1:
                    raise Refused(ErrorCode.invalid_request, "a partition is named twice")
                found.append(Found(answer, _find(call, topic, asked), asked.timestamp))
            except REFUSALS as refusal:
                answer["error_code"] = code_of(refusal)
            return answer

        answers = yield from call.each(topic.partitions, begin)
        topics.append({"name": topic.name, "partitions": answers})
    # Records acknowledged before this request count, and where they end must not be taken back.
    asked_for_end = [each.at for each in found if each.when not in _BEFORE_END]
    yield from ends_of(call, asked_for_end)
    yield from _answer(call, topics, found)


class Found(NamedTuple):
    """A partition the client may ask about, and its part of the answer."""

    answer: dict[str, Any]
    at: Partition
    when: int


def _find(call: Call, topic: str, asked: Any) -> Partition:
    index = asked.partition_index
    at = find(call.access, call.door, topic.encode(), index, Operation.DESCRIBE, by_id=False)
    if getattr(asked, "current_leader_epoch", -1) > 0:
        raise Refused(ErrorCode.unknown_leader_epoch, "the only leader epoch is 0")
    return at


def _answer(call: Call, topics: list[dict[str, Any]], found: Sequence[Found]) -> Steps[None]:
    horizon = Horizon.STABLE if call.field("isolation_level", 0) == 1 else Horizon.DURABLE
    located: list[tuple[Found, Later[tuple[int, int]]]] = []

    def locate(one: Found) -> None:
        try:
            located.append((one, _locate(call, one.at, one.when, horizon)))
        except REFUSALS as refusal:
            one.answer["error_code"] = code_of(refusal)

    def finish(one: tuple[Found, Later[tuple[int, int]]]) -> None:
        (answer, at, when), later = one
        try:
            offset, timestamp = later.value
            searched = when != _LATEST and when not in _BEFORE_END
            if searched and offset >= call.context.broker.log.marks(at).at(horizon):
                offset, timestamp = _NOWHERE  # what the reader may not see yet has no time either
        except REFUSALS as refusal:
            answer["error_code"] = code_of(refusal)
            return
        answer["offset"], answer["timestamp"] = offset, timestamp
        if offset >= 0:
            answer["leader_epoch"] = 0

    yield from call.each(found, locate, cost=_LOCATE_COST)
    for _, later in located:
        if not later.ready:
            yield later
    yield from call.each(located, finish)
    yield from call.reply({"topics": topics})


def _locate(call: Call, at: Partition, when: int, horizon: Horizon) -> Later[tuple[int, int]]:
    version_min = _VERSION_MIN.get(when, 1)
    if call.version < version_min:
        raise Refused(
            ErrorCode.unsupported_version,
            f"timestamp {when} in ListOffsets {call.version}; accepted from {version_min} on",
        )
    log = call.context.broker.log
    marks = log.marks(at)
    if when == _LATEST:
        return Later.now((marks.at(horizon), -1))
    if when in (_EARLIEST, _EARLIEST_LOCAL):
        return Later.now((marks.start, -1))
    if when in (_LATEST_TIERED, _EARLIEST_PENDING):
        return Later.now(_NOWHERE)
    return log.locate(at, Edge.NEWEST_TIMESTAMP if when == _NEWEST_TIMESTAMP else when)


API: Final = Api(2, "ListOffsets", 1, 11, serve)
