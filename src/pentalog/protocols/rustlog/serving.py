"""What each request asks of the broker; Produce and Fetch are in `records.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pentalog.broker.port import Committed, TopicSpec
from pentalog.broker.security import Kind
from pentalog.model.errors import (
    BrokerError,
    InvalidPartitions,
    PartitionNotFound,
    TopicNotFound,
)
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition
from pentalog.protocols.rustlog import prometheus, rights
from pentalog.protocols.rustlog.errors import Invalid
from pentalog.protocols.rustlog.frames import FRAME_BYTES_MAX
from pentalog.protocols.rustlog.line import CREATION_WORK, Line, Steps, finished
from pentalog.protocols.rustlog.messages import (
    PARTITIONS_MAX,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Request,
)
from pentalog.protocols.rustlog.records import Fetching
from pentalog.protocols.rustlog.replies import REFUSALS, Bounds, Dialect
from pentalog.session import Place

MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + 4096
"""`max.message.bytes` of topics made here: the largest record a frame can bring must fit."""
_I64_MAX: Final = (1 << 63) - 1
_U64_MAX: Final = (1 << 64) - 1
_U64_DIGITS_MAX: Final = 20
_NAMES_PER_STEP: Final = 32
_I32_MAX: Final = (1 << 31) - 1
_TEXT_BYTES_MAX: Final = (1 << 15) - 1
EXACT: Final = "rustlog.offset="
"""How the metadata of a commit begins whose offset has 64 bits: the log counts in 63."""


def serve(line: Line, dialect: Dialect, request: Request) -> None:
    """Answer a request now or later."""
    try:
        rights.check(line.context.access, request)
        _SERVED[type(request)](line, dialect, request)
    except REFUSALS as refusal:
        line.refuse(dialect, request, refusal, None)


def _ping(line: Line, dialect: Dialect, _: Ping) -> None:
    line.say(dialect.pong())


def _fetch(line: Line, dialect: Dialect, request: Fetch) -> None:
    offset = request.offset
    settled: Later[None] | None = None
    if request.group_id and not dialect.json:
        at = Partition(request.topic, request.partition)
        offsets = line.context.broker.groups.offsets
        found = offsets.committed(request.group_id, (at,)).get(at)
        settled = offsets.settled(request.group_id)
        if found is not None:
            offset = _offset_of(found)
        elif line.context.config.rustlog_strict_groups:
            line.answer_later(dialect, request, settled, lambda _: dialect.nothing(0))
            return
    route = line.door.routes.find(request.topic, request.partition)
    Fetching(line, dialect, request, route.at, offset).start(settled)


def _offset_commit(line: Line, dialect: Dialect, request: OffsetCommit) -> None:
    if dialect.json:
        try:
            line.door.routes.find(request.topic, request.partition)
        except (TopicNotFound, PartitionNotFound):
            line.say(dialect.committed(accepted=False))
            return
    if not line.context.broker.knowledge.current:
        _check_for_cluster(request)
    at = Partition(request.topic, request.partition)
    offsets = line.context.broker.groups.offsets
    later = offsets.commit(
        request.group, {at: _committed(request.offset)}, owner=line.context.access.owner
    )
    line.answer_later(dialect, request, later, lambda _: dialect.committed(accepted=True))


def _check_for_cluster(request: OffsetCommit) -> None:
    """A cluster keeps what Kafka's own requests can tell it."""
    if request.partition > _I32_MAX:
        raise Invalid(f"partition {request.partition}; 0 to {_I32_MAX} are accepted")
    for what, name in (("topic", request.topic), ("group", request.group)):
        if len(name.encode()) > _TEXT_BYTES_MAX:
            raise Invalid(f"a {what} name of more than {_TEXT_BYTES_MAX} bytes")


def _committed(offset: int) -> Committed:
    if offset <= _I64_MAX:
        return Committed(offset)
    return Committed(_I64_MAX, metadata=f"{EXACT}{offset}")


def _offset_of(committed: Committed) -> int:
    """As it was committed here; other protocols see the nearest offset there can be."""
    if committed.offset == _I64_MAX and committed.metadata.startswith(EXACT):
        digits = committed.metadata[len(EXACT) : len(EXACT) + _U64_DIGITS_MAX]
        if digits.isascii() and digits.isdecimal():
            return min(int(digits), _U64_MAX)
    return committed.offset


def _offset_fetch(line: Line, dialect: Dialect, request: OffsetFetch) -> None:
    at = Partition(request.topic, request.partition)
    offsets = line.context.broker.groups.offsets
    found = offsets.committed(request.group, (at,)).get(at)
    offset = None if found is None else _offset_of(found)
    settled = offsets.settled(request.group)
    line.answer_later(dialect, request, settled, lambda _: dialect.offset(offset))


def _create_topic(line: Line, dialect: Dialect, request: CreateTopic) -> None:
    if not 1 <= request.partition_count <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"{request.partition_count} partitions; 1 to {PARTITIONS_MAX} are accepted"
        )
    spec = TopicSpec(
        name=request.topic,
        partitions=request.partition_count,
        settings={"max.message.bytes": str(MESSAGE_BYTES_MAX)},
    )
    topics = line.context.broker.topics
    topics.create(spec, dry_run=True)
    prepared = topics.prepare(spec)
    if prepared.ready:
        _create(line, dialect, request, spec, None)
        return
    place = line.replies.place()
    line.busy = True
    prepared.then(lambda done: _create_prepared(line, dialect, request, spec, place, done))


def _create_prepared(
    line: Line,
    dialect: Dialect,
    request: CreateTopic,
    spec: TopicSpec,
    place: Place,
    prepared: Later[None],
) -> None:
    line.busy = False
    try:
        prepared.check()
        _create(line, dialect, request, spec, place)
    except BrokerError as refusal:
        line.refuse(dialect, request, refusal, place)


def _create(
    line: Line, dialect: Dialect, request: CreateTopic, spec: TopicSpec, place: Place | None
) -> None:
    topics = line.context.broker.topics
    line.context.usage.check_change()
    partitions = topics.create(spec).partitions
    line.work += CREATION_WORK
    line.context.usage.changed(partitions)
    line.context.access.record("create topic", spec.name)
    line.answer_later(
        dialect, request, topics.settle(), lambda _: dialect.created(partitions), place
    )


def _list_topics(line: Line, dialect: Dialect, request: ListTopics) -> None:
    line.slice(dialect, request, _listing(line, dialect))


def _listing(line: Line, dialect: Dialect) -> Steps:
    found: list[tuple[str, int]] = []
    access = line.context.access
    for number, topic in enumerate(line.context.broker.topics.all()):
        if not number % _NAMES_PER_STEP:
            yield
        if not access.guarded or access.sees(Kind.TOPIC, topic.name):
            found.append((topic.name, topic.partitions))
    return (yield from dialect.topics(found))


def _describe_topic(line: Line, dialect: Dialect, request: DescribeTopic) -> None:
    topic = line.context.broker.topics.get(request.topic)
    every = [Partition(topic.name, index) for index in range(topic.partitions)]

    def describing(ends: Mapping[Partition, Offset]) -> Steps:
        found: list[Bounds] = []
        for number, at in enumerate(every):
            found.append(_bounds(line, at, ends))
            if number % _NAMES_PER_STEP == _NAMES_PER_STEP - 1:
                yield
        return (yield from dialect.topic(topic.name, found))

    if len(every) > _NAMES_PER_STEP:
        line.slice_with_ends(dialect, request, every, describing)
    else:
        line.answer_with_ends(dialect, request, every, lambda ends: finished(describing(ends)))


def _describe_partition(line: Line, dialect: Dialect, request: DescribePartition) -> None:
    at = line.door.routes.find(request.topic, request.partition).at
    line.answer_with_ends(
        dialect,
        request,
        (at,),
        lambda ends: dialect.partition(request.topic, _bounds(line, at, ends)),
    )


def _bounds(line: Line, at: Partition, ends: Mapping[Partition, Offset]) -> Bounds:
    log = line.context.broker.log
    start = log.marks(at).start
    return Bounds(at.index, ends.get(at, start), start, log.segments(at))


def _metrics_fetch(line: Line, dialect: Dialect, request: MetricsFetch) -> None:
    def answering() -> Steps:
        text = yield from prometheus.text(line.door, line.context)
        return dialect.metrics(text)

    line.slice(dialect, request, answering())


_SERVED: Final[Mapping[type, Callable[[Line, Dialect, Any], None]]] = {
    Ping: _ping,
    Fetch: _fetch,
    OffsetCommit: _offset_commit,
    OffsetFetch: _offset_fetch,
    CreateTopic: _create_topic,
    ListTopics: _list_topics,
    DescribeTopic: _describe_topic,
    DescribePartition: _describe_partition,
    MetricsFetch: _metrics_fetch,
}
