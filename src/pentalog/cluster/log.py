"""Append, settle, read, wait: the port's `Log` on the leaders of a cluster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

from pentalog import kernels
from pentalog.broker.opening import OPENED_AT_ONCE_MAX, Openings
from pentalog.broker.port import Admitted, Opened, Waiting
from pentalog.cluster import fetch
from pentalog.cluster.aborts import aborted_in
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import READING, Fleet
from pentalog.cluster.link import Link
from pentalog.cluster.polling import FIRST_BYTES, Found, Polling
from pentalog.cluster.recent import Recent
from pentalog.cluster.refusals import Refused, Trouble
from pentalog.cluster.sizes import Sizes
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import NO_LEADER, ClusterTopics
from pentalog.cluster.writing import ACKS_ALL, Sending, Writing
from pentalog.kernels import Facts
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    OffsetOutOfRange,
    RecordTooLarge,
    UnsupportedVersion,
)
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import (
    Ack,
    Appended,
    Edge,
    FilePiece,
    Horizon,
    Identity,
    Marks,
    Offset,
    Partition,
    Slice,
    Volume,
)
from pentalog.runtime import Runtime

_OFFSET_MAX: Final = (1 << 63) - 1
_BATCH_BYTES_MIN: Final = 61
_AHEAD_BYTES_MAX: Final = 64 << 20
_AHEAD_MAX: Final = 1_000
_COPY_WAIT_MS: Final = 1_000
"""How long a reader waits until replicas have what a leader acknowledged."""


class _Sent(Appended):
    """An append whose offsets only the cluster knows."""

    sendings: Sequence[Sending]


Sent: TypeAlias = Callable[[Partition, Identity, int, int, Later[Appended]], None]
"""Where, who, its first and last sequence, and what becomes of it."""


class ClusterLog:
    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        bounds: Bounds,
        writing: Writing,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._writing = writing
        self._runtime = runtime
        self._metrics = metrics
        self._openings = Openings(runtime, metrics)
        self._ahead = Ahead()
        self.sizes = Sizes(fleet, topics)
        self._recent = Recent(bounds, runtime)
        self._polling = Polling(fleet, topics, bounds, runtime)
        self._polling.found = self._polled
        self._appended_bytes: dict[Partition, int] = {}
        self.sent: Sent = _not_noted
        """Told of every batch that says itself whose it is."""
        self.transactional_id: Callable[[int], str | None] = lambda producer_id: None
        """Under which one a producer writes."""
        writing.written = bounds.acknowledged
        topics.watch(self._ahead.clear)
        topics.watch(self._recent.clear)

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        parted: bool = False,
        given: bool = False,
        opened: LogSettings | None = None,
        relayed: bool = False,
    ) -> Appended:
        self._topics.leader(at)
        self._topics.check_writable(at.topic)
        if facts is None:
            facts = kernels.check_batches(batches, 0, len(batches))
        if facts.flaw or not facts.batches:
            raise BatchCorrupt(f"a batch for {at} is not sound: flaw {facts.flaw}")
        bytes_max = self._topics.get(at.topic).settings.message_bytes_max
        if facts.batch_bytes_max > bytes_max:
            raise RecordTooLarge(
                f"batch of {facts.batch_bytes_max} bytes for {at}; "
                f"max.message.bytes accepts {bytes_max}"
            )
        if facts.batches > 1 and not parted:
            raise RecordTooLarge(
                f"{len(batches)} bytes in {facts.batches} batches for {at}: a cluster takes one "
                f"batch of at most {bytes_max} bytes at a time; send less at once"
            )
        self._writing.check_room(len(batches))
        sent = _Sent(at, -1, -1, -1, -1)
        if given and facts.batches == 1 and isinstance(batches.obj, bytearray):
            sent.sendings = [self._send(at, batches.obj, facts)]
        else:
            parts = _each(batches, facts)
            sent.sendings = [self._send(at, bytearray(data), known) for data, known in parts]
        self._appended_bytes[at] = self._appended_bytes.get(at, 0) + len(batches)
        self._metrics.appended_batches += facts.batches
        self._metrics.appended_records += facts.records
        self._metrics.appended_bytes += len(batches)
        return sent

    def admission(
        self, at: Partition, batches: memoryview, facts: Facts, *, owned: bool = False
    ) -> Later[Admitted] | None:
        """None: the cluster checks records itself."""
        return None

    def _send(self, at: Partition, data: bytearray, facts: Facts) -> Sending:
        own = facts.producer_id < 0
        sending = self._writing.take(at, data, facts.offsets, own=own)
        if not own:
            who = Identity(facts.producer_id, facts.producer_epoch)
            if facts.attributes_any & batch.TRANSACTIONAL:
                sending.transactional_id = self.transactional_id(facts.producer_id)
            self.sent(at, who, facts.sequence_first, facts.sequence_last, sending.later)
        return sending

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        if not isinstance(appended, _Sent):
            return Later.now(appended)  # the cluster had it before
        if ack is Ack.NONE:
            return Later.now(appended)
        if ack is Ack.DURABLE:
            for sending in appended.sendings:
                sending.acks = ACKS_ALL
        if len(appended.sendings) == 1:
            return appended.sendings[0].later
        return begin(_all_settled([sending.later for sending in appended.sendings]))

    def read(
        self,
        at: Partition,
        offset: Offset,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool = True,
    ) -> Later[Slice]:
        ahead = self._ahead.take(at, offset, bytes_max) if horizon is Horizon.STABLE else None
        if ahead is not None and (ahead.size_bytes or ahead.marks == self._bounds.marks(at)):
            return Later.now(ahead)

        def once() -> Steps[Slice]:
            return (yield from self._read(at, offset, bytes_max, horizon, whole_first))

        return begin(self._fleet.persist(once))

    def fetch_ahead(self, at: Partition, offset: Offset, *, bytes_max: int) -> Later[None]:
        """Learn the marks, and keep what the next read of the same place will ask for."""
        return begin(self._fetch_ahead(at, offset, bytes_max))

    def holds(self, at: Partition, offset: Offset, *, bytes_max: int) -> bool:
        """Would `open` find records from here on without asking?"""
        return self._recent.find(at, offset, bytes_max) is not None

    def _fetch_ahead(self, at: Partition, offset: Offset, bytes_max: int) -> Steps[None]:
        self._ahead.drop(at, offset)
        found = yield self.read(at, offset, bytes_max=bytes_max, horizon=Horizon.STABLE)
        self._ahead.keep(at, offset, bytes_max, found)

    def _read(
        self, at: Partition, offset: Offset, bytes_max: int, horizon: Horizon, whole_first: bool
    ) -> Steps[Slice]:
        leader = self._topics.leader(at)
        link = None if leader == NO_LEADER else self._fleet.node(leader, READING)
        try:
            link = self._fleet.required(link, f"reading {at}")
            if offset > _OFFSET_MAX:
                yield from self._bounds.refresh([at])
                self._refuse_offset(at, offset)
            # Only so does a node tell what was aborted, and no reader here is shown that.
            fetched = yield from self._fetch(link, at, offset, bytes_max, committed=True)
            beyond = horizon is not Horizon.STABLE and not fetched.data
            if beyond and offset < fetched.marks.at(horizon):
                fetched = yield from self._fetch(link, at, offset, bytes_max, committed=False)
                fetched = fetched._replace(aborted=aborted_in(fetched.data))
            else:
                horizon = Horizon.STABLE
        except Trouble:
            yield from self._topics.refresh(at.topic)
            raise
        self._bounds.told(at, fetched.marks)
        self._metrics.read_bytes += len(fetched.data)
        found = self._slice(at, offset, fetched, bytes_max, horizon, whole_first)
        if horizon is Horizon.STABLE:
            self._recent.keep(at, found)
        return found

    def _fetch(
        self, link: Link, at: Partition, offset: Offset, bytes_max: int, *, committed: bool
    ) -> Steps[fetch.Fetched]:
        body = fetch.request_body(at, offset, max(bytes_max, 1), committed=committed)
        fetched = fetch.read_answer((yield link.exchange(fetch.KEY, fetch.VERSION, body)))
        link.mute(fetched.throttle_ms)
        if fetched.code is ErrorCode.offset_out_of_range:
            yield from self._bounds.refresh([at])
            self._refuse_offset(at, offset)
        if fetched.code:
            raise Refused(f"reading {at}", fetched.code)
        return fetched

    def _refuse_offset(self, at: Partition, offset: Offset) -> NoReturn:
        marks = self._bounds.marks(at)
        raise OffsetOutOfRange(
            f"offset {offset} of {at}; it holds {marks.start}..{marks.end}",
            start=marks.start,
            end=marks.end,
        )

    def _slice(
        self,
        at: Partition,
        offset: Offset,
        fetched: fetch.Fetched,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool,
    ) -> Slice:
        data = fetched.data
        limit = fetched.marks.at(horizon)
        # A node cuts its answer where the bytes end, not where a batch does.
        end, next_offset = kernels.fit_batches(data, 0, len(data), len(data), limit)
        if not end and len(data) >= _BATCH_BYTES_MIN:
            raise BatchCorrupt(f"{at} from offset {offset}: the cluster sent no whole batch")
        if end > bytes_max and not whole_first:
            end, next_offset = kernels.fit_batches(data, 0, len(data), bytes_max, limit)
        if not end:
            return Slice((), 0, fetched.marks, offset)
        return Slice((data[:end],), end, fetched.marks, max(next_offset, offset), fetched.aborted)

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]:
        if horizon is Horizon.STABLE and not self._ahead.holds(at, offset):
            found = self._recent.find(at, offset, bytes_max)
            if found is not None:
                bytes_max = min(bytes_max, OPENED_AT_ONCE_MAX)
                return self._openings.open(
                    at, offset, found, bytes_max=bytes_max, read_piece=_no_files
                )
        return begin(self._open(at, offset, bytes_max, horizon))

    def _open(
        self, at: Partition, offset: Offset, bytes_max: int, horizon: Horizon
    ) -> Steps[Opened]:
        found = yield self.read(at, offset, bytes_max=bytes_max, horizon=horizon)
        bytes_max = min(bytes_max, OPENED_AT_ONCE_MAX)
        opened: Opened = yield self._openings.open(
            at, offset, found, bytes_max=bytes_max, read_piece=_no_files
        )
        return opened

    def wait(
        self,
        positions: Mapping[Partition, Offset],
        *,
        bytes_min: int,
        horizon: Horizon,
        timeout_ms: int,
    ) -> Waiting:
        """Any record counts as `bytes_min`: others wait by the same request."""
        if timeout_ms < _COPY_WAIT_MS and self._uncopied(positions):
            timeout_ms = _COPY_WAIT_MS
        return self._polling.wait(positions, horizon, timeout_ms)

    def _uncopied(self, positions: Mapping[Partition, Offset]) -> bool:
        """Has a leader acknowledged records after these positions that replicas lack?"""
        try:
            marks = {at: self._bounds.marks(at) for at in positions}
        except BrokerError:
            return False  # the read that follows is refused
        return any(
            max(offset, marks[at].durable) < marks[at].end for at, offset in positions.items()
        )

    def _polled(self, offset: Offset, found: Found) -> None:
        """What came with the end of a wait is what the waiting reader will ask for."""
        fetched = fetch.Fetched(found.code, 0, found.marks, list(found.aborted), found.data)
        try:
            there = self._slice(found.at, offset, fetched, FIRST_BYTES, Horizon.STABLE, True)
        except BatchCorrupt:
            return  # whoever reads is told
        self._ahead.keep(found.at, offset, FIRST_BYTES, there)

    def stop_waiting(self) -> None:
        """The gateway is about to stop: nobody need wait for more records."""
        self._polling.stop()

    def ends(self, partitions: Collection[Partition]) -> Later[Mapping[Partition, Offset]]:
        """The ends last seen: the cluster decides when an acknowledged record is readable."""
        found: dict[Partition, Offset] = {}
        for at in partitions:
            try:
                found[at] = self._bounds.marks(at).end
            except BrokerError:
                continue
        return Later.now(found)

    def marks(self, at: Partition) -> Marks:
        return self._bounds.marks(at)

    def locate(self, at: Partition, when: Edge | int) -> Later[tuple[Offset, int]]:
        marks = self._bounds.marks(at)
        edges = {Edge.START: marks.start, Edge.STABLE: marks.stable, Edge.END: marks.end}
        edges[Edge.DURABLE] = marks.durable
        if isinstance(when, Edge) and when in edges:
            return Later.now((edges[when], -1))
        return Later.now(self._bounds.located(at, when))

    def size_bytes(self, at: Partition) -> int:
        return self.sizes.of(at)

    def appended_bytes(self, at: Partition) -> int:
        return self._appended_bytes.get(at, 0)

    def volume(self) -> Volume:
        raise UnsupportedVersion("the disks of a cluster are not known to its gateways")

    def segments(self, at: Partition) -> int:
        """One: how a cluster cuts its partitions is not told to clients."""
        self._topics.leader(at)
        return 1


class Ahead:
    """Slices that were fetched together with their marks, each for one reader."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Partition, Offset], tuple[int, Slice]] = OrderedDict()
        self._bytes = 0

    def keep(self, at: Partition, offset: Offset, bytes_max: int, found: Slice) -> None:
        self.drop(at, offset)
        self._kept[at, offset] = (bytes_max, found)
        self._bytes += found.size_bytes
        while self._bytes > _AHEAD_BYTES_MAX or len(self._kept) > _AHEAD_MAX:
            self._bytes -= self._kept.popitem(last=False)[1][1].size_bytes

    def holds(self, at: Partition, offset: Offset) -> bool:
        return (at, offset) in self._kept

    def drop(self, at: Partition, offset: Offset) -> None:
        self.take(at, offset, 1 << 62)

    def take(self, at: Partition, offset: Offset, bytes_max: int) -> Slice | None:
        """What was kept for a reader of at most so many bytes."""
        kept = self._kept.get((at, offset))
        if kept is None or kept[0] > bytes_max:
            return None
        del self._kept[at, offset]
        self._bytes -= kept[1].size_bytes
        return kept[1]

    def clear(self) -> None:
        """Topics have changed: the same name may be another one."""
        self._kept.clear()
        self._bytes = 0


def _each(batches: memoryview, facts: Facts) -> Iterator[tuple[memoryview, Facts]]:
    if facts.batches == 1:
        yield batches, facts
        return
    position = 0
    while position < len(batches):
        end = position + kernels.batch_header(batches, position).size
        yield batches[position:end], kernels.check_batches(batches, position, end)
        position = end


def _all_settled(laters: Sequence[Later[Appended]]) -> Steps[Appended]:
    """Where the first begins and the last ends; what the first that failed was refused with."""
    yield all_of(laters)
    first, last = laters[0].value, laters[-1].value
    return last._replace(base_offset=first.base_offset)


def _not_noted(
    at: Partition, who: Identity, first: int, last: int, settled: Later[Appended]
) -> None:
    """Nobody wants to know."""


def _no_files(piece: FilePiece) -> bytes:
    raise AssertionError("what comes from a cluster lies in memory")
