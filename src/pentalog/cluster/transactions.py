"""Transactions by the cluster's own coordinators; the port's `Transactions`.

What is known here of a transaction is what passed through this gateway, or was asked for.  It need
not be true any more: whoever acts on it is fenced by the cluster.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pentalog.broker.port import Committed, TransactionView, WriterView
from pentalog.clients.kafka import messages
from pentalog.cluster.coordination import GROUP, TRANSACTION, Coordination
from pentalog.cluster.fleet import Fleet, by_topic
from pentalog.cluster.named_producers import ClusterNamedProducers
from pentalog.cluster.offsets import Members, move_on, offset_fields
from pentalog.cluster.refusals import Lost, Refused, check
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.writing import Writing
from pentalog.model.errors import (
    ProducerFenced,
    TransactionState,
    TransactionUnknown,
    UnsupportedVersion,
)
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Identity, Offset, Partition

REMEMBERED_MAX: Final = 10_000

_INIT_PRODUCER_ID: Final = 22
_ADD_PARTITIONS: Final = 24
_ADD_OFFSETS: Final = 25
_END: Final = 26
_OFFSET_COMMIT: Final = 28
_DESCRIBE: Final = 65
_NAME_BYTES_MAX: Final = (1 << 15) - 1
_STATE: Final = struct.Struct(">iqqh")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_EMPTY: Final = "Empty"
_ONGOING: Final = "Ongoing"
_PREPARING: Final = ("PrepareCommit", "PrepareAbort")


class Described(NamedTuple):
    """What a coordinator says of one transactional id."""

    code: ErrorCode
    phase: str
    timeout_ms: int
    started_ms: int
    who: Identity
    partitions: Sequence[Partition] = ()
    """Those that take part."""


class _Known:
    """One transactional id."""

    def __init__(self, name: str, who: Identity, timeout_ms: int, phase: str = _EMPTY) -> None:
        self.name = name
        self.who = who
        self.timeout_ms = timeout_ms
        self.phase = phase
        self.partitions: dict[Partition, None] = {}
        self.groups: set[str] = set()


def describe_body(name: str) -> Sequence[bytes]:
    """DescribeTransactions, version 0, by hand: kio does not read the time that is none.

    The first byte ends the header, which has no tagged fields.
    """
    data = name.encode()
    return (b"\0" + b"\2" + _varint(len(data) + 1) + data + b"\0",)


def read_described(data: memoryview) -> Described:
    try:
        # No tagged fields in the header, the throttle time, one transaction.
        (code,) = _I16.unpack_from(data, 6)
        _, position = _text(data, 8)
        phase, position = _text(data, position)
        timeout_ms, started_ms, producer_id, epoch = _STATE.unpack_from(data, position)
        who = Identity(producer_id, epoch)
        partitions = _participants(data, position + _STATE.size)
        return Described(ErrorCode(code), phase, timeout_ms, started_ms, who, partitions)
    except (struct.error, ValueError, IndexError) as flaw:
        raise Lost(f"the cluster's answer to DescribeTransactions cannot be read: {flaw}") from flaw


class ClusterTransactions:
    def __init__(
        self,
        fleet: Fleet,
        coordination: Coordination,
        writing: Writing,
        producers: ClusterNamedProducers,
        members: Members,
    ) -> None:
        self._fleet = fleet
        self._coordination = coordination
        self._writing = writing
        self._producers = producers
        self._members = members
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._names: dict[int, str] = {}

    def name_of(self, producer_id: int) -> str | None:
        """The transactional id under which a producer writes."""
        return self._names.get(producer_id)

    # What is known

    def view(self, name: str) -> TransactionView:
        return _view(self._find(name))

    def all(self, pattern: str | None = None) -> Iterator[TransactionView | None]:
        """Those that pass through this gateway."""
        if pattern is not None:
            raise UnsupportedVersion("transactions of a cluster are not searched by its gateways")
        return map(_view, tuple(self._known.values()))

    def writers(self, at: Partition) -> Sequence[WriterView]:
        raise UnsupportedVersion("who writes to a cluster is told by the cluster: ask it")

    def unended(self, at: Partition) -> Offset | None:
        raise UnsupportedVersion("transactions of a cluster are told of by the cluster: ask it")

    def mark(self, who: Identity, at: Partition, *, commit: bool) -> Later[None]:
        raise UnsupportedVersion("markers of a cluster are not written by its gateways")

    def _find(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            raise TransactionUnknown(f"transactional id {name!r} has no producer: identify first")
        return known

    def _own(self, name: str, who: Identity) -> _Known:
        known = self._find(name)
        if known.who != who:
            raise ProducerFenced(
                f"{who} of transactional id {name!r} is not the newest: that is {known.who}"
            )
        return known

    def _remember(self, known: _Known) -> _Known:
        before = self._known.pop(known.name, None)
        if before is not None:
            self._names.pop(before.who.producer_id, None)
        self._known[known.name] = known
        self._names[known.who.producer_id] = known.name
        if len(self._known) > REMEMBERED_MAX:
            _, oldest = self._known.popitem(last=False)
            self._names.pop(oldest.who.producer_id, None)
        return known

    def look_up(self, name: str, epoch: int | None) -> Later[None]:
        """Learn of a transactional id, unless its producer is here in this epoch."""
        known = self._known.get(name)
        if (
            not name
            or len(name.encode()) > _NAME_BYTES_MAX
            or (known is not None and known.who.epoch == epoch)
        ):
            return Later.now(None)
        return begin(self._fleet.persist(lambda: self._look_up(name)))

    def _look_up(self, name: str) -> Steps[None]:
        found = yield from self._described(name)
        if found.code is ErrorCode.transactional_id_not_found:
            self._known.pop(name, None)
            return
        check(f"asking for transactional id {name!r}", found.code)
        known = self._known.get(name)
        if known is None or known.who != found.who:
            known = self._remember(_Known(name, found.who, found.timeout_ms))
        known.phase = found.phase
        if found.phase == _ONGOING:
            known.partitions.update(dict.fromkeys(found.partitions))

    def _described(self, name: str) -> Steps[Described]:
        answer = yield from self._coordination.exchange(
            TRANSACTION, name, _DESCRIBE, 0, describe_body(name), lambda data: _code_of(data)
        )
        return read_described(answer)

    # Conversations

    def identify(
        self, name: str, *, timeout_ms: int, known: Identity | None = None, owner: str = ""
    ) -> Later[Identity]:
        return begin(self._identify(name, timeout_ms, known))

    def _identify(self, name: str, timeout_ms: int, known: Identity | None) -> Steps[Identity]:
        before = Identity(-1, -1) if known is None else known
        fields = {
            "transactional_id": name,
            "transaction_timeout": messages.ms(timeout_ms),
            "producer_id": before.producer_id,
            "producer_epoch": before.epoch,
        }

        def once() -> Steps[Identity]:
            answer = yield from self._ask(name, _INIT_PRODUCER_ID, fields)
            check(f"identifying transactional id {name!r}", answer.error_code)
            return Identity(answer.producer_id, answer.producer_epoch)

        who = yield from self._fleet.persist(once)
        self._remember(_Known(name, who, timeout_ms))
        return who

    def prepare(self, name: str, at: Partition) -> Later[None]:
        """Let a partition take part, and know what its producer wrote there."""
        known = self._known.get(name)
        if known is None or known.phase in _PREPARING:
            return Later.now(None)
        if at in known.partitions and self._producers.written(at, known.who):
            return Later.now(None)
        return begin(self._prepare(known, at))

    def learn_writes(self, name: str, at: Partition) -> Later[None]:
        """Ask the leader what the producer of a transactional id wrote, here or elsewhere."""
        known = self._known.get(name)
        return Later.now(None) if known is None else begin(self._learn_writes(known, at))

    def _learn_writes(self, known: _Known, at: Partition) -> Steps[None]:
        yield self._writing.drained(at)
        yield from self._fleet.persist(lambda: self._producers.describe(at, known.who))

    def _prepare(self, known: _Known, at: Partition) -> Steps[None]:
        if at not in known.partitions:
            yield from self._fleet.persist(lambda: self._add([at], known))
        if not self._producers.written(at, known.who):
            yield from self._fleet.persist(lambda: self._producers.describe(at, known.who))

    def _add(self, at: Collection[Partition], known: _Known) -> Steps[None]:
        fields = {
            "v3_and_below_transactional_id": known.name,
            "v3_and_below_producer_id": known.who.producer_id,
            "v3_and_below_producer_epoch": known.who.epoch,
            "v3_and_below_topics": [
                {"name": topic, "partitions": tuple(indexes)}
                for topic, indexes in by_topic(at).items()
            ],
        }

        def code(answer: Any) -> ErrorCode:
            found: ErrorCode
            for topic in answer.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    found = part.partition_error_code
                    if found not in (ErrorCode.none, ErrorCode.operation_not_attempted):
                        return found
            return ErrorCode.none

        answer = yield from self._coordination.ask(
            TRANSACTION, known.name, _ADD_PARTITIONS, fields, code
        )
        check(f"writing in transaction {known.name!r}", code(answer))
        known.partitions.update(dict.fromkeys(at))
        known.phase = _ONGOING

    def enlist(self, name: str, who: Identity, at: Collection[Partition]) -> None:
        self._own(name, who)
        for where in at:
            self.admit(name, who, where, enlists=False)

    def enlist_group(self, name: str, who: Identity, group: str) -> None:
        if group not in self._own(name, who).groups:
            raise TransactionState(f"group {group!r} takes part by its first staged offset")

    def enlisted(self, name: str, who: Identity, at: Partition) -> bool:
        return at in self._own(name, who).partitions

    def admit(self, name: str, who: Identity, at: Partition, *, enlists: bool) -> None:
        """Those take part that were prepared."""
        if at not in self._own(name, who).partitions:
            raise TransactionState(f"{at} takes no part in transaction {name!r}: begin it again")

    def stage(
        self,
        name: str,
        who: Identity,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        enlists: bool,
    ) -> Later[None]:
        return begin(self._stage(self._own(name, who), group, dict(offsets)))

    def _stage(
        self, known: _Known, group: str, offsets: Mapping[Partition, Committed]
    ) -> Steps[None]:
        doing = f"offsets of group {group!r} in transaction {known.name!r}"
        whose = {
            "transactional_id": known.name,
            "producer_id": known.who.producer_id,
            "producer_epoch": known.who.epoch,
            "group_id": group,
        }

        def add() -> Steps[None]:
            answer = yield from self._ask(known.name, _ADD_OFFSETS, whose)
            check(doing, answer.error_code)

        def code(answer: Any) -> ErrorCode:
            codes = (part.error_code for topic in answer.topics for part in topic.partitions)
            return next((each for each in codes if each), ErrorCode.none)

        def commit() -> Steps[None]:
            fence = self._members.fence(group, offsets)
            fields = {
                **whose,
                "generation_id": fence.generation,
                "member_id": fence.member_id,
                "group_instance_id": None,
                "topics": offset_fields(offsets),
            }
            answer = yield from self._coordination.ask(GROUP, group, _OFFSET_COMMIT, fields, code)
            if code(answer) is ErrorCode.stale_member_epoch:
                yield from move_on(self._members, group, fence, offsets)
            check(doing, code(answer))

        if group not in known.groups:
            yield from self._fleet.persist(add)
            known.groups.add(group)
            known.phase = _ONGOING
        yield from self._fleet.persist(commit)

    def end(self, name: str, who: Identity, *, commit: bool, bump: bool) -> Later[Identity]:
        return begin(self._end(self._own(name, who), commit=commit, bump=bump))

    def _end(self, known: _Known, *, commit: bool, bump: bool) -> Steps[Identity]:
        # What was sent before belongs to the transaction, and must not come after its end.
        yield all_of([self._writing.drained(at) for at in known.partitions])
        fields = {
            "transactional_id": known.name,
            "producer_id": known.who.producer_id,
            "producer_epoch": known.who.epoch,
            "committed": commit,
        }

        def once() -> Steps[None]:
            answer = yield from self._ask(known.name, _END, fields)
            check(f"ending transaction {known.name!r}", answer.error_code)

        def seen() -> Steps[None]:
            found = yield from self._described(known.name)
            if found.phase in _PREPARING and found.who == known.who:
                raise Refused(
                    f"waiting for the end of transaction {known.name!r}",
                    ErrorCode.coordinator_load_in_progress,
                )

        yield from self._fleet.persist(once)
        known.phase = "PrepareCommit" if commit else "PrepareAbort"
        yield from self._fleet.persist(seen)
        known.phase = "CompleteCommit" if commit else "CompleteAbort"
        known.partitions.clear()
        known.groups.clear()
        if bump:
            return (yield from self._identify(known.name, known.timeout_ms, known.who))
        return known.who

    def _ask(self, name: str, key: int, fields: Mapping[str, Any]) -> Steps[Any]:
        return (
            yield from self._coordination.ask(
                TRANSACTION, name, key, fields, lambda answer: answer.error_code
            )
        )


def _view(known: _Known) -> TransactionView:
    return TransactionView(
        known.name, known.who, known.phase, known.timeout_ms, -1, tuple(known.partitions)
    )


def _code_of(data: memoryview) -> ErrorCode:
    return read_described(data).code


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _participants(data: memoryview, position: int) -> list[Partition]:
    """The topics of a described transaction, each with its partitions."""
    found: list[Partition] = []
    topics, position = _unsigned(data, position)
    for _ in range(topics - 1):
        topic, position = _text(data, position)
        count, position = _unsigned(data, position)
        end = position + 4 * max(count - 1, 0)
        found += [Partition(topic, index) for (index,) in _I32.iter_unpack(data[position:end])]
        position = end + 1  # no tagged fields
    return found


def _unsigned(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _text(data: memoryview, position: int) -> tuple[str, int]:
    size, position = _unsigned(data, position)
    end = position + max(size - 1, 0)
    return str(data[position:end], "utf-8"), end
