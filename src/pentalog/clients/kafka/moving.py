"""Topics with their settings, records and offsets, copied from one Kafka cluster to another.

Every record keeps its offset.  Offsets at which there is nothing to see (aborted, compacted,
control, or before the start) are filled with transactions that are aborted, and so seen by nobody
who reads what is committed.  The target's end says how far a move has come: it goes on from there.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pentalog.clients.kafka import messages
from pentalog.clients.kafka.cluster import EARLIEST, LATEST, Cluster, Topic
from pentalog.clients.kafka.connection import checked
from pentalog.clients.kafka.errors import KafkaFailed, Refused
from pentalog.clients.kafka.fetch import FetchFeed
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.clients.kafka.resources import DESCRIBE_CONFIGS, TOPIC, settings_of
from pentalog.clients.kafka.transactions import TransactionalProducer
from pentalog.kernels import BatchHeader, batch_header, crc32c
from pentalog.model import batch
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.pieces import OPENED_BYTES_MAX, Gone, Piece
from pentalog.model.types import Offset, Partition, Record

_DESCRIBE_GROUPS: Final = 15
_LIST_GROUPS: Final = 16
_DELETE_RECORDS: Final = 21
_ALTER_CONFIGS: Final = 44
_GROUP: Final = 0
_SET: Final = 0
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_TOPIC_SOURCE: Final = 1
_OURS: Final = "subscription."
"""Settings that only pentalog has begin like this; other brokers refuse them."""
_DERIVED: Final = "derived."
"""What is derived here comes with its records; derived there too, it would come twice."""
_FILLED_AT_ONCE: Final = 50_000
_LOOK_S: Final = 0.02
_TRIPLE: Final = struct.Struct("=qqq")
_ATTRIBUTES_AT: Final = 21
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_I16: Final = struct.Struct(">h")
_RECORD: Final = struct.Struct(">qqii")

Report = Callable[[int], None]


class Moved(NamedTuple):
    """What a move of one topic came to."""

    topic: str
    partitions: int
    records: int
    """That both sides have, compared one by one."""
    settings_left: Sequence[str]
    """Settings that the target cannot have."""


class Differs(KafkaFailed):
    """Both sides hold something else."""


def move_topic(source: Cluster, target: Cluster, name: str, report: Report) -> Moved:
    """Copy what is missing, and compare everything; `report` is told of offsets as they come."""
    theirs = source.topic(name)
    settings = overrides(source, name)
    kept = {each: value for each, value in settings.items() if not each.startswith(_DERIVED)}
    stamped = {each: kept.pop(each) for each in list(kept) if each == _TIMESTAMP_TYPE}
    _create(target, name, len(theirs.partitions), kept)
    ours = _await_topic(target, name)
    if len(ours.partitions) != len(theirs.partitions):
        raise Differs(
            f"topic {name!r} has {len(ours.partitions)} partitions at the target and "
            f"{len(theirs.partitions)} here; delete it there, or grow the one that has fewer"
        )
    filler = _Filler(target, f"pentalog-move-{name}")
    records = 0
    for index in sorted(theirs.partitions):
        moving = _Moving(source, target, Partition(name, index), filler, report)
        moving.copy()
        records += moving.compare()
    if stamped:
        # Only now: the records shall keep the times they have.
        configure(target, name, stamped)
    left = sorted(settings.keys() - overrides(target, name).keys())
    return Moved(name, len(ours.partitions), records, left)


def _create(target: Cluster, name: str, partitions: int, settings: Mapping[str, str]) -> None:
    try:
        target.create_topic(name, partitions, settings)
    except Refused as refused:
        known = {each: settings[each] for each in settings if not each.startswith(_OURS)}
        if refused.code is not ErrorCode.invalid_config or len(known) == len(settings):
            raise
        target.create_topic(name, partitions, known)


def _await_topic(target: Cluster, name: str) -> Topic:
    """A topic that was created: not every node knows it at once."""
    deadline = time.monotonic() + target.options.timeout_ms / 1000
    while not target.topics([name]) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return target.topic(name)


def move_groups(source: Cluster, target: Cluster, topics: Collection[str]) -> int:
    """Commit at the target what groups have committed of these topics; how many groups have."""
    moved = 0
    for group in group_names(source):
        offsets = {
            at: GroupOffset(found.offset, found.metadata)
            for at, found in committed(source, group).items()
            if at.topic in topics
        }
        if not offsets:
            continue
        commit(target, group, offsets)
        if committed(target, group, list(offsets)) != offsets:
            raise Differs(f"group {group!r} has other offsets at the target; is it used there?")
        moved += 1
    return moved


def group_names(cluster: Cluster) -> list[str]:
    """Of all groups that any node keeps."""

    def once() -> list[str]:
        cluster.topics([])
        found: set[str] = set()
        for node_id in cluster.node_ids:
            fields: Mapping[str, object] = {"states_filter": (), "types_filter": ()}
            answer = cluster.node(node_id).ask(_LIST_GROUPS, fields)
            checked("listing groups", answer.error_code)
            found.update(str(each.group_id) for each in answer.groups)
        return sorted(found)

    return cluster.retried("listing groups", once)


def group_members(cluster: Cluster, group: str) -> int:
    """How many use this group now."""
    fields = {"groups": (group,), "include_authorized_operations": False}
    doing = f"asking who is in group {group!r}"

    def once() -> int:
        (found,) = cluster.coordinator(group, _GROUP).ask(_DESCRIBE_GROUPS, fields).groups
        if found.error_code is ErrorCode.group_id_not_found:
            return 0
        checked(doing, found.error_code)
        return len(found.members)

    return cluster.retried(doing, once)


def overrides(cluster: Cluster, topic: str) -> dict[str, str]:
    """The settings a topic has of its own."""
    doing = f"asking for the settings of {topic!r}"

    def once() -> dict[str, str]:
        (result,) = cluster.control().ask(DESCRIBE_CONFIGS, settings_of(topic)).results
        checked(doing, result.error_code, result.error_message)
        return {
            each.name: each.value
            for each in result.configs
            if each.config_source == _TOPIC_SOURCE and each.value is not None
        }

    return cluster.retried(doing, once)


def configure(cluster: Cluster, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic; the others stay."""
    changes = [
        {"name": name, "config_operation": _SET, "value": value} for name, value in settings.items()
    ]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": changes}
    doing = f"changing topic {topic!r}"

    def once() -> None:
        answer = cluster.control().ask(
            _ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
        )
        (result,) = answer.responses
        checked(doing, result.error_code, result.error_message)

    cluster.retried(doing, once)


def trim(cluster: Cluster, at: Partition, before: Offset) -> None:
    """Give up what lies before an offset, where the topic lets go of records at all."""
    places = [{"partition_index": at.index, "offset": before}]
    fields = {
        "topics": [{"name": at.topic, "partitions": places}],
        "timeout": messages.ms(cluster.options.timeout_ms),
    }
    doing = f"giving up what lies before offset {before} of {at}"

    def once() -> None:
        answer = cluster.leader(at).ask(_DELETE_RECORDS, fields)
        (part,) = answer.topics[0].partitions
        checked(doing, part.error_code)

    try:
        cluster.retried(doing, once)
    except Refused as refused:
        # A topic that is only compacted cannot be trimmed; what is there is not seen.
        if refused.code is not ErrorCode.policy_violation:
            raise


class _Filler:
    """The producer whose transactions are all aborted."""

    def __init__(self, target: Cluster, name: str) -> None:
        self._target = target
        self._name = name
        self._producer: TransactionalProducer | None = None

    def clear_up(self) -> None:
        """Abort what an earlier move may have left open."""
        _ = self.producer

    @property
    def producer(self) -> TransactionalProducer:
        if self._producer is None:
            self._producer = TransactionalProducer(self._target, self._name)
        return self._producer


class _Moving:
    """One partition."""

    def __init__(
        self, source: Cluster, target: Cluster, at: Partition, filler: _Filler, report: Report
    ) -> None:
        self._source = source
        self._target = target
        self._at = at
        self._report = report
        self._start = source.offsets({at: EARLIEST})[at]
        self._end = source.offsets({at: LATEST})[at]
        self._filler = filler
        self._cursor = target.offsets({at: LATEST})[at]
        if self._cursor < self._end:
            filler.clear_up()
            self._cursor = target.offsets({at: LATEST})[at]

    def copy(self) -> None:
        if self._cursor > self._end:
            raise Differs(
                f"{self._at} ends at {self._cursor} at the target and at {self._end} here: "
                "somebody else has written there; delete the topic there to begin anew"
            )
        if self._cursor < self._start:
            self._fill(self._start)
        for header, data in self._batches(self._source, self._cursor, self._end):
            for first, one in _runs(header, data, self._cursor):
                self._fill(first)
                self._write(one)
        self._fill(self._end)
        if self._target.offsets({self._at: EARLIEST})[self._at] < self._start:
            trim(self._target, self._at, self._start)

    def compare(self) -> int:
        """How many records both sides have; raises `Differs`."""
        first = max(self._start, self._target.offsets({self._at: EARLIEST})[self._at])
        here, there = (self._digest(side, first) for side in (self._source, self._target))
        if here != there:
            raise Differs(
                f"{self._at} holds {there[0]} records at the target and {here[0]} here, or other "
                "ones; delete the topic there and move it again"
            )
        return here[0]

    def _digest(self, side: Cluster, first: Offset) -> tuple[int, str]:
        count, digest = 0, hashlib.blake2b(digest_size=16)
        for _, data in self._batches(side, first, self._end):
            for offset, record in batch.records_of(data, 0, bytes_max=OPENED_BYTES_MAX):
                if not first <= offset < self._end:
                    continue
                count += 1
                key, value = record.key or b"", record.value or b""
                sizes = (_size(record.key), _size(record.value))
                digest.update(_RECORD.pack(offset, record.timestamp_ms, *sizes))
                digest.update(key + value + repr(record.headers).encode())
        return count, digest.hexdigest()

    def _batches(
        self, side: Cluster, first: Offset, end: Offset
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch somebody may see."""
        if first >= end:
            return
        feed = FetchFeed(side, self._at, first, end)
        try:
            while True:
                try:
                    piece = feed.read()
                except Gone:
                    continue  # the place of what is gone is filled
                if piece is None:
                    return
                yield from seen(piece)
        finally:
            feed.close()

    def _write(self, one: bytearray) -> None:
        size = batch_header(one, 0).last_offset_delta + 1
        self._check_place(self._target.produce(self._at, bytes(one)))
        self._cursor += size
        self._report(size)

    def _check_place(self, offset: Offset) -> None:
        if offset != self._cursor:
            raise Differs(
                f"a batch of {self._at} got offset {offset} at the target instead of "
                f"{self._cursor}: somebody else writes there, or an answer was lost; delete the "
                "topic there and move it again"
            )

    def _fill(self, until: Offset) -> None:
        """Nothing to see up to this offset."""
        while self._cursor < until:
            producer = self._filler.producer
            count = min(until - self._cursor, _FILLED_AT_ONCE)
            if count == 1:
                producer.add_partitions([self._at])
            else:
                nothing = [Record(None, b"")] * (count - 1)
                made = batch.build(nothing, timestamp_ms=0, codec=_GZIP)
                self._check_place(producer.produce(self._at, made))
            producer.abort()
            self._await_end(self._cursor + count)
            self._cursor += count
            self._report(count)

    def _await_end(self, expected: Offset) -> None:
        """The marker that ends a transaction is written after it is promised."""
        deadline = time.monotonic() + self._target.options.timeout_ms / 1000
        while (end := self._target.offsets({self._at: LATEST})[self._at]) < expected:
            if time.monotonic() > deadline:
                raise KafkaFailed(f"{self._at} did not get to offset {expected}; it ends at {end}")
            time.sleep(_LOOK_S)
        if end > expected:
            raise Differs(f"{self._at} ends at {end} instead of {expected}: somebody else writes")


_GZIP: Final = 1


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def seen(piece: Piece) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a piece without markers and what was aborted."""
    aborted = list(_TRIPLE.iter_unpack(piece.aborted))
    position = 0
    while position < len(piece.data):
        header = batch_header(piece.data, position)
        data = piece.data[position : position + header.size]
        position += header.size
        if header.attributes & batch.CONTROL:
            continue
        if header.attributes & batch.TRANSACTIONAL and any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last in aborted
        ):
            continue
        yield header, data


def _runs(
    header: BatchHeader, data: memoryview, cursor: Offset
) -> Iterator[tuple[Offset, bytearray]]:
    """The batch as brokers take it: without gaps, from the cursor on, of no producer."""
    whole = header.records == header.last_offset_delta + 1 and header.base_offset >= cursor
    if whole and not header.attributes & batch.APPEND_TIME:
        yield header.base_offset, _plain(bytearray(data))
        return
    run: list[Record] = []
    first = -1
    for offset, record in batch.records_of(data, 0, bytes_max=OPENED_BYTES_MAX):
        if offset < cursor:
            continue
        if run and offset != first + len(run):
            yield first, batch.build(run, timestamp_ms=0)
            run = []
        if not run:
            first = offset
        run.append(record)
    if run:
        yield first, batch.build(run, timestamp_ms=0)


def _plain(one: bytearray) -> bytearray:
    header = batch_header(one, 0)
    struct.pack_into(">q", one, 0, 0)
    # A delete horizon is the source's: tombstones have their full time at the target.
    attributes = header.attributes & ~(batch.TRANSACTIONAL | batch.DELETE_HORIZON)
    _I16.pack_into(one, _ATTRIBUTES_AT, attributes)
    _PRODUCER.pack_into(one, _PRODUCER_AT, -1, -1, -1)
    _CRC.pack_into(one, _CRC_AT, crc32c(memoryview(one)[_ATTRIBUTES_AT:]))
    return one
