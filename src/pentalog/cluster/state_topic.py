"""What gateways keep beyond Kafka: the broker's state as rows in one compacted topic.

Every gateway follows the topic.  The owner alone writes it: it takes an epoch that fences those
before, writes a claim under it, reads everything up to there, and then lets the same code work
on its `Tenure` that works on the state file of a broker without a cluster.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Collection
from typing import Final, NoReturn, Protocol
from uuid import uuid4

from pentalog.broker.port import TopicSpec, Waiting
from pentalog.broker.state import CHANGES_MAX, Row, Value
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.council import ClusterCouncil
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.refusals import told
from pentalog.cluster.state_rows import SCHEMA, Change, Tables, table_of
from pentalog.cluster.state_writing import FencedWriter, identify
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.kernels import batch_header
from pentalog.model import batch
from pentalog.model.errors import (
    BrokerError,
    OffsetOutOfRange,
    Overloaded,
    StorageFailed,
    TopicExists,
)
from pentalog.model.later import Later
from pentalog.model.types import Horizon, Identity, Offset, Partition, Record
from pentalog.runtime import Runtime

_log: Final = logging.getLogger(__name__)

AT: Final = Partition(STATE_TOPIC, 0)
BATCH_BYTES_MAX: Final = 64 << 20
SHARED: Final = frozenset({"verifiers", "keys", "tokens", "rules", "quotas", "shared_rosters"})
"""Tables whose rows may be written by others than the owner, one row at a time: by commands, and
those of groups by every gateway."""
TOPIC_SETTINGS: Final = {"cleanup.policy": "compact", "max.message.bytes": str(BATCH_BYTES_MAX)}

_READ_BYTES: Final = 1 << 20
_LOOK_MS: Final = 10_000
_PAUSE_MS: Final = 500
_CLAIM_KEY: Final = b'["claim"]'
_FENCE_KEY: Final = b'["fence"]'
_EPOCH_MAX: Final = 32_767


class Replica:
    """The rows as read from the topic so far; takes no changes."""

    def __init__(self, state: ClusterState) -> None:
        self.over = False
        self.position: Offset = 0
        self.told: Offset = 0
        """Up to here those who watch have heard of it."""
        self.who: Identity | None = None
        """Under which id and epoch this one writes, if it does."""
        self.before: Identity | None = None
        """Who else wrote the last batch that was read."""
        self.secret = ""
        """Of the owner that claimed the state last: only who may read the state knows it."""
        self._state = state
        self._tables = Tables()
        self._waiting: Waiting | None = None

    def rows(self, sql: str, *values: Value) -> list[Row]:
        try:
            return self._tables.rows(sql, values)
        except sqlite3.Error as error:
            raise StorageFailed(f"cannot look up the gateways' state: {error}") from error

    def write(self, sql: str, *values: Value) -> None:
        raise AssertionError("whoever writes asks first whether it may")

    def settle(self) -> Later[None]:
        return Later.now(None)

    def read(self, until: Offset | None = None) -> Steps[set[str]]:
        """Take over what is there, at least up to `until`; the tables that have changed."""
        changed: set[str] = set()
        while not self.over:
            try:
                opened = yield self._state.log.open(
                    AT, self.position, bytes_max=_READ_BYTES, horizon=Horizon.STABLE
                )
            except OffsetOutOfRange as refusal:
                if refusal.start <= self.position:
                    raise
                self.position = refusal.start
                continue
            changed |= self._take(opened.batches)
            self.position = max(self.position, opened.next_offset)
            if self.position >= max(opened.marks.stable, until or 0):
                break
        return changed

    def _take(self, batches: bytes | bytearray | memoryview) -> set[str]:
        changed: set[str] = set()
        position = 0
        while position < len(batches):
            header = batch_header(batches, position)
            found = batch.records_of(batches, position, bytes_max=4 * BATCH_BYTES_MAX)
            rows = [record for _, record in found if record.key not in (None, _FENCE_KEY)]
            writer = Identity(header.producer_id, header.producer_epoch)
            rows = self._news(rows, writer)
            if rows and writer != self.who and writer.producer_id >= 0:
                self.before = writer
            for record in rows:
                if record.key == _CLAIM_KEY:
                    self.secret = _read_claim(record)
            try:
                changed |= self._tables.apply(rows)
            except (sqlite3.Error, TypeError, KeyError, AttributeError, AssertionError) as flaw:
                raise StorageFailed(
                    f"{AT} near offset {header.base_offset} holds what no gateway of this version "
                    f"writes: {flaw!r}"
                ) from flaw
            position += header.size
        return changed

    def _news(self, rows: list[Record], writer: Identity) -> list[Record]:
        """Those that are to be taken over."""
        return rows

    def more(self) -> Waiting:
        """Ready when there may be something behind what was read."""
        self._waiting = self._state.log.wait(
            {AT: self.position}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=_LOOK_MS
        )
        return self._waiting

    def end(self) -> None:
        self.over = True
        if self._waiting is not None:
            self._waiting.cancel()

    def close(self) -> None:
        """Nobody reads them any more."""
        self.end()
        self._tables.close()


class Tenure(Replica):
    """The rows of an owner, for as long as it is; implements `needs.RowsToLookUp`."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self.open = False
        self._writer: FencedWriter | None = None
        self._queued: list[Change] = []
        self._waiters: list[Later[None]] = []
        self._underway: list[Later[None]] | None = None
        """Whom the batch on its way is waited for by; None: there is none."""
        self._scheduled = False

    def may(self) -> bool:
        return not self.over and self._state.council.owned

    def claim(self) -> Steps[None]:
        """Become the only one whose writes are taken, and know what was written before."""
        state = self._state
        self.who = who = yield from identify(state.fleet)
        self._writer = FencedWriter(state.fleet, state.topics, state.runtime, AT, who)
        council = state.council
        said = {
            "gateway": council.me.gateway_id if council.me else "",
            "generation": council.generation,
            "schema": SCHEMA,
            "secret": uuid4().hex,
        }
        claim = Record(json.dumps(said, separators=(",", ":")).encode(), _CLAIM_KEY)
        behind = yield from self._writer.write([claim], self.may)
        yield from self.read(behind)
        before = self.before
        if before is not None and 0 <= before.producer_id != who.producer_id:
            # The cluster has forgotten the id it once gave out, and this epoch is of another one.
            behind = yield from self._fence(before)
            yield from self.read(behind)
        self.open = not self.over

    def _fence(self, before: Identity) -> Steps[Offset]:
        state = self._state
        newer = Identity(before.producer_id, min(before.epoch + 1, _EPOCH_MAX))
        fence = FencedWriter(state.fleet, state.topics, state.runtime, AT, newer)
        return (yield from fence.write([Record(b"{}", _FENCE_KEY)], self.may))

    def _news(self, rows: list[Record], writer: Identity) -> list[Record]:
        """Once it is open, only what commands have written past the owner."""
        if not self.open:
            return rows
        return [] if writer == self.who else [one for one in rows if table_of(one) in SHARED]

    # What `needs.RowsToLookUp` asks for

    def look_up(self, sql: str, *values: Value) -> Later[list[Row]]:
        later: Later[list[Row]] = Later()

        def look(settled: Later[None]) -> None:
            try:
                _ = settled.value
                later.fill(self.rows(sql, *values))
            except BrokerError as refusal:
                later.refuse(refusal)

        self.settle().then(look)
        return later

    def check(self) -> None:
        if not self.may():
            self._state.refuse()
        if len(self._queued) >= CHANGES_MAX:
            raise Overloaded(f"{CHANGES_MAX} changes wait for the cluster: try again in a moment")

    def write(self, sql: str, *values: Value) -> None:
        if self.over:
            return  # of one who has not heard yet; whoever waits for it is refused
        self._queued.append(Change(sql, values))
        self._schedule()

    def put(self, sql: str, rows: Collection[tuple[Value, ...]]) -> Later[None]:
        for values in rows:
            self.write(sql, *values)
        return self.settle()

    def settle(self) -> Later[None]:
        later: Later[None] = Later()
        if self.over:
            later.refuse(self._state.refusal())
        elif self._queued:
            self._waiters.append(later)
        elif self._underway is not None:
            self._underway.append(later)
        else:
            later.fill(None)
        return later

    def _schedule(self) -> None:
        if not self._scheduled and self._underway is None:
            self._scheduled = True
            self._state.runtime.soon(self._commit)

    def _commit(self) -> None:
        self._scheduled = False
        if self.over or not self._queued or self._underway is not None:
            return
        assert self._writer is not None
        changes, self._queued = self._queued, []
        self._underway, self._waiters = self._waiters, []
        try:
            records = self._tables.change(changes)
        except sqlite3.Error as error:
            self._state.fail(self, StorageFailed(f"the state takes no such change: {error}"))
            return
        if records:
            begin(self._writer.write(records, self.may)).then(self._committed)
        else:
            self._committed(Later.now(0))

    def _committed(self, written: Later[Offset]) -> None:
        if self.over:
            return
        try:
            _ = written.value
        except BrokerError as refusal:
            self._state.fail(self, told(refusal))
            return
        waiting, self._underway = self._underway or [], None
        for later in waiting:
            later.fill(None)
        if self._queued:
            self._schedule()

    def end(self) -> None:
        super().end()
        self.open = False
        self._queued = []
        waiting = [*(self._underway or ()), *self._waiters]
        self._underway, self._waiters = None, []
        for later in waiting:
            later.refuse(self._state.refusal())


class Tenant(Protocol):
    """Somebody who works on the owner's rows while there are any."""

    def move_in(self, tenure: Tenure) -> Steps[None]:
        """Begin; the rows are there, and nobody has asked for anything yet.

        Whoever waits meanwhile looks afterwards whether the tenure is over: he has been moved out
        then, and may be at home in another one.
        """

    def move_out(self) -> None:
        """Stop at once, even in the middle of moving in: another gateway may be at work already.

        Does nothing for one who is not there.
        """


class ClusterState:
    """Follows the state topic, and owns it while the council says so."""

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        log: ClusterLog,
        council: ClusterCouncil,
        runtime: Runtime,
    ) -> None:
        self.fleet = fleet
        self.topics = topics
        self.log = log
        self.council = council
        self.runtime = runtime
        self.rows: Replica = Replica(self)
        """What there is to read; another one whenever `watch` says that all has changed."""
        self.tenants: list[Tenant] = []
        self._coming: Replica | None = None
        """Takes the place of `rows` when it has read everything."""
        self._moved_in: list[Tenant] = []
        self._watchers: dict[object, tuple[frozenset[str], Callable[[], None]]] = {}
        self._complaint = ""
        self._closed = False
        self._stop_watching: Callable[[], None] = lambda: None

    @property
    def tenure(self) -> Tenure | None:
        """The rows of this gateway while it owns them, beyond doubt."""
        rows = self.rows
        return rows if isinstance(rows, Tenure) and rows.open and rows.may() else None

    @property
    def owned(self) -> bool:
        """May rows be changed here now?"""
        return self.tenure is not None

    def open(self) -> Steps[None]:
        """Read everything that is there now, and follow from then on."""
        replica = self.rows
        yield from self.topics.refresh(STATE_TOPIC)
        if self._exists():
            yield from replica.read()
        self._stop_watching = self.council.watch(self._council_changed)
        begin(self._follow(replica)).then(lambda outcome: self._begun(replica, outcome))

    def close(self) -> None:
        self._closed = True
        self._stop_watching()
        self._end()
        self.rows.close()

    def watch(self, tables: Collection[str], run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` when rows of these were changed by others, or `rows` is another object."""
        key = object()
        self._watchers[key] = (frozenset(tables), run)
        return lambda: self._watchers.pop(key, None) and None

    def refusal(self) -> Overloaded:
        owner = self.council.owner
        if owner is None or owner == self.council.me:
            return Overloaded("no gateway owns the state at the moment: try again")
        return Overloaded(f"gateway {owner.number} owns the state, not this one: try again there")

    def refuse(self) -> NoReturn:
        raise self.refusal()

    def fail(self, tenure: Tenure, refusal: BrokerError) -> None:
        """What the tenure has in memory is not what the topic has: begin anew."""
        if tenure.over:
            return
        _log.error("the gateways' state was not written, and is read anew: %s", refusal)
        self._end()
        self._begin_again()

    # Terms

    def _council_changed(self) -> None:
        owning = isinstance(self._coming or self.rows, Tenure)
        if self._closed or self.council.owned == owning:
            return
        self._end()
        self._begin()

    def _begin(self) -> None:
        if self.council.owned:
            self._coming = tenure = Tenure(self)
            begin(self._own(tenure)).then(lambda outcome: self._begun(tenure, outcome))
        else:
            self._coming = replica = Replica(self)
            begin(self._follow(replica)).then(lambda outcome: self._begun(replica, outcome))

    def _begun(self, replica: Replica, outcome: Later[None]) -> None:
        try:
            _ = outcome.value
        except BrokerError as refusal:
            if not replica.over:
                self._complain(str(told(refusal)))
                self._end()
                self._begin_again()

    def _complain(self, why: str) -> None:
        """Once, however often it is tried again."""
        if why != self._complaint:
            self._complaint = why
            _log.warning("the gateways' state cannot be used, tried again: %s", why)

    def _begin_again(self) -> None:
        def run() -> None:
            if not self._closed and self._coming is None and self.rows.over:
                self._begin()

        self.runtime.after(_PAUSE_MS, run)

    def _end(self) -> None:
        for tenant in self._moved_in:
            tenant.move_out()
        self._moved_in = []
        self.rows.end()
        if self._coming is not None:
            self._coming.close()
            self._coming = None

    def _take_place(self, replica: Replica) -> None:
        before, self.rows, self._coming = self.rows, replica, None
        self._complaint = ""
        self._tell(None)
        before.close()

    def _tell(self, changed: set[str] | None) -> None:
        for tables, run in list(self._watchers.values()):
            if changed is None or not tables.isdisjoint(changed):
                run()

    # Following

    def _follow(self, replica: Replica) -> Steps[None]:
        while not replica.over:
            if self._exists():
                changed = yield from replica.read()
                if replica.over:
                    return
                if replica is self._coming:
                    self._take_place(replica)
                elif changed:
                    self._tell(changed)
                self.council.secret = replica.secret
                replica.told = replica.position
                yield replica.more()
            else:
                yield self.fleet.sleep(_PAUSE_MS)
                yield from self.topics.refresh(STATE_TOPIC)

    def _exists(self) -> bool:
        return self.topics.known(STATE_TOPIC)

    # Owning

    def _own(self, tenure: Tenure) -> Steps[None]:
        yield from self._make_topic()
        yield from tenure.claim()
        if tenure.over:
            return
        self._take_place(tenure)
        self.council.secret = tenure.secret
        for tenant in self.tenants:
            self._moved_in.append(tenant)
            yield from tenant.move_in(tenure)
            if tenure.over:
                return
        me = self.council.me
        _log.info("this gateway (number %d) owns the state", me.number if me else 0)
        begin(self._overhear(tenure))

    def _overhear(self, tenure: Tenure) -> Steps[None]:
        """Take over what commands write of users, rules and quotas while this one is the owner."""
        while not tenure.over:
            try:
                yield tenure.more()
                changed = yield from tenure.read()
            except BrokerError:
                yield self.fleet.sleep(_PAUSE_MS)
                continue
            if changed and not tenure.over:
                self._tell(changed)

    def _make_topic(self) -> Steps[None]:
        yield from self.topics.refresh(STATE_TOPIC)
        if self._exists():
            return
        spec = TopicSpec(name=STATE_TOPIC, partitions=1, settings=TOPIC_SETTINGS)
        try:
            yield self.topics.prepare(spec)
            self.topics.create(spec)
        except TopicExists:
            yield from self.topics.refresh(STATE_TOPIC)


def _read_claim(record: Record) -> str:
    """The owner's secret; raises if this gateway is too old to understand it."""
    try:
        said = json.loads(record.value or b"{}")
        schema, secret = int(said.get("schema", 0)), str(said.get("secret", ""))
    except (ValueError, AttributeError, TypeError) as flaw:
        raise StorageFailed(f"a claim in {AT} cannot be read: {record.value!r}") from flaw
    if schema > SCHEMA:
        raise StorageFailed(
            f"{AT} was written by a newer pentalog (state version {schema}, this one knows up to "
            f"{SCHEMA}): run this gateway in that version too"
        )
    return secret
